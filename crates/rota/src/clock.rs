//! The system's clock: the one place in this crate that reads the time.

use jiff::Timestamp;

/// What the machine's clock says.
#[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
