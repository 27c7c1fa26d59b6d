//! Job: the document that says what to do, with what input, under which policies.

pub mod canonical;
pub mod decode;
pub mod document;
pub mod effective;
pub mod failure;
pub mod flow;
pub mod kinds;
pub mod read;
pub mod retry;
pub mod size;
pub mod step;
mod words;

pub use self::{canonical::ContentHash, document::JobDocument, effective::StepPolicy, flow::after_cycle};
