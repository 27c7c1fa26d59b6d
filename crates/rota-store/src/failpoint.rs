//! Failpoints: where a test makes the process die, as `kill -9` would, or stand
//! still, as a machine that is paused would.
//!
//! A death matters only by what it leaves behind, and all that a process leaves
//! is what it committed. So the points lie around the commit of every write, and
//! not here and there in the code: with all of a write's statements done and none
//! of it to stay ([`Moment::Written`]), and with all of it to stay and nobody told
//! ([`Moment::Committed`]). Between two writes of a stage there is nothing else
//! that could be found half done.
//!
//! [`WRITES`] is the list, the same for both stores. A write that is not in it
//! panics where failpoints are built in, so that a new one cannot be forgotten.
//! They are built in by the feature `failpoints`, which only tests turn on; else
//! everything here is empty.
//!
//! A point is armed by [`VARIABLE`]: `settle runs/committed:3` ends the process
//! the third time that it gets there, and `settle runs/committed:3:still` stops
//! it until somebody lets it go on.

/// The environment's word for the point at which to die or to stand still.
pub const VARIABLE: &str = "ROTA_FAILPOINT";

/// Where in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its statements are done and its commit was not asked for: it never was.
    Written,
    /// Its commit is done and nobody was told.
    Committed,
}

impl Moment {
    pub const ALL: [Self; 2] = [Self::Written, Self::Committed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Committed => "committed",
        }
    }
}

/// Who makes a write, so that a test knows how to get it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A node at work, by itself.
    Work,
    /// A node that puts right what cannot be.
    Repair,
    /// A node that leaves in order.
    Leaving,
    /// Whoever calls: a program, the API, the command line.
    Caller,
    /// Jobs that start after others, remote workers, and those who are let in:
    /// no sweep gets there, and their own tests break their writes off.
    Elsewhere,
}

/// A write by its name, and who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub write: &'static str,
    pub origin: Origin,
}

impl Point {
    const fn of(origin: Origin, write: &'static str) -> Self {
        Self { write, origin }
    }

    /// How it is armed.
    pub fn armed(self, moment: Moment, passage: u32) -> String {
        format!("{}/{}:{passage}", self.write, moment.as_str())
    }

    /// How it is armed to stop the process instead of ending it.
    pub fn still(self, moment: Moment, passage: u32) -> String {
        self.armed(moment, passage) + STILL
    }
}

/// What is said after a point at which to stand still.
const STILL: &str = ":still";

/// Every write of a store.
pub const WRITES: &[Point] = &[
    Point::of(Origin::Work, "save tenants"),
    Point::of(Origin::Work, "save jobs"),
    Point::of(Origin::Work, "reserve ids of schedules"),
    Point::of(Origin::Work, "find lanes"),
    Point::of(Origin::Work, "record a heartbeat"),
    Point::of(Origin::Work, "take partitions"),
    Point::of(Origin::Work, "fire schedules"),
    Point::of(Origin::Work, "promote delayed runs"),
    Point::of(Origin::Work, "take tokens"),
    Point::of(Origin::Work, "claim runs"),
    Point::of(Origin::Work, "lease owned runs"),
    Point::of(Origin::Work, "mark running runs"),
    Point::of(Origin::Work, "extend leases"),
    Point::of(Origin::Work, "append logs"),
    Point::of(Origin::Work, "settle runs"),
    Point::of(Origin::Work, "clear notices"),
    Point::of(Origin::Work, "reap runs"),
    Point::of(Origin::Work, "sweep runs"),
    Point::of(Origin::Work, "tend the store"),
    Point::of(Origin::Repair, "recount slots"),
    Point::of(Origin::Repair, "mend joins"),
    Point::of(Origin::Leaving, "lease running runs"),
    Point::of(Origin::Leaving, "give partitions"),
    Point::of(Origin::Leaving, "leave"),
    Point::of(Origin::Caller, "enqueue runs"),
    Point::of(Origin::Caller, "cancel runs"),
    Point::of(Origin::Caller, "store progress"),
    Point::of(Origin::Caller, "set pauses"),
    Point::of(Origin::Caller, "wake runs"),
    Point::of(Origin::Caller, "release a worker's runs"),
    Point::of(Origin::Caller, "save schedules"),
    Point::of(Origin::Caller, "wake schedules"),
    Point::of(Origin::Caller, "save calendars"),
    Point::of(Origin::Caller, "delete jobs"),
    Point::of(Origin::Elsewhere, "forget deletions"),
    Point::of(Origin::Elsewhere, "start jobs after others"),
    Point::of(Origin::Elsewhere, "record workers"),
    Point::of(Origin::Elsewhere, "drain a worker"),
    Point::of(Origin::Elsewhere, "forget workers"),
    Point::of(Origin::Elsewhere, "keep tokens"),
    Point::of(Origin::Elsewhere, "revoke tokens"),
    Point::of(Origin::Elsewhere, "write down uses of tokens"),
    Point::of(Origin::Elsewhere, "save users"),
    Point::of(Origin::Elsewhere, "delete users"),
    Point::of(Origin::Elsewhere, "keep sessions"),
    Point::of(Origin::Elsewhere, "end sessions"),
    Point::of(Origin::Elsewhere, "add to the audit log"),
    Point::of(Origin::Elsewhere, "put dead letters away"),
    Point::of(Origin::Elsewhere, "set rows aside"),
    Point::of(Origin::Elsewhere, "discard a row"),
    Point::of(Origin::Elsewhere, "carry out a statement"),
];

#[cfg(feature = "failpoints")]
mod built_in {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    };

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Moment, STILL, VARIABLE, WRITES};

    struct Armed {
        point: String,
        left: AtomicU32,
        still: bool,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let asked = std::env::var(VARIABLE).ok()?;
        let (asked, still) = asked.strip_suffix(STILL).map_or((asked.as_str(), false), |asked| (asked, true));
        let (point, passage) = asked.rsplit_once(':')?;
        Some(Armed { point: point.to_owned(), left: AtomicU32::new(passage.parse().ok()?), still })
    });

    tokio::task_local! {
        static NAME: &'static str;
    }

    /// Gets to a point. If it is the armed one, for the last time, or for a long while.
    pub fn pass(write: &str, moment: Moment) {
        assert!(WRITES.iter().any(|point| point.write == write), "`{write}` writes, and is in no list of failpoints");
        let Some(armed) = &*ARMED else { return };
        let here = armed.point.strip_suffix(moment.as_str()).and_then(|rest| rest.strip_suffix('/')) == Some(write);
        if here && armed.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            if armed.still {
                tracing::error!(point = armed.point, "standing still at a failpoint");
                // If that does not stop it, its test waits in vain and says so.
                let _stopped = kill_process(getpid(), Signal::STOP);
                return;
            }
            tracing::error!(point = armed.point, "dying at a failpoint");
            std::process::abort();
        }
    }

    /// Gives what `work` writes a name.
    pub async fn named<F: Future>(write: &'static str, work: F) -> F::Output {
        NAME.scope(write, work).await
    }

    /// Gets to a point of the write that this task was named for.
    pub fn pass_named(moment: Moment) {
        pass(NAME.try_with(|name| *name).unwrap_or("a write without a name"), moment);
    }
}

#[cfg(not(feature = "failpoints"))]
mod built_in {
    use super::Moment;

    pub fn pass(_: &str, _: Moment) {}

    pub async fn named<F: Future>(_: &'static str, work: F) -> F::Output {
        work.await
    }

    pub fn pass_named(_: Moment) {}
}

pub(crate) use self::built_in::{named, pass, pass_named};
