//! Job: the document that says what to do, with what input, under which policies.

pub mod decode;
pub mod failure;
pub mod read;
pub mod retry;
