//! Audit: every change made through the API, with who made it.
//!
//! A layer around the API gives every request that may change something a
//! [`Trail`]. The route writes on it what was before and after. When the answer
//! is ready the layer hands the trail to the store, and the answer leaves after
//! that. A route that succeeded and wrote nothing is written down by the layer
//! itself, by its method and path: no change can be forgotten, only its details.
//!
//! The change and its entry are two writes. If the store fails between them, the
//! entry goes to the log instead, as an error, and the answer stands: what was
//! done was done.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use parking_lot::{Mutex, MutexGuard};
use rota_core::{
    access::audited,
    ids::{AuditId, TenantId},
    store::AuditEntry,
};
use rota_engine::Engine;
use serde::Serialize;
use serde_json::Value;

use super::{Caller, Peer};
use crate::Node;

/// What one request changed. Clones are the same.
#[derive(Clone, Default)]
pub struct Trail(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    caller: Option<(TenantId, String)>,
    address: Option<String>,
    changes: Vec<Change>,
    exempt: bool,
}

struct Change {
    action: &'static str,
    object: String,
    before: Option<Value>,
    after: Option<Value>,
}

impl Trail {
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock()
    }

    pub fn asked_by(&self, caller: &Caller) {
        self.lock().caller = Some((caller.tenant, caller.who.clone()));
    }

    pub fn changed(&self, action: &'static str, object: String, before: Option<Value>, after: Option<Value>) {
        self.lock().changes.push(Change { action, object, before, after });
    }

    pub fn exempt(&self) {
        self.lock().exempt = true;
    }
}

/// A wire type as an audit entry keeps it.
pub fn kept<T: Serialize>(value: &T) -> Option<Value> {
    serde_json::to_value(value).ok()
}

/// The layer: hands out trails, and keeps what was written on them.
pub async fn keep(State(node): State<Node>, mut request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    let trail = Trail::default();
    trail.lock().address = request.extensions().get::<Peer>().map(|Peer(address)| address.to_string());
    let route = request.extensions().get::<MatchedPath>().map_or(request.uri().path(), MatchedPath::as_str);
    let unnamed = Unnamed {
        action: format!("{} {route}", request.method()),
        object: request.uri().path().trim_start_matches(rota_api::PREFIX).trim_matches('/').to_owned(),
    };
    request.extensions_mut().insert(trail.clone());
    let response = next.run(request).await;
    if let Some(engine) = node.engine() {
        let unnamed = response.status().is_success().then_some(unnamed);
        trail.keep(engine, unnamed).await;
    }
    response
}

/// A change that its route did not name.
pub(super) struct Unnamed {
    action: String,
    object: String,
}

impl Trail {
    /// Hands what was written so far to the store.
    pub(super) async fn keep(&self, engine: &Engine, unnamed: Option<Unnamed>) {
        let entries = self.entries(engine, unnamed);
        if entries.is_empty() {
            return;
        }
        if let Err(error) = engine.store().append_audit(&entries).await {
            let lost: Vec<_> = entries.iter().map(|entry| (&entry.who, &entry.action, &entry.object)).collect();
            tracing::error!(%error, ?lost, "changes could not be added to the audit log");
        }
    }

    fn entries(&self, engine: &Engine, unnamed: Option<Unnamed>) -> Vec<AuditEntry> {
        let mut written = self.lock();
        let Some((tenant, who)) = written.caller.clone() else { return Vec::new() };
        let (now, address) = (engine.now(), written.address.clone());
        let entry = |action: String, object: String, before: Option<Value>, after: Option<Value>| AuditEntry {
            id: AuditId::new(engine.node().random.as_ref(), now),
            at: now,
            tenant,
            who: who.clone(),
            action,
            object,
            before: before.map(|value| audited(value.to_string())),
            after: after.map(|value| audited(value.to_string())),
            address: address.clone(),
        };
        match unnamed {
            Some(unnamed) if written.changes.is_empty() && !written.exempt => {
                vec![entry(unnamed.action, unnamed.object, None, None)]
            }
            _ => {
                let changes = written.changes.drain(..);
                let named =
                    |change: Change| entry(change.action.to_owned(), change.object, change.before, change.after);
                changes.map(named).collect()
            }
        }
    }
}
