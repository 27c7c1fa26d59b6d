//! The last so many of something.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// A map that remembers what was put in last, and forgets the oldest beyond that.
#[derive(Debug)]
pub(super) struct Recent<K, V = ()> {
    order: VecDeque<K>,
    all: HashMap<K, V>,
    most: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub fn new(most: usize) -> Self {
        Self { order: VecDeque::new(), all: HashMap::new(), most }
    }

    pub fn push(&mut self, key: K, value: V) {
        if self.all.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(first) = self.order.pop_front()
        {
            self.all.remove(&first);
        }
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.all.get(key)
    }

    pub fn contains(&self, key: &K) -> bool {
        self.all.contains_key(key)
    }
}
