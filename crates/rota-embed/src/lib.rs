//! Rota inside a Rust program: handlers are async functions of the program,
//! jobs and schedules are written in code, and the store is an SQLite file, or
//! a PostgreSQL database that the program may already have.
//!
//! ```
//! use rota_embed::{Call, Job, Rota, Verdict};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greeting {
//!     name: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), rota_embed::Error> {
//! let rota = Rota::open("sqlite::memory:")
//!     .handler("greet", async |call: Call, greeting: Greeting| {
//!         call.log(&format!("attempt {}", call.attempt));
//!         Ok(format!("hello, {}", greeting.name))
//!     })
//!     .start()
//!     .await?;
//!
//! rota.save(Job::new("greet").handler("greet")).await?;
//! let run = rota.enqueue("greet", Greeting { name: "Ann".into() }).await?;
//! assert_eq!(rota.wait(run).await?, Verdict::Succeeded);
//! rota.stop().await
//! # }
//! ```
//!
//! A run is made once and executed at least once: a process that dies takes its
//! attempts with it, and they start again. [`Call::lease`] names an attempt
//! towards others; its fence only grows.
//!
//! Everything is in one tenant, the same that `rota serve` uses by itself. This
//! crate chooses a store and puts it together with the engine, and decides
//! nothing: what it leaves out is reached through [`Rota::engine`].

mod builder;
mod error;
mod job;
mod rota;
pub mod store;

pub use rota_core::{
    duration::Span,
    ids::RunId,
    job::JobDocument,
    ports::Progress,
    run::{RunState, Verdict},
    store::{CancelAnswer, RunRecord},
};
pub use rota_engine::{
    Engine, Event, Feed, FeedItem, Made, Options,
    definitions::Saved,
    executors::{
        Call, HandlerError,
        command::{CommandOptions, CommandPolicy},
        egress::Egress,
        handler::Cancelled,
        http::HttpOptions,
    },
};

pub use self::{builder::Builder, error::Error, job::Job, rota::Rota};
