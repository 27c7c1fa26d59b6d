//! What was read lately, up to so many.

use std::{collections::HashMap, hash::Hash};

/// A bounded cache of two generations: what was asked for since the last change of them is
/// young, and of the others the whole generation goes at once. That is less to keep in order
/// than the last use of each, and nothing here is so dear that more would pay.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    most: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub fn new(most: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), most: most.max(1) }
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(found) = self.young.get(key) {
            return Some(found.clone());
        }
        let found = self.old.remove(key)?;
        self.put(key.clone(), found.clone());
        Some(found)
    }

    pub fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub fn forget(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_no_more_than_two_generations_do() {
        let mut cache = Cache::new(2);
        for n in 0..100 {
            cache.put(n, n);
            assert_eq!(cache.get(&0), Some(0), "it is asked for all the time");
            assert!(cache.young.len() + cache.old.len() <= 4);
        }
        assert_eq!((cache.get(&1), cache.get(&99)), (None, Some(99)));
    }

    #[test]
    fn what_is_forgotten_is_gone_from_both_generations() {
        let mut cache = Cache::new(1);
        cache.put(1, "old");
        cache.put(2, "young");
        cache.forget(&1);
        cache.forget(&2);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, None));
    }
}
