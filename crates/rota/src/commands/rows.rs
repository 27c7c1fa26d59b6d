//! `rota rows`: what the store cannot read, for whoever speaks for the installation.

use std::io;

use clap::Subcommand;
use jiff::Timestamp;
use rota_api::access::{RawRow, UnreadableRow};
use serde_json::Value;

use crate::{
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun, Session},
    table::Table,
};

pub type RowsArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List the rows that cannot be read, and why
    List(ListArgs),
    /// Show a row as it is stored
    #[command(alias = "get")]
    Show {
        /// Its table and its key, as `rota rows list` shows them
        row: String,
    },
    /// Delete a row that cannot be read, unless others depend on it
    Discard {
        /// Its table and its key, as `rota rows list` shows them
        row: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub fn run(args: RowsArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(list) => session.list(&list, &["rows"], &[], drawn).await,
        Command::Show { row } => show(session, &row).await,
        Command::Discard { row, yes } => {
            session.confirm(yes, &format!("Delete {row}? It has no history and cannot be restored."))?;
            let gone: RawRow = session.client.delete(&["rows", &row], &[]).await?;
            session.done(&gone, format_args!("discarded {}", gone.id))
        }
    })
}

async fn show(session: &mut Session<'_>, row: &str) -> Result<(), Failure> {
    let row: RawRow = session.client.get(&["rows", row], &[]).await?;
    session.answer(&row, |printer| {
        let mut fields = Table::fields();
        for (name, value) in row.columns.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            fields.field(name, if *value == Value::Null { String::new() } else { text });
        }
        printer.table(fields)
    })
}

fn drawn(rows: &[UnreadableRow], _: Timestamp, printer: &mut Printer) -> io::Result<()> {
    let mut table = Table::new(&["ROW", "REASON"]);
    for row in rows {
        table.row([row.id.clone().into(), row.reason.clone().into()]);
    }
    printer.table(table)
}
