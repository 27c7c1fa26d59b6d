//! Rate limits: a token bucket as one instant (GCRA).
//!
//! A bucket is the instant at which it will be full again. Taking `n` tokens
//! moves that instant ahead by `n` intervals; a token may be taken while the
//! instant is at most one burst ahead of now. One number per key, no timer that
//! refills, and the time at which a refused asker may come back is exact.
//!
//! Nodes take tokens in chunks and spend them in memory, so a busy key is not a
//! hot row; a chunk lost with its node costs rate, never correctness.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::duration::Span;

/// `runs` per `per`, with bursts of up to twice as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub runs: u32,
    pub per: Span,
}

/// The state of one key's bucket; `None` in the store is a full bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub full_at: Timestamp,
}

/// The answer to one who asks for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub tokens: u32,
    /// When the next token will be there; `now` if one still is.
    pub next_at: Timestamp,
}

impl Rate {
    fn interval(self) -> SignedDuration {
        let nanos = i128::from(self.per.as_millis()) * 1_000_000 / i128::from(self.runs.max(1));
        SignedDuration::from_nanos(nanos as i64)
    }

    fn burst(self) -> SignedDuration {
        self.per.signed() * 2
    }

    /// Takes up to `want` tokens from `bucket` at `now`.
    pub fn take(self, bucket: Option<Bucket>, want: u32, now: Timestamp) -> (Bucket, Taken) {
        let interval = self.interval();
        let start = bucket.map_or(now, |b| b.full_at.max(now));
        let room = self.burst() - now.duration_until(start);
        let most = if interval.is_zero() { i128::from(want) } else { room.as_nanos() / interval.as_nanos() };
        let tokens = most.clamp(0, i128::from(want)) as u32;
        let full_at = start.saturating_add(interval * tokens as i32).unwrap_or(Timestamp::MAX);
        let next_at = full_at
            .saturating_add(interval)
            .and_then(|t| t.saturating_sub(self.burst()))
            .unwrap_or(Timestamp::MAX)
            .max(now);
        (Bucket { full_at }, Taken { tokens, next_at })
    }

    /// Takes all of `want` tokens, also those that are not there yet: nobody
    /// else gets one before they have come back. `next_at` is when the first of
    /// them is there, which may lie behind `now`; [`Rate::after`] tells of the
    /// others.
    pub fn reserve(self, bucket: Option<Bucket>, want: u32, now: Timestamp) -> (Bucket, Taken) {
        let start = bucket.map_or(now, |b| b.full_at.max(now));
        let first = self.after(start, 1).saturating_sub(self.burst()).unwrap_or(Timestamp::MIN);
        (Bucket { full_at: self.after(start, want) }, Taken { tokens: want, next_at: first })
    }

    /// `at`, and so many tokens later.
    pub fn after(self, at: Timestamp, tokens: u32) -> Timestamp {
        let tokens = i32::try_from(tokens).unwrap_or(i32::MAX);
        let span = self.interval().checked_mul(tokens).unwrap_or(SignedDuration::MAX);
        at.saturating_add(span).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { runs: 100, per: Span::secs(60) };

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_760_000_000_000 + millis).unwrap()
    }

    #[test]
    fn a_full_bucket_gives_twice_the_rate_at_once_and_no_more() {
        let (bucket, taken) = RATE.take(None, 1_000, at(0));
        assert_eq!(taken.tokens, 200);
        assert_eq!(taken.next_at, at(600));
        let (_, again) = RATE.take(Some(bucket), 1_000, at(0));
        assert_eq!(again, Taken { tokens: 0, next_at: at(600) });
    }

    #[test]
    fn tokens_come_back_at_the_rate() {
        let (mut bucket, _) = RATE.take(None, 200, at(0));
        let mut total = 0;
        for minute in 1..=10 {
            let (next, taken) = RATE.take(Some(bucket), 1_000, at(minute * 60_000));
            bucket = next;
            total += taken.tokens;
        }
        assert_eq!(total, 1_000);
    }

    #[test]
    fn the_promised_instant_has_a_token() {
        let (bucket, taken) = RATE.take(None, 200, at(0));
        assert_eq!(RATE.take(Some(bucket), 1, taken.next_at).1.tokens, 1);
        let before = taken.next_at.saturating_sub(SignedDuration::from_millis(1)).unwrap();
        assert_eq!(RATE.take(Some(bucket), 1, before).1.tokens, 0);
    }

    /// What is taken ahead is spread at the rate, and counts for everybody.
    #[test]
    fn reserved_tokens_come_at_the_rate_and_none_is_given_twice() {
        let (bucket, taken) = RATE.reserve(None, 250, at(0));
        assert_eq!(taken.tokens, 250);
        let times: Vec<Timestamp> = (0..250).map(|n| RATE.after(taken.next_at, n).max(at(0))).collect();
        assert_eq!(times.iter().filter(|time| **time <= at(0)).count(), 200, "the burst is there at once");
        assert_eq!((times[200], times[249]), (at(600), at(30_000)));
        assert_eq!(RATE.take(Some(bucket), 1, at(30_000)).1, Taken { tokens: 0, next_at: at(30_600) });
        assert_eq!(RATE.take(Some(bucket), 1, at(30_600)).1.tokens, 1);
    }

    /// A clock that steps back must not hand out tokens again.
    #[test]
    fn stepping_back_gives_no_tokens() {
        let (bucket, _) = RATE.take(None, 200, at(0));
        assert_eq!(RATE.take(Some(bucket), 10, at(-60_000)).1.tokens, 0);
    }
}
