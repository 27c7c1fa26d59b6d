//! The log of a run, and its end.
//!
//! The server has no word for "when it ends", so it is asked again; between two
//! questions there is a moment, and the moments grow while nothing happens.

use rota_api::{
    page::Page,
    run::{LogLine, Run, Status},
};
use rota_client::Query;
use rota_core::duration::Span;

use super::{LogsArgs, RunName, WaitArgs};
use crate::{
    clock,
    commands::shown,
    failure::Failure,
    printer::{Output, plain},
    session::{Patience, Session},
    table::Tone,
};

const SOON: Span = Span::millis(100);
const LATER: Span = Span::secs(1);

/// How to show the lines of a log.
struct Lines<'a> {
    run: &'a str,
    attempt: Option<u16>,
    details: bool,
    after: Option<String>,
}

impl Lines<'_> {
    /// Prints what was written since; answers whether there was anything, and
    /// whether more can come.
    async fn print(&mut self, session: &mut Session<'_>) -> Result<(bool, bool), Failure> {
        let mut query = Query::new();
        query.extend(self.attempt.map(|attempt| ("attempt", attempt.to_string())));
        query.extend(self.after.clone().map(|after| ("after", after)));
        let page: Page<LogLine> = session.client.get(&["runs", self.run, "logs"], &query).await?;
        for line in &page.items {
            self.line(session, line)?;
        }
        session.printer.flush()?;
        let open = page.next.is_some();
        self.after = page.next.or(self.after.take());
        Ok((!page.items.is_empty(), open))
    }

    fn line(&self, session: &mut Session<'_>, line: &LogLine) -> Result<(), Failure> {
        match session.output {
            Output::Json => session.printer.json_line(line)?,
            // A list of YAML's, an item a line.
            Output::Yaml => {
                session.printer.text("- ")?;
                session.printer.json_line(line)?;
            }
            Output::Table if self.details => {
                let head = format!("{} {} {:<6}", line.at, line.attempt, line.stream);
                let head = session.printer.toned(Tone::Quiet, &head);
                session.printer.line(&format!("{head} {}", plain(&line.text)))?;
            }
            Output::Table => session.printer.line(&plain(&line.text))?,
        }
        Ok(())
    }
}

pub async fn logs(session: &mut Session<'_>, args: &LogsArgs) -> Result<(), Failure> {
    let run = args.run.find(&session.client).await?;
    let mut lines = Lines { run: &run, attempt: args.attempt, details: args.details, after: None };
    if args.follow {
        until_end(session, &mut lines).await?;
        let run: Run = session.client.get(&["runs", &run], &[]).await?;
        return Ok(session.printer.note(&plain(&end_of(&run)))?);
    }
    let mut empty = true;
    loop {
        let (some, open) = lines.print(session).await?;
        empty &= !some;
        if !open && empty && session.output == Output::Table {
            return Ok(session.printer.note("nothing was logged")?);
        }
        if !open {
            return Ok(());
        }
        if !some {
            break;
        }
    }
    // The last lines of a run that has just ended may still be on their way.
    let ended = session.client.get::<Run>(&["runs", &run], &[]).await?.status.is_ended();
    if ended { until_end(session, &mut lines).await } else { Ok(()) }
}

/// Prints lines as they come; ends when the run has and everything was read.
async fn until_end(session: &mut Session<'_>, lines: &mut Lines<'_>) -> Result<(), Failure> {
    let (mut pause, mut patience) = (SOON, Patience::default());
    loop {
        let printed = lines.print(session).await;
        let (some, open) = patience.bear(printed, session.printer)?.unwrap_or((false, true));
        if !open {
            return Ok(());
        }
        pause = if some { SOON } else { grown(pause) };
        clock::sleep(pause).await;
    }
}

fn grown(pause: Span) -> Span {
    Span::millis(pause.as_millis() * 3 / 2).min(LATER)
}

/// Follows a run's log, then says how it ended.
pub async fn follow(session: &mut Session<'_>, run: &str) -> Result<(), Failure> {
    let mut lines = Lines { run, attempt: None, details: false, after: None };
    until_end(session, &mut lines).await?;
    let run: Run = session.client.get(&["runs", run], &[]).await?;
    ended(session, &run)
}

/// The run as it is; none where the job has not run yet.
async fn look(session: &Session<'_>, name: &RunName, id: &mut Option<String>) -> Result<Option<Run>, Failure> {
    if id.is_none() {
        *id = name.find_maybe(&session.client).await?;
    }
    match id {
        Some(id) => Ok(Some(session.client.get(&["runs", id], &[]).await?)),
        None => Ok(None),
    }
}

pub async fn wait(session: &mut Session<'_>, args: &WaitArgs) -> Result<(), Failure> {
    let deadline = args.timeout.map(|timeout| timeout.after(clock::now()));
    let mut id = None;
    let (mut pause, mut patience) = (SOON, Patience::default());
    loop {
        let looked = look(session, &args.run, &mut id).await;
        let run = patience.bear(looked, session.printer)?.flatten();
        if let Some(run) = run.as_ref().filter(|run| run.status.is_ended()) {
            if session.output != Output::Table {
                session.answer(run, |_| Ok(()))?;
            }
            return ended(session, run);
        }
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            let status = run.map_or("not created yet".to_owned(), |run| shown::word(&run.status));
            let message = format!("error: {} has not ended in time; it is {status}", args.run.run);
            return Err(Failure::NotSo { message });
        }
        clock::sleep(pause).await;
        pause = grown(pause);
    }
}

/// How a run ended, in a line.
fn end_of(run: &Run) -> String {
    let took = shown::duration(run, clock::now());
    let took = if took.is_empty() { String::new() } else { format!(" after {took}") };
    let failure = run.failure.as_ref().map(|failure| format!(": {}: {}", failure.kind, failure.message));
    format!("{} {}{took}{}", run.id, shown::word(&run.status), failure.unwrap_or_default())
}

/// Says how a run ended; anything but success is a failure of the command.
fn ended(session: &mut Session<'_>, run: &Run) -> Result<(), Failure> {
    let words = end_of(run);
    if run.status == Status::Succeeded {
        return Ok(session.printer.note(&words)?);
    }
    let hint = match run.status {
        Status::Dead => format!("\nhint: `rota dead redrive {}` runs it again", run.id),
        _ => String::new(),
    };
    Err(Failure::NotSo { message: format!("{}{hint}", plain(&words)) })
}
