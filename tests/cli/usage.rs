//! Bad input: what is wrong and what to do, on stderr, with a non-zero exit.

use crate::process::{cli, command, run, run_on};
use crate::support::{TestSchema, connect};

#[test]
fn help_is_there_for_everything() {
    for arguments in [
        &["--help"][..],
        &["schema", "--help"],
        &["schema", "sql", "--help"],
        &["schema", "apply", "--help"],
        &["schema", "verify", "--help"],
        &["schema", "drop", "--help"],
        &["schema", "version", "--help"],
        &["grant", "--help"],
        &["status", "--help"],
        &["watch", "--help"],
        &["instances", "--help"],
        &["show", "--help"],
        &["history", "--help"],
        &["cancel", "--help"],
        &["raise", "--help"],
        &["delete", "--help"],
        &["prune", "--help"],
        &["prune", "instances", "--help"],
        &["prune", "executions", "--help"],
        &["doctor", "--help"],
    ] {
        let help = run_on("postgres://u:very-secret@h/d", arguments).ok().out;
        assert!(help.contains("Usage: duroxide-postgres"), "{help}");
        assert!(!help.contains("very-secret"), "{help}");
    }
    let help = run(&["--help"]).ok().out;
    for expected in ["Exit codes", "130", "PGPASSFILE"] {
        assert!(help.contains(expected), "{expected} is not in {help}");
    }
    for subcommand in ["show", "history", "cancel", "raise", "delete"] {
        assert!(run(&[subcommand, "--help"]).ok().out.contains("Its id"), "{subcommand}");
    }
    assert_eq!(run(&["--version"]).ok().out, "duroxide-postgres 0.1.0\n");
}

#[test]
fn bad_usage_is_told_from_failure() {
    run(&["schema", "verify", "--colour"]).fails(2, &["unexpected argument '--colour'", "Usage:"]);
    run(&["schema"]).fails(2, &["Usage:"]);
    run(&["conjure"]).fails(2, &["unrecognized subcommand 'conjure'"]);
    run(&["grant"]).fails(2, &["<ROLE>"]);
    run(&["delete"]).fails(2, &["<INSTANCE>"]);
    run(&["doctor", "--old-transaction", "5"]).fails(2, &["--old-transaction", "a number with its unit"]);
    run(&["doctor", "--nodes", "0"]).fails(2, &["--nodes"]);
    run(&["prune", "instances", "--older-than", "-5d"]).fails(2, &["cannot be negative"]);
    run(&["grant", "app", "--payloads"]).fails(2, &["--for dashboard"]);
    for role in ["public", "none"] {
        // GRANT would take the quoted one for everybody.
        for arguments in [&["grant", role][..], &["grant", "--sql", role]] {
            let refused = run(arguments).fails(2, &[&format!("{role:?} is no role"), "PostgreSQL keeps that name"]);
            assert!(
                refused.out.is_empty() && !refused.err.contains("create role"),
                "{}",
                refused.err
            );
        }
    }
    run(&["--schema", "pg_catalog", "schema", "verify"]).fails(2, &["invalid schema name \"pg_catalog\""]);
    run(&["--schema", "a;b", "schema", "sql"]).fails(2, &["invalid schema name"]);
    run_on("", &["schema", "verify"]).fails(2, &["no server named", "DATABASE_URL"]);
    run_on("postgres://h:notaport/d", &["schema", "verify"]).fails(2, &["invalid connection string"]);
    run_on("postgres:///app", &["schema", "verify"]).fails(2, &["names no host", "?host=/var/run/postgresql"]);
}

/// Whatever a password would have to be encoded for.
#[test]
fn no_part_of_a_password_is_quoted() {
    for (url, encoded) in [
        ("postgres://u:1?hunter2=1@h/d", "%3F"),
        ("postgres://u:1/2?hunter2=1@h/d", "%3F"),
        ("postgres://u:1?sslmode=hunter2@h/d", "%3F"),
        ("postgres://u:1?hunter2@h/d", "%3F"),
        // Its beginning would be taken for a port.
        ("postgres://u:12345/hunter2@h/d", "%2F"),
    ] {
        let failed = run(&["-d", url, "status"]).fails(2, &["invalid connection string", encoded]);
        assert!(
            !failed.err.contains("hunter2") && !failed.err.contains("12345"),
            "{}",
            failed.err
        );
    }
}

#[test]
fn an_address_names_a_server_too() {
    let output = command("", &["status"])
        .env("PGHOSTADDR", "127.0.0.1")
        .env("PGPORT", "1")
        .env_remove("PGHOST")
        .output();
    let failed = crate::process::Finished::from(output.expect("run"));
    failed.fails(3, &["cannot connect to 127.0.0.1:1"]);
}

#[test]
fn a_server_that_is_not_there_has_an_exit_code_of_its_own() {
    for arguments in [
        &["schema", "verify"][..],
        &["schema", "apply"],
        &["schema", "version"],
        &["schema", "drop", "--yes"],
        &["grant", "app"],
        &["status"],
        &["watch"],
        &["instances"],
        &["show", "i"],
        &["history", "i"],
        &["cancel", "i"],
        &["raise", "i", "go"],
        &["delete", "i"],
        &["prune", "instances", "--older-than", "1d"],
        &["doctor"],
    ] {
        let failed = run_on("postgres://user:very-secret@127.0.0.1:1/db", arguments);
        let failed = failed.fails(3, &["cannot connect to 127.0.0.1:1", "refused"]);
        assert!(!failed.err.contains("very-secret"), "{}", failed.err);
        assert_eq!(failed.out, "");
    }
}

#[tokio::test]
async fn a_schema_that_is_not_ours_is_left_alone() {
    let schema = TestSchema::new();
    let name = format!("{:?}", schema.name);
    for arguments in [
        &["schema", "verify"][..],
        &["schema", "version"],
        &["grant", "postgres"],
        &["status"],
        &["watch"],
        &["instances"],
        &["show", "i"],
        &["history", "i"],
        &["cancel", "i"],
        &["raise", "i", "go"],
        &["delete", "i", "--force"],
        &["prune", "executions", "--keep-last", "1"],
    ] {
        cli(&schema, arguments).fails(1, &["there is no schema", &name, "schema apply"]);
    }
    let client = connect(&schema.url).await;
    client
        .batch_execute(&format!("create schema {0}; create table {0}.theirs ()", schema.name))
        .await
        .expect("their schema");
    for arguments in [
        &["schema", "verify"][..],
        &["schema", "version"],
        &["schema", "drop", "--yes"],
        &["grant", "postgres"],
        &["status"],
        &["watch"],
        &["instances"],
        &["show", "i"],
        &["history", "i"],
        &["cancel", "i"],
        &["raise", "i", "go"],
        &["delete", "i", "--force"],
        &["prune", "executions", "--keep-last", "1"],
    ] {
        cli(&schema, arguments).fails(1, &[&name, "is not ours"]);
    }
    client
        .batch_execute(&format!("select from {}.theirs", schema.name))
        .await
        .expect("still there");
}

#[test]
fn the_schema_can_come_from_the_environment() {
    let output = command("", &["schema", "sql"])
        .env("DUROXIDE_SCHEMA", "from_the_environment")
        .output()
        .expect("run");
    let script = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(script.contains("create schema \"from_the_environment\";"), "{script}");
    let output = command("", &["schema", "sql"])
        .env("DUROXIDE_SCHEMA", "")
        .output()
        .expect("run");
    let script = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(script.contains("create schema \"duroxide\";"), "{script}");
    run(&["--schema", "", "schema", "sql"]).fails(2, &["invalid schema name"]);
}

/// What is suggested for a shell can be given to one.
#[tokio::test]
async fn suggestions_are_quoted() {
    let schema = TestSchema::new();
    run_on(&schema.url, &["--schema", "Odd$Name", "status"])
        .fails(1, &["duroxide-postgres --schema 'Odd$Name' schema apply"]);
}

/// `| head` closes the pipe early.
#[test]
fn a_reader_that_stops_is_no_error() {
    let mut child = command("", &["schema", "sql"]).spawn().expect("start");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
