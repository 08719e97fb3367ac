//! How much those who come back for more have done with in time, lately.
//!
//! What is looked for before they ask goes back to the queue if they take too long (`kept.rs`). Where server and processors are busy most of it
//! would, again and again, at a call each, which makes them no less busy. So it begins with a little, doubles until something is left over,
//! and grows step by step from there.

/// To begin with.
const FIRST: usize = 4;

pub(crate) struct Appetite {
    most: usize,
    /// What was at hand when the last look had come back, and who had come back before it took some.
    served: usize,
    /// Whether nothing was ever left over.
    is_boundless: bool,
}

impl Default for Appetite {
    fn default() -> Self {
        Self {
            most: FIRST,
            served: 0,
            is_boundless: true,
        }
    }
}

impl Appetite {
    /// How much they can do with.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// So much is at hand. `is_all`: all that was looked for was found; otherwise nobody knows whether they could have done with it.
    pub(crate) fn served(&mut self, items: usize, is_all: bool) {
        self.served = items;
        if is_all {
            let step = if self.is_boundless { self.most } else { 1 };
            self.most = self.most.saturating_add(step);
        }
    }

    /// So much of what was at hand nobody came for in time.
    pub(crate) fn left_over(&mut self, items: usize) {
        if items > 0 {
            self.most = self.served.saturating_sub(items).max(1);
            self.served = self.most;
            self.is_boundless = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_over_is_not_looked_for_again_at_once() {
        let mut appetite = Appetite::default();
        appetite.served(FIRST, true);
        appetite.served(FIRST * 2, true);
        appetite.left_over(0);
        appetite.served(FIRST, false);
        assert_eq!(appetite.most(), FIRST * 4);

        appetite.served(24, true);
        appetite.left_over(18);
        assert_eq!(appetite.most(), 6);
        // The rest of them, a moment later.
        appetite.left_over(1);
        assert_eq!(appetite.most(), 5);

        appetite.served(5, true);
        assert_eq!(appetite.most(), 6, "they may have more time again");
        appetite.served(3, false);
        appetite.left_over(2);
        assert_eq!(appetite.most(), 1, "others took the rest");
        appetite.served(5, true);
        appetite.left_over(9);
        assert_eq!(appetite.most(), 1, "one is always tried");
    }
}
