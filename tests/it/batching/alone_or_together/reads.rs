//! A read of one instance, and of many.

use super::{first_turns, run_all, second_turns};
use crate::batching::World;

/// What somebody has in memory of a history, all of them or some; whether it is right is for the server to say.
type Hint = (Option<i64>, Option<i64>, Option<i64>, Option<String>);

/// What the function says of these instances: epoch, execution, what it adds to, events, status and its version.
async fn read(world: &World, names: &[&str], hints: &[Hint]) -> Vec<String> {
    let (epochs, executions): (Vec<_>, Vec<_>) = hints.iter().map(|hint| (hint.0, hint.1)).unzip();
    let (events, data): (Vec<_>, Vec<_>) = hints.iter().map(|hint| (hint.2, hint.3.clone())).unzip();
    let rows = world
        .admin
        .query(
            "select concat_ws(' | ', coalesce(r.history_epoch, -1), r.execution_id, r.cached_event_id, \
                    coalesce(r.history::text, 'none'), coalesce(r.custom_status, 'none'), \
                    coalesce(r.custom_status_version, -9)) \
               from read($1, $2, $3, $4, $5) as r",
            &[&names, &epochs, &executions, &events, &data],
        )
        .await
        .expect("read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn reads_say_the_same() {
    let world = World::new().await;
    let turns = (first_turns(), second_turns());
    run_all(&world, &turns, true).await;
    world
        .execute(
            "update instances set custom_status = repeat('x', 2000), custom_status_version = 1 where instance_id = 'plain'",
            &[],
        )
        .await;
    let names: Vec<&str> = turns.0.keys().map(String::as_str).chain(["unknown"]).collect();
    let known = world
        .admin
        .query(
            "select m.history_epoch, h.execution_id, h.event_id, h.event_data \
               from unnest($1::text[]) with ordinality as t (instance_id, position) \
               left join mailboxes as m on m.instance_id = t.instance_id \
               left join lateral (select e.* from history as e where e.instance_id = t.instance_id \
                                   order by e.execution_id desc, e.event_id limit 1) as h on true \
              order by t.position",
            &[&names],
        )
        .await
        .expect("history");
    let known: Vec<Hint> = known
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect();
    let changed = |change: fn(Hint) -> Hint| known.iter().cloned().map(change).collect();
    let hints: [Vec<Hint>; 6] = [
        known.clone(),
        changed(|_| (None, None, None, None)),
        changed(|(epoch, execution, event, data)| (epoch.map(|epoch| epoch + 1), execution, event, data)),
        changed(|(epoch, execution, event, data)| (epoch, execution.map(|id| id + 1), event, data)),
        changed(|(epoch, execution, event, data)| (epoch, execution, event.map(|id| id + 100), data)),
        changed(|(epoch, execution, event, _)| (epoch, execution, event, Some("changed".to_string()))),
    ];
    for (variant, hints) in hints.iter().enumerate() {
        let mut alone = Vec::new();
        for (name, hint) in names.iter().zip(hints) {
            alone.extend(read(&world, &[name], std::slice::from_ref(hint)).await);
        }
        assert_eq!(alone, read(&world, &names, hints).await, "{variant}");
        // Something to compare: only the right hint saves anything.
        let saved = alone.iter().filter(|answer| !answer.contains(" | 0 | ")).count();
        assert_eq!(saved > 0, variant == 0, "{variant}: {alone:#?}");
    }
}
