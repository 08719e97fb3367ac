use std::sync::Arc;

use futures_util::FutureExt;

use super::*;

const INSTANCE: &str = "i";

fn reader() -> Reader {
    Reader::Thread(std::thread::current().id())
}

fn after(begin: Instant, ms: u64) -> Instant {
    begin + Duration::from_millis(ms)
}

/// How long the read that begins then waits, in milliseconds; it ends a millisecond after that.
fn waits(polled: &Polled, begin: Instant, ms: u64) -> Option<u128> {
    let limit = polled
        .begin(INSTANCE, reader(), after(begin, ms))
        .map(|(_, limit)| limit);
    let end = after(begin, ms + 1) + limit.unwrap_or_default();
    polled.note(INSTANCE, reader(), false, end);
    limit.map(|limit| limit.as_millis())
}

#[test]
fn who_reads_twice_in_a_row_polls_and_waits_longer_and_longer() {
    let polled = Polled::default();
    let begin = Instant::now();
    assert_eq!(waits(&polled, begin, 0), None);
    assert_eq!(waits(&polled, begin, 2), Some(20));
    assert_eq!(waits(&polled, begin, 28), Some(28));
    assert_eq!(waits(&polled, begin, 67), Some(67));
    assert_eq!(waits(&polled, begin, 155), Some(100));
    // It has given up meanwhile.
    assert_eq!(waits(&polled, begin, 556), None);
    assert_eq!(waits(&polled, begin, 557), Some(20));
}

#[test]
fn those_who_wait_ask_together() {
    let polled = Polled::default();
    let end = |ms, limit| {
        let wait = polled.together(after(polled.since, ms), Duration::from_millis(limit));
        assert!(
            wait.abs_diff(Duration::from_millis(limit)) <= TOGETHER / 2,
            "{ms} {limit}"
        );
        ms + u64::try_from(wait.as_millis()).expect("short")
    };
    assert_eq!([end(1_000_000, 20), end(1_000_009, 20)], [1_000_020; 2]);
    assert_eq!(
        [end(1_000_011, 20), end(1_000_015, 33), end(1_000_029, 20)],
        [1_000_040, 1_000_040, 1_000_040]
    );
}

#[test]
fn who_pauses_between_two_reads_is_not_held_up() {
    let polled = Polled::default();
    let begin = Instant::now();
    for ms in [0, 10, 20, 100] {
        assert_eq!(waits(&polled, begin, ms), None, "{ms}");
    }
}

#[test]
fn nor_is_who_fetches() {
    let polled = Polled::default();
    polled.is_dispatcher();
    let begin = Instant::now();
    assert!(polled.begin(INSTANCE, Reader::current(), begin).is_none());
    polled.note(INSTANCE, Reader::current(), false, begin);
    assert!(polled.begin(INSTANCE, Reader::current(), begin).is_none());
}

#[tokio::test]
async fn an_end_is_heard_of_at_once_whenever_it_comes() {
    let polled = Polled::default();
    polled.wait(INSTANCE, false).await;
    polled.was_read(INSTANCE, &[]);
    let mut waiting = Box::pin(polled.wait(INSTANCE, false));
    assert!((&mut waiting).now_or_never().is_none());
    polled.has_ended("another", None);
    assert!((&mut waiting).now_or_never().is_none());
    polled.has_ended(INSTANCE, None);
    assert!((&mut waiting).now_or_never().is_some());
    drop(waiting);

    // It came between two reads.
    polled.was_read(INSTANCE, &[]);
    assert!(polled.wait(INSTANCE, false).now_or_never().is_some());
}

#[tokio::test]
async fn only_who_waited_before_the_end_is_told_of_it() {
    let polled = Polled::default();
    let begin = Instant::now();
    assert_eq!(waits(&polled, begin, 0), None);
    assert!(!polled.is_awaited(INSTANCE));
    let (before, _) = polled.begin(INSTANCE, reader(), after(begin, 2)).expect("waits");
    assert!(polled.is_awaited(INSTANCE));
    let (meanwhile, _) = polled.begin(INSTANCE, reader(), after(begin, 4)).expect("waits");
    let (gone, _) = polled.begin(INSTANCE, reader(), after(begin, 5)).expect("waits");
    drop(gone);
    let ended = Ended {
        history: Arc::default(),
        status: None,
        since: after(begin, 3),
    };
    polled.has_ended(INSTANCE, Some(ended));
    assert!(before.await.expect("told").is_some());
    assert!(
        meanwhile.await.expect("told").is_none(),
        "it may be older than the read"
    );
    assert!(!polled.is_awaited(INSTANCE));
}

#[test]
fn an_end_that_nobody_read_of_does_not_count_for_the_next() {
    let polled = Polled::default();
    let begin = Instant::now();
    waits(&polled, begin, 0);
    polled.has_ended(INSTANCE, None);
    assert_eq!(waits(&polled, begin, 2), None, "it has ended");
    assert_eq!(waits(&polled, begin, 1000), None);
    assert_eq!(waits(&polled, begin, 1002), Some(20));
}

#[test]
fn nobody_waits_who_went_away() {
    let polled = Polled::default();
    let begin = Instant::now();
    for ms in [0, 2, 4, 6] {
        waits(&polled, begin, ms);
    }
    assert!(!polled.is_awaited(INSTANCE));
    assert!(polled.lock()[INSTANCE].waiting.len() <= 1);
}

#[test]
fn nothing_is_kept_of_what_has_ended_or_was_given_up() {
    let polled = Polled::default();
    let begin = Instant::now();
    waits(&polled, begin, 0);
    polled.note(INSTANCE, reader(), true, begin);
    assert!(polled.lock().is_empty());

    for number in 0..=SWEEP_ABOVE {
        polled.begin(&number.to_string(), reader(), begin);
    }
    polled.begin(INSTANCE, reader(), after(begin, 1000));
    assert_eq!(polled.lock().len(), 1);
}

#[tokio::test]
async fn nor_of_many_who_read_the_same_once() {
    let polled = Polled::default();
    let begin = Instant::now();
    for number in 0..100 {
        let reader = tokio::spawn(async { Reader::current() }).await.expect("task");
        polled.begin(INSTANCE, reader, begin + GIVEN_UP * number);
    }
    assert!(polled.lock()[INSTANCE].readers.len() <= SWEEP_READERS_ABOVE + 1);
}

/// As `Client::wait_for_status_change` does, again and again.
#[tokio::test]
async fn who_waits_for_a_status_is_not_held_up() {
    let polled = Polled::default();
    for _ in 0..5 {
        polled.asks_for_status(INSTANCE);
        assert!(polled.begin(INSTANCE, Reader::current(), Instant::now()).is_none());
        polled.was_read(INSTANCE, &[]);
        polled.asks_for_status(INSTANCE);
    }
}
