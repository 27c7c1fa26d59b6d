//! How one engine behaves. Every number has a reason beside it.

use rota_core::{duration::Span, limits::Limits, quota::Tiers};

/// What an engine is told; the defaults suit one process on its own.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, with its own answer in a config file"
)]
pub struct Options {
    /// What people call this node.
    pub name: String,
    /// Free information about it, JSON.
    pub info: String,
    /// No other process can reach this store: what a node left behind when it
    /// died is taken at once, and not when its lease has run out.
    pub sole: bool,
    /// Takes partitions: fires, promotes, and executes owned lanes.
    pub schedules: bool,
    /// Executes attempts.
    pub executes: bool,
    /// Every node has the handlers of this one, so that their lanes are owned.
    pub handlers_everywhere: bool,
    /// What this node offers to jobs that require it.
    pub traits: Vec<String>,
    /// What tiers allow; every node of an installation is told the same.
    pub tiers: Tiers,
    /// How many there may be of what every node holds as a whole.
    pub limits: Limits,

    /// A node's lease holds this long. Failover takes one of these and a heartbeat.
    pub node_lease: Span,
    /// A node sends a heartbeat so often: three may fail before its lease runs out.
    pub heartbeat_every: Span,
    /// A worker's written leases hold this long.
    pub run_lease: Span,
    /// They are extended so often.
    pub extend_every: Span,

    /// The time ahead whose schedules are held in memory.
    pub horizon: Span,
    /// Most cursors held in memory; what is later waits in the store.
    pub cursors_max: u32,
    /// Most schedules fired in one transaction, so that it stays near 10 ms. One
    /// that would bring more runs than this ends its batch.
    pub fire_batch: usize,
    /// Most runs promoted in one transaction.
    pub promote_batch: u32,
    /// Least time between two looks for delayed runs.
    pub promote_gap: Span,
    /// A look into the store without being told, at least so often.
    pub look_every: Span,
    /// A look at every pair of lane and tenant, for what nobody told of.
    pub full_look_every: Span,

    /// Attempts under way at once.
    pub slots: usize,
    /// Most runs started in one go.
    pub dispatch_batch: usize,
    /// Ended attempts that the store has not taken yet; beyond that nothing is
    /// started, so that an outage fills no memory.
    pub unsettled_max: usize,
    /// Ready runs kept in memory.
    pub backlog_max: usize,
    /// Batches that are being settled at the same time.
    pub settlers: usize,
    /// Most runs settled in one transaction.
    pub settle_batch: usize,
    /// An attempt that lasts longer gets a written mark.
    pub mark_after: Span,
    /// How often attempts under way are looked at.
    pub watch_every: Span,
    /// Log bytes kept of one attempt.
    pub log_bytes_max: usize,

    /// So many vanished workers make a run a dead letter.
    pub losses_max: u16,
    /// A run that lost so many workers is executed alone in its process.
    pub alone_from: u16,
    /// Leases must have run out for this long before they are reaped.
    pub reap_margin: Span,
    /// An `exclusive` attempt is stopped so long before its node's right to it ends.
    pub withdraw_margin: Span,
    /// Most runs reaped or swept in one transaction.
    pub sweep_batch: u32,
    /// How often leases and deadlines are looked at.
    pub sweep_every: Span,
    /// How often what cannot be is looked for.
    pub scan_every: Span,
    /// A schedule is overdue when nobody fired it for this long.
    pub overdue_after: Span,
    /// How often upkeep gets a slice.
    pub upkeep_every: Span,
    pub history_keep: Span,
    pub skips_keep: Span,
    pub batches_keep: Span,
    /// The audit log, and tokens that no longer count.
    pub audit_keep: Span,

    /// The longest wait after a store error; the first is a hundredth.
    pub backoff_max: Span,
    /// Events kept for a subscriber that reads slowly.
    pub events_max: usize,
    /// Whoever saves a schedule for a second with so many schedules is warned.
    pub hot_second: u64,
    /// Versions and schedules kept compiled, of each.
    pub catalog_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "rota".into(),
            info: "{}".into(),
            sole: false,
            schedules: true,
            executes: true,
            handlers_everywhere: true,
            traits: Vec::new(),
            tiers: Tiers::default(),
            limits: Limits::default(),
            node_lease: Span::secs(3),
            heartbeat_every: Span::secs(1),
            run_lease: Span::secs(6),
            extend_every: Span::secs(2),
            horizon: Span::secs(60),
            cursors_max: 5_000,
            fire_batch: 1_000,
            promote_batch: 1_000,
            promote_gap: Span::millis(10),
            look_every: Span::secs(1),
            full_look_every: Span::secs(30),
            slots: 1_000,
            dispatch_batch: 1_000,
            unsettled_max: 50_000,
            backlog_max: 100_000,
            settlers: 3,
            settle_batch: 2_000,
            mark_after: Span::millis(200),
            watch_every: Span::millis(250),
            log_bytes_max: 1_000_000,
            losses_max: 3,
            alone_from: 2,
            reap_margin: Span::millis(500),
            withdraw_margin: Span::millis(500),
            sweep_batch: 1_000,
            sweep_every: Span::secs(1),
            scan_every: Span::secs(30),
            overdue_after: Span::secs(10),
            upkeep_every: Span::secs(1),
            history_keep: Span::secs(7 * 86_400),
            skips_keep: Span::secs(30 * 86_400),
            batches_keep: Span::secs(3_600),
            audit_keep: Span::secs(365 * 86_400),
            backoff_max: Span::secs(5),
            events_max: 4_096,
            hot_second: 1_000,
            catalog_max: 10_000,
        }
    }
}
