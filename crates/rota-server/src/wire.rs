//! From the domain to the wire.

use rota_api::{Pause, job::Job};
use rota_core::store::{self, JobRecord, StoreError};
use serde_json::Value;

use crate::problem::Problem;

pub fn pause(pause: store::Pause) -> Pause {
    Pause { since: pause.since, until: pause.until, note: pause.note, by: pause.by }
}

/// What was stored as JSON.
pub fn json(stored: &str) -> Result<Value, Problem> {
    serde_json::from_str(stored).map_err(|error| StoreError::Corrupt(error.to_string()).into())
}

pub fn job(record: JobRecord) -> Result<Job, Problem> {
    Ok(Job {
        id: record.id.0,
        name: record.name,
        version: record.version,
        queue: record.queue,
        tags: record.tags,
        enabled: record.enabled,
        pause: record.pause.map(pause),
        created_at: record.created_at,
        updated_at: record.updated_at,
        deleted: record.deleted,
        document: json(&record.document)?,
    })
}
