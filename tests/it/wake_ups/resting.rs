//! An instance whose other activities probably end soon rests: one turn does for all of them.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};

use super::{PATIENT, Queue, WOKEN, Waiting};
use crate::batching::{World, begin};
use crate::fixtures::{LOCK, NOW, activity, completed, create};

const INSTANCE: &str = "i";

/// An instance that waits for two activities, and their tokens.
async fn two_activities(world: &World, instance: &str, wait: Duration) -> [String; 2] {
    create(&*world.provider, instance).await;
    for id in [1, 2] {
        let sent = world.provider.enqueue_for_worker(activity(instance, id)).await;
        sent.expect("enqueue");
    }
    [fetch(world, wait).await, fetch(world, wait).await]
}

/// A worker that waits so long for work gets an activity: its token.
async fn fetch(world: &World, wait: Duration) -> String {
    let fetched = world
        .provider
        .fetch_work_item(LOCK, wait, None, &TagFilter::DefaultOnly);
    fetched.await.expect("fetch").expect("an activity").1
}

async fn ack(world: &World, instance: &str, token: &str) {
    let acked = world.provider.ack_work_item(token, Some(completed(instance, 1))).await;
    acked.expect("ack");
}

/// From now on it is known that activities are short.
async fn works_briefly(world: &World) {
    for id in 1..10 {
        let sent = world.provider.enqueue_for_worker(activity("brief", id)).await;
        sent.expect("enqueue");
        let token = fetch(world, PATIENT).await;
        world.provider.ack_work_item(&token, None).await.expect("ack");
    }
}

/// How many seconds it takes until the instance is due.
async fn due_in(world: &World) -> i64 {
    let due = "select ceil(extract(epoch from available_at - clock_timestamp()))::bigint from mailboxes \
                where instance_id = $1 and lease is null";
    world.number(due, &[&INSTANCE]).await
}

/// The functions for one and for many.
const ACK: &str = "ack_work_item(w.instance_id, w.execution_id, w.activity_id, w.id, \
                                 w.lease, w.instance_id, '{}', p_rest_ms => 60000)";
const ACK_MANY: &str = "ack_work_items(array[w.instance_id], array[w.execution_id], array[w.activity_id], array[w.id], \
                                       array[w.lease], array[w.instance_id], array['{}'], p_rest_ms => 60000)";

/// Acks the first of those that are left, in the terms of the function: how many are to be looked for, and how many rest.
async fn ack_one(world: &World, function: &str) -> (i32, i32) {
    let ack = format!(
        "select a.to_look_for, a.resting \
           from (select w.* from worker_queue as w order by w.id limit 1) as w cross join lateral {function} as a"
    );
    let row = world.admin.query_one(&ack, &[]).await.expect("ack");
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn an_instance_rests_until_its_last_activity_has_ended() {
    for function in [ACK, ACK_MANY] {
        let world = World::new().await;
        two_activities(&world, INSTANCE, PATIENT).await;
        assert_eq!(ack_one(&world, function).await, (0, 1));
        assert!(due_in(&world).await > 30);
        assert_eq!(ack_one(&world, function).await, (1, 0));
        assert!(due_in(&world).await <= 0);
    }
}

/// What comes from elsewhere does not wait for it.
#[tokio::test]
async fn an_instance_that_rests_is_woken_by_any_message() {
    let world = World::new().await;
    two_activities(&world, INSTANCE, PATIENT).await;
    assert_eq!(ack_one(&world, ACK).await, (0, 1));
    Queue::Turns.enqueue(&world.provider, INSTANCE).await;
    assert!(due_in(&world).await <= 0);
}

/// Whether the instance is due later than its message.
async fn rests(world: &World, instance: &str) -> bool {
    let rests = "select count(*) from mailboxes as m join orchestrator_queue as q using (instance_id) \
                  where instance_id = $1 and m.lease is null and m.available_at > q.visible_at";
    world.number(rests, &[&instance]).await > 0
}

#[tokio::test]
async fn nothing_rests_where_nobody_waits_for_turns() {
    let world = World::new().await;
    works_briefly(&world).await;
    let [one, _] = two_activities(&world, INSTANCE, PATIENT).await;
    ack(&world, INSTANCE, &one).await;
    assert!(!rests(&world, INSTANCE).await);
}

#[tokio::test]
async fn nothing_rests_as_long_as_nothing_is_known_of_its_activities() {
    let world = World::new().await;
    // Nobody measures how long those take who do not wait for work.
    let [one, _] = two_activities(&world, INSTANCE, NOW).await;
    let _waiting = Waiting::begin(&world.provider, Queue::Turns).await;
    ack(&world, INSTANCE, &one).await;
    assert!(!rests(&world, INSTANCE).await);
}

/// The other activity takes its time.
#[tokio::test]
async fn whoever_waits_has_what_rested_when_it_is_due() {
    let world = World::new().await;
    works_briefly(&world).await;
    // On a busy machine activities may seem to take longer, or what rests is due before it is seen.
    for attempt in 0..20 {
        let instance = format!("i{attempt}");
        let [one, other] = two_activities(&world, &instance, PATIENT).await;
        let waiting = Waiting::begin(&world.provider, Queue::Turns).await;
        ack(&world, &instance, &one).await;
        let has_rested = rests(&world, &instance).await;
        assert_eq!(waiting.gets(WOKEN).await, (instance, 1));
        if has_rested {
            return;
        }
        world.provider.ack_work_item(&other, None).await.expect("ack");
        works_briefly(&world).await;
    }
    panic!("nothing ever rested");
}

/// Those of another process hear of it as well, though this one waits for it.
#[tokio::test]
async fn what_rests_is_not_kept_from_others() {
    let world = World::new().await;
    let (other, _proxy) = world.another_process().await;
    works_briefly(&world).await;
    let [one, _] = two_activities(&world, INSTANCE, PATIENT).await;
    let provider = Arc::clone(&world.provider);
    let mut waits_here = Box::pin(async move { provider.fetch_orchestration_item(LOCK, PATIENT, None).await });
    assert!(begin(waits_here.as_mut()).await.is_pending());
    let waits_there = Waiting::begin(&other, Queue::Turns).await;
    ack(&world, INSTANCE, &one).await;
    drop(waits_here);
    assert_eq!(waits_there.gets(WOKEN).await, (INSTANCE.to_string(), 1));
}
