//! `rota calendar`: named days on which schedules do or do not fire.

use std::{io, path::PathBuf};

use clap::Subcommand;
use jiff::Timestamp;
use rota_client::Believes;
use serde_json::Value;

use super::job::name_of;
use crate::{
    documents,
    failure::Failure,
    printer::{Output, Printer},
    session::{ListArgs, Noun, Session},
    table::{Cell, Table},
    yaml,
};

pub type CalendarArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List calendars
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Print a calendar as a document
    Show {
        /// Its name
        calendar: String,
    },
    /// Save a calendar; schedules that name it follow within a second
    Save {
        /// Its document, in YAML or JSON; - for standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
}

pub fn run(args: CalendarArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List { list } => session.list(&list, &["calendars"], &[], drawn).await,
        Command::Show { calendar } => {
            let value: Value = session.client.get(&["calendars", &calendar], &[]).await?;
            // A document is what people read too.
            if session.output == Output::Table {
                return Ok(session.printer.text(&yaml::document(&value)?)?);
            }
            session.answer(&value, |_| Ok(()))
        }
        Command::Save { file } => {
            for value in documents::values(&file)? {
                let saved: Value = save(session, &value).await?;
                session.done(&saved, format_args!("saved {}", name_of(&saved)?))?;
            }
            Ok(())
        }
    })
}

pub async fn save(session: &Session<'_>, value: &Value) -> Result<Value, Failure> {
    Ok(session.client.put(&["calendars", name_of(value)?], value, Believes::Anything).await?)
}

fn drawn(calendars: &[Value], _: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if calendars.is_empty() {
        return printer.note("no calendars; `rota calendar save -f FILE` creates one");
    }
    let mut table = Table::new(&["CALENDAR", "MODE", "ENTRIES"]);
    for calendar in calendars {
        let lists = calendar.as_object().into_iter().flat_map(|fields| fields.values());
        let entries: usize = lists.filter_map(Value::as_array).map(Vec::len).sum();
        table.row([
            calendar["name"].as_str().unwrap_or_default().into(),
            calendar["mode"].as_str().unwrap_or("exclude").into(),
            Cell::number(entries),
        ]);
    }
    printer.table(table)
}
