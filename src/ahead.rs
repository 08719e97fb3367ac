//! Answers ahead of the question.
//!
//! The runtime asks for some things in pairs: whoever got an activity reads the history of its instance, and whoever read a
//! history asks for the custom status. The second answer comes with the first, and is kept for the caller's very next call.
//!
//! It is as old as the answer it came with, as if both had been asked for at once. (An activity that was looked for before its worker came
//! back, see `next.rs`, was found up to 50 ms before it was asked for. What other processes wrote meanwhile its history does not know, unless
//! this one has heard of it. The runtime wants to know of it how the orchestration began.) The task that got the one could not hear of
//! anything later meanwhile, because it waited for that answer and goes on with the next call: only that task can have the other,
//! only if neither it nor anybody else on its thread has begun or ended another call of any provider in between, and only for
//! a moment. (What runs on a thread outside of any task counts as one task. Of several things that one task does at the same
//! time, one can be told of a commit while another waits for an older answer; then the next call may be as old as that answer.)

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tokio::task;
use uuid::Uuid;

use crate::history::Tail;
use crate::instances::CustomStatus;

/// Longer than a task needs to go on, and shorter than a round trip to the server.
const MOMENT: Duration = Duration::from_micros(50);
/// From an answer to the next question: its own call ends, the next begins.
const STEPS: u64 = 2;

/// What came along.
pub(crate) enum Ahead {
    History(Tail),
    CustomStatus(Option<CustomStatus>),
}

struct Kept {
    node: Uuid,
    instance: String,
    ahead: Ahead,
    task: Option<task::Id>,
    step: u64,
    at: Instant,
}

thread_local! {
    /// How often a call of a provider began or ended.
    static STEP: Cell<u64> = const { Cell::new(0) };
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// A call of a provider begins or ends.
pub(crate) fn step() {
    STEP.set(STEP.get().wrapping_add(1));
}

/// Keeps what came along with the answer that the call under way is about to give. `node`: the provider.
pub(crate) fn keep(node: Uuid, instance: &str, ahead: Ahead) {
    let kept = Kept {
        node,
        instance: instance.to_string(),
        ahead,
        task: task::try_id(),
        step: STEP.get(),
        at: Instant::now(),
    };
    KEPT.set(Some(kept));
}

/// What came along with the answer before, if that is what the call under way asks for.
pub(crate) fn take(node: Uuid, instance: &str) -> Option<Ahead> {
    take_within(MOMENT, node, instance)
}

fn take_within(moment: Duration, node: Uuid, instance: &str) -> Option<Ahead> {
    let kept = KEPT.take()?;
    let is_next = STEP.get().wrapping_sub(kept.step) == STEPS && kept.task == task::try_id();
    let is_asked_for = kept.node == node && kept.instance == instance;
    (is_next && is_asked_for && kept.at.elapsed() < moment).then_some(kept.ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Uuid = Uuid::from_u128(1);

    /// A call that brings a status along.
    fn answered(version: u64) {
        step();
        keep(NODE, "a", Ahead::CustomStatus(Some((None, version))));
        step();
    }

    fn version(ahead: Option<Ahead>) -> Option<u64> {
        match ahead? {
            Ahead::CustomStatus(status) => status.map(|(_, version)| version),
            Ahead::History(_) => None,
        }
    }

    /// A call that asks for it.
    fn asked(node: Uuid, instance: &str) -> Option<u64> {
        step();
        let found = take_within(Duration::MAX, node, instance);
        step();
        version(found)
    }

    #[tokio::test]
    async fn the_next_call_has_what_came_along_and_no_other() {
        assert_eq!(asked(NODE, "a"), None);
        answered(1);
        assert_eq!(asked(NODE, "a"), Some(1));
        assert_eq!(asked(NODE, "a"), None);

        answered(2);
        answered(3);
        assert_eq!(asked(NODE, "a"), Some(3));

        answered(4);
        assert_eq!(asked(NODE, "b"), None, "of another instance");
        assert_eq!(asked(NODE, "a"), None, "not the next call");
        answered(5);
        assert_eq!(asked(Uuid::from_u128(2), "a"), None, "of another provider");

        answered(6);
        step();
        assert_eq!(asked(NODE, "a"), None, "another call has ended meanwhile");
    }

    #[tokio::test]
    async fn who_waited_asks_again() {
        answered(1);
        std::thread::sleep(MOMENT);
        step();
        assert!(take(NODE, "a").is_none());
    }

    #[tokio::test]
    async fn another_task_asks_for_itself() {
        let task = tokio::spawn(async { answered(1) });
        task.await.expect("task");
        assert_eq!(asked(NODE, "a"), None);
        let task = tokio::spawn(async {
            answered(2);
            asked(NODE, "a")
        });
        assert_eq!(task.await.expect("task"), Some(2));
    }
}
