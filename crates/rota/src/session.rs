//! A session: one command's talk with a server, and how its answers are shown.

use std::{fmt::Display, future::Future, io};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rota_client::Client;
use rota_core::duration::Span;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    clock,
    contexts::Contexts,
    failure::Failure,
    printer::{Output, Printer},
    target::{ServerArgs, Target},
};

/// Items of a list where nobody says how many.
const LIST: usize = 50;

/// So long is a server waited for that answered before.
const AWAY_MAX: Span = Span::secs(60);

/// The flags of every command that asks a server and shows what it says.
#[derive(Args, Clone, Debug)]
pub struct SessionArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table", global = true)]
    pub output: Output,
}

/// A noun whose verbs ask a server.
#[derive(Args)]
pub struct Noun<C: Subcommand> {
    #[command(flatten)]
    session: SessionArgs,
    #[command(subcommand)]
    command: C,
}

impl<C: Subcommand> Noun<C> {
    /// Does what was asked, on this thread.
    pub fn run(
        self,
        printer: &mut Printer,
        work: impl AsyncFnOnce(&mut Session<'_>, C) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut session = Session::open(&self.session, printer)?;
        block_on(work(&mut session, self.command))
    }
}

/// How much of a list.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = LIST, value_parser = at_least_one)]
    limit: usize,
    /// All results, page by page
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

/// Whether to look again and again.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// Refresh every 2s, or at the given interval, until Ctrl-C
    #[arg(short, long, value_name = "EVERY", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    watch: Option<Span>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "must be a number of at least 1".to_owned())
}

impl ListArgs {
    pub const fn watches(&self) -> bool {
        self.watch.watch.is_some()
    }

    pub fn limit(&self) -> usize {
        if self.all { usize::MAX } else { self.limit }
    }
}

pub struct Session<'a> {
    pub client: Client,
    pub printer: &'a mut Printer,
    pub output: Output,
}

impl<'a> Session<'a> {
    pub fn open(args: &SessionArgs, printer: &'a mut Printer) -> Result<Self, Failure> {
        let target = Target::of(&args.server)?;
        if target.token.is_some() && Contexts::is_open_to_others() {
            printer.note("warning: other users can read your contexts and the tokens in them; run `rota login` again, or chmod 600 the file")?;
        }
        Ok(Self { client: target.client()?, printer, output: args.output })
    }

    /// Prints a value in the form that was asked for.
    pub fn answer<T: Serialize>(
        &mut self,
        value: &T,
        table: impl FnOnce(&mut Printer) -> io::Result<()>,
    ) -> Result<(), Failure> {
        Ok(self.printer.answer(self.output, value, table)?)
    }

    /// Says what was done. Programs are given the value instead.
    pub fn done<T: Serialize>(&mut self, value: &T, words: impl Display) -> Result<(), Failure> {
        self.answer(value, |printer| printer.line(&words.to_string()))
    }

    /// Shows a list once, or again and again.
    pub async fn list<T: Serialize + DeserializeOwned>(
        &mut self,
        args: &ListArgs,
        path: &[&str],
        query: &[(&str, String)],
        table: impl Fn(&[T], Timestamp, &mut Printer) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.watched(&args.watch, async |session| {
            let (items, more) = session.client.list::<T>(path, query, args.limit()).await?;
            session.answer(&items, |printer| table(&items, clock::now(), printer))?;
            if more {
                session.printer.note(&format!("showing the first {}; use --limit N or --all for more", items.len()))?;
            }
            Ok(())
        })
        .await
    }

    /// Does something once, or again and again on a fresh screen.
    pub async fn watched(
        &mut self,
        watch: &WatchArgs,
        mut once: impl AsyncFnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(every) = watch.watch else { return once(self).await };
        let every = every.max(Span::millis(100));
        let mut patience = Patience::default();
        loop {
            self.printer.clear()?;
            let looked = once(self).await;
            patience.bear(looked, self.printer)?;
            self.printer.flush()?;
            clock::sleep(every).await;
        }
    }

    /// Asks before something that touches many, or cannot be undone. Where nobody
    /// can be asked, `--yes` must have been given.
    pub fn confirm(&mut self, yes: bool, question: &str) -> Result<(), Failure> {
        if yes {
            return Ok(());
        }
        if !Printer::can_ask() {
            let message = format!("{question}\ncannot ask for confirmation without a terminal: use --yes");
            return Err(Failure::bad_input("not_confirmed", message));
        }
        self.printer.flush()?;
        match inquire::Confirm::new(question).with_default(false).prompt() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::NotSo { message: "nothing was changed".to_owned() }),
            Err(error) => Err(not_answered(error)),
        }
    }
}

/// Bears with a server that answered before and is away for a moment, as when it is
/// started anew: what is followed goes on there, and so does whoever follows.
#[derive(Default)]
pub struct Patience {
    answered: bool,
    away_since: Option<Timestamp>,
}

impl Patience {
    /// What was answered; none where the server is to be asked again.
    pub fn bear<T>(&mut self, asked: Result<T, Failure>, printer: &mut Printer) -> Result<Option<T>, Failure> {
        let failure = match asked {
            Ok(answer) => {
                *self = Self { answered: true, away_since: None };
                return Ok(Some(answer));
            }
            Err(failure) => failure,
        };
        let now = clock::now();
        if !failure.is_passing() || !self.answered || self.away_since.is_some_and(|since| AWAY_MAX.after(since) < now) {
            return Err(failure);
        }
        if self.away_since.is_none() {
            self.away_since = Some(now);
            printer.note(&format!("the server does not answer; trying again for up to {AWAY_MAX}"))?;
        }
        Ok(None)
    }
}

/// A question that got no answer.
pub fn not_answered(error: inquire::InquireError) -> Failure {
    match error {
        inquire::InquireError::OperationCanceled | inquire::InquireError::OperationInterrupted => {
            Failure::NotSo { message: "nothing was changed".to_owned() }
        }
        error => Failure::Other(error.into()),
    }
}

/// Runs what waits for a server, on this thread.
pub fn block_on(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
