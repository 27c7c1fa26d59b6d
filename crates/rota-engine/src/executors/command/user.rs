//! As whom programs run: a user of their own cannot read what the node can, its
//! environment and its files among them.

use std::{fmt, path::Path, str::FromStr};

/// Another user than the node's, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandUser {
    pub uid: u32,
    pub gid: u32,
}

impl CommandUser {
    /// A user by name, as this machine knows it, or by its numbers (`1000:1000`). Not root,
    /// who may read everything.
    pub fn find(text: &str, passwd: &Path) -> Result<Self, String> {
        let user = Self::known(text, passwd)?;
        // The last number stands for no change.
        let is_other = |id: u32| id != 0 && id != u32::MAX;
        if is_other(user.uid) && is_other(user.gid) {
            return Ok(user);
        }
        Err(format!("`{text}` is root or in its group, or is no user: name one with rights of its own"))
    }

    fn known(text: &str, passwd: &Path) -> Result<Self, String> {
        if let Some((uid, gid)) = text.split_once(':') {
            let number = |text: &str| u32::from_str(text).ok();
            let (Some(uid), Some(gid)) = (number(uid), number(gid)) else {
                return Err(format!("`{text}` is neither the name of a user nor UID:GID"));
            };
            return Ok(Self { uid, gid });
        }
        let known = std::fs::read_to_string(passwd).map_err(|error| format!("{}: {error}", passwd.display()))?;
        let found = known.lines().find_map(|line| Self::of_line(line, text));
        found.ok_or_else(|| format!("this machine has no user `{text}`; write UID:GID for one that it need not know"))
    }

    fn of_line(line: &str, name: &str) -> Option<Self> {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let mut number = || fields.nth(1).and_then(|text| text.parse().ok());
        let uid = number()?;
        Some(Self { uid, gid: fields.next()?.parse().ok()? })
    }
}

impl fmt::Display for CommandUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let file = std::env::temp_dir().join(format!("rota-passwd-{}", std::process::id()));
        std::fs::write(&file, "root:x:0:0:root:/root:/bin/sh\njobs:x:1001:1002:,,,:/var/lib/jobs:/bin/sh\nbad:x:y:1\n")
            .unwrap();
        let find = |text| CommandUser::find(text, &file);
        assert_eq!(find("jobs"), Ok(CommandUser { uid: 1001, gid: 1002 }));
        assert_eq!(find("65534:65534"), Ok(CommandUser { uid: 65_534, gid: 65_534 }));
        for wrong in [
            "nobody-here",
            "job",
            "bad",
            "1:x",
            ":",
            "-1:0",
            "4294967296:1",
            "root",
            "0:0",
            "7:0",
            "0:7",
            "4294967295:1",
        ] {
            assert!(find(wrong).is_err(), "{wrong}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
