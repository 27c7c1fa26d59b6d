//! Jobs, schedules, runs, dead letters, queues and calendars, each verb once.

use serde_json::Value;

use super::{Desk, at_home, hello, said};
use crate::node::{Node, Place};

/// A save by flags deleted the schedule that they did not name, and said nothing.
#[test]
fn flags_save_what_they_name_and_a_schedule_that_goes_is_asked_for() {
    let desk = Desk::open();
    let made = ["job", "create", "--name", "greet", "--cron", "0 0 1 1 *", "--tz", "Europe/Paris", "--shell", "true"];
    desk.rota(&made).ok();
    let saved = desk.rota(&["job", "save", "--name", "greet", "--attempts", "1", "--shell", "false"]);
    assert_eq!(saved.err, "", "nothing goes");
    assert_eq!(saved.ok(), "saved greet (id 1, version 2)\n");
    let document = desk.rota(&["job", "show", "greet", "--document"]).ok();
    assert!(document.contains("cron: 0 0 1 1 *") && document.contains("timezone: Europe/Paris"), "{document}");
    assert!(document.contains("shell: \"false\"") && document.contains("max_attempts: 1"), "{document}");

    desk.write("greet.yaml", &hello("greet"));
    let removed = "greet: removes schedules[default]: {";
    let checked = desk.rota(&["job", "save", "-f", "greet.yaml", "--dry-run"]);
    assert!(checked.err.contains(removed), "{checked:?}");
    assert_eq!(checked.ok(), "greet would become version 3\n");
    let refused = desk.rota(&["job", "save", "-f", "greet.yaml"]).failed(2);
    assert!(refused.contains(removed) && refused.contains("--yes") && refused.contains("not_confirmed"), "{refused}");
    assert_eq!(desk.rota(&["schedule", "list", "-o", "json"]).json().as_array().unwrap().len(), 1, "nothing was saved");
    let saved = desk.rota(&["job", "save", "-f", "greet.yaml", "--yes"]);
    assert!(saved.err.contains(removed), "{saved:?}");
    assert_eq!(saved.ok(), "saved greet (id 1, version 3)\n");
    let new = desk.rota(&["job", "save", "--name", "other"]).failed(2);
    assert!(new.contains("the job has no step"), "{new}");
    assert!(desk.node.stop().0.success());
}

/// A delayed run stood before the one that was just triggered, and a cancel took ids alone.
#[test]
fn the_name_of_a_job_means_the_run_that_was_created_last() {
    let desk = Desk::open();
    desk.rota(&["job", "create", "--name", "greet", "--shell", "true"]).ok();
    let trigger = |more: &[&str]| {
        let made = desk.rota(&[&["job", "trigger", "greet", "-o", "json"], more].concat()).json();
        made["id"].as_str().unwrap().to_owned()
    };
    let delayed = trigger(&["--at", "+2h"]);
    let first = trigger(&[]);
    assert_eq!(desk.rota(&["run", "wait", "greet", "-o", "json"]).json()["id"], Value::from(first.as_str()));
    let again = desk.rota(&["run", "retry", "greet"]).ok();
    assert!(again.starts_with(&format!("{first} retried as ")), "{again}");
    let last = trigger(&["--at", "+3h"]);
    let cancelled = desk.rota(&["run", "cancel", "greet"]).ok();
    assert!(cancelled.starts_with(&last), "{cancelled}");
    assert!(desk.rota(&["run", "show", &delayed]).ok().contains("scheduled"));
    assert!(
        desk.rota(&["run", "cancel", "nobody"]).failed(3).contains("neither the id of a run nor the name of a job")
    );
    assert!(desk.node.stop().0.success());
}

/// A dry run that says yes where the act says no is a lie.
#[test]
fn a_job_is_checked_as_it_would_be_created() {
    let desk = Desk::open();
    desk.write("a.yaml", &hello("a"));
    desk.write("after.yaml", &format!("{}triggers: {{ after: {{ jobs: [a] }} }}\n", hello("b")));
    assert!(desk.rota(&["job", "check", "-f", "after.yaml"]).failed(2).contains("there is no job `a`"));
    assert!(desk.rota(&["job", "create", "-f", "after.yaml"]).failed(2).contains("there is no job `a`"));
    desk.rota(&["job", "create", "-f", "a.yaml"]).ok();
    let conflict = desk.rota(&["job", "create", "-f", "a.yaml"]).failed(4);
    assert_eq!(desk.rota(&["job", "create", "-f", "a.yaml", "--dry-run"]).failed(4), conflict);
    assert_eq!(desk.rota(&["job", "check", "-f", "after.yaml"]).ok(), "b would be created\n");
    desk.write("both.yaml", &format!("{}---\n{}triggers: {{ after: {{ jobs: [c] }} }}\n", hello("c"), hello("d")));
    desk.rota(&["job", "check", "-f", "both.yaml"]).ok();
    desk.rota(&["job", "create", "-f", "both.yaml"]).ok();
    assert!(desk.node.stop().0.success());
}

#[test]
fn a_job_is_made_by_flags_run_and_read() {
    let desk = Desk::open();
    let made = desk.rota(&[
        "job",
        "create",
        "--name",
        "greet",
        "--tag",
        "x",
        "--cron",
        "0 0 1 1 *",
        "--command",
        "echo",
        "-n",
        "hi there",
    ]);
    assert_eq!(made.ok(), "created greet (id 1, version 1)\n");
    let error = desk.rota(&["job", "create", "--name", "greet", "--handler", "h"]).failed(4);
    assert_eq!(
        error,
        "error: the job `greet` already exists; `rota job save`, or PUT, saves a new version of it [conflict]\n"
    );
    let document = desk.rota(&["job", "show", "greet", "--document"]).ok();
    assert_eq!(
        document,
        "name: greet\ntags:\n  - x\nschedules:\n  - cron: 0 0 1 1 *\nsteps:\n  - id: run\n    command:\n      program: echo\n      args:\n        - -n\n        - hi there\n"
    );
    let followed = desk.rota(&["job", "trigger", "greet", "--label", "why=test", "--follow"]);
    assert!(followed.err.contains("succeeded"), "{followed:?}");
    assert_eq!(followed.ok(), "hi there\n");

    let runs = desk.rota(&["run", "list", "--job", "greet", "--label", "why=test", "-o", "json"]).json();
    let id = runs[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(runs.as_array().unwrap().len(), 1);
    assert_eq!(desk.rota(&["run", "logs", &id]).ok(), "hi there\n");
    assert_eq!(desk.rota(&["run", "logs", "greet"]).ok(), "hi there\n");
    let to_its_end = desk.rota(&["run", "logs", "greet", "--follow"]);
    assert!(to_its_end.err.starts_with(&format!("{id} succeeded")), "{to_its_end:?}");
    assert_eq!(to_its_end.ok(), "hi there\n");
    let shown = desk.rota(&["run", "show", "greet"]).ok();
    assert!(shown.contains(&id) && shown.contains("succeeded") && shown.contains("why=test"), "{shown}");
    assert!(desk.rota(&["run", "wait", &id]).err.contains("succeeded"));
    assert!(desk.rota(&["run", "cancel", &id]).failed(4).contains("hint: `rota run retry RUN` runs it again"));
    let again = desk.rota(&["run", "retry", &id]).ok();
    assert!(again.starts_with(&format!("{id} retried as ")), "{again}");

    let yaml = desk.rota(&["job", "show", "greet", "-o", "yaml"]).ok();
    assert!(yaml.contains("\nname: greet\n"), "{yaml}");
    assert!(desk.rota(&["job", "delete", "greet"]).failed(2).contains("--yes"));
    assert_eq!(desk.rota(&["job", "delete", "greet", "--yes"]).ok(), "deleted greet\n");
    assert!(desk.rota(&["job", "list", "--all"]).err.contains("no jobs"));
    assert!(desk.node.stop().0.success());
}

#[test]
fn every_bad_field_is_named_with_its_path() {
    let desk = Desk::open();
    desk.write("bad.yaml", "name: bad\nschedules: [{ name: s, cron: '61 * * * *' }]\nsteps: [{ id: a, sleep: { for: 1s }, tiemout: 3s }]\n");
    let error = desk.rota(&["job", "save", "-f", "bad.yaml"]).failed(2);
    assert!(error.contains("steps[0]") && error.contains("tiemout"), "{error}");
    desk.write("bad.yaml", "name: bad\ntags: ['-x']\nschedules: [{ name: s, cron: '61 * * * *' }]\nsteps: [{ id: a, sleep: { for: 1s } }]\n");
    let error = desk.rota(&["job", "check", "-f", "bad.yaml"]).failed(2);
    assert!(error.contains("\n  tags[0]: ") && error.contains("\n  schedules[0].cron: "), "{error}");
    assert!(error.contains("[bad_document]"), "{error}");
    assert!(desk.rota(&["job", "show", "nobody"]).failed(3).contains("[not_found]"));
    assert!(desk.rota(&["job", "save", "-f", "absent.yaml"]).failed(2).contains("cannot read absent.yaml"));
    assert!(desk.rota(&["job", "create", "--name", "x"]).failed(2).contains("--url, --command, --shell or --handler"));
    assert!(desk.rota(&["job", "create"]).failed(2).contains("use -f FILE for a document, or --name"));
    let error = desk.rota(&["job", "trigger", "x", "--payload", "{"]).failed(2);
    assert!(error.starts_with("error: --payload: EOF") && error.contains("expected JSON"), "{error}");
    assert!(desk.node.stop().0.success());
}

#[test]
fn versions_are_listed_and_compared() {
    let desk = Desk::open();
    desk.write("job.yaml", &hello("greet"));
    assert_eq!(desk.rota(&["job", "save", "-f", "job.yaml"]).ok(), "saved greet (id 1, version 1)\n");
    assert_eq!(desk.rota(&["job", "save", "-f", "job.yaml"]).ok(), "unchanged: greet (id 1, version 1)\n");
    desk.write("job.yaml", &hello("greet").replace("team-a", "team-b"));
    let would = desk.rota(&["job", "save", "-f", "job.yaml", "--dry-run"]).ok();
    assert_eq!(would, "greet would become version 2\n");
    let against_file = desk.rota(&["job", "diff", "greet", "-f", "job.yaml"]).ok();
    assert_eq!(
        against_file,
        "--- greet (version 1)\n+++ job.yaml\n@@ -1,6 +1,6 @@\n name: greet\n tags:\n-  - team-a\n+  - team-b\n steps:\n   - id: say\n     command:\n"
    );
    desk.rota(&["job", "save", "-f", "job.yaml"]).ok();
    let between = desk.rota(&["job", "diff", "greet"]).ok();
    assert!(between.starts_with("--- greet (version 1)\n+++ greet (version 2)\n"), "{between}");
    assert!(desk.rota(&["job", "diff", "greet", "7", "8"]).failed(3).contains("no version 7"));
    let versions = desk.rota(&["job", "versions", "greet", "-o", "json"]).json();
    assert_eq!(versions.as_array().unwrap().len(), 2);
    assert!(desk.node.stop().0.success());
}

/// `EDITOR` is a program that changes the file, or leaves it.
#[test]
fn a_document_is_edited_and_saved_over_the_version_that_was_read() {
    let desk = Desk::open();
    desk.write("job.yaml", &hello("greet"));
    desk.rota(&["job", "save", "-f", "job.yaml"]).ok();
    let edited = |editor: &str| {
        let mut command = desk.command(&["job", "edit", "greet"]);
        command.env("EDITOR", editor).env_remove("VISUAL");
        super::said(command)
    };
    assert_eq!(edited("true").ok(), "nothing was changed\n");
    assert_eq!(edited("sed -i s/team-a/team-c/").ok(), "saved greet (version 2)\n");
    let refused = edited("sed -i s/name:/nmae:/").failed(2);
    assert!(refused.contains("nmae") && refused.contains("your text is in "), "{refused}");
    let draft = refused.split("your text is in ").nth(1).unwrap().lines().next().unwrap().to_owned();
    assert!(std::fs::read_to_string(&draft).unwrap().starts_with("nmae: greet"));
    std::fs::remove_file(draft).unwrap();
    assert!(desk.node.stop().0.success());
}

#[test]
fn schedules_are_found_by_name_previewed_paused_and_explained() {
    let desk = Desk::open();
    desk.write(
        "job.yaml",
        "name: greet\nschedules:\n  - { name: yearly, cron: '0 0 1 1 *' }\n  - { name: night, cron: '30 2 * * *', timezone: America/New_York }\nsteps: [{ id: a, command: { program: 'true' } }]\n",
    );
    desk.rota(&["job", "save", "-f", "job.yaml"]).ok();
    let next = desk
        .rota(&["schedule", "next", "greet/night", "-n", "2", "--after", "2025-03-08T08:00:00Z", "-o", "json"])
        .json();
    assert_eq!(next[0]["planned_at"], "2025-03-09T07:00:00Z");
    assert!(next[0]["note"].is_string(), "{next}");
    assert!(desk.rota(&["schedule", "show", "greet"]).failed(2).contains("several schedules: "));
    assert!(desk.rota(&["schedule", "show", "greet/daily"]).failed(3).contains("its schedules are: "));
    desk.rota(&["schedule", "pause", "greet/yearly", "--note", "holidays", "--until", "+2h"]).ok();
    let shown = desk.rota(&["schedule", "show", "greet/yearly"]).ok();
    assert!(shown.contains("paused") && shown.contains("holidays"), "{shown}");
    let why = desk.rota(&["schedule", "why", "greet/yearly"]).ok();
    assert!(why.contains("holidays"), "{why}");
    desk.rota(&["schedule", "resume", "greet/yearly"]).ok();
    let count = desk.rota(&[
        "schedule",
        "backfill",
        "greet/night",
        "--from",
        "2025-01-01T00:00:00Z",
        "--to",
        "2025-01-03T00:00:00Z",
        "--dry-run",
    ]);
    assert_eq!(count.ok(), "2 runs would be created for 2 instants; 0 had fired before\n");
    let refused = desk
        .rota(&[
            "schedule",
            "backfill",
            "greet/night",
            "--from",
            "2025-01-01T00:00:00Z",
            "--to",
            "2025-01-03T00:00:00Z",
        ])
        .failed(2);
    assert!(refused.contains("--yes"), "{refused}");
    let done = desk.rota(&[
        "schedule",
        "backfill",
        "greet/night",
        "--from",
        "2025-01-01T00:00:00Z",
        "--to",
        "2025-01-03T00:00:00Z",
        "--yes",
    ]);
    assert_eq!(done.ok(), "2 runs created for 2 instants; 0 had fired before\n");
    assert!(desk.rota(&["schedule", "skips", "greet/night"]).err.contains("no instant was skipped"));
    assert!(desk.node.stop().0.success());
}

#[test]
fn a_dead_letter_is_listed_and_made_again() {
    let desk = Desk::open();
    desk.rota(&["job", "create", "--name", "flaky", "--attempts", "1", "--shell", "echo no luck >&2; exit 3"]).ok();
    let dead = desk.rota(&["job", "trigger", "flaky", "--follow"]);
    assert_eq!(dead.code, 1);
    assert!(dead.err.contains("dead") && dead.err.contains("rota dead redrive"), "{}", dead.err);
    let list = desk.rota(&["dead", "list", "-o", "json"]).json();
    let id = list[0]["id"].as_str().unwrap().to_owned();
    assert!(desk.rota(&["dead", "show", &id]).ok().contains("exit_code"));
    assert!(desk.rota(&["dead", "redrive"]).failed(2).contains("--all"));
    assert_eq!(desk.rota(&["dead", "redrive", "--job", "flaky", "--dry-run"]).ok(), "1 would be redriven\n");
    assert_eq!(desk.rota(&["dead", "redrive", "--job", "flaky", "--yes"]).ok(), "1 redriven\n");
    assert_eq!(desk.rota(&["dead", "redrive", &id]).code, 4, "a run is made again once");
    assert_eq!(desk.rota(&["dead", "redrive", &id, "--again"]).code, 0);
    assert_eq!(desk.rota(&["run", "wait", "flaky"]).code, 1);
    assert_eq!(desk.rota(&["run", "events", &id, "-o", "json"]).code, 0);
    let forgiving = "name: forgiving\nretry: { max_attempts: 1 }\ndead: { redrive_after: 1h }\n\
                     steps: [{ id: s, command: { program: 'false' } }]\n";
    desk.rota_given(&["job", "save", "-f", "-"], forgiving).ok();
    desk.rota(&["job", "trigger", "forgiving", "--follow"]);
    let made_again = desk.rota(&["run", "list", "--job", "forgiving", "--status", "dead", "-o", "json"]).json();
    let id = made_again[0]["id"].as_str().unwrap();
    let shown = desk.rota(&["dead", "show", id]).ok();
    assert!(shown.contains("redriven") && shown.contains("automatically"), "{shown}");
    assert!(desk.node.stop().0.success());
}

/// The limits hold before the program begins, and for what it starts.
#[test]
fn a_program_is_started_under_the_limits_of_its_node() {
    let desk = Desk::open_with(&["--commands-memory", "512MiB", "--commands-cpu", "90s"]);
    let asks = "ulimit -v; ulimit -t; sh -c 'ulimit -v'; echo \"$0 $1\"";
    let job = format!(
        "name: limits\nsteps: [{{ id: s, command: {{ program: sh, args: ['-c', {}, '-x', '--help'] }} }}]\n",
        serde_json::Value::from(asks)
    );
    desk.rota_given(&["job", "save", "-f", "-"], &job).ok();
    desk.rota(&["job", "trigger", "limits", "--follow"]).ok();
    let shown = desk.rota(&["run", "show", "limits", "-o", "json"]).json();
    assert_eq!(shown["output"]["stdout"], "524288\n90\n524288\n-x --help\n", "{shown}");
    desk.rota(&["job", "create", "--name", "nothing", "--attempts", "1", "--command", "/no/such/program"]).ok();
    assert_eq!(desk.rota(&["job", "trigger", "nothing", "--follow"]).code, 1);
    let shown = desk.rota(&["run", "show", "nothing", "-o", "json"]).json();
    assert_eq!(shown["failure"]["kind"], "invalid_input", "{shown}");
    // What cannot begin is no success, whatever code the step expects of it.
    let job = "name: text\nretry: { max_attempts: 1 }\n\
               steps: [{ id: s, command: { program: /etc/passwd, expect: [0, 1, 2, 126, 127] } }]\n";
    desk.rota_given(&["job", "save", "-f", "-"], job).ok();
    assert_eq!(desk.rota(&["job", "trigger", "text", "--follow"]).code, 1);
    let shown = desk.rota(&["run", "show", "text", "-o", "json"]).json();
    assert_eq!(shown["failure"]["kind"], "signal", "{shown}");
    assert!(desk.node.stop().0.success());
}

#[test]
fn dead_letters_are_put_away_by_id_or_by_filter() {
    let desk = Desk::open();
    desk.rota(&["job", "create", "--name", "flaky", "--attempts", "1", "--command", "false"]).ok();
    for _ in 0..3 {
        desk.rota(&["job", "trigger", "flaky", "--follow"]);
    }
    let open = |desk: &Desk| desk.rota(&["dead", "list", "-o", "json"]).json().as_array().unwrap().len();
    let id = desk.rota(&["dead", "list", "-o", "json"]).json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(open(&desk), 3);
    assert_eq!(desk.rota(&["dead", "discard", &id]).ok(), format!("{id} discarded\n"));
    assert_eq!(open(&desk), 2);
    let listed = |state: &str| desk.rota(&["dead", "list", "--state", state, "-o", "json"]).json();
    assert_eq!(listed("discarded")[0]["id"], id.as_str());
    assert_eq!([listed("open"), listed("redriven"), listed("all")].map(|all| all.as_array().unwrap().len()), [2, 0, 3]);
    assert!(
        desk.rota(&["dead", "list", "--state", "dead"]).failed(2).contains("one of open, redriven, discarded, all")
    );
    assert!(desk.rota(&["dead", "discard"]).failed(2).contains("--all"));
    assert!(desk.rota(&["dead", "discard", "--job", "flaky"]).failed(2).contains("--yes"));
    assert_eq!(desk.rota(&["dead", "discard", "--job", "flaky", "--dry-run"]).ok(), "2 would be discarded\n");
    assert_eq!(open(&desk), 2, "it was only counted");
    assert_eq!(desk.rota(&["dead", "discard", "--job", "flaky", "--yes"]).ok(), "2 discarded\n");
    assert_eq!(open(&desk), 0);
    assert_eq!(desk.rota(&["run", "show", &id]).code, 0, "history keeps it");
    let nobody = "01990000-0000-7000-8000-000000000000";
    assert_eq!(desk.rota(&["dead", "discard", nobody]).code, 3);
    assert!(desk.node.stop().0.success());
}

#[test]
fn many_runs_come_from_a_stream_and_refused_lines_are_told() {
    let desk = Desk::open();
    desk.rota(&["job", "create", "--name", "greet", "--command", "true"]).ok();
    let good: Vec<String> = (0..2_500).map(|n| format!("{{\"job\":\"greet\",\"payload\":{n}}}\n")).collect();
    assert_eq!(desk.rota_given(&["run", "enqueue", "-"], &good.concat()).ok(), "2500 created\n");
    let mixed = "{\"job\":\"greet\"}\n\nnonsense\n{\"job\":\"nobody\"}\n";
    let said = desk.rota_given(&["run", "enqueue", "-"], mixed);
    assert_eq!(said.out, "1 created\n");
    let error = said.failed(1);
    assert!(
        error.contains("line 3: ") && error.contains("line 4: ") && error.contains("2 of 3 lines were refused"),
        "{error}"
    );
    let lines = desk.rota_given(&["run", "enqueue", "-", "-o", "json"], "{\"job\":\"greet\"}\n").ok();
    assert!(serde_json::from_str::<Value>(lines.trim()).unwrap()["id"].is_string());
    desk.write(
        "jobs.ndjson",
        "{\"name\":\"a\",\"steps\":[{\"id\":\"s\",\"sleep\":{\"for\":\"1s\"}}]}\n{\"name\":\"b\"}\n",
    );
    let said = desk.rota(&["job", "import", "jobs.ndjson"]);
    assert_eq!((said.code, said.out.as_str()), (1, "1 saved\n"), "{}", said.err);
    assert!(desk.node.stop().0.success());
}

#[test]
fn many_jobs_are_paused_by_a_filter_only_when_confirmed() {
    let desk = Desk::open();
    for name in ["a", "b"] {
        desk.rota_given(&["job", "save", "-f", "-"], &hello(name)).ok();
    }
    assert!(desk.rota(&["job", "pause"]).failed(2).contains("--tag, --queue, --prefix or --all"));
    assert_eq!(desk.rota(&["job", "pause", "--tag", "team-a", "--dry-run"]).ok(), "2 would be paused\n");
    assert!(desk.rota(&["job", "pause", "--tag", "team-a"]).failed(2).contains("Pause 2 jobs?"));
    assert_eq!(desk.rota(&["job", "pause", "--tag", "team-a", "--yes"]).ok(), "2 paused\n");
    let list = desk.rota(&["job", "list"]).ok();
    assert_eq!(list.matches("paused").count(), 2, "{list}");
    assert_eq!(desk.rota(&["job", "resume", "a"]).ok(), "resumed a\n");
    desk.rota(&["queue", "pause", "default", "--note", "moving"]).ok();
    let made = desk.rota(&["job", "trigger", "a", "-o", "json"]).json();
    let why = desk.rota(&["run", "why", made["id"].as_str().unwrap()]).ok();
    assert!(why.contains("moving"), "{why}");
    assert!(desk.rota(&["queue", "list"]).ok().contains("moving"));
    assert_eq!(desk.rota(&["run", "cancel", "--job", "a", "--yes"]).ok(), "1 cancelled, or asked to stop\n");
    desk.rota(&["queue", "resume", "default"]).ok();
    assert!(desk.node.stop().0.success());
}

#[test]
fn calendars_are_saved_and_shown() {
    let desk = Desk::open();
    desk.write("days.yaml", "name: holidays\nmode: exclude\ndates: [2030-01-01, 2030-12-25]\n");
    assert_eq!(desk.rota(&["calendar", "save", "-f", "days.yaml"]).ok(), "saved holidays\n");
    assert!(desk.rota(&["calendar", "show", "holidays"]).ok().starts_with("name: holidays\n"));
    assert!(desk.rota(&["calendar", "list"]).ok().contains("holidays"));
    assert!(desk.rota(&["calendar", "show", "none"]).failed(3).contains("no such calendar"));
    assert!(desk.node.stop().0.success());
}

/// A page that is longer than one answer of the server's is read on.
#[test]
fn a_long_list_is_read_page_by_page() {
    let desk = Desk::open();
    let jobs: Vec<String> = (0..1_100)
        .map(|n| format!("{{\"name\":\"job-{n:04}\",\"steps\":[{{\"id\":\"s\",\"sleep\":{{\"for\":\"1s\"}}}}]}}\n"))
        .collect();
    assert_eq!(desk.rota_given(&["job", "import", "-"], &jobs.concat()).ok(), "1100 saved\n");
    let some = desk.rota(&["job", "list", "--limit", "3"]);
    assert_eq!(some.out.lines().count(), 4, "{}", some.out);
    assert!(some.err.contains("showing the first 3"), "{}", some.err);
    assert_eq!(desk.rota(&["job", "list", "--all", "-o", "json"]).json().as_array().unwrap().len(), 1_100);
    assert!(desk.node.stop().0.success());
}

/// What is watched is looked at again until it is what is waited for.
#[test]
fn a_list_is_watched_until_it_changes() {
    use std::io::{BufRead as _, BufReader};
    let desk = Desk::open();
    let mut child = desk.command(&["job", "list", "--watch=100ms", "-o", "yaml"]).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line == "[]"));
    desk.rota(&["job", "create", "--name", "new", "--command", "true"]).ok();
    assert!(lines.any(|line| line.contains("name: new")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(desk.node.stop().0.success());
}

/// A server that is started anew for a new version must not end what looks at it.
#[test]
fn whoever_watches_bears_with_a_server_that_is_started_anew() {
    use std::io::{BufRead as _, BufReader};
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = Node::ready(&place, &["--listen", &free]);
    let mut watch = at_home(&place, &["job", "list", "--watch=100ms", "-o", "yaml", "--server", &free]);
    let mut child = watch.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.any(|line| line == "[]"));
    assert!(node.stop().0.success());
    assert!(errors.any(|line| line.contains("the server does not answer; trying again")));
    let node = Node::ready(&place, &["--listen", &free]);
    said(at_home(&place, &["job", "create", "--name", "new", "--handler", "h", "--server", &free])).ok();
    assert!(out.any(|line| line.contains("name: new")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(node.stop().0.success());
}
