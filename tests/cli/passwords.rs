//! Where a password comes from, and what is said where there is none.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::process::{Finished, command};
use crate::secure::{HOST, PASSWORD, SERVER};

/// Without a password in the URL.
fn run(passfile: Option<&Path>) -> Finished {
    let url = format!(
        "postgres://postgres@{HOST}:{}/postgres?hostaddr=127.0.0.1&sslmode=require",
        SERVER.cluster.port
    );
    let mut command = command(&url, &["--schema", "nothing_here", "schema", "version"]);
    command
        .env("HOME", "/nonexistent")
        .env_remove("PGPASSWORD")
        .env_remove("PGPASSFILE");
    if let Some(file) = passfile {
        command.env("PGPASSFILE", file);
    }
    Finished::from(command.output().expect("run"))
}

#[test]
fn where_there_is_none_it_says_why() {
    let says = [
        "the server asks for a password, and there is none",
        "PGPASSWORD",
        "PGPASSFILE",
    ];
    let failed = run(None).fails(3, &says);
    assert!(!failed.err.contains(". But "), "{}", failed.err);

    let line = format!("{HOST}:{}:*:postgres:{PASSWORD}\n", SERVER.cluster.port);
    let file = SERVER.cluster.client_file(&line);
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("chmod");
    mode(0o644);
    let name = file.display();
    let ignored = format!("the password file {name} was ignored, because others may read it: chmod 0600 {name}");
    let failed = run(Some(&file)).fails(3, &[&says[..], &[&ignored]].concat());
    assert!(!failed.err.contains(PASSWORD), "{}", failed.err);
    mode(0o600);
    run(Some(&file)).fails(1, &["there is no schema \"nothing_here\""]);

    // For somebody else.
    let other = SERVER.cluster.client_file(&format!("elsewhere:*:*:*:{PASSWORD}\n"));
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).expect("chmod");
    let none = format!("has no line for {HOST}:{}:postgres:postgres", SERVER.cluster.port);
    let failed = run(Some(&other)).fails(3, &[&says[..], &[&none]].concat());
    assert!(!failed.err.contains(PASSWORD), "{}", failed.err);

    // There is no file.
    for (file, why) in [
        ("/dev/null", "is not a file"),
        ("/nonexistent/pgpass", "cannot be read: No such file"),
    ] {
        let failed = run(Some(Path::new(file))).fails(3, &[&says[..], &[why]].concat());
        assert!(!failed.err.contains("chmod"), "{}", failed.err);
    }
}

/// To those who are not asked for a password, the file is nothing: so it is to libpq.
#[test]
fn a_password_file_that_nobody_needs_may_be_missing() {
    let server = &crate::pooler::SERVER;
    let unreadable = server.client_file("");
    std::fs::write(&unreadable, b"\xff:*:*:*:x\n").expect("write");
    for file in [
        Path::new("/dev/null"),
        Path::new("/nonexistent/pgpass"),
        Path::new("/"),
        &unreadable,
    ] {
        let mut command = command(&server.admin_url(), &["--schema", "nothing_here", "schema", "version"]);
        command.env_remove("PGPASSWORD").env("PGPASSFILE", file);
        Finished::from(command.output().expect("run")).fails(1, &["there is no schema \"nothing_here\""]);
    }
}
