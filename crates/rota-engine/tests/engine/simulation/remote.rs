//! The remote workers of a world, and what befalls them and their exchanges.
//!
//! Workers speak through the call that the route makes, to any node and to another one
//! the next time. A worker that hangs up drops the exchange wherever it waits, as the
//! server does; a node that dies breaks those it has. A request may come late, an answer
//! late or never, and a proxy may send a request to a second node. Workers are killed,
//! stopped, asked to drain and started again under another id.
//!
//! Seen from here: a lease is handed to the worker that holds it and executed once by
//! all; what was answered for stands; a cancel reaches its attempt.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{RunId, TenantId, WorkerId},
    job::JobDocument,
    ports::Seeded,
    run::{Lease, Report, RunState},
};
use rota_engine::{
    Cancel, Handle, JobRef, RunAsk,
    node::Node,
    remote::{Exchange, ExchangeAnswer, ExchangeError, Hello, Offer, ReportAck},
};
use serde_json::{Value, json};

use super::{
    ledger::Ledger,
    weather::{Dice, Weather, Wire},
    witness::Witness,
    worker::Worker,
};

/// Runs that kill their workers.
const VENOM_MAX: usize = 3;
/// What the storm left behind is over so long after it: late calls, leases, backoff.
const CALM_AFTER: Span = Span::secs(20);
/// Without faults who says something is answered within this time.
const ANSWERED_WITHIN: Span = Span::secs(6);
/// A worker that speaks is told of a cancel within this time, also if some answers to it
/// are lost.
const CANCEL_WITHIN: Span = Span::secs(7);
/// Mail is not older than this when it is handed over without having been compared with
/// the store, by any clock.
const MAIL_AGE: Span = Span::secs(4);

/// A lease that is not listed is no older than this when nobody doubts it yet.
const HANDED_AGAIN_AFTER: Span = Span::millis(1_500);

type Exchanging = Pin<Box<dyn Future<Output = Result<ExchangeAnswer, ExchangeError>>>>;
type Op = Pin<Box<dyn Future<Output = ()>>>;

/// A node as workers reach it.
pub struct Reach {
    pub process: usize,
    pub node: Arc<Node>,
    pub wire: Arc<Wire>,
    /// It is not stopped.
    pub runs: bool,
}

/// The world around the workers.
pub struct Around<'w> {
    pub weather: &'w Weather,
    pub witness: &'w Witness,
    pub ledger: &'w Ledger,
    pub tenant: TenantId,
    pub nodes: Vec<Reach>,
}

impl Around<'_> {
    fn now(&self) -> Timestamp {
        self.weather.now()
    }

    fn pick(&self) -> Option<&Reach> {
        self.weather.dice.pick(&self.nodes)
    }
}

/// An exchange at a node.
struct Call {
    ticket: u64,
    worker: WorkerId,
    process: usize,
    asked: Option<Exchange>,
    /// The request arrives then.
    begins_at: Timestamp,
    exchange: Option<Exchanging>,
    listed: Vec<Lease>,
    in_haste: bool,
    /// The node cannot know that the worker is gone.
    open: bool,
}

/// Where a worker runs, dead or alive.
struct Site {
    worker: Option<Worker>,
    starts_at: Timestamp,
    offer: Offer,
    slots: u32,
    careless: bool,
}

/// See the module.
pub struct Fleet {
    sites: Vec<Site>,
    calls: Vec<Call>,
    /// Answers on their way; none for a connection that broke.
    answers: Vec<(Timestamp, u64, Option<ExchangeAnswer>)>,
    asks: Vec<(usize, Op)>,
    tickets: u64,
    started: usize,
    venom: usize,
    executed: HashMap<Lease, WorkerId>,
    /// When a node first handed a lease over.
    handed: HashMap<Lease, Timestamp>,
    /// Since when a worker has been answered without hearing of a cancel.
    untold: HashMap<Lease, Timestamp>,
    calm_since: Option<Timestamp>,
    pub last_death: Timestamp,
    names: Seeded,
    seed: u64,
}

fn step(handler: &str) -> Value {
    json!([{ "id": "s", "handler": { "name": handler } }])
}

/// Jobs for remote workers, and one whose runs are held back by nodes for their rate.
pub fn jobs(dice: &Dice) -> Vec<JobDocument> {
    let retry =
        json!({ "max_attempts": 3, "backoff": "fixed", "initial": "400ms", "on": { "kinds": ["handler", "timeout"] } });
    let every =
        |name: &str, seconds: u64| json!([{ "name": name, "every": format!("{seconds}s"), "overlap": "allow" }]);
    let jobs = [
        json!({ "name": "away", "steps": step("far"), "cancel": { "grace": "2s" }, "schedules": every("s0", dice.between(3, 7)) }),
        json!({ "name": "brief", "steps": step("far"), "queue": "side", "timeout": "1500ms", "schedules": every("s0", 7) }),
        json!({ "name": "lamp", "steps": step("far"), "requires": ["lamp"], "exclusive": true, "schedules": every("s0", 9) }),
        json!({ "name": "paced", "steps": step("far"), "rate_limit": { "runs": 2, "per": "3s" }, "schedules": every("s0", 6) }),
        json!({ "name": "metered", "steps": step("act"), "rate_limit": { "runs": 2, "per": "3s" }, "schedules": every("s0", 4) }),
        json!({ "name": "venom", "steps": step("venom") }),
    ];
    let with_retry = |mut job: Value| {
        job["retry"] = retry.clone();
        JobDocument::from_value(job).unwrap()
    };
    jobs.into_iter().map(with_retry).collect()
}

/// What the workers of a world offer. Together they take every lane.
fn offers(dice: &Dice) -> Vec<Offer> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let of = |queues: &[&str], traits: &[&str], handlers: &[&str]| Offer {
        queues: names(queues),
        traits: names(traits),
        handlers: names(handlers),
        kinds: Vec::new(),
    };
    let mut offers = vec![of(&[], &["lamp"], &["far", "venom"]), of(&["default"], &[], &["far"])];
    if dice.percent(50) {
        offers.push(of(&[], &["gpu", "lamp"], &["act", "far", "venom"]));
    }
    offers
}

impl Fleet {
    pub fn new(weather: &Weather, seed: u64) -> Self {
        let dice = &weather.dice;
        let site = |offer| Site {
            worker: None,
            starts_at: weather.now(),
            offer,
            slots: dice.between(1, 5) as u32,
            careless: dice.percent(30),
        };
        Self {
            sites: offers(dice).into_iter().map(site).collect(),
            calls: Vec::new(),
            answers: Vec::new(),
            asks: Vec::new(),
            tickets: 0,
            started: 0,
            venom: 0,
            executed: HashMap::new(),
            handed: HashMap::new(),
            untold: HashMap::new(),
            calm_since: None,
            last_death: Timestamp::MIN,
            names: Seeded::new(seed ^ 0xF1EE7),
            seed,
        }
    }

    /// The storm is over: nothing befalls workers any more but their own attempts.
    pub fn calm(&mut self, now: Timestamp) {
        self.calm_since = Some(now);
        for worker in self.workers() {
            worker.stopped_until = None;
        }
    }

    /// Whether somebody asked for something and has not been answered.
    pub fn is_asking(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Whether nobody has anything in hand, or anything to say.
    pub fn is_at_rest(&self) -> bool {
        self.sites.iter().all(|site| site.worker.as_ref().is_some_and(Worker::is_idle))
    }

    fn workers(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.sites.iter_mut().filter_map(|site| site.worker.as_mut())
    }

    fn is_calm(&self, began_at: Timestamp) -> bool {
        self.calm_since.is_some_and(|since| CALM_AFTER.after(since) <= began_at)
    }

    /// Everybody gets a turn.
    pub fn turn(&mut self, around: &Around<'_>) {
        self.start_the_dead(around);
        if self.calm_since.is_none() {
            self.befall(around);
        }
        self.go_on_asking(around);
        self.go_on_exchanging(around);
        self.deliver(around);
        for site in 0..self.sites.len() {
            self.act(site, around);
        }
    }

    fn start_the_dead(&mut self, around: &Around<'_>) {
        let now = around.now();
        for site in self.sites.iter_mut().filter(|site| site.worker.is_none() && site.starts_at <= now) {
            let number = self.started;
            self.started += 1;
            let hello = Hello {
                worker: WorkerId::new(&self.names, now),
                tenant: around.tenant,
                name: format!("worker {number}"),
                version: "1".into(),
                offer: site.offer.clone(),
                slots: site.slots,
                draining: false,
            };
            around.weather.note(|| format!("worker {number} starts as {}", hello.worker));
            site.worker = Some(Worker::new(number, hello, site.careless, self.seed));
        }
    }

    /// What the storm does to one of them, and what people want of them.
    fn befall(&mut self, around: &Around<'_>) {
        let (weather, now) = (around.weather, around.now());
        let dice = &weather.dice;
        let living: Vec<usize> = (0..self.sites.len()).filter(|n| self.sites[*n].worker.is_some()).collect();
        let Some(site) = dice.pick(&living).copied() else { return };
        let Some(worker) = &mut self.sites[site].worker else { return };
        let number = worker.number;
        match dice.below(100) {
            0..3 => {
                weather.fault(|| format!("worker {number} is killed"));
                let open = dice.percent(50);
                self.kill(site, open, around);
            }
            3..7 => {
                worker.stopped_until = Some(Span::millis(dice.between(500, 11_000)).after(now));
                weather.fault(|| format!("worker {number} is stopped"));
            }
            7..9 => {
                worker.drain(now, Span::millis(dice.between(0, 4_000)));
                weather.fault(|| format!("worker {number} drains"));
            }
            9 => {
                let worker = worker.id();
                self.ask(around, |handle, tenant| {
                    Box::pin(async move { drop(handle.drain_worker(Some(tenant), worker).await) })
                });
            }
            10..18 => {
                let Some(ticket) = dice.pick(&worker.tickets()).copied() else { return };
                weather.fault(|| format!("worker {number} hangs up {ticket}"));
                worker.broke(ticket, now);
            }
            18..26 => self.trigger(around),
            26..31 => {
                let Some(run) = worker.longest() else { return };
                weather.note(|| format!("run {run} is to be cancelled"));
                self.ask(around, move |handle, _| Box::pin(cancel(handle, run)));
            }
            _ => {}
        }
    }

    fn trigger(&mut self, around: &Around<'_>) {
        let dice = &around.weather.dice;
        let name = *dice.pick(&["away", "brief", "lamp", "venom", "venom"]).unwrap();
        let mut count = dice.between(1, 4);
        if name == "venom" {
            count = count.min(VENOM_MAX.saturating_sub(self.venom) as u64);
            self.venom += count as usize;
        }
        for _ in 0..count {
            self.ask(around, move |handle, tenant| {
                let ask = RunAsk::of(tenant, JobRef::Name(name.into()));
                Box::pin(async move { drop(handle.enqueue(vec![ask]).await) })
            });
        }
    }

    fn ask(&mut self, around: &Around<'_>, op: impl FnOnce(Handle, TenantId) -> Op) {
        if let Some(reach) = around.pick() {
            self.asks.push((reach.process, op(Handle::new(Arc::clone(&reach.node)), around.tenant)));
        }
    }

    fn go_on_asking(&mut self, around: &Around<'_>) {
        let mut context = Context::from_waker(Waker::noop());
        self.asks.retain_mut(|(process, op)| match around.nodes.iter().find(|reach| reach.process == *process) {
            Some(reach) => !reach.runs || op.as_mut().poll(&mut context).is_pending(),
            None => false,
        });
    }

    fn kill(&mut self, site: usize, open: bool, around: &Around<'_>) {
        let now = around.now();
        let Some(worker) = self.sites[site].worker.take() else { return };
        around.weather.note(|| format!("worker {} is dead", worker.number));
        self.last_death = now;
        self.sites[site].starts_at = Span::millis(around.weather.dice.between(100, 6_000)).after(now);
        for call in self.calls.iter_mut().filter(|call| call.worker == worker.id()) {
            call.open = open;
        }
    }

    /// Exchanges go on whose nodes do.
    fn go_on_exchanging(&mut self, around: &Around<'_>) {
        for call in std::mem::take(&mut self.calls) {
            let Some(reach) = around.nodes.iter().find(|reach| reach.process == call.process) else {
                self.answers.push((around.now(), call.ticket, None));
                continue;
            };
            let hung_up = !call.open && !self.workers().any(|worker| worker.has_flight(call.ticket));
            if !reach.runs || !hung_up && around.now() < call.begins_at {
                self.calls.push(call);
            } else if !hung_up {
                self.go_on_with(call, reach, around);
            }
        }
    }

    fn go_on_with(&mut self, mut call: Call, reach: &Reach, around: &Around<'_>) {
        let now = around.now();
        if let Some(asked) = call.asked.take() {
            call.begins_at = now;
            let handle = Handle::new(Arc::clone(&reach.node));
            let exchange = async move { handle.exchange(asked).await };
            call.exchange = Some(Box::pin(tokio::task::unconstrained(exchange)));
        }
        let Some(exchange) = &mut call.exchange else { return };
        match exchange.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {
                if call.in_haste && self.is_calm(call.begins_at) && ANSWERED_WITHIN.after(call.begins_at) < now {
                    around.witness.accuse(format!(
                        "{} is not answered by {} although it says something",
                        call.worker, call.process
                    ));
                }
                self.calls.push(call);
            }
            Poll::Ready(Ok(answer)) => {
                Self::check_given(&call, &answer, reach, around);
                self.check_once(&call, &answer, around);
                self.check_cancels(&call, &answer, around);
                self.send(call.ticket, Some(answer), around);
            }
            Poll::Ready(Err(_)) => self.send(call.ticket, None, around),
        }
    }

    /// An answer goes on its way.
    fn send(&mut self, ticket: u64, answer: Option<ExchangeAnswer>, around: &Around<'_>) {
        let (weather, now) = (around.weather, around.now());
        let (at, answer) = match weather.dice.below(100) {
            _ if self.calm_since.is_some() => (now, answer),
            0..5 => {
                weather.fault(|| format!("the answer to {ticket} is lost"));
                (now, None)
            }
            5..10 => {
                weather.fault(|| format!("the answer to {ticket} is late"));
                (Span::millis(weather.dice.between(50, 7_000)).after(now), answer)
            }
            _ => (now, answer),
        };
        self.answers.push((at, ticket, answer));
    }

    /// Answers arrive.
    fn deliver(&mut self, around: &Around<'_>) {
        let now = around.now();
        for (at, ticket, answer) in std::mem::take(&mut self.answers) {
            let Some(worker) = self.workers().find(|worker| worker.has_flight(ticket)) else { continue };
            if now < at || worker.stopped_until.is_some() {
                self.answers.push((at, ticket, answer));
                continue;
            }
            let Some(answer) = answer else {
                worker.broke(ticket, now);
                continue;
            };
            let (id, number) = (worker.id(), worker.number);
            let Some(heard) = worker.hear(ticket, answer, now) else { continue };
            for lease in heard.begun {
                around.weather.note(|| format!("worker {number} begins {} at fence {}", lease.run, lease.fence.0));
                if let Some(other) = self.executed.insert(lease, id) {
                    around.witness.accuse(format!("{lease:?} is executed by {other} and by {id}"));
                }
            }
            for (lease, report, told) in heard.told {
                check_told(lease, &report, told, around);
            }
        }
    }

    /// One worker goes on by itself.
    fn act(&mut self, site: usize, around: &Around<'_>) {
        let (weather, now) = (around.weather, around.now());
        let Some(worker) = &mut self.sites[site].worker else { return };
        if worker.stopped_until.is_some_and(|until| now < until) {
            return;
        }
        worker.stopped_until = None;
        if let Some(run) = worker.dies_of(now) {
            weather.note(|| format!("worker {} dies of {run}", worker.number));
            around.ledger.write(|pages| *pages.deaths.entry(run).or_default() += 1);
            return self.kill(site, false, around);
        }
        worker.go_on(around.ledger, now);
        let calm = self.is_calm(now);
        let Some(worker) = &mut self.sites[site].worker else { return };
        if calm && let Some(lease) = worker.unanswered_since(CALM_AFTER.before(now)) {
            around.witness.accuse(format!("the report of {lease:?} by {} is not answered for", worker.id()));
        }
        self.tickets += 1;
        let asked = worker.next(self.tickets, now);
        if worker.is_gone() {
            weather.note(|| format!("worker {} has left", worker.number));
            return self.kill(site, false, around);
        }
        if let Some(asked) = asked {
            self.begin(asked, around);
        }
    }

    /// A request goes on its way; now and then to two nodes.
    fn begin(&mut self, asked: Exchange, around: &Around<'_>) {
        let (weather, now) = (around.weather, around.now());
        let stormy = self.calm_since.is_none();
        let Some(reach) = around.pick() else {
            return self.answers.push((now, self.tickets, None));
        };
        let begins_at = if stormy && weather.dice.percent(5) {
            weather.fault(|| format!("exchange {} comes late", self.tickets));
            Span::millis(weather.dice.between(50, 8_000)).after(now)
        } else {
            now
        };
        let call = Call {
            ticket: self.tickets,
            worker: asked.hello.worker,
            process: reach.process,
            begins_at,
            exchange: None,
            listed: asked.leases.clone(),
            in_haste: !(asked.finished.is_empty() && asked.progress.is_empty() && asked.logs.is_empty()),
            open: false,
            asked: Some(asked),
        };
        weather.note(|| format!("exchange {} of {} with {}", call.ticket, call.worker, call.process));
        if stormy
            && weather.dice.percent(4)
            && let Some(second) = around.pick()
        {
            weather.fault(|| format!("exchange {} goes to {} as well", call.ticket, second.process));
            self.tickets += 1;
            let asked = call.asked.clone();
            let twin = Call {
                ticket: self.tickets,
                process: second.process,
                exchange: None,
                asked,
                listed: call.listed.clone(),
                open: true,
                ..call
            };
            self.calls.push(twin);
        }
        if reach.runs && begins_at <= now {
            self.go_on_with(call, reach, around);
        } else {
            self.calls.push(call);
        }
    }

    /// A node hands over what the worker holds, and no lease that ended long before.
    fn check_given(call: &Call, answer: &ExchangeAnswer, reach: &Reach, around: &Around<'_>) {
        let now = around.now();
        for lease in answer.attempts.iter().map(|work| work.attempt.lease) {
            let holder = around.witness.holder(lease);
            if holder != Some(call.worker) {
                around.witness.accuse(format!("{lease:?} is handed to {} and leased to {holder:?}", call.worker));
            }
            let over_at = around.witness.over_at(lease);
            // A comparison whose answer came late may be out of date.
            let was_late = reach.wire.was_late_since(call.begins_at);
            if !was_late && over_at.is_some_and(|at| MAIL_AGE.after(at) < now) {
                around
                    .witness
                    .accuse(format!("{lease:?} is handed out by {} and was over at {over_at:?}", call.process));
            }
        }
    }

    /// What was handed over is handed over again when it may have been lost, not at once.
    fn check_once(&mut self, call: &Call, answer: &ExchangeAnswer, around: &Around<'_>) {
        let now = around.now();
        for lease in answer.attempts.iter().map(|work| work.attempt.lease) {
            let Some(first) = self.handed.insert(lease, now) else { continue };
            let leased_at = around.witness.leased_at(lease);
            let at_once = leased_at.is_some_and(|at| now < HANDED_AGAIN_AFTER.after(at));
            if at_once {
                around.witness.accuse(format!(
                    "{lease:?}, leased at {leased_at:?}, is handed to {} at {first} and again by {}",
                    call.worker, call.process
                ));
            }
        }
    }

    /// A worker that lists a run that is to stop hears of it.
    fn check_cancels(&mut self, call: &Call, answer: &ExchangeAnswer, around: &Around<'_>) {
        let now = around.now();
        for lease in &call.listed {
            let told = answer.stops.iter().any(|stop| stop.lease == *lease) || answer.lost.contains(lease);
            let asked_at = around
                .witness
                .run(lease.run)
                .filter(|run| run.lease() == *lease && matches!(run.state, RunState::Cancelling { .. }));
            let asked_at = asked_at.and_then(|run| run.cancel).map(|cancel| cancel.at);
            match asked_at.filter(|at| Span::secs(1).after(*at) < call.begins_at) {
                Some(_) if !told => {
                    let since = *self.untold.entry(*lease).or_insert(now);
                    if CANCEL_WITHIN.after(since) < now {
                        around.witness.accuse(format!("{} is not told that {lease:?} is to stop", call.worker));
                    }
                }
                _ => drop(self.untold.remove(lease)),
            }
        }
    }
}

/// What a worker is told of its report is so.
fn check_told(lease: Lease, report: &Report, told: ReportAck, around: &Around<'_>) {
    let Some(record) = around.witness.record(lease.run) else { return };
    let stands = report.stands(lease, &record);
    let under_way = record.run.lease() == lease
        && matches!(record.run.state, RunState::Running { .. } | RunState::Cancelling { .. });
    let wrong = match told {
        ReportAck::Applied => !stands,
        ReportAck::Stale => stands || under_way,
        ReportAck::Pending => false,
    };
    if wrong {
        let state = &record.run.state;
        around.witness.accuse(format!(
            "{report:?} of {lease:?} was answered {told:?} and the run is {state:?} at {:?}",
            record.run.fence
        ));
    }
}

/// Long enough for it to be heard of although exchanges fail.
async fn cancel(handle: Handle, run: RunId) {
    let ask = Cancel { by: None, reason: None, grace: Some(Span::secs(25)) };
    drop(handle.cancel(&[run], &ask).await);
}
