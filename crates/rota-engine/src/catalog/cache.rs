//! What was read lately, up to a number of entries and of bytes.

use std::{collections::HashMap, hash::Hash};

/// A bounded cache of two generations: what was asked for since the last change of them is
/// young, and of the others the whole generation goes at once. That is less to keep in order
/// than the last use of each, and nothing here is so dear that more would pay.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    most: usize,
    /// Bytes of the young ones, as those who put them in count.
    bytes: usize,
    bytes_max: usize,
}

/// Of a generation of one kind. Documents are read from the store again when they are
/// needed; what was compiled from them takes several times as much.
const BYTES_MAX: usize = 16 << 20;

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub fn new(most: usize) -> Self {
        Self::within(most, BYTES_MAX)
    }

    fn within(most: usize, bytes_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), most: most.max(1), bytes: 0, bytes_max }
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some((found, _)) = self.young.get(key) {
            return Some(found.clone());
        }
        let (found, bytes) = self.old.remove(key)?;
        self.put(key.clone(), found.clone(), bytes);
        Some(found)
    }

    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        if self.young.len() >= self.most || self.bytes + bytes > self.bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        if let Some((_, before)) = self.young.insert(key, (value, bytes)) {
            self.bytes -= before;
        }
    }

    pub fn forget(&mut self, key: &K) {
        if let Some((_, bytes)) = self.young.remove(key) {
            self.bytes -= bytes;
        }
        self.old.remove(key);
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_no_more_than_two_generations_do() {
        let mut cache = Cache::new(2);
        for n in 0..100 {
            cache.put(n, n, 1);
            assert_eq!(cache.get(&0), Some(0), "it is asked for all the time");
            assert!(cache.young.len() + cache.old.len() <= 4);
        }
        assert_eq!((cache.get(&1), cache.get(&99)), (None, Some(99)));
    }

    #[test]
    fn what_is_forgotten_is_gone_from_both_generations() {
        let mut cache = Cache::new(1);
        cache.put(1, "old", 1);
        cache.put(2, "young", 1);
        cache.forget(&1);
        cache.forget(&2);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, None));
    }

    /// A few large documents must not take the memory of thousands of ordinary ones.
    #[test]
    fn large_ones_leave_by_their_bytes() {
        let mut cache = Cache::within(1_000, 100);
        for n in 0..50 {
            cache.put(n, n, 40);
            cache.put(n, n, 40);
            assert!(cache.young.len() + cache.old.len() <= 4 && cache.bytes <= 100);
        }
        cache.forget(&49);
        cache.clear();
        assert_eq!((cache.bytes, cache.get(&48)), (0, None));
    }
}
