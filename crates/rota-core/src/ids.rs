//! Ids, each its own type, so that a run's id is never passed for a job's.
//!
//! Runs, batches and nodes are named by whoever makes them (UUID v7, so that
//! they sort by age and a retried request names the same thing). Definitions
//! are numbered by the store, because a narrow number in every run is what
//! keeps the hot rows small.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::ports::Random;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty)),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// An isolated customer.
    TenantId(i32),
    /// A job, whatever its version.
    JobId(i64),
    /// A schedule of a job.
    ScheduleId(i64),
    /// A lane: a queue, a handler and required traits, with one mode for ever.
    LaneId(i32),
    /// One execution of a job.
    RunId(Uuid),
    /// One batched write; asking again under the same id changes nothing more.
    BatchId(Uuid),
    /// A process in the cluster, from its start to its end.
    NodeId(Uuid),
    /// A worker, built in or remote, from its start to its end.
    WorkerId(Uuid),
    /// A token for the API; not the token itself.
    TokenId(Uuid),
    /// A person who logs in with a password.
    UserId(Uuid),
    /// One line of the audit log.
    AuditId(Uuid),
}

macro_rules! made_by_nodes {
    ($($name:ident),*) => {$(
        impl $name {
            /// A new one, made at `now`.
            pub fn new(random: &dyn Random, now: Timestamp) -> Self {
                Self(random.uuid(now))
            }
        }
    )*};
}

made_by_nodes!(RunId, BatchId, NodeId, WorkerId, TokenId, UserId, AuditId);

impl ScheduleId {
    /// What `H` in its expression is spread by. The id, not the name: renaming
    /// a job must not move its runs.
    pub fn seed(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

/// The number that a reference to an object says, where it may also be a name; none where
/// it is a name.
///
/// A number has one spelling, that of the store: `+1`, ` 1` and `01` are names.
pub fn number<N: FromStr>(reference: &str) -> Option<N> {
    let plain = reference == "0" || !reference.starts_with(['0', '+', '-']);
    reference.parse().ok().filter(|_| plain)
}

/// Whether a name could be taken for a number. What is referred to by number or name is
/// never named so: it would stand behind the object that has the number.
pub fn reads_as_number(name: &str) -> bool {
    let digits = name.strip_prefix(['+', '-']).unwrap_or(name);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// How many partitions share the work. Never changes: it is in stored rows.
pub const PARTITIONS: usize = 256;

/// One of the 256 shares of the schedules and of the owned runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Partition(pub u8);

impl Partition {
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// The partition a schedule lives in, the same on every node and release.
    pub fn of_schedule(id: ScheduleId) -> Self {
        Self((xxh3_64(&id.0.to_le_bytes()) & 0xff) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored rows depend on it: a changed hash would orphan every schedule.
    #[test]
    fn partition_of_a_schedule_never_changes() {
        let parts: Vec<u8> = (1..=4).map(|n| Partition::of_schedule(ScheduleId(n)).0).collect();
        assert_eq!(parts, FROZEN);
    }

    /// Whoever writes a name must never hit the object whose number it looks like.
    #[test]
    fn a_reference_is_a_number_or_a_name_and_never_both() {
        for (text, id) in [
            ("1", Some(1)),
            ("0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("01", None),
            ("+1", None),
            ("-1", None),
            (" 1", None),
            ("1 ", None),
            ("9223372036854775808", None),
            ("job-1", None),
            ("1a", None),
            ("", None),
        ] {
            assert_eq!(number::<i64>(text), id, "{text:?}");
            assert!(id.is_none() || reads_as_number(text), "{text:?}");
        }
        for name in ["01", "+1", "-1", "9223372036854775808"] {
            assert!(reads_as_number(name), "{name}");
        }
        for name in ["", "+", "1a", "1.0", "job-1", "1-1"] {
            assert!(!reads_as_number(name), "{name:?}");
        }
    }

    const FROZEN: [u8; 4] = [46, 67, 125, 120];
}
