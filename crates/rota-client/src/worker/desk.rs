//! What a worker has in hand, and what it has yet to say.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use rota_api::worker::{
    Attempt, AttemptOutcome, FINISHED_MAX, Finished, LeaseRef, LogReport, LogText, ProgressReport, ReportStatus,
    SyncAnswer, WORDS_MAX,
};
use tokio::sync::{Notify, watch};

use super::Outcome;

/// Bytes of outputs and log lines that one exchange carries.
const SAY_BYTES_MAX: usize = 512 << 10;
/// So many attempts that are over are remembered: a server that takes its answer for
/// lost hands them over again.
const OVER_MAX: usize = 2_000;
/// Bytes of log lines that wait; what comes on top is left out.
const LOG_BYTES_MAX: usize = 4 << 20;
/// A piece of log is closed at this size.
const PIECE_BYTES_MAX: usize = 32 << 10;

/// How an attempt is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Its run was cancelled.
    Cancel { grace_ms: u64 },
    /// Its run is another's: nothing it does counts.
    Lost,
    /// The worker goes.
    HandBack,
}

#[derive(Debug)]
struct Running {
    order: watch::Sender<Option<Order>>,
    alone: bool,
    /// The number of its next piece of log.
    seq: u32,
}

/// A report, and how many pieces of log must have been sent before it.
#[derive(Debug)]
struct Waiting {
    report: Finished,
    behind: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Piece {
    report: LogReport,
    bytes: usize,
    /// It was sent, and may have been kept: nothing is added to it.
    sent: bool,
}

#[derive(Debug, Default)]
struct Papers {
    running: HashMap<LeaseRef, Running>,
    /// The last ones that are over.
    over: VecDeque<LeaseRef>,
    finished: VecDeque<Waiting>,
    pieces: VecDeque<Piece>,
    /// Pieces that were sent and kept.
    gone: u64,
    log_bytes: usize,
    progress: BTreeMap<(uuid::Uuid, i32), ProgressReport>,
}

/// What one exchange says.
#[derive(Clone, Debug, Default)]
pub(super) struct Say {
    pub leases: Vec<LeaseRef>,
    pub finished: Vec<Finished>,
    pub logs: Vec<LogReport>,
    pub progress: Vec<ProgressReport>,
    pub free: u32,
}

#[derive(Debug, Default)]
pub(super) struct Desk {
    papers: Mutex<Papers>,
    /// Rung when there is something to say, or less in hand.
    pub moved: Notify,
}

fn lease(attempt: &Attempt) -> LeaseRef {
    LeaseRef { run: attempt.run, fence: attempt.fence }
}

impl Desk {
    fn with<T>(&self, work: impl FnOnce(&mut Papers) -> T) -> T {
        work(&mut self.papers.lock())
    }

    /// Takes an attempt in hand. None for one that is in hand already, or was: a server
    /// that takes its answer for lost hands an attempt over again.
    pub fn begin(&self, attempt: &Attempt) -> Option<watch::Receiver<Option<Order>>> {
        let lease = lease(attempt);
        self.with(|papers| {
            if papers.running.contains_key(&lease) || papers.over.contains(&lease) {
                return None;
            }
            let (order, told) = watch::channel(None);
            papers.running.insert(lease, Running { order, alone: attempt.alone, seq: 0 });
            Some(told)
        })
    }

    /// An attempt is over; what it says of it waits to be said, unless nobody
    /// wants to hear it.
    pub fn end(&self, attempt: &Attempt, outcome: Option<Outcome>) {
        let lease = lease(attempt);
        self.with(|papers| {
            if papers.running.remove(&lease).is_some() {
                papers.over.push_back(lease);
                papers.over.drain(..papers.over.len().saturating_sub(OVER_MAX));
            }
            papers.progress.remove(&(lease.run, lease.fence));
            if let Some(outcome) = outcome {
                let report = report(lease, outcome);
                let bytes = report.output.as_ref().map_or(0, |output| output.to_string().len());
                let behind = papers.gone + papers.pieces.len() as u64;
                papers.finished.push_back(Waiting { report, behind, bytes });
            }
        });
        self.moved.notify_one();
    }

    pub fn log(&self, attempt: &Attempt, stream: &str, text: &str) {
        let lease = lease(attempt);
        self.with(|papers| {
            let Some(running) = papers.running.get_mut(&lease) else { return };
            let bytes = text.len() + 64;
            if papers.log_bytes + bytes > LOG_BYTES_MAX {
                return;
            }
            papers.log_bytes += bytes;
            let line = LogText { at: None, stream: Some(stream.to_owned()), text: text.to_owned() };
            if let Some(last) = papers.pieces.back_mut()
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
            papers.pieces.push_back(Piece { report, bytes, sent: false });
        });
        self.moved.notify_one();
    }

    pub fn progress(&self, attempt: &Attempt, percent: Option<u8>, phase: Option<&str>, message: Option<&str>) {
        let LeaseRef { run, fence } = lease(attempt);
        let (phase, message) = (phase.map(str::to_owned), message.map(str::to_owned));
        let report = ProgressReport { run, fence, percent, phase, message };
        self.with(|papers| papers.progress.insert((run, fence), report));
        self.moved.notify_one();
    }

    /// Whether there is something that the server has not heard.
    pub fn has_something_to_say(&self) -> bool {
        self.with(|papers| !papers.finished.is_empty() || !papers.pieces.is_empty() || !papers.progress.is_empty())
    }

    pub fn is_idle(&self) -> bool {
        self.with(|papers| papers.running.is_empty())
    }

    pub fn running(&self) -> usize {
        self.with(|papers| papers.running.len())
    }

    pub fn is_reported(&self) -> bool {
        self.with(|papers| papers.finished.is_empty())
    }

    /// What to say next.
    pub fn say(&self, slots: u32) -> Say {
        self.with(|papers| {
            let mut say = Say { leases: papers.running.keys().copied().collect(), ..Say::default() };
            let mut bytes = 0;
            for piece in &mut papers.pieces {
                if say.logs.len() >= WORDS_MAX || bytes >= SAY_BYTES_MAX {
                    break;
                }
                bytes += piece.bytes;
                piece.sent = true;
                say.logs.push(piece.report.clone());
            }
            let reached = papers.gone + say.logs.len() as u64;
            for waiting in &papers.finished {
                if say.finished.len() >= FINISHED_MAX || bytes >= SAY_BYTES_MAX || waiting.behind > reached {
                    break;
                }
                bytes += waiting.bytes;
                say.finished.push(waiting.report.clone());
            }
            let said = say.finished.len();
            // What is not said yet is still the worker's.
            let unsaid = papers.finished.iter().skip(said);
            say.leases.extend(unsaid.map(|waiting| LeaseRef { run: waiting.report.run, fence: waiting.report.fence }));
            say.progress = papers.progress.values().take(WORDS_MAX).cloned().collect();
            let alone = papers.running.values().any(|running| running.alone);
            let busy = papers.running.len().min(u32::MAX as usize) as u32;
            say.free = if alone { 0 } else { slots.saturating_sub(busy) };
            say
        })
    }

    /// The server has heard it, and answered.
    pub fn heard(&self, say: &Say, answer: &SyncAnswer) {
        self.with(|papers| {
            for _ in 0..say.logs.len() {
                if let Some(piece) = papers.pieces.pop_front() {
                    papers.gone += 1;
                    papers.log_bytes -= piece.bytes.min(papers.log_bytes);
                }
            }
            for one in &say.progress {
                if papers.progress.get(&(one.run, one.fence)) == Some(one) {
                    papers.progress.remove(&(one.run, one.fence));
                }
            }
            let settled: HashSet<LeaseRef> = answer
                .reports
                .iter()
                .filter(|report| report.status != ReportStatus::Pending)
                .map(|report| LeaseRef { run: report.run, fence: report.fence })
                .collect();
            papers.finished.retain(|waiting| {
                !settled.contains(&LeaseRef { run: waiting.report.run, fence: waiting.report.fence })
            });
        });
        for cancel in &answer.cancel {
            self.order(LeaseRef { run: cancel.run, fence: cancel.fence }, Order::Cancel { grace_ms: cancel.grace_ms });
        }
        for lost in &answer.lost {
            self.order(*lost, Order::Lost);
        }
    }

    fn order(&self, lease: LeaseRef, order: Order) {
        self.with(|papers| {
            if let Some(running) = papers.running.get(&lease) {
                running.order.send_if_modified(|told| {
                    // Who is lost stays lost, and a cancel is told once.
                    let same = matches!((*told, order), (Some(Order::Cancel { .. }), Order::Cancel { .. }));
                    let news = !same && *told != Some(Order::Lost) && *told != Some(order);
                    if news {
                        *told = Some(order);
                    }
                    news
                });
            }
        });
    }

    /// Everything in hand is to be handed back.
    pub fn hand_back(&self) {
        let all: Vec<LeaseRef> = self.with(|papers| papers.running.keys().copied().collect());
        for lease in all {
            self.order(lease, Order::HandBack);
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
        let told = |one: &Finished| ReportAnswer { run: one.run, fence: one.fence, status, code: status.code() };
        SyncAnswer { reports: of.iter().map(told).collect(), ..SyncAnswer::default() }
    }

    /// A server that thinks its answer was lost hands an attempt over again.
    #[test]
    fn an_attempt_is_begun_once() {
        let desk = Desk::default();
        let one = attempt(1);
        assert!(desk.begin(&one).is_some() && desk.begin(&one).is_none());
        desk.end(&one, Some(Outcome::Succeeded(None)));
        assert!(desk.begin(&one).is_none(), "it is done, and not yet reported");
        let say = desk.say(5);
        assert_eq!((say.finished.len(), say.leases.len(), say.free), (1, 0, 5));
        desk.heard(&say, &answer(ReportStatus::Pending, &say.finished));
        let say = desk.say(5);
        assert_eq!(say.finished.len(), 1, "pending is said again");
        desk.heard(&say, &answer(ReportStatus::Stale, &say.finished));
        assert!(!desk.has_something_to_say() && desk.is_reported());
        assert!(desk.begin(&one).is_none(), "another node may not have heard yet");
        for n in 2..2 + OVER_MAX as u64 {
            let next = attempt(n);
            drop(desk.begin(&next));
            desk.end(&next, None);
        }
        assert!(desk.begin(&one).is_some(), "so many are remembered");
    }

    /// Lines under a lease that is settled would be refused.
    #[test]
    fn a_report_goes_with_its_last_line_or_after_it() {
        let desk = Desk::default();
        let (one, two) = (attempt(1), attempt(2));
        drop((desk.begin(&one), desk.begin(&two)));
        for _ in 0..30 {
            desk.log(&one, "stdout", &"x".repeat(30_000));
        }
        desk.end(&one, Some(Outcome::Succeeded(Some(json!(1)))));
        desk.log(&two, "stdout", "short");
        let first = desk.say(5);
        assert!(!first.logs.is_empty() && first.finished.is_empty());
        assert_eq!(first.leases.len(), 2, "what is not reported is still held");
        let again = desk.say(5);
        assert_eq!(again.logs, first.logs, "what nobody has answered for is said again, as it was");
        desk.heard(&again, &SyncAnswer::default());
        let last = desk.say(5);
        assert_eq!((last.finished.len(), last.leases.len()), (1, 1));
        let mut seqs: Vec<u32> =
            again.logs.iter().chain(&last.logs).filter(|piece| piece.run == one.run).map(|piece| piece.seq).collect();
        seqs.dedup();
        assert_eq!(seqs, (0..seqs.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn who_is_lost_stays_lost_and_a_cancel_is_told_once() {
        let desk = Desk::default();
        let mut told = desk.begin(&attempt(1)).unwrap();
        let lease = lease(&attempt(1));
        for _ in 0..2 {
            desk.order(lease, Order::Cancel { grace_ms: 5 });
        }
        assert!(told.has_changed().unwrap());
        assert_eq!(*told.borrow_and_update(), Some(Order::Cancel { grace_ms: 5 }));
        desk.order(lease, Order::Cancel { grace_ms: 4 });
        assert!(!told.has_changed().unwrap());
        desk.order(lease, Order::Lost);
        desk.order(lease, Order::HandBack);
        assert_eq!(*told.borrow_and_update(), Some(Order::Lost));
    }

    /// One that may kill its process takes nobody along.
    #[test]
    fn nothing_is_asked_for_beside_one_that_must_be_alone() {
        let desk = Desk::default();
        drop(desk.begin(&Attempt { alone: true, ..attempt(1) }));
        assert_eq!(desk.say(5).free, 0);
    }
}
