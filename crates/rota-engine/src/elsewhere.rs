//! Elsewhere: work that takes its time, on a thread that others do not wait for.
//!
//! A thread of the API or of the engine has other tasks: health checks, the schedules of
//! other tenants. Before it evaluates what a tenant wrote, and what may take milliseconds, it
//! hands them over to another one. On a program's own threads, which embeds Rota, the caller
//! waits as for anything else that it asked for: what runtime they are is not ours to know.

use std::cell::Cell;

use tokio::runtime::{Handle, RuntimeFlavor};

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Marks the present thread as one of a node: whoever starts a node's threads calls this on
/// each of them.
pub fn mark_thread() {
    OURS.set(true);
}

/// Does work that may take milliseconds.
pub fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    let others = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if OURS.get() && others { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, mpsc},
        time::Duration,
    };

    use super::*;

    /// Health, and the schedules of others, wait for no evaluation: not even where every
    /// thread has one.
    #[test]
    fn work_on_every_thread_holds_up_nobody_else() {
        let threads = 2;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .on_thread_start(mark_thread)
            .build()
            .unwrap();
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(Mutex::new(released));
        for _ in 0..threads {
            let (begun, released) = (begun.clone(), released.clone());
            runtime.spawn(async move {
                elsewhere(|| {
                    begun.send(()).unwrap();
                    assert!(released.lock().unwrap().recv().is_err());
                });
            });
        }
        let deadline = Duration::from_mins(2);
        for _ in 0..threads {
            has_begun.recv_timeout(deadline).expect("each thread has work");
        }
        let (answer, answered) = mpsc::channel();
        runtime.spawn(async move { answer.send(()) });
        answered.recv_timeout(deadline).expect("somebody else is answered");
        drop(release);
    }
}
