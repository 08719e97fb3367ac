//! Bad input gets a clear error, good input that looks bad round-trips, and nothing is lost.

use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{ExecutionMetadata, Provider, ProviderAdmin, ProviderError, TagFilter, WorkItem};
use duroxide_postgres::{ErrorKind, PostgresProvider};
use tokio_postgres::Config;

use crate::fixtures::{
    Ack, LOCK, NOW, ack, activity, completed, create, ending, event, named, raised, routed_activity, scheduled, start,
    started, timer, turn, work,
};
use crate::support::{TestSchema, create_extension, database_url, has_extension, with_database};

fn permanent<T: std::fmt::Debug>(result: Result<T, ProviderError>, words: &[&str]) {
    let error = result.expect_err("refused");
    assert!(!error.is_retryable(), "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {error}");
    }
}

#[tokio::test]
async fn connection_trouble_is_named_without_secrets() {
    let secret = "s3cr3t-passw0rd";
    let config: Config = database_url().parse().expect("DATABASE_URL");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let wrong_password = format!("postgres://nobody_at_all:{secret}@127.0.0.1:{port}/postgres");
    let missing_database = with_database(&database_url(), "no_such_database");
    for (url, words) in [
        (
            format!("postgres://u:{secret}@127.0.0.1:1/db"),
            vec!["127.0.0.1:1", "Connection refused"],
        ),
        (
            format!("host=/no/such/dir user=u password={secret}"),
            vec!["/no/such/dir"],
        ),
        (
            format!("postgres://u:{secret}@no-such-host.invalid/db"),
            vec!["no-such-host.invalid"],
        ),
        (wrong_password, vec!["nobody_at_all"]),
        (missing_database, vec!["no_such_database", "does not exist"]),
    ] {
        let builder = PostgresProvider::builder(&url);
        assert!(!format!("{builder:?}").contains(secret));
        let error = builder.connect().await.expect_err("unreachable");
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        let mut text = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(" {cause} {cause:?}"));
            source = cause.source();
        }
        assert!(!text.contains(secret), "{text}");
        for word in words {
            assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
        }
    }
    for url in [
        "postgres://",
        "nonsense",
        "postgres://u@h:99999999/d",
        "host=h port=x",
        "",
    ] {
        let result = PostgresProvider::connect(url).await;
        let kind = result.as_ref().err().map(|error| error.kind());
        assert!(
            matches!(kind, Some(ErrorKind::Config | ErrorKind::Connect)),
            "{url:?}: {result:?}"
        );
    }
}

#[tokio::test]
async fn invalid_settings_are_refused_before_connecting() {
    let long = "x".repeat(64);
    for schema in [
        "",
        "a\"b",
        "a'; drop schema public cascade; --",
        "pg_catalog",
        long.as_str(),
        "a\0b",
    ] {
        let error = PostgresProvider::builder(&database_url())
            .schema(schema)
            .connect()
            .await
            .expect_err("invalid name");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("schema name"), "{error}");
    }
    let error = PostgresProvider::builder(&database_url())
        .pool_size(0)
        .connect()
        .await
        .expect_err("no connections");
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn everything_libpq_connection_strings_carry_works() {
    let config: Config = database_url().parse().expect("DATABASE_URL");
    let user = config.get_user().expect("user");
    let database = config.get_dbname().expect("database");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let password = config.get_password().map_or(String::new(), |password| {
        format!(" password='{}'", String::from_utf8_lossy(password))
    });
    for text in [
        format!("host=127.0.0.1 port={port} user={user} dbname={database}{password}"),
        format!("host=127.0.0.1,127.0.0.1 port=1,{port} user={user} dbname={database}{password} connect_timeout=5"),
        format!(
            "host=127.0.0.1 port={port} user={user} dbname={database}{password} target_session_attrs=read-write \
             application_name=mine keepalives=1 keepalives_idle=30 sslmode=prefer"
        ),
    ] {
        let schema = TestSchema::new();
        let provider = PostgresProvider::builder(&text)
            .schema(&schema.name)
            .pool_size(2)
            .connect()
            .await
            .expect(&text);
        provider.health_check().await.expect("healthy");
        if text.contains("application_name") {
            let client = schema.client().await;
            let found: i64 = client
                .query_one(
                    "select count(*) from pg_stat_activity where application_name = 'mine'",
                    &[],
                )
                .await
                .expect("activity")
                .get(0);
            assert!(found > 0);
        }
    }
}

#[tokio::test]
async fn ids_and_keys_that_no_index_takes_are_refused_by_name() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "i").await;
    let long = "x".repeat(1025);
    for (bad, word) in [("a\0b", "NUL"), (long.as_str(), "1024")] {
        permanent(
            p.enqueue_for_orchestrator(start(bad), None).await,
            &["instance id", word],
        );
        permanent(p.enqueue_for_worker(activity(bad, 1)).await, &["instance id", word]);
        permanent(
            p.enqueue_for_worker(routed_activity("i", 1, None, Some(bad))).await,
            &["session id", word],
        );
        let (word_for_tag, tag) = if bad == long { ("512", bad) } else { (word, bad) };
        permanent(
            p.enqueue_for_worker(routed_activity("i", 1, Some(tag), None)).await,
            &["tag", word_for_tag],
        );
        permanent(p.read(bad).await, &["instance id", word]);
        permanent(p.get_kv_value("i", bad).await, &["KV key", word]);
        permanent(p.get_instance_info(bad).await, &["instance id", word]);
        permanent(
            p.delete_instances_atomic(&[bad.to_string()], true).await,
            &["instance id", word],
        );

        // Inside an ack: refused as a whole, the lease stays.
        p.enqueue_for_orchestrator(raised("i", "x"), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(p, LOCK).await;
        let set = EventKind::KeyValueSet {
            key: bad.to_string(),
            value: String::new(),
            last_updated_at_ms: 0,
        };
        let with_key = Ack {
            events: vec![event("i", 2, set)],
            ..Ack::default()
        };
        permanent(ack(p, &token, with_key).await, &["KV key", word]);
        let with_message = Ack {
            messages: vec![start(bad)],
            ..Ack::default()
        };
        permanent(ack(p, &token, with_message).await, &["instance id", word]);
        ack(p, &token, Ack::default()).await.expect("the lease still holds");
    }
    let longest = "x".repeat(1024);
    p.enqueue_for_orchestrator(start(&longest), None)
        .await
        .expect("the longest id");
    let (_, token, _) = turn(p, LOCK).await;
    let set = EventKind::KeyValueSet {
        key: longest.clone(),
        value: "v".to_string(),
        last_updated_at_ms: 0,
    };
    let first = Ack {
        events: vec![started(&longest), event(&longest, 2, set)],
        activities: vec![routed_activity(&longest, 2, Some(&longest[..512]), Some(&longest))],
        metadata: ending("Completed"),
        ..Ack::default()
    };
    ack(p, &token, first).await.expect("the longest keys");
    assert_eq!(
        p.get_kv_value(&longest, &longest).await.expect("value").as_deref(),
        Some("v")
    );

    permanent(p.read_with_execution("i", u64::MAX).await, &["execution id"]);
    permanent(
        p.append_with_execution("i", 1, vec![scheduled("i", 0)]).await,
        &["event ids", "start at 1"],
    );
    permanent(p.enqueue_for_worker(raised("i", "x")).await, &["ActivityExecute"]);
    permanent(
        p.enqueue_for_orchestrator(activity("i", 1), None).await,
        &["worker queue"],
    );
}

#[tokio::test]
async fn payloads_round_trip_whatever_they_contain() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    let huge = "ä\0\u{1}\"\\\n".repeat(1_500_000);
    assert!(huge.len() > 10_000_000);
    for value in [
        "",
        "\0",
        "\u{1}",
        "a\0b\u{1}0c",
        "{\"x\": \"\\u0000\"}",
        "\u{10ffff}",
        huge.as_str(),
    ] {
        let instance = format!("i{}", uuid::Uuid::new_v4().simple());
        let mut start = start(&instance);
        if let WorkItem::StartOrchestration { input, .. } = &mut start {
            *input = value.to_string();
        }
        p.enqueue_for_orchestrator(start.clone(), None).await.expect("enqueue");
        let (item, token, _) = turn(p, LOCK).await;
        assert_eq!(item.messages, vec![start]);
        let set = EventKind::KeyValueSet {
            key: "k".to_string(),
            value: value.to_string(),
            last_updated_at_ms: 7,
        };
        let status = EventKind::CustomStatusUpdated {
            status: Some(value.to_string()),
        };
        let first = Ack {
            events: vec![
                started(&instance),
                event(&instance, 2, set),
                event(&instance, 3, status),
            ],
            metadata: ExecutionMetadata {
                output: Some(value.to_string()),
                ..ending("Completed")
            },
            ..Ack::default()
        };
        let events = first.events.clone();
        ack(p, &token, first).await.expect("ack");
        assert_eq!(p.read(&instance).await.expect("history"), events);
        assert_eq!(
            p.get_instance_info(&instance).await.expect("info").output.as_deref(),
            Some(value)
        );
        assert_eq!(
            p.get_execution_info(&instance, 1)
                .await
                .expect("info")
                .output
                .as_deref(),
            Some(value)
        );
        assert_eq!(
            p.get_custom_status(&instance, 0).await.expect("status"),
            Some((Some(value.to_string()), 1))
        );
        assert_eq!(
            p.get_kv_value(&instance, "k").await.expect("value").as_deref(),
            Some(value)
        );
        assert_eq!(p.get_kv_all_values(&instance).await.expect("values")["k"], value);
        p.enqueue_for_orchestrator(raised(&instance, value), None)
            .await
            .expect("enqueue");
        let (item, token, _) = turn(p, LOCK).await;
        assert_eq!(item.kv_snapshot["k"].value, value);
        assert_eq!(item.history, events);
        ack(p, &token, Ack::default()).await.expect("ack");
    }
}

#[tokio::test]
async fn a_corrupted_message_is_reported_and_not_consumed() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "i").await;
    p.enqueue_for_orchestrator(raised("i", "good"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(raised("i", "bad"), None)
        .await
        .expect("enqueue");
    let client = schema.client().await;
    client
        .execute(
            "update orchestrator_queue set work_item = '{\"FromTheFuture\": {}}' where work_item like '%bad%'",
            &[],
        )
        .await
        .expect("corrupt");
    for attempt in 1..=3 {
        let (item, token, attempts) = turn(p, LOCK).await;
        assert_eq!(attempts, attempt);
        let error = item.history_error.expect("reported");
        assert!(error.contains("message") && error.contains("FromTheFuture"), "{error}");
        p.abandon_orchestration_item(&token, None, false)
            .await
            .expect("abandon");
    }
    let left: i64 = client
        .query_one("select count(*) from orchestrator_queue", &[])
        .await
        .expect("count")
        .get(0);
    assert_eq!(left, 2);
}

#[tokio::test]
async fn a_corrupted_activity_does_not_stop_the_line() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    p.enqueue_for_worker(activity("bad", 1)).await.expect("enqueue");
    p.enqueue_for_worker(activity("good", 1)).await.expect("enqueue");
    let client = schema.client().await;
    client
        .execute(
            "update worker_queue set work_item = 'not JSON' where instance_id = 'bad'",
            &[],
        )
        .await
        .expect("corrupt");
    permanent(
        p.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await,
        &["\"bad\"", "activity 1", "cannot be read"],
    );
    let (item, _, _) = work(p, LOCK).await;
    assert_eq!(item, activity("good", 1));
    let left: i64 = client
        .query_one("select count(*) from worker_queue where instance_id = 'bad'", &[])
        .await
        .expect("count")
        .get(0);
    assert_eq!(left, 1);
}

/// A row that cannot even be read: its out-of-line value is gone.
#[tokio::test]
async fn a_history_that_the_server_cannot_read_does_not_stop_the_line() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "bad").await;
    let client = schema.client().await;
    if !has_extension(&client, "pg_surgery").await {
        return;
    }
    create_extension(&client, "pg_surgery").await;
    client
        .batch_execute(
            "alter table history alter event_data set storage external; \
             update history set event_data = repeat('x', 100000) where instance_id = 'bad'",
        )
        .await
        .expect("out of line");
    let toast: String = client
        .query_one(
            "select reltoastrelid::regclass::text from pg_class where oid = 'history'::regclass",
            &[],
        )
        .await
        .expect("TOAST table")
        .get(0);
    client
        .batch_execute(&format!(
            "select public.heap_force_kill('{toast}'::regclass, array(select ctid from {toast}))"
        ))
        .await
        .expect("damage");
    p.enqueue_for_orchestrator(raised("bad", "x"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(start("good"), None).await.expect("enqueue");
    let (item, token, attempts) = turn(p, LOCK).await;
    assert_eq!((item.instance.as_str(), attempts), ("bad", 1));
    let error = item.history_error.expect("reported");
    assert!(error.contains("missing chunk"), "{error}");
    let (item, _, _) = turn(p, LOCK).await;
    assert_eq!(item.instance, "good");
    p.abandon_orchestration_item(&token, None, false)
        .await
        .expect("abandon");
    let (item, token, attempts) = turn(p, LOCK).await;
    assert_eq!((item.instance.as_str(), attempts), ("bad", 2));
    // As the runtime ends it: with a failure that needs no reading.
    let failed = Ack {
        events: vec![scheduled("bad", 99999)],
        metadata: ending("Failed"),
        ..Ack::default()
    };
    ack(p, &token, failed).await.expect("append-only");
}

#[tokio::test]
async fn absurd_durations_and_times_are_taken_as_far_as_they_go() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "i").await;
    p.enqueue_for_orchestrator(raised("i", "never"), Some(Duration::MAX))
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(timer("i", u64::MAX), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(timer("i", 0), None).await.expect("enqueue");
    let (item, token, _) = turn(p, Duration::MAX).await;
    assert_eq!(item.messages, vec![timer("i", 0)]);
    p.renew_orchestration_item_lock(&token, Duration::MAX)
        .await
        .expect("renew");
    p.abandon_orchestration_item(&token, Some(Duration::MAX), false)
        .await
        .expect("abandon");
    assert!(
        p.fetch_orchestration_item(LOCK, NOW, None)
            .await
            .expect("fetch")
            .is_none()
    );

    p.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    let (_, token, _) = work(p, Duration::ZERO).await;
    permanent(p.ack_work_item(&token, None).await, &["DX001"]);
    let (_, token, attempts) = work(p, Duration::MAX).await;
    assert_eq!(attempts, 2);
    p.renew_work_item_lock(&token, Duration::from_nanos(1))
        .await
        .expect("renew");
    p.renew_session_lock(&["w"], Duration::MAX, Duration::MAX)
        .await
        .expect("renew");
    // A fetch that may wait for ever is woken all the same.
    let waiting = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.fetch_orchestration_item(LOCK, Duration::MAX, None).await })
    };
    p.enqueue_for_orchestrator(raised("i", "now"), None)
        .await
        .expect("enqueue");
    assert!(waiting.await.expect("task").expect("fetch").is_some());
}

#[tokio::test]
async fn tokens_that_are_not_tokens_are_refused() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "i").await;
    p.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    let (_, work_token, _) = work(p, LOCK).await;
    let forged = "turn:00000000000000000000000000000000:i";
    let injected = "turn:00000000000000000000000000000000:i'; drop table history; --";
    for token in [
        "",
        "nonsense",
        "a\0b",
        forged,
        injected,
        work_token.as_str(),
        &"x".repeat(100_000),
    ] {
        permanent(ack(p, token, Ack::default()).await, &["Invalid lock token"]);
        permanent(
            p.abandon_orchestration_item(token, None, false).await,
            &["Invalid lock token"],
        );
        permanent(
            p.renew_orchestration_item_lock(token, LOCK).await,
            &["Invalid lock token"],
        );
    }
    for token in [
        "",
        "nonsense",
        "a\0b",
        forged,
        "activity:00000000000000000000000000000000:1:1:1:i",
    ] {
        permanent(
            p.ack_work_item(token, Some(completed("i", 1))).await,
            &["Invalid lock token"],
        );
        permanent(p.abandon_work_item(token, None, false).await, &["Invalid lock token"]);
        permanent(p.renew_work_item_lock(token, LOCK).await, &["Invalid lock token"]);
    }
    permanent(
        p.ack_work_item(&work_token, Some(raised("i", "x"))).await,
        &["ActivityCompleted"],
    );
    p.ack_work_item(&work_token, Some(completed("i", 1)))
        .await
        .expect("the real one");
}

/// Messages that come before their instance was started wait for it, and are in nobody's way.
#[tokio::test]
async fn messages_for_an_instance_never_started_wait_without_blocking() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    p.enqueue_for_orchestrator(raised("early", "x"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(start("other"), None).await.expect("enqueue");
    let (item, token, _) = turn(p, LOCK).await;
    assert_eq!(item.instance, "other");
    let first = Ack {
        events: vec![started("other")],
        metadata: named(),
        ..Ack::default()
    };
    ack(p, &token, first).await.expect("ack");
    for _ in 0..3 {
        assert!(
            p.fetch_orchestration_item(LOCK, NOW, None)
                .await
                .expect("fetch")
                .is_none()
        );
    }
    p.enqueue_for_orchestrator(start("early"), None).await.expect("enqueue");
    let (item, _, attempts) = turn(p, LOCK).await;
    assert_eq!(item.messages, vec![raised("early", "x"), start("early")]);
    assert_eq!(attempts, 1);
}

#[tokio::test]
async fn a_closed_provider_says_so() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let waiting = {
        let provider = provider.clone();
        tokio::spawn(async move {
            provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(60), None)
                .await
        })
    };
    // Let it look once and go to sleep.
    provider.get_queue_depths().await.expect("open");
    provider.close();
    let outcome = tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .expect("woken")
        .expect("task");
    assert!(matches!(outcome, Ok(None) | Err(_)), "{outcome:?}");
    permanent(provider.read("i").await, &["closed"]);
    assert!(provider.health_check().await.is_err());
}
