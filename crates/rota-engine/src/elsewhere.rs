//! Elsewhere: work that takes its time, on a thread that others do not wait for.
//!
//! A thread of the API or of the engine has other tasks: health checks, the schedules of
//! other tenants. Before it evaluates what a tenant wrote, and what may take milliseconds, it
//! hands them over to another one. On a program's own threads, which embeds Rota, the caller
//! waits as for anything else that it asked for: what runtime they are is not ours to know.

use tokio::runtime::{Handle, RuntimeFlavor};

/// How the threads of a node are called.
const OURS: &str = "rota-";

pub(crate) fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    let ours = std::thread::current().name().is_some_and(|name| name.starts_with(OURS));
    let others = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if ours && others { tokio::task::block_in_place(work) } else { work() }
}
