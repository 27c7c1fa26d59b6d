//! `rota schedule`: when jobs run, and what became of every instant.

use std::io;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rota_api::{
    run::Why,
    schedule::{BackfillRequest, Backfilled, Schedule, Skip, Upcoming},
};
use rota_client::{Client, Query};
use rota_core::ids::number;

use super::{
    pausing::{self, PauseArgs},
    shown,
};
use crate::{
    clock,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun, Session, WatchArgs},
    table::{Cell, Table},
    times,
};

/// As many as a job may have.
const SCHEDULES_MAX: usize = 100;

pub type ScheduleArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List schedules
    List {
        /// Only those of this job, by name or id
        #[arg(long)]
        job: Option<String>,
        /// Only those that are enabled, or with `=false` those that are not
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        enabled: Option<bool>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a schedule
    Show {
        #[command(flatten)]
        schedule: ScheduleName,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// List the next instants of a schedule, in UTC and in its time zone
    Next {
        #[command(flatten)]
        schedule: ScheduleName,
        /// How many instants
        #[arg(short = 'n', long = "count", value_name = "N", default_value_t = 10)]
        count: u32,
        /// Start after this time [default: now]
        #[arg(long, value_name = "TIME")]
        after: Option<String>,
    },
    /// List the instants that were skipped, and why
    Skips {
        #[command(flatten)]
        schedule: ScheduleName,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Explain why a schedule did not fire, and what it does next
    Why {
        #[command(flatten)]
        schedule: ScheduleName,
    },
    /// Pause schedules: they do not fire
    Pause {
        /// The schedules: their ids, JOB/NAME, or JOB if the job has one schedule
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
        #[command(flatten)]
        pause: PauseArgs,
    },
    /// Resume schedules; instants of the pause are recorded as skipped
    Resume {
        /// The schedules: their ids, JOB/NAME, or JOB if the job has one schedule
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
    /// Create runs for past instants of a schedule
    Backfill(BackfillArgs),
}

/// A schedule, by its number or by the names of its job and itself.
#[derive(Args)]
pub struct ScheduleName {
    /// Its id, JOB/NAME, or JOB if the job has one schedule
    #[arg(value_name = "SCHEDULE")]
    schedule: String,
}

#[derive(Args)]
pub struct BackfillArgs {
    #[command(flatten)]
    schedule: ScheduleName,
    /// The start of the range, inclusive: an instant, a day, or 2d for two days ago
    #[arg(long, value_name = "TIME")]
    from: String,
    /// The end of the range, exclusive
    #[arg(long, value_name = "TIME", default_value = "now")]
    to: String,
    /// Also instants that already have a run
    #[arg(long)]
    again: bool,
    /// Only show how many runs would be created
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: ScheduleArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List { job, enabled, list } => {
            let mut query = Query::new();
            query.extend(job.map(|job| ("job", job)));
            query.extend(enabled.map(|enabled| ("enabled", enabled.to_string())));
            session.list(&list, &["schedules"], &query, shown::schedules).await
        }
        Command::Show { schedule, watch } => show(session, &schedule, &watch).await,
        Command::Next { schedule, count, after } => next(session, &schedule, count, after.as_deref()).await,
        Command::Skips { schedule, list } => {
            let id = find(&session.client, &schedule.schedule).await?;
            session.list(&list, &["schedules", &id, "skips"], &[], skips).await
        }
        Command::Why { schedule } => {
            let id = find(&session.client, &schedule.schedule).await?;
            let why: Why = session.client.get(&["schedules", &id, "why"], &[]).await?;
            session.answer(&why, |printer| shown::why(&why, printer))
        }
        Command::Pause { schedules, pause } => {
            let ids = find_all(&session.client, &schedules).await?;
            pausing::pause_each(session, "schedules", &ids, &pause).await?;
            pausing::told(session, "paused", &schedules)
        }
        Command::Resume { schedules } => {
            let ids = find_all(&session.client, &schedules).await?;
            pausing::resume_each(session, "schedules", &ids).await?;
            pausing::told(session, "resumed", &schedules)
        }
        Command::Backfill(args) => backfill(session, &args).await,
    })
}

/// The number of a schedule.
async fn find(client: &Client, given: &str) -> Result<String, Failure> {
    if number::<i64>(given).is_some() {
        return Ok(given.to_owned());
    }
    let (job, name) = given.split_once('/').map_or((given, None), |(job, name)| (job, Some(name)));
    let (schedules, _) = client.list::<Schedule>(&["jobs", job, "schedules"], &[], SCHEDULES_MAX).await?;
    let names = || schedules.iter().map(|schedule| schedule.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match (name, schedules.as_slice()) {
        (None, [one]) => Some(one),
        (None, []) => return Err(Failure::not_found(format!("the job `{job}` has no schedules"))),
        (None, _) => {
            let message = format!("the job `{job}` has several schedules: {}; write {job}/NAME", names());
            return Err(Failure::bad_input("several_schedules", message));
        }
        (Some(name), all) => all.iter().find(|schedule| schedule.name == name),
    };
    let found = found.map(|schedule| schedule.id.to_string());
    found.ok_or_else(|| {
        Failure::not_found(format!("the job `{job}` has no such schedule; its schedules are: {}", names()))
    })
}

async fn find_all(client: &Client, given: &[String]) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for schedule in given {
        ids.push(find(client, schedule).await?);
    }
    Ok(ids)
}

async fn show(session: &mut Session<'_>, name: &ScheduleName, watch: &WatchArgs) -> Result<(), Failure> {
    let id = find(&session.client, &name.schedule).await?;
    session
        .watched(watch, async |session| {
            let schedule: Schedule = session.client.get(&["schedules", &id], &[]).await?;
            session.answer(&schedule, |printer| whole(&schedule, clock::now(), printer))
        })
        .await
}

fn whole(schedule: &Schedule, now: Timestamp, printer: &mut Printer) -> io::Result<()> {
    let mut fields = Table::fields();
    fields.field("schedule", format!("{}/{} (id {})", schedule.job.name, schedule.name, schedule.id));
    fields.field("when", schedule.description.as_str());
    fields.field("state", shown::state(schedule.enabled, schedule.paused_by.is_some()));
    fields.field("pause", shown::pause(schedule.pause.as_ref(), now));
    let wider = schedule.paused_by.as_deref().filter(|level| *level != "schedule");
    fields.field("paused by", wider.map(|level| format!("its {level}")).unwrap_or_default());
    let none = match (&schedule.paused_by, schedule.enabled) {
        (Some(_), _) => "none: the schedule is paused",
        (None, false) => "none: the schedule or its job is disabled",
        (None, true) => "none: the schedule waits for its own run, or has ended",
    };
    let next = schedule.next_at.map(|at| format!("{at} ({})", times::from_now(at, now)));
    fields.field("next", next.unwrap_or_else(|| none.to_owned()));
    fields.field("fired", Cell::from(schedule.fired.to_string()));
    fields.field("spec", schedule.spec.to_string());
    printer.table(fields)
}

async fn next(session: &mut Session<'_>, name: &ScheduleName, count: u32, after: Option<&str>) -> Result<(), Failure> {
    let id = find(&session.client, &name.schedule).await?;
    let now = clock::now();
    let mut query = vec![("n", count.to_string())];
    query.extend(times::of_flag("after", after, now)?.map(|after| ("after", after.to_string())));
    let instants: Vec<Upcoming> = session.client.get(&["schedules", &id, "preview"], &query).await?;
    let schedule: Schedule = session.client.get(&["schedules", &id], &[]).await?;
    session.answer(&instants, |printer| {
        shown::upcoming(&instants, now, printer)?;
        match held_back(&schedule) {
            Some(why) if !instants.is_empty() => printer.note(&why),
            _ => Ok(()),
        }
    })
}

/// Why a schedule does not fire at the instants that its definition plans, if it does not.
fn held_back(schedule: &Schedule) -> Option<String> {
    match (schedule.enabled, schedule.paused_by.as_deref(), schedule.next_at) {
        (false, _, _) => {
            Some("the schedule or its job is disabled: none of these instants fires until it is enabled".to_owned())
        }
        (true, Some(level), None) => {
            Some(format!("the {level} is paused: none of these instants fires until it is resumed"))
        }
        (true, Some(level), Some(next)) => {
            Some(format!("the {level} is paused: none of these instants fires before {next}"))
        }
        (true, None, None) => Some(
            "the schedule has no next instant now: `rota schedule why` says what it waits for, or that it has ended"
                .to_owned(),
        ),
        (true, None, Some(_)) => None,
    }
}

fn skips(skips: &[Skip], _: Timestamp, printer: &mut Printer) -> io::Result<()> {
    if skips.is_empty() {
        return printer.note("no instant was skipped");
    }
    let mut table = Table::new(&["FROM", "TO", "INSTANTS", "REASON", "WHY"]);
    for skip in skips {
        table.row([
            skip.from.to_string().into(),
            skip.to.to_string().into(),
            Cell::number(skip.count),
            skip.reason.clone().into(),
            skip.why.clone().into(),
        ]);
    }
    printer.table(table)
}

async fn backfill(session: &mut Session<'_>, args: &BackfillArgs) -> Result<(), Failure> {
    let id = find(&session.client, &args.schedule.schedule).await?;
    let now = clock::now();
    let at = |flag: &str, text: &str| {
        times::parse(text, now).map_err(|message| Failure::bad_input("bad_time", format!("--{flag}: {message}")))
    };
    let (from, to) = (at("from", &args.from)?, at("to", &args.to)?);
    let mut request = BackfillRequest { from, to, again: args.again, dry_run: true };
    let path = ["schedules", &id, "backfill"];
    let mut done: Backfilled = session.client.post(&path, &request).await?;
    if !args.dry_run && done.runs > 0 {
        session.confirm(args.yes, &format!("Create {} runs for instants from {from} to {to}?", done.runs))?;
        request.dry_run = false;
        done = session.client.post(&path, &request).await?;
    }
    let would = if args.dry_run { "would be " } else { "" };
    let before = if args.again { String::new() } else { format!("; {} had fired before", done.fired_before) };
    let refused = match (&done.refusal, done.refused) {
        (Some(why), count) if count > 0 => format!("; {count} {would}refused: {why}"),
        _ => String::new(),
    };
    session
        .done(&done, format_args!("{} runs {would}created for {} instants{before}{refused}", done.runs, done.planned))
}
