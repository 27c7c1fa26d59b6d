//! Many jobs from a stream.

use rota_api::bulk::JobLine;

use super::ImportArgs;
use crate::{
    failure::Failure,
    lines::{self, Answered},
    session::Session,
};

pub async fn import(session: &mut Session<'_>, args: &ImportArgs) -> Result<(), Failure> {
    lines::send::<JobLine>(session, &["bulk", "jobs"], &args.file, "saved").await
}

impl Answered for JobLine {
    fn line(&self) -> u64 {
        self.line
    }

    fn problem(&self) -> Option<&rota_api::problem::Problem> {
        self.error.as_ref()
    }
}
