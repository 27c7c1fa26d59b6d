//! Hourly roll-ups: what a job's page says about its runs, kept as they settle.
//!
//! Each settled batch adds one delta; deltas are folded into one row per job
//! and hour later. A page reads those rows and never counts runs.

use crate::{duration::Span, run::Verdict};
use jiff::Timestamp;

/// Durations are counted in powers of two of a millisecond: bucket `n` holds
/// those under `2^n` ms, the last one all that are longer (over nine hours).
pub const BUCKETS: usize = 26;

/// What happened to one job's runs in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// By verdict, in the order of [`Verdict::ALL`].
    pub ended: [u64; Verdict::ALL.len()],
    pub attempts: u64,
    pub losses: u64,
    /// Milliseconds executing, of runs that started.
    pub duration_ms: u64,
    pub duration_max_ms: u64,
    pub durations: Vec<u64>,
    /// Milliseconds from ready to started.
    pub delay_ms: u64,
    pub delay_max_ms: u64,
    pub delays: Vec<u64>,
}

/// One ended run, as far as roll-ups care.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub verdict: Verdict,
    pub ready_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub attempts: u16,
    pub losses: u16,
}

/// The start of the hour that `at` lies in.
pub fn hour_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(3_600)
}

impl Rollup {
    /// Statistics can be asked for over windows of so long, and roll-ups outlive the
    /// runs they were counted from by as much.
    pub const KEPT_BEYOND: Span = Span::secs(31 * 86_400);

    pub fn add(&mut self, run: &Ended) {
        self.ended[run.verdict as usize] += 1;
        self.attempts += u64::from(run.attempts);
        self.losses += u64::from(run.losses);
        if let Some(started_at) = run.started_at {
            let took = millis_between(started_at, run.ended_at);
            self.duration_ms += took;
            self.duration_max_ms = self.duration_max_ms.max(took);
            count(&mut self.durations, took);
            let waited = millis_between(run.ready_at, started_at);
            self.delay_ms += waited;
            self.delay_max_ms = self.delay_max_ms.max(waited);
            count(&mut self.delays, waited);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.ended.iter_mut().zip(other.ended) {
            *mine += theirs;
        }
        self.attempts += other.attempts;
        self.losses += other.losses;
        self.duration_ms += other.duration_ms;
        self.duration_max_ms = self.duration_max_ms.max(other.duration_max_ms);
        merge_buckets(&mut self.durations, &other.durations);
        self.delay_ms += other.delay_ms;
        self.delay_max_ms = self.delay_max_ms.max(other.delay_max_ms);
        merge_buckets(&mut self.delays, &other.delays);
    }

    pub fn runs(&self) -> u64 {
        self.ended.iter().sum()
    }

    pub fn of(&self, verdict: Verdict) -> u64 {
        self.ended[verdict as usize]
    }

    /// An upper bound, in milliseconds, of the duration that the fraction `q`
    /// of the runs stayed under.
    pub fn duration_quantile(&self, q: f64) -> Option<u64> {
        quantile(&self.durations, q)
    }

    pub fn delay_quantile(&self, q: f64) -> Option<u64> {
        quantile(&self.delays, q)
    }
}

fn millis_between(from: Timestamp, to: Timestamp) -> u64 {
    to.as_millisecond().saturating_sub(from.as_millisecond()).max(0) as u64
}

fn bucket(millis: u64) -> usize {
    ((u64::BITS - millis.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// Buckets are kept only up to the last one in use: most jobs need few.
fn count(buckets: &mut Vec<u64>, millis: u64) {
    let n = bucket(millis);
    if buckets.len() <= n {
        buckets.resize(n + 1, 0);
    }
    buckets[n] += 1;
}

fn merge_buckets(mine: &mut Vec<u64>, theirs: &[u64]) {
    if mine.len() < theirs.len() {
        mine.resize(theirs.len(), 0);
    }
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine += theirs;
    }
}

fn quantile(buckets: &[u64], q: f64) -> Option<u64> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = ((total as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (n, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= rank {
            return Some(1 << n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(verdict: Verdict, waited_ms: i64, took_ms: i64) -> Ended {
        let at = |ms| Timestamp::from_millisecond(1_760_000_000_000 + ms).unwrap();
        Ended {
            verdict,
            ready_at: at(0),
            started_at: Some(at(waited_ms)),
            ended_at: at(waited_ms + took_ms),
            attempts: 1,
            losses: 0,
        }
    }

    /// Folding must give what counting would have given.
    #[test]
    fn merged_deltas_equal_one_count() {
        let runs: Vec<Ended> = (0..100).map(|n| ended(Verdict::ALL[n % 7], n as i64 * 3, (n * n) as i64)).collect();
        let mut whole = Rollup::default();
        let mut folded = Rollup::default();
        for chunk in runs.chunks(9) {
            let mut delta = Rollup::default();
            for run in chunk {
                whole.add(run);
                delta.add(run);
            }
            folded.merge(&delta);
        }
        assert_eq!(folded, whole);
        assert_eq!(whole.runs(), 100);
    }

    #[test]
    fn quantiles_bound_the_durations() {
        let mut rollup = Rollup::default();
        for took in 1..=1_000 {
            rollup.add(&ended(Verdict::Succeeded, 0, took));
        }
        assert_eq!(rollup.duration_quantile(0.5), Some(512));
        assert_eq!(rollup.duration_quantile(1.0), Some(1_024));
        assert_eq!(Rollup::default().duration_quantile(0.5), None);
    }
}
