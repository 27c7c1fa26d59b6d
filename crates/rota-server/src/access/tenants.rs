//! Tenants at hand, so that a request need not read them.
//!
//! A tier that is changed counts after a few seconds at the latest, and at once
//! on the node that changed it. A tenant never changes its name and never goes.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rota_core::{
    duration::Span,
    ids::{TenantId, number},
    store::Tenant,
};
use rota_engine::Engine;

use crate::problem::Problem;

/// What was read longer ago is read again.
const KEEP: Span = Span::secs(5);
/// A name that is not known is looked for again after so long, so that asking for
/// names costs the store nothing.
const AGAIN: Span = Span::secs(1);

#[derive(Default)]
pub struct Tenants(Mutex<Known>);

#[derive(Default)]
struct Known {
    read_at: Option<Timestamp>,
    tenants: HashMap<TenantId, Arc<Tenant>>,
    names: HashMap<String, TenantId>,
}

impl Known {
    fn named(&self, name: &str) -> Option<Arc<Tenant>> {
        let id = match number(name) {
            Some(id) => TenantId(id),
            None => *self.names.get(name)?,
        };
        self.tenants.get(&id).cloned()
    }

    fn is_older_than(&self, span: Span, now: Timestamp) -> bool {
        self.read_at.is_none_or(|at| span.after(at) <= now || at > now)
    }
}

impl Tenants {
    pub async fn by_id(&self, id: TenantId, engine: &Engine) -> Result<Option<Arc<Tenant>>, Problem> {
        self.find(engine, |known| known.tenants.get(&id).cloned()).await
    }

    /// By name, or by id where the text is a number.
    pub async fn named(&self, name: &str, engine: &Engine) -> Result<Option<Arc<Tenant>>, Problem> {
        self.find(engine, |known| known.named(name)).await
    }

    /// The next look reads the store.
    pub fn forget(&self) {
        self.lock().read_at = None;
    }

    async fn find(
        &self,
        engine: &Engine,
        find: impl Fn(&Known) -> Option<Arc<Tenant>>,
    ) -> Result<Option<Arc<Tenant>>, Problem> {
        let now = engine.now();
        {
            let known = self.lock();
            let found = find(&known);
            let keep = if found.is_some() { KEEP } else { AGAIN };
            if !known.is_older_than(keep, now) {
                return Ok(found);
            }
        }
        let read = engine.store().tenants().await?;
        let mut known = self.lock();
        known.names = read.iter().map(|tenant| (tenant.name.clone(), tenant.id)).collect();
        known.tenants = read.into_iter().map(|tenant| (tenant.id, Arc::new(tenant))).collect();
        known.read_at = Some(now);
        Ok(find(&known))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}
