//! Files and a server: applied, compared, pruned, written out and read back.

use rota_core::job::{JobDocument, unbuilt};

use super::{Desk, hello};

#[test]
fn applying_twice_changes_nothing_the_second_time() {
    let desk = Desk::open();
    // The calendar is not there yet when the job that names it is checked.
    let scheduled = "schedules: [{ cron: 0 9 * * *, calendars: [days] }]\n";
    desk.write("jobs/a.yaml", &format!("{}{scheduled}", hello("a")));
    desk.write("jobs/b.yaml", &format!("{}---\n{}", hello("b"), hello("c")));
    desk.write("jobs/calendars/days.yaml", "name: days\ndates: [2030-01-01]\n");
    let actions = |arguments: &[&str]| -> Vec<(String, String)> {
        let all = [&["apply", "-f", "jobs", "-o", "json"], arguments].concat();
        let told = desk.rota(&all).json();
        let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        told.as_array().unwrap().iter().map(|change| (word(&change["name"]), word(&change["action"]))).collect()
    };
    let of = |action: &str| ["days", "a", "b", "c"].map(|name| (name.to_owned(), action.to_owned())).to_vec();
    assert_eq!(actions(&["--dry-run"]), of("create"));
    assert!(desk.rota(&["job", "list"]).err.contains("no jobs"), "a dry run changed something");
    assert_eq!(actions(&[]), of("create"));
    assert_eq!(actions(&[]), of("keep"));
    assert_eq!(desk.rota(&["job", "show", "a", "-o", "json"]).json()["version"], 1);
    assert!(desk.node.stop().0.success());
}

#[test]
fn a_diff_shows_what_is_stored_against_what_is_written() {
    let desk = Desk::open();
    desk.write("a.yaml", &format!("{}timeout: 90s\n", hello("a")));
    desk.rota(&["apply", "-f", "a.yaml"]).ok();
    // The same length of time in other words is no change.
    desk.write("a.yaml", &format!("{}timeout: 1m 30s\n", hello("a")));
    assert!(desk.rota(&["apply", "-f", "a.yaml", "--diff"]).ok().contains("unchanged"));
    desk.write("a.yaml", &format!("{}timeout: 2m\n", hello("a")));
    let told = desk.rota(&["apply", "-f", "a.yaml", "--diff", "--dry-run"]).ok();
    let diff = "--- stored/a\n+++ written/a\n@@ -1,7 +1,7 @@\n name: a\n tags:\n   - team-a\n-timeout: 1m 30s\n+timeout: 2m\n steps:\n   - id: say\n     command:\n";
    assert!(told.starts_with(diff), "{told}");
    assert!(told.contains("would change"), "{told}");
    assert!(desk.node.stop().0.success());
}

#[test]
fn a_mistake_in_one_file_changes_nothing() {
    let desk = Desk::open();
    desk.write("jobs/a.yaml", &hello("a"));
    desk.write("jobs/b.yaml", "name: b\nsteps: [{ id: x, sleep: { for: never } }]\n");
    let error = desk.rota(&["apply", "-f", "jobs"]).failed(2);
    assert!(error.contains("jobs/b.yaml") && error.contains("steps[0].sleep.for"), "{error}");
    assert!(desk.rota(&["job", "list"]).err.contains("no jobs"));
    assert!(desk.node.stop().0.success());
}

/// A prune that reached beyond its scope would delete other people's jobs.
#[test]
fn a_prune_deletes_inside_its_scope_only_and_when_confirmed() {
    let desk = Desk::open();
    desk.write("jobs/a.yaml", &hello("a"));
    desk.write("jobs/b.yaml", &hello("b"));
    desk.write("other.yaml", &hello("other").replace("team-a", "team-z"));
    desk.rota(&["apply", "-f", "jobs", "-f", "other.yaml"]).ok();
    std::fs::remove_file(desk.place.path("home/jobs/b.yaml")).unwrap();
    assert!(desk.rota(&["apply", "-f", "jobs", "--prune"]).failed(2).contains("--tag"));
    let outside = desk.rota(&["apply", "-f", "jobs", "-f", "other.yaml", "--prune", "--tag", "team-a"]).failed(2);
    assert!(outside.contains("other.yaml: `other`"), "{outside}");
    let prune = ["apply", "-f", "jobs", "--prune", "--tag", "team-a"];
    let told = desk.rota(&[&prune[..], &["--dry-run"]].concat()).ok();
    assert!(told.contains("would be deleted") && !told.contains("other"), "{told}");
    assert!(desk.rota(&prune).failed(2).contains("Delete 1 jobs that are not in any file: b?"));
    assert!(desk.rota(&[&prune[..], &["--yes"]].concat()).ok().contains("deleted"));
    let left = desk.rota(&["job", "list", "-o", "json"]).json();
    let left: Vec<&str> = left.as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(left, ["a", "other"]);
    assert!(desk.node.stop().0.success());
}

/// Every example of the docs goes out and comes back as it was, or is refused because
/// nobody executes it yet.
#[test]
fn what_is_exported_is_applied_without_a_change() {
    let desk = Desk::open();
    let mut wanted = 0;
    for (n, text) in examples().into_iter().enumerate() {
        if unbuilt(&JobDocument::from_yaml(text.as_bytes()).unwrap()).is_empty() {
            desk.write(&format!("jobs/{n:02}.yaml"), &text);
            wanted += 1;
        } else {
            desk.write("early.yaml", &text);
            let told = desk.rota(&["job", "create", "-f", "early.yaml"]).failed(2);
            assert!(told.contains("not supported yet"), "{told}");
        }
    }
    // Named last and started after by the examples, so it must be saved first.
    for upstream in ["load-orders", "load-returns"] {
        desk.write(
            &format!("jobs/zz-{upstream}.yaml"),
            &format!("name: {upstream}\nsteps: [{{ id: a, sleep: {{ for: 1s }} }}]\n"),
        );
        wanted += 1;
    }
    desk.write("jobs/calendars/days.yaml", "name: days\nmode: include\nweekdays: [mon, fri]\n");
    assert!(wanted > 5);
    desk.rota(&["apply", "-f", "jobs"]).ok();
    let told = desk.rota(&["export", "--dir", "out"]).ok();
    assert_eq!(told, format!("{wanted} jobs and 1 calendars written to out\n"));
    for arguments in [["apply", "-f", "out", "-o", "json"].as_slice(), &["import", "out", "-o", "json"]] {
        let told = desk.rota(arguments).json();
        let changes = told.as_array().unwrap();
        assert_eq!(changes.len(), wanted + 1);
        assert!(changes.iter().all(|change| change["action"] == "keep"), "{told:#}");
    }
    // The same through one stream, without calendars.
    let stream = desk.rota(&["export"]).ok();
    let told = desk.rota_given(&["apply", "-f", "-", "-o", "json"], &stream).json();
    assert!(told.as_array().unwrap().iter().all(|change| change["action"] == "keep"), "{told:#}");
    assert!(desk.node.stop().0.success());
}

/// The whole jobs among the YAML of docs/job.md, made whole where they are parts:
/// each under a name of its own.
fn examples() -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/job.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let whole = |(n, block): (usize, &str)| {
        let mut text = block.to_owned();
        if !text.starts_with("name:") {
            text = format!("name: example-{n}\n{text}");
        }
        if !text.contains("\nsteps:") {
            text.push_str("steps: [{ id: wait, sleep: { for: 1s } }]\n");
        }
        text
    };
    blocks.enumerate().map(whole).collect()
}
