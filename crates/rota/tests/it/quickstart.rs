//! docs/quickstart.md, done: every command of it, in order, in a fresh home.

use std::process::{Command, Stdio};

use crate::{
    cli::{Said, at_home},
    node::{Node, Place},
};

/// A part of the page: a script, or what it says.
enum Block {
    Script(String),
    Said(String),
}

/// A page that lies costs a newcomer's first ten minutes.
#[test]
fn the_quick_start_works_as_it_is_written() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quickstart.md")).unwrap();
    let place = Place::new();
    let mut node: Option<Node> = None;
    let mut said = String::new();
    let mut scripts = 0;
    for block in blocks(&page) {
        match block {
            Block::Script(script) if script.starts_with("rota serve") => {
                let arguments: Vec<&str> = script.split_whitespace().skip(2).collect();
                node = Some(Node::ready(&place, &arguments));
            }
            Block::Script(script) => {
                let server = format!("http://{}", node.as_ref().unwrap().address());
                let done = bash(&place, &server, &script);
                assert_eq!(done.code, 0, "{script}\n{}{}", done.out, done.err);
                said = plain(&format!("{}{}", done.out, done.err));
                scripts += 1;
            }
            Block::Said(text) => {
                for line in text.lines() {
                    assert!(said.contains(&plain(line)), "`{line}` is not among what was said:\n{said}");
                }
            }
        }
    }
    assert!(scripts >= 7, "{scripts}");
    assert!(node.unwrap().stop().0.success());
}

/// What the page has between ```sh and ```text.
fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in page.lines() {
        open = match (open, line) {
            (None, "```sh") => Some((true, String::new())),
            (None, "```text") => Some((false, String::new())),
            (None, _) => None,
            (Some((true, text)), "```") => {
                found.push(Block::Script(text));
                None
            }
            (Some((false, text)), "```") => {
                found.push(Block::Said(text));
                None
            }
            (Some((script, text)), line) => Some((script, format!("{text}{line}\n"))),
        };
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// Spaces of tables are as wide as what stands beside them.
fn plain(text: &str) -> String {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
}

/// A script in the home of somebody who has `rota` in their path.
fn bash(place: &Place, server: &str, script: &str) -> Said {
    let ours = at_home(place, &[]);
    let program = std::path::Path::new(ours.get_program());
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.arg("-euo").arg("pipefail").arg("-c").arg(script);
    command.current_dir(place.path("home")).env("PATH", path).env("ROTA_SERVER", server);
    command.env("HOME", place.path("home")).env_remove("XDG_CONFIG_HOME").env_remove("ROTA_TOKEN");
    command.stdin(Stdio::null());
    crate::cli::said(command)
}
