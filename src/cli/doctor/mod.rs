//! `doctor`: what is, or may become, a problem, and what fixes it.

mod connections;
mod origins;
mod roles;
mod schema;
mod server;

use serde_json::{Value, json};

use super::arguments::Doctor;
use super::connection::Connection;
use super::output::{Failure, Outcome, visible};
use super::table_lock::TableLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// Good to know.
    Note,
    /// May become a problem.
    Warning,
    /// Is one.
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

struct Finding {
    severity: Severity,
    /// What was looked at.
    check: &'static str,
    message: String,
    /// Commands for psql or a shell, one after the other, or what to set where.
    fixes: Vec<String>,
}

impl Finding {
    fn new(severity: Severity, check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            severity,
            check,
            message: message.into(),
            fixes: vec![fix.into()],
        }
    }

    /// A second command, for what cannot be one with the first.
    fn then(mut self, fix: impl Into<String>) -> Self {
        self.fixes.push(fix.into());
        self
    }
}

/// What was found so far. What cannot be checked is a finding of its own, and the rest is checked all the same.
struct Examination<'a> {
    connection: &'a Connection,
    findings: Vec<Finding>,
    /// Locks on whole tables that somebody keeps, with the checks that waited for them in vain.
    locks: Vec<(TableLock, Vec<&'static str>)>,
    /// That there are no more connections, with the checks that it kept from looking.
    crowded: Option<(Finding, Vec<&'static str>)>,
}

impl Examination<'_> {
    /// Fails without a server: there is no rest then.
    async fn add(&mut self, check: &'static str, checked: Result<Vec<Finding>, Failure>) -> Result<(), Failure> {
        let failure = match checked {
            Ok(findings) => {
                self.findings.extend(findings);
                return Ok(());
            }
            Err(failure) => failure,
        };
        // The first connection is one more that failed where nothing else was found.
        if failure.is_crowded() && self.connection.is_connected() {
            match &mut self.crowded {
                Some((_, checks)) => checks.push(check),
                None => {
                    let finding = connections::crowded(self.connection, &failure).await;
                    self.crowded = Some((finding, vec![check]));
                }
            }
            return Ok(());
        }
        if failure.is_unreachable() {
            return Err(failure);
        }
        if failure.is_locked()
            && let Some(lock) = self.connection.table_lock().await
        {
            match self.locks.iter_mut().find(|(known, _)| known.end == lock.end) {
                Some((_, checks)) => checks.push(check),
                None => self.locks.push((lock, vec![check])),
            }
            return Ok(());
        }
        let fix = format!("{} doctor # again, once that is put right", self.connection.command());
        let message = format!("could not be checked: {failure}");
        self.findings.push(Finding::new(Severity::Error, check, message, fix));
        Ok(())
    }

    fn all(mut self) -> Vec<Finding> {
        if let Some((mut finding, mut checks)) = self.crowded {
            checks.dedup();
            finding.message = format!(
                "no second connection can be had, so that {} could not be checked: {}",
                checks.join(", "),
                finding.message
            );
            self.findings.push(finding);
        }
        for (TableLock { who, end }, mut checks) in self.locks {
            checks.dedup();
            let message = format!(
                "{who}: nodes wait for it. What could not be checked because of it: {}",
                checks.join(", ")
            );
            self.findings.push(Finding::new(Severity::Error, "locks", message, end));
        }
        self.findings
    }
}

pub(super) async fn run(connection: &Connection, wanted: &Doctor) -> Result<Outcome, Failure> {
    let mut examination = Examination {
        connection,
        findings: Vec::new(),
        locks: Vec::new(),
        crowded: None,
    };
    let mut ended = server::examine(&mut examination, wanted).await;
    if ended.is_ok() {
        ended = schema::examine(&mut examination).await;
    }
    let mut findings = examination.all();
    match ended {
        // What was found before the server went away is worth knowing.
        Err(failure) if findings.is_empty() => return Err(failure),
        _ => {}
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let mut text = String::new();
    let mut list = Vec::new();
    for finding in &findings {
        let Finding {
            severity,
            check,
            message,
            fixes,
        } = finding;
        text.push_str(&format!("{}: {check}: {}\n", severity.name(), visible(message)));
        for fix in fixes {
            text.push_str(&format!("    fix: {}\n", visible(fix)));
        }
        list.push(json!({ "severity": severity.name(), "check": check, "message": message, "fixes": fixes }));
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let counted = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    text.push_str(&format!(
        "{}, {}\n",
        counted(errors, "error", "errors"),
        counted(warnings, "warning", "warnings")
    ));
    let json = json!({ "errors": errors, "warnings": warnings, "findings": Value::Array(list) });
    let problem = ended.err().or_else(|| {
        let text = counted(errors, "thing has to be put right", "things have to be put right");
        (errors > 0).then(|| Failure::new(text))
    });
    Ok(Outcome::new(text, json).with_problem(problem))
}
