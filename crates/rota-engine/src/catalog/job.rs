//! Versions of jobs, ready for use, and what is wrong with their inputs.

use std::sync::Arc;

use rota_core::{
    ids::JobId,
    job::{JobDocument, RunTerms, StepPolicy, document::Input, template::has_tags},
    order::Priority,
    problem::Problem,
    rate::Rate,
    run::SettlePolicy,
    store::JobRecord,
    stored,
};
use serde_json::Value;

use super::schema::Schema;

/// One version of a job, ready for use.
#[derive(Debug)]
pub struct JobVersion {
    pub job: JobId,
    pub version: i32,
    pub document: JobDocument,
    pub terms: RunTerms,
    pub settle: SettlePolicy,
    /// The rules of its one step; none for a flow.
    pub step: Option<StepPolicy>,
    pub rate: Option<Rate>,
    /// The payload of a run that was given none.
    pub payload: Value,
    /// Whether its step has anything to render.
    pub templated: bool,
    /// What every payload must satisfy; or why it cannot be used, where an earlier release
    /// accepted it.
    schema: Option<Result<Schema, String>>,
    /// Bytes of its document.
    pub size: usize,
}

impl JobVersion {
    pub fn read(job: JobId, version: i32, document: &str, losses_max: u16) -> Result<Self, String> {
        let size = document.len();
        let document: JobDocument = stored::read(document).map_err(|error| error.to_string())?;
        let terms = document.run_terms(Priority::HIGHEST);
        let step = document.lone_step();
        let templated = step.is_some_and(|step| serde_json::to_string(step).is_ok_and(|text| has_tags(&text)));
        Ok(Self {
            job,
            version,
            settle: SettlePolicy { retry: terms.retry.clone(), losses_max },
            step: step.map(|step| document.step_policy(step)),
            rate: document.rate_limit.as_ref().map(|limit| Rate { runs: limit.runs, per: limit.per }),
            payload: document.input.as_ref().and_then(|input| input.default.clone()).unwrap_or_default(),
            templated,
            size,
            terms,
            schema: document.input.as_ref().and_then(|input| schema_of(input).transpose()),
            document,
        })
    }

    /// Bytes that it keeps, nearly.
    pub(super) fn weight(&self) -> usize {
        self.size + self.schema.as_ref().and_then(|schema| schema.as_ref().ok()).map_or(0, Schema::weight)
    }

    /// What is wrong with a payload, by the job's own schema: the first thing,
    /// with its path.
    pub fn refuses(&self, payload: &Value) -> Option<String> {
        match self.schema.as_ref()? {
            Ok(schema) => schema.refuses(payload),
            Err(why) => Some(format!("input.schema cannot be used and has to be saved anew: {why}")),
        }
    }
}

/// The schema of an input, ready for use.
fn schema_of(input: &Input) -> Result<Option<Schema>, String> {
    input.schema.as_ref().map(Schema::new).transpose()
}

/// What is wrong with a job's input: a schema that is none, and payloads of its
/// own that the schema refuses.
pub fn input_problems(document: &JobDocument) -> Vec<Problem> {
    let Some(input) = &document.input else { return Vec::new() };
    let schema = match schema_of(input) {
        Ok(None) => return Vec::new(),
        Ok(Some(schema)) => schema,
        Err(why) => {
            return vec![Problem::new("input.schema", "bad_schema", format!("is not a valid JSON Schema: {why}"))];
        }
    };
    let mut problems = Vec::new();
    let mut refuse = |path: String, payload: &Value| {
        if let Some(why) = schema.refuses(payload) {
            problems.push(Problem::new(path, "bad_payload", format!("does not satisfy input.schema: {why}")));
        }
    };
    if let Some(default) = &input.default {
        refuse("input.default".to_owned(), default);
    }
    for (n, schedule) in document.schedules.iter().enumerate() {
        // A template is filled in for each instant, and judged then.
        if !schedule.payload.is_null() && !has_tags(&schedule.payload.to_string()) {
            refuse(format!("schedules[{n}].payload"), &schedule.payload);
        }
    }
    problems
}

/// A job as last read.
#[derive(Debug)]
pub struct JobEntry {
    pub record: JobRecord,
    pub version: Arc<JobVersion>,
}
