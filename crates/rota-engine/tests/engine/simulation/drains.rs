//! Processes that stop in order, as the driver has them stop, at any moment and with
//! attempts in flight.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use jiff::Timestamp;
use rota_core::{duration::Span, store::StoreError};
use rota_engine::driver;

use super::world::{Process, Turn};

/// As the driver waits.
const SETTLE_WAIT: Span = Span::secs(3);
const LEAVE_WAIT: Span = Span::secs(2);

type Leave = Pin<Box<dyn Future<Output = Result<(), StoreError>>>>;

enum Phase {
    Draining,
    HandingBack,
    /// No pass is begun; those that are under way come to their end.
    Resting,
    Leaving(Leave),
}

/// A stop that has begun.
pub struct Stopping {
    phase: Phase,
    until: Timestamp,
}

/// How a stop came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    InOrder,
    /// The store was not told in time.
    Unheard,
}

impl Stopping {
    /// Attempts under way may take so long.
    pub fn begin(process: &Process, limit: Span, now: Timestamp) -> Self {
        driver::drain(&process.node);
        Self { phase: Phase::Draining, until: limit.after(now) }
    }

    /// Whether a stage that fires, promotes, admits or the like may begin a pass.
    pub fn lets_begin(&self, ends_early: bool) -> bool {
        !ends_early && matches!(self.phase, Phase::Draining | Phase::HandingBack)
    }

    /// Goes on as far as it can.
    pub fn go_on(&mut self, process: &Process, now: Timestamp) -> Option<Gone> {
        let node = &process.node;
        let over = now >= self.until;
        match &mut self.phase {
            Phase::Draining if over || node.executing.running() == 0 => {
                driver::hand_back(node);
                (self.phase, self.until) = (Phase::HandingBack, SETTLE_WAIT.after(now));
            }
            Phase::HandingBack if over || driver::is_settled(node) => {
                (self.phase, self.until) = (Phase::Resting, LEAVE_WAIT.after(now));
            }
            Phase::Resting | Phase::Leaving(_) if over => return Some(Gone::Unheard),
            Phase::Resting if process.posts.iter().all(|post| matches!(post.turn, Turn::Idle(_))) => {
                let node = Arc::clone(node);
                self.phase = Phase::Leaving(Box::pin(async move { driver::leave(&node).await }));
            }
            Phase::Leaving(leave) => {
                return match leave.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(())) => Some(Gone::InOrder),
                    Poll::Ready(Err(_)) => Some(Gone::Unheard),
                    Poll::Pending => None,
                };
            }
            Phase::Draining | Phase::HandingBack | Phase::Resting => {}
        }
        None
    }
}
