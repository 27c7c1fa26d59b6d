//! Workers, listed and drained.

use std::process::{Child, Stdio};

use super::{Desk, at_home, said};

/// A worker that a failed test does not leave behind.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_worker_is_listed_and_leaves_when_it_is_asked_to() {
    let mut desk = Desk::open();
    let data = desk.place.text("worker");
    let work = ["worker", "--name", "far", "--traits", "gpu", "--queue", "films", "--data", &data];
    let mut worker = Worker(desk.command(&work).stderr(Stdio::null()).spawn().unwrap());
    let server = desk.server();
    let listed = || said(at_home(&desk.place, &["worker", "list", "--server", &server, "-o", "json"])).json();
    let far = |list: &serde_json::Value| list.as_array().unwrap().iter().find(|one| one["name"] == "far").cloned();
    desk.node.wait_for("the worker to be listed", |_| far(&listed()).is_some());
    let one = far(&listed()).unwrap();
    assert_eq!(
        (&one["state"], &one["traits"][0], &one["queues"][0]),
        (&"active".into(), &"gpu".into(), &"films".into())
    );
    let table = desk.rota(&["worker", "list", "--state", "active"]).ok();
    assert!(table.contains("traits gpu; queues films") && table.contains("built in"), "{table}");
    assert!(desk.rota(&["worker", "list", "--state", "dead"]).err.contains("no workers"));
    assert_eq!(desk.rota(&["worker", "drain", "far"]).ok(), "asked to drain: far\n");
    assert!(worker.0.wait().unwrap().success());
    assert!(desk.node.stop().0.success());
}

#[test]
fn what_is_no_worker_is_not_drained() {
    let desk = Desk::open();
    let error = desk.rota(&["worker", "drain", "nobody"]).failed(3);
    assert!(error.contains("`nobody` is neither the id nor the name of a remote worker"), "{error}");
    let id = "00000000-0000-0000-0000-000000000000";
    assert!(desk.rota(&["worker", "drain", id]).failed(3).contains("no such worker"));
    assert!(desk.rota(&["worker", "list", "--state", "tired"]).failed(2).contains("one of active, draining, dead"));
    assert!(
        desk.rota(&["worker", "--traits", "gpu", "list"]).failed(2).contains("are for `rota worker` without a command")
    );
    assert!(desk.rota(&["worker", "lsit"]).failed(2).contains("unrecognized subcommand"));
    assert!(desk.node.stop().0.success());
}
