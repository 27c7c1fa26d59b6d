//! The API on a real store: what each route promises, and what it refuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::too_many_lines, reason = "a test tells its whole story in one place")]

mod bed;
mod events;
mod fuzz;
mod jobs;
mod limits;
mod nonsense;
mod quotas;
mod rows;
mod runs;
mod schedules;
mod streams;
