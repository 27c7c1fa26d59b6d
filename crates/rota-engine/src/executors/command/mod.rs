//! `command`: starts a program and hands its output to the log.
//!
//! Off until the operator allows it. A program gets its arguments as they are,
//! a small environment of its own instead of this process's, and a group of its
//! own. It ends with its attempt: when the future is dropped, and when the
//! program itself has ended, whatever it left behind is killed at once. A dropped
//! attempt gets no grace: it is settled, and another one may start while the old
//! one still says goodbye. One whose run is cancelled is asked to end first, by
//! SIGTERM to its group, and dropped when its grace is over.
//!
//! Output is read line by line and bounded, as a log and as the step's output.
//!
//! A list of programs confines what steps say of their surroundings too: which variables
//! they set and where they run. Programs may run as a user of their own, and under limits.
//! Isolation is not here: a worker that runs commands of people it does not trust belongs
//! into a container.

mod group;
mod lines;
mod policy;
#[cfg(test)]
mod tests;
mod user;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rota_core::{
    bytes::{OUTPUT_BYTES_MAX, fit_json},
    duration::Span,
    job::{
        failure::{ErrorKind, Failure},
        kinds::Command,
        step::StepKind,
    },
    ports::{Attempt, Context, Executor, Reports, Stream},
    run::{Lease, Outcome},
};
use serde_json::{Map, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use self::{
    group::{Ender, Group},
    lines::Lines,
    policy::Start,
};
pub use self::{
    lines::LINE_BYTES_MAX,
    policy::{AllowedProgram, AllowedVariable, CommandPolicy},
    user::CommandUser,
};

/// Bytes of standard output that the step's output holds.
pub const STDOUT_BYTES_MAX: usize = 32 << 10;
/// Bytes that the output takes beside it.
const OTHER_FIELDS_BYTES: usize = 128;

/// How long output is still read after everyone who could write it was killed.
const DRAIN: Span = Span::secs(2);

/// How programs are started, whatever the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOptions {
    pub policy: CommandPolicy,
    /// Where programs run that name no directory, and where relative ones begin.
    pub directory: PathBuf,
    /// Where else programs may run if their policy is a list.
    pub directories: Vec<PathBuf>,
    /// The environment that every program gets.
    pub env: BTreeMap<String, String>,
    /// What else steps may set if their policy is a list.
    pub variables: Vec<AllowedVariable>,
    /// As whom programs run; none is as this process.
    pub user: Option<CommandUser>,
    pub limits: Option<CommandLimits>,
    /// Bytes of output that one attempt may log.
    pub log_bytes_max: usize,
}

/// What one program may use. It is started by another one that takes on the limits first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLimits {
    /// Started with a number for each limit (`-` for none): bytes of memory of each process,
    /// seconds of processor time of each process, processes of the user; and the program
    /// with its arguments.
    pub starter: Vec<String>,
    pub memory_bytes: Option<u64>,
    pub cpu: Option<Span>,
    pub processes: Option<u64>,
}

impl CommandOptions {
    /// Whether a program can be started under these options at all.
    pub fn try_start(&self) -> io::Result<()> {
        let nothing = Start { file: PathBuf::from(policy::SHELL), args: vec!["-c", ":"] };
        let mut command = self.started(&nothing);
        command.current_dir(&self.directory).env_clear();
        let status = command.as_std_mut().stdin(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("{status}"))) }
    }

    /// The program, or the one that takes on the limits and then becomes it, as its user.
    fn started(&self, start: &Start<'_>) -> tokio::process::Command {
        let limits = self.limits.as_ref().and_then(|limits| Some((limits, limits.starter.split_first()?)));
        let mut command = match limits {
            None => tokio::process::Command::new(&start.file),
            Some((limits, (starter, leading))) => {
                let mut command = tokio::process::Command::new(starter);
                command.args(leading).args(limits.arguments()).arg(&start.file);
                command
            }
        };
        command.args(&start.args);
        if let Some(CommandUser { uid, gid }) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl CommandLimits {
    fn arguments(&self) -> [String; 3] {
        let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let cpu = self.cpu.map(|span| span.as_millis().div_ceil(1_000));
        [number(self.memory_bytes), number(cpu), number(self.processes)]
    }
}

impl Default for CommandOptions {
    fn default() -> Self {
        let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];
        Self {
            policy: CommandPolicy::Off,
            directory: std::env::temp_dir(),
            directories: Vec::new(),
            variables: Vec::new(),
            user: None,
            limits: None,
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            log_bytes_max: 1 << 20,
        }
    }
}

/// Executes `command` steps.
pub struct CommandExecutor {
    options: CommandOptions,
    /// The attempts whose program is under way.
    going: Mutex<HashMap<Lease, Ender>>,
}

/// An attempt can be asked to end for as long as this lives.
struct Askable<'e> {
    executor: &'e CommandExecutor,
    lease: Lease,
}

impl Drop for Askable<'_> {
    fn drop(&mut self) {
        self.executor.going(|going| going.remove(&self.lease));
    }
}

impl CommandExecutor {
    pub fn new(options: CommandOptions) -> Self {
        Self { options, going: Mutex::default() }
    }

    fn going<T>(&self, work: impl FnOnce(&mut HashMap<Lease, Ender>) -> T) -> T {
        work(&mut self.going.lock())
    }

    fn askable(&self, lease: Lease, group: &Group) -> Askable<'_> {
        self.going(|going| going.extend(group.ender().map(|ender| (lease, ender))));
        Askable { executor: self, lease }
    }

    async fn run(&self, step: &Command, attempt: &Attempt, context: &Context) -> Result<Outcome, Failure> {
        let mut command = self.prepared(step, attempt)?;
        let lease = format!("{}.{}", attempt.lease.run, attempt.lease.fence.0);
        let mut group = Group::spawn(&mut command, &lease).map_err(|error| not_started(&error))?;
        let mut said = Said::new(&*context.reports, self.options.log_bytes_max);
        let askable = self.askable(attempt.lease, &group);
        let watched = watch(&mut group, step.stdin.as_deref(), &mut said, context).await;
        // Before it is waited for: from then on its number may be anyone's.
        drop(askable);
        let status = match watched {
            Ok(()) => group.status().await,
            Err(error) => Err(error),
        };
        let status = status.map_err(|error| Failure::new(ErrorKind::Lost, format!("lost sight of it: {error}")))?;
        judged(step, status, &said)
    }

    /// A directory as it really lies, if programs of a list may run there.
    fn confined(&self, directory: &Path) -> Result<PathBuf, Failure> {
        let real = |path: &PathBuf| path.canonicalize().ok();
        let allowed = std::iter::once(&self.options.directory).chain(&self.options.directories);
        let mut allowed = allowed.filter_map(real);
        // The same words for one that does not exist: nobody is to learn what lies elsewhere.
        let asked = directory.canonicalize().ok().filter(|asked| allowed.any(|allowed| asked.starts_with(allowed)));
        asked.ok_or_else(|| {
            invalid(
                "command.directory is not in the worker's directory for commands, or does not exist; \
                 the worker's operator can allow others with commands.directories",
            )
        })
    }

    fn prepared(&self, step: &Command, attempt: &Attempt) -> Result<tokio::process::Command, Failure> {
        let options = &self.options;
        let search = options.env.get("PATH").map_or("", String::as_str);
        let start = options.policy.admit(&step.program, search)?;
        let is_listed = matches!(options.policy, CommandPolicy::Listed(_));
        let admits = |name: &String| options.variables.iter().any(|variable| variable.admits(name));
        if let Some(name) = step.env.keys().find(|name| is_listed && !admits(name)) {
            let name = name.escape_debug();
            return Err(invalid(format!(
                "command.env.{name} is not allowed; the worker's operator can allow it with commands.variables"
            )));
        }
        let directory = options.directory.join(step.directory.as_deref().unwrap_or_default());
        let directory = if is_listed { self.confined(&directory)? } else { directory };
        if !directory.is_dir() {
            return Err(invalid("command.directory does not exist"));
        }
        // The one that takes on limits ends by a signal where there is nothing to become.
        if options.limits.is_some() && !start.file.is_file() {
            return Err(invalid(format!("could not be started: there is no program {}", start.file.display())));
        }
        let mut command = options.started(&start);
        command.current_dir(&directory).env_clear().env("HOME", &options.directory);
        command.envs(&options.env).envs(&step.env);
        command.env("ROTA_RUN", attempt.lease.run.to_string()).env("ROTA_JOB", attempt.job.to_string());
        command.env("ROTA_ATTEMPT", attempt.number.to_string());
        if let Some(trace) = attempt.traceparent {
            // The first is what libraries for traces read, and a step may have its own.
            let given = step.env.contains_key("TRACEPARENT");
            command.envs((!given).then(|| ("TRACEPARENT", trace.to_string())));
            command.env("ROTA_TRACEPARENT", trace.to_string());
        }
        command.stdin(if step.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

#[async_trait]
impl Executor for CommandExecutor {
    fn kind(&self) -> &'static str {
        "command"
    }

    async fn execute(&self, attempt: &Attempt, context: &Context) -> Outcome {
        let StepKind::Command(step) = &attempt.step else {
            return Outcome::Failed(invalid("not a step of kind command"));
        };
        self.run(step, attempt, context).await.unwrap_or_else(Outcome::Failed)
    }

    fn ask_to_stop(&self, lease: Lease) -> bool {
        self.going(|going| going.get(&lease).is_some_and(Ender::ask))
    }
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::InvalidInput, message)
}

fn not_started(error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::ArgumentListTooLong => ErrorKind::InvalidInput,
        // The machine is out of something; it may have it again.
        _ => ErrorKind::ExitCode,
    };
    Failure::new(kind, format!("could not be started: {error}"))
}

/// Feeds and reads the program until it has ended, and ends what it left.
async fn watch(group: &mut Group, stdin: Option<&str>, said: &mut Said<'_>, context: &Context) -> io::Result<()> {
    let child = group.child();
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let (Some(mut input), Some(text)) = (input, stdin) {
            // A program need not read what it is given.
            input.write_all(text.as_bytes()).await.unwrap_or_default();
        }
    };
    let said = tokio::sync::Mutex::new(said);
    let pumps = async {
        tokio::join!(feed, pump(output, Stream::Stdout, &said), pump(errors, Stream::Stderr, &said));
    };
    tokio::pin!(pumps);
    let mut pumped = false;
    let ended = loop {
        tokio::select! {
            () = &mut pumps, if !pumped => pumped = true,
            ended = group.leader_ended() => break ended,
        }
    };
    group.kill();
    if !pumped {
        tokio::select! {
            () = pumps => {}
            () = context.clock.sleep(DRAIN) => {}
        }
    }
    ended
}

/// Reads one of the program's outputs to its end.
async fn pump(from: Option<impl AsyncRead + Unpin>, stream: Stream, said: &tokio::sync::Mutex<&mut Said<'_>>) {
    let Some(mut from) = from else { return };
    let (mut lines, mut buffer) = (Lines::default(), vec![0; 16 << 10]);
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let mut said = said.lock().await;
        if read == 0 {
            return lines.finish(|line| said.line(stream, line));
        }
        if stream == Stream::Stdout {
            said.keep(&buffer[..read]);
        }
        lines.push(&buffer[..read], |line| said.line(stream, line));
    }
}

/// What a program has said, as far as it is kept.
struct Said<'a> {
    reports: &'a dyn Reports,
    room: usize,
    is_full: bool,
    stdout: Vec<u8>,
    is_cut: bool,
    /// The last thing it complained of.
    complaint: String,
}

impl<'a> Said<'a> {
    fn new(reports: &'a dyn Reports, room: usize) -> Self {
        Self { reports, room, is_full: false, stdout: Vec::new(), is_cut: false, complaint: String::new() }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = STDOUT_BYTES_MAX - self.stdout.len();
        self.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.is_cut |= bytes.len() > room;
    }

    fn line(&mut self, stream: Stream, line: &str) {
        if stream == Stream::Stderr && !line.trim().is_empty() {
            self.complaint = line.chars().take(500).collect();
        }
        match self.room.checked_sub(line.len() + 1) {
            Some(room) if !self.is_full => {
                self.room = room;
                self.reports.log(stream, line);
            }
            _ if self.is_full => {}
            _ => {
                self.is_full = true;
                self.reports
                    .log(Stream::System, "the output is longer than the maximum size of a log; the rest is left out");
            }
        }
    }
}

fn judged(step: &Command, status: ExitStatus, said: &Said<'_>) -> Result<Outcome, Failure> {
    let because = if said.complaint.is_empty() { String::new() } else { format!(": {}", said.complaint) };
    let Some(code) = status.code() else {
        let signal = status.signal().unwrap_or_default();
        return Err(Failure::new(ErrorKind::Signal, format!("ended by signal {signal}{because}")));
    };
    let expected = step.expect.as_deref().unwrap_or(&[0]);
    if !expected.iter().any(|expected| i32::from(*expected) == code) {
        return Err(Failure::new(ErrorKind::ExitCode, format!("ended with code {code}{because}")));
    }
    let mut output = Map::new();
    output.insert("exit_code".to_owned(), json!(code));
    let stdout = lines::text_of(&said.stdout, false);
    let kept = fit_json(&stdout, OUTPUT_BYTES_MAX - OTHER_FIELDS_BYTES);
    output.insert("stdout".to_owned(), json!(kept));
    if said.is_cut || kept.len() < stdout.len() {
        output.insert("truncated".to_owned(), json!(true));
    }
    Ok(Outcome::Succeeded { output: Some(serde_json::Value::Object(output).to_string().into()) })
}
