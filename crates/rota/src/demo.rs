//! The job that `--demo` saves: proof that a node fires and executes, on any
//! machine and without a network.

/// The handler it calls, which every node has.
pub const HANDLER: &str = "hello";

pub const JOB: &str = "\
name: demo
description: Says hello every ten seconds
schedules:
  - name: often
    every: 10s
steps:
  - id: hello
    handler: { name: hello }
";

#[cfg(test)]
mod tests {
    use rota_core::job::{JobDocument, step::StepKind};

    use super::*;

    #[test]
    fn the_demo_is_a_job_that_calls_our_handler() {
        let job = JobDocument::from_yaml(JOB.as_bytes()).unwrap();
        let Some(StepKind::Handler(step)) = job.lone_step().map(|step| &step.kind) else { panic!("a handler step") };
        assert_eq!(step.name, HANDLER);
    }
}
