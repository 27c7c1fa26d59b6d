//! Job: the document that says what to do, with what input, under which policies.
//!
//! Text becomes a value (`read`), the value a [`JobDocument`] (`decode`), and the
//! document is checked as a whole (`check`); what comes out is fit to be saved.
//! Whoever holds a document that came through [`JobDocument::from_json`] or its
//! sisters may rely on every reference inside it.
//!
//! It is safe on documents from strangers: every part is bounded, every fault
//! is an answer with a path and a stable code, and none is a panic.
//!
//! This module knows no other jobs, no tenant and no store. Template
//! expressions and payload schemas are compiled elsewhere.

pub mod canonical;
pub mod check;
pub mod decode;
pub mod document;
pub mod effective;
pub mod failure;
pub mod flow;
pub mod kinds;
mod path;
pub mod read;
pub mod retry;
pub mod size;
pub mod step;
pub mod template;
pub mod terms;
mod unbuilt;

use serde_json::Value;

pub use self::{
    canonical::ContentHash,
    document::{After, AfterEnd, JobDocument, Match},
    effective::StepPolicy,
    flow::after_cycle,
    terms::RunTerms,
    unbuilt::unbuilt,
};
use crate::problem::Problem;

impl JobDocument {
    /// The job that a value describes, or everything that is wrong with it.
    pub fn from_value(value: Value) -> Result<Self, Vec<Problem>> {
        let job: Self = decode::decode(value)?;
        let problems = check::check(&job);
        if problems.is_empty() { Ok(job) } else { Err(problems) }
    }

    pub fn from_json(text: &[u8]) -> Result<Self, Vec<Problem>> {
        Self::from_value(read::json(text).map_err(|problem| vec![problem])?)
    }

    /// What is right and may still be a mistake.
    pub fn warnings(&self) -> Vec<Problem> {
        check::warnings(self)
    }

    pub fn from_yaml(text: &[u8]) -> Result<Self, Vec<Problem>> {
        Self::from_value(read::yaml(text).map_err(|problem| vec![problem])?)
    }
}

#[cfg(test)]
mod tests;
