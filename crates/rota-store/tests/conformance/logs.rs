//! Logs of attempts.

use rota_core::store::{LogChunk, LogQuery};

use crate::harness::*;

/// Lines come back in order, page by page, by attempt.
pub async fn log_lines_come_back_in_order_and_pages(h: &Harness) {
    let run = h.make(h.new_run(h.claimed), at(0)).await;
    let other = h.make(h.new_run(h.claimed), at(0)).await;
    let chunk = |run, attempt, seq| LogChunk {
        run,
        attempt,
        seq,
        at: at(i64::from(seq)),
        lines: format!("{{\"t\":\"{attempt}/{seq}\"}}\n"),
    };
    let chunks = [chunk(run, 2, 1), chunk(run, 1, 2), chunk(run, 1, 1), chunk(other, 1, 1), chunk(run, 1, 10)];
    h.store.append_logs(&chunks).await.unwrap();
    let query = LogQuery { run, attempt: None, after: None, limit: 10 };
    let all = h.store.logs(&query).await.unwrap();
    assert_eq!(all, [chunk(run, 1, 1), chunk(run, 1, 2), chunk(run, 1, 10), chunk(run, 2, 1)]);
    let page = h.store.logs(&LogQuery { after: Some((1, 1)), limit: 2, ..query.clone() }).await.unwrap();
    assert_eq!(page, [chunk(run, 1, 2), chunk(run, 1, 10)]);
    let second = h.store.logs(&LogQuery { attempt: Some(2), ..query.clone() }).await.unwrap();
    assert_eq!(second, [chunk(run, 2, 1)]);
    assert_eq!(h.store.logs(&LogQuery { run: h.run_id(), ..query }).await.unwrap(), []);
}

/// A batch sent again after a lost answer must not double its lines.
pub async fn lines_appended_again_are_there_once(h: &Harness) {
    let run = h.make(h.new_run(h.claimed), at(0)).await;
    let chunk = LogChunk { run, attempt: 1, seq: 1, at: at(0), lines: "{}\n".into() };
    h.store.append_logs(std::slice::from_ref(&chunk)).await.unwrap();
    h.store.append_logs(std::slice::from_ref(&chunk)).await.unwrap();
    let query = LogQuery { run, attempt: None, after: None, limit: 10 };
    assert_eq!(h.store.logs(&query).await.unwrap(), [chunk]);
}

/// The log outlives the run: it is read when the run has failed.
pub async fn the_log_stays_when_the_run_ends(h: &Harness) {
    let (_, run) = h.leased(at(0)).await;
    let chunk = LogChunk { run: run.id, attempt: 1, seq: 1, at: at(0), lines: "{}\n".into() };
    h.store.append_logs(std::slice::from_ref(&chunk)).await.unwrap();
    h.settle(&run, broken(), at(1)).await;
    let query = LogQuery { run: run.id, attempt: None, after: None, limit: 10 };
    assert_eq!(h.store.logs(&query).await.unwrap(), [chunk]);
}
