//! The command line as its users meet it: a real server, real processes, whole
//! answers and exit codes.

mod access;
mod apply;
mod contexts;
mod doctor;
mod manual;
mod verbs;
mod workers;

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::node::{Node, Place, rota};

/// A server, and a home in which its user's commands run.
pub struct Desk {
    pub place: Place,
    pub node: Node,
}

/// What a command said, and its code.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// It failed with this code; what it said on standard error.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.err
    }

    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A command in a home of its own, so that nobody's contexts are read or written.
pub fn at_home(place: &Place, arguments: &[&str]) -> Command {
    let mut command = rota(arguments);
    let home = place.path("home");
    std::fs::create_dir_all(&home).unwrap();
    command.current_dir(&home).env("HOME", &home).env_remove("XDG_CONFIG_HOME").env_remove("NO_COLOR");
    command
}

pub fn said(mut command: Command) -> Said {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

impl Desk {
    pub fn open() -> Self {
        Self::open_with(&[])
    }

    pub fn open_with(arguments: &[&str]) -> Self {
        let place = Place::new();
        let all = [&["--commands-policy", "any"], arguments].concat();
        let node = Node::ready(&place, &all);
        Self { place, node }
    }

    pub fn server(&self) -> String {
        format!("http://{}", self.node.address())
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = at_home(&self.place, arguments);
        command.env("ROTA_SERVER", self.server());
        command
    }

    pub fn rota(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments))
    }

    /// A command that is given a text on standard input.
    pub fn rota_given(&self, arguments: &[&str], text: &str) -> Said {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // One that asks for nothing may be gone before it is told.
        child.stdin.take().unwrap().write_all(text.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    pub fn write(&self, name: &str, text: &str) {
        self.place.write(&format!("home/{name}"), text);
    }
}

/// A job that ends as soon as it has said something.
pub fn hello(name: &str) -> String {
    format!("name: {name}\ntags: [team-a]\nsteps:\n  - id: say\n    command:\n      shell: echo hello from {name}\n")
}
