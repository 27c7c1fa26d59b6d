//! What attempts say while they are under way, gathered and bounded.
//!
//! A line of log or a report of progress never waits: it is put on a pile that a
//! pass writes away. Of progress only the latest counts; of log lines an
//! attempt keeps so many bytes, and says where it was cut.
//!
//! What an attempt logged is written before its end is settled, so that a run that
//! has ended has its whole log. Where nobody logs, that costs one look at a counter.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rota_core::{
    bytes::{LOG_LINE_BYTES_MAX, kept},
    ids::RunId,
    ports::{Clock, Progress, Reports, Stream},
    run::Lease,
    store::{LogChunk, Store, StoreError},
};
use serde_json::json;

/// A chunk is closed at this size.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// The last line of a log that has reached its limit.
pub(crate) const CUT: &str = "the log of this attempt is cut here: it has reached its limit";

#[derive(Debug, Default)]
struct Piles {
    progress: HashMap<RunId, (Lease, Progress)>,
    logs: Vec<LogChunk>,
}

/// What all attempts of a node said since it was last written away.
#[derive(Debug)]
pub struct Gathered {
    piles: Mutex<Piles>,
    /// Chunks that the store has not answered for: on the pile, or on their way.
    unwritten: AtomicUsize,
    /// Held while chunks are on their way.
    writing: tokio::sync::Mutex<()>,
    bytes_max: usize,
}

impl Gathered {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            piles: Mutex::default(),
            unwritten: AtomicUsize::new(0),
            writing: tokio::sync::Mutex::default(),
            bytes_max,
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Piles) -> T) -> T {
        work(&mut self.piles.lock())
    }

    pub fn take_progress(&self) -> Vec<(Lease, Progress)> {
        self.with(|piles| std::mem::take(&mut piles.progress)).into_values().collect()
    }

    /// Puts back progress that the store did not take. What was said since counts.
    pub fn keep_progress(&self, latest: impl IntoIterator<Item = (Lease, Progress)>) {
        self.with(|piles| {
            for (lease, progress) in latest {
                piles.progress.entry(lease.run).or_insert((lease, progress));
            }
        });
    }

    /// Writes away what was logged before this was asked for, whoever is at it.
    pub async fn write_logs(&self, store: &dyn Store) -> Result<usize, StoreError> {
        if self.unwritten.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        let _alone = self.writing.lock().await;
        let chunks = self.take_logs();
        if chunks.is_empty() {
            return Ok(0);
        }
        if let Err(error) = store.append_logs(&chunks).await {
            self.keep_logs(chunks);
            return Err(error);
        }
        self.unwritten.fetch_sub(chunks.len(), Ordering::AcqRel);
        Ok(chunks.len())
    }

    fn take_logs(&self) -> Vec<LogChunk> {
        self.with(|piles| std::mem::take(&mut piles.logs))
    }

    /// Puts back chunks that the store did not take.
    fn keep_logs(&self, mut chunks: Vec<LogChunk>) {
        self.with(|piles| {
            chunks.append(&mut piles.logs);
            piles.logs = chunks;
        });
    }
}

/// Progress as it is stored.
pub(crate) fn text(progress: &Progress) -> String {
    let mut fields = serde_json::Map::new();
    if let Some(percent) = progress.percent {
        fields.insert("percent".into(), json!(percent));
    }
    for (name, value) in [("phase", &progress.phase), ("message", &progress.message)] {
        if let Some(value) = value {
            fields.insert(name.into(), json!(value));
        }
    }
    serde_json::Value::Object(fields).to_string()
}

/// The ear of one attempt.
pub struct AttemptReports {
    pub gathered: Arc<Gathered>,
    pub clock: Arc<dyn Clock>,
    pub lease: Lease,
    pub attempt: u16,
    seq: AtomicI32,
    bytes: AtomicUsize,
}

impl AttemptReports {
    pub fn new(gathered: Arc<Gathered>, clock: Arc<dyn Clock>, lease: Lease, attempt: u16) -> Self {
        Self { gathered, clock, lease, attempt, seq: AtomicI32::new(0), bytes: AtomicUsize::new(0) }
    }

    fn add(&self, at: Timestamp, stream: Stream, text: &str) {
        let line = json!({ "at": at, "stream": stream, "text": text }).to_string();
        self.gathered.with(|piles| {
            if let Some(last) = piles.logs.last_mut()
                && last.run == self.lease.run
                && last.attempt == self.attempt
                && last.lines.len() < CHUNK_BYTES_MAX
            {
                last.lines.push_str(&line);
                last.lines.push('\n');
                return;
            }
            let seq = self.seq.fetch_add(1, Ordering::Relaxed);
            let (run, attempt, lines) = (self.lease.run, self.attempt, line + "\n");
            piles.logs.push(LogChunk { run, attempt, seq, at, lines });
            self.gathered.unwritten.fetch_add(1, Ordering::AcqRel);
        });
    }
}

impl Reports for AttemptReports {
    fn log(&self, stream: Stream, text: &str) {
        let text = &*kept(text, LOG_LINE_BYTES_MAX);
        let before = self.bytes.fetch_add(text.len() + 1, Ordering::Relaxed);
        let most = self.gathered.bytes_max;
        if before >= most {
            return;
        }
        let at = self.clock.now();
        self.add(at, stream, text);
        if before + text.len() + 1 >= most {
            self.add(at, Stream::System, CUT);
        }
    }

    fn progress(&self, progress: Progress) {
        self.gathered.with(|piles| piles.progress.insert(self.lease.run, (self.lease, progress.bounded())));
    }
}

#[cfg(test)]
mod tests {
    use rota_core::{ids::RunId, ports::Seeded, run::Fence};

    use super::*;
    use crate::clock::TestClock;

    fn reports(bytes_max: usize) -> AttemptReports {
        let now = Timestamp::from_second(1_767_607_200).unwrap();
        let lease = Lease { run: RunId::new(&Seeded::new(1), now), fence: Fence(3) };
        AttemptReports::new(Arc::new(Gathered::new(bytes_max)), Arc::new(TestClock::new(now)), lease, 2)
    }

    /// An attempt that prints for ever must not fill the store.
    #[test]
    fn a_log_is_cut_at_its_limit_and_says_so() {
        let reports = reports(100);
        for _ in 0..50 {
            reports.log(Stream::Stdout, "twenty bytes of text");
        }
        let chunks = reports.gathered.take_logs();
        let lines: Vec<&str> = chunks.iter().flat_map(|chunk| chunk.lines.lines()).collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[5].contains("cut here"));
        assert_eq!((chunks[0].attempt, chunks[0].seq), (2, 0));
        reports.gathered.keep_logs(chunks.clone());
        assert_eq!(reports.gathered.take_logs(), chunks);
    }

    #[test]
    fn chunks_are_numbered_and_long_lines_cut_between_characters() {
        let reports = reports(10_000_000);
        for _ in 0..10 {
            reports.log(Stream::Stderr, &"ä".repeat(20_000));
        }
        let chunks = reports.gathered.take_logs();
        assert_eq!(
            chunks.iter().map(|chunk| chunk.seq).collect::<Vec<_>>(),
            (0..chunks.len() as i32).collect::<Vec<_>>()
        );
        assert!(chunks.len() > 1);
    }

    #[test]
    fn only_the_latest_progress_counts() {
        let reports = reports(1);
        for percent in [1, 250] {
            reports.progress(Progress { percent: Some(percent), ..Progress::default() });
        }
        let taken = reports.gathered.take_progress();
        assert_eq!(taken.iter().map(|(_, progress)| text(progress)).collect::<Vec<_>>(), ["{\"percent\":100}"]);
        assert!(reports.gathered.take_progress().is_empty());
        reports.gathered.keep_progress(taken);
        reports.progress(Progress { percent: Some(7), ..Progress::default() });
        let taken = reports.gathered.take_progress();
        assert_eq!(taken[0].1.percent, Some(7), "what was said since");
        reports.progress(Progress { percent: Some(8), ..Progress::default() });
        reports.gathered.keep_progress(taken);
        assert_eq!(reports.gathered.take_progress()[0].1.percent, Some(8));
    }
}
