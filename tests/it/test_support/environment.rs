//! Where the server comes from. A process cannot change its own environment safely, so another one is started.

#[cfg(feature = "testcontainers")]
use std::io::Write;
use std::process::{Command, Output};

use duroxide_postgres::test_support::TestDatabase;

/// Runs one of the tests below that are ignored otherwise, and sees to it that it ran. None: without that variable.
fn run(child: &str, variables: &[(&str, Option<&str>)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", &format!("test_support::environment::{child}")]);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().expect("the child");
    // A name that fits none is a success of no tests.
    let ran = if output.status.success() {
        " 1 passed; 0 failed; "
    } else {
        " 0 passed; 1 failed; "
    };
    let said = text(&output);
    assert!(said.contains("running 1 test\n") && said.contains(ran), "{said}");
    output
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[tokio::test]
#[ignore = "run by the tests below, without a server"]
async fn child_without_server() {
    let error = TestDatabase::from_env().await.expect_err("no server");
    panic!("{:?}: {error}", error.kind());
}

#[test]
fn without_a_server_the_error_says_what_to_do() {
    for missing in [None, Some("")] {
        let nowhere = Some("unix:///no/such/engine.sock");
        let output = text(&run(
            "child_without_server",
            &[("DATABASE_URL", missing), ("DOCKER_HOST", nowhere)],
        ));
        for words in [
            "Config: ",
            "DATABASE_URL is not set",
            "scripts/with-postgres",
            "docker compose up -d --wait",
            if cfg!(feature = "testcontainers") {
                "start a container engine"
            } else {
                "`testcontainers`"
            },
        ] {
            assert!(output.contains(words), "{words:?} is not in: {output}");
        }
    }
}

#[test]
#[ignore = "run by the test below, with a server that cannot be reached"]
fn child_that_leaves_something_behind() {
    drop(TestDatabase::on("postgres://me:top-secret@127.0.0.1:1/app"));
}

#[test]
fn leftovers_are_reported_although_the_test_passes() {
    let output = run("child_that_leaves_something_behind", &[]);
    assert!(output.status.success(), "{}", text(&output));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("schema duroxide_test_"), "{stderr}");
    assert!(stderr.contains("may have been left behind"), "{stderr}");
    assert!(!stderr.contains("top-secret"), "{stderr}");
}

#[cfg(feature = "testcontainers")]
#[tokio::test]
#[ignore = "run by the test below, without DATABASE_URL"]
async fn child_with_container() {
    let (one, two) = tokio::join!(TestDatabase::from_env(), TestDatabase::from_env());
    let (one, two) = (one.expect("a container"), two.expect("a container"));
    assert_eq!(one.url(), two.url(), "one container for all tests");
    for database in [one, two] {
        let provider = database.provider().await.expect("provider");
        provider.health_check().await.expect("healthy");
        database.close().await.expect("closed");
    }
    // A test whose runtime is another one.
    let later = std::thread::spawn(|| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let database = TestDatabase::from_env().await.expect("the container");
            database.provider().await.expect("provider");
            database.url().to_string()
        })
    });
    let url = later.join().expect("as before");
    assert!(url.starts_with("postgres://"), "{url}");
}

/// Skipped, loudly, where no container can be started, unless `REQUIRE_CONTAINERS` is set.
#[cfg(feature = "testcontainers")]
#[test]
fn a_container_is_started_where_no_server_is_named() {
    let output = run("child_with_container", &[("DATABASE_URL", None)]);
    if output.status.success() {
        return;
    }
    let output = text(&output);
    let no_engine = output.contains("no container could be started");
    let required = std::env::var_os("REQUIRE_CONTAINERS").is_some();
    assert!(no_engine && !required, "{output}");
    // Not by eprintln!, which the test harness hides unless the test fails.
    let _ = writeln!(std::io::stderr(), "SKIPPED, NOTHING WAS TESTED: {output}");
}
