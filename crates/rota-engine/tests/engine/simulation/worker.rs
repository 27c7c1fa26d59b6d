//! One remote worker, as those that ship are: what it has in hand, what it has yet to
//! say, and what it does about an answer.
//!
//! It has at most two exchanges under way, says everything until it is answered for,
//! executes a lease once however often it is handed over, and leaves in order when it is
//! asked to. Its attempts go as chance has it, the same for the same attempt.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, WorkerId},
    job::failure::{ErrorKind, Failure, RetryAdvice},
    ports::{Progress, Stream},
    run::{Lease, Outcome, Report},
};
use rota_engine::remote::{Exchange, ExchangeAnswer, Hello, Line, LogPiece, ReportAck, Work};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ledger::{Ledger, Said};

/// The longest wait after an exchange that failed.
const BACKOFF_MAX_MS: u64 = 2_000;
/// An exchange that is not answered for so long has failed.
const ANSWER_WAIT: Span = Span::secs(40);
/// So long the last reports are made; then the worker goes.
const LAST_WORDS: Span = Span::secs(5);

type Key = (RunId, i32);

fn key(lease: Lease) -> Key {
    (lease.run, lease.fence.0)
}

/// An attempt under way.
struct Running {
    lease: Lease,
    number: u16,
    alone: bool,
    cancelable: bool,
    ends_at: Timestamp,
    stops_at: Option<Timestamp>,
    course: Course,
    /// It was asked to stop, and will be given up then.
    grace_until: Option<Timestamp>,
    /// A log line and a word of progress come then.
    speaks_at: Option<Timestamp>,
}

/// How an attempt goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    Done,
    Failed,
    Again,
    Never,
    HandedBack,
    Deferred,
    /// Ends early when it is asked to stop, as a failure.
    Polite,
    /// Does not care what it is asked.
    Stubborn,
}

/// A report that waits to be answered for.
struct Finished {
    lease: Lease,
    report: Report,
    since: Timestamp,
}

/// An exchange under way.
struct Flight {
    ticket: u64,
    since: Timestamp,
    logs: usize,
    progress: Vec<(Lease, Progress)>,
    reports: Vec<(Lease, Report)>,
    says_something: bool,
    leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Works,
    /// Takes no more work and finishes what it has, until then.
    Drains {
        until: Timestamp,
    },
    /// Says what is left to say, until then.
    Ends {
        until: Timestamp,
    },
    Gone,
}

/// What a worker heard, for those who check it.
pub struct Heard {
    pub begun: Vec<Lease>,
    pub told: Vec<(Lease, Report, ReportAck)>,
}

/// See the module.
pub struct Worker {
    pub number: usize,
    hello: Hello,
    seed: u64,
    /// Leaves its attempts' deadlines to the node.
    careless: bool,
    running: BTreeMap<Key, Running>,
    over: BTreeSet<Key>,
    finished: Vec<Finished>,
    pieces: Vec<LogPiece>,
    progress: BTreeMap<Key, (Lease, Progress)>,
    flights: Vec<Flight>,
    not_before: Timestamp,
    failures: u32,
    life: Life,
    /// It dies of an attempt then.
    doom: Option<(Timestamp, RunId)>,
    pub stopped_until: Option<Timestamp>,
}

impl Worker {
    pub fn new(number: usize, hello: Hello, careless: bool, seed: u64) -> Self {
        Self {
            number,
            hello,
            seed,
            careless,
            running: BTreeMap::new(),
            over: BTreeSet::new(),
            finished: Vec::new(),
            pieces: Vec::new(),
            progress: BTreeMap::new(),
            flights: Vec::new(),
            not_before: Timestamp::MIN,
            failures: 0,
            life: Life::Works,
            doom: None,
            stopped_until: None,
        }
    }

    pub fn id(&self) -> WorkerId {
        self.hello.worker
    }

    pub fn is_gone(&self) -> bool {
        self.life == Life::Gone
    }

    /// Whether it has nothing in hand and nothing to say.
    pub fn is_idle(&self) -> bool {
        self.life == Life::Works && self.running.is_empty() && !self.has_something_to_say()
    }

    pub fn has_flight(&self, ticket: u64) -> bool {
        self.flights.iter().any(|flight| flight.ticket == ticket)
    }

    pub fn tickets(&self) -> Vec<u64> {
        self.flights.iter().map(|flight| flight.ticket).collect()
    }

    /// The run whose attempt takes longest.
    pub fn longest(&self) -> Option<RunId> {
        self.running.values().max_by_key(|running| running.ends_at).map(|running| running.lease.run)
    }

    /// The run it dies of, if its time has come.
    pub fn dies_of(&self, now: Timestamp) -> Option<RunId> {
        self.doom.filter(|(at, _)| *at <= now).map(|(_, run)| run)
    }

    /// A report that has waited for its answer since before then.
    pub fn unanswered_since(&self, before: Timestamp) -> Option<Lease> {
        self.finished.iter().find(|finished| finished.since < before).map(|finished| finished.lease)
    }

    /// It is asked to go: breaks off what is under way, takes no more work and finishes.
    pub fn drain(&mut self, now: Timestamp, limit: Span) {
        if self.life == Life::Works {
            self.flights.clear();
            self.life = Life::Drains { until: limit.after(now) };
        }
    }

    fn has_something_to_say(&self) -> bool {
        !(self.finished.is_empty() && self.pieces.is_empty() && self.progress.is_empty())
    }

    /// What has come to its end since it last had its turn.
    pub fn go_on(&mut self, ledger: &Ledger, now: Timestamp) {
        let late: Vec<u64> = self
            .flights
            .iter()
            .filter(|flight| ANSWER_WAIT.after(flight.since) <= now)
            .map(|flight| flight.ticket)
            .collect();
        for ticket in late {
            self.broke(ticket, now);
        }
        for running in self.running.values_mut().filter(|running| running.speaks_at.is_some_and(|at| at <= now)) {
            running.speaks_at = None;
            let line = Line { at: now, stream: Stream::Stdout, text: "half done".into() };
            self.pieces.push(LogPiece { lease: running.lease, seq: 0, lines: vec![line] });
            let progress = Progress { percent: Some(50), ..Progress::default() };
            self.progress.insert(key(running.lease), (running.lease, progress));
        }
        let ended: Vec<(Key, Report, Option<Said>)> = self
            .running
            .iter()
            .filter_map(|(key, running)| running.ended(now).map(|(report, said)| (*key, report, said)))
            .collect();
        for (key, report, said) in ended {
            let running = &self.running[&key];
            if let Some(said) = said {
                let word = (running.number, said);
                ledger.write(|pages| pages.said.entry(running.lease.run).or_default().push(word));
            }
            self.end(key, Some(report), now);
        }
    }

    fn end(&mut self, key: Key, report: Option<Report>, now: Timestamp) {
        let Some(running) = self.running.remove(&key) else { return };
        self.over.insert(key);
        self.progress.remove(&key);
        if let Some(report) = report {
            self.finished.push(Finished { lease: running.lease, report, since: now });
        }
    }

    /// The next exchange, if it is time for one.
    pub fn next(&mut self, ticket: u64, now: Timestamp) -> Option<Exchange> {
        if now < self.not_before {
            return None;
        }
        match self.life {
            Life::Works => {
                let saying = self.flights.iter().any(|flight| flight.says_something);
                let wants = !saying && (self.flights.is_empty() || self.has_something_to_say());
                (wants && self.flights.len() < 2).then(|| self.say(ticket, now))
            }
            Life::Drains { until } => {
                if self.running.is_empty() || until <= now {
                    let rest: Vec<Key> = self.running.keys().copied().collect();
                    for key in rest {
                        self.end(key, Some(Report::HandedBack), now);
                    }
                    self.life = Life::Ends { until: LAST_WORDS.after(now) };
                }
                self.say_at_once(ticket, now)
            }
            Life::Ends { until } => {
                if until <= now {
                    self.life = Life::Gone;
                    return None;
                }
                self.say_at_once(ticket, now)
            }
            Life::Gone => None,
        }
    }

    /// One exchange at a time; one that says nothing makes way for one that does.
    fn say_at_once(&mut self, ticket: u64, now: Timestamp) -> Option<Exchange> {
        if self.has_something_to_say() {
            self.flights.retain(|flight| flight.says_something);
        }
        self.flights.is_empty().then(|| self.say(ticket, now))
    }

    fn say(&mut self, ticket: u64, now: Timestamp) -> Exchange {
        let works = self.life == Life::Works;
        let says_something = self.has_something_to_say();
        let leaving = matches!(self.life, Life::Ends { .. }) && self.running.is_empty() && self.finished.is_empty();
        let alone = self.running.values().any(|running| running.alone);
        let free = if !works || alone { 0 } else { self.hello.slots.saturating_sub(self.running.len() as u32) };
        let wait = match self.life {
            Life::Works => Some(Span::secs(25)),
            Life::Drains { .. } | Life::Ends { .. } | Life::Gone => {
                (!says_something && !leaving).then_some(Span::secs(1))
            }
        };
        let finished: Vec<(Lease, Report)> = self.finished.iter().map(|one| (one.lease, one.report.clone())).collect();
        let progress: Vec<(Lease, Progress)> = self.progress.values().cloned().collect();
        self.flights.push(Flight {
            ticket,
            since: now,
            logs: self.pieces.len(),
            progress: progress.clone(),
            reports: finished.clone(),
            says_something,
            leaving,
        });
        Exchange {
            hello: Hello { draining: !works, ..self.hello.clone() },
            free,
            wait,
            leases: self.running.values().map(|running| running.lease).collect(),
            finished,
            progress,
            logs: self.pieces.clone(),
            leaving,
        }
    }

    /// An exchange was not answered.
    pub fn broke(&mut self, ticket: u64, now: Timestamp) {
        let Some(at) = self.flights.iter().position(|flight| flight.ticket == ticket) else { return };
        if self.flights.remove(at).leaving {
            self.life = Life::Gone;
        }
        self.failures += 1;
        let wait = (50 << (self.failures - 1).min(10)).min(BACKOFF_MAX_MS);
        self.not_before = Span::millis(wait).after(now);
    }

    /// An exchange was answered.
    pub fn hear(&mut self, ticket: u64, answer: ExchangeAnswer, now: Timestamp) -> Option<Heard> {
        let at = self.flights.iter().position(|flight| flight.ticket == ticket)?;
        let flight = self.flights.remove(at);
        self.failures = 0;
        let mut heard = Heard { begun: Vec::new(), told: Vec::new() };
        let mut attempts = answer.attempts;
        attempts.sort_by_key(|work| key(work.attempt.lease));
        for work in attempts {
            let lease = work.attempt.lease;
            if self.begin(&work, now) {
                heard.begun.push(lease);
            }
        }
        self.pieces.drain(..flight.logs);
        for (lease, word) in &flight.progress {
            if self.progress.get(&key(*lease)).is_some_and(|(_, last)| last == word) {
                self.progress.remove(&key(*lease));
            }
        }
        heard.told = flight
            .reports
            .into_iter()
            .zip(answer.reports)
            .map(|((lease, report), told)| (lease, report, told))
            .collect();
        let settled: BTreeSet<Key> = heard
            .told
            .iter()
            .filter(|(_, _, told)| *told != ReportAck::Pending)
            .map(|(lease, ..)| key(*lease))
            .collect();
        self.finished.retain(|finished| !settled.contains(&key(finished.lease)));
        for stop in answer.stops {
            self.stop(stop.lease, stop.grace_until, now);
        }
        for lost in answer.lost {
            self.end(key(lost), None, now);
        }
        if answer.drain {
            self.drain(now, Span::secs(3));
        }
        if answer.elsewhere {
            self.not_before = Span::millis(500).after(now);
        }
        if flight.leaving {
            self.life = Life::Gone;
        }
        Some(heard)
    }

    /// Takes an attempt in hand, unless it has it, or had it.
    fn begin(&mut self, work: &Work, now: Timestamp) -> bool {
        let lease = work.attempt.lease;
        if self.running.contains_key(&key(lease)) || self.over.contains(&key(lease)) {
            return false;
        }
        let chance = self.chance(lease, work.attempt.number);
        if work.attempt.step.handler().is_some_and(|handler| handler == "venom") {
            self.doom = Some((Span::millis((chance >> 40) % 900).after(now), lease.run));
        }
        let (course, millis) = if self.doom.is_some() { (Course::Stubborn, 60_000) } else { course(chance) };
        let late = self.careless && course == Course::Stubborn;
        let running = Running {
            lease,
            number: work.attempt.number,
            alone: work.alone,
            cancelable: work.cancelable,
            ends_at: Span::millis(millis).after(now),
            stops_at: work.timeout.filter(|_| !late).map(|timeout| timeout.after(now)),
            course,
            grace_until: None,
            speaks_at: (chance >> 50).is_multiple_of(4).then(|| Span::millis(millis / 2).after(now)),
        };
        self.running.insert(key(lease), running);
        true
    }

    fn chance(&self, lease: Lease, attempt: u16) -> u64 {
        let mut bytes = lease.run.0.as_bytes().to_vec();
        bytes.extend(attempt.to_le_bytes());
        // What goes on for ever under one fence must come to an end under another.
        bytes.extend(lease.fence.0.to_le_bytes());
        xxh3_64_with_seed(&bytes, self.seed)
    }

    fn stop(&mut self, lease: Lease, grace_until: Timestamp, now: Timestamp) {
        let Some(running) = self.running.get_mut(&key(lease)).filter(|running| running.cancelable) else { return };
        running.grace_until.get_or_insert(grace_until.max(now));
        if running.course == Course::Polite {
            running.ends_at = now;
        }
    }
}

/// How an attempt goes, and how long it takes.
fn course(chance: u64) -> (Course, u64) {
    let millis = (chance >> 32) % 2_500;
    match chance % 100 {
        0..35 => (Course::Done, 0),
        35..55 => (Course::Done, 100 + millis),
        55..62 => (Course::Done, 4_000 + 2 * millis),
        62..74 => (Course::Failed, 0),
        74..77 => (Course::Never, millis),
        77..81 => (Course::Again, millis),
        81..84 => (Course::HandedBack, millis),
        84..87 => (Course::Deferred, 0),
        87..90 => (Course::Polite, 1_000 + 3 * millis),
        90..96 => (Course::Polite, 25_000),
        _ => (Course::Stubborn, 8_000 + 4 * millis),
    }
}

impl Running {
    /// How it ended, and what its handler said, if it has.
    fn ended(&self, now: Timestamp) -> Option<(Report, Option<Said>)> {
        let failed = |kind, text: &str| Report::Outcome(Outcome::Failed(Failure::new(kind, text)));
        if self.ends_at <= now {
            return Some(self.came_to_its_end(now));
        }
        if self.grace_until.is_some_and(|until| until <= now || self.course != Course::Stubborn) {
            return Some((Report::Outcome(Outcome::Cancelled), None));
        }
        let timed_out = || (failed(ErrorKind::Timeout, "it did not end within its time"), Some(Said::Failed));
        self.stops_at.is_some_and(|at| at <= now).then(timed_out)
    }

    fn came_to_its_end(&self, now: Timestamp) -> (Report, Option<Said>) {
        let failed =
            |advice| Report::Outcome(Outcome::Failed(Failure::new(ErrorKind::Handler, "no luck").advising(advice)));
        let done = || Report::Outcome(Outcome::Succeeded { output: Some("1".into()) });
        match self.course {
            Course::Polite if self.grace_until.is_some() => (failed(RetryAdvice::ByPolicy), Some(Said::Failed)),
            Course::Done | Course::Stubborn | Course::Polite => (done(), Some(Said::Done)),
            Course::Failed => (failed(RetryAdvice::ByPolicy), Some(Said::Failed)),
            Course::Again => (failed(RetryAdvice::After(Span::millis(700))), Some(Said::Failed)),
            Course::Never => (failed(RetryAdvice::Never), Some(Said::Never)),
            Course::HandedBack => (Report::HandedBack, None),
            Course::Deferred => {
                let (until, reason) = (Span::millis(600).after(now), "its target is down".to_owned());
                (Report::Outcome(Outcome::Deferred { until, reason }), None)
            }
        }
    }
}
