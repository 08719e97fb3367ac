//! A map of what ends without anybody taking it out.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};

pub(crate) struct SweptMap<K, V> {
    entries: HashMap<K, V>,
    /// How many there were after the last sweep.
    left: usize,
}

impl<K, V> Default for SweptMap<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            left: 0,
        }
    }
}

impl<K: Eq + Hash, V> SweptMap<K, V> {
    /// Drops what is not to be kept, if there are more than `above` and more than twice as many as were left the last time: so entries that
    /// are kept do not cost a sweep for each that comes.
    pub(crate) fn sweep(&mut self, above: usize, mut is_kept: impl FnMut(&mut V) -> bool) {
        if self.entries.len() > above.max(2 * self.left) {
            self.entries.retain(|_, value| is_kept(value));
            self.left = self.entries.len();
        }
    }
}

impl<K, V> Deref for SweptMap<K, V> {
    type Target = HashMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

impl<K, V> DerefMut for SweptMap<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_costs_no_sweep_for_each_that_comes() {
        let mut map = SweptMap::default();
        let mut looked_at = 0;
        for number in 0..100 {
            map.sweep(10, |_| {
                looked_at += 1;
                true
            });
            map.insert(number, ());
        }
        assert_eq!(map.len(), 100);
        assert_eq!(looked_at, 11 + 23 + 47 + 95);
        map.sweep(10, |()| false);
        assert_eq!(map.len(), 100, "not twice as many as the last time");
        map.extend((100..200).map(|number| (number, ())));
        map.sweep(10, |()| false);
        assert!(map.is_empty());
    }
}
