//! Many runs from a stream.

use std::path::Path;

use rota_api::{bulk::RunLine, problem::Problem};

use crate::{
    failure::Failure,
    lines::{self, Answered},
    session::Session,
};

pub async fn enqueue(session: &mut Session<'_>, file: &Path) -> Result<(), Failure> {
    lines::send::<RunLine>(session, &["bulk", "runs"], file, "created").await
}

impl Answered for RunLine {
    fn line(&self) -> u64 {
        self.line
    }

    fn problem(&self) -> Option<&Problem> {
        self.error.as_ref()
    }
}
