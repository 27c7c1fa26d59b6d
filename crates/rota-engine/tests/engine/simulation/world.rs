//! A world: a few processes on one store, and what befalls them.
//!
//! Processes are nodes with the real stages. Their passes are begun by the world
//! in an order drawn by chance, and go on when the calls they wait for have been
//! answered. A process may be killed at any call, losing all it knew, or be
//! stopped and go on later as if nothing had been.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use jiff::Timestamp;
use rota_core::{
    duration::Span,
    ids::{BatchId, Partition, TenantId},
    ports::{Hints, Seeded, Topic},
    store::{Ends, Pause, PauseTarget, Store, StoreError, Write},
};
use rota_engine::{
    Engine, Event, Handle, Options,
    executors::Call,
    node::Node,
    stages::{
        PassReport, Stage, admit::Admit, assign::Assign, chain::Chain, claim::Claim, dispatch::Dispatch, fire::Fire,
        heartbeat::Heartbeat, lead::Lead, look::Look, measure::Measure, promote::Promote, reap::Reap, scan::Scan,
        settle::Settle, sweep::Sweep, upkeep::Upkeep, withdraw::Withdraw,
    },
};
use rota_store::sqlite::SqliteStore;
use tokio::sync::broadcast;

use super::{
    clients::{self, Job},
    clocks::{self, ProcessClock},
    drains::{Gone, Stopping},
    ledger::Ledger,
    people::{People, Scene},
    planted::Bug,
    remote::{self, Around, Fleet, Reach},
    starts::Starts,
    tenants::{self, Rates},
    weather::{LossyHints, Weather, Wire},
    witness::{LOSSES_MAX, Witness},
};
use crate::{
    bed::at,
    faulty::{Faulty, wait},
};

/// Steps of the storm, or more until there was trouble enough: a story without
/// proves nothing.
const STEPS: usize = 200;
pub const FAULTS_MIN: usize = 50;
/// After the storm a run must end within this time of the last that did, and of the last
/// death that a poisonous run caused: those go on, a bounded number of them.
const CALM_MAX: Span = Span::secs(120);
/// Steps of the calm while schedules fire, and while what is left comes to its end.
const CALM_STEP: Span = Span::millis(400);
const REST_STEP: Span = Span::millis(1_200);
/// Runs that kill their processes.
const POISON_MAX: usize = 2;

/// What a process does first, one after the other, as the driver has it: nothing is done
/// by one that does not know the time, the nodes or the tenants.
const START: [&str; 3] = ["measure", "lead", "look"];

/// What a seed was told to do, and what came of it.
#[derive(Debug)]
pub struct Told {
    pub faults: usize,
    pub runs: usize,
    pub trace: Vec<String>,
}

/// What went wrong, with the last that happened before.
#[derive(Debug)]
pub struct Wrong {
    pub what: String,
    pub trace: Vec<String>,
}

type Pass = Pin<Box<dyn Future<Output = (Box<dyn Stage>, Result<PassReport, StoreError>)>>>;
pub type Op = Pin<Box<dyn Future<Output = ()>>>;

pub enum Turn {
    Idle(Box<dyn Stage>),
    Going(Pass),
    /// Between the two.
    Gone,
}

/// A stage of a process.
pub struct Post {
    pub turn: Turn,
    /// Begins nothing any more once its process drains.
    ends_early: bool,
    /// Comes again by itself at this time of the process's clock.
    due_at: Timestamp,
    /// How often it has been told that the clock was set.
    steps: Option<u64>,
    name: &'static str,
    /// Called by bells inside the process, which nobody here can hear.
    eager: bool,
    /// Called for a scan, which can be heard.
    scans: bool,
    topic: Option<Topic>,
    heard: u64,
}

pub struct Process {
    number: usize,
    pub node: Arc<Node>,
    clock: ProcessClock,
    /// How many of [`START`] it has done.
    started: usize,
    withdraw: Withdraw,
    /// When it must be called again.
    withdraw_at: Option<Timestamp>,
    wire: Arc<Wire>,
    pub posts: Vec<Post>,
    ops: Vec<Op>,
    stopped_until: Option<Timestamp>,
    stopping: Option<Stopping>,
    /// What it tells of itself.
    news: broadcast::Receiver<Event>,
}

/// A place where a process runs, dead or alive.
struct Site {
    worker: bool,
    process: Option<Process>,
    starts_at: Timestamp,
}

impl Site {
    /// Whether people can ask it.
    fn answers(&self) -> bool {
        !self.worker && self.process.as_ref().is_some_and(|process| process.started == START.len())
    }
}

pub struct World {
    weather: Arc<Weather>,
    store: Arc<dyn Store>,
    witness: Arc<Witness>,
    ledger: Arc<Ledger>,
    hints: Arc<LossyHints>,
    tenants: Vec<TenantId>,
    people: People,
    sites: Vec<Site>,
    fleet: Fleet,
    starts: Starts,
    jobs: Vec<Job>,
    started: usize,
    poisoned: usize,
    last_death: Timestamp,
    names: Seeded,
    seed: u64,
}

/// Tells the story of one seed.
pub fn tell(seed: u64, bug: Option<Bug>, trace_max: usize) -> Result<Told, Wrong> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let in_engine = if let Some(Bug::InEngine(bug)) = bug { Some(bug) } else { None };
    rota_engine::planted::plant(in_engine);
    runtime.block_on(async {
        let mut world = World::new(seed, bug, trace_max).await;
        let outcome = world.live().await;
        let trace = world.weather.trace();
        match outcome {
            Ok(()) => Ok(Told { faults: world.weather.faults(), runs: world.witness.runs_made(), trace }),
            Err(what) => Err(Wrong { what, trace }),
        }
    })
}

impl World {
    async fn new(seed: u64, bug: Option<Bug>, trace_max: usize) -> Self {
        let weather = Arc::new(Weather::new(seed, at(0), trace_max));
        let store: Arc<dyn Store> = Arc::new(SqliteStore::memory().unwrap());
        let tenants = tenants::put(store.as_ref(), at(0));
        let ledger = Arc::new(Ledger::new(seed));
        let witness = Witness::new(Arc::clone(&store), Arc::clone(&weather), Arc::clone(&ledger), bug);
        witness.with(|seen| seen.rates = Rates::of(&tenants));
        let schedulers = weather.dice.between(2, 4);
        let sites = (0..=schedulers).map(|n| Site { worker: n == schedulers, process: None, starts_at: at(0) });
        let hints = LossyHints { weather: Arc::clone(&weather), local: rota_engine::hints::LocalHints::default() };
        let sites = sites.collect();
        let mut world = Self {
            sites,
            fleet: Fleet::new(&weather, seed),
            starts: Starts::default(),
            jobs: clients::jobs(&weather.dice).into_iter().chain(tenants::jobs()).collect(),
            witness: Arc::new(witness),
            hints: Arc::new(hints),
            started: 0,
            poisoned: 0,
            last_death: Timestamp::MIN,
            names: Seeded::new(seed ^ 0x5EED),
            weather,
            store,
            ledger,
            tenants,
            people: People::default(),
            seed,
        };
        world.start_the_dead();
        for _ in 0..4 {
            world.pass_time(Span::millis(500)).await;
            world.turn_all().await;
        }
        let remote = remote::jobs(&world.weather.dice);
        let jobs = world.jobs.iter().map(|job| (job.owner, job.document()));
        for (owner, document) in jobs.chain(remote.into_iter().map(|document| (0, document))).collect::<Vec<_>>() {
            let handle = world.sites[0].process.as_ref().unwrap().handle();
            wait(clients::save(handle, world.tenants[owner], document)).unwrap();
        }
        world
    }

    async fn live(&mut self) -> Result<(), String> {
        self.weather.storm(true);
        let mut steps = 0..;
        while let Some(step) = steps.next()
            && (step < STEPS || self.weather.faults() < FAULTS_MIN)
        {
            self.step().await;
            self.witness.verdict()?;
            if step % 40 == 39 {
                self.review()?;
            }
        }
        self.weather.storm(false);
        self.calm().await
    }

    fn review(&self) -> Result<(), String> {
        self.witness.review(&self.write());
        self.witness.verdict()
    }

    fn write(&self) -> Write {
        let now = self.weather.store_now();
        Write {
            batch: BatchId::new(&self.names, now),
            now,
            node: None,
            generation: 0,
            request: None,
            ends: Ends::default(),
            dry_run: false,
        }
    }

    /// One step of the storm.
    async fn step(&mut self) {
        let dice = &self.weather.dice;
        let span = match dice.below(100) {
            0..15 => 0,
            15..80 => dice.between(1, 350),
            80..97 => dice.between(350, 900),
            _ => dice.between(900, 5_000),
        };
        self.pass_time(Span::millis(span)).await;
        self.befall();
        self.start_the_dead();
        self.ask();
        let running: Vec<usize> = self.running().collect();
        if let Some(site) = self.weather.dice.pick(&running).copied() {
            self.turn(site).await;
        }
        self.bury();
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        let runs = |site: &Site| site.process.as_ref().is_some_and(|process| process.stopped_until.is_none());
        (0..self.sites.len()).filter(move |n| runs(&self.sites[*n]))
    }

    /// Time goes on, parcels arrive, and whoever waited goes on.
    async fn pass_time(&mut self, span: Span) {
        let until = span.after(self.weather.now());
        // Exclusive attempts are stopped on their time, whatever else stands still.
        while let Some(at) = self.withdraw().await.filter(|at| *at < until) {
            self.weather.clock.set(at);
        }
        self.weather.clock.set(until);
        self.wake_the_stopped(until).await;
        self.weather.deliver();
        breathe().await;
        for site in self.running().collect::<Vec<_>>() {
            if let Some(process) = &mut self.sites[site].process {
                process.go_on(&self.weather);
            }
            breathe().await;
            self.stop_in_order(site);
            self.check_starts(site);
        }
        self.bury();
        self.turn_workers();
    }

    /// What a process executes it has a right to.
    fn check_starts(&mut self, site: usize) {
        if let Some(process) = &self.sites[site].process {
            self.starts.check(process.number, &process.node, &self.ledger, &self.witness);
        }
    }

    /// Processes that have started: nobody is served before, by a clock that may be hours off.
    fn started(&self) -> impl Iterator<Item = &Process> {
        self.sites.iter().filter_map(|site| site.process.as_ref()).filter(|process| process.started == START.len())
    }

    /// Remote workers and their exchanges go on.
    fn turn_workers(&mut self) {
        let reach = |process: &Process| Reach {
            process: process.number,
            node: Arc::clone(&process.node),
            wire: Arc::clone(&process.wire),
            runs: process.stopped_until.is_none(),
        };
        let around = Around {
            weather: &self.weather,
            witness: &self.witness,
            ledger: &self.ledger,
            tenant: self.tenants[0],
            nodes: self.started().map(reach).collect(),
        };
        self.fleet.turn(&around);
        self.last_death = self.last_death.max(self.fleet.last_death);
    }

    /// Whoever stood still for long goes on, and stops first what is not its own any more.
    async fn wake_the_stopped(&mut self, now: Timestamp) {
        for site in 0..self.sites.len() {
            let Some(process) = &mut self.sites[site].process else { continue };
            if process.stopped_until.is_none_or(|until| until > now) {
                continue;
            }
            let number = process.number;
            process.stopped_until = None;
            process.withdraw(now);
            process.clock.stop(false);
            breathe().await;
            self.ledger.freeze(number, false);
        }
    }

    /// Has every process stop what it may not go on with; says when to come again.
    async fn withdraw(&mut self) -> Option<Timestamp> {
        let now = self.weather.now();
        for site in self.running().collect::<Vec<_>>() {
            if let Some(process) = &mut self.sites[site].process {
                process.withdraw(now);
            }
        }
        breathe().await;
        let running = self.running().filter_map(|site| self.sites[site].process.as_ref()?.withdraw_at);
        running.filter(|at| now < *at).min()
    }

    /// A process that stops in order goes on with it.
    fn stop_in_order(&mut self, site: usize) {
        let now = self.weather.now();
        let Some(process) = &mut self.sites[site].process else { return };
        while let Ok(event) = process.news.try_recv() {
            if let Event::Found(finding) = event {
                self.witness.found(&finding);
            }
        }
        let Some(mut stopping) = process.stopping.take() else { return };
        let gone = stopping.go_on(process, now);
        process.stopping = Some(stopping);
        let Some(gone) = gone else { return };
        let worker = process.node.worker;
        self.weather.note(|| format!("{} leaves: {gone:?}", process.number));
        self.kill(site);
        if gone == Gone::InOrder {
            self.witness.left(worker);
        }
    }

    /// What the storm does to processes.
    fn befall(&mut self) {
        let weather = Arc::clone(&self.weather);
        let (dice, now) = (&weather.dice, weather.now());
        let Some(site) = dice.pick(&self.running().collect::<Vec<_>>()).copied() else { return };
        let Some(process) = &mut self.sites[site].process else { return };
        match dice.below(100) {
            0..2 => {
                weather.fault(|| format!("{} is killed", process.number));
                self.kill(site);
            }
            2..4 => {
                process.wire.trap.store(dice.between(1, 12) as usize, Ordering::Relaxed);
                weather.fault(|| format!("{} will die at a call", process.number));
            }
            4..7 => {
                let until = Span::millis(dice.between(500, 11_000)).after(now);
                process.stopped_until = Some(until);
                process.clock.stop(true);
                self.ledger.freeze(process.number, true);
                weather.fault(|| format!("{} is stopped", process.number));
            }
            7..9 => {
                let off = process.clock.set(dice);
                weather.fault(|| format!("the clock of {} is {off} ms off", process.number));
            }
            9 => weather.outage(Span::millis(dice.between(500, 8_000)).after(now)),
            10..12 if process.stopping.is_none() => {
                let limit = Span::millis(dice.between(0, 6_000));
                process.stopping = Some(Stopping::begin(process, limit, now));
                weather.note(|| format!("{} drains", process.number));
            }
            12 if weather.measures => {
                let ahead = weather.store_clock.ahead_ms();
                // Put right, as often as not.
                let to = if ahead != 0 && dice.percent(50) { 0 } else { ahead + clocks::step_ms(dice) };
                weather.set_store_clock(to);
            }
            _ => {}
        }
    }

    fn kill(&mut self, site: usize) {
        let now = self.weather.now();
        let Some(process) = self.sites[site].process.take() else { return };
        self.last_death = now;
        self.ledger.write(|pages| pages.dead.insert(process.number));
        process.clock.stop(false);
        process.node.executing.forget_all();
        self.weather.note(|| format!("{} is dead", process.number));
        self.sites[site].starts_at = Span::millis(self.weather.dice.between(100, 6_000)).after(now);
    }

    /// Whoever met its death meanwhile is dead.
    fn bury(&mut self) {
        for site in 0..self.sites.len() {
            let Some(process) = &self.sites[site].process else { continue };
            let poison = self.ledger.write(|pages| {
                let run = pages.doomed.remove(&process.number)?;
                *pages.deaths.entry(run).or_default() += 1;
                Some(run)
            });
            if let Some(run) = poison {
                self.weather.note(|| format!("{} dies of {run}", process.number));
                self.kill(site);
            } else if process.wire.trapped.load(Ordering::Relaxed) {
                self.kill(site);
            }
        }
    }

    fn start_the_dead(&mut self) {
        for n in 0..self.sites.len() {
            if self.sites[n].process.is_none() && self.sites[n].starts_at <= self.weather.now() {
                let process = self.process(self.sites[n].worker);
                self.weather.note(|| format!("{} starts", process.number));
                self.weather.process_starts();
                self.sites[n].process = Some(process);
            }
        }
    }

    fn process(&mut self, worker: bool) -> Process {
        let number = self.started;
        self.started += 1;
        let dice = &self.weather.dice;
        let clock = ProcessClock::new(&self.weather.clock, dice, self.weather.measures);
        let wire = Arc::new(Wire::new(Arc::clone(&self.weather), number));
        let line = Arc::clone(&wire) as Arc<dyn crate::faulty::Line>;
        let tap = Arc::clone(&self.witness) as Arc<dyn crate::faulty::Tap>;
        let store = Arc::new(Faulty::over(Arc::clone(&self.store), line, tap));
        let witness = Arc::clone(&self.witness);
        store.set_clock(move || witness.planted.time(witness.weather.store_now()));
        let options = Options {
            name: format!("process {number}"),
            schedules: !worker,
            traits: if worker || dice.percent(30) { vec!["gpu".into()] } else { Vec::new() },
            backlog_max: if dice.percent(30) { 6 } else { 1_000 },
            slots: if dice.percent(30) { 3 } else { 100 },
            fire_batch: if dice.percent(30) { 1 } else { 1_000 },
            losses_max: LOSSES_MAX,
            full_look_every: Span::secs(10),
            scan_every: Span::secs(10),
            upkeep_every: Span::secs(7),
            ..Options::default()
        };
        let [act, alone, poison] = [(); 3].map(|()| Arc::clone(&self.ledger));
        let [time, same_time] = [(); 2].map(|()| clock.port());
        let node = clock
            .of(Engine::builder(store))
            .options(options)
            .random(Arc::new(Seeded::new(self.seed.wrapping_mul(1_000).wrapping_add(number as u64))))
            .hints(Arc::clone(&self.hints) as Arc<dyn Hints>)
            .handler("act", move |call: Call| Arc::clone(&act).act(number, Arc::clone(&time), call))
            .handler("alone", move |call: Call| Arc::clone(&alone).alone(number, Arc::clone(&same_time), call))
            .handler("poison", move |call: Call| Arc::clone(&poison).poison(number, call))
            .node();
        let posts = posts(&node, worker, clock.measures());
        let withdraw = Withdraw::new(Arc::clone(&node));
        let started = usize::from(!clock.measures());
        let news = Handle::new(Arc::clone(&node)).subscribe();
        Process {
            number,
            node,
            clock,
            started,
            withdraw,
            withdraw_at: None,
            wire,
            posts,
            ops: Vec::new(),
            stopped_until: None,
            stopping: None,
            news,
        }
    }

    /// Somebody wants something.
    fn ask(&mut self) {
        let weather = Arc::clone(&self.weather);
        let dice = &weather.dice;
        let chance = dice.below(100);
        let running: Vec<usize> = self.running().filter(|site| self.sites[*site].answers()).collect();
        let Some(site) = dice.pick(&running).copied() else { return };
        let Some(process) = &self.sites[site].process else { return };
        let handle = process.handle();
        let job = dice.pick(&self.jobs).unwrap();
        let (name, tenant) = (job.name.clone(), self.tenants[job.owner]);
        let op: Op = match chance {
            0..22 => {
                if name == "poison" {
                    self.poisoned += 1;
                    if self.poisoned > POISON_MAX {
                        return;
                    }
                }
                let later = if dice.percent(25) { dice.between(100, 6_000) } else { 0 };
                done(clients::trigger(handle, tenant, name, dice.below(2), later))
            }
            22..29 => {
                let live = self.witness.live();
                let Some(run) = dice.pick(&live).copied() else { return };
                done(clients::cancel(handle, run))
            }
            29..33 => {
                let job = self.jobs.iter_mut().find(|job| job.name == name).unwrap();
                if dice.percent(50) {
                    job.edit(dice);
                } else {
                    job.toggle();
                }
                done(clients::save(handle, tenant, job.document()))
            }
            33..36 => {
                let until = if dice.percent(50) { Some(dice.between(500, 9_000)) } else { None };
                // As often as not one that is paused already, with another end.
                let paused = self.witness.paused();
                let again = dice.pick(&paused).filter(|_| dice.percent(50)).cloned();
                let Some(target) = again.or_else(|| self.target()) else { return };
                weather.note(|| format!("pause {target:?} for {until:?}"));
                done(clients::pause(handle, target, until))
            }
            36..39 => {
                let paused = self.witness.paused();
                let Some(target) = dice.pick(&paused).cloned() else { return };
                weather.note(|| format!("resume {target:?}"));
                done(clients::resume(handle, target))
            }
            39 => {
                if dice.percent(20) {
                    done(clients::delete_job(handle, tenant, name, dice.percent(50)))
                } else if dice.percent(40) {
                    let job = self.jobs.iter().find(|job| job.name == name).unwrap();
                    let mut document = job.document();
                    document.schedules.retain(|schedule| schedule.name != "s0");
                    done(clients::save(handle, tenant, document))
                } else {
                    return;
                }
            }
            40..53 => return self.act(&running),
            _ => return,
        };
        weather.note(|| format!("op {chance}"));
        let Some(process) = &mut self.sites[site].process else { return };
        process.ops.push(op);
        process.go_on(&weather);
    }

    /// What people do besides; to several nodes, perhaps.
    fn act(&mut self, running: &[usize]) {
        let weather = Arc::clone(&self.weather);
        let handles = running.iter().filter_map(|site| self.sites[*site].process.as_ref()).map(Process::handle);
        let mut scene = Scene {
            dice: &weather.dice,
            witness: &self.witness,
            jobs: &mut self.jobs,
            tenants: &self.tenants,
            handles: handles.collect(),
        };
        for (node, op) in self.people.act(&mut scene) {
            weather.note(|| format!("people ask at {node}"));
            let Some(process) = &mut self.sites[running[node]].process else { continue };
            process.ops.push(op);
            process.go_on(&weather);
        }
    }

    fn target(&self) -> Option<PauseTarget> {
        let dice = &self.weather.dice;
        let tenant = *dice.pick(&self.tenants)?;
        let schedules = self.witness.schedules();
        let schedule = dice.pick(&schedules).copied()?;
        Some(match dice.below(5) {
            0 => PauseTarget::Tenant(tenant),
            1 => PauseTarget::Queue(tenant, "default".into()),
            2 => PauseTarget::Job(self.witness.job_of(schedule)?),
            _ => PauseTarget::Schedule(schedule),
        })
    }

    /// One process gets its turn: those of its stages whose time has come.
    async fn turn(&mut self, site: usize) {
        let weather = Arc::clone(&self.weather);
        let Some(process) = &mut self.sites[site].process else { return };
        let mut order: Vec<usize> = (0..process.posts.len()).collect();
        weather.dice.shuffle(&mut order);
        for post in order {
            let Some(process) = &mut self.sites[site].process else { return };
            process.begin(post, &weather);
            breathe().await;
            self.check_starts(site);
            self.bury();
        }
    }

    async fn turn_all(&mut self) {
        for site in 0..self.sites.len() {
            self.turn(site).await;
        }
    }

    /// After the storm: everything comes to rest by itself.
    async fn calm(&mut self) -> Result<(), String> {
        let began = self.weather.now();
        self.put_clock_right();
        self.fleet.calm(began);
        for site in &mut self.sites {
            if let Some(process) = &mut site.process {
                process.stopped_until = process.stopped_until.map(|_| began);
                process.wire.trap.store(0, Ordering::Relaxed);
            }
        }
        // What people asked for during the storm may be on its way yet.
        while self.is_anything_under_way() {
            self.calm_step(CALM_STEP).await?;
        }
        // Some pauses stay in force: what they cover sleeps on, and nothing else does.
        let (lifted, kept): (Vec<_>, Vec<_>) =
            self.witness.paused().into_iter().partition(|_| self.weather.dice.percent(60));
        for targets in [lifted, kept] {
            self.resume(&targets).await?;
            // Long enough for a dead node's partitions to be taken over and caught up with.
            let resumed = self.weather.now();
            while self.weather.now() < Span::secs(20).after(resumed.max(self.last_death)) {
                self.calm_step(CALM_STEP).await?;
            }
            self.witness.balance(self.weather.store_now(), false);
            self.witness.prompt(self.weather.store_now());
            self.witness.verdict()?;
            if self.witness.paused().is_empty() {
                break;
            }
        }
        // No more instants: what is there must end.
        for target in self.witness.schedules().into_iter().map(PauseTarget::Schedule) {
            let pause = Pause { since: self.weather.store_now(), ..Pause::default() };
            wait(self.store.set_pauses(&self.write(), &[target], Some(&pause))).unwrap();
        }
        let (mut left, mut last_end) = (usize::MAX, began);
        while !self.witness.live().is_empty() || self.witness.owed().is_some() || !self.are_workers_at_rest() {
            let now = self.weather.now();
            if left != self.witness.live().len() {
                (left, last_end) = (self.witness.live().len(), now);
            }
            if now > CALM_MAX.after(last_end.max(self.last_death)) {
                return Err(self.stuck());
            }
            self.calm_step(REST_STEP).await?;
        }
        self.witness.balance(self.weather.store_now(), true);
        self.witness.review_dead(true);
        self.review()?;
        self.scan().await
    }

    /// The clock goes on from the latest that it ever showed: what was planned by then
    /// comes due, and what was promised ends.
    fn put_clock_right(&mut self) {
        let most = self.weather.store_clock.most_ms();
        if self.weather.store_clock.ahead_ms() != most {
            self.weather.set_store_clock(most);
            // Nobody is presumed dead for a lease time after it.
            self.last_death = Span::secs(6).after(self.weather.now());
        }
    }

    async fn resume(&mut self, targets: &[PauseTarget]) -> Result<(), String> {
        for target in targets {
            self.until_done(|handle| done(clients::resume(handle, target.clone()))).await?;
        }
        Ok(())
    }

    fn is_anything_under_way(&self) -> bool {
        let processes = || self.sites.iter().filter_map(|site| site.process.as_ref());
        let asking = self.fleet.is_asking() || processes().any(|process| !process.ops.is_empty());
        self.weather.is_anything_late() || asking
    }

    /// Whether no worker has anything in hand or to say, and no node anything for one.
    fn are_workers_at_rest(&self) -> bool {
        let mut processes = self.sites.iter().filter_map(|site| site.process.as_ref());
        self.fleet.is_at_rest() && processes.all(|process| process.node.remote.is_at_rest(process.clock.port().now()))
    }

    /// Has something done by a node that lives.
    async fn until_done(&mut self, ask: impl Fn(Handle) -> Op) -> Result<(), String> {
        for _ in 0..60 {
            let living = self.sites.iter().position(Site::answers);
            if let Some(process) = living.and_then(|site| self.sites[site].process.as_mut()) {
                process.ops.push(ask(process.handle()));
                process.go_on(&self.weather);
                return Ok(());
            }
            self.calm_step(CALM_STEP).await?;
        }
        Err("nobody can be asked although nothing is wrong any more".into())
    }

    async fn calm_step(&mut self, span: Span) -> Result<(), String> {
        self.pass_time(span).await;
        self.start_the_dead();
        self.turn_all().await;
        self.witness.verdict()
    }

    fn stuck(&self) -> String {
        let records = wait(self.store.runs(&self.witness.live())).unwrap();
        let parts = wait(self.store.partitions()).unwrap();
        let owner = |part: Partition| {
            let node = parts[usize::from(part.0)].node;
            let mut living = self.sites.iter().filter_map(|site| site.process.as_ref());
            living
                .find(|process| Some(process.node.id) == node)
                .map(|process| (process.number, process.node.territory.held(part).is_some()))
        };
        let runs: Vec<String> = records
            .into_iter()
            .flatten()
            .map(|record| {
                let run = record.run;
                format!(
                    "{} of job {} in {:?} of {:?}, lane {}: {:?}, losses {}",
                    run.id,
                    run.job,
                    run.part,
                    owner(run.part),
                    run.lane,
                    run.state,
                    run.losses
                )
            })
            .collect();
        let owed = self.witness.owed();
        let workers = if self.are_workers_at_rest() { "are" } else { "are not" };
        format!(
            "runs do not end although nothing is wrong any more: {runs:#?}, this is owed: {owed:?}, and remote workers \
             {workers} at rest"
        )
    }

    /// The scanner finds nothing, twice over.
    async fn scan(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            for site in &self.sites {
                let Some(process) = &site.process else { continue };
                if site.worker {
                    continue;
                }
                let mut scan = Scan::new(Arc::clone(&process.node));
                let first = scan.pass(process.node.clock.now()).await.map_err(|error| error.to_string())?;
                let again = scan.pass(process.node.clock.now()).await.map_err(|error| error.to_string())?;
                if first.done + again.done > 0 {
                    return Err(format!("the scanner of {} finds {} things", process.number, first.done + again.done));
                }
            }
        }
        Ok(())
    }
}

/// What becomes of it is the witness's to see.
pub fn done<T, E>(op: impl Future<Output = Result<T, E>> + 'static) -> Op {
    Box::pin(async move { drop(op.await) })
}

/// Attempts are tasks of their own: they get on as far as they can.
async fn breathe() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

fn posts(node: &Arc<Node>, worker: bool, measures: bool) -> Vec<Post> {
    fn post(stage: impl Stage + 'static, eager: bool, topic: Option<Topic>) -> Post {
        let scans = stage.name() == "scan";
        let name = stage.name();
        Post {
            turn: Turn::Idle(Box::new(stage)),
            ends_early: false,
            due_at: Timestamp::MIN,
            steps: None,
            name,
            eager,
            scans,
            topic,
            heard: 0,
        }
    }
    let of = || Arc::clone(node);
    let mut posts = vec![
        post(Lead::new(of()), false, None),
        post(Look::new(of()), false, Some(Topic::Ready)),
        post(Dispatch::new(of()), true, None),
        post(Claim::new(of()), true, Some(Topic::Ready)),
        post(Assign::new(of()), true, Some(Topic::Ready)),
        post(Withdraw::new(of()), true, None),
        post(Heartbeat::new(of()), true, None),
        post(Settle::new(of()), true, None),
        post(Settle::new(of()), true, None),
    ];
    if measures {
        posts.push(post(Measure::new(of()), false, None));
    }
    if !worker {
        let mut schedules = vec![
            post(Fire::new(of()), true, Some(Topic::Schedules)),
            post(Promote::new(of()), true, Some(Topic::Delayed)),
            post(Admit::new(of()), false, Some(Topic::Inbox)),
            post(Reap::new(of()), false, None),
            post(Sweep::new(of()), false, None),
            post(Scan::new(of()), false, None),
            post(Upkeep::new(of()), false, None),
            post(Chain::new(of()), false, Some(Topic::Ends)),
        ];
        for post in &mut schedules {
            post.ends_early = true;
        }
        posts.append(&mut schedules);
    }
    posts
}

impl Process {
    fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.node))
    }

    /// Begins a pass, if its time has come.
    fn begin(&mut self, number: usize, weather: &Weather) {
        let now = self.node.clock.now();
        let post = &mut self.posts[number];
        let may_begin = self.stopping.as_ref().is_none_or(|stopping| stopping.lets_begin(post.ends_early));
        let is_turn = START.get(self.started).is_none_or(|first| *first == post.name);
        if !matches!(post.turn, Turn::Idle(_)) || !may_begin || !is_turn {
            return;
        }
        let steps = self.node.clock.steps();
        let stepped = post.steps.replace(steps).is_some_and(|seen| seen != steps);
        let heard = post.topic.map_or(0, |topic| weather.heard(topic));
        let told = heard != post.heard;
        let called = post.scans && self.node.take_call_to_scan();
        let is_time = told || called || stepped || post.due_at <= now;
        if !(is_time || post.eager && weather.dice.percent(85)) {
            return;
        }
        post.heard = heard;
        let Turn::Idle(mut stage) = std::mem::replace(&mut post.turn, Turn::Gone) else { return };
        if told {
            stage.doubt();
        }
        if stepped {
            stage.stepped(now);
        }
        post.turn = Turn::Going(Box::pin(async move {
            let report = stage.pass(now).await;
            (stage, report)
        }));
        self.poll(number, weather);
    }

    fn poll(&mut self, number: usize, weather: &Weather) {
        let post = &mut self.posts[number];
        let Turn::Going(pass) = &mut post.turn else { return };
        weather.next_turn();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready((stage, report)) = pass.as_mut().poll(&mut context) else { return };
        let (now, is_done) = (self.node.clock.now(), report.is_ok());
        post.due_at = match report {
            Ok(PassReport { more: true, .. }) => now,
            Ok(report) => report.next_at.unwrap_or(Timestamp::MAX),
            Err(_) => Span::millis(weather.dice.between(10, 800)).after(now),
        };
        self.started += usize::from(is_done && START.get(self.started) == Some(&post.name));
        post.turn = Turn::Idle(stage);
    }

    /// Stops what it may not go on with. The store is not asked, so nothing can hold it
    /// up.
    fn withdraw(&mut self, now: Timestamp) {
        let own = self.node.clock.now();
        let next_at = wait(self.withdraw.pass(own)).unwrap().next_at;
        self.withdraw_at = next_at.and_then(|at| now.checked_add(own.duration_until(at)).ok());
    }

    /// Passes and requests whose answers have come go on.
    fn go_on(&mut self, weather: &Weather) {
        for number in 0..self.posts.len() {
            self.poll(number, weather);
        }
        let mut context = Context::from_waker(Waker::noop());
        self.ops.retain_mut(|op| {
            weather.next_turn();
            op.as_mut().poll(&mut context).is_pending()
        });
    }
}
