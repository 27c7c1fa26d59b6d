//! Which programs a step may start. None, until the operator says otherwise.

use std::{
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use rota_core::job::{
    failure::{ErrorKind, Failure},
    kinds::Program,
};

/// The shell that `shell` texts are for.
pub const SHELL: &str = "/bin/sh";

/// What the operator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CommandPolicy {
    /// Nothing is started.
    #[default]
    Off,
    /// Only these. A shell counts as the program it is.
    Listed(Vec<AllowedProgram>),
    /// Whatever a job's author writes, with the rights of this process.
    Any,
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedProgram {
    /// One program, by this path and no other.
    Program(PathBuf),
    /// Every program in a directory or below it. One that is a link to
    /// somewhere else is not in it.
    Directory(PathBuf),
}

/// The file to start and its arguments.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub file: PathBuf,
    pub args: Vec<&'a str>,
}

impl CommandPolicy {
    /// The program as it is started, if it may be.
    pub(super) fn admit<'a>(&self, program: &'a Program, search: &str) -> Result<Start<'a>, Failure> {
        if *self == Self::Off {
            return Err(refused("commands are off on this worker; its operator can allow them with commands.policy"));
        }
        let start = match program {
            Program::Plain { program, args } => {
                Start { file: located(program, search)?, args: args.iter().map(String::as_str).collect() }
            }
            Program::Shell(text) => Start { file: PathBuf::from(SHELL), args: vec!["-c", text] },
        };
        match self {
            Self::Any => Ok(start),
            Self::Off => Err(refused("commands are off")),
            Self::Listed(list) => {
                let file = list.iter().find_map(|entry| entry.admits(&start.file));
                let file =
                    file.ok_or_else(|| refused(format!("{} is not among the allowed programs", start.file.display())))?;
                Ok(Start { file, ..start })
            }
        }
    }
}

/// What names of variables that a list allows are made of: no line end that lets one look
/// like two.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Variables that a step may set beside a listed program. Whatever is not listed could turn
/// the program into another one: so many do (`PATH`, `LD_PRELOAD`, `BASH_ENV`, `PERL5OPT`,
/// `GIT_SSH_COMMAND`, ...) that nobody knows them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedVariable {
    Name(String),
    /// Every name that begins like this.
    Prefix(String),
}

impl AllowedVariable {
    pub(super) fn admits(&self, name: &str) -> bool {
        match self {
            Self::Name(allowed) => allowed == name,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()) && name.chars().all(is_plain),
        }
    }
}

impl FromStr for AllowedVariable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, is_prefix) = text.strip_suffix('*').map_or((text, false), |prefix| (prefix, true));
        if name.is_empty() || !name.chars().all(is_plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("`{text}` is neither the name of a variable nor the beginning of one, such as APP_*"));
        }
        Ok(if is_prefix { Self::Prefix(name.to_owned()) } else { Self::Name(name.to_owned()) })
    }
}

impl AllowedProgram {
    /// The path under which this entry lets `file` be started.
    fn admits(&self, file: &Path) -> Option<PathBuf> {
        match self {
            Self::Program(program) => (program == file).then(|| file.to_path_buf()),
            Self::Directory(directory) => {
                // Both as they really lie; what was judged is what is started.
                let real = file.canonicalize().ok()?;
                real.starts_with(directory.canonicalize().ok()?).then_some(real)
            }
        }
    }
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::InvalidInput, message)
}

/// An absolute path as it is, or a bare name found along the search path.
fn located(program: &str, search: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(program);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && is_plain {
        return Ok(path.to_path_buf());
    }
    if program.is_empty() || program.contains('/') {
        return Err(refused("a program must be an absolute path without `..`, or a bare name"));
    }
    let found = std::env::split_paths(search).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| refused(format!("no program `{}` in {search}", program.escape_debug())))
}
