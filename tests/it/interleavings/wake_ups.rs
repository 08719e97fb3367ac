//! Messages that arrive while a mailbox changes hands.

use std::time::Duration;

use duroxide::providers::Provider;

use super::Stage;
use crate::fixtures::{Ack, LOCK, NOW, ack, create, raised, start, turn};

/// A message is inserted but not committed when the turn ends: the mailbox must not fall asleep over it.
#[tokio::test]
async fn a_message_in_flight_at_the_end_of_a_turn_is_not_lost() {
    for end in ["ack", "abandon", "empty fetch"] {
        let stage = Stage::new().await;
        create(&*stage.provider, "i").await;
        let token = if end == "empty fetch" {
            // Due, but nothing in it.
            stage
                .holder
                .execute("update mailboxes set available_at = clock_timestamp()", &[])
                .await
                .expect("due");
            None
        } else {
            stage
                .provider
                .enqueue_for_orchestrator(raised("i", "first"), None)
                .await
                .expect("enqueue");
            Some(turn(&*stage.provider, LOCK).await.1)
        };

        stage.holder.batch_execute("begin").await.expect("begin");
        stage
            .holder
            .query(
                "select enqueue_for_orchestrator('i', 'm', $1, null, null)",
                &[&serde_json::to_string(&raised("i", "in flight")).expect("JSON")],
            )
            .await
            .expect("in flight");
        match (end, &token) {
            ("ack", Some(token)) => ack(&*stage.provider, token, Ack::default()).await.expect("ack"),
            ("abandon", Some(token)) => stage
                .provider
                .abandon_orchestration_item(token, Some(LOCK), true)
                .await
                .expect("abandon"),
            _ => {
                let nothing = stage
                    .provider
                    .fetch_orchestration_item(LOCK, NOW, None)
                    .await
                    .expect("fetch");
                assert!(nothing.is_none());
            }
        }
        stage.let_go().await;
        let provider = stage.provider();
        let (item, _, _) = tokio::time::timeout(
            Duration::from_secs(10),
            provider.fetch_orchestration_item(LOCK, Duration::from_secs(10), None),
        )
        .await
        .expect("promptly")
        .expect("fetch")
        .unwrap_or_else(|| panic!("{end} lost the message"));
        assert!(format!("{:?}", item.messages).contains("in flight"), "{end}");
    }
}

/// The start of an instance commits while a fetch is about to park the messages that came before it.
#[tokio::test]
async fn a_start_that_commits_while_its_instance_is_parked_is_not_lost() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(raised("early", "x"), None)
        .await
        .expect("enqueue");
    stage.holder.batch_execute("begin").await.expect("begin");
    stage
        .holder
        .query(
            "select enqueue_for_orchestrator('early', 's', $1, null, null)",
            &[&serde_json::to_string(&start("early")).expect("JSON")],
        )
        .await
        .expect("in flight");
    // Makes the fetch stop after it has read the messages.
    let blocker = stage.schema.client().await;
    blocker
        .batch_execute("begin; lock table instances in access exclusive mode")
        .await
        .expect("block");
    let provider = stage.provider();
    let fetch = stage
        .waiting(
            1,
            async move { provider.fetch_orchestration_item(LOCK, NOW, None).await },
        )
        .await;
    stage.let_go().await;
    blocker.batch_execute("commit").await.expect("go on");
    let first = fetch.await.expect("task").expect("fetch");
    let (item, _, _) = match first {
        Some(found) => found,
        None => stage
            .provider
            .fetch_orchestration_item(LOCK, Duration::from_secs(5), None)
            .await
            .expect("fetch")
            .expect("the start was lost"),
    };
    assert_eq!(item.messages.len(), 2);
}

/// Maintenance that locks a table is not the fault of the instance that could not be loaded.
#[tokio::test]
async fn trouble_that_passes_counts_no_attempt() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let mut config: tokio_postgres::Config = stage.schema.url.parse().expect("DATABASE_URL");
    config.options("-c lock_timeout=50ms");
    let impatient = duroxide_postgres::Builder::from_config(config)
        .schema(&stage.schema.name)
        .connect()
        .await
        .expect("provider");
    stage
        .holder
        .batch_execute("begin; lock table history in access exclusive mode")
        .await
        .expect("maintenance");
    for _ in 0..3 {
        let error = impatient
            .fetch_orchestration_item(LOCK, NOW, None)
            .await
            .expect_err("locked out");
        assert!(error.is_retryable() && error.message.contains("55P03"), "{error}");
    }
    stage.let_go().await;
    let (item, _, attempts) = turn(&impatient, LOCK).await;
    assert_eq!((item.history_error, attempts), (None, 1));
}
