//! Nodes that share a database, one after the other killed; and the database
//! itself, killed under them.

use rustix::process::Signal;

use super::{scene::Scene, server::Server};

/// More rounds where there is time for a soak.
fn rounds(few: usize) -> usize {
    if std::env::var_os("ROTA_LONG").is_some() { few * 12 } else { few }
}

/// One of three nodes is killed every few seconds; the others go on with what it
/// had, and it comes back as another.
#[test]
fn nodes_that_are_killed_in_turn_lose_nothing_and_repeat_nothing() {
    let server = Server::start();
    let mut scene = Scene::on_postgres(&server);
    let mut nodes = vec![scene.live(true, &[])];
    nodes[0].until_ready();
    nodes.extend([scene.again(&[]), scene.again(&[])]);
    for round in 0..rounds(6) {
        let known = scene.ledger().lines.len();
        let place = round % nodes.len();
        // A run that lost two workers must not lose a third, or it would
        // rightly end as a dead letter.
        nodes[(round + 1) % 3].wait_for("new runs", |_| {
            scene.ledger().lines.len() >= known + 12
                && scene.keeper.sql("SELECT count(*) FROM run WHERE losses > 1") == 0
        });
        nodes[place].signal(Signal::KILL);
        let another = scene.again(&[]);
        drop(std::mem::replace(&mut nodes[place], another).end());
    }
    let last = scene.ledger().last();
    nodes[0].wait_for("the instants that were owed", |_| scene.ledger().has_caught_up_with(&last));
    for node in nodes {
        assert_eq!(node.stop().0.code(), Some(0));
    }
    scene.drain();
    scene.close();
}

/// The server is killed under load, as by a power switch, and started again on
/// what it left. Its nodes live through it; what they were executing ends and is
/// settled.
#[test]
fn a_database_that_is_killed_under_load_loses_nothing_and_repeats_nothing() {
    let server = Server::start();
    let mut scene = Scene::on_postgres(&server);
    let mut first = scene.live(true, &[]);
    first.until_ready();
    let mut second = scene.again(&[]);
    second.until_ready();
    for _ in 0..rounds(3) {
        first.wait_for("runs to be under way", |_| scene.ledger().is_busy());
        let last = scene.ledger().last();
        server.crash();
        first.wait_for("the instants that were owed", |_| scene.ledger().has_caught_up_with(&last));
    }
    for node in [first, second] {
        assert_eq!(node.stop().0.code(), Some(0));
    }
    scene.drain();
    scene.close();
}
