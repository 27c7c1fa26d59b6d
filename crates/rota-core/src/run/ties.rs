//! Who waits for whom, and what becomes of that when one of them ends early.
//!
//! The runs of a schedule that queues form a chain: each waits for the last one
//! before it and for no other, so that a chain of a thousand has a thousand ties. One
//! that ends while it waits itself (cancelled, expired) leaves its place to whoever is
//! behind it, or that one would start beside those further ahead.

use std::collections::{BTreeMap, BTreeSet};

use super::WAITS_MAX;
use crate::ids::RunId;

/// A run that another waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tie {
    pub needed: RunId,
    pub waiter: RunId,
}

/// The ties that runs of a schedule inherit from those before them that end while
/// they wait: `ahead` are the ties of the `ended` to those they wait for, `behind` the
/// ties of other runs of the same schedule to them.
pub fn inherited(ended: &BTreeSet<RunId>, ahead: &[Tie], behind: &[Tie]) -> BTreeSet<Tie> {
    let mut before: BTreeMap<RunId, Vec<RunId>> = BTreeMap::new();
    for tie in ahead {
        before.entry(tie.waiter).or_default().push(tie.needed);
    }
    let mut inherited = BTreeSet::new();
    for heir in behind.iter().filter(|tie| !ended.contains(&tie.waiter)) {
        // Several of a chain may end together.
        let (mut seen, mut left) = (BTreeSet::from([heir.needed]), vec![heir.needed]);
        while let Some(gone) = left.pop() {
            for needed in before.get(&gone).into_iter().flatten().filter(|needed| seen.insert(**needed)) {
                if ended.contains(needed) {
                    left.push(*needed);
                } else {
                    inherited.insert(Tie { needed: *needed, waiter: heir.waiter });
                }
            }
        }
    }
    inherited
}

/// Leaves out the oldest where one would wait for more runs than can be counted: a run that
/// follows all live ones of its schedule may find any number of them.
pub fn keep_newest<T: Ord>(needed: &mut BTreeSet<T>) {
    while needed.len() > WAITS_MAX as usize {
        needed.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(n: u64) -> RunId {
        RunId(Uuid::from_u64_pair(0, n))
    }

    fn ties(pairs: &[(u64, u64)]) -> Vec<Tie> {
        pairs.iter().map(|(needed, waiter)| Tie { needed: id(*needed), waiter: id(*waiter) }).collect()
    }

    /// A chain of 1 to 6, from which some end.
    #[test]
    fn whoever_is_behind_takes_the_place_of_one_that_ends() {
        let chain = ties(&[(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]);
        for (gone, expected) in [
            (&[3][..], &[(2, 4)][..]),
            (&[3, 4], &[(2, 5)]),
            (&[2, 4], &[(1, 3), (3, 5)]),
            (&[2, 3, 4, 5], &[(1, 6)]),
            (&[6], &[]),
            (&[], &[]),
        ] {
            let ended: BTreeSet<RunId> = gone.iter().map(|n| id(*n)).collect();
            let ahead: Vec<Tie> = chain.iter().copied().filter(|tie| ended.contains(&tie.waiter)).collect();
            let behind: Vec<Tie> = chain.iter().copied().filter(|tie| ended.contains(&tie.needed)).collect();
            let expected: BTreeSet<Tie> = ties(expected).into_iter().collect();
            assert_eq!(inherited(&ended, &ahead, &behind), expected, "{gone:?}");
        }
    }

    /// One whose own needs are over leaves nothing to wait for.
    #[test]
    fn the_first_of_a_chain_leaves_nothing() {
        let ended = BTreeSet::from([id(1)]);
        assert_eq!(inherited(&ended, &[], &ties(&[(1, 2)])), BTreeSet::new());
    }
}
