//! `doctor`: what is, or may become, a problem, and what fixes it.

mod origins;
mod roles;
mod schema;
mod server;

use serde_json::{Value, json};

use super::arguments::Doctor;
use super::connection::Connection;
use super::output::{Failure, Outcome, visible};

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

/// What cannot be checked is a finding of its own, and the rest is checked all the same. Without a server there is no rest.
fn or_finding(
    connection: &Connection,
    check: &'static str,
    checked: Result<Vec<Finding>, Failure>,
) -> Result<Vec<Finding>, Failure> {
    checked.or_else(|failure| {
        if failure.is_unreachable() {
            return Err(failure);
        }
        let fix = format!("{} doctor # again, once that is put right", connection.command());
        Ok(vec![Finding::new(
            Severity::Error,
            check,
            format!("could not be checked: {failure}"),
            fix,
        )])
    })
}

pub(super) async fn run(connection: &Connection, wanted: &Doctor) -> Result<Outcome, Failure> {
    let mut findings = server::findings(connection, wanted).await?;
    findings.extend(or_finding(connection, "schema", schema::findings(connection).await)?);
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
    let problem = (errors > 0).then(|| {
        Failure::new(counted(
            errors,
            "thing has to be put right",
            "things have to be put right",
        ))
    });
    Ok(Outcome::new(text, json).with_problem(problem))
}
