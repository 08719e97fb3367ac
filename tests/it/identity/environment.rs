//! What libpq takes from the environment. A process cannot change its own safely, so another one is started.

use std::process::Command;

use duroxide_postgres::Builder;

use super::PATIENCE;
use crate::secure::{HOST, PASSWORD, SERVER};
use crate::support::{TestSchema, connect};

const ADMIN: &str = "TEST_ADMIN_URL";

/// Runs [`child`] with these variables, and returns its output if it failed.
fn run(schema: &TestSchema, variables: &[(&str, &str)]) -> Result<(), String> {
    let port = SERVER.cluster.port.to_string();
    let trusted = SERVER.trusted.display().to_string();
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "identity::environment::child", "--nocapture"])
        .env(ADMIN, &schema.url)
        .envs([
            ("PGHOST", HOST),
            ("PGHOSTADDR", "127.0.0.1"),
            ("PGPORT", &port),
            ("PGUSER", "postgres"),
            ("PGPASSWORD", PASSWORD),
            ("PGDATABASE", "postgres"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", &trusted),
            ("PGCONNECT_TIMEOUT", "10"),
            ("PGAPPNAME", &schema.name),
        ])
        .envs(variables.iter().copied())
        .output()
        .expect("the child");
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

#[tokio::test]
#[ignore = "run by the tests below, with an environment of its own"]
async fn child() {
    let name = std::env::var("PGAPPNAME").expect("PGAPPNAME");
    let connected = tokio::time::timeout(PATIENCE, Builder::from_env().schema(&name).connect());
    let provider = match connected.await.expect("in time") {
        Ok(provider) => provider,
        Err(error) => panic!("{:?}: {error}", error.kind()),
    };
    provider.health_check().await.expect("healthy");
    let admin = connect(&std::env::var(ADMIN).expect(ADMIN)).await;
    let encrypted: i64 = admin
        .query_one(
            "select count(*) from pg_stat_activity join pg_stat_ssl using (pid) \
              where application_name = $1 and usename = 'postgres' and ssl",
            &[&name],
        )
        .await
        .expect("pg_stat_ssl")
        .get(0);
    assert!(encrypted > 0);
}

#[test]
fn everything_can_come_from_the_environment() {
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    run(&schema, &[]).expect("connected");
    for (variable, value, words) in [
        ("PGSSLMODE", "verify-fully", vec!["Config", "sslmode", "verify-fully"]),
        ("PGSSLROOTCERT", "/no/such/ca.pem", vec!["Config", "/no/such/ca.pem"]),
        ("PGSSLCERT", "/no/such/cert.pem", vec!["Config", "sslcert", "sslkey"]),
        ("PGHOST", "db.example", vec!["Connect", "is not for db.example"]),
        ("PGPASSWORD", "wrong", vec!["Connect", "password authentication failed"]),
        ("PGUSER", "nobody_at_all", vec!["Connect", "nobody_at_all"]),
        ("PGDATABASE", "nowhere", vec!["Connect", "nowhere"]),
        ("PGPORT", "1", vec!["Connect", ":1"]),
        (
            "PGTARGETSESSIONATTRS",
            "read-only",
            vec!["Config", "target_session_attrs"],
        ),
        ("PGSERVICE", "mine", vec!["Config", "service"]),
    ] {
        let output = run(&schema, &[(variable, value)]).expect_err(variable);
        for word in words {
            assert!(output.contains(word), "{variable}: {word:?} is not in: {output}");
        }
        assert!(!output.contains(PASSWORD), "{variable}: {output}");
    }
}

#[test]
fn a_password_file_can_come_from_the_environment() {
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    let file = SERVER.cluster.client_file(&format!("*:*:*:postgres:{PASSWORD}\n"));
    let file = file.display().to_string();
    run(&schema, &[("PGPASSWORD", ""), ("PGPASSFILE", &file)]).expect("connected");
}
