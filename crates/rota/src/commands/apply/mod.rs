//! `rota apply`, `rota import`: makes a server's jobs those of files.
//!
//! Everything is read and checked before the first change, so that a mistake in
//! one document leaves the server as it was. Applied again, nothing changes. A job
//! is saved over the version that was looked at and no other: whoever saved
//! meanwhile is not overwritten.
//!
//! Jobs are deleted only with `--prune`, and only inside a scope that must be
//! named: those with a tag, or with a prefix. What others keep on the same server
//! is outside the scope and stays. Every document must lie inside it, or a later
//! prune could not find what this one saved.

mod change;
mod plan;

use std::path::PathBuf;

use clap::Args;

use self::plan::{Plan, Scope};
use crate::{
    failure::Failure,
    printer::Printer,
    session::{Session, SessionArgs, block_on},
};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct ApplyArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// A file or directory of job documents, - for standard input; calendars are read from
    /// its subdirectory `calendars`
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Show what changes in each document
    #[arg(long)]
    diff: bool,
    /// Change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also delete jobs in the scope that are not in any file
    #[arg(long, requires = "scope")]
    prune: bool,
    /// The scope of --prune: jobs with this tag
    #[arg(long, group = "scope", requires = "prune")]
    tag: Option<String>,
    /// The scope of --prune: jobs whose names start with this
    #[arg(long, group = "scope", requires = "prune")]
    prefix: Option<String>,
    /// Do not ask for confirmation before deleting
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args)]
pub struct ImportArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// Files or directories that `rota export` wrote; - for standard input
    #[arg(value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Change nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: ApplyArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut session = Session::open(&args.session, printer)?;
    let session = &mut session;
    let scope = match (&args.tag, &args.prefix) {
        (Some(tag), _) => Some(Scope::Tag(tag.clone())),
        (None, Some(prefix)) => Some(Scope::Prefix(prefix.clone())),
        (None, None) => None,
    };
    block_on(async move {
        let plan = Plan::make(session, &args.files, scope.as_ref()).await?;
        plan.carry_out(session, &Wish { diff: args.diff, dry_run: args.dry_run, yes: args.yes }).await
    })
}

pub fn import(args: ImportArgs, printer: &mut Printer) -> Result<(), Failure> {
    let mut session = Session::open(&args.session, printer)?;
    let session = &mut session;
    block_on(async move {
        let plan = Plan::make(session, &args.files, None).await?;
        plan.carry_out(session, &Wish { diff: false, dry_run: args.dry_run, yes: false }).await
    })
}

/// How a plan is to be carried out.
struct Wish {
    diff: bool,
    dry_run: bool,
    yes: bool,
}
