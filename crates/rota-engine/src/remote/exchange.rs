//! One exchange with a worker.
//!
//! What it says is taken in first: log lines, progress, reports. Its leases are
//! extended and compared with the store's. Then it waits, as long as it wishes,
//! until there is work for it or something to tell. A worker that holds leases
//! is answered within a third of a lease time: its leases hold because it
//! speaks, never because a connection is open, so that a machine that lost its
//! power is found out as soon as a process that died.
//!
//! Nothing is lost with an answer. A report that is made again is answered as
//! the first one was; an attempt whose handing over was not heard is in the
//! store's list and not in the worker's, and is handed over again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use rota_core::{
    dispatch::APART,
    duration::Span,
    ids::WorkerId,
    job::failure::{ErrorKind, Failure},
    run::{Hold, Lease, Outcome, Report, Run, RunState},
    store::{By, LogChunk, RunRecord, StoreError},
};
use tokio::sync::Notify;

use super::{
    Exchange, ExchangeAnswer, ExchangeError, Hello, ReportAck, Stop,
    output::chunk,
    sessions::{Assigned, Outgoing, PendingAcks, REDELIVERIES_MAX},
    wait::{Facts, Next, next},
};
use crate::{
    catalog::JobVersion,
    node::Node,
    outbox::{End, Ended, Origin},
    planted::{self, Bug},
    reports,
    supervise::{Prepared, prepare},
};

/// The longest that anybody waits here. A proxy in between often gives up
/// after 30 seconds, and so does this project's own server.
const WAIT_MAX: Span = Span::secs(25);
/// So long the store is waited for; then a report is said to be pending.
const SETTLE_WAIT: Span = Span::secs(10);
/// Another node holds a run back for less than this, so that it can be alone.
const HELD_FOR: Span = Span::secs(10);
/// Hears a worker out and answers it.
pub async fn exchange(node: &Arc<Node>, asked: Exchange) -> Result<ExchangeAnswer, ExchangeError> {
    let now = node.clock.now();
    let worker = asked.hello.worker;
    let limits = node.limits_of(asked.hello.tenant);
    let notify = node.remote.sessions().register(&asked.hello, asked.leases.len(), &limits, now)?;
    let mut answer = ExchangeAnswer::default();
    take_output(node, &asked, &mut answer).await?;
    let answers = Arc::new(PendingAcks::new(asked.finished.len(), Arc::clone(&notify)));
    report(node, &asked, &answers, now).await?;
    if asked.leaving || asked.hello.draining {
        let back = node.remote.sessions().take_outgoing(worker);
        hand_back(node, back, now);
    }
    let poll = PollGuard::begin(node, &asked, now);
    wait(&asked, &poll, &answers, &notify, &mut answer).await?;
    let long_ago = node.options.extend_every.before(node.clock.now());
    if node.remote.sessions().has_old_outgoing(worker, long_ago) {
        compare(&poll, &asked, &mut answer, node.clock.now()).await?;
    }
    answer.reports = answers.read();
    check_stale(node, &asked, &mut answer.reports).await?;
    answer.elsewhere = node.executing.is_draining();
    answer.drain = node.remote.sessions().poll_state(worker, poll.number, node.clock.now()).drain;
    answer.attempts = node.remote.sessions().fetch(worker, poll.number, &asked.known_leases());
    if asked.leaving {
        node.remote.sessions().remove(worker);
        // What it was given and never heard of must not count as a loss.
        let write = node.write(node.clock.now());
        let woken = node.store.release(&write, worker).await?;
        node.woken(&write, woken);
        node.store.forget_workers(&[worker]).await?;
    }
    Ok(answer)
}

/// A worker that waits; one whose connection breaks does not any more.
struct PollGuard<'n> {
    node: &'n Arc<Node>,
    worker: WorkerId,
    number: u64,
    /// What the worker lists, it lists as of then.
    began_at: Timestamp,
}

impl<'n> PollGuard<'n> {
    /// One who only reports takes nobody's place.
    fn begin(node: &'n Arc<Node>, asked: &Exchange, began_at: Timestamp) -> Self {
        let worker = asked.hello.worker;
        let free = if asked.hello.draining { 0 } else { asked.free };
        let number = if free > 0 || asked.wait.is_some() { node.remote.sessions().begin_poll(worker, free) } else { 0 };
        if free > 0 {
            node.wake.assign.notify_one();
        }
        Self { node, worker, number, began_at }
    }

    /// Whether its worker has something in hand, as far as anybody knows.
    fn holds_any(&self, asked: &Exchange) -> bool {
        let assigned =
            || self.node.remote.sessions().get_mut(self.worker).is_some_and(|session| !session.assigned.is_empty());
        !asked.leases.is_empty() || assigned()
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.node.remote.sessions().end_poll(self.worker, self.number, self.node.clock.now());
    }
}

async fn wait(
    asked: &Exchange,
    poll: &PollGuard<'_>,
    answers: &PendingAcks,
    notify: &Notify,
    answer: &mut ExchangeAnswer,
) -> Result<(), StoreError> {
    let node = poll.node;
    let (began_at, steps) = (node.clock.now(), node.clock.steps());
    let longest = if poll.holds_any(asked) { node.options.extend_every } else { WAIT_MAX };
    let until = asked.wait.map_or(began_at, |wait| wait.min(longest).after(began_at));
    loop {
        let heard = notify.notified();
        tokio::pin!(heard);
        heard.as_mut().enable();
        let now = node.clock.now();
        compare(poll, asked, answer, now).await?;
        let state = node.remote.sessions().poll_state(asked.hello.worker, poll.number, now);
        let facts = Facts {
            now,
            until,
            settle_until: SETTLE_WAIT.after(began_at),
            reports_answered: answers.is_done(),
            has_news: state.outgoing || !answer.stops.is_empty() || !answer.lost.is_empty(),
            looked: state.looked,
            in_haste: asked.says_something() || asked.wait.is_none(),
            superseded: state.superseded,
            drain: state.drain,
            node_drains: node.executing.is_draining(),
            store_away: node.rights.is_store_away(),
            stepped: node.clock.steps() != steps,
            unlisted_until: state.unlisted_since.map(|since| node.options.extend_every.after(since)),
        };
        let wake_at = match next(&facts) {
            Next::Answer => return Ok(()),
            Next::WaitUntil(at) => at,
        };
        tokio::select! {
            () = heard => {}
            () = node.clock.sleep_until(wake_at) => {}
            () = node.clock.stepped(steps) => {}
        }
    }
}

/// Takes in what attempts say, as far as they are still the worker's.
async fn take_output(node: &Arc<Node>, asked: &Exchange, answer: &mut ExchangeAnswer) -> Result<(), StoreError> {
    if !asked.logs.is_empty() {
        let chunks = chunks_of(node, asked, answer).await?;
        if !chunks.is_empty() {
            node.store.append_logs(&chunks).await?;
        }
    }
    if !asked.progress.is_empty() {
        let leases: Vec<Lease> = asked.progress.iter().map(|(lease, _)| *lease).collect();
        let known = known_runs(node, &asked.hello, &leases).await?;
        answer.lost.extend(leases.into_iter().filter(|lease| !known.contains_key(lease)));
        let known = asked.progress.iter().filter(|(lease, _)| known.contains_key(lease));
        let said: Vec<(Lease, String)> = known.map(|(lease, progress)| (*lease, reports::text(progress))).collect();
        let answers = node.store.progress(&said).await?;
        let stale = said.iter().zip(answers).filter(|(_, answer)| *answer == rota_core::store::Guarded::Stale);
        answer.lost.extend(stale.map(|((lease, _), _)| *lease));
    }
    Ok(())
}

async fn chunks_of(
    node: &Arc<Node>,
    asked: &Exchange,
    answer: &mut ExchangeAnswer,
) -> Result<Vec<LogChunk>, StoreError> {
    let leases: Vec<Lease> = asked.logs.iter().map(|piece| piece.lease).collect();
    let known = known_runs(node, &asked.hello, &leases).await?;
    let mut sessions = node.remote.sessions();
    let mut chunks = Vec::with_capacity(asked.logs.len());
    for piece in &asked.logs {
        let Some(attempt) = known.get(&piece.lease) else {
            answer.lost.push(piece.lease);
            continue;
        };
        let assigned =
            sessions.get_mut(asked.hello.worker).and_then(|session| session.assigned.get_mut(&piece.lease.run));
        let mut unheard = 0;
        let bytes = assigned.map_or(&mut unheard, |assigned| &mut assigned.log_bytes);
        chunks.extend(chunk(piece, *attempt, bytes, node.options.log_bytes_max));
    }
    Ok(chunks)
}

/// The numbers of the attempts that are under way under these leases.
async fn known_runs(node: &Arc<Node>, hello: &Hello, leases: &[Lease]) -> Result<HashMap<Lease, u16>, StoreError> {
    let number = |run: &Run| run.attempts_used.saturating_add(1);
    let mut known = HashMap::with_capacity(leases.len());
    let mut unknown = Vec::new();
    {
        let mut sessions = node.remote.sessions();
        let session = sessions.get_mut(hello.worker);
        for lease in leases {
            let assigned = session.as_ref().and_then(|session| session.assigned.get(&lease.run));
            match assigned.filter(|assigned| assigned.run.lease() == *lease) {
                Some(assigned) => drop(known.insert(*lease, number(&assigned.run))),
                None => unknown.push(lease.run),
            }
        }
    }
    if !unknown.is_empty() {
        unknown.sort_unstable();
        unknown.dedup();
        for record in node.store.runs(&unknown).await?.into_iter().flatten() {
            if is_under_way(&record.run, hello) {
                known.insert(record.run.lease(), number(&record.run));
            }
        }
    }
    Ok(known)
}

/// Whether a worker of this tenant may be executing it.
fn is_under_way(run: &Run, hello: &Hello) -> bool {
    let leased = match run.state {
        RunState::Running { hold, .. } => matches!(hold, Hold::Leased(_)),
        RunState::Cancelling { hold, .. } => matches!(hold, Some(Hold::Leased(_))),
        RunState::Scheduled
        | RunState::Blocked(_)
        | RunState::Queued
        | RunState::Waiting { .. }
        | RunState::Finished { .. } => false,
    };
    leased && run.tenant == hello.tenant
}

/// Sends reports on to be settled. Their answers come to `answers`.
async fn report(
    node: &Arc<Node>,
    asked: &Exchange,
    answers: &Arc<PendingAcks>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (mut ended, mut unknown) = (Vec::new(), Vec::new());
    {
        let mut sessions = node.remote.sessions();
        let mut first: HashMap<Lease, &Report> = HashMap::new();
        for (n, (lease, report)) in asked.finished.iter().enumerate() {
            // Of two that contradict each other the first counts.
            if *first.entry(*lease).or_insert(report) != report {
                answers.acknowledge(n, ReportAck::Stale);
                continue;
            }
            if !sessions.begin_settling(*lease, answers, n) {
                continue;
            }
            match sessions.take_assigned(asked.hello.worker, *lease) {
                Some(assigned) => ended.push(ended_of(assigned, report, now)),
                None => unknown.push(n),
            }
            if planted::is(Bug::AnsweredTooEarly) {
                sessions.acknowledge(*lease, ReportAck::Applied);
            }
        }
    }
    node.post(ended);
    if unknown.is_empty() {
        return Ok(());
    }
    let mut unsent = Unsent { node, leases: unknown.iter().map(|n| asked.finished[*n].0).collect() };
    let found = find(node, asked, &unknown, now).await?;
    unsent.leases.clear();
    let mut ended = Vec::new();
    for (n, found) in unknown.into_iter().zip(found) {
        match found {
            ReportFound::UnderWay(one) => ended.push(*one),
            ReportFound::Known(ack) => node.remote.sessions().acknowledge(asked.finished[n].0, ack),
        }
    }
    node.post(ended);
    Ok(())
}

/// Reports that are being looked at and not yet sent on. If their worker hangs up, or
/// the store does not answer, they are to be made again.
struct Unsent<'n> {
    node: &'n Arc<Node>,
    leases: Vec<Lease>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        for lease in self.leases.iter().filter(|_| !planted::is(Bug::ReportLeftBehind)) {
            self.node.remote.sessions().acknowledge(*lease, ReportAck::Pending);
        }
    }
}

/// What the store knows of a report that this node did not expect.
enum ReportFound {
    UnderWay(Box<Ended>),
    Known(ReportAck),
}

async fn find(
    node: &Arc<Node>,
    asked: &Exchange,
    unknown: &[usize],
    now: Timestamp,
) -> Result<Vec<ReportFound>, StoreError> {
    let ids: Vec<_> = unknown.iter().map(|n| asked.finished[*n].0.run).collect();
    let mut found = Vec::with_capacity(unknown.len());
    for (n, record) in unknown.iter().zip(node.store.runs(&ids).await?) {
        let (lease, report) = &asked.finished[*n];
        let record = record.filter(|record| record.run.tenant == asked.hello.tenant);
        found.push(match record {
            Some(record) if record.run.lease() == *lease && is_under_way(&record.run, &asked.hello) => {
                let job = node.catalog.version(record.run.job, record.run.version).await?;
                let (run, end) = (record.run, end_of(report));
                ReportFound::UnderWay(Box::new(Ended {
                    run,
                    by: By::Lease,
                    end,
                    at: now,
                    job,
                    origin: Origin::Reported,
                }))
            }
            Some(record) if report.stands(*lease, &record) => ReportFound::Known(ReportAck::Applied),
            Some(_) | None => ReportFound::Known(ReportAck::Stale),
        });
    }
    Ok(found)
}

fn end_of(report: &Report) -> End {
    match report {
        Report::Outcome(outcome) => End::Outcome(outcome.clone()),
        Report::HandedBack => End::Stopped,
    }
}

fn ended_of(assigned: Assigned, report: &Report, now: Timestamp) -> Ended {
    let (by, end) = (By::Lease, end_of(report));
    Ended { run: assigned.run, by, end, at: now, job: Some(assigned.job), origin: Origin::Reported }
}

/// A report that the store refused may be one that it took before, when its
/// answer was lost.
async fn check_stale(node: &Arc<Node>, asked: &Exchange, acks: &mut [ReportAck]) -> Result<(), StoreError> {
    let stale: Vec<usize> = (0..acks.len()).filter(|n| acks[*n] == ReportAck::Stale).collect();
    if stale.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = stale.iter().map(|n| asked.finished[*n].0.run).collect();
    for (n, record) in stale.into_iter().zip(node.store.runs(&ids).await?) {
        let (lease, report) = &asked.finished[n];
        let ours = |record: &RunRecord| record.run.tenant == asked.hello.tenant;
        if record.filter(ours).is_some_and(|record| report.stands(*lease, &record)) {
            acks[n] = ReportAck::Applied;
        }
    }
    Ok(())
}

/// Gives back what was leased to a worker and never reached it.
pub(crate) fn hand_back(node: &Node, back: Vec<Assigned>, now: Timestamp) {
    let back = back.into_iter().map(|assigned| ended_of(assigned, &Report::HandedBack, now));
    let back = back.map(|ended| Ended { end: End::HandedBack, origin: Origin::Decided, ..ended });
    node.post(back.collect());
}

/// Ends runs that were asked to stop before their worker heard of them.
pub(crate) fn cancel_unheard(node: &Node, unheard: Vec<Assigned>, now: Timestamp) {
    let report = Report::Outcome(Outcome::Cancelled);
    let ended = unheard.into_iter().map(|assigned| ended_of(assigned, &report, now));
    node.post(ended.map(|ended| Ended { origin: Origin::Decided, ..ended }).collect());
}

/// Extends the worker's leases and compares its list with the store's, if it is
/// time.
async fn compare(
    poll: &PollGuard<'_>,
    asked: &Exchange,
    answer: &mut ExchangeAnswer,
    now: Timestamp,
) -> Result<(), StoreError> {
    let PollGuard { node, worker, .. } = *poll;
    let held: Vec<Lease> = {
        let mut sessions = node.remote.sessions();
        let Some(session) = sessions.get_mut(worker) else { return Ok(()) };
        let known = asked.leases.iter().all(|lease| session.holds(*lease));
        let due = session.extended_at.is_none_or(|at| now >= node.options.extend_every.after(at));
        // One that this node has not met may be leased what it never heard of.
        let something = !asked.leases.is_empty() || !session.assigned.is_empty() || session.may_not_have_heard();
        // What this exchange lists was said before or after that.
        let judges = session.is_to_be_judged(poll.began_at, node.options.extend_every.before(now));
        if !(session.compare || judges || something && (due || !known)) {
            return Ok(());
        }
        session.compare = false;
        asked.leases.iter().copied().chain(session.kept_leases()).collect()
    };
    let until = node.options.run_lease.after(now);
    let extended = node.store.extend(worker, until, &held, now).await?;
    let lost: HashSet<_> = extended.lost.iter().copied().collect();
    let (lost, held): (Vec<Lease>, Vec<Lease>) = held.into_iter().partition(|lease| lost.contains(&lease.run));
    let (unlisted_since, ignored) = take_compared(poll, asked, answer, &lost, &extended.unlisted, now);
    lose_ignored(node, &asked.hello, &ignored, now).await?;
    adopt(node, asked, answer, &held, &extended.cancelling, now).await?;
    redeliver(poll, &asked.hello, unlisted_since, now).await?;
    stop_overdue(node, worker, &held, now);
    Ok(())
}

/// Takes in what a comparison brought, and answers the leases whose handing over was
/// not heard: the store had them before the worker made its list, for longer than they
/// can be in another node's outgoing queue, and the list has not; and those that it ignores.
fn take_compared(
    poll: &PollGuard<'_>,
    asked: &Exchange,
    answer: &mut ExchangeAnswer,
    lost: &[Lease],
    unlisted: &[Lease],
    now: Timestamp,
) -> (Vec<(Lease, Timestamp)>, Vec<Lease>) {
    let PollGuard { node, began_at, .. } = *poll;
    let reported: HashSet<Lease> = asked.finished.iter().map(|(lease, _)| *lease).collect();
    let mut sessions = node.remote.sessions();
    let on_its_way: HashSet<Lease> =
        unlisted.iter().copied().filter(|lease| reported.contains(lease) || sessions.is_settling(*lease)).collect();
    let Some(session) = sessions.get_mut(asked.hello.worker) else { return (Vec::new(), Vec::new()) };
    session.extended_at = Some(now);
    let gone: HashSet<Lease> = lost.iter().copied().collect();
    session.drop_kept(&gone);
    session.assigned.retain(|_, assigned| !gone.contains(&assigned.run.lease()));
    answer.lost.extend(asked.leases.iter().filter(|lease| gone.contains(lease)));
    let kept: HashSet<Lease> = session.kept_leases().collect();
    session.redelivered.retain(|lease, _| unlisted.contains(lease) || kept.contains(lease));
    let ignored: Vec<Lease> =
        unlisted.iter().copied().filter(|lease| session.ignores(*lease) && !kept.contains(lease)).collect();
    let on_its_way = |lease: &Lease| on_its_way.contains(lease);
    let unlisted: HashSet<Lease> = unlisted
        .iter()
        .copied()
        .filter(|lease| !kept.contains(lease) && !on_its_way(lease) && !session.ignores(*lease))
        .collect();
    // The store may have answered late, with what was leased since it was asked.
    let heard_at = node.clock.now();
    let since = |lease: &Lease| session.unlisted_since.get(lease).copied().unwrap_or(heard_at);
    let unlisted_since: HashMap<Lease, Timestamp> = unlisted.iter().map(|lease| (*lease, since(lease))).collect();
    let long_ago = node.options.extend_every.before(now);
    let unheard = |since: Timestamp| since < began_at && since <= long_ago || planted::is(Bug::HandedOverTwice);
    let mut again: Vec<(Lease, Timestamp)> =
        unlisted_since.iter().filter(|(_, since)| unheard(**since)).map(|(lease, since)| (*lease, *since)).collect();
    again.sort_unstable_by_key(|(lease, _)| lease.run);
    // What is neither listed nor in the store's list is over.
    let listed: HashSet<Lease> = asked.leases.iter().copied().collect();
    session.assigned.retain(|_, assigned| {
        let lease = assigned.run.lease();
        listed.contains(&lease) || unlisted.contains(&lease) || on_its_way(&lease)
    });
    session.unlisted_since = unlisted_since;
    (again, ignored)
}

/// Takes attempts from a worker that ignores them although it was handed them often
/// enough: they are lost, as if it had vanished. Its other leases are extended all the
/// same, and these with them.
async fn lose_ignored(node: &Arc<Node>, hello: &Hello, ignored: &[Lease], now: Timestamp) -> Result<(), StoreError> {
    if ignored.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ignored.iter().map(|lease| lease.run).collect();
    for record in node.store.runs(&ids).await?.into_iter().flatten() {
        let run = record.run;
        if run.tenant != hello.tenant || !ignored.contains(&run.lease()) {
            continue;
        }
        let Ok(change) = run.lose(node.options.losses_max, now) else { continue };
        tracing::warn!(
            worker = %hello.name, run = %run.id,
            "the worker ignores an attempt that it was handed {REDELIVERIES_MAX} times: the attempt is lost"
        );
        let end = End::Decided(Box::new(change));
        node.post(vec![Ended::decided(run, By::Lease, end, now)]);
    }
    Ok(())
}

/// Learns what it must know of attempts that another node handed over, and of
/// those that were asked to stop.
async fn adopt(
    node: &Arc<Node>,
    asked: &Exchange,
    answer: &mut ExchangeAnswer,
    held: &[Lease],
    cancelling: &[rota_core::ids::RunId],
    now: Timestamp,
) -> Result<(), StoreError> {
    let stopping: HashSet<_> = cancelling.iter().copied().collect();
    let wanted: Vec<_> = {
        let mut sessions = node.remote.sessions();
        let Some(session) = sessions.get_mut(asked.hello.worker) else { return Ok(()) };
        held.iter()
            .filter(|lease| stopping.contains(&lease.run) || !session.holds(**lease))
            .map(|lease| lease.run)
            .collect()
    };
    if wanted.is_empty() {
        return Ok(());
    }
    let held: HashSet<Lease> = held.iter().copied().collect();
    for record in node.store.runs(&wanted).await?.into_iter().flatten() {
        let run = record.run;
        if !held.contains(&run.lease()) || run.tenant != asked.hello.tenant {
            continue;
        }
        // What has not been handed over is not handed over any more.
        let is_unheard = run.cancel.is_some() && {
            let mut sessions = node.remote.sessions();
            sessions.get_mut(asked.hello.worker).is_some_and(|session| session.forget_unheard(run.lease()))
        };
        let told = !is_unheard && !planted::is(Bug::CancelNotPassedOn);
        if let Some(request) = run.cancel.as_ref().filter(|_| told) {
            answer.stops.push(Stop { lease: run.lease(), grace_until: request.grace_until.max(now) });
        }
        let Some(job) = node.catalog.version(run.job, run.version).await? else { continue };
        if is_unheard {
            cancel_unheard(node, vec![Assigned { run, job, deadline_at: None, log_bytes: 0 }], now);
            continue;
        }
        let timeout = job.step.as_ref().and_then(|step| step.timeout);
        let deadline_at = timeout.map(|timeout| timeout.after(run.state.started_at().unwrap_or(now)));
        let mut sessions = node.remote.sessions();
        if let Some(session) = sessions.get_mut(asked.hello.worker) {
            if run.losses >= node.options.alone_from {
                session.alone = Some((run.lease(), APART.after(now)));
            }
            let assigned = Assigned { run, job, deadline_at, log_bytes: 0 };
            session.assigned.entry(assigned.run.id).or_insert(assigned);
        }
    }
    Ok(())
}

/// Whether another node may be holding a leased run back, so that its worker has not been
/// told of it: until it can be alone, or for its rate.
fn may_be_held(node: &Node, run: &Run, job: &JobVersion) -> bool {
    run.losses >= node.options.alone_from || job.rate.is_some()
}

/// Puts attempts into the outgoing queue whose handing over was not heard; for a worker
/// that takes no more, gives them back. What another node may be holding back is given
/// back after [`HELD_FOR`]: handed over under the same lease, it could be executed here
/// and given back there.
async fn redeliver(
    poll: &PollGuard<'_>,
    hello: &Hello,
    unlisted_since: Vec<(Lease, Timestamp)>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let node = poll.node;
    if unlisted_since.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = unlisted_since.iter().map(|(lease, _)| lease.run).collect();
    let unlisted_since: HashMap<Lease, Timestamp> = unlisted_since.into_iter().collect();
    for record in node.store.runs(&ids).await?.into_iter().flatten() {
        let run = record.run;
        let Some(since) = unlisted_since.get(&run.lease()).filter(|_| run.tenant == hello.tenant) else { continue };
        let Some(job) = node.catalog.version(run.job, run.version).await? else { continue };
        let held = may_be_held(node, &run, &job);
        if held && poll.began_at < HELD_FOR.after(*since) {
            continue;
        }
        if run.cancel.is_some() {
            cancel_unheard(node, vec![Assigned { run, job, deadline_at: None, log_bytes: 0 }], now);
            continue;
        }
        let back = match prepare(node, &run, &job, now) {
            Ok(prepared) if !hello.draining && !held => match node.remote.sessions().get_mut(hello.worker) {
                Some(session) => {
                    session.assigned.remove(&run.id);
                    session.unlisted_since.remove(&run.lease());
                    session.count_redelivery(run.lease());
                    // Another node may do the same: the store is asked again before it goes.
                    session.put(outgoing(run, job, prepared, *since));
                    None
                }
                None => Some(run),
            },
            Ok(_) | Err(_) => Some(run),
        };
        if let Some(run) = back {
            node.post(vec![Ended::decided(run, By::Lease, End::HandedBack, now)]);
        }
    }
    Ok(())
}

/// What is handed to a worker.
pub(crate) fn outgoing(run: Run, job: Arc<JobVersion>, prepared: Prepared, put_at: Timestamp) -> Outgoing {
    let bytes = 512 + run.payload.as_ref().map_or(0, |payload| payload.len()) + job.size;
    let deadline_at = prepared.attempt.deadline_at;
    let work = super::Work {
        attempt: prepared.attempt,
        job_name: job.document.name.clone(),
        step_id: prepared.step_id,
        labels: run.labels.clone(),
        trigger: run.trigger.clone(),
        timeout: job.step.as_ref().and_then(|step| step.timeout),
        cancelable: job.step.as_ref().is_none_or(|step| step.cancelable),
        alone: false,
    };
    Outgoing { assigned: Assigned { run, job, deadline_at, log_bytes: 0 }, work, bytes, put_at }
}

/// A worker stops its attempts at their deadline itself. One that does not, and
/// goes on saying that it lives, is not waited for.
///
/// The worker hears that the attempt is lost when the store has taken its end, and not
/// from here: one that had dropped it on the say of a node that then died would hold a
/// lease that nobody ends.
fn stop_overdue(node: &Arc<Node>, worker: WorkerId, held: &[Lease], now: Timestamp) {
    let long_ago = node.options.run_lease.before(now);
    let overdue: Vec<Assigned> = {
        let mut sessions = node.remote.sessions();
        let Some(session) = sessions.get_mut(worker) else { return };
        held.iter().filter_map(|lease| session.take_overdue(*lease, long_ago)).collect()
    };
    let failed = || Failure::new(ErrorKind::Timeout, "its worker did not stop it when its time was over");
    let ended =
        overdue.into_iter().map(|assigned| ended_of(assigned, &Report::Outcome(Outcome::Failed(failed())), now));
    node.post(ended.map(|ended| Ended { origin: Origin::Decided, ..ended }).collect());
}
