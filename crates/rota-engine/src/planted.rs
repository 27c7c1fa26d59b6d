//! Bugs for the simulator to find, each named where it would be made.
//!
//! They are built in by the feature `planted`, which only this crate's own tests turn
//! on; otherwise [`is`] is always false, and nothing of them is left in the product. A bug
//! is planted for one thread, so that tests that run beside each other do not meet it.

/// One thing that the engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A run in flight is offered again.
    InFlightOffered,
    /// A lease that was settled is forgotten at once.
    LandedForgotten,
    /// Attempts go on when their partition has gone to another node.
    FlightsOutliveTheirPartition,
    /// A suspect is started without a written lease.
    SuspectNotLeased,
    /// What was taken in hand is begun although its partition has gone.
    BegunUnchecked,
    /// An ended attempt is dropped when the store refuses it.
    EndDropped,
    /// A settlement with an unknown outcome is asked for under another batch id.
    SettledUnderAnotherName,
    /// A report is answered for before the store has.
    AnsweredTooEarly,
    /// What a worker does not list is handed to it again, although its list is older.
    HandedOverTwice,
    /// A worker is not told that its run is to stop.
    CancelNotPassedOn,
    /// The report of a worker that hung up is taken to be on its way.
    ReportLeftBehind,
}

/// Plants a bug in what this thread does from now on, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted")]
impl Bug {
    pub const ALL: [Self; 11] = [
        Self::InFlightOffered,
        Self::LandedForgotten,
        Self::FlightsOutliveTheirPartition,
        Self::SuspectNotLeased,
        Self::BegunUnchecked,
        Self::EndDropped,
        Self::SettledUnderAnotherName,
        Self::AnsweredTooEarly,
        Self::HandedOverTwice,
        Self::CancelNotPassedOn,
        Self::ReportLeftBehind,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether this is done wrong here.
#[cfg(feature = "planted")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Nothing is.
#[cfg(not(feature = "planted"))]
#[inline]
pub(crate) const fn is(_bug: Bug) -> bool {
    false
}
