//! The attempts that a worker has in flight, and what it has yet to report of them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use rota_api::worker::{
    Attempt, AttemptOutcome, FINISHED_MAX, Finished, LeaseRef, LogReport, LogText, ProgressReport, ReportStatus,
    SyncAnswer, WORDS_MAX,
};
use tokio::sync::{Notify, watch};

use super::Outcome;

/// Maximum bytes of outputs and log lines in one exchange.
const UPDATE_BYTES_MAX: usize = 512 << 10;
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
                let report = report(lease, outcome);
                let bytes = report.output.as_ref().map_or(0, |output| output.to_string().len());
                let after_logs = state.logs_sent + state.log_pieces.len() as u64;
                state.finished.push_back(PendingReport { report, after_logs, bytes });
            }
        });
        self.moved.notify_one();
    }

    pub fn log(&self, attempt: &Attempt, stream: &str, text: &str) {
        let lease = lease(attempt);
        self.with(|state| {
            let Some(running) = state.running.get_mut(&lease) else { return };
            let bytes = text.len() + 64;
            if state.log_bytes + bytes > LOG_BYTES_MAX {
                return;
            }
            state.log_bytes += bytes;
            let line = LogText { at: None, stream: Some(stream.to_owned()), text: text.to_owned() };
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
            state.log_pieces.push_back(LogPiece { report, bytes, sent: false });
        });
        self.moved.notify_one();
    }

    pub fn progress(&self, attempt: &Attempt, percent: Option<u8>, phase: Option<&str>, message: Option<&str>) {
        let LeaseRef { run, fence } = lease(attempt);
        let (phase, message) = (phase.map(str::to_owned), message.map(str::to_owned));
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

    /// What the next exchange reports.
    pub fn next_update(&self, slots: u32) -> Update {
        self.with(|state| {
            let mut update = Update { leases: state.running.keys().copied().collect(), ..Update::default() };
            let mut bytes = 0;
            for piece in &mut state.log_pieces {
                if update.logs.len() >= WORDS_MAX || bytes >= UPDATE_BYTES_MAX {
                    break;
                }
                bytes += piece.bytes;
                piece.sent = true;
                update.logs.push(piece.report.clone());
            }
            let reached = state.logs_sent + update.logs.len() as u64;
            for waiting in &state.finished {
                if update.finished.len() >= FINISHED_MAX || bytes >= UPDATE_BYTES_MAX || waiting.after_logs > reached {
                    break;
                }
                bytes += waiting.bytes;
                update.finished.push(waiting.report.clone());
            }
            let reported = update.finished.len();
            // The lease of an outcome that is not reported yet is still the worker's.
            let unreported = state.finished.iter().skip(reported);
            update
                .leases
                .extend(unreported.map(|waiting| LeaseRef { run: waiting.report.run, fence: waiting.report.fence }));
            update.progress = state.progress.values().take(WORDS_MAX).cloned().collect();
            let alone = state.running.values().any(|running| running.alone);
            let busy = state.running.len().min(u32::MAX as usize) as u32;
            update.free = if alone { 0 } else { slots.saturating_sub(busy) };
            update
        })
    }

    /// The server has answered an exchange.
    pub fn acknowledged(&self, update: &Update, answer: &SyncAnswer) {
        self.with(|state| {
            for _ in 0..update.logs.len() {
                if let Some(piece) = state.log_pieces.pop_front() {
                    state.logs_sent += 1;
                    state.log_bytes -= piece.bytes.min(state.log_bytes);
                }
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
    use rota_api::{run::JobRef, worker::ReportAnswer};
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
        let update = in_flight.next_update(5);
        assert_eq!((update.finished.len(), update.leases.len(), update.free), (1, 0, 5));
        in_flight.acknowledged(&update, &answer(ReportStatus::Pending, &update.finished));
        let update = in_flight.next_update(5);
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
        for _ in 0..30 {
            in_flight.log(&one, "stdout", &"x".repeat(30_000));
        }
        in_flight.end(&one, Some(Outcome::Succeeded(Some(json!(1)))));
        in_flight.log(&two, "stdout", "short");
        let first = in_flight.next_update(5);
        assert!(!first.logs.is_empty() && first.finished.is_empty());
        assert_eq!(first.leases.len(), 2, "what is not reported is still held");
        let again = in_flight.next_update(5);
        assert_eq!(again.logs, first.logs, "what was not answered is sent again, unchanged");
        in_flight.acknowledged(&again, &SyncAnswer::default());
        let last = in_flight.next_update(5);
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
        assert_eq!(in_flight.next_update(5).free, 0);
    }
}
