//! Bytes: how much is kept of what an attempt returns and reports.
//!
//! All of it is stored, listed and shown again, so each kind has a maximum size, and the
//! same one whoever executes the attempt. An output that is too large is a failure: half of
//! a JSON value is not a value. Text is cut and says so.
//!
//! Payloads have their maximum in [`quota`](crate::quota), documents in
//! [`job`](crate::job), because people send those.

use std::{borrow::Cow, mem};

use crate::{
    job::failure::{ErrorKind, Failure, RetryAdvice},
    ports::Progress,
    run::Outcome,
};

/// Of the output of an attempt, as JSON.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Of the message of a failure, and of the reason of a deferral.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Of one line of a log.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;
/// Of the phase and of the message of a progress report, each.
pub const PROGRESS_BYTES_MAX: usize = 1 << 10;

/// Ends a text that was cut.
pub const CUT_MARK: &str = " [cut]";

/// `text` as a store can hold it: without NUL, and with at most `most` bytes, its mark
/// included.
pub fn kept(text: &str, most: usize) -> Cow<'_, str> {
    let text = if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) };
    if text.len() <= most {
        return text;
    }
    let end = text.floor_char_boundary(most.saturating_sub(CUT_MARK.len()));
    Cow::Owned(format!("{}{CUT_MARK}", &text[..end]))
}

/// The longest beginning of `text` that takes at most `room` bytes between the quotes of a
/// JSON string.
pub fn fit_json(text: &str, room: usize) -> &str {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += match character {
            '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
            control if control < ' ' => "\\u0000".len(),
            other => other.len_utf8(),
        };
        if used > room {
            return &text[..at];
        }
    }
    text
}

impl Outcome {
    /// This outcome within the maximum sizes.
    ///
    /// It is a failure when its output is too large: refused, it would be reported again
    /// for ever, and the same attempt would return the same output again.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Succeeded { output: Some(output) } if output.len() > OUTPUT_BYTES_MAX => {
                let message = format!(
                    "its output has {} bytes; the maximum is {OUTPUT_BYTES_MAX}; return less, for example a \
                     reference to the data",
                    output.len()
                );
                Self::Failed(Failure::new(ErrorKind::OutputTooLarge, message).advising(RetryAdvice::Never))
            }
            Self::Failed(mut failure) => {
                keep_in(&mut failure.message, MESSAGE_BYTES_MAX);
                Self::Failed(failure)
            }
            Self::Deferred { until, mut reason } => {
                keep_in(&mut reason, MESSAGE_BYTES_MAX);
                Self::Deferred { until, reason }
            }
            within @ (Self::Succeeded { .. } | Self::Cancelled | Self::Parked { .. }) => within,
        }
    }
}

impl Progress {
    /// This report within the maximum sizes.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.phase, &mut self.message].into_iter().flatten() {
            keep_in(text, PROGRESS_BYTES_MAX);
        }
        self.percent = self.percent.map(|percent| percent.min(100));
        self
    }
}

fn keep_in(text: &mut String, most: usize) {
    if text.len() > most || text.contains('\0') {
        *text = kept(&mem::take(text), most).into_owned();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_kept_up_to_its_bound_and_cut_between_characters() {
        assert_eq!(kept("äöü", 6), "äöü");
        assert_eq!(kept(&"ä".repeat(6), 11), "ää [cut]");
        assert_eq!(kept("a\0b", 10), "a\u{fffd}b");
        for most in 0..30 {
            let text = kept("a text with ümläuts and more", most);
            assert!(text.len() <= most.max(CUT_MARK.len()), "{most}: {text}");
        }
    }

    #[test]
    fn what_fits_into_a_json_string_is_counted_as_it_is_written() {
        let text = "plain \"quoted\" \\ ümläut \u{1}\u{1f}\u{8}\u{c}\n\r\t\u{7f} 漢字 😀";
        for room in 0..=json!(text).to_string().len() {
            let fit = fit_json(text, room);
            assert!(json!(fit).to_string().len() - 2 <= room, "{room}: {fit:?}");
            let next = text[fit.len()..].chars().next();
            let longer = next.map(|next| json!(format!("{fit}{next}")).to_string().len() - 2);
            assert!(longer.is_none_or(|longer| longer > room), "{room}: more would fit");
        }
    }

    #[test]
    fn an_outcome_is_kept_at_its_bound_and_not_beyond() {
        let output = |bytes: usize| Outcome::Succeeded { output: Some("x".repeat(bytes).into()) };
        assert_eq!(output(OUTPUT_BYTES_MAX).bounded(), output(OUTPUT_BYTES_MAX));
        let Outcome::Failed(failure) = output(OUTPUT_BYTES_MAX + 1).bounded() else { panic!("kept") };
        assert_eq!((failure.kind, failure.advice), (ErrorKind::OutputTooLarge, RetryAdvice::Never));
        let failed = |text: String| Outcome::Failed(Failure::new(ErrorKind::Handler, text));
        let most = "m".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(failed(most.clone()).bounded(), failed(most.clone()));
        let Outcome::Failed(cut) = failed(most + "m").bounded() else { panic!() };
        assert!(cut.message.len() == MESSAGE_BYTES_MAX && cut.message.ends_with(CUT_MARK));
        assert_eq!(failed("a\0b".to_owned()).bounded(), failed("a\u{fffd}b".to_owned()));
        let until = jiff::Timestamp::UNIX_EPOCH;
        let Outcome::Deferred { reason, .. } = (Outcome::Deferred { until, reason: "r".repeat(1 << 20) }).bounded()
        else {
            panic!()
        };
        assert_eq!(reason.len(), MESSAGE_BYTES_MAX);
        let progress = Progress { percent: Some(200), phase: Some("p".repeat(9_999)), message: None }.bounded();
        assert_eq!((progress.percent, progress.phase.map(|phase| phase.len())), (Some(100), Some(PROGRESS_BYTES_MAX)));
    }
}
