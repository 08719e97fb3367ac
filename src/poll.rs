//! Fetches that wait for work: who waits, and who looks.
//!
//! All fetches of this process that ask for the same thing form a group, and share their looks at the queue: one call
//! claims as many items as there are callers waiting. While a look is on the wire, those who arrive wait for the next
//! one. A look that brought too little tells when the next is worth it; until then only a wake-up causes another,
//! however many callers come and go.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;

use crate::call::Connection;
use crate::carried::Carried;
use crate::error::Failure;
use crate::fetch::{Place, Registered};
use crate::inner::Inner;
use crate::kept::{Keeper, may_keep};
use crate::look::{Found, make_look, send_look};
use crate::reason::Reason;
use crate::swept::SweptMap;
pub(crate) use crate::waiters::Fetch;
use crate::waiters::{Answer, Group, SLOW_LOOK, Sent, Waiter};
use crate::wake::Queue;
use crate::words::Haste;

/// Whoever waited for work and does not come back within this time will not.
const ATTENDED: Duration = Duration::from_secs(10);
/// Groups beyond this are swept of those nobody waits in.
const SWEEP_ABOVE: usize = 64;

/// What a fetch asks for. Equal requests share their looks.
pub(crate) trait Request: Clone + Hash + Eq + Send + Sync + 'static {
    type Item: Send + 'static;

    /// Which queue it is about.
    const QUEUE: Queue;

    /// Looks into the queue for as many as `wanted`. `behind`: where a call that fills it is on the wire.
    fn look(
        self,
        inner: Arc<Inner>,
        wanted: usize,
        behind: Option<Connection>,
    ) -> BoxFuture<'static, Result<Found<Self::Item>, Failure>>;

    /// How long what it gets is leased.
    fn lock_timeout(&self) -> Duration;

    /// Whether somebody who ends what it got will ask for the next on the same terms.
    fn is_repeated(&self, _inner: &Inner) -> bool {
        false
    }

    /// Where the fetches of this kind wait.
    fn line(inner: &Inner) -> &Line<Self>;
}

/// All fetches of one kind, by what they ask for.
pub(crate) struct Line<R: Request> {
    groups: Mutex<SweptMap<R, Group<R::Item>>>,
    patient_until: Mutex<Option<Instant>>,
}

impl<R: Request> Default for Line<R> {
    fn default() -> Self {
        Self {
            groups: Mutex::default(),
            patient_until: Mutex::default(),
        }
    }
}

impl<R: Request> Line<R> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SweptMap<R, Group<R::Item>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened: whoever waits looks again. What is known of the queue is out of date also for those who
    /// do not wait at this moment. `behind`: the call that caused it, if some may have a look on the wire behind it.
    /// Whether a look went out for it.
    pub(crate) fn woken(&self, inner: &Arc<Inner>, reason: Reason, behind: Option<u64>) -> bool {
        let now = Instant::now();
        let mut looks = Vec::new();
        let mut is_behind = false;
        for (request, group) in self.lock().iter_mut() {
            if behind.is_some_and(|call| group.looks_behind(call)) {
                is_behind = true;
                continue;
            }
            group.woken = Some(reason);
            looks.extend(group.due_look(now).map(|sent| (request.clone(), sent)));
        }
        let looks_now = is_behind || !looks.is_empty();
        for (request, sent) in looks {
            send_look(inner, &request, Some(sent), None);
        }
        looks_now
    }

    /// What is on the wire will fill the queue: whoever waits and has no look on the wire looks right behind it.
    pub(crate) fn look_behind(&self, inner: &Arc<Inner>, connection: &Connection, call: u64) {
        let now = Instant::now();
        let mut looks = Vec::new();
        for (request, group) in self.lock().iter_mut() {
            looks.extend(group.look_behind(now, call).map(|sent| (request.clone(), sent)));
        }
        for (request, sent) in looks {
            send_look(inner, &request, Some(sent), Some(connection.clone()));
        }
    }

    /// This process has put something into the queue: so much of what each asks for.
    pub(crate) fn filled(&self, items: impl Fn(&R) -> usize) {
        if !may_keep() {
            return;
        }
        let now = Instant::now();
        for (request, group) in self.lock().iter_mut() {
            match items(request) {
                0 => {}
                items => group.habit.filled(now, items),
            }
        }
    }

    /// Something is about to happen to these instances: what is kept of them is no longer true.
    pub(crate) fn hand_back_of<'a>(&self, instances: impl IntoIterator<Item = &'a str>) {
        let mut groups = self.lock();
        if groups.values().any(|group| !group.kept.is_empty()) {
            let instances: HashSet<_> = instances.into_iter().collect();
            for group in groups.values_mut() {
                group.kept.hand_back_of(&instances);
            }
        }
    }

    /// Whether there is a call that may lease something for somebody.
    pub(crate) fn is_on_the_wire(&self) -> bool {
        self.lock().values().any(Group::is_on_the_wire)
    }

    /// All that is kept goes back to the queue.
    pub(crate) fn hand_back_kept(&self) {
        for group in self.lock().values_mut() {
            group.hand_back_kept();
        }
    }

    /// Something will be due then.
    pub(crate) fn due_by(&self, time: Instant) {
        for group in self.lock().values_mut() {
            group.due_by(time);
        }
    }

    /// Whether somebody waits for work.
    pub(crate) fn has_waiters(&self) -> bool {
        let waits = |group: &Group<R::Item>| group.waiters.iter().any(|waiter| !waiter.impatient);
        self.lock().values().any(waits)
    }

    /// Whether there are some who wait for work, or did lately.
    pub(crate) fn is_attended(&self) -> bool {
        let is_recent = |at: Instant| at.elapsed() < ATTENDED;
        self.has_waiters() || self.patient_until().is_some_and(is_recent)
    }

    /// Somebody who waited for work no longer does, with or without any.
    pub(crate) fn has_left(&self, now: Instant) {
        *self.patient_until() = Some(now);
    }

    /// When the last of those did.
    fn patient_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.patient_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait for the same thing.
    pub(crate) fn waiters(&self, request: &R) -> usize {
        self.lock().get(request).map_or(0, |group| group.waiters.len())
    }

    /// What is kept for those who ask for this answers at once. `since`: when the caller came. `sees_all`: nothing of what is in this process's hands must be hidden from
    /// its look; None if something is still on its way to those who ask for something else, or back to the queue.
    pub(crate) fn register<'a>(
        &self,
        inner: &'a Inner,
        request: &'a R,
        since: Instant,
        impatient: bool,
        sees_all: bool,
    ) -> Option<Registered<'a, R>> {
        let (answer, receiver) = oneshot::channel();
        let now = Instant::now();
        let span = Span::current();
        let mut groups = self.lock();
        groups.sweep(SWEEP_ABOVE, |group| !group.is_idle());
        let group = groups.entry(request.clone()).or_insert_with(|| Group::new(now));
        // A closed provider gives nothing away that it could not take back.
        let kept = (!inner.caller.is_closed()).then(|| group.take_kept(now)).flatten();
        if kept.is_none() && sees_all {
            let mut is_elsewhere = inner.going_back.is_some(R::QUEUE);
            for (_, other) in groups.iter_mut().filter(|(other, _)| *other != request) {
                is_elsewhere |= other.hand_back_kept() || other.expects_some();
            }
            if is_elsewhere {
                return None;
            }
        }
        let group = groups.get_mut(request)?;
        group.habit.asks(now);
        group.next_id += 1;
        let id = group.next_id;
        match kept {
            Some(granted) => drop(answer.send(Answer::Granted(granted))),
            None => group.waiters.push_back(Waiter {
                id,
                span,
                impatient,
                since,
                put_off: None,
                look: None,
                answer,
            }),
        }
        Some(Registered {
            place: Place {
                inner,
                request,
                id,
                patient: !impatient,
            },
            group: group.id,
            answer: receiver,
            sooner: Arc::clone(&group.sooner),
        })
    }

    /// Makes a look if one is due; returns it if it is for the caller alone, who then carries it out. Tells when the next will
    /// be, if nothing happens. `arrived`: the caller only just came.
    pub(crate) fn look_if_due(
        &self,
        inner: &Arc<Inner>,
        request: &R,
        caller: u64,
        arrived: bool,
    ) -> (Instant, Option<Carried<()>>) {
        let now = Instant::now();
        let (next, look) = match self.lock().get_mut(request) {
            None => (now + SLOW_LOOK, None),
            Some(group) => {
                let look = group.due_look(now).map(|sent| {
                    let alone = sent.is_for_one() && group.look_of(caller) == Some(sent.id);
                    (sent, alone)
                });
                let next = match group.look_of(caller) {
                    Some(_) => now + SLOW_LOOK,
                    None => group.next_chance(now),
                };
                (next, look)
            }
        };
        let look = look.and_then(|(mut sent, alone)| {
            if arrived {
                // Whatever else may have happened while nobody asked.
                sent.reason = Reason::Asked;
            }
            let look = make_look(inner, request, sent, None);
            // One for others must not depend on whether this caller goes on: dropped here, it goes on by itself.
            alone.then_some(look)
        });
        (next, look)
    }

    /// The caller's time is up. False if a look for it is on the wire, or its answer under way: that decides.
    pub(crate) fn withdraw(&self, request: &R, id: u64) -> bool {
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(request) else {
            return false;
        };
        match group.waiters.iter_mut().find(|waiter| waiter.id == id) {
            None => false,
            Some(waiter) if waiter.look.is_some() => {
                waiter.impatient = true;
                false
            }
            Some(_) => {
                group.waiters.retain(|waiter| waiter.id != id);
                true
            }
        }
    }

    /// Hands out what a look brought, and sends the next if one is wanted already.
    pub(crate) fn landed(&self, inner: &Arc<Inner>, request: &R, sent: &Sent, found: Result<Found<R::Item>, Failure>) {
        let now = Instant::now();
        let mut unwanted = Vec::new();
        let mut keeper = None;
        let departed;
        // Whoever looked for what this process put there: whether it left nothing to others.
        let took_all = found
            .as_ref()
            .is_ok_and(|found| (1..sent.wanted()).contains(&found.granted.len()));
        let is_for_others = R::QUEUE == Queue::Orchestrator && matches!(sent.reason, Reason::Enqueued | Reason::Behind);
        if is_for_others && !took_all {
            inner.waker.tell_others(R::QUEUE, Haste::Soon);
        }
        let brought = found.as_ref().map_or(0, |found| found.granted.len());
        let found_all = found.is_ok().then_some(brought >= sent.wanted());
        let look = {
            let mut groups = self.lock();
            let Some(group) = groups.get_mut(request) else {
                return;
            };
            departed = group.landed(sent);
            match found {
                // It tells nothing of the queue; who got nothing looks for itself.
                found if sent.reason == Reason::Handed => {
                    for granted in found.into_iter().flat_map(|found| found.granted) {
                        unwanted.extend(group.hand_out(sent.id, granted));
                        // No look has told when this lease ends.
                        group.due_by(now + request.lock_timeout());
                    }
                }
                Ok(found) => {
                    let enough = found_all == Some(true);
                    for granted in found.granted {
                        unwanted.extend(group.hand_out(sent.id, granted));
                    }
                    let (nap, reason) = match found.next {
                        // It told nothing of what they will ask for.
                        _ if found.ask_anew => (Duration::ZERO, Reason::Asked),
                        // There may be more.
                        _ if enough => (Duration::ZERO, Reason::More),
                        next => match (next.unwrap_or(Duration::MAX), inner.waker.fallback()) {
                            (due, fallback) if due <= fallback => (due, Reason::Due),
                            (_, fallback) => (fallback, Reason::Fallback),
                        },
                    };
                    group.quiet(sent.id, now + nap, reason);
                    if found.ask_anew {
                        // Also those who came while it was on the wire: what they would ask is no longer right.
                        group.dismiss(|_| true, || Answer::AskAnew);
                    } else if !enough {
                        group.dismiss_impatient(sent.id, now);
                    }
                }
                Err(error) => {
                    group.quiet(sent.id, now, Reason::Failed);
                    let closed = inner.caller.is_closed();
                    group.dismiss(
                        |waiter| waiter.look == Some(sent.id),
                        || match closed {
                            true => Answer::Nothing,
                            false => Answer::Failed(error.clone()),
                        },
                    );
                }
            }
            group.release(sent.id);
            let handed_out = brought - unwanted.len();
            let may_keep = sent.reason == Reason::Next || may_keep();
            if sent.ahead > 0 && !unwanted.is_empty() && may_keep && !inner.is_leaving() {
                let ahead = sent.ahead.min(unwanted.len());
                let lock_timeout = request.lock_timeout();
                let number = group.kept.keep(unwanted.drain(..ahead), sent.reason, lock_timeout);
                keeper = number.map(|number| Keeper::new(inner, request, number));
            }
            if sent.reason == Reason::Next
                && let Some(is_all) = found_all
            {
                group.is_provided_for(handed_out, is_all);
            }
            // What was for those who went away is dropped, and rests; the others were only one too many. Under the lock: whoever finds that they
            // are not kept can see that they are on their way back.
            for granted in unwanted.drain(..).skip(departed) {
                granted.hand_back();
            }
            group.due_look(now)
        };
        if let Some(keeper) = keeper {
            keeper.spawn();
        }
        inner.going_back.has_changed();
        send_look(inner, request, look, None);
    }
}
