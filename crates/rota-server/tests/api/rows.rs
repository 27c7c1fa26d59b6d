//! Rows that cannot be read: pages go on, and an administrator sees and discards them.

use std::sync::Arc;

use axum::http::Method;
use rota_store::sqlite::SqliteStore;
use serde_json::{Value, json};

use crate::bed::Bed;

/// One broken row must not make a page of others an error, and whoever keeps the
/// installation must be able to see it and be rid of it.
#[tokio::test]
async fn an_unreadable_run_is_left_out_named_shown_and_discarded() {
    let store = Arc::new(SqliteStore::memory().unwrap());
    let bed = Bed::on(store.clone()).await;
    bed.job("mail", "hello").await;
    let later = || json!({ "run_at": "2100-01-01T00:00:00Z" });
    let (broken, sound) = (bed.trigger("mail", later()).await, bed.trigger("mail", later()).await);
    let sql = format!("UPDATE run SET extra = 'nonsense' WHERE id = x'{}'", broken.replace('-', ""));
    store.execute_raw(&sql).await.unwrap();
    let page = bed.get("/runs?limit=10").await.ok();
    assert_eq!(page["items"].as_array().unwrap().iter().map(|run| &run["id"]).collect::<Vec<_>>(), [&json!(sound)]);
    assert_eq!(bed.get(&format!("/runs/{broken}")).await.problem(), (404, "not_found".to_owned()));
    let rows = bed.get("/rows").await.ok();
    let id = format!("run.{broken}");
    assert_eq!((&rows["items"][0]["id"], rows["items"].as_array().unwrap().len()), (&json!(id), 1), "{rows}");
    assert_eq!(bed.get(&format!("/rows/{id}")).await.ok()["columns"]["extra"], "nonsense");
    let discard = |id: String| {
        let bed = &bed;
        async move { bed.send(Method::DELETE, &format!("/rows/{id}"), &[], "").await }
    };
    let readable = discard(format!("run.{sound}")).await;
    assert_eq!(readable.problem(), (404, "not_found".to_owned()), "only what cannot be read is discarded");
    assert_eq!(discard(id.clone()).await.ok()["id"], json!(id));
    assert_eq!(discard(id.clone()).await.problem(), (404, "not_found".to_owned()));
    assert_eq!(bed.get("/rows").await.ok()["items"], json!([]));
    bed.get(&format!("/runs/{sound}")).await.ok();
}

/// A row that others depend on is not deleted from under them, and whoever tries is told what
/// to do instead.
#[tokio::test]
async fn a_row_that_others_depend_on_is_shown_and_not_discarded() {
    let store = Arc::new(SqliteStore::memory().unwrap());
    let bed = Bed::on(store.clone()).await;
    bed.job("broken", "hello").await;
    store.execute_raw("UPDATE job SET tags = 'nonsense' WHERE name = 'broken'").await.unwrap();
    bed.get("/jobs").await.ok();
    let id = bed.get("/rows").await.ok()["items"][0]["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("job."), "{id}");
    assert_eq!(bed.get(&format!("/rows/{id}")).await.ok()["columns"]["tags"], "nonsense");
    let refused = bed.send(Method::DELETE, &format!("/rows/{id}"), &[], "").await;
    assert_eq!(refused.problem(), (409, "conflict".to_owned()));
    bed.get(&format!("/rows/{id}")).await.ok();
}

/// A document that is not JSON is shown as it is stored; the others are on the page.
#[tokio::test]
async fn a_broken_document_does_not_cost_a_page_its_others() {
    let store = Arc::new(SqliteStore::memory().unwrap());
    let bed = Bed::on(store.clone()).await;
    bed.job("broken", "hello").await;
    bed.job("sound", "hello").await;
    store.execute_raw("UPDATE job SET document = 'nonsense' WHERE name = 'broken'").await.unwrap();
    let page = bed.get("/jobs").await.ok();
    let documents: Vec<&Value> = page["items"].as_array().unwrap().iter().map(|job| &job["document"]).collect();
    assert_eq!((documents[0], documents.len()), (&json!("nonsense"), 2));
}
