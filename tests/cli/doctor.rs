//! `doctor`: silent on a healthy server, and finds each fault that is planted there, with what cures it.

mod backlog;
mod in_the_way;
mod lost;
mod roles;
mod schema;
mod server;
mod settings;

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use duroxide_postgres::PostgresProvider;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Options};
use crate::database::Database;
use crate::process::{Finished, command, run_on};

/// Where the command is.
const PROGRAM: &str = env!("CARGO_BIN_EXE_duroxide-postgres");

/// As durable as servers are by default. Prepared transactions and logical decoding are possible, and no fault.
static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    Cluster::start(&Options {
        settings: "fsync = on\nfull_page_writes = on\nmax_prepared_transactions = 5\nwal_level = logical",
        ..Options::default()
    })
});

/// A database with a deployment in schema `duroxide`.
struct Patient {
    database: Database,
}

/// What the doctor is to find, and nothing else.
struct Fault<'a> {
    severity: &'a str,
    check: &'a str,
    /// All of this is in the message.
    says: &'a [&'a str],
    /// A line a command.
    fix: &'a str,
}

impl Patient {
    async fn new() -> Self {
        Self::on(&SERVER).await
    }

    async fn on(server: &Cluster) -> Self {
        let database = Database::create_on(&server.admin_url()).await;
        PostgresProvider::connect(&database.url).await.expect("deployed");
        Self { database }
    }

    fn url(&self) -> &str {
        &self.database.url
    }

    async fn execute(&self, sql: &str) {
        let client = self.database.client().await;
        client
            .batch_execute("set search_path = duroxide, pg_temp")
            .await
            .expect("search_path");
        client.batch_execute(sql).await.expect(sql);
    }

    #[track_caller]
    fn silent(&self, options: &[&str]) {
        let report = run_on(self.url(), &[&["doctor", "--json"], options].concat())
            .ok()
            .json();
        assert_eq!(report, json!({ "errors": 0, "warnings": 0, "findings": [] }));
        let text = run_on(self.url(), &[&["doctor"], options].concat()).ok().out;
        assert_eq!(text, "0 errors, 0 warnings\n");
    }

    #[track_caller]
    fn finds(&self, options: &[&str], fault: &Fault<'_>) {
        found(|arguments| run_on(self.url(), &[arguments, options].concat()), fault);
    }

    /// Does what the doctor says, with a shell or as `psql -c` would: each command at once.
    async fn cure(&self, fix: &str) {
        for command in fix.lines() {
            if command.starts_with("duroxide-postgres ") {
                let folder = Path::new(PROGRAM).parent().expect("a folder").display();
                let path = format!("{folder}:{}", std::env::var("PATH").expect("PATH"));
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).env("PATH", path);
                shell.env("DATABASE_URL", self.url()).env_remove("DUROXIDE_SCHEMA");
                Finished::from(shell.output().expect("sh")).ok();
            } else {
                let client = self.database.client().await;
                client.batch_execute(command).await.expect(command);
            }
        }
    }

    async fn done(self) {
        self.database.drop().await;
    }
}

/// The doctor finds this and nothing else, in both ways to say it.
#[track_caller]
fn found(doctor: impl Fn(&[&str]) -> Finished, fault: &Fault<'_>) {
    let finished = doctor(&["doctor", "--json"]);
    let is_error = fault.severity == "error";
    if is_error {
        assert_eq!(finished.err, "error: 1 thing has to be put right\n", "{}", finished.out);
    } else {
        assert_eq!(finished.err, "", "{}", finished.out);
    }
    assert_eq!(finished.code, i32::from(is_error), "{}", finished.out);
    let report = finished.json();
    let findings = report["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 1, "{report:#}");
    let text = |key: &str| findings[0][key].as_str().expect("text").to_string();
    assert_eq!(
        (text("severity").as_str(), text("check").as_str()),
        (fault.severity, fault.check),
        "{report:#}"
    );
    for part in fault.says {
        assert!(text("message").contains(part), "{part:?} is not in {report:#}");
    }
    assert_eq!(fixes(&findings[0]), fault.fix);
    assert_eq!(report["errors"], u64::from(is_error));
    assert_eq!(report["warnings"], u64::from(fault.severity == "warning"));

    let spoken = doctor(&["doctor"]).out;
    assert!(
        spoken.starts_with(&format!("{}: {}: ", fault.severity, fault.check)),
        "{spoken}"
    );
    for fix in fault.fix.lines() {
        assert!(spoken.contains(&format!("\n    fix: {fix}\n")), "{spoken}");
    }
}

fn fixes(finding: &Value) -> String {
    let fixes = finding["fixes"].as_array().expect("fixes").iter();
    fixes
        .map(|fix| fix.as_str().expect("text"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Findings of a check, as `severity message | fix`.
pub fn findings(report: &Value, check: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings
        .filter(|finding| finding["check"] == check)
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().expect("text").to_string();
            format!("{} {} | {}", text("severity"), text("message"), fixes(finding))
        })
        .collect()
}

/// The doctor with more environment.
fn doctor_with(url: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Finished {
    let mut command = command(url, arguments);
    command.envs(environment.iter().copied());
    Finished::from(command.output().expect("duroxide-postgres"))
}
