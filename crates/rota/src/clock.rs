//! The system's clock: the one place in this crate that reads the time.

use jiff::Timestamp;
use rota_core::duration::Span;

/// What the machine's clock says.
#[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Waits for so long.
pub async fn sleep(span: Span) {
    tokio::time::sleep(std::time::Duration::from_millis(span.as_millis())).await;
}
