//! A group of waiting fetches: when it needs a look, and who gets what the look brings.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::Span;

use crate::appetite::Appetite;
use crate::error::Failure;
use crate::granted::Granted;
use crate::habit::Habit;
use crate::kept::{Kept, WentBack};
use crate::reason::Reason;

/// The most items one look asks for.
const MAX_ITEMS: usize = 64;
/// A look that takes longer has met something heavy, or a slow line: those who wait send another.
pub(crate) const SLOW_LOOK: Duration = Duration::from_millis(20);
/// How long those who do not wait for work wait for what their process has in its hands: on its way back to the queue, or to those who
/// got something else meanwhile. More may follow, or the server not answer.
pub(crate) const IN_HAND: Duration = Duration::from_millis(250);
/// The most looks of a group on the wire.
const MAX_LOOKS: usize = 4;

/// Those of a process who wait for the same thing.
pub(crate) struct Group<T> {
    /// Tells the groups of this process apart.
    pub(crate) id: u64,
    pub(crate) waiters: VecDeque<Waiter<T>>,
    /// Looks on the wire.
    pub(crate) looks: Vec<u64>,
    /// Handovers on the wire.
    pub(crate) handovers: usize,
    /// For those who have yet to ask for it.
    pub(crate) kept: Kept<T>,
    pub(crate) habit: Habit,
    appetite: Appetite,
    /// What looks and handovers on the wire bring for those who have yet to ask.
    ahead: usize,
    /// When the last look was sent.
    sent_at: Instant,
    /// What happened, if anything, since the last look was sent.
    pub(crate) woken: Option<Reason>,
    /// Nothing is to be found before, unless something happens.
    pub(crate) quiet_until: Instant,
    /// Why something may be found then.
    pub(crate) quiet_reason: Reason,
    /// Tells those who sleep when that has moved closer.
    pub(crate) sooner: Arc<Notify>,
    pub(crate) next_id: u64,
    /// The last sent of those looks that have told how long nothing is to be found.
    newest_word: u64,
    behind: Option<Behind>,
    /// For each who went away while a look for it was on the wire: that look.
    departed: Vec<u64>,
}

/// A look on the wire behind a call that fills the queue, and which call that is.
struct Behind {
    look: u64,
    call: u64,
}

pub(crate) struct Waiter<T> {
    pub(crate) id: u64,
    /// Of the fetch.
    pub(crate) span: Span,
    /// Does not wait for work: one look decides, or those that were on the wire beside it.
    pub(crate) impatient: bool,
    /// When it came.
    pub(crate) since: Instant,
    /// Its look has found too little: the last that was sent by then.
    pub(crate) put_off: Option<u64>,
    /// The look on the wire that is for it, if any.
    pub(crate) look: Option<u64>,
    pub(crate) answer: oneshot::Sender<Answer<T>>,
}

pub(crate) enum Answer<T> {
    Granted(Granted<T>),
    Nothing,
    AskAnew,
    Failed(Failure),
}

/// What a fetch comes to.
pub(crate) enum Fetch<T> {
    Item(T),
    Nothing,
    AskAnew,
}

impl<T> Fetch<T> {
    /// `returns_to`: the group its caller comes back to, if it does.
    pub(crate) fn of(
        answer: Result<Answer<T>, oneshot::error::RecvError>,
        returns_to: Option<u64>,
    ) -> Result<Self, Failure> {
        match answer {
            Ok(Answer::Granted(granted)) => Ok(granted.accept(returns_to).map_or(Self::Nothing, Self::Item)),
            Ok(Answer::AskAnew) => Ok(Self::AskAnew),
            Ok(Answer::Failed(error)) => Err(error),
            // Without an answer: the runtime is shutting down.
            Ok(Answer::Nothing) | Err(_) => Ok(Self::Nothing),
        }
    }
}

impl<T> Group<T> {
    pub(crate) fn new(now: Instant) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed),
            waiters: VecDeque::new(),
            looks: Vec::new(),
            handovers: 0,
            kept: Kept::default(),
            habit: Habit::default(),
            appetite: Appetite::default(),
            ahead: 0,
            sent_at: now,
            woken: None,
            quiet_until: now,
            quiet_reason: Reason::Asked,
            sooner: Arc::default(),
            next_id: 0,
            newest_word: 0,
            behind: None,
            departed: Vec::new(),
        }
    }

    /// A look told how long nothing is to be found. If one sent after it has told already, it knows nothing better.
    pub(crate) fn quiet(&mut self, look: u64, until: Instant, reason: Reason) {
        let is_news = look >= self.newest_word;
        let is_sooner = until < self.quiet_until;
        if is_news || is_sooner {
            self.newest_word = self.newest_word.max(look);
            self.quiet_until = until;
            self.quiet_reason = reason;
        }
        if is_sooner {
            self.sooner.notify_waiters();
        }
    }

    /// Something may be found then, if not before. Looks that were sent already know nothing of it.
    pub(crate) fn due_by(&mut self, time: Instant) {
        self.newest_word = self.newest_word.max(self.next_id + 1);
        if time < self.quiet_until {
            self.quiet_until = time;
            self.quiet_reason = Reason::Due;
            self.sooner.notify_waiters();
        }
    }

    /// When those who wait can look, unless something happens.
    pub(crate) fn next_chance(&self, now: Instant) -> Instant {
        if self.looks.is_empty() {
            self.quiet_until
        } else {
            now + SLOW_LOOK
        }
    }

    /// Whether nobody would miss it.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.kept.is_empty() && !self.is_on_the_wire()
    }

    /// Whether there is a call that may lease something for somebody.
    pub(crate) fn is_on_the_wire(&self) -> bool {
        !self.looks.is_empty() || self.handovers > 0
    }

    /// If those who wait need a look beside those on the wire, counts it as sent.
    pub(crate) fn due_look(&mut self, now: Instant) -> Option<Sent> {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        if self.sent_at + SLOW_LOOK <= now
            && let Some(behind) = self.behind.take()
        {
            // The call before it takes its time. Nobody shall wait for what others can bring.
            self.release(behind.look);
        }
        let mut news = self.waiters.iter().filter(|waiter| waiter.look.is_none()).peekable();
        let is_new = news.peek().is_some();
        let is_impatient = news.any(|waiter| waiter.impatient);
        let may_look = self.looks.is_empty() || (self.looks.len() < MAX_LOOKS && self.sent_at + SLOW_LOOK <= now);
        if !may_look || !is_new || !(self.woken.is_some() || self.quiet_until <= now || is_impatient) {
            return None;
        }
        let quiet = if self.quiet_until <= now {
            self.quiet_reason
        } else {
            Reason::Asked
        };
        self.sent_at = now;
        let reason = self.woken.take().unwrap_or(quiet);
        let mut sent = self.send(MAX_ITEMS, reason);
        self.looks.push(sent.id);
        if self.habit.is_formed() {
            // One more: only then is known whether something is left that comes before what is put there next.
            sent.ahead = 1;
            self.ahead += 1;
        }
        Some(sent)
    }

    /// If less than `enough` is kept, and something may be found that nobody waits for, counts a look as sent. `ahead`: how much is to be kept
    /// then.
    pub(crate) fn look_next(&mut self, now: Instant, enough: usize, ahead: usize) -> Option<Sent> {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        let kept = self.kept.len();
        let ahead = ahead.min(MAX_ITEMS).min(self.appetite.most()).saturating_sub(kept);
        let is_provided_for = kept >= enough || ahead == 0 || !self.looks.is_empty() || !self.waiters.is_empty();
        if is_provided_for || (self.woken.is_none() && self.quiet_until > now) {
            return None;
        }
        self.sent_at = now;
        self.woken = None;
        self.ahead += ahead;
        let sent = self.send(0, Reason::Next);
        self.looks.push(sent.id);
        Some(Sent { ahead, ..sent })
    }

    /// What a look found is kept for those who come back; so much of it they have already. `is_all`: it found all that it asked for.
    pub(crate) fn is_provided_for(&mut self, handed_out: usize, is_all: bool) {
        self.appetite.served(handed_out + self.kept.len(), is_all);
    }

    /// The first that is kept and of use.
    pub(crate) fn take_kept(&mut self, now: Instant) -> Option<Granted<T>> {
        let went_back = self.kept.hand_back_useless(now);
        self.was_in_vain(&went_back);
        self.kept.take()
    }

    /// What was kept until then, in vain, goes back to the queue.
    pub(crate) fn hand_back_overdue(&mut self, now: Instant) {
        let went_back = self.kept.hand_back_overdue(now);
        self.was_in_vain(&went_back);
    }

    /// All that is kept goes back to the queue: somebody else wants it. Whether there was any.
    pub(crate) fn hand_back_kept(&mut self) -> bool {
        let is_some = !self.kept.is_empty();
        let went_back = self.kept.hand_back_all();
        self.was_in_vain(&went_back);
        is_some
    }

    fn was_in_vain(&mut self, went_back: &WentBack) {
        if went_back.for_expected > 0 {
            self.habit.is_broken();
        }
        self.appetite.left_over(went_back.for_returning);
    }

    /// Whether something is on its way to those who have yet to ask.
    pub(crate) fn expects_some(&self) -> bool {
        self.ahead > 0
    }

    /// To how many something can be handed over: those who wait where nothing was to be found at the last look, and have none on the wire.
    pub(crate) fn unserved(&mut self, now: Instant) -> usize {
        if !self.is_quiet(now) {
            return 0;
        }
        let is_unserved = |waiter: &&Waiter<T>| waiter.look.is_none() && !waiter.answer.is_closed();
        self.waiters.iter().filter(is_unserved).count()
    }

    /// How many more will probably ask, and what they get is not under way.
    pub(crate) fn expected(&self, now: Instant) -> usize {
        if !self.is_quiet(now) {
            return 0;
        }
        let expected = self.habit.expected().min(MAX_ITEMS);
        expected.saturating_sub(self.kept.len() + self.ahead)
    }

    /// Whether there is nothing in the queue, as far as is known: it would come first.
    fn is_quiet(&self, now: Instant) -> bool {
        self.woken.is_none() && self.quiet_until > now
    }

    /// So many items are under way, to those who wait and have no look on the wire, and so many of them to those who have yet to ask.
    pub(crate) fn hand_over(&mut self, items: usize, ahead: usize) -> Sent {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        self.handovers += 1;
        self.ahead += ahead;
        Sent {
            ahead,
            ..self.send(items - ahead, Reason::Handed)
        }
    }

    /// For at most so many of those who have no look on the wire.
    fn send(&mut self, most: usize, reason: Reason) -> Sent {
        self.next_id += 1;
        let mut sent = Sent {
            id: self.next_id,
            callers: 0,
            ahead: 0,
            reason,
            spans: Vec::new(),
        };
        for waiter in self
            .waiters
            .iter_mut()
            .filter(|waiter| waiter.look.is_none())
            .take(most)
        {
            waiter.look = Some(sent.id);
            sent.callers += 1;
            if !waiter.span.is_none() {
                sent.spans.push(waiter.span.clone());
            }
        }
        sent
    }

    /// If those who wait have no look on the wire, counts one as sent, behind `call`.
    pub(crate) fn look_behind(&mut self, now: Instant, call: u64) -> Option<Sent> {
        if !self.looks.is_empty() {
            return None;
        }
        let was_woken = self.woken.replace(Reason::Behind);
        let sent = self.due_look(now);
        match &sent {
            Some(sent) => self.behind = Some(Behind { look: sent.id, call }),
            None => self.woken = was_woken,
        }
        sent
    }

    /// Whether the last look was sent behind `call`, and has not landed.
    pub(crate) fn looks_behind(&self, call: u64) -> bool {
        self.behind.as_ref().is_some_and(|behind| behind.call == call)
    }

    /// The look on the wire that is for this waiter.
    pub(crate) fn look_of(&self, id: u64) -> Option<u64> {
        self.waiters.iter().find(|waiter| waiter.id == id)?.look
    }

    /// Takes a waiter out.
    pub(crate) fn leave(&mut self, id: u64) -> Option<Waiter<T>> {
        let position = self.waiters.iter().position(|waiter| waiter.id == id)?;
        let waiter = self.waiters.remove(position)?;
        self.departed.extend(waiter.look);
        Some(waiter)
    }

    /// A look is no longer on the wire. Returns how many of those it was for went away meanwhile.
    pub(crate) fn landed(&mut self, sent: &Sent) -> usize {
        match sent.reason {
            Reason::Handed => self.handovers -= 1,
            _ => self.looks.retain(|look| *look != sent.id),
        }
        self.ahead -= sent.ahead;
        self.behind.take_if(|behind| behind.look == sent.id);
        let before = self.departed.len();
        self.departed.retain(|departed| *departed != sent.id);
        before - self.departed.len()
    }

    /// Gives an item to somebody the look was for, else to whoever waits longest. Returns it if nobody is left.
    pub(crate) fn hand_out(&mut self, look: u64, granted: Granted<T>) -> Option<Granted<T>> {
        let mut granted = granted;
        loop {
            let own = self.waiters.iter().position(|waiter| waiter.look == Some(look));
            let Some(waiter) = self.waiters.remove(own.unwrap_or(0)) else {
                return Some(granted);
            };
            match waiter.answer.send(Answer::Granted(granted)) {
                Err(Answer::Granted(back)) => granted = back,
                _ => return None,
            }
        }
    }

    /// Those who go on waiting are no longer waiting for this look.
    pub(crate) fn release(&mut self, look: u64) {
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.look == Some(look)) {
            waiter.look = None;
        }
    }

    /// A look has found too little for those who do not wait for work. Others on the wire may have had their hands on what it did not see, for
    /// those who got something else meanwhile: when they have landed, the next look decides.
    pub(crate) fn dismiss_impatient(&mut self, look: u64, now: Instant) {
        let (looks, last) = (std::mem::take(&mut self.looks), self.next_id);
        for waiter in &mut self.waiters {
            if waiter.look == Some(look) {
                waiter.put_off.get_or_insert(last);
            }
        }
        self.dismiss(
            |waiter| {
                let others = |last| looks.iter().any(|look| *look <= last) && now < waiter.since + IN_HAND;
                waiter.look == Some(look) && waiter.impatient && !waiter.put_off.is_some_and(others)
            },
            || Answer::Nothing,
        );
        self.looks = looks;
    }

    /// Answers those for whom a look decided.
    pub(crate) fn dismiss(&mut self, decided: impl Fn(&Waiter<T>) -> bool, answer: impl Fn() -> Answer<T>) {
        for waiter in std::mem::take(&mut self.waiters) {
            if decided(&waiter) {
                let _ = waiter.answer.send(answer());
            } else {
                self.waiters.push_back(waiter);
            }
        }
    }
}

/// Which look it is, for how many, and why.
pub(crate) struct Sent {
    pub(crate) id: u64,
    /// How many wait for it.
    callers: usize,
    /// How many more it is for, who have yet to ask.
    pub(crate) ahead: usize,
    pub(crate) reason: Reason,
    /// The spans of those who wait for it.
    pub(crate) spans: Vec<Span>,
}

impl Sent {
    /// How many items it asks for.
    pub(crate) fn wanted(&self) -> usize {
        self.callers + self.ahead
    }

    /// Whether only one waits for it.
    pub(crate) fn is_for_one(&self) -> bool {
        self.callers == 1
    }
}

#[cfg(test)]
mod tests;
