//! `rota serve` on an SQLite file: starts, fires, drains, dies and goes on.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
};

use rustix::process::Signal;

use crate::{
    books::{Books, SCHEDULES, every_second},
    node::{Node, Place, ended, is_alive, ledger, rota},
};

#[test]
fn the_demo_job_fires_and_is_counted() {
    let place = Place::new();
    let mut node = Node::ready(&place, &["--demo"]);
    node.wait_for("the demo job to run", |node| {
        node.metric("rota_runs_ended_total{verdict=\"succeeded\"}").is_some_and(|count| count >= 1.0)
    });
    assert_eq!(node.partitions(), 256);
    assert!(node.metric("rota_fires_total").unwrap() >= 1.0);
    assert_eq!(node.metric("rota_scan_findings"), Some(0.0));
    assert!(node.metric("rota_run_duration_seconds_count").unwrap() >= 1.0);
    let (_, metrics) = node.get("/metrics").unwrap();
    let page = std::fs::read_to_string(docs("serve.md")).unwrap();
    for family in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = family.split_once(' ').unwrap();
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        assert!(page.contains(&format!("`{name}{end}`")), "docs/serve.md does not tell of {name}");
    }
    assert_eq!(node.get("/healthz").unwrap(), (200, "alive\n".to_owned()));
    assert_eq!(node.get("/nowhere").unwrap().0, 404);
    let address = node.address();
    let (status, said, _) = node.stop();
    assert!(status.success());
    assert!(said.contains(&format!("http://{address}/metrics")), "{said}");
}

/// What a node keeps may hold secrets of its jobs.
#[test]
fn the_data_directory_is_its_owners_alone() {
    let place = Place::new();
    let node = Node::ready(&place, &[]);
    for name in ["data", "data/commands"] {
        assert_eq!(std::fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777, 0o700, "{name}");
    }
    assert!(node.stop().0.success());
}

#[test]
fn sigterm_lets_attempts_end_and_exits_with_0() {
    let place = Place::new();
    let (begun, gate) = (place.text("begun"), place.path("gate"));
    let script =
        format!("echo begun >> {begun}; until [ -e {} ]; do sleep 0.05; done; echo ended >> {begun}", gate.display());
    place.write("jobs/slow.yaml", &command_job("slow", "schedules: [{ name: s, every: 1s }]", &script));
    let jobs = place.text("jobs");
    let mut node = Node::ready(&place, &["--jobs", &jobs, "--commands-policy", "any"]);
    node.wait_for("an attempt to begin", |_| !ledger(&place.path("begun")).is_empty());
    // `timeout` tells a process twice; that is no second wish.
    node.signal(Signal::TERM);
    node.signal(Signal::TERM);
    node.wait_for("the node to drain", |node| {
        node.get("/readyz").is_some_and(|(status, why)| status == 503 && why.contains("draining"))
    });
    assert_eq!(node.get("/healthz").unwrap().0, 200);
    std::fs::File::create(gate).unwrap();
    let (status, _, log) = node.end();
    assert_eq!(status.code(), Some(0), "{log:#?}");
    assert_eq!(ledger(&place.path("begun")).last().map(String::as_str), Some("ended"));
}

/// What a tenant has a node evaluate must not keep it from leaving.
#[test]
fn sigterm_ends_a_node_whose_api_evaluates_on_every_thread() {
    let place = Place::new();
    // Alternatives that double with each level: given up, after as many steps as there may be.
    let mut schema = "a30: { type: object }".to_owned();
    for n in 0..30 {
        let next = format!("{{ $ref: '#/$defs/a{}' }}", n + 1);
        write!(schema, ", a{n}: {{ anyOf: [{next}, {{ allOf: [{next}] }}] }}").unwrap();
    }
    let input = format!("input: {{ schema: {{ $ref: '#/$defs/a0', $defs: {{ {schema} }} }} }}");
    place.write("jobs/slow.yaml", &command_job("slow", &input, "true"));
    let jobs = place.text("jobs");
    let mut node = Node::ready(&place, &["--jobs", &jobs, "--commands-policy", "any"]);
    let trigger = "POST /api/v1/jobs/slow/trigger HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"payload\":\"text\"}";
    let evaluating: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(node.address()).unwrap();
            stream.write_all(trigger.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(node.get("/healthz").unwrap().0, 200);
    node.signal(Signal::TERM);
    let (status, _, log) = node.end();
    assert_eq!(status.code(), Some(0), "{log:#?}");
    drop(evaluating);
}

/// Whoever cannot wait must not leave programs behind: the run starts again
/// elsewhere, and two of it must not overlap.
#[test]
fn a_second_signal_leaves_at_once_and_takes_programs_along() {
    let place = Place::new();
    let script = format!("echo $$ >> {}; exec sleep 600", place.text("begun"));
    place.write("jobs/slow.yaml", &command_job("slow", "schedules: [{ name: s, every: 1s }]", &script));
    let jobs = place.text("jobs");
    let mut node = Node::ready(&place, &["--jobs", &jobs, "--commands-policy", "any", "--drain", "10m"]);
    node.wait_for("an attempt to begin", |_| !ledger(&place.path("begun")).is_empty());
    node.signal(Signal::TERM);
    node.wait_for("the node to drain", |node| node.log.iter().any(|line| line.contains("draining")));
    let program = ledger(&place.path("begun")).remove(0);
    assert!(is_alive(&program));
    let (status, _, _) = node.end_while(|node| node.signal(Signal::INT));
    assert_eq!(status.code(), Some(130));
    assert!(!is_alive(&program));
}

/// Each planned instant has one run, whatever happens to the process.
#[test]
fn a_killed_node_goes_on_where_it_was_and_fires_nothing_twice() {
    let place = Place::new();
    place.write("jobs/tick.yaml", &every_second(&place.text("ledger")));
    let jobs = place.text("jobs");
    let arguments = ["--jobs", &jobs, "--commands-policy", "any"];
    for life in 1..=3 {
        let mut node = Node::ready(&place, &arguments);
        let before = ledger(&place.path("ledger")).len();
        node.wait_for("the schedule to fire again", |_| ledger(&place.path("ledger")).len() >= before + 2 * SCHEDULES);
        if life < 3 {
            node.signal(Signal::KILL);
            assert!(!node.end().0.success());
        } else {
            assert_eq!(node.stop().0.code(), Some(0));
        }
    }
    let books = Books::of_sqlite(&place.path("data/rota.db"));
    books.each_instant_has_one_end();
    books.agree_with(&ledger(&place.path("ledger")));
}

#[test]
fn a_second_process_on_the_same_file_is_refused() {
    let place = Place::new();
    let node = Node::ready(&place, &[]);
    let data = place.text("data");
    let (code, _, error) = ended(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
    assert_eq!(code, 1);
    assert!(error.contains("rota.db is in use by another rota process; stop it first"), "{error}");
    assert!(node.stop().0.success());
}

#[test]
fn a_taken_port_is_told_before_anything_is_touched() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, error) = ended(&["serve", "--listen", &address, "--data", &place.text("data")]);
    assert_eq!(code, 1);
    assert!(error.contains(&format!("cannot listen on {address}: another process already does")), "{error}");
    assert!(!place.path("data").exists());
}

#[test]
fn an_address_that_others_reach_is_refused_without_a_login() {
    let (code, _, error) = ended(&["serve", "--listen", "0.0.0.0:7070"]);
    assert_eq!(code, 2);
    assert!(error.contains("listen: other machines can reach 0.0.0.0:7070"), "{error}");
    assert!(error.contains("--insecure-listen"), "{error}");
}

#[test]
fn a_database_that_does_not_answer_is_named_without_its_password() {
    let place = Place::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("postgres://ann:s3cret@{closed}/rota");
    let (code, _, error) =
        ended(&["serve", "--listen", "127.0.0.1:0", "--data", &place.text("data"), "--store", &store]);
    assert_eq!(code, 1);
    assert!(error.contains(&format!("cannot open the store postgres://ann:***@{closed}/rota")), "{error}");
    assert!(error.contains("could not be reached") && !error.contains("s3cret"), "{error}");
}

/// An example that does not work is worse than none.
#[test]
fn the_examples_of_the_pages_are_jobs() {
    for page in ["serve.md", "../README.md"] {
        let place = Place::new();
        let text = std::fs::read_to_string(docs(page)).unwrap();
        let example = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        place.write("jobs/example.yaml", example);
        let (code, out, error) = ended(&["config", "check", "--jobs", &place.text("jobs")]);
        assert_eq!((code, error.as_str()), (0, ""), "{page}");
        assert!(out.contains(": 1, all valid"), "{page}: {out}");
    }
}

/// One bad document must not leave half of a directory saved.
#[test]
fn a_bad_job_document_is_refused_with_file_and_field() {
    let place = Place::new();
    place.write("jobs/a.yaml", "name: fine\nsteps: [{ id: s, handler: { name: hello } }]\n");
    place.write(
        "jobs/b.yaml",
        "name: broken\nschedules: [{ name: s, cron: '61 * * * *' }]\nsteps: [{ id: s, handler: { name: hello } }]\n",
    );
    place.write("jobs/c.json", r#"{"name": "fine", "steps": [{"id": "s", "handler": {"name": "hello"}}]}"#);
    let (jobs, data) = (place.text("jobs"), place.text("data"));
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["config", "check"]] {
        let (code, _, error) = ended(&[command, &["--jobs", &jobs, "--data", &data]].concat());
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(&format!("{jobs}/b.yaml: schedules[0].cron: ")), "{error}");
        assert!(
            error.contains(&format!("{jobs}/c.json: name: the job `fine` is also defined in {jobs}/a.yaml")),
            "{error}"
        );
    }
    assert!(!place.path("data").exists());
}

#[test]
fn documents_that_did_not_change_make_no_new_version() {
    let place = Place::new();
    let two = "name: one\nsteps: [{ id: s, handler: { name: hello } }]\n---\nname: two\nsteps: [{ id: s, handler: { name: hello } }]\n";
    place.write("jobs/both.yaml", two);
    let jobs = place.text("jobs");
    let saved = |log: &[String]| log.iter().filter(|line| line.contains("saved a job")).count();
    let (_, _, log) = Node::ready(&place, &["--jobs", &jobs]).stop();
    assert_eq!(saved(&log), 2, "{log:#?}");
    place.write("jobs/both.yaml", &two.replace("name: two\n", "name: two\ndescription: Changed\n"));
    let (_, _, log) = Node::ready(&place, &["--jobs", &jobs]).stop();
    assert_eq!(saved(&log), 1, "{log:#?}");
    assert!(log.iter().any(|line| line.contains("\"name\":\"two\"") && line.contains("\"version\":2")), "{log:#?}");
}

/// A job that names a calendar could not be started with otherwise: nobody can save the
/// calendar before there is a node.
#[test]
fn calendars_of_the_directory_are_saved_before_its_jobs() {
    let place = Place::new();
    let job = "name: one\nschedules: [{ cron: 0 9 * * *, calendars: [days] }]\nsteps: [{ id: s, handler: { name: hello } }]\n";
    place.write("jobs/one.yaml", job);
    place.write("jobs/calendars/days.yaml", "name: days\nweekdays: [SUN]\n");
    let jobs = place.text("jobs");
    let saved = |log: &[String]| log.iter().filter(|line| line.contains("saved a calendar")).count();
    let (_, _, log) = Node::ready(&place, &["--jobs", &jobs]).stop();
    assert_eq!(saved(&log), 1, "{log:#?}");
    let (_, _, log) = Node::ready(&place, &["--jobs", &jobs]).stop();
    assert_eq!(saved(&log), 0, "it is as it was: {log:#?}");
}

#[test]
fn what_goes_wrong_with_a_run_is_logged_with_its_ids() {
    let place = Place::new();
    let script = "retry: { max_attempts: 1 }\nschedules: [{ name: s, every: 1s }]";
    place.write("jobs/bad.yaml", &command_job("bad", script, "exit 3"));
    let jobs = place.text("jobs");
    let mut node = Node::ready(&place, &["--jobs", &jobs, "--commands-policy", "any"]);
    node.wait_for("a run to end badly", |node| {
        node.log.iter().any(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["message"] == "run did not succeed" && line["run"].is_string() && line["job"].is_string()
        })
    });
    assert!(node.stop().0.success());
}

#[test]
fn a_strange_host_is_not_answered() {
    let place = Place::new();
    let node = Node::ready(&place, &[]);
    let mut stream = std::net::TcpStream::connect(node.address()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: attacker.example\r\nConnection: close\r\n\r\n").unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    assert!(answer.contains("\"code\":\"wrong_host\""), "{answer}");
    assert!(node.stop().0.success());
}

/// A flood of requests must find other threads than those that fire and execute.
#[test]
fn requests_and_the_engine_have_threads_of_their_own() {
    let place = Place::new();
    let node = Node::ready(&place, &["--http-threads", "3"]);
    let names = node.threads();
    let count = |name: &str| names.iter().filter(|found| *found == name).count();
    assert!(count("rota-api") >= 3 && count("rota-engine") >= 1, "{names:?}");
    assert!(node.stop().0.success());
}

#[test]
fn connections_are_bounded_as_was_told() {
    let place = Place::new();
    let mut node = Node::ready(&place, &["--http-connections", "1"]);
    let mut only = std::net::TcpStream::connect(node.address()).unwrap();
    write!(only, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    node.wait_for("the node to be full", |node| {
        node.get("/api/v1/jobs").is_some_and(|(status, why)| status == 503 && why.contains("\"code\":\"busy\""))
    });
    assert_eq!(node.get("/healthz").map(|(status, _)| status), Some(200));
    drop(only);
    node.wait_for("the node to have room", |node| node.get("/api/v1/jobs").is_some_and(|(status, _)| status == 200));
    assert!(node.stop().0.success());
}

/// Headers that never end must not fill memory.
#[test]
fn a_request_with_too_much_in_its_head_is_refused() {
    let place = Place::new();
    let node = Node::ready(&place, &[]);
    for head in [format!("X-Long: {}\r\n", "x".repeat(64 << 10)), "X-Many: x\r\n".repeat(100)] {
        let mut stream = std::net::TcpStream::connect(node.address()).unwrap();
        // Who is refused before all was said may also find the line cut.
        let sent = write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
        let answer = sent.and_then(|()| std::io::read_to_string(stream)).unwrap_or_default();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    assert!(node.stop().0.success());
}

#[test]
fn a_bad_setting_is_refused_with_its_field_and_source() {
    let place = Place::new();
    place.write("rota.toml", "[leases]\nnode = \"soon\"\n");
    let path = place.text("rota.toml");
    for command in [&["serve"][..], &["config", "check"], &["config", "show"]] {
        let (code, out, error) = ended(&[command, &["--config", &path]].concat());
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(error.contains("leases.node: `soon` is not a duration"), "{error}");
        assert!(error.contains(&format!("({path})")), "{error}");
    }
}

#[test]
fn what_is_in_force_is_shown_with_its_source_and_without_passwords() {
    let mut command = rota(&["config", "show", "--roles", "api", "--data", "/d"]);
    let output = command.env("ROTA_STORE", "postgres://ann:s3cret@db/rota").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "store = \"postgres://ann:***@db/rota\"  # ROTA_STORE",
        "data = \"/d\"  # --data",
        "roles = [\"api\"]  # --roles",
        "listen = \"127.0.0.1:7070\"",
        "[leases]",
        "node = \"3s\"",
        "insecure_listen = false",
        "attempts_max = 1000",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\nin\n{text}");
    }
    text.parse::<toml::Table>().unwrap();
}

/// The page is made from the settings themselves.
#[test]
fn the_pages_of_settings_and_limits_are_what_the_program_says() {
    let (_, expected, _) = ended(&["config", "reference"]);
    let found = std::fs::read_to_string(docs("config.md")).unwrap();
    assert!(found == expected, "docs/config.md is stale: rota config reference > docs/config.md");
    let (_, expected, _) = ended(&["config", "limits"]);
    let found = std::fs::read_to_string(docs("limits.md")).unwrap();
    assert!(found == expected, "docs/limits.md is stale: rota config limits > docs/limits.md");
}

fn docs(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn command_job(name: &str, more: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!("name: {name}\n{more}\nsteps:\n  - id: s\n    command: {{ shell: {script} }}\n")
}
