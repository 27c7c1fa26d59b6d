//! The instants that every schedule owed, and what became of each.
//!
//! A schedule's book has a chapter for each definition that the store took, from
//! its first cursor to the change that ended it. Whatever happened in between,
//! each instant of a chapter is a run or lies in a recorded skip, exactly once,
//! and there are no others.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rota_core::{
    fire::Cursor,
    ids::{JobId, ScheduleId, TenantId},
    schedule::ScheduleSpec,
    store::{SchedulePut, SkipRecord},
    timing::Schedule,
};
use serde_json::Value;

/// One definition, while it was in force.
struct Chapter {
    schedule: Schedule,
    first: Option<Cursor>,
    ended: Option<End>,
}

/// The change that ended a definition.
#[derive(Clone, Copy)]
struct End {
    /// What was owed then.
    owed: Option<Cursor>,
    at: Timestamp,
}

/// See the module.
pub struct Book {
    pub job: JobId,
    pub tenant: TenantId,
    pub spec: ScheduleSpec,
    text: String,
    pub enabled: bool,
    pub deleted: bool,
    chapters: Vec<Chapter>,
    /// Instants that made a run.
    pub fired: BTreeMap<Timestamp, usize>,
    /// When they did.
    pub fired_at: BTreeMap<Timestamp, Timestamp>,
}

impl Book {
    pub fn new(put: &SchedulePut) -> Self {
        let mut book = Self {
            job: put.job,
            tenant: put.tenant,
            spec: serde_json::from_str(&put.spec).unwrap(),
            text: String::new(),
            enabled: put.enabled,
            deleted: false,
            chapters: Vec::new(),
            fired: BTreeMap::new(),
            fired_at: BTreeMap::new(),
        };
        book.put(put, Timestamp::MIN);
        book
    }

    /// The store took a definition.
    pub fn put(&mut self, put: &SchedulePut, now: Timestamp) {
        self.enabled = put.enabled;
        let owed = put.guard.and_then(|guard| guard.cursor);
        let planned = |cursor: Option<Cursor>| cursor.map(|cursor| cursor.planned_at);
        if self.text == put.spec && planned(owed) == planned(put.stored.cursor) {
            // Only woken.
            return;
        }
        self.end(owed, now);
        self.spec = serde_json::from_str(&put.spec).unwrap();
        self.text.clone_from(&put.spec);
        let schedule = Schedule::compile(&self.spec, &put.id.seed()).unwrap();
        self.chapters.push(Chapter { schedule, first: put.stored.cursor, ended: None });
    }

    pub fn end(&mut self, owed: Option<Cursor>, at: Timestamp) {
        if let Some(last) = self.chapters.last_mut().filter(|last| last.ended.is_none()) {
            last.ended = Some(End { owed, at });
        }
    }

    pub fn is_after_finish(&self) -> bool {
        self.spec.after_finish.is_some()
    }

    pub fn payload(&self) -> &Value {
        &self.spec.payload
    }

    /// The instants of its present definition in a time.
    pub fn instants(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let Some(chapter) = self.chapters.last().filter(|last| last.ended.is_none()) else { return Vec::new() };
        let mut next = chapter.first.map(|first| first.planned_at);
        let mut found = Vec::new();
        while let Some(at) = next.filter(|at| *at < to) {
            if from <= at {
                found.push(at);
            }
            next = chapter.schedule.next(at);
        }
        found
    }

    fn expected(&self, cursor: Option<Cursor>) -> Vec<Timestamp> {
        let mut expected = Vec::new();
        for chapter in &self.chapters {
            let end = chapter.ended.unwrap_or(End { owed: cursor, at: Timestamp::MIN });
            let mut next = chapter.first.map(|first| first.planned_at);
            while let Some(at) = next
                && (at <= end.at || end.owed.is_some_and(|owed| at < owed.planned_at))
            {
                expected.push(at);
                next = chapter.schedule.next(at);
            }
        }
        expected
    }

    /// Whether every instant up to `cursor` has one end; says which has not.
    pub fn balance(&self, id: ScheduleId, cursor: Option<Cursor>, skips: &[SkipRecord]) -> Result<(), String> {
        if let Some((at, count)) = self.fired.iter().find(|(_, count)| **count > 1) {
            return Err(format!("schedule {id}: the instant {at} made {count} runs"));
        }
        if self.is_after_finish() {
            return Ok(());
        }
        let expected = self.expected(cursor);
        for at in &expected {
            let ranges = skips.iter().filter(|skip| skip.range.from <= *at && *at <= skip.range.to).count();
            let ends = self.fired.get(at).copied().unwrap_or(0) + ranges;
            if ends != 1 {
                return Err(format!("schedule {id}: the instant {at} has {ends} ends; skips {skips:?}"));
            }
        }
        let ends = self.fired.len() as u64 + skips.iter().map(|skip| skip.range.count).sum::<u64>();
        if ends != expected.len() as u64 {
            return Err(format!("schedule {id}: {} instants were owed and {ends} have an end", expected.len()));
        }
        Ok(())
    }
}
