//! Ids, payloads, durations and tokens.

use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{ExecutionMetadata, Provider, ProviderAdmin, WorkItem};

use super::permanent;
use crate::fixtures::{
    Ack, LOCK, NOW, ack, activity, completed, create, ending, event, raised, routed_activity, scheduled, start,
    started, timer, turn, work,
};
use crate::support::TestSchema;

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
        // Long, because a debug build takes its time over the huge one.
        let (item, token, _) = turn(p, LOCK * 10).await;
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
        let (item, token, _) = turn(p, LOCK * 10).await;
        assert_eq!(item.kv_snapshot["k"].value, value);
        assert_eq!(item.history, events);
        ack(p, &token, Ack::default()).await.expect("ack");
    }
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
