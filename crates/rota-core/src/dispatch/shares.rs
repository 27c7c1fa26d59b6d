//! Who has had how much, and who is next.

use std::collections::{BTreeSet, HashMap};

use crate::ids::TenantId;

/// Virtual time one run costs a tenant of weight 1.
const COST: u64 = 1 << 20;
/// So many tags are kept before any is looked at.
const TAGS_MIN: usize = 1_024;

/// Tenants by what they have had, relative to weight, and the line of those
/// who have something to start.
#[derive(Debug, Default)]
pub struct FairShare {
    /// The virtual time of the last start.
    clock: u64,
    /// When, in virtual time, a tenant's next run would start.
    tags: HashMap<TenantId, u64>,
    weights: HashMap<TenantId, u32>,
    /// Those who have something to start, each under its tag.
    line: BTreeSet<(u64, TenantId)>,
    /// With so many tags it is time to forget.
    tags_max: usize,
}

impl FairShare {
    /// Sets a tenant's weight; unknown tenants weigh 1.
    pub fn weigh(&mut self, tenant: TenantId, weight: u32) {
        self.weights.insert(tenant, weight.clamp(1, 1_000));
    }

    /// Puts a tenant in line, level with the others if it was away.
    pub(super) fn join(&mut self, tenant: TenantId) {
        let tag = self.tags.get(&tenant).copied().unwrap_or(0);
        if !self.line.contains(&(tag, tenant)) {
            let level = tag.max(self.clock);
            self.tags.insert(tenant, level);
            self.line.insert((level, tenant));
        }
    }

    pub(super) fn leave(&mut self, tenant: TenantId) {
        if let Some(tag) = self.tags.get(&tenant) {
            self.line.remove(&(*tag, tenant));
        }
    }

    /// Whose turn it is.
    pub(super) fn next(&self) -> Option<TenantId> {
        self.line.first().map(|(_, tenant)| *tenant)
    }

    /// Those in line, with the virtual time of their turn.
    pub(super) fn line(&self) -> impl Iterator<Item = (u64, TenantId)> {
        self.line.iter().map(|(tag, tenant)| ((*tag).max(self.clock), *tenant))
    }

    /// What one run costs a tenant.
    pub(super) fn cost(&self, tenant: TenantId) -> u64 {
        COST / u64::from(self.weights.get(&tenant).copied().unwrap_or(1))
    }

    /// The tenant started so many runs; it keeps standing in line if it did.
    pub(super) fn charge(&mut self, tenant: TenantId, runs: u64) {
        let tag = self.tags.get(&tenant).copied().unwrap_or(0);
        let stands = self.line.remove(&(tag, tenant));
        self.clock = self.clock.max(tag);
        let next = self.clock + runs * self.cost(tenant);
        self.tags.insert(tenant, next);
        if stands {
            self.line.insert((next, tenant));
        }
        self.forget_the_level();
    }

    /// A tenant whose tag the clock has passed is as good as new. Looking costs
    /// all tags, so the next look waits until there are twice as many.
    fn forget_the_level(&mut self) {
        if self.tags.len() > self.tags_max.max(TAGS_MIN) {
            let (clock, line) = (self.clock, &self.line);
            self.tags.retain(|tenant, tag| *tag > clock || line.contains(&(*tag, *tenant)));
            self.tags_max = self.tags.len() * 2;
        }
    }
}
