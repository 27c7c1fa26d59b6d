use std::{fs, time::Duration};

use rota_core::trace::TraceParent;
use serde_json::{Value, json};

use super::*;
use crate::executors::testing::{self, World, failure, output, world};

/// Each under a lease of its own: a command that ends takes everything along
/// that carries its lease, in whatever process the tests run.
fn attempt(command: &Value) -> Attempt {
    let mut attempt = testing::attempt(&json!({ "command": command }));
    attempt.lease.run = rota_core::ids::RunId(uuid::Uuid::now_v7());
    attempt
}

fn executor(policy: CommandPolicy) -> CommandExecutor {
    CommandExecutor::new(CommandOptions { policy, ..CommandOptions::default() })
}

async fn run_in(world: &World, command: &Value) -> Outcome {
    executor(CommandPolicy::Any).execute(&attempt(command), &world.context).await
}

async fn run(command: &Value) -> Outcome {
    run_in(&world(), command).await
}

fn shell(text: &str) -> Value {
    json!({ "shell": text })
}

#[tokio::test]
async fn nothing_is_started_until_the_operator_allows_it() {
    let world = world();
    for command in [shell("echo hi"), json!({ "program": "/bin/echo" }), json!({ "program": "echo" })] {
        let executor = CommandExecutor::new(CommandOptions::default());
        let failed = failure(executor.execute(&attempt(&command), &world.context).await);
        assert_eq!(failed.kind, ErrorKind::InvalidInput);
        assert!(failed.message.contains("off"), "{}", failed.message);
    }
    assert!(world.log.lines.lock().unwrap().is_empty());
}

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rota-command-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

#[tokio::test]
async fn a_list_allows_its_programs_and_no_way_around_it() {
    let folder = Folder::new("list");
    fs::copy("/bin/echo", folder.path("own")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", folder.path("link")).unwrap();
    let policy = CommandPolicy::Listed(vec![
        AllowedProgram::Program(PathBuf::from("/bin/echo")),
        AllowedProgram::Directory(folder.0.clone()),
    ]);
    let executor = executor(policy);
    for (command, allowed) in [
        (json!({ "program": "/bin/echo" }), true),
        (json!({ "program": folder.path("own") }), true),
        (json!({ "program": "/bin/sh" }), false),
        (json!({ "program": "sh" }), false),
        (json!({ "program": folder.path("link") }), false),
        (json!({ "program": format!("{}/../../../bin/sh", folder.path("x")) }), false),
        (json!({ "program": "/bin/../bin/sh" }), false),
        (json!({ "program": "./own", "directory": folder.path("") }), false),
        (json!({ "program": "" }), false),
        (shell("echo hi"), false),
        (json!({ "program": "/bin/echo", "env": { "LD_PRELOAD": "/evil.so" } }), false),
        (json!({ "program": "/bin/echo", "env": { "BASH_FUNC_echo%%": "() { id; }" } }), false),
        (json!({ "program": "/bin/echo", "env": { "PERL5OPT": "-Mevil" } }), false),
        (json!({ "program": "/bin/echo", "env": { "PATH": "/tmp/evil" } }), false),
        (json!({ "program": "/bin/echo", "env": { "LEVEL": "1" } }), false),
        (json!({ "program": "/bin/echo", "directory": "/" }), false),
        (json!({ "program": "/bin/echo", "directory": "../.." }), false),
    ] {
        let outcome = executor.execute(&attempt(&command), &world().context).await;
        assert_eq!(matches!(outcome, Outcome::Succeeded { .. }), allowed, "{command}: {outcome:?}");
        if !allowed {
            assert_eq!(failure(outcome).kind, ErrorKind::InvalidInput, "{command}");
        }
    }
    let sh = CommandPolicy::Listed(vec![AllowedProgram::Program(PathBuf::from("/bin/sh"))]);
    output(&self::executor(sh).execute(&attempt(&shell("true")), &world().context).await);
}

/// What the operator allows beside the list is allowed, and what leads out of it is not.
#[tokio::test]
async fn a_list_says_what_may_be_set_and_where_programs_may_run() {
    let (own, other) = (Folder::new("own-place"), Folder::new("other-place"));
    fs::create_dir(own.path("sub")).unwrap();
    std::os::unix::fs::symlink("/", own.path("out")).unwrap();
    let executor = CommandExecutor::new(CommandOptions {
        policy: CommandPolicy::Listed(vec![AllowedProgram::Program(PathBuf::from("/bin/echo"))]),
        directory: own.0.clone(),
        directories: vec![other.0.clone()],
        variables: ["LEVEL", "APP_*"].map(|name| name.parse().unwrap()).into(),
        ..CommandOptions::default()
    });
    for (rest, allowed) in [
        (json!({ "env": { "LEVEL": "1", "APP_MODE": "x" } }), true),
        (json!({ "env": { "LEVELS": "1" } }), false),
        (json!({ "env": { "XAPP_MODE": "1" } }), false),
        (json!({ "env": { "APP_\nLD_PRELOAD": "1" } }), false),
        (json!({ "directory": "sub" }), true),
        (json!({ "directory": other.path("") }), true),
        (json!({ "directory": "out" }), false),
        (json!({ "directory": "out/tmp" }), false),
        (json!({ "directory": "sub/../.." }), false),
    ] {
        let mut command = rest.clone();
        command["program"] = json!("/bin/echo");
        let outcome = executor.execute(&attempt(&command), &world().context).await;
        assert_eq!(matches!(outcome, Outcome::Succeeded { .. }), allowed, "{rest}: {outcome:?}");
    }
    for wrong in ["", "*", "A B", "1A", "BASH_FUNC_x%%", "A*B"] {
        assert!(wrong.parse::<AllowedVariable>().is_err(), "{wrong}");
    }
}

/// A program of another user cannot read what the node can: its environment, where secrets
/// may be, and its files.
#[tokio::test]
async fn a_program_runs_as_the_user_that_is_named() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else may change users; the settings say so when the node starts.
        return;
    }
    let folder = Folder::new("user");
    let user = CommandUser { uid: 65_534, gid: 65_534 };
    std::os::unix::fs::chown(&folder.0, Some(user.uid), Some(user.gid)).unwrap();
    let executor = CommandExecutor::new(CommandOptions {
        policy: CommandPolicy::Any,
        directory: folder.0.clone(),
        user: Some(user),
        ..CommandOptions::default()
    });
    let own = std::process::id();
    let command = shell(&format!("id -u; id -G; cat /proc/{own}/environ || echo unread; touch here"));
    let outcome = executor.execute(&attempt(&command), &world().context).await;
    assert_eq!(output(&outcome)["stdout"], json!("65534\n65534\nunread\n"));
    assert!(folder.0.join("here").exists());
}

#[tokio::test]
async fn arguments_arrive_as_they_are() {
    let args = ["$HOME", "a b", "`id`", "; rm -rf x", "*", "\"", "", "ü"];
    let mut command = json!({ "program": "printf", "args": ["%s|"] });
    command["args"].as_array_mut().unwrap().extend(args.map(Value::from));
    assert_eq!(output(&run(&command).await)["stdout"], json!(format!("{}|", args.join("|"))));
}

#[tokio::test]
async fn a_program_gets_its_own_small_environment_input_and_directory() {
    let folder = Folder::new("own");
    let command = json!({
        "shell": "env; echo; pwd; cat", "env": { "LEVEL": "1", "ROTA_RUN": "forged" }, "stdin": "given", "directory": folder.path(""),
    });
    let attempt = attempt(&command);
    let outcome = executor(CommandPolicy::Any).execute(&attempt, &world().context).await;
    let said = output(&outcome)["stdout"].as_str().unwrap().to_owned();
    let (env, rest) = said.split_once("\n\n").unwrap();
    let mut names: Vec<&str> = env.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    // The shell itself adds PWD.
    assert_eq!(names, ["HOME", "LANG", "LEVEL", "PATH", "PWD", "ROTA_ATTEMPT", "ROTA_JOB", "ROTA_LEASE", "ROTA_RUN"]);
    assert!(env.contains("LEVEL=1") && env.contains(&format!("ROTA_RUN={}", attempt.lease.run)));
    let real = folder.0.canonicalize().unwrap();
    assert_eq!(rest, format!("{}\ngiven", real.display()));
    let failed = failure(run(&json!({ "program": "true", "directory": "/no/such/place" })).await);
    assert_eq!(failed.kind, ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_program_is_told_the_trace_of_its_attempt() {
    let traceparent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    for (env, own) in [(json!({}), "00-4bf"), (json!({ "TRACEPARENT": "mine", "ROTA_TRACEPARENT": "mine" }), "mine")] {
        let attempt =
            Attempt { traceparent, ..attempt(&json!({ "shell": "echo $TRACEPARENT $ROTA_TRACEPARENT", "env": env })) };
        let outcome = executor(CommandPolicy::Any).execute(&attempt, &world().context).await;
        let said = output(&outcome)["stdout"].as_str().unwrap().to_owned();
        let (standard, ours) = said.split_once(' ').unwrap();
        assert!(standard.starts_with(own) && ours.starts_with("00-4bf"), "{said}");
    }
}

#[tokio::test]
async fn input_that_nobody_reads_stops_nothing() {
    let command = json!({ "program": "true", "stdin": "x".repeat(1 << 20) });
    output(&run(&command).await);
}

#[tokio::test]
async fn output_goes_to_the_log_line_by_line() {
    let world = world();
    let outcome = run_in(&world, &shell("echo one; echo two >&2; printf 'th\\377ree'")).await;
    assert_eq!(world.log.texts(Stream::Stdout), ["one", "th\u{fffd}ree"]);
    assert_eq!(world.log.texts(Stream::Stderr), ["two"]);
    assert_eq!(output(&outcome), json!({ "exit_code": 0, "stdout": "one\nth\u{fffd}ree" }));
}

#[tokio::test]
async fn a_line_is_in_the_log_while_the_program_runs() {
    let (world, executor) = (world(), executor(CommandPolicy::Any));
    let attempt = attempt(&shell("echo here; exec cat /dev/zero > /dev/null"));
    let mut call = executor.execute(&attempt, &world.context);
    tokio::select! {
        outcome = &mut call => panic!("{outcome:?}"),
        () = world.log.said.notified() => {}
    }
    assert_eq!(world.log.texts(Stream::Stdout), ["here"]);
}

#[tokio::test]
async fn log_and_output_are_bounded_and_the_program_ends_all_the_same() {
    let world = world();
    let options = CommandOptions { policy: CommandPolicy::Any, log_bytes_max: 100, ..CommandOptions::default() };
    let attempt = attempt(&shell("yes 123456789 | head -n 100000; echo end"));
    let outcome = CommandExecutor::new(options).execute(&attempt, &world.context).await;
    assert_eq!(world.log.texts(Stream::Stdout).len(), 10);
    assert_eq!(world.log.texts(Stream::System).len(), 1);
    let output = output(&outcome);
    assert_eq!(output["stdout"].as_str().map(str::len), Some(STDOUT_BYTES_MAX));
    assert_eq!(output["truncated"], json!(true));
}

/// Each of these bytes takes six in JSON: 32 KiB of them are no output that is kept.
#[tokio::test]
async fn an_output_of_control_characters_is_cut_to_what_is_kept() {
    let attempt = attempt(&shell("head -c 40000 /dev/zero | tr '\\0' '\\1'"));
    let options = CommandOptions { policy: CommandPolicy::Any, ..CommandOptions::default() };
    let outcome = CommandExecutor::new(options).execute(&attempt, &world().context).await;
    assert_eq!(outcome.clone().bounded(), outcome, "it is within the bound");
    assert_eq!(output(&outcome)["truncated"], json!(true));
}

#[tokio::test]
async fn ends_have_their_kinds() {
    for (command, kind, message) in [
        (shell("exit 3"), ErrorKind::ExitCode, "ended with code 3"),
        (shell("echo bad luck >&2; exit 1"), ErrorKind::ExitCode, "ended with code 1: bad luck"),
        (shell("kill -TERM $$"), ErrorKind::Signal, "ended by signal 15"),
        (json!({ "shell": "exit 0", "expect": [3] }), ErrorKind::ExitCode, "ended with code 0"),
        (json!({ "program": "/no/such/program" }), ErrorKind::InvalidInput, "could not be started"),
        (json!({ "program": "no-such-program" }), ErrorKind::InvalidInput, "no program"),
        (json!({ "program": "true", "args": ["a\u{0}b"] }), ErrorKind::InvalidInput, "could not be started"),
    ] {
        let failed = failure(run(&command).await);
        assert_eq!(failed.kind, kind, "{command}: {}", failed.message);
        assert!(failed.message.starts_with(message), "{command}: {}", failed.message);
    }
    assert_eq!(output(&run(&json!({ "shell": "exit 3", "expect": [0, 3] })).await)["exit_code"], json!(3));
}

/// Opens a pipe with a name, so that a test can wait for the end of whoever
/// holds its other end: it reads the end of the file then, and not before.
fn held_open(folder: &Folder) -> String {
    let path = folder.path("held");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

/// Waits until every process that has the pipe open for writing has ended.
async fn everyone_ended(path: String) {
    // A thread of its own: the runtime would wait for one of its own for ever.
    let (done, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(fs::read(path)));
    let read = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("somebody lives on");
    assert_eq!(read.unwrap().unwrap(), b"");
}

/// How a program can leave processes behind, and for each that they are gone.
async fn dropped(script: &str, name: &str) {
    let folder = Folder::new(name);
    let path = held_open(&folder);
    let (world, executor) = (world(), executor(CommandPolicy::Any));
    let attempt = attempt(&json!({ "shell": script, "env": { "HELD": path } }));
    let reader = tokio::spawn(everyone_ended(path.clone()));
    let mut call = executor.execute(&attempt, &world.context);
    tokio::select! {
        outcome = &mut call => panic!("{outcome:?}"),
        () = world.log.said.notified() => {}
    }
    drop(call);
    reader.await.unwrap();
}

/// Cancel and deadline drop the future; nothing may go on behind its back.
#[tokio::test]
async fn a_dropped_command_takes_its_children_along() {
    dropped(
        "exec 3>\"$HELD\"; cat /dev/zero >/dev/null & (cat /dev/zero >/dev/null & wait) & echo up; wait",
        "children",
    )
    .await;
}

/// Only the group leads to this one: it carries no lease.
#[tokio::test]
async fn a_dropped_command_takes_those_along_who_cleared_their_environment() {
    dropped("exec 3>\"$HELD\"; env -i sh -c 'echo up; cat /dev/zero >/dev/null' & wait", "cleared").await;
}

#[tokio::test]
async fn a_dropped_command_cannot_talk_its_way_out() {
    dropped("trap '' TERM INT HUP; exec 3>\"$HELD\"; echo up; while :; do cat /dev/zero >/dev/null; done", "deaf")
        .await;
}

#[tokio::test]
async fn a_dropped_command_takes_those_along_who_left_its_group() {
    dropped("exec 3>\"$HELD\"; setsid sh -c 'echo up; cat /dev/zero >/dev/null' & wait", "left").await;
}

/// A program that leaves others behind must neither keep its attempt open nor
/// go on after it.
#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let folder = Folder::new("behind");
    let path = held_open(&folder);
    let reader = tokio::spawn(everyone_ended(path.clone()));
    let script = "exec 3>\"$HELD\"; cat /dev/zero >/dev/null & setsid sh -c 'cat /dev/zero >/dev/null' & echo done";
    let outcome = run(&json!({ "shell": script, "env": { "HELD": path } })).await;
    assert_eq!(output(&outcome)["stdout"], json!("done\n"));
    reader.await.unwrap();
}

/// A program that tidies up when it is told to end, in the words of its log.
const TIDY: &str = "trap 'echo tidied; exit 3' TERM; echo ready; sleep 1000 & wait";

/// Prevents: a cancelled program being killed in the middle of what it does,
/// although it has a grace.
#[tokio::test]
async fn a_cancelled_program_is_asked_to_end_before_it_is_killed() {
    let world = world();
    let executor = executor(CommandPolicy::Any);
    let attempt = attempt(&shell(TIDY));
    let ready = |line: &str| world.log.lines.lock().unwrap().iter().any(|(_, text)| text == line);
    assert!(!executor.ask_to_stop(attempt.lease), "there is nobody yet");
    let mut going = std::pin::pin!(executor.execute(&attempt, &world.context));
    while !ready("ready") {
        tokio::select! {
            outcome = &mut going => panic!("it ends only when told to: {outcome:?}"),
            () = world.log.said.notified() => {}
        }
    }
    assert!(executor.ask_to_stop(attempt.lease));
    assert_eq!(failure(going.await).kind, ErrorKind::ExitCode, "it ended by itself");
    assert!(ready("tidied"));
    assert!(!executor.ask_to_stop(attempt.lease), "there is nobody any more");
}
