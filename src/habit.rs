//! Whether those who fetch do so right after their process has put something into the queue.
//!
//! Whoever enqueues and fetches in a circle gets what it has just put there, as a rule. Once that is a habit, the call that enqueues
//! leases as much as is usually asked for, and it is there when somebody asks. What nobody asks for is handed back soon, and
//! ends the habit.

use std::time::Duration;

use tokio::time::Instant;

/// Whoever asks later than this did not do so because of what was put there.
const AT_ONCE: Duration = Duration::from_millis(2);
/// Asking so many times in a row is a habit.
const HABIT: u32 = 16;
/// Of those who usually ask, one in so many is forgotten each time.
const DECLINE: usize = 16;

#[derive(Default)]
pub(crate) struct Habit {
    /// When something was last put into the queue.
    filled_at: Option<Instant>,
    /// How much, and how many asked at once after that.
    items: usize,
    asked: usize,
    /// How many times in a row as many asked.
    times: u32,
    /// How many asked at most, lately.
    usual: usize,
}

impl Habit {
    /// This process has put so much into the queue.
    pub(crate) fn filled(&mut self, now: Instant, items: usize) {
        self.times = match self.asked {
            _ if self.filled_at.is_none() => 0,
            asked if asked >= self.items => (self.times + 1).min(HABIT * 2),
            0 => 0,
            _ => self.times / 2,
        };
        self.usual = self.asked.max(self.usual - self.usual.div_ceil(DECLINE));
        self.filled_at = Some(now);
        self.items = items;
        self.asked = 0;
    }

    /// Somebody asks for something.
    pub(crate) fn asks(&mut self, now: Instant) {
        let is_at_once = |filled_at| now.saturating_duration_since(filled_at) <= AT_ONCE;
        self.asked += usize::from(self.filled_at.is_some_and(is_at_once));
    }

    /// Something was there, and nobody asked for it.
    pub(crate) fn is_broken(&mut self) {
        *self = Self::default();
    }

    /// Whether what is put into the queue next will probably be asked for at once.
    pub(crate) fn is_formed(&self) -> bool {
        self.times >= HABIT
    }

    /// How many will ask. Twice as many as usually do: there may be more of them each time, and what is one too many goes back.
    pub(crate) fn expected(&self) -> usize {
        if self.is_formed() {
            self.asked.max(self.usual) * 2
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many times that two were put there, and as many asked.
    fn formed(times: u32) -> (Habit, Instant) {
        let mut habit = Habit::default();
        let mut now = Instant::now();
        for _ in 0..times {
            habit.filled(now, 2);
            habit.asks(now);
            habit.asks(now + AT_ONCE);
            now += AT_ONCE * 10;
        }
        (habit, now)
    }

    #[test]
    fn a_habit_takes_its_time_and_ends_at_once() {
        let (mut habit, now) = formed(HABIT);
        assert!(!habit.is_formed(), "nobody knows yet whether they asked in time");
        habit.filled(now, 2);
        assert!(habit.is_formed());
        assert_eq!(habit.expected(), 4);
        habit.filled(now, 2);
        assert!(!habit.is_formed(), "nobody asked");

        let (mut habit, _) = formed(HABIT * 10);
        assert!(habit.is_formed());
        habit.is_broken();
        assert!(!habit.is_formed());
    }

    #[test]
    fn few_who_are_late_once_do_not_end_it() {
        let (mut habit, now) = formed(HABIT * 3);
        habit.filled(now, 2);
        for late in [1, 2] {
            habit.asks(now);
            habit.asks(now + AT_ONCE * 2);
            habit.filled(now, 2);
            assert_eq!(habit.is_formed(), late == 1, "{late}");
        }
    }

    #[test]
    fn who_asks_for_less_than_is_put_there_has_no_habit() {
        let mut habit = Habit::default();
        let now = Instant::now();
        for _ in 0..HABIT * 4 {
            habit.filled(now, 2);
            habit.asks(now);
            assert!(!habit.is_formed());
        }
    }
}
