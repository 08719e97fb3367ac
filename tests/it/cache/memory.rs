//! What is in memory is not asked for again; how much it may be is a setting.

use duroxide::Event;
use duroxide::providers::Provider;

use super::{INSTANCE, assert_sees_what_is_stored, create_cached, noted, stored, take_turn};
use crate::batching::World;
use crate::fixtures::create;

/// Changes the first event of an instance in a way that no process can notice: whoever still has the old one did not
/// ask for it again.
async fn mark_stored(world: &World, instance: &str) {
    let marked = serde_json::to_string(&noted(instance, 1, MARK)).expect("JSON");
    let statements = [
        "set session_replication_role = replica".to_string(),
        format!("update history set event_data = '{marked}' where instance_id = '{instance}' and event_id = 1"),
        "reset session_replication_role".to_string(),
    ];
    world.admin.batch_execute(&statements.join(";")).await.expect("mark");
}

const MARK: &str = "from the database";

/// Whether a history came from the database altogether.
fn is_marked(history: &[Event]) -> bool {
    format!("{:?}", history[0]).contains(MARK)
}

#[tokio::test]
async fn a_turn_gets_only_new_events_from_the_server() {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create_cached(near, INSTANCE).await;
    mark_stored(&world, INSTANCE).await;
    for turns in 0..3 {
        let history = take_turn(near, INSTANCE, "more").await;
        assert_eq!(history.len(), 4 + turns);
        assert!(!is_marked(&history), "turn {turns}");
        assert!(!is_marked(&near.read(INSTANCE).await.expect("read")));
    }
    // Whoever does not have it in memory gets all of it, and then the first one, too, since the other had a turn.
    let history = take_turn(far, INSTANCE, "elsewhere").await;
    assert!(is_marked(&history) && history.len() == 7);
    let history = take_turn(near, INSTANCE, "back").await;
    assert!(is_marked(&history) && history.len() == 8);
}

/// A client that polls a history which others write gets only what is new.
#[tokio::test]
async fn a_reader_gets_only_new_events_from_the_server() {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create_cached(far, INSTANCE).await;
    assert_eq!(near.read(INSTANCE).await.expect("read").len(), 4);
    mark_stored(&world, INSTANCE).await;
    for turns in 1..4 {
        take_turn(far, INSTANCE, "more").await;
        let read = near.read(INSTANCE).await.expect("read");
        assert_eq!(read.len(), 4 + turns);
        assert!(!is_marked(&read));
        assert_eq!(read[1..], stored(far, INSTANCE).await[1..]);
    }
    let newcomer = world.schema.provider().await;
    assert!(is_marked(&newcomer.read(INSTANCE).await.expect("read")));
}

/// Far more histories than fit: all of them are right, and those in memory are no more than allowed.
#[tokio::test]
async fn memory_is_bounded_and_the_longest_unused_is_forgotten() {
    const LIMIT: usize = 64 << 10;
    const INSTANCES: usize = 64;
    let world = World::with(|builder| builder.history_cache(LIMIT)).await;
    let near = &*world.provider;
    let note = "n".repeat(3000);
    let name = |number: usize| format!("i{number}");
    for number in 0..INSTANCES {
        create(near, &name(number)).await;
        take_turn(near, &name(number), &note).await;
    }
    for number in 0..INSTANCES {
        mark_stored(&world, &name(number)).await;
    }
    let bytes = "select sum(octet_length(event_data))::bigint from history where instance_id = $1";
    let mut in_memory = 0;
    let mut number = INSTANCES;
    // From the last used one backwards, until one is not in memory any more.
    while number > 0 {
        number -= 1;
        let history = near.read(&name(number)).await.expect("read");
        assert_eq!(history.len(), 2);
        if is_marked(&history) {
            break;
        }
        in_memory += world.number(bytes, &[&name(number)]).await as usize;
    }
    assert!((LIMIT / 4..=LIMIT).contains(&in_memory), "{in_memory} bytes in memory");
    for number in 0..INSTANCES {
        // Those that were forgotten since their last turn, which the database does not know.
        let history = take_turn(near, &name(number), "more").await;
        assert_eq!(history[1..], stored(near, &name(number)).await[1..2], "{number}");
        assert_eq!(history.len(), 2);
    }
    for number in (0..INSTANCES).step_by(7) {
        let all = stored(near, &name(number)).await;
        assert_eq!(near.read(&name(number)).await.expect("read")[1..], all[1..]);
        assert_eq!(all.len(), 3);
    }
}

/// One history that is larger than its share does not push out all others.
#[tokio::test]
async fn a_history_too_large_for_the_memory_is_read_each_time() {
    let world = World::with(|builder| builder.history_cache(64 << 10)).await;
    let near = &*world.provider;
    create_cached(near, "small").await;
    mark_stored(&world, "small").await;
    create_cached(near, INSTANCE).await;
    take_turn(near, INSTANCE, &"n".repeat(100 << 10)).await;
    assert_sees_what_is_stored(near, INSTANCE).await;
    assert!(!is_marked(&near.read("small").await.expect("read")), "pushed out");
}

#[tokio::test]
async fn without_memory_everything_is_read_each_time() {
    let world = World::with(|builder| builder.history_cache(0)).await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    assert_sees_what_is_stored(near, INSTANCE).await;
    mark_stored(&world, INSTANCE).await;
    assert!(is_marked(&take_turn(near, INSTANCE, "more").await));
    assert!(is_marked(&near.read(INSTANCE).await.expect("read")));
    let claimed = "select count(*) from mailboxes where cached_by is not null";
    assert_eq!(world.number(claimed, &[]).await, 0);
}
