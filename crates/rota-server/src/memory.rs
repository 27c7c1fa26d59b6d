//! Memory: what requests and answers may hold, of all callers together.
//!
//! Each of them is bounded by itself, and a thousand at once would still take gigabytes: a
//! body of 1 MiB that is nothing but `[{"":0},…` is eighty times as large as a value. So there
//! are four pools, and whoever finds one empty waits or is told to come again:
//!
//! - bodies that are arriving or wait for their turn, in bytes; a body is not read before it
//!   has its share;
//! - what is being worked on as values, in bytes of the text;
//! - answers of streams of lines that nobody has read yet;
//! - large answers that are being sent.
//!
//! What is small takes nothing of any pool: it is bounded by the number of requests in work,
//! and waits for nobody's large requests.

use std::sync::Arc;

use rota_api::problem::Code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{BODY_BYTES_MAX, problem::Problem};

/// Larger texts count.
pub const SMALL: usize = 4 << 10;
/// Larger answers count.
const SMALL_ANSWER: usize = 64 << 10;

/// How much of each there may be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Bodies that are arriving, or have arrived and wait.
    pub arriving: usize,
    /// Bodies, batches of lines and pages that are worked on.
    pub work: usize,
    /// Answers of streams that wait for their readers, besides what each may keep anyway.
    pub unread: usize,
    /// Large answers that are being sent.
    pub answers: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self { arriving: 16 << 20, work: 1 << 20, unread: 16 << 20, answers: 32 << 20 }
    }
}

/// The pools. Clones are the same.
#[derive(Clone, Debug)]
pub struct Memory {
    shares: Shares,
    arriving: Arc<Semaphore>,
    work: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

/// Some of a pool; given back when dropped. None for what is small.
pub type Share = Option<OwnedSemaphorePermit>;

impl Memory {
    pub fn new(shares: Shares) -> Self {
        let pool = |bytes| Arc::new(Semaphore::new(bytes));
        let Shares { arriving, work, unread, answers } = shares;
        Self { shares, arriving: pool(arriving), work: pool(work), unread: pool(unread), answers: pool(answers) }
    }

    /// Waits until a body may come, of as many bytes as it says, or as many as there may be.
    pub async fn arriving(&self, length: Option<u64>) -> Share {
        let bytes = length.map_or(BODY_BYTES_MAX, |length| length.min(BODY_BYTES_MAX as u64) as usize);
        if bytes <= SMALL { None } else { wait(&self.arriving, bytes, self.shares.arriving).await }
    }

    /// Waits until a text of so many bytes may be worked on.
    pub async fn work(&self, bytes: usize) -> Share {
        if bytes <= SMALL { None } else { wait(&self.work, bytes, self.shares.work).await }
    }

    /// Room for so many bytes of a stream's answers, if there is any.
    pub fn unread(&self, bytes: usize) -> Share {
        Arc::clone(&self.unread).try_acquire_many_owned(bytes as u32).ok()
    }

    /// Room for an answer of so many bytes, or that there is none.
    pub fn answer(&self, bytes: u64) -> Result<Share, Problem> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes <= SMALL_ANSWER {
            return Ok(None);
        }
        let bytes = bytes.min(self.shares.answers) as u32;
        let room = Arc::clone(&self.answers).try_acquire_many_owned(bytes);
        room.map(Some).map_err(|_| {
            let detail = "too many large answers are being sent; ask for a smaller page, or try again in a moment";
            Problem::new(Code::Busy, detail).retry_after(1)
        })
    }
}

/// One that is larger than its pool takes all of it.
async fn wait(pool: &Arc<Semaphore>, bytes: usize, all: usize) -> Share {
    // Nobody closes a pool.
    Arc::clone(pool).acquire_many_owned(bytes.min(all) as u32).await.ok()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// 64 bodies of a megabyte each, all of them worked on at once, took three gigabytes.
    #[test]
    fn what_is_large_waits_for_its_turn_and_what_is_small_for_nobody() {
        let memory = Memory::new(Shares { work: 100_000, ..Shares::default() });
        let work = |bytes| memory.work(bytes).now_or_never();
        let first = work(60_000).unwrap();
        assert!(work(60_000).is_none(), "there is no room");
        assert!(work(40_000).is_some());
        assert!(work(SMALL).unwrap().is_none(), "it takes nothing");
        drop(first);
        let all = work(1 << 20).unwrap();
        assert!(work(SMALL + 1).is_none(), "what is larger than the pool has all of it");
        drop(all);
        assert!(work(60_000).is_some());
    }

    #[test]
    fn a_body_of_unknown_length_counts_as_the_largest() {
        let memory = Memory::new(Shares { arriving: BODY_BYTES_MAX, ..Shares::default() });
        let unknown = memory.arriving(None).now_or_never().unwrap();
        assert!(memory.arriving(Some(SMALL as u64 + 1)).now_or_never().is_none());
        assert!(memory.arriving(Some(SMALL as u64)).now_or_never().is_some());
        drop(unknown);
        assert!(memory.arriving(Some(u64::MAX)).now_or_never().is_some());
    }

    /// Clients that ask for large pages and read nothing, a megabyte for each connection.
    #[test]
    fn large_answers_are_refused_while_too_many_are_being_sent() {
        let memory = Memory::new(Shares { answers: 1 << 20, ..Shares::default() });
        let first = memory.answer(1 << 20).unwrap();
        assert!(memory.answer(SMALL_ANSWER as u64 + 1).is_err());
        assert!(memory.answer(SMALL_ANSWER as u64).is_ok());
        drop(first);
        assert!(memory.answer(u64::MAX).is_ok());
    }
}
