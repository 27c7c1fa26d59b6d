//! The attempts that a worker has in flight, and what it has yet to report of them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use rota_api::worker::{
    Attempt, AttemptError, AttemptOutcome, FINISHED_MAX, Finished, LOG_LINE_BYTES_MAX, LeaseRef, LogReport, LogText,
    MESSAGE_BYTES_MAX, OUTPUT_BYTES_MAX, PROGRESS_BYTES_MAX, ProgressReport, ReportStatus, SyncAnswer, WORDS_MAX,
};
use tokio::sync::{Notify, watch};

use super::Outcome;

/// Bytes of an exchange that are left to its own fields.
const FIELDS_BYTES: usize = 4 << 10;
/// Bytes of a lease in an exchange: two numbers and their names.
const LEASE_BYTES: usize = 80;
/// Ends a text that was cut.
const CUT_MARK: &str = " [cut]";
/// Maximum bytes of the name of a kind of failure.
const NAME_BYTES_MAX: usize = 64;
/// Number of ended attempts that are remembered: a server that takes its answer for
/// lost hands them over again.
const ENDED_MAX: usize = 2_000;
/// Maximum bytes of log lines that wait to be sent; lines beyond that are dropped.
const LOG_BYTES_MAX: usize = 4 << 20;
/// A piece of log is closed at this size.
const PIECE_BYTES_MAX: usize = 32 << 10;

/// Why an attempt is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its run was cancelled.
    Cancel { grace_ms: u64 },
    /// Its run is another's: nothing it does counts.
    Lost,
    /// The worker is leaving.
    HandBack,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<Option<Stop>>,
    alone: bool,
    /// The number of its next piece of log.
    seq: u32,
}

/// A report, and how many log pieces must have been sent before it.
#[derive(Debug)]
struct PendingReport {
    report: Finished,
    after_logs: u64,
    bytes: usize,
    /// It says that the server refused what it stands in for.
    is_substitute: bool,
}

#[derive(Debug)]
struct LogPiece {
    report: LogReport,
    bytes: usize,
    /// It was sent, and may have been kept: nothing is added to it.
    sent: bool,
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<LeaseRef, Running>,
    /// The last ones that are over.
    over: VecDeque<LeaseRef>,
    finished: VecDeque<PendingReport>,
    log_pieces: VecDeque<LogPiece>,
    /// Pieces that were sent and kept.
    logs_sent: u64,
    log_bytes: usize,
    progress: BTreeMap<(uuid::Uuid, i32), ProgressReport>,
    /// The server refused an exchange: reports go one at a time, until the one that it
    /// refuses is known.
    one_at_a_time: bool,
}

/// What one exchange reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Update {
    pub leases: Vec<LeaseRef>,
    pub finished: Vec<Finished>,
    pub logs: Vec<LogReport>,
    pub progress: Vec<ProgressReport>,
    pub free: u32,
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    state: Mutex<State>,
    /// Notified when there is something to report, or an attempt fewer in flight.
    pub moved: Notify,
}

fn lease(attempt: &Attempt) -> LeaseRef {
    LeaseRef { run: attempt.run, fence: attempt.fence }
}

impl Update {
    /// How many reports it carries.
    pub fn reports(&self) -> usize {
        self.finished.len() + self.logs.len() + self.progress.len()
    }
}

/// What an exchange has room for yet.
struct Room {
    bytes: usize,
    reports: usize,
}

impl Room {
    /// Takes up room for a report, if there is any.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = self.reports > 0 && bytes < self.bytes;
        if fits {
            // And a comma.
            self.bytes -= bytes + 1;
            self.reports -= 1;
        }
        fits
    }
}

impl State {
    /// The oldest piece of log was sent, or is given up.
    fn drop_log_piece(&mut self) {
        if let Some(piece) = self.log_pieces.pop_front() {
            self.logs_sent += 1;
            self.log_bytes -= piece.bytes.min(self.log_bytes);
        }
    }

    /// Reports a failure in the place of the first report, which was refused. If that was
    /// one already nothing is reported, and the lease runs out.
    fn substitute(&mut self, why: &str) {
        let Some(refused) = self.finished.front_mut().filter(|refused| !refused.is_substitute) else {
            self.finished.pop_front();
            return;
        };
        let LeaseRef { run, fence } = LeaseRef { run: refused.report.run, fence: refused.report.fence };
        let message = format!("the server refused the report of its end: {why}");
        let error = AttemptError {
            kind: None,
            message: cut(&message, MESSAGE_BYTES_MAX),
            status: None,
            retry_after_ms: None,
            retry: None,
        };
        refused.report = report(LeaseRef { run, fence }, Outcome::Failed(error));
        refused.bytes = json_bytes(&refused.report);
        refused.is_substitute = true;
    }
}

/// `text` in at most `most` bytes, with a mark where it was cut.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}{CUT_MARK}", &text[..text.floor_char_boundary(most - CUT_MARK.len())])
}

/// The bytes of a report in an exchange.
fn json_bytes(report: &impl serde::Serialize) -> usize {
    serde_json::to_vec(report).map_or(0, |json| json.len())
}

/// An outcome within the maximum sizes, which the server holds it to as well.
fn bounded(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Succeeded(Some(output)) => match output.to_string().len() {
            bytes if bytes > OUTPUT_BYTES_MAX => Outcome::Failed(AttemptError {
                kind: Some("output_too_large".into()),
                message: format!("its output has {bytes} bytes; the maximum is {OUTPUT_BYTES_MAX}"),
                status: None,
                retry_after_ms: None,
                retry: Some(false),
            }),
            _ => Outcome::Succeeded(Some(output)),
        },
        Outcome::Failed(mut error) => {
            error.message = cut(&error.message, MESSAGE_BYTES_MAX);
            error.kind = error.kind.map(|kind| cut(&kind, NAME_BYTES_MAX));
            Outcome::Failed(error)
        }
        Outcome::Deferred { until, reason } => Outcome::Deferred { until, reason: cut(&reason, MESSAGE_BYTES_MAX) },
        within @ (Outcome::Succeeded(None) | Outcome::Cancelled | Outcome::HandedBack) => within,
    }
}

impl InFlight {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock())
    }

    /// Takes an attempt in hand. None for one that is in hand already, or was: a server
    /// that takes its answer for lost hands an attempt over again.
    pub fn begin(&self, attempt: &Attempt) -> Option<watch::Receiver<Option<Stop>>> {
        let lease = lease(attempt);
        self.with(|state| {
            if state.running.contains_key(&lease) || state.over.contains(&lease) {
                return None;
            }
            let (stop, stopped) = watch::channel(None);
            state.running.insert(lease, Running { stop, alone: attempt.alone, seq: 0 });
            Some(stopped)
        })
    }

    /// An attempt has ended. Its outcome waits to be reported, unless it is of no use to
    /// anybody.
    pub fn end(&self, attempt: &Attempt, outcome: Option<Outcome>) {
        let lease = lease(attempt);
        self.with(|state| {
            if state.running.remove(&lease).is_some() {
                state.over.push_back(lease);
                state.over.drain(..state.over.len().saturating_sub(ENDED_MAX));
            }
            state.progress.remove(&(lease.run, lease.fence));
            if let Some(outcome) = outcome {
                let report = report(lease, bounded(outcome));
                let bytes = json_bytes(&report);
                let after_logs = state.logs_sent + state.log_pieces.len() as u64;
                state.finished.push_back(PendingReport { report, after_logs, bytes, is_substitute: false });
            }
        });
        self.moved.notify_one();
    }

    pub fn log(&self, attempt: &Attempt, stream: &str, text: &str) {
        let lease = lease(attempt);
        self.with(|state| {
            let Some(running) = state.running.get_mut(&lease) else { return };
            let line = LogText { at: None, stream: Some(stream.to_owned()), text: cut(text, LOG_LINE_BYTES_MAX) };
            let bytes = json_bytes(&line) + 1;
            if state.log_bytes + bytes > LOG_BYTES_MAX {
                return;
            }
            state.log_bytes += bytes;
            if let Some(last) = state.log_pieces.back_mut()
                && (last.report.run, last.report.fence) == (lease.run, lease.fence)
                && last.bytes < PIECE_BYTES_MAX
                && !last.sent
            {
                last.bytes += bytes;
                last.report.lines.push(line);
                return;
            }
            let report = LogReport { run: lease.run, fence: lease.fence, seq: running.seq, lines: vec![line] };
            running.seq += 1;
            let whole = json_bytes(&report);
            state.log_bytes += whole - bytes;
            let bytes = whole;
            state.log_pieces.push_back(LogPiece { report, bytes, sent: false });
        });
        self.moved.notify_one();
    }

    pub fn progress(&self, attempt: &Attempt, percent: Option<u8>, phase: Option<&str>, message: Option<&str>) {
        let LeaseRef { run, fence } = lease(attempt);
        let cut = |text: &str| cut(text, PROGRESS_BYTES_MAX);
        let (phase, message) = (phase.map(cut), message.map(cut));
        let report = ProgressReport { run, fence, percent, phase, message };
        self.with(|state| state.progress.insert((run, fence), report));
        self.moved.notify_one();
    }

    /// Whether there is something that the server has not acknowledged.
    pub fn has_reports(&self) -> bool {
        self.with(|state| !state.finished.is_empty() || !state.log_pieces.is_empty() || !state.progress.is_empty())
    }

    pub fn is_idle(&self) -> bool {
        self.with(|state| state.running.is_empty())
    }

    pub fn running(&self) -> usize {
        self.with(|state| state.running.len())
    }

    pub fn is_reported(&self) -> bool {
        self.with(|state| state.finished.is_empty())
    }

    /// What the next exchange reports, within `room` bytes.
    pub fn next_update(&self, slots: u32, room: usize) -> Update {
        self.with(|state| {
            let mut update = Update { leases: state.running.keys().copied().collect(), ..Update::default() };
            let held = state.running.len() + state.finished.len();
            let mut room = Room {
                bytes: room.saturating_sub(FIELDS_BYTES + held * LEASE_BYTES),
                reports: if state.one_at_a_time { 1 } else { usize::MAX },
            };
            for piece in state.log_pieces.iter_mut().take(WORDS_MAX) {
                if !room.take(piece.bytes) {
                    break;
                }
                piece.sent = true;
                update.logs.push(piece.report.clone());
            }
            let reached = state.logs_sent + update.logs.len() as u64;
            for waiting in state.finished.iter().take(FINISHED_MAX) {
                if waiting.after_logs > reached || !room.take(waiting.bytes) {
                    break;
                }
                update.finished.push(waiting.report.clone());
            }
            let reported = update.finished.len();
            // The lease of an outcome that is not reported yet is still the worker's.
            let unreported = state.finished.iter().skip(reported);
            update
                .leases
                .extend(unreported.map(|waiting| LeaseRef { run: waiting.report.run, fence: waiting.report.fence }));
            let progress = state.progress.values().take(WORDS_MAX);
            update.progress = progress.take_while(|one| room.take(json_bytes(one))).cloned().collect();
            let alone = state.running.values().any(|running| running.alone);
            let busy = state.running.len().min(u32::MAX as usize) as u32;
            update.free = if alone { 0 } else { slots.saturating_sub(busy) };
            update
        })
    }

    /// The server refused an exchange. False where that is not because of what it reported.
    ///
    /// Refused once more it would be refused for ever, and with it all other reports. So
    /// they go one at a time until the one that is refused is known, and that one is given
    /// up: of an end it is reported that its report was refused.
    pub fn refused(&self, update: &Update, why: &str) -> bool {
        let reports = update.reports();
        self.with(|state| {
            state.one_at_a_time = reports > 1;
            if reports > 1 {
                return true;
            }
            if let Some(piece) = update.logs.first() {
                tracing::error!(run = %piece.run, why, "the server refused log lines; they were discarded");
                state.drop_log_piece();
            } else if let Some(finished) = update.finished.first() {
                tracing::error!(run = %finished.run, why, "the server refused the report of an attempt");
                state.substitute(why);
            } else if let Some(one) = update.progress.first() {
                tracing::error!(run = %one.run, why, "the server refused a progress report; it was discarded");
                state.progress.remove(&(one.run, one.fence));
            }
            reports == 1
        })
    }

    /// The server has answered an exchange.
    pub fn acknowledged(&self, update: &Update, answer: &SyncAnswer) {
        self.with(|state| {
            for _ in 0..update.logs.len() {
                state.drop_log_piece();
            }
            for one in &update.progress {
                if state.progress.get(&(one.run, one.fence)) == Some(one) {
                    state.progress.remove(&(one.run, one.fence));
                }
            }
            let settled: HashSet<LeaseRef> = answer
                .reports
                .iter()
                .filter(|report| report.status != ReportStatus::Pending)
                .map(|report| LeaseRef { run: report.run, fence: report.fence })
                .collect();
            let left = state.finished.len() + state.log_pieces.len() + state.progress.len();
            state.one_at_a_time &= left > settled.len();
            state.finished.retain(|waiting| {
                !settled.contains(&LeaseRef { run: waiting.report.run, fence: waiting.report.fence })
            });
        });
        for cancel in &answer.cancel {
            self.stop(LeaseRef { run: cancel.run, fence: cancel.fence }, Stop::Cancel { grace_ms: cancel.grace_ms });
        }
        for lost in &answer.lost {
            self.stop(*lost, Stop::Lost);
        }
    }

    fn stop(&self, lease: LeaseRef, asked: Stop) {
        self.with(|state| {
            if let Some(running) = state.running.get(&lease) {
                running.stop.send_if_modified(|stop| {
                    // A lost lease stays lost, and a cancel is passed on once.
                    let same = matches!((*stop, asked), (Some(Stop::Cancel { .. }), Stop::Cancel { .. }));
                    let news = !same && *stop != Some(Stop::Lost) && *stop != Some(asked);
                    if news {
                        *stop = Some(asked);
                    }
                    news
                });
            }
        });
    }

    /// Everything in flight is to be handed back.
    pub fn hand_back(&self) {
        let all: Vec<LeaseRef> = self.with(|state| state.running.keys().copied().collect());
        for lease in all {
            self.stop(lease, Stop::HandBack);
        }
    }
}

fn report(lease: LeaseRef, outcome: Outcome) -> Finished {
    let mut report = Finished {
        run: lease.run,
        fence: lease.fence,
        outcome: AttemptOutcome::Succeeded,
        output: None,
        error: None,
        until: None,
        reason: None,
    };
    match outcome {
        Outcome::Succeeded(output) => report.output = output,
        Outcome::Failed(error) => (report.outcome, report.error) = (AttemptOutcome::Failed, Some(error)),
        Outcome::Cancelled => report.outcome = AttemptOutcome::Cancelled,
        Outcome::HandedBack => report.outcome = AttemptOutcome::HandedBack,
        Outcome::Deferred { until, reason } => {
            report.outcome = AttemptOutcome::Deferred;
            (report.until, report.reason) = (Some(until), Some(reason));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use rota_api::{
        run::JobRef,
        worker::{EXCHANGE_BYTES_MAX, ReportAnswer, SyncRequest, WorkerHello},
    };
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;

    fn attempt(n: u64) -> Attempt {
        let run = Uuid::from_u64_pair(0, n);
        Attempt {
            run,
            fence: 1,
            attempt: 1,
            job: JobRef { id: 1, name: "job".into() },
            version: 1,
            step: "s".into(),
            kind: "handler".into(),
            handler: Some("h".into()),
            payload: Value::Null,
            spec: None,
            labels: BTreeMap::new(),
            source: "api".into(),
            planned_at: None,
            timeout_ms: None,
            deadline_at: None,
            cancelable: true,
            idempotency_key: run.to_string(),
            alone: false,
            traceparent: None,
        }
    }

    fn answer(status: ReportStatus, of: &[Finished]) -> SyncAnswer {
        let answered = |one: &Finished| ReportAnswer { run: one.run, fence: one.fence, status, code: status.code() };
        SyncAnswer { reports: of.iter().map(answered).collect(), ..SyncAnswer::default() }
    }

    /// A server that thinks its answer was lost hands an attempt over again.
    #[test]
    fn an_attempt_is_begun_once() {
        let in_flight = InFlight::default();
        let one = attempt(1);
        assert!(in_flight.begin(&one).is_some() && in_flight.begin(&one).is_none());
        in_flight.end(&one, Some(Outcome::Succeeded(None)));
        assert!(in_flight.begin(&one).is_none(), "it is done, and not yet reported");
        let update = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
        assert_eq!((update.finished.len(), update.leases.len(), update.free), (1, 0, 5));
        in_flight.acknowledged(&update, &answer(ReportStatus::Pending, &update.finished));
        let update = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
        assert_eq!(update.finished.len(), 1, "what is pending is reported again");
        in_flight.acknowledged(&update, &answer(ReportStatus::Stale, &update.finished));
        assert!(!in_flight.has_reports() && in_flight.is_reported());
        assert!(in_flight.begin(&one).is_none(), "another node may not know yet");
        for n in 2..2 + ENDED_MAX as u64 {
            let next = attempt(n);
            drop(in_flight.begin(&next));
            in_flight.end(&next, None);
        }
        assert!(in_flight.begin(&one).is_some(), "the number that is remembered is bounded");
    }

    /// Lines under a lease that is settled would be refused.
    #[test]
    fn a_report_goes_with_its_last_line_or_after_it() {
        let in_flight = InFlight::default();
        let (one, two) = (attempt(1), attempt(2));
        drop((in_flight.begin(&one), in_flight.begin(&two)));
        for _ in 0..90 {
            in_flight.log(&one, "stdout", &"x".repeat(30_000));
        }
        in_flight.end(&one, Some(Outcome::Succeeded(Some(json!(1)))));
        in_flight.log(&two, "stdout", "short");
        let first = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
        assert!(!first.logs.is_empty() && first.finished.is_empty());
        assert_eq!(first.leases.len(), 2, "what is not reported is still held");
        let again = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
        assert_eq!(again.logs, first.logs, "what was not answered is sent again, unchanged");
        in_flight.acknowledged(&again, &SyncAnswer::default());
        let last = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
        assert_eq!((last.finished.len(), last.leases.len()), (1, 1));
        let mut seqs: Vec<u32> =
            again.logs.iter().chain(&last.logs).filter(|piece| piece.run == one.run).map(|piece| piece.seq).collect();
        seqs.dedup();
        assert_eq!(seqs, (0..seqs.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn a_lost_lease_stays_lost_and_a_cancel_is_passed_on_once() {
        let in_flight = InFlight::default();
        let mut stopped = in_flight.begin(&attempt(1)).unwrap();
        let lease = lease(&attempt(1));
        for _ in 0..2 {
            in_flight.stop(lease, Stop::Cancel { grace_ms: 5 });
        }
        assert!(stopped.has_changed().unwrap());
        assert_eq!(*stopped.borrow_and_update(), Some(Stop::Cancel { grace_ms: 5 }));
        in_flight.stop(lease, Stop::Cancel { grace_ms: 4 });
        assert!(!stopped.has_changed().unwrap());
        in_flight.stop(lease, Stop::Lost);
        in_flight.stop(lease, Stop::HandBack);
        assert_eq!(*stopped.borrow_and_update(), Some(Stop::Lost));
    }

    /// One that may kill its process takes nobody along.
    #[test]
    fn nothing_is_asked_for_beside_one_that_must_be_alone() {
        let in_flight = InFlight::default();
        drop(in_flight.begin(&Attempt { alone: true, ..attempt(1) }));
        assert_eq!(in_flight.next_update(5, EXCHANGE_BYTES_MAX).free, 0);
    }

    /// An exchange that is refused for its size ends nothing and settles nothing.
    #[test]
    fn an_exchange_fits_whatever_is_to_be_reported() {
        let in_flight = InFlight::default();
        let worst = "\u{1}".repeat(40_000);
        let attempts: Vec<Attempt> = (0..300).map(attempt).collect();
        for (n, one) in attempts.iter().enumerate() {
            drop(in_flight.begin(one));
            in_flight.progress(one, Some(50), Some(&worst), Some(&worst));
            if n % 20 == 0 {
                in_flight.log(one, "stdout", &worst);
            }
            match n % 4 {
                0 => in_flight.end(one, Some(Outcome::Succeeded(Some(json!("o".repeat(OUTPUT_BYTES_MAX - 2)))))),
                1 => in_flight.end(one, Some(Outcome::Succeeded(Some(json!("o".repeat(OUTPUT_BYTES_MAX)))))),
                2 => in_flight.end(
                    one,
                    Some(Outcome::Failed(AttemptError {
                        kind: None,
                        message: worst.clone(),
                        status: None,
                        retry_after_ms: None,
                        retry: None,
                    })),
                ),
                _ => {}
            }
        }
        let hello = WorkerHello {
            id: Uuid::nil(),
            name: "n".repeat(200),
            version: String::new(),
            queues: vec!["q".repeat(200); 200],
            traits: vec!["t".repeat(200); 200],
            handlers: vec!["h".repeat(200); 200],
            kinds: Vec::new(),
            slots: 1_000,
            draining: false,
        };
        let room = EXCHANGE_BYTES_MAX - json_bytes(&hello);
        let mut kinds = BTreeMap::new();
        while in_flight.has_reports() {
            let update = in_flight.next_update(1_000, room);
            assert!(update.reports() > 0, "it comes to an end");
            let request = SyncRequest {
                worker: hello.clone(),
                free: update.free,
                wait_ms: 25_000,
                leases: update.leases.clone(),
                finished: update.finished.clone(),
                progress: update.progress.clone(),
                logs: update.logs.clone(),
                leaving: false,
            };
            let bytes = json_bytes(&request);
            assert!(bytes <= EXCHANGE_BYTES_MAX, "{bytes}");
            for one in &update.finished {
                let kind = one.error.as_ref().map(|error| error.kind.clone().unwrap_or_default());
                *kinds.entry(kind).or_insert(0) += 1;
                assert!(one.error.as_ref().is_none_or(|error| error.message.len() <= MESSAGE_BYTES_MAX));
            }
            in_flight.acknowledged(&update, &answer(ReportStatus::Applied, &update.finished));
        }
        let of = |kind: &str| kinds.get(&Some(kind.to_owned())).copied();
        assert_eq!((kinds.get(&None).copied(), of("output_too_large"), of("")), (Some(75), Some(75), Some(75)));
    }

    /// One report that the server does not take must not take the others along, nor the
    /// worker.
    #[test]
    fn a_report_that_is_refused_costs_itself_alone() {
        let in_flight = InFlight::default();
        for n in 0..5 {
            drop(in_flight.begin(&attempt(n)));
            in_flight.log(&attempt(n), "stdout", if n == 1 { "bad" } else { "good" });
            in_flight.end(&attempt(n), Some(Outcome::Succeeded(Some(json!(if n == 3 { "bad" } else { "good" })))));
        }
        let (mut refusals, mut applied, mut lines) = (0, Vec::new(), 0);
        while in_flight.has_reports() {
            let update = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
            assert!(update.reports() > 0);
            let text = json!([update.finished, update.logs]).to_string();
            if text.contains("\"bad\"") {
                refusals += 1;
                assert!(refusals < 10, "it comes to an end");
                assert!(in_flight.refused(&update, "it is bad"));
                continue;
            }
            lines += update.logs.len();
            applied.extend(update.finished.clone());
            in_flight.acknowledged(&update, &answer(ReportStatus::Applied, &update.finished));
        }
        assert_eq!((applied.len(), lines), (5, 4));
        let failed: Vec<&Finished> = applied.iter().filter(|one| one.error.is_some()).collect();
        assert_eq!(failed.len(), 1);
        assert!(failed[0].error.as_ref().unwrap().message.ends_with("it is bad"));
        assert!(!in_flight.refused(&Update::default(), "the worker itself"), "nothing was reported");
    }

    #[test]
    fn a_substitute_that_is_refused_is_given_up() {
        let in_flight = InFlight::default();
        drop(in_flight.begin(&attempt(1)));
        in_flight.end(&attempt(1), Some(Outcome::Succeeded(None)));
        for _ in 0..2 {
            let update = in_flight.next_update(5, EXCHANGE_BYTES_MAX);
            assert_eq!((update.reports(), in_flight.refused(&update, "no")), (1, true));
        }
        assert!(in_flight.is_reported() && in_flight.is_idle());
        assert!(in_flight.next_update(5, EXCHANGE_BYTES_MAX).leases.is_empty(), "its lease runs out");
    }
}
