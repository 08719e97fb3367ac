//! Instances are named; what they carry, and what proves who one is, is not: whatever goes wrong.

use duroxide::EventKind;
use duroxide::providers::{ExecutionMetadata, Provider, ProviderAdmin, WorkItem};
use duroxide_postgres::Builder;

use super::capture::{CALL, Capture, OPERATION};
use crate::fixtures::{Ack, LOCK, NOW, ack, event, named, turn, work};
use crate::proxy::{Mode, Proxy};
use crate::support::TestSchema;

/// Occurs in every payload, and in the password.
const MARK: &str = "MARKED-PAYLOAD";

fn marked_start(instance: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_string(),
        orchestration: "Test".to_string(),
        input: MARK.to_string(),
        version: Some("1.0.0".to_string()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

fn marked_raise(instance: &str) -> WorkItem {
    WorkItem::ExternalRaised {
        instance: instance.to_string(),
        name: "event".to_string(),
        data: MARK.to_string(),
    }
}

fn marked_activity(instance: &str) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.to_string(),
        execution_id: 1,
        id: 5,
        name: "Work".to_string(),
        input: MARK.to_string(),
        session_id: None,
        tag: None,
    }
}

fn marked_result(instance: &str) -> WorkItem {
    WorkItem::ActivityCompleted {
        instance: instance.to_string(),
        execution_id: 1,
        id: 5,
        result: MARK.to_string(),
    }
}

/// A first turn with everything that can be marked.
fn marked_turn(instance: &str) -> Ack {
    let kinds = [
        EventKind::OrchestrationStarted {
            name: "Test".to_string(),
            version: "1.0.0".to_string(),
            input: MARK.to_string(),
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
            carry_forward_events: None,
            initial_custom_status: None,
        },
        EventKind::KeyValueSet {
            key: "key".to_string(),
            value: MARK.to_string(),
            last_updated_at_ms: 1,
        },
        EventKind::CustomStatusUpdated {
            status: Some(MARK.to_string()),
        },
        EventKind::ExternalEvent {
            name: "event".to_string(),
            data: MARK.to_string(),
        },
    ];
    let events = kinds.into_iter().zip(1..).map(|(kind, id)| event(instance, id, kind));
    Ack {
        events: events.collect(),
        activities: vec![marked_activity(instance)],
        messages: vec![marked_raise(instance)],
        metadata: ExecutionMetadata {
            output: Some(MARK.to_string()),
            ..named()
        },
        ..Ack::default()
    }
}

#[test]
fn no_payload_and_no_secret_is_in_any_span_or_event() {
    Capture::run(async |capture| {
        let schema = TestSchema::new();
        let proxy = Proxy::start(&schema.url);
        let mut config = proxy.config();
        config.password(MARK);
        let builder = Builder::from_config(config).schema(&schema.name).long_poll(false);
        let p = builder.connect().await.expect("provider");
        let p = &p;

        // All is well.
        p.enqueue_for_orchestrator(marked_start("i"), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(p, LOCK).await;
        ack(p, &token, marked_turn("i")).await.expect("ack");
        let (_, token, _) = work(p, LOCK).await;
        p.ack_work_item(&token, Some(marked_result("i"))).await.expect("ack");
        assert_eq!(p.read("i").await.expect("read").len(), 4);
        let status = p.get_custom_status("i", 0).await.expect("status").expect("a status");
        assert_eq!(status.0.as_deref(), Some(MARK));
        let value = p.get_kv_value("i", "key").await.expect("value");
        assert_eq!(value.as_deref(), Some(MARK));
        p.get_instance_info("i").await.expect("info");

        // Lost answers, refused connections, attempts that are repeated.
        proxy.lose_answer_of(".enqueue_for_orchestrator(", Mode::Pass);
        p.enqueue_for_orchestrator(marked_raise("i"), None)
            .await
            .expect_err("lost");
        let (_, token, _) = turn(p, LOCK).await;
        proxy.lose_answer_of(".ack_orchestration_item", Mode::Pass);
        let again = Ack {
            events: vec![event(
                "i",
                5,
                EventKind::ExternalEvent {
                    name: "event".to_string(),
                    data: MARK.to_string(),
                },
            )],
            ..Ack::default()
        };
        ack(p, &token, again.clone()).await.expect("recognised");
        ack(p, &token, again).await.expect_err("the lease has ended");
        proxy.set(Mode::Refuse).await;
        p.enqueue_for_worker(marked_activity("i")).await.expect_err("refused");
        proxy.set(Mode::Pass).await;

        // Input that is refused.
        p.ack_work_item(MARK, None).await.expect_err("not a token");
        p.enqueue_for_worker(marked_raise("i")).await.expect_err("no activity");
        p.append_with_execution("i", 1, marked_turn("i").events)
            .await
            .expect_err("they exist");

        // What cannot be read any more: a payload where there should be a number, or no JSON at all.
        let admin = schema.client().await;
        for (broken, unreadable) in [
            (format!("{{\"event_id\": \"{MARK}\"}}"), "wrong type"),
            (format!("{MARK}{{"), "expected value"),
        ] {
            admin
                .execute("update history set event_data = $1 where event_id = 1", &[&broken])
                .await
                .expect("break");
            let error = p.read_with_execution("i", 1).await.expect_err("unreadable").message;
            assert!(error.contains(unreadable) && !error.contains(MARK), "{error}");
            p.enqueue_for_orchestrator(marked_raise("i"), None)
                .await
                .expect("enqueue");
            let (item, token, _) = turn(p, LOCK).await;
            assert!(item.history_error.is_some());
            p.abandon_orchestration_item(&token, None, true).await.expect("abandon");
        }
        let broken = format!("{{\"ActivityExecute\": \"{MARK}\"}}");
        p.enqueue_for_worker(marked_activity("i")).await.expect("enqueue");
        admin
            .execute("update worker_queue set work_item = $1", &[&broken])
            .await
            .expect("break");
        p.fetch_work_item(LOCK, NOW, None, &duroxide::providers::TagFilter::Any)
            .await
            .expect_err("unreadable");

        // There was something to see, of all of it.
        assert!(capture.spans(OPERATION).len() > 20 && capture.spans(CALL).len() > 20);
        let events = capture.events();
        for expected in [
            "failed while its lease holds",
            "an orchestration cannot be loaded",
            "cannot be read",
        ] {
            assert!(
                events.iter().any(|event| event.contains(expected)),
                "{expected}: {events:#?}"
            );
        }
        let leaks: Vec<_> = capture
            .everything()
            .into_iter()
            .filter(|text| text.contains(MARK))
            .collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    });
}
