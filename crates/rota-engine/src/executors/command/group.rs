//! The processes of one attempt, which end together.
//!
//! A program is started as the leader of a group, and the group is killed when
//! this value is dropped. Processes that left the group are found by the lease
//! that every descendant carries in its environment, on systems that show it
//! (Linux); each is held by a descriptor while it is looked at, so that a number
//! given to another process in between is not killed in its place.
//!
//! A process that both leaves the group and clears its environment is missed.

use std::{io, process::ExitStatus};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// The variable that marks the descendants of an attempt.
pub(super) const MARK: &str = "ROTA_LEASE";

pub(super) struct Group {
    child: Child,
    /// None once the leader has been waited for: from then on its number may
    /// be anyone's.
    leader: Option<Pid>,
    mark: String,
}

/// Asks a group to end. Good for as long as its leader is not waited for.
pub(super) struct Ender(Pid);

impl Ender {
    /// False where nobody is left to be asked.
    pub fn ask(&self) -> bool {
        kill_process_group(self.0, Signal::TERM).is_ok()
    }
}

impl Group {
    pub fn ender(&self) -> Option<Ender> {
        self.leader.map(Ender)
    }

    /// Starts a program as the leader of a group of its own.
    pub fn spawn(command: &mut Command, lease: &str) -> io::Result<Self> {
        let child = command.env(MARK, lease).process_group(0).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, leader, mark: format!("{MARK}={lease}") })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns when the leader has ended, and leaves it to be waited for.
    #[cfg(target_os = "linux")]
    #[allow(deprecated, reason = "an owned descriptor is the one it says; the successor is for those that may lie")]
    pub async fn leader_ended(&mut self) -> io::Result<()> {
        use rustix::process::{PidfdFlags, pidfd_open};
        use tokio::io::{Interest, unix::AsyncFd};

        let Some(leader) = self.leader else { return Ok(()) };
        let descriptor = AsyncFd::with_interest(pidfd_open(leader, PidfdFlags::empty())?, Interest::READABLE)?;
        descriptor.readable().await.map(|_| ())
    }

    /// Returns when the leader has ended.
    #[cfg(not(target_os = "linux"))]
    pub async fn leader_ended(&mut self) -> io::Result<()> {
        self.child.wait().await.map(|_| ())
    }

    /// Ends everyone who is left.
    pub fn kill(&mut self) {
        if let Some(leader) = self.leader {
            // An error means that nobody is left.
            kill_process_group(leader, Signal::KILL).unwrap_or_default();
        }
        kill_marked(&self.mark);
    }

    /// How the leader ended.
    pub async fn status(mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.leader = None;
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.leader.is_some() {
            self.kill();
        }
    }
}

/// How often descendants are looked for: one that is killed may have just made
/// another.
#[cfg(target_os = "linux")]
const LOOKS_MAX: usize = 8;

#[cfg(target_os = "linux")]
fn kill_marked(mark: &str) {
    for _ in 0..LOOKS_MAX {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let killed = ids.filter(|id| kill_if_marked(*id, mark)).count();
        if killed == 0 {
            return;
        }
    }
}

#[cfg(target_os = "linux")]
fn kill_if_marked(id: i32, mark: &str) -> bool {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    if !is_marked(id, mark) {
        return false;
    }
    let Some(pid) = Pid::from_raw(id) else { return false };
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // Looked at again now that the number cannot change its owner.
    is_marked(id, mark) && pidfd_send_signal(&held, Signal::KILL).is_ok()
}

#[cfg(target_os = "linux")]
fn is_marked(id: i32, mark: &str) -> bool {
    // What is not ours to read is not ours to end.
    let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

#[cfg(not(target_os = "linux"))]
fn kill_marked(_: &str) {}
