//! Rules about the files themselves.
//!
//! The words a rule looks for are written in two halves here, or this file would
//! be the first to break it.

use std::path::Path;

/// A file of the project: its path from the root, and its text.
struct File {
    path: String,
    text: String,
}

/// One look at one file; prints each offence as `file:line: what is wrong`.
type Rule = fn(&File) -> Vec<String>;

#[test]
fn no_test_is_switched_off() {
    refuse_everywhere(switched_off);
}

#[test]
fn nothing_is_left_to_do_in_code() {
    refuse_everywhere(left_to_do);
}

#[test]
fn tests_wait_on_states_and_never_sleep() {
    refuse_everywhere(sleeps);
}

#[test]
fn no_file_names_a_folder_of_somebodys_machine() {
    refuse_everywhere(machine_paths);
}

#[test]
fn no_file_names_a_package_registry() {
    refuse_everywhere(registries);
}

#[test]
fn routes_reach_what_is_a_tenants_through_its_view() {
    refuse_everywhere(past_the_view);
}

#[test]
fn decisions_are_numbered_short_and_complete() {
    let files: Vec<File> = files().into_iter().filter(|file| file.path.starts_with("docs/decisions/")).collect();
    let mut offences: Vec<String> = files.iter().flat_map(incomplete_decision).collect();
    let mut paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    paths.sort_unstable();
    offences.extend(misnumbered(&paths));
    super::refuse(&offences);
}

fn refuse_everywhere(rule: Rule) {
    let offences: Vec<String> = files().iter().flat_map(rule).collect();
    super::refuse(&offences);
}

/// Every text file of the checkout, without what is built or fetched.
fn files() -> Vec<File> {
    let root = super::root();
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the checkout can be listed") {
            let path = entry.expect("an entry can be read").path();
            match path.symlink_metadata().expect("an entry can be looked at").file_type() {
                _ if !is_ours(&path) => {}
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => files.extend(read(&root, &path)),
                _ => {}
            }
        }
    }
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the walk starts at the root");
    files
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !["target", "node_modules", "dist", ".git", ".idea", ".vscode"].contains(&name.as_ref())
}

/// A file that is no UTF-8 text is nothing to read rules into.
fn read(root: &Path, path: &Path) -> Option<File> {
    let text = String::from_utf8(std::fs::read(path).ok()?).ok()?;
    let path = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    Some(File { path, text })
}

impl File {
    fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The lines of Rust, without their comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let rust = self.is_rust();
        self.numbered().filter(move |_| rust).map(|(number, line)| (number, line.split("//").next().unwrap_or(line)))
    }

    /// The lines of Rust that only tests run.
    fn test_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = ["/tests/", "/conformance/", "/simulator/"].iter().any(|folder| self.path.contains(folder));
        let first = self.numbered().find(|(_, line)| line.contains("#[cfg(test)]")).map_or(usize::MAX, |(n, _)| n);
        self.code().filter(move |(number, _)| all || *number > first)
    }

    fn offence(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

fn switched_off(file: &File) -> Vec<String> {
    let marks = [concat!("#[", "ignore"), concat!(", ", "ignore)]"), concat!(", ", "ignore =")];
    let found = file.code().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    found.map(|(number, _)| file.offence(number, "a test that is switched off proves nothing")).collect()
}

fn left_to_do(file: &File) -> Vec<String> {
    let marks = [concat!("todo", "!("), concat!("unimplemented", "!(")];
    let found = file.code().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    found.map(|(number, _)| file.offence(number, "unfinished code")).collect()
}

fn sleeps(file: &File) -> Vec<String> {
    let marks = [concat!("thread::", "sleep"), concat!("time::", "sleep")];
    let found = file.test_code().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    found.map(|(number, _)| file.offence(number, "a test sleeps; wait on a state instead")).collect()
}

/// The installation's own nouns, and a login, which comes before any tenant is known.
const WHOLE_ENGINE: [&str; 3] = ["rows.rs", "tenants.rs", "session.rs"];

fn past_the_view(file: &File) -> Vec<String> {
    let Some(route) = file.path.strip_prefix("crates/rota-server/src/routes/") else { return Vec::new() };
    if WHOLE_ENGINE.contains(&route) {
        return Vec::new();
    }
    let marks = [".store()", ".engine()", "Engine,", "&Engine"];
    let found = file.code().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    found.map(|(number, _)| file.offence(number, "a route asks the engine past its tenant's view")).collect()
}

fn machine_paths(file: &File) -> Vec<String> {
    let homes = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];
    let names_one = |line: &str| homes.iter().any(|home| line.match_indices(home).any(|(at, _)| begins_path(line, at)));
    let found = file.numbered().filter(|(_, line)| names_one(line));
    found.map(|(number, _)| file.offence(number, "a path that exists on one machine only")).collect()
}

/// Whether the slash at `at` is the start of a path, not the middle of one.
fn begins_path(line: &str, at: usize) -> bool {
    line[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric() && !"._-/}*~>".contains(before))
}

fn registries(file: &File) -> Vec<String> {
    let hosts = [
        concat!("crates", ".io"),
        concat!("npmjs", ".org"),
        concat!("yarnpkg", ".com"),
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("docker", ".io"),
        concat!("ghcr", ".io"),
        concat!("quay", ".io"),
        concat!("deb.debian", ".org"),
        concat!("artifact", "registry"),
    ];
    // Cargo writes its public index into its lock file, and cannot be asked not to.
    let index = concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"");
    let is_lock = file.path == "Cargo.lock";
    let names_one = |line: &str| {
        let foreign_source = is_lock && line.starts_with("source = ");
        !(is_lock && line == index) && (foreign_source || hosts.iter().any(|host| line.contains(host)))
    };
    let found = file.numbered().filter(|(_, line)| names_one(line));
    found
        .map(|(number, _)| file.offence(number, "names a package registry; where packages come from is set outside"))
        .collect()
}

/// About a page.
const DECISION_LINES_MAX: usize = 60;

fn incomplete_decision(file: &File) -> Vec<String> {
    let mut offences = Vec::new();
    let lines = file.text.lines().count();
    if lines > DECISION_LINES_MAX {
        offences.push(file.offence(lines, "a decision fits on a page of 60 lines"));
    }
    for part in ["## Context", "## Decision", "## Consequences", "## What would change our mind"] {
        if !file.text.lines().any(|line| line == part) {
            offences.push(file.offence(1, &format!("a decision has the part `{part}`")));
        }
    }
    offences
}

/// Numbers run from 0001 without a hole, so that a decision is found by its number.
fn misnumbered(sorted_paths: &[&str]) -> Vec<String> {
    let expected = (1..).map(|number: usize| format!("docs/decisions/{number:04}-"));
    let wrong = sorted_paths.iter().zip(expected).filter(|(path, start)| !path.starts_with(start.as_str()));
    wrong.map(|(path, start)| format!("{path}:1: expected a name that starts with {start}")).collect()
}

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn each_rule_finds_its_offence_and_nothing_else() {
    let home = concat!("/ho", "me/ann/rota");
    let sleep = concat!("std::thread::", "sleep(second);");
    let host = concat!("https://registry.npmjs", ".org/left-pad");
    let cases: Vec<(Rule, &str, String, usize)> = vec![
        (switched_off, "src/a.rs", concat!("#[", "ignore = \"slow\"]").to_owned(), 1),
        (switched_off, "src/a.rs", concat!("#[cfg_attr(x, ", "ignore)]").to_owned(), 1),
        (switched_off, "src/a.rs", concat!("// #[", "ignore]").to_owned(), 0),
        (left_to_do, "src/a.rs", concat!("todo", "!()").to_owned(), 1),
        (left_to_do, "a.md", concat!("todo", "!()").to_owned(), 0),
        (sleeps, "crates/rota/tests/it/main.rs", sleep.to_owned(), 1),
        (sleeps, "crates/rota/src/clock.rs", sleep.to_owned(), 0),
        (sleeps, "crates/rota/src/clock.rs", format!("#[cfg(test)]\nmod tests {{\n{sleep}\n}}"), 1),
        (past_the_view, "crates/rota-server/src/routes/jobs.rs", "may.view.engine().store()".to_owned(), 1),
        (past_the_view, "crates/rota-server/src/routes/rows.rs", "may.engine().store()".to_owned(), 0),
        (past_the_view, "crates/rota-server/src/metrics.rs", "may.engine().store()".to_owned(), 0),
        (machine_paths, "a.md", format!("see {home}"), 1),
        (machine_paths, "a.toml", format!("path = \"{home}\""), 1),
        (machine_paths, "a.md", format!("https://example.org{home}"), 0),
        (registries, "a.json", format!("\"resolved\": \"{host}\""), 1),
        (registries, "Cargo.lock", "source = \"registry+https://mirror.example/index\"".to_owned(), 1),
        (
            registries,
            "Cargo.lock",
            concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"").to_owned(),
            0,
        ),
        (incomplete_decision, "docs/decisions/0001-a.md", "# A\n".repeat(61), 5),
    ];
    for (rule, path, text, expected) in cases {
        let offences = rule(&file(path, &text));
        assert_eq!(offences.len(), expected, "{path}: {text}: {offences:?}");
        assert!(offences.iter().all(|offence| offence.starts_with(&format!("{path}:"))), "{offences:?}");
    }
}

#[test]
fn a_hole_in_the_numbers_is_found() {
    let paths = ["docs/decisions/0001-a.md", "docs/decisions/0003-b.md"];
    assert_eq!(misnumbered(&paths).len(), 1);
    assert!(misnumbered(&paths[..1]).is_empty());
}
