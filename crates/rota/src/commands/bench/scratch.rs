//! Where a benchmark puts files of its own: not into memory, where a write is no
//! write to a disk and a figure would mean nothing.

use std::path::{Path, PathBuf};

/// The system's folder for what is temporary, or the first of the next best that lies
/// on a disk.
pub fn folder() -> PathBuf {
    // Only Linux lists its mounts there; elsewhere the first choice stands.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut choices = [Ok(std::env::temp_dir()), Ok("/var/tmp".into()), std::env::current_dir()].into_iter().flatten();
    let on_disk = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| !in_memory(&mounts, &folder));
    choices.find(on_disk).unwrap_or_else(std::env::temp_dir)
}

/// Whether a folder lies in memory, by the list of what is mounted where.
fn in_memory(mounts: &str, folder: &Path) -> bool {
    let fields = mounts.lines().map(|line| line.split(' '));
    let mounted = fields.filter_map(|mut fields| Some((unescaped(fields.nth(1)?), fields.next()?)));
    // Of two on the same folder the later one covers the other.
    let found = mounted.filter(|(at, _)| folder.starts_with(at)).max_by_key(|(at, _)| at.components().count());
    found.is_some_and(|(_, kind)| matches!(kind, "tmpfs" | "ramfs"))
}

/// The kernel writes blanks in names as octal numbers.
fn unescaped(name: &str) -> PathBuf {
    name.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw,nosuid 0 0
/dev/vdb /tmp/kept ext4 rw 0 0
none /mnt/a\\040b ramfs rw 0 0
/dev/vdc /data ext4 rw 0 0
tmpfs /data tmpfs rw 0 0
";

    #[test]
    fn a_folder_in_memory_is_told_from_one_on_a_disk() {
        for (folder, memory) in [
            ("/", false),
            ("/var/tmp", false),
            ("/tmp", true),
            ("/tmp/x/y", true),
            ("/tmpx", false),
            ("/tmp/kept/x", false),
            ("/mnt/a b/c", true),
            ("/data", true),
        ] {
            assert_eq!(in_memory(MOUNTS, Path::new(folder)), memory, "{folder}");
        }
        assert!(!in_memory("", Path::new("/tmp")), "where nothing is known");
    }
}
