//! The workers that a server knows.

use std::io;

use jiff::Timestamp;
use rota_api::worker::{Worker, WorkerState};
use rota_client::{Client, Query};
use serde_json::json;
use uuid::Uuid;

use crate::{
    commands::shown,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Session},
    table::{Cell, Table, Tone},
    times,
};

pub async fn list(session: &mut Session<'_>, state: Option<WorkerState>, list: &ListArgs) -> Result<(), Failure> {
    let mut query = Query::new();
    query.extend(state.map(|state| ("state", shown::word(&state))));
    session.list(list, &["workers"], &query, drawn).await
}

fn drawn(workers: &[Worker], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if workers.is_empty() {
        return printer.note("no workers");
    }
    let mut table =
        Table::new(&["WORKER", "NAME", "STATE", "BUSY", "SEEN", "OFFERS"]).narrowed(&["SEEN", "BUSY"], "OFFERS");
    for worker in workers {
        table.row([
            worker.id.to_string().into(),
            worker.name.clone().into(),
            state(worker.state),
            Cell::number(format!("{}/{}", worker.busy, worker.slots)),
            times::from_now(worker.seen_at, now).into(),
            offers(worker).into(),
        ]);
    }
    printer.table(table)
}

fn state(state: WorkerState) -> Cell {
    let tone = match state {
        WorkerState::Active => Tone::Good,
        WorkerState::Draining => Tone::Busy,
        WorkerState::Dead => Tone::Bad,
    };
    Cell::toned(shown::word(&state), tone)
}

/// What it executes, and where from.
fn offers(worker: &Worker) -> String {
    let mut parts = Vec::new();
    if worker.built_in {
        parts.push("built in".to_owned());
    }
    for (what, names) in [("traits", &worker.traits), ("queues", &worker.queues), ("handlers", &worker.handlers)] {
        if !names.is_empty() {
            parts.push(format!("{what} {}", names.join(" ")));
        }
    }
    parts.join("; ")
}

pub async fn drain(session: &mut Session<'_>, workers: &[String]) -> Result<(), Failure> {
    let mut ids = Vec::new();
    for worker in workers {
        ids.push(find(&session.client, worker).await?);
    }
    for id in &ids {
        session.client.drain_worker(*id).await?;
    }
    session.done(&json!({ "draining": ids }), format_args!("asked to drain: {}", workers.join(", ")))
}

/// A worker by its id, or by a name that only one living worker has.
async fn find(client: &Client, given: &str) -> Result<Uuid, Failure> {
    if let Ok(id) = given.parse() {
        return Ok(id);
    }
    let (workers, _) = client.list::<Worker>(&["workers"], &[], usize::MAX).await?;
    let named: Vec<&Worker> = workers
        .iter()
        .filter(|worker| worker.name == given && !worker.built_in && worker.state != WorkerState::Dead)
        .collect();
    match named.as_slice() {
        [one] => Ok(one.id),
        [] => Err(Failure::not_found(format!("`{given}` is neither the id nor the name of a remote worker"))),
        many => {
            let ids: Vec<String> = many.iter().map(|worker| worker.id.to_string()).collect();
            let message = format!("{} workers are named `{given}`; use an id: {}", many.len(), ids.join(", "));
            Err(Failure::bad_input("several_workers", message))
        }
    }
}
