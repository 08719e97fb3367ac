//! A server that refuses, or is not the one it should be: what is wrong and what to do.

use crate::process::{command, run_on};
use crate::secure::{Authority, HOST, PASSWORD, SERVER};

#[test]
fn certificates_that_do_not_match_are_refused() {
    let stranger = SERVER.cluster.client_file(&Authority::new("stranger").certificate());
    let other = SERVER.url(
        "postgres",
        PASSWORD,
        &format!("sslmode=verify-full&sslrootcert={}", stranger.display()),
    );
    run_on(&other, &["schema", "verify"]).fails(3, &["cannot connect to", "certificate", "sslrootcert"]);

    // Signed by the right one, for another host.
    let trusted = SERVER.trusted.display();
    let host = format!(
        "postgres://postgres@elsewhere.example:{}/postgres?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={trusted}",
        SERVER.cluster.port
    );
    run_on(&host, &["schema", "verify"]).fails(3, &["cannot connect to elsewhere.example", "certificate", HOST]);

    // A file that is not there, and one that is none.
    let missing = SERVER.url("postgres", PASSWORD, "sslmode=verify-full&sslrootcert=/no/such/file");
    let failed = run_on(&missing, &["schema", "verify"]);
    assert!(
        failed.code != 0 && failed.err.contains("/no/such/file"),
        "{}",
        failed.err
    );
    // A server that wants encryption.
    let plain = SERVER.url("postgres", PASSWORD, "sslmode=disable");
    let failed = run_on(&plain, &["schema", "verify"]).fails(3, &["no encryption", "sslmode"]);
    assert!(!failed.err.contains(PASSWORD), "{}", failed.err);
}

#[test]
fn an_expired_token_is_refused() {
    SERVER
        .cluster
        .execute("create role expired superuser login password 'a-token' valid until '2001-01-01'");
    let url = SERVER.verified_url("expired", "a-token");
    for arguments in [&["schema", "verify"][..], &["doctor"], &["status"]] {
        let failed = run_on(&url, arguments).fails(3, &["28P01", "token is wrong, or has expired", "PGPASSWORD"]);
        assert!(!failed.err.contains("a-token"), "{}", failed.err);
        assert_eq!(failed.out, "");
    }
    // The same from the environment.
    let trusted = SERVER.trusted.display();
    let url = format!(
        "postgres://expired@{HOST}:{}/postgres?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={trusted}",
        SERVER.cluster.port
    );
    let output = command(&url, &["schema", "verify"])
        .env("PGPASSWORD", "a-token")
        .output();
    let failed = crate::process::Finished::from(output.expect("run"));
    failed.fails(3, &["28P01"]);
}
