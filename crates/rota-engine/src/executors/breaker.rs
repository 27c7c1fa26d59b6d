//! Breaker: stops asking a host that keeps failing, and asks again in time.
//!
//! A host opens after so many failures in a row, each soon after the last.
//! While it is open, runs are deferred: they cost no attempt and say why. After
//! a while one run is let through as a probe; its success closes the host, its
//! failure opens it for twice as long.
//!
//! Hosts are kept per tenant, so that nobody can shut a host for others by
//! failing at it. Only hosts that fail are kept, and at most so many of them;
//! one beyond that is simply not guarded.
//!
//! Pure: time is an argument, and nothing here waits or counts by itself.

use std::collections::HashMap;

use jiff::Timestamp;
use rota_core::{duration::Span, ids::TenantId};

/// When a host opens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Failures in a row that open a host.
    pub failures: u32,
    /// A failure this long after the last one is the first again.
    pub within: Span,
    /// How long a host stays open at first; doubled by each failed probe.
    pub open_for: Span,
    pub open_for_max: Span,
    /// Hosts that are watched.
    pub hosts_max: usize,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self {
            failures: 10,
            within: Span::secs(60),
            open_for: Span::secs(10),
            open_for_max: Span::secs(300),
            hosts_max: 10_000,
        }
    }
}

/// A host as one tenant sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostKey {
    pub tenant: TenantId,
    /// The host and port.
    pub host: String,
}

/// Whether a host may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Ask,
    /// As the one that finds out whether it is back. It must be told how that
    /// went, or another is sent after a while.
    Probe,
    /// Not before this instant.
    Defer {
        until: Timestamp,
    },
}

/// What a call says about its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answered, if only to refuse.
    Up,
    Down,
    /// The call was given up before it could tell.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Asked as ever; so many failures in a row.
    Closed {
        failures: u32,
    },
    Open {
        until: Timestamp,
        open_for: Span,
    },
    /// One is asking; another may if it has not answered by `until`.
    Probing {
        until: Timestamp,
        open_for: Span,
    },
}

impl State {
    /// Until when it must not be asked. One that is further off than it ever was put
    /// off to was written by a clock that has been set back since.
    fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let (until, open_for) = match *self {
            Self::Closed { .. } => return None,
            Self::Open { until, open_for } | Self::Probing { until, open_for } => (until, open_for),
        };
        (now < until && until <= open_for.after(now)).then_some(until)
    }
}

struct Host {
    state: State,
    failed_at: Timestamp,
}

/// The hosts that have failed lately.
pub struct Breaker {
    options: BreakerOptions,
    hosts: HashMap<HostKey, Host>,
}

impl Breaker {
    pub fn new(options: BreakerOptions) -> Self {
        Self { options, hosts: HashMap::new() }
    }

    /// Whether `host` may be asked now.
    pub fn admit(&mut self, host: &HostKey, now: Timestamp) -> Admission {
        let Some(known) = self.hosts.get_mut(host) else { return Admission::Ask };
        if let Some(until) = known.state.open_until(now) {
            return Admission::Defer { until };
        }
        match known.state {
            State::Closed { .. } => Admission::Ask,
            State::Open { open_for, .. } | State::Probing { open_for, .. } => {
                // A probe that never reports costs one more waiting time, no more.
                known.state = State::Probing { until: open_for.after(now), open_for };
                Admission::Probe
            }
        }
    }

    /// Takes note of how a call went.
    pub fn record(&mut self, host: &HostKey, health: Health, now: Timestamp) {
        match health {
            Health::Up => {
                self.hosts.remove(host);
            }
            Health::Down => self.failed(host, now),
            Health::Unknown => self.given_up(host, now),
        }
    }

    fn failed(&mut self, host: &HostKey, now: Timestamp) {
        let options = &self.options;
        let Some(known) = self.hosts.get_mut(host) else { return self.first_failure(host, now) };
        known.state = match known.state {
            State::Closed { .. } if options.within.after(known.failed_at) < now => counted(1, options, now),
            State::Closed { failures } => counted(failures.saturating_add(1), options, now),
            // One that was asked before the host opened has nothing new to say.
            open @ State::Open { .. } => open,
            State::Probing { open_for, .. } => {
                let longer = Span::millis(open_for.as_millis().saturating_mul(2)).min(options.open_for_max);
                State::Open { until: longer.after(now), open_for: longer }
            }
        };
        known.failed_at = now;
    }

    fn first_failure(&mut self, host: &HostKey, now: Timestamp) {
        if self.hosts.len() >= self.options.hosts_max {
            let stale = self.options.within.before(now);
            self.hosts.retain(|_, host| host.failed_at >= stale || host.state.open_until(now).is_some());
        }
        if self.hosts.len() < self.options.hosts_max {
            self.hosts.insert(host.clone(), Host { state: counted(1, &self.options, now), failed_at: now });
        }
    }

    /// A probe that could not tell makes way for the next.
    fn given_up(&mut self, host: &HostKey, now: Timestamp) {
        if let Some(Host { state, .. }) = self.hosts.get_mut(host)
            && let State::Probing { open_for, .. } = *state
        {
            *state = State::Open { until: now, open_for };
        }
    }
}

fn counted(failures: u32, options: &BreakerOptions, now: Timestamp) -> State {
    if failures >= options.failures.max(1) {
        State::Open { until: options.open_for.after(now), open_for: options.open_for }
    } else {
        State::Closed { failures }
    }
}

/// `until`, a little later for each run, so that those deferred together do not
/// come back together. `draw` is any number of the run's own.
pub fn spread(until: Timestamp, now: Timestamp, draw: u64) -> Timestamp {
    let wait = until.duration_since(now).as_millis().clamp(1_000, 60_000) as u64;
    Span::millis(draw % wait + 1).after(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_763_000_000 + seconds).unwrap()
    }

    fn host(name: &str) -> HostKey {
        HostKey { tenant: TenantId(1), host: name.to_owned() }
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerOptions { failures: 3, open_for_max: Span::secs(35), ..BreakerOptions::default() })
    }

    fn opened() -> (Breaker, HostKey) {
        let (mut breaker, host) = (breaker(), host("a:80"));
        for _ in 0..3 {
            assert_eq!(breaker.admit(&host, at(0)), Admission::Ask);
            breaker.record(&host, Health::Down, at(0));
        }
        (breaker, host)
    }

    #[test]
    fn a_host_opens_after_so_many_failures_in_a_row() {
        let (mut breaker, host) = opened();
        assert_eq!(breaker.admit(&host, at(9)), Admission::Defer { until: at(10) });
    }

    #[test]
    fn a_success_in_between_starts_the_count_again() {
        let (mut breaker, host) = (breaker(), host("a:80"));
        for health in [Health::Down, Health::Down, Health::Up, Health::Down, Health::Down] {
            breaker.record(&host, health, at(0));
        }
        assert_eq!(breaker.admit(&host, at(0)), Admission::Ask);
    }

    /// A job that fails once an hour says nothing about now.
    #[test]
    fn failures_far_apart_do_not_add_up() {
        let (mut breaker, host) = (breaker(), host("a:80"));
        for hour in 0..10 {
            breaker.record(&host, Health::Down, at(hour * 3_600));
            assert_eq!(breaker.admit(&host, at(hour * 3_600)), Admission::Ask);
        }
    }

    #[test]
    fn one_probe_is_sent_at_a_time_and_its_success_closes() {
        let (mut breaker, host) = opened();
        assert_eq!(breaker.admit(&host, at(10)), Admission::Probe);
        assert_eq!(breaker.admit(&host, at(11)), Admission::Defer { until: at(20) });
        breaker.record(&host, Health::Up, at(12));
        assert_eq!(breaker.admit(&host, at(12)), Admission::Ask);
        assert!(breaker.hosts.is_empty(), "a host that is well is forgotten");
    }

    #[test]
    fn a_failed_probe_opens_for_twice_as_long_up_to_the_bound() {
        let (mut breaker, host) = opened();
        let mut now = 10;
        for waits in [20, 35, 35] {
            assert_eq!(breaker.admit(&host, at(now)), Admission::Probe);
            breaker.record(&host, Health::Down, at(now));
            assert_eq!(breaker.admit(&host, at(now)), Admission::Defer { until: at(now + waits) });
            now += waits;
        }
    }

    /// A cancelled probe must not shut a host for ever.
    #[test]
    fn a_probe_that_cannot_tell_makes_way_for_the_next() {
        let (mut breaker, host) = opened();
        assert_eq!(breaker.admit(&host, at(10)), Admission::Probe);
        breaker.record(&host, Health::Unknown, at(11));
        assert_eq!(breaker.admit(&host, at(11)), Admission::Probe);
        // This one is never heard of again.
        assert_eq!(breaker.admit(&host, at(20)), Admission::Defer { until: at(21) });
        assert_eq!(breaker.admit(&host, at(21)), Admission::Probe);
    }

    #[test]
    fn late_failures_of_an_open_host_do_not_keep_it_open() {
        let (mut breaker, host) = opened();
        breaker.record(&host, Health::Down, at(9));
        assert_eq!(breaker.admit(&host, at(10)), Admission::Probe);
    }

    #[test]
    fn hosts_and_tenants_are_apart() {
        let (mut breaker, open) = opened();
        assert_eq!(breaker.admit(&host("a:81"), at(1)), Admission::Ask);
        assert_eq!(breaker.admit(&HostKey { tenant: TenantId(2), ..open }, at(1)), Admission::Ask);
    }

    #[test]
    fn so_many_hosts_are_watched_and_no_more() {
        let mut breaker = Breaker::new(BreakerOptions { failures: 1, hosts_max: 2, ..BreakerOptions::default() });
        for name in ["a", "b", "c"] {
            breaker.record(&host(name), Health::Down, at(0));
        }
        assert_eq!(breaker.hosts.len(), 2);
        assert_eq!(breaker.admit(&host("c"), at(0)), Admission::Ask);

        let mut breaker = Breaker::new(BreakerOptions { hosts_max: 2, ..BreakerOptions::default() });
        for (name, seconds) in [("a", 0), ("b", 100), ("c", 101)] {
            breaker.record(&host(name), Health::Down, at(seconds));
        }
        assert_eq!(breaker.hosts.len(), 2, "what is long past makes room");
        assert!(breaker.hosts.contains_key(&host("c")));
    }

    #[test]
    fn those_deferred_together_come_back_apart_and_never_early() {
        let back: std::collections::BTreeSet<_> = (0..1_000).map(|draw| spread(at(10), at(0), draw * 7)).collect();
        assert!(back.len() > 900);
        assert!(back.iter().all(|until| *until > at(10) && *until <= at(20)));
    }
}
