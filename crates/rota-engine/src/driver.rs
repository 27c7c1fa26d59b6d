//! The driver: the only loop.
//!
//! Each stage has a task that calls its pass, waits for the time the pass
//! named, a wake-up, a hint or a clock that was set, and calls again. A store that does not answer is
//! asked again after a while that doubles and is spread by chance, so that a
//! fleet does not come back as one. What to do is the stages' business.
//!
//! A stage that panics takes the whole engine down: what it held in memory is in
//! doubt, and a node without one of its stages is worse than none. Nothing is
//! lost by it that a crash would not lose; another node takes over, or the next
//! process on the same store goes on.
//!
//! To stop is to drain: nothing new is begun, and partitions are given up at once, with
//! all the work in them that has not begun. Schedules are fired until then, and by the next
//! owners from then on. Attempts under way stay with this node by written leases and may
//! end within a limit, and what is left of them is
//! handed back; what has ended is settled before the node leaves. A store that
//! hangs cannot hold a stop up: what it was not told it finds out when the node's
//! lease and those of its runs run out.

use std::{future::poll_fn, panic::AssertUnwindSafe, sync::Arc, task::Poll, time::Duration};

use futures_util::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    duration::Span,
    ports::{Heard, Listener, News, Topic},
    store::StoreError,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use crate::{
    executing::Why,
    node::{Node, WakeUps},
    remote,
    stages::{
        PassReport, Stage, admit::Admit, assign::Assign, chain::Chain, claim::Claim, dispatch::Dispatch, fire::Fire,
        forward::Forward, heartbeat::Heartbeat, is_unknown, lead::Lead, look::Look, measure::Measure, promote::Promote,
        reap::Reap, scan::Scan, settle::Settle, sweep::Sweep, upkeep::Upkeep, withdraw::Withdraw,
    },
};

/// How long a stop waits beyond its limit for attempts that were told to end, and for
/// what has ended to be settled.
const SETTLE_WAIT: Span = Span::secs(3);
/// How long it then waits for the store to hear that the node leaves.
const LEAVE_WAIT: Span = Span::secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Draining,
    Stopped,
}

/// What wakes a stage besides the time.
struct Wakers {
    wake_up: Option<fn(&WakeUps) -> &Notify>,
    listener: Option<Box<dyn Listener>>,
}

pub struct Driver {
    node: Arc<Node>,
    phase: watch::Sender<Phase>,
    /// The stage that panicked, if one did.
    broken: Arc<watch::Sender<Option<&'static str>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Driver {
    /// Joins the store and starts all stages.
    pub async fn start(node: Arc<Node>) -> Result<Self, StoreError> {
        let mut measure = Measure::new(Arc::clone(&node));
        let (mut lead, mut look) = (Lead::new(Arc::clone(&node)), Look::new(Arc::clone(&node)));
        // Nothing is promised by a clock that may be hours off.
        measure.pass(node.clock.now()).await?;
        match lead.pass(node.clock.now()).await {
            // It has joined, and may have taken partitions: the next pass asks again.
            Err(error) if lead.has_joined() && is_unknown(&error) => {
                tracing::warn!(node = %node.id, %error, "joined, and does not know which partitions it holds");
            }
            passed => drop(passed?),
        }
        look.pass(node.clock.now()).await?;
        let (phase, broken) = (watch::Sender::new(Phase::Running), Arc::new(watch::Sender::new(None)));
        let driver = Self { phase, broken, tasks: Mutex::default(), node };
        driver.turn(measure, Phase::Stopped, None, None);
        driver.turn(lead, Phase::Stopped, Some(|wake| &wake.lead), Some(Topic::Partitions));
        driver.turn(look, Phase::Stopped, Some(|wake| &wake.look), Some(Topic::Ready));
        driver.start_the_rest();
        Ok(driver)
    }

    fn start_the_rest(&self) {
        let node = || Arc::clone(&self.node);
        if self.node.options.schedules {
            // Nothing may be late for a stop: these go on for as long as there are partitions.
            self.turn(Fire::new(node()), Phase::Stopped, Some(|wake| &wake.fire), Some(Topic::Schedules));
            self.turn(Promote::new(node()), Phase::Stopped, Some(|wake| &wake.promote), Some(Topic::Delayed));
            self.turn(Admit::new(node()), Phase::Draining, None, Some(Topic::Inbox));
            self.turn(Chain::new(node()), Phase::Draining, None, Some(Topic::Ends));
            self.turn(Reap::new(node()), Phase::Draining, None, None);
            self.turn(Sweep::new(node()), Phase::Draining, None, None);
            self.turn(Scan::new(node()), Phase::Draining, Some(|wake| &wake.scan), None);
            self.turn(Upkeep::new(node()), Phase::Draining, None, None);
        }
        if self.node.options.executes {
            self.turn(Dispatch::new(node()), Phase::Stopped, Some(|wake| &wake.dispatch), None);
            self.turn(Claim::new(node()), Phase::Stopped, Some(|wake| &wake.claim), Some(Topic::Ready));
            self.turn(Withdraw::new(node()), Phase::Stopped, Some(|wake| &wake.withdraw), None);
            self.turn(Heartbeat::new(node()), Phase::Stopped, Some(|wake| &wake.heartbeat), None);
        }
        self.turn(Assign::new(node()), Phase::Stopped, Some(|wake| &wake.assign), Some(Topic::Ready));
        for _ in 0..self.node.options.settlers.max(1) {
            self.turn(Settle::new(node()), Phase::Stopped, Some(|wake| &wake.settle), None);
        }
        if let Some(relay) = &self.node.relay {
            self.turn(Forward::new(node(), Arc::clone(relay)), Phase::Stopped, None, Some(Topic::Followers));
            self.keep(tokio::spawn(hear(node(), relay.hear(), self.phase.subscribe())));
        }
    }

    fn keep(&self, task: JoinHandle<()>) {
        self.tasks.lock().push(task);
    }

    fn turn(
        &self,
        stage: impl Stage + 'static,
        until: Phase,
        wake_up: Option<fn(&WakeUps) -> &Notify>,
        topic: Option<Topic>,
    ) {
        let wakers = Wakers { wake_up, listener: topic.map(|topic| self.node.hints.listen(topic)) };
        let name = stage.name();
        let turning = turn(Arc::clone(&self.node), Box::new(stage), wakers, self.phase.subscribe(), until);
        let (phase, broken) = (self.phase.clone(), Arc::clone(&self.broken));
        let task = async move {
            if AssertUnwindSafe(turning).catch_unwind().await.is_err() {
                tracing::error!(stage = name, "a stage panicked; the engine stops where it stands");
                broken.send_replace(Some(name));
                phase.send_replace(Phase::Stopped);
            }
        };
        self.keep(tokio::spawn(task));
    }

    /// Returns when a stage has panicked, with its name.
    pub async fn broken(&self) -> &'static str {
        let mut broken = self.broken.subscribe();
        loop {
            if let Some(stage) = *broken.borrow_and_update() {
                return stage;
            }
            if broken.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Drains, and leaves. Attempts under way may take up to `limit`, and all the rest
    /// five seconds more. An error means that the store was not told.
    pub async fn stop(&self, limit: Span) -> Result<(), StoreError> {
        let node = &self.node;
        drain(node);
        self.phase.send_replace(Phase::Draining);
        for wake_up in [&node.wake.dispatch, &node.wake.claim, &node.wake.assign, &node.wake.lead] {
            wake_up.notify_one();
        }
        self.wait_until(limit, || node.executing.running() == 0).await;
        hand_back(node);
        self.wait_until(SETTLE_WAIT, || is_settled(node)).await;
        self.phase.send_replace(Phase::Stopped);
        let left = tokio::select! {
            left = self.leave() => left,
            () = node.clock.sleep(LEAVE_WAIT) => Err(StoreError::NotApplied { what: "take leave of the node", source: "it did not answer".into() }),
        };
        for task in self.take_tasks() {
            task.abort();
        }
        left
    }

    fn take_tasks(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.tasks.lock())
    }

    /// Tells the store what is left to tell, when all stages are at rest.
    async fn leave(&self) -> Result<(), StoreError> {
        self.stages_at_rest().await;
        leave(&self.node).await
    }

    /// Returns when every task has ended. They stay in reach meanwhile: whoever gives
    /// up waiting still has to end them.
    async fn stages_at_rest(&self) {
        poll_fn(|context| {
            let mut tasks = self.tasks.lock();
            tasks.retain_mut(|task| task.poll_unpin(context).is_pending());
            if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    async fn wait_until(&self, limit: Span, done: impl Fn() -> bool) {
        let over = self.node.clock.sleep(limit);
        tokio::pin!(over);
        loop {
            let moved = self.node.executing.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if done() {
                return;
            }
            tokio::select! {
                () = moved => {}
                () = &mut over => return,
            }
        }
    }
}

// The parts of an orderly stop, in their order. Whoever calls stages by hand waits
// between them as the driver does.

/// Nothing new is begun from now on.
pub fn drain(node: &Node) {
    node.executing.drain();
    remote::hand_back(node, node.remote.sessions().drain(), node.clock.now());
}

/// Stops the attempts that are still under way: their runs are handed back.
pub fn hand_back(node: &Node) {
    node.executing.stop_all(Why::HandBack, |_| true);
}

/// Whether every attempt has ended and its end is settled.
pub fn is_settled(node: &Node) -> bool {
    node.executing.running() == 0 && node.executing.unsettled() == 0 && node.outbox.len() == 0
}

/// Tells the store what is left to tell, and that the node leaves. No stage is at work.
pub async fn leave(node: &Arc<Node>) -> Result<(), StoreError> {
    Heartbeat::new(Arc::clone(node)).write_reports().await?;
    node.store.release(&node.write(node.clock.now()), node.worker).await?;
    node.store.forget_workers(&[node.worker]).await?;
    Lead::new(Arc::clone(node)).leave().await
}

/// Passes on to those who follow what other nodes tell. What cannot be read, from
/// a newer release perhaps, is as good as missed.
async fn hear(node: Arc<Node>, mut news: Box<dyn News>, mut phase: watch::Receiver<Phase>) {
    loop {
        tokio::select! {
            ended = phase.wait_for(|phase| *phase == Phase::Stopped) => {
                drop(ended);
                return;
            }
            heard = news.next() => match heard {
                Heard::Line(line) => node.events.hear(|| serde_json::from_str(&line).ok()),
                Heard::Gap => node.events.hear(|| None),
            },
        }
    }
}

async fn turn(
    node: Arc<Node>,
    mut stage: Box<dyn Stage>,
    mut wakers: Wakers,
    mut phase: watch::Receiver<Phase>,
    until: Phase,
) {
    let (mut failures, mut steps) = (0, node.clock.steps());
    while *phase.borrow_and_update() < until {
        let seen = node.clock.steps();
        if seen != steps {
            steps = seen;
            stage.stepped(node.clock.now());
        }
        match stage.pass(node.clock.now()).await {
            Ok(PassReport { more: true, .. }) => {
                failures = 0;
                tokio::task::yield_now().await;
            }
            Ok(report) => {
                failures = 0;
                if wakers.wait(&node, &mut phase, report.next_at, steps).await {
                    stage.doubt();
                }
            }
            Err(error) => {
                failures += 1;
                node.stats.store_errors.add(1);
                tracing::warn!(
                    stage = stage.name(),
                    failures,
                    error = &error as &dyn std::error::Error,
                    "a pass failed"
                );
                tokio::select! {
                    changed = phase.changed() => if changed.is_err() { return },
                    () = node.clock.sleep(backoff(&node, failures)) => {}
                }
            }
        }
    }
}

impl Wakers {
    /// Waits for whatever comes first, a clock that is set among it; true where it
    /// was a hint.
    async fn wait(
        &mut self,
        node: &Node,
        phase: &mut watch::Receiver<Phase>,
        next_at: Option<Timestamp>,
        steps: u64,
    ) -> bool {
        let wake_up = self.wake_up.map(|wake_up| wake_up(&node.wake));
        tokio::select! {
            _ = phase.changed() => false,
            () = notified(wake_up) => false,
            () = heard(self.listener.as_deref_mut()) => true,
            () = time(node, next_at) => false,
            () = node.clock.stepped(steps) => false,
        }
    }
}

async fn notified(wake_up: Option<&Notify>) {
    match wake_up {
        Some(wake_up) => wake_up.notified().await,
        None => std::future::pending().await,
    }
}

async fn heard(listener: Option<&mut (dyn Listener + 'static)>) {
    match listener {
        Some(listener) => listener.heard().await,
        None => std::future::pending().await,
    }
}

async fn time(node: &Node, at: Option<Timestamp>) {
    match at {
        Some(at) => node.clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Doubles from a hundredth of the longest wait up to it; between half and all
/// of that, by chance.
fn backoff(node: &Node, failures: u32) -> Span {
    let most = node.options.backoff_max.as_millis();
    let wait = (most / 100).max(1).saturating_mul(1 << failures.saturating_sub(1).min(16)).min(most);
    let spread = Duration::from_millis(wait).mul_f64(0.5 + node.random.unit() / 2.0);
    Span::millis(spread.as_millis() as u64)
}
