//! Logs: to standard error, for people or for programs, with the ids of runs
//! and jobs as fields.

use rota_core::run::Verdict;
use rota_engine::{Engine, Event};
use tokio::sync::broadcast::error::RecvError;
use tracing::{Level, debug, info, warn};
use tracing_subscriber::{Layer as _, fmt::MakeWriter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{LogFormat, LogLevel};

/// Under this target stands what happens to runs.
const RUNS: &str = "rota::runs";

/// From now on, everything that is told goes to standard error.
pub fn start(format: LogFormat, level: LogLevel) -> anyhow::Result<()> {
    start_to(std::io::stderr, std::io::IsTerminal::is_terminal(&std::io::stderr()), format, level)
}

/// From now on, everything that is told goes there.
pub fn start_to<W>(writer: W, colours: bool, format: LogFormat, LogLevel(level): LogLevel) -> anyhow::Result<()>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        LogFormat::Pretty => lines.with_ansi(colours).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(level)).try_init()?;
    Ok(())
}

/// Writes down what happens to runs, until the engine is gone. A node that does
/// more than can be written down says how much it left out.
pub async fn follow(engine: Engine) {
    if !tracing::enabled!(target: RUNS, Level::ERROR) {
        return;
    }
    let mut feed = engine.subscribe();
    drop(engine);
    loop {
        match feed.recv().await {
            Ok(event) => tell(&event),
            Err(RecvError::Lagged(missed)) => {
                warn!(target: RUNS, missed, "events were missed, because there were more than could be logged");
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn tell(event: &Event) {
    match event {
        Event::RunMade { run, job, status, .. } => debug!(target: RUNS, %run, %job, ?status, "run created"),
        Event::RunStarted { run, job, attempt, .. } => debug!(target: RUNS, %run, %job, attempt, "attempt started"),
        Event::RunRetried { run, job, attempt, retry_at, .. } => {
            info!(target: RUNS, %run, %job, attempt, %retry_at, "attempt failed and will be retried");
        }
        Event::RunParked { run, job, .. } => debug!(target: RUNS, %run, %job, "run parked"),
        Event::RunEnded { run, job, verdict, .. } => match verdict {
            Verdict::Succeeded | Verdict::Cancelled | Verdict::Skipped => {
                debug!(target: RUNS, %run, %job, %verdict, "run ended");
            }
            Verdict::Failed | Verdict::TimedOut | Verdict::Dead | Verdict::Expired => {
                warn!(target: RUNS, %run, %job, %verdict, "run did not succeed");
            }
        },
        Event::SettlementRefused { run, job, .. } => {
            warn!(target: RUNS, %run, %job, "an attempt ended after its lease was lost");
        }
        Event::RunLost { run, job, status, .. } => warn!(target: RUNS, %run, %job, ?status, "run lost its worker"),
        Event::ScheduleFired { schedule, job, planned_at, run, .. } => {
            debug!(target: RUNS, %schedule, %run, %job, %planned_at, "schedule fired");
        }
        Event::InstantsSkipped { schedule, job, count, .. } => {
            info!(target: RUNS, %schedule, %job, count, "instants skipped");
        }
        Event::JobSaved { job, version, changed, .. } => debug!(target: RUNS, %job, version, changed, "job saved"),
        Event::Paused { target } => info!(target: RUNS, paused = ?target, "paused"),
        Event::Resumed { target } => info!(target: RUNS, resumed = ?target, "resumed"),
        // The stage that does it says so itself.
        Event::PartitionsTaken { .. } | Event::PartitionsLost { .. } | Event::Found(_) => {}
        Event::RequestRefused { inbox, why } => warn!(target: RUNS, inbox, why, "a request in the inbox was refused"),
    }
}
