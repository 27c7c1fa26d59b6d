//! Limits: how many an installation may have of what every node holds in memory as a
//! whole.
//!
//! They protect the nodes and hold for every tenant, whatever its tier; what a tenant may
//! have and do beyond that is in [`quota`](crate::quota). What would go beyond a limit is
//! refused when it is saved. What is there already can be saved again.
//!
//! Counting is not done here: who asks brings the count. Nodes that save at the same
//! moment may together go over a limit by what they save in it.

use std::fmt;

/// The maximum number of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tenants of the installation.
    pub tenants: usize,
    /// Lanes of the installation: one for each queue with a handler and required traits.
    pub lanes: usize,
    /// Calendars of one tenant.
    pub calendars: usize,
    /// Queues that one tenant has paused, or has resumed within the last year.
    pub tenant_pauses: usize,
    /// The same of all tenants together.
    pub pauses: usize,
    /// Remote workers of one tenant that one node speaks to, those that fell silent a moment
    /// ago included.
    pub tenant_workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tenants: 10_000,
            lanes: 10_000,
            calendars: 1_000,
            tenant_pauses: 1_000,
            pauses: 10_000,
            tenant_workers: 2_000,
        }
    }
}

/// What there is a limit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    Tenants,
    Lanes,
    Calendars,
    TenantPauses,
    Pauses,
    TenantWorkers,
}

/// Something was not saved, because there are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LimitReached {
    pub what: Limited,
    pub max: usize,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.max;
        match self.what {
            Limited::Tenants => write!(f, "an installation may have at most {max} tenants; use an existing one"),
            Limited::Lanes => write!(
                f,
                "an installation may have at most {max} combinations of queue, handler and required traits; use one \
                 that another job has"
            ),
            Limited::Calendars => write!(
                f,
                "a tenant may have at most {max} calendars; save this one under the name of one that is no longer needed"
            ),
            Limited::TenantPauses => write!(
                f,
                "a tenant may have at most {max} queues that are paused or were resumed within the last year; pause the \
                 queue's jobs, or the tenant"
            ),
            Limited::Pauses => write!(
                f,
                "an installation may have at most {max} queues that are paused or were resumed within the last year; \
                 pause the queue's jobs, or the tenant"
            ),
            Limited::TenantWorkers => write!(
                f,
                "a tenant has at most {max} workers that speak to one node; those that are gone are forgotten after \
                 a while"
            ),
        }
    }
}

impl Limits {
    /// Whether there may be `more` where there are `held`.
    pub fn allow(&self, what: Limited, held: usize, more: usize) -> Result<(), LimitReached> {
        let max = match what {
            Limited::Tenants => self.tenants,
            Limited::Lanes => self.lanes,
            Limited::Calendars => self.calendars,
            Limited::TenantPauses => self.tenant_pauses,
            Limited::Pauses => self.pauses,
            Limited::TenantWorkers => self.tenant_workers,
        };
        if more > 0 && held.saturating_add(more) > max { Err(LimitReached { what, max }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there already must stay usable where an installation is over a limit.
    #[test]
    fn what_adds_nothing_is_allowed_beyond_a_limit() {
        let limits = Limits { lanes: 3, ..Limits::default() };
        for (held, more, allowed) in
            [(0, 3, true), (2, 1, true), (2, 2, false), (3, 0, true), (3, 1, false), (9, 0, true), (9, 1, false)]
        {
            assert_eq!(limits.allow(Limited::Lanes, held, more).is_ok(), allowed, "{held} {more}");
        }
    }
}
