use super::*;

fn waiter(impatient: bool, answer: oneshot::Sender<Answer<()>>) -> Waiter<()> {
    Waiter {
        id: 7,
        span: Span::none(),
        impatient,
        since: Instant::now(),
        put_off: None,
        look: None,
        answer,
    }
}

/// A group with a look on the wire for those who have yet to come, and somebody who does not wait for work.
fn overtaken(now: Instant) -> (Group<()>, Sent, oneshot::Receiver<Answer<()>>) {
    let mut group = Group::new(now);
    group.woken = Some(Reason::Notified);
    let look = group.look_next(now, 1, 1).expect("it goes out");
    let (answer, receiver) = oneshot::channel();
    group.waiters.push_back(waiter(true, answer));
    (group, look, receiver)
}

/// A look that goes out then finds nothing.
fn looks_in_vain(group: &mut Group<()>, now: Instant) {
    let look = group.due_look(now).expect("those on the wire take their time");
    group.landed(&look);
    group.dismiss_impatient(look.id, now);
    group.release(look.id);
}

#[tokio::test(start_paused = true)]
async fn what_an_overtaken_look_may_bring_is_waited_for_a_while() {
    let now = Instant::now();
    let (mut group, _look, mut receiver) = overtaken(now);
    for (passed, is_decided) in [(SLOW_LOOK, false), (SLOW_LOOK * 2, false), (IN_HAND, true)] {
        looks_in_vain(&mut group, now + passed);
        assert_eq!(receiver.try_recv().is_ok(), is_decided, "{passed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_later_looks_may_bring_is_not() {
    let now = Instant::now();
    let (mut group, look, mut receiver) = overtaken(now);
    looks_in_vain(&mut group, now + SLOW_LOOK);
    assert!(receiver.try_recv().is_err());
    group.landed(&look);
    group.next_id += 1;
    group.looks.push(group.next_id);
    looks_in_vain(&mut group, now + SLOW_LOOK * 2);
    assert!(matches!(receiver.try_recv(), Ok(Answer::Nothing)));
}

#[tokio::test(start_paused = true)]
async fn where_nothing_else_is_on_the_wire_one_look_decides() {
    let now = Instant::now();
    let (mut group, look, mut receiver) = overtaken(now);
    group.landed(&look);
    looks_in_vain(&mut group, now);
    assert!(matches!(receiver.try_recv(), Ok(Answer::Nothing)));
}

#[tokio::test]
async fn what_is_in_the_queue_already_comes_before_what_is_handed_over() {
    let now = Instant::now();
    let mut group = Group::<()>::new(now);
    let (answer, receiver) = oneshot::channel();
    group.waiters.push_back(waiter(false, answer));
    assert_eq!(group.unserved(now), 0, "it has not looked yet");
    group.quiet(1, now + Duration::from_secs(1), Reason::Fallback);
    assert_eq!(group.unserved(now), 1);
    group.woken = Some(Reason::Notified);
    assert_eq!(group.unserved(now), 0, "there is something to look for");
    group.woken = None;
    let sent = group.hand_over(1, 0);
    assert_eq!((sent.wanted(), group.looks.len(), group.unserved(now)), (1, 0, 0));
    group.release(sent.id);
    assert_eq!(group.unserved(now), 1);
    drop(receiver);
    assert_eq!(group.unserved(now), 0, "it has gone away");
}

#[tokio::test]
async fn a_look_for_those_who_come_back_is_made_when_it_may_find_something_that_they_lack() {
    let now = Instant::now();
    let mut group = Group::<()>::new(now);
    group.quiet(1, now + Duration::from_secs(60), Reason::Fallback);
    assert!(group.look_next(now, 2, 4).is_none(), "there is nothing to be found");
    group.woken = Some(Reason::Notified);
    let next = group.look_next(now, 2, 4).expect("there is something");
    assert_eq!((next.wanted(), next.reason, group.looks.len()), (4, Reason::Next, 1));
    assert!(group.look_next(now, 2, 4).is_none(), "it is on its way");

    let (answer, receiver) = oneshot::channel();
    group.waiters.push_back(waiter(false, answer));
    assert!(group.due_look(now).is_none(), "it is on its way");
    group.landed(&next);
    group.woken = Some(Reason::Enqueued);
    assert!(group.look_next(now, 2, 4).is_none(), "somebody waits");
    drop(receiver);
    for _ in 0..5 {
        group.appetite.served(MAX_ITEMS, true);
    }
    let most = group.look_next(now, 200, 300).expect("there is something");
    assert_eq!(most.wanted(), MAX_ITEMS, "no look brings more");
}

#[tokio::test]
async fn a_look_for_those_who_come_back_asks_for_no_more_than_they_came_for_in_time() {
    let now = Instant::now();
    let mut group = Group::<()>::new(now);
    let look = |group: &mut Group<()>, finds_all: bool| {
        group.woken = Some(Reason::Notified);
        let sent = group.look_next(now, 2, 24).expect("there is something");
        group.landed(&sent);
        group.is_provided_for(0, finds_all);
        sent.wanted()
    };
    let asked = [true, true, false, true, true].map(|finds_all| look(&mut group, finds_all));
    assert_eq!(asked, [4, 8, 16, 16, 24]);
    group.appetite.served(24, true);
    group.appetite.left_over(20);
    assert_eq!([(); 2].map(|()| look(&mut group, true)), [4, 5]);
    // Those who had come back when it was found had most of it.
    group.is_provided_for(6, false);
    group.appetite.left_over(1);
    assert_eq!(look(&mut group, true), 5);
}

#[tokio::test]
async fn a_look_that_was_sent_before_does_not_hide_what_will_be_due() {
    let now = Instant::now();
    let mut group = Group::<()>::new(now);
    group.next_id = 5;
    group.quiet(4, now + Duration::from_secs(60), Reason::Fallback);
    let soon = now + Duration::from_millis(10);
    group.due_by(soon);
    group.quiet(5, now + Duration::from_secs(60), Reason::Fallback);
    assert_eq!((group.quiet_until, group.quiet_reason), (soon, Reason::Due));
    group.next_id = 6;
    group.quiet(6, now + Duration::from_secs(60), Reason::Fallback);
    assert_eq!(group.quiet_until, now + Duration::from_secs(60));
}

#[tokio::test]
async fn an_overtaken_look_does_not_silence_those_who_wait() {
    let now = Instant::now();
    let mut group = Group::<()>::new(now);
    group.quiet(2, now, Reason::More);
    group.quiet(1, now + Duration::from_secs(60), Reason::Fallback);
    assert_eq!((group.quiet_until, group.quiet_reason), (now, Reason::More));

    group.quiet(3, now + Duration::from_secs(60), Reason::Fallback);
    group.quiet(2, now + Duration::from_secs(1), Reason::Due);
    assert_eq!(
        (group.quiet_until, group.quiet_reason),
        (now + Duration::from_secs(1), Reason::Due)
    );
}
