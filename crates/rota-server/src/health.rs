//! Health: whether a node lives, and whether it is ready.
//!
//! A node lives as long as it answers. It is ready when it has started, its lease
//! of the store holds, it holds partitions if it is a scheduler, and it is not about
//! to go. No question is
//! put to the store for this: a probe costs nothing, and a thousand of them do
//! no harm.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use rota_engine::Engine;

use crate::{Node, problem::Problem};

/// What there is, for people who look with a browser.
pub async fn index() -> Response {
    plain(concat!(
        "Rota ",
        env!("CARGO_PKG_VERSION"),
        "\n\n/healthz  whether this node is alive\n/readyz   whether it is ready, and if not, why\n/metrics  metrics for Prometheus\n"
    ))
}

pub async fn alive() -> Response {
    plain("alive\n")
}

pub async fn ready(State(node): State<Node>) -> Response {
    match Facts::of(&node).what_is_missing() {
        None => plain("ready\n"),
        Some(why) => Problem::not_ready(why).into_response(),
    }
}

fn plain(text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// All that readiness depends on.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Facts {
    started: bool,
    draining: bool,
    store_away: bool,
    schedules: bool,
    lease_holds: bool,
    partitions: bool,
}

impl Facts {
    fn of(node: &Node) -> Self {
        let engine = node.engine();
        let is = |fact: fn(&Engine) -> bool| engine.is_some_and(fact);
        Self {
            started: engine.is_some(),
            draining: node.is_draining(),
            store_away: is(|engine| engine.node().rights.is_store_away()),
            schedules: is(|engine| engine.node().options.schedules),
            lease_holds: is(|engine| engine.node().rights.node_lease_holds()),
            partitions: is(|engine| !engine.node().territory.is_empty()),
        }
    }

    /// The first thing that keeps the node from being ready.
    fn what_is_missing(self) -> Option<&'static str> {
        if self.draining {
            Some("the node is draining and takes no more work")
        } else if !self.started {
            Some("the node is starting")
        } else if self.store_away || (self.schedules && !self.lease_holds) {
            Some("the store does not answer")
        } else if self.schedules && !self.partitions {
            Some("the node owns no partitions yet")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_ready_says_why() {
        let good = Facts {
            started: true,
            draining: false,
            store_away: false,
            schedules: true,
            lease_holds: true,
            partitions: true,
        };
        for (facts, missing) in [
            (good, None),
            (Facts { draining: true, ..good }, Some("draining")),
            (Facts { started: false, ..good }, Some("starting")),
            (Facts { store_away: true, ..good }, Some("store")),
            (Facts { lease_holds: false, ..good }, Some("store")),
            (Facts { partitions: false, ..good }, Some("partitions")),
            (Facts { schedules: false, lease_holds: false, partitions: false, ..good }, None),
            (Facts { schedules: false, store_away: true, ..good }, Some("store")),
        ] {
            let told = facts.what_is_missing();
            assert_eq!(told.is_none(), missing.is_none(), "{facts:?}");
            assert!(told.unwrap_or_default().contains(missing.unwrap_or_default()), "{told:?}");
        }
    }
}
