//! What is stored alike in both databases, a file for each noun, written once over
//! [`Engine`](crate::engine::Engine).

mod audit;
mod calendars;
mod dead;
mod jobs;
mod lanes;
mod nodes;
mod partitions;
mod pauses;
mod queue;
mod rollups;
mod schedules;
mod sessions;
mod tenants;
mod tokens;
mod users;
mod workers;
