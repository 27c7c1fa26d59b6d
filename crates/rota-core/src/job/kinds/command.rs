//! `command`: a program on the worker's machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::exactly_one;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "CommandFields", into = "CommandFields")]
pub struct Command {
    pub program: Program,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// The exit codes that are a success.
    pub expect: Option<Vec<u8>>,
}

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program with its arguments as they are: nothing is expanded.
    Plain { program: String, args: Vec<String> },
    /// A text for the shell. Values belong in `env`, where they cannot become code.
    Shell(String),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expect: Option<Vec<u8>>,
}

impl TryFrom<CommandFields> for Command {
    type Error = String;

    fn try_from(fields: CommandFields) -> Result<Self, String> {
        if fields.shell.is_some() && !fields.args.is_empty() {
            return Err("`args` can be used only with `program`".to_owned());
        }
        let args = fields.args;
        let program = exactly_one([
            ("program", fields.program.map(|program| Program::Plain { program, args })),
            ("shell", fields.shell.map(Program::Shell)),
        ])?;
        Ok(Self { program, env: fields.env, stdin: fields.stdin, directory: fields.directory, expect: fields.expect })
    }
}

impl From<Command> for CommandFields {
    fn from(command: Command) -> Self {
        let (program, args, shell) = match command.program {
            Program::Plain { program, args } => (Some(program), args, None),
            Program::Shell(text) => (None, Vec::new(), Some(text)),
        };
        Self {
            program,
            args,
            shell,
            env: command.env,
            stdin: command.stdin,
            directory: command.directory,
            expect: command.expect,
        }
    }
}
