//! Rota over HTTP from Rust.
//!
//! [`Client`] speaks the API in the wire types of `rota-api`. [`Worker`] is a
//! remote worker: register handlers, and it fetches attempts, executes them and
//! reports what became of them, to whichever node answers.
//!
//! ```no_run
//! use rota_client::{Client, HandlerError, Worker};
//! use serde_json::json;
//!
//! # async fn example() -> Result<(), rota_client::Error> {
//! let client = Client::new("http://localhost:7070")?;
//! Worker::new(client, "mailer-1")
//!     .handler("mail", |call| async move {
//!         call.log("sending");
//!         let to: String = call.payload["to"].as_str().ok_or(HandlerError::never_again("no `to`"))?.into();
//!         Ok(json!({ "sent": to }))
//!     })
//!     .run(std::future::pending())
//!     .await
//! # }
//! ```
//!
//! Nothing here knows the engine or the store.

#![cfg_attr(test, allow(clippy::too_many_lines, reason = "a test tells its whole story in one place"))]

mod client;
mod error;
mod transport;
mod worker;

pub use self::{
    client::{Believes, Client, ClientBuilder},
    error::Error,
    transport::{Lines, Query, Ready, is_here, parse_address},
    worker::{Call, Cancelled, HandlerError, Outcome, Worker},
};
pub use reqwest::Url;
pub use rota_api as api;
