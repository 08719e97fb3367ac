//! `doctor`: what is, or may become, a problem, and the one command that fixes it.

mod schema;
mod server;

use serde_json::{Value, json};

use super::arguments::Doctor;
use super::connection::Connection;
use super::output::{Failure, Outcome};

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
    /// A command for psql or a shell, or what to set where.
    fix: String,
}

impl Finding {
    fn new(severity: Severity, check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            severity,
            check,
            message: message.into(),
            fix: fix.into(),
        }
    }
}

pub(super) async fn run(connection: &Connection, wanted: &Doctor) -> Result<Outcome, Failure> {
    let mut findings = server::findings(connection, wanted).await?;
    findings.extend(schema::findings(connection).await?);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let mut text = String::new();
    let mut list = Vec::new();
    for finding in &findings {
        let Finding {
            severity,
            check,
            message,
            fix,
        } = finding;
        text.push_str(&format!("{}: {check}: {message}\n    fix: {fix}\n", severity.name()));
        list.push(json!({ "severity": severity.name(), "check": check, "message": message, "fix": fix }));
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    text.push_str(&format!("{errors} errors, {warnings} warnings\n"));
    let json = json!({ "errors": errors, "warnings": warnings, "findings": Value::Array(list) });
    let problem = (errors > 0).then(|| Failure::new(format!("{errors} things have to be put right")));
    Ok(Outcome::new(text, json).with_problem(problem))
}
