//! A job's document in the editor of whoever asks.
//!
//! It is saved over the version that was read and no other. A document that is
//! refused goes back to the editor with what is wrong in it; where nobody can be
//! asked, the text is left in its file and the file is named.

use std::{
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, anyhow};
use rota_api::job::{Job, JobSaved};
use rota_client::Believes;
use rota_core::job::read;
use serde_json::Value;

use crate::{failure::Failure, printer::Printer, session::Session, yaml};

pub async fn edit(session: &mut Session<'_>, job: &str) -> Result<(), Failure> {
    let stored: Job = session.client.get(&["jobs", job], &[]).await?;
    let before = yaml::document(&stored.document)?;
    let file = Draft::new(&stored.name, &before)?;
    loop {
        open_editor(&file.path)?;
        let after = std::fs::read_to_string(&file.path).context("cannot read the edited document")?;
        if after == before {
            file.remove();
            return session.done(&serde_json::json!({ "changed": false }), "nothing was changed");
        }
        let refusal = match save(session, &stored, &after).await {
            Ok(saved) => {
                file.remove();
                let what = if saved.changed { "saved" } else { "unchanged:" };
                return session.done(&saved, format_args!("{what} {} (version {})", saved.name, saved.version));
            }
            Err(refusal) => refusal,
        };
        if refusal.exit_code() != 2 || !Printer::can_ask() {
            session.printer.note(&format!("your text is in {}", file.path.display()))?;
            return Err(refusal);
        }
        session.printer.failure(&refusal);
        session.confirm(false, &format!("Edit it again? Your text is in {}", file.path.display()))?;
    }
}

async fn save(session: &Session<'_>, stored: &Job, text: &str) -> Result<JobSaved, Failure> {
    let value: Value =
        read::yaml(text.as_bytes()).map_err(|problem| Failure::bad_input(problem.code, problem.to_string()))?;
    Ok(session.client.put(&["jobs", &stored.name], &value, Believes::Version(stored.version)).await?)
}

/// A file for the editor that only its owner can read.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(name: &str, text: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("rota-{name}-{}.yaml", uuid::Uuid::now_v7()));
        let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path })
    }

    fn remove(&self) {
        // A draft that stays behind harms nobody.
        drop(std::fs::remove_file(&self.path));
    }
}

/// `$VISUAL`, `$EDITOR` or vi; they may bring arguments of their own.
fn open_editor(path: &Path) -> Result<(), Failure> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or("vi");
    let status = Command::new(program).args(words).arg(path).status();
    let status = status.with_context(|| format!("cannot start the editor `{program}`; set EDITOR"))?;
    if status.success() { Ok(()) } else { Err(anyhow!("the editor ended with {status}; nothing was saved").into()) }
}
