//! `rota queue`: the lanes that workers subscribe to.

use std::io;

use clap::Subcommand;
use jiff::Timestamp;
use rota_api::Pause;
use serde::{Deserialize, Serialize};

use super::{
    pausing::{self, PauseArgs},
    shown,
};
use crate::{
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun},
    table::Table,
};

pub type QueueArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List queues and their lanes
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Pause queues: their runs do not start, and the schedules of their jobs do not fire
    Pause {
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
        #[command(flatten)]
        pause: PauseArgs,
    },
    /// Resume queues
    Resume {
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
    },
}

/// A queue as the server tells of it.
#[derive(Serialize, Deserialize)]
struct Queue {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause: Option<Pause>,
    #[serde(default)]
    lanes: Vec<Lane>,
}

#[derive(Serialize, Deserialize)]
struct Lane {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    #[serde(default)]
    requires: Vec<String>,
    claimed: bool,
}

pub fn run(args: QueueArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List { list } => session.list(&list, &["queues"], &[], drawn).await,
        Command::Pause { queues, pause } => pausing::pause(session, "queues", &queues, &pause).await,
        Command::Resume { queues } => pausing::resume(session, "queues", &queues).await,
    })
}

fn drawn(queues: &[Queue], now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if queues.is_empty() {
        return printer.note("no queues; the first job creates one");
    }
    let mut table = Table::new(&["QUEUE", "STATE", "HANDLERS", "REQUIRES", "PAUSE"]);
    for queue in queues {
        let mut handlers: Vec<&str> =
            queue.lanes.iter().map(|lane| lane.handler.as_deref().unwrap_or("(built in)")).collect();
        let mut requires: Vec<&str> =
            queue.lanes.iter().flat_map(|lane| lane.requires.iter().map(String::as_str)).collect();
        handlers.sort_unstable();
        handlers.dedup();
        requires.sort_unstable();
        requires.dedup();
        table.row([
            queue.name.clone().into(),
            shown::state(true, queue.pause.is_some()),
            handlers.join(" ").into(),
            requires.join(" ").into(),
            shown::pause(queue.pause.as_ref(), now).into(),
        ]);
    }
    printer.table(table)
}
