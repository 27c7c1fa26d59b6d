//! Schedules, ready for use.

use std::sync::Arc;

use rota_core::{
    fire,
    problem::Problem,
    schedule::ScheduleSpec,
    store::{JobRecord, Pause, PauseTarget, Pauses, ScheduleRecord},
    stored,
    timing::Schedule,
};

use super::JobEntry;

/// A schedule at one revision.
#[derive(Debug)]
pub struct ScheduleEntry {
    pub record: ScheduleRecord,
    pub spec: ScheduleSpec,
    /// As its job allows it to be.
    pub schedule: Schedule,
}

impl ScheduleEntry {
    /// What is stored, ready for use; or why it cannot be read.
    pub fn read(record: ScheduleRecord) -> Result<Self, String> {
        let spec: ScheduleSpec = stored::read(&record.spec).map_err(|error| error.to_string())?;
        let told = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let schedule = Schedule::compile(&spec, &record.id.seed()).map_err(told)?.of_job(record.enabled);
        Ok(Self { record, spec, schedule })
    }

    pub fn pauses(&self, job: &JobEntry, wide: &Pauses) -> Vec<fire::Pause> {
        pauses_over(&self.record, &job.record, wide)
    }
}

/// The times in which nothing of a schedule starts: by its own pauses, and by those of its
/// job, its queue and its tenant.
pub fn pauses_over(schedule: &ScheduleRecord, job: &JobRecord, wide: &Pauses) -> Vec<fire::Pause> {
    let wide = wide.pauses.iter().filter(|(target, _)| match target {
        PauseTarget::Tenant(of) => *of == schedule.tenant,
        PauseTarget::Queue(of, name) => *of == schedule.tenant && *name == job.queue,
        PauseTarget::Job(_) | PauseTarget::Schedule(_) => false,
    });
    let own = schedule.pause.iter().chain(&job.pause);
    wide.map(|(_, pause)| pause).chain(own).flat_map(Pause::spans).collect()
}

/// What became of a schedule that was asked for.
#[derive(Clone, Debug)]
pub enum ScheduleFound {
    Here(Arc<ScheduleEntry>),
    /// It is not at that revision any more.
    Changed,
    /// What it says cannot be read.
    Broken(String),
}
