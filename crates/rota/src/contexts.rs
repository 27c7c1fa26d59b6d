//! Contexts: the servers somebody works with, and the token for each.
//!
//! They live in one file of the owner's, written whole and readable by nobody
//! else, because it holds tokens.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A server and who to be there.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Every context there is, and the one in use.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// `$XDG_CONFIG_HOME/rota/contexts.toml`, or under the home's `.config`.
    pub fn path() -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
        Some(config.join("rota").join("contexts.toml"))
    }

    /// What is stored; nothing where there is no file.
    pub fn load() -> Result<Self, Failure> {
        let Some(path) = Self::path() else { return Ok(Self::default()) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(anyhow!(error).context(format!("cannot read {}", path.display())).into()),
        };
        toml::from_str(&text).map_err(|error| {
            // The message is without the line, which may hold a token.
            Failure::bad_input("bad_contexts", format!("{}: {}", path.display(), error.message()))
        })
    }

    /// Whether others than the owner may read the file.
    pub fn is_open_to_others() -> bool {
        let mode = Self::path().and_then(|path| fs::metadata(path).ok()).map(|data| data.permissions().mode());
        mode.is_some_and(|mode| mode & 0o077 != 0)
    }

    /// Writes all of it beside the old file, then takes its place.
    pub fn save(&self) -> Result<(), Failure> {
        let path = Self::path().ok_or_else(|| {
            Failure::bad_input("no_home", "there is no directory for contexts: set HOME or XDG_CONFIG_HOME".to_owned())
        })?;
        let text = toml::to_string(self).context("cannot save the contexts")?;
        write_private(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(())
    }

    pub fn named(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts
            .get(name)
            .ok_or_else(|| Failure::not_found(format!("there is no context `{name}`; `rota context list` lists them")))
    }

    /// The one in use; none where nobody logged in.
    pub fn current(&self) -> Option<(&str, &Context)> {
        let name = self.current.as_deref()?;
        self.contexts.get(name).map(|context| (name, context))
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let beside = path.with_extension(format!("toml.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
