//! Passwords that do not last, password files, and the environment.

mod environment;

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide_postgres::{ErrorKind, PasswordRequest, PostgresProvider};

use crate::fixtures::{self, Ack, LOCK};
use crate::secure::{HOST, LIFETIME, PASSWORD, SERVER, TOKENS};
use crate::support::{TestSchema, connect};

/// A role with the schema's name whose password is a token.
async fn token_role(schema: &TestSchema) {
    connect(&schema.url)
        .await
        .batch_execute(&format!("create role {} superuser login", schema.name))
        .await
        .expect("role");
    TOKENS.rotate(&schema.name);
}

/// Connections come and go over several lifetimes of a token. That some are asked for with a token that
/// has just expired is nobody's business.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_expire_and_nobody_notices() {
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    token_role(&schema).await;
    let refusals = Arc::new(AtomicUsize::default());
    let counted = Arc::clone(&refusals);
    let url = SERVER.url(
        &schema.name,
        "",
        &format!("sslmode=require&application_name={}", schema.name),
    );
    let provider = PostgresProvider::builder(&url)
        .password(move |request: PasswordRequest| {
            counted.fetch_add(usize::from(request.refused), Ordering::Relaxed);
            async { Ok::<_, Infallible>(TOKENS.current()) }
        })
        .schema(&schema.name)
        .pool_size(4)
        .connect()
        .await
        .expect("connect");
    let admin = connect(&schema.url).await;
    let begun = Instant::now();
    let mut turns = 0;
    while begun.elapsed() < 2 * LIFETIME || refusals.load(Ordering::Relaxed) == 0 {
        assert!(begun.elapsed() < 20 * LIFETIME, "no token expired on its way");
        let instance = format!("i{turns}");
        provider
            .enqueue_for_orchestrator(fixtures::start(&instance), None)
            .await
            .expect("enqueue");
        let (item, token, _) = fixtures::turn(&provider, LOCK).await;
        assert_eq!(item.instance, instance);
        // The ack has to connect again, and so has whatever follows.
        admin
            .execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = $1",
                &[&schema.name],
            )
            .await
            .expect("terminate");
        let only = Ack {
            events: vec![fixtures::started(&instance)],
            metadata: fixtures::ending("Completed"),
            ..Ack::default()
        };
        fixtures::ack(&provider, &token, only).await.expect("ack");
        turns += 1;
    }
    assert!(turns > 1, "{turns}");
    assert!(TOKENS.asked() >= turns);
}

#[tokio::test]
async fn the_callback_learns_what_the_password_is_for() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&requests);
    let url = SERVER.url("somebody", "ignored", "sslmode=require");
    let error = PostgresProvider::builder(&url)
        .password(move |request| {
            heard.lock().expect("requests").push(request);
            async { Ok::<_, Infallible>("s3cr3t but expired".to_string()) }
        })
        .connect()
        .await
        .expect_err("no such role");
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Connect, "{text}");
    for word in ["password authentication failed", "somebody", "asked 5 times", "expired"] {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!text.contains("s3cr3t"), "{text}");
    let requests = requests.lock().expect("requests");
    let first = &requests[0];
    assert_eq!(
        (
            first.host.as_str(),
            first.port,
            first.user.as_str(),
            first.database.as_str()
        ),
        (HOST, SERVER.cluster.port, "somebody", "postgres")
    );
    let refused: Vec<bool> = requests.iter().map(|request| request.refused).collect();
    assert_eq!(refused, [false, true, true, true, true]);
}

#[tokio::test]
async fn a_callback_that_fails_says_why() {
    let error = PostgresProvider::builder(&SERVER.url("postgres", "", "sslmode=require"))
        .password(|_| async { Err::<String, _>("the vault is sealed") })
        .connect()
        .await
        .expect_err("no password");
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(
        text.contains("password callback") && text.contains("the vault is sealed"),
        "{text}"
    );
}

#[tokio::test]
async fn a_password_file_is_looked_up_for_every_connection() {
    let port = SERVER.cluster.port;
    let file = SERVER.cluster.client_file(&format!("{HOST}:{port}:*:postgres:wrong\n"));
    let url = SERVER.url("postgres", "", &format!("sslmode=require&passfile={}", file.display()));
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    let builder = || PostgresProvider::builder(&url).schema(&schema.name);

    let error = builder().connect().await.expect_err("the wrong password");
    assert!(error.to_string().contains("password authentication failed"), "{error}");
    std::fs::write(
        &file,
        format!("# comment\nother:*:*:*:no\n{HOST}:{port}:postgres:*:{PASSWORD}\n"),
    )
    .expect("write");
    builder().connect().await.expect("the password of the file");

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    let error = builder().connect().await.expect_err("everybody can read it");
    assert!(error.to_string().contains("password"), "{error}");

    std::fs::remove_file(&file).expect("remove");
    let error = builder().connect().await.expect_err("no file");
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
