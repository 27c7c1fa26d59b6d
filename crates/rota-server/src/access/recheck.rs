//! Recheck: whether whoever asked for something that lasts may still have it.
//!
//! A stream lasts longer than a request, and what its caller proved may not: a token is
//! revoked, a person gets another role, a session ends. So each stream asks again twice a
//! second, and ends when the answer is no. Streams of one caller share the answers:
//! hundreds of workers mostly have one token, and the store is asked for it once.
//!
//! While the store does not answer nobody can have been shut out, and streams go on.

use std::{collections::HashMap, time::Duration};

use axum::http::{HeaderMap, header, request::Parts};
use parking_lot::Mutex;
use rota_core::ids::TenantId;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{Need, allowed};
use crate::Node;

/// Answers kept; old ones go first.
const ANSWERS_MAX: usize = 4_096;

/// What a caller proves itself by, and what it needs.
type Key = ([u8; 32], Option<&'static str>, bool);

/// What was found out a moment ago.
#[derive(Debug, Default)]
pub struct Answers(Mutex<HashMap<Key, (Instant, Option<TenantId>)>>);

impl Answers {
    /// Whether the caller may have it of this tenant; none where that is not known.
    fn get(&self, key: &Key, tenant: TenantId, young: Duration) -> Option<bool> {
        let answers = self.0.lock();
        answers.get(key).filter(|(at, _)| at.elapsed() < young).map(|(_, found)| *found == Some(tenant))
    }

    fn put(&self, key: Key, found: Option<TenantId>, young: Duration) {
        let mut answers = self.0.lock();
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, (at, _)| at.elapsed() < young);
        }
        if answers.len() < ANSWERS_MAX {
            answers.insert(key, (Instant::now(), found));
        }
    }
}

pub struct Recheck {
    node: Node,
    /// The request that asked for it.
    asked: Parts,
    tenant: TenantId,
    key: Key,
    need: fn(&super::Caller) -> bool,
    interval: Interval,
}

impl Recheck {
    pub fn begin<P: Need>(node: Node, asked: Parts, tenant: TenantId) -> Self {
        let every = node.bounds().recheck_time;
        let mut interval = interval_at(Instant::now() + every, every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let key =
            (credentials(&asked.headers), P::PERMISSION.map(rota_core::access::Permission::as_str), P::INSTALLATION);
        Self { node, asked, tenant, key, need: |caller| allowed::<P>(caller).is_ok(), interval }
    }

    /// Returns when it is time to ask again.
    pub async fn due(&mut self) {
        self.interval.tick().await;
    }

    /// Returns when the caller may not have it any more.
    pub async fn lost(&mut self) {
        loop {
            self.due().await;
            if !self.holds().await {
                return;
            }
        }
    }

    /// Whether the caller may still have it.
    pub async fn holds(&self) -> bool {
        // An answer of the look before is too old, whoever got it.
        let young = self.node.bounds().recheck_time / 2;
        let answers = &self.node.access().answers;
        if let Some(holds) = answers.get(&self.key, self.tenant, young) {
            return holds;
        }
        let Some(engine) = self.node.engine() else { return false };
        match self.node.access().caller(&self.asked, &self.node, engine).await {
            Ok((caller, _)) => {
                let found = (self.need)(&caller).then_some(caller.tenant);
                answers.put(self.key, found, young);
                found == Some(self.tenant)
            }
            Err(problem) if problem.document().status >= 500 => true,
            Err(_) => {
                answers.put(self.key, None, young);
                false
            }
        }
    }
}

/// All that says who asks, and for which tenant. Compared by digest, so that no secret is
/// kept.
fn credentials(headers: &HeaderMap) -> [u8; 32] {
    let mut digest = Sha256::new();
    for name in [header::AUTHORIZATION.as_str(), header::COOKIE.as_str(), rota_api::TENANT] {
        for value in headers.get_all(name) {
            digest.update((value.len() as u64).to_be_bytes());
            digest.update(value.as_bytes());
        }
        digest.update(u64::MAX.to_be_bytes());
    }
    digest.finalize().into()
}
