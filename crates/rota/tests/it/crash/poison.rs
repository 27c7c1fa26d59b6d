//! A job that kills the process it is executed in, each time.

use rota_core::run::{Status, Verdict};

use super::{
    scene::{Keeper, Scene},
    server::Server,
};
use crate::node::Node;

/// One that no claim names, and then as many as make a dead letter.
const DEATHS_MAX: usize = 4;

fn documents(scene: &Scene) {
    let ledger = scene.place.text("ledger");
    // An `after_finish` schedule fires at once, and then not for an hour.
    let poison = "name: poison\nschedules: [{ name: poison, after_finish: 1h }]\nsteps: [{ id: s, command: { shell: 'kill -9 $PPID' } }]\n";
    let neighbour = format!(
        "name: neighbour\nschedules: [{{ name: neighbour, every: 1s, overlap: allow, catch_up: {{ mode: all }} }}]\nsteps: [{{ id: s, command: {{ shell: 'echo $ROTA_RUN >> {ledger}' }} }}]\n"
    );
    scene.place.write("jobs/all.yaml", &format!("{poison}---\n{neighbour}"));
}

/// Starts nodes until one outlives the job, and answers how many did not.
fn deaths(scene: &Scene) -> usize {
    let left = "SELECT count(*) FROM run r JOIN job j ON j.id = r.job WHERE j.name = 'poison'";
    for deaths in 0..=DEATHS_MAX {
        let mut node = scene.again(&[]);
        let gone = |node: &mut Node| deaths > 0 && is_serving(node) && scene.keeper.sql(left) == 0;
        if node.wait_unless_it_ends("the poison to be gone", gone) {
            // The neighbours' turn: what waited for the poison to be alone.
            let lines = crate::node::ledger(&scene.place.path("ledger")).len();
            node.wait_for("neighbours", |_| crate::node::ledger(&scene.place.path("ledger")).len() >= lines + 2);
            assert_eq!(node.stop().0.code(), Some(0));
            return deaths;
        }
    }
    panic!("it killed more than {DEATHS_MAX} processes");
}

fn is_serving(node: &Node) -> bool {
    node.log.iter().any(|line| line.contains("\"serving\""))
}

fn a_dead_letter_it_is(scene: &Scene) {
    documents(scene);
    let deaths = deaths(scene);
    assert!(deaths > 0, "it killed nobody");
    let books = scene.keeper.books();
    let (poison, neighbour) = (books.schedule("poison"), books.schedule("neighbour"));
    let mut neighbours = 0;
    for record in &books.runs {
        let status = record.run.state.status();
        if record.run.trigger.schedule == Some(poison) {
            assert_eq!(status, Status::Ended(Verdict::Dead), "{record:?}");
        } else if let Status::Ended(verdict) = status {
            assert_eq!((verdict, record.run.attempts_used), (Verdict::Succeeded, 0), "{record:?}");
            assert_eq!(record.run.trigger.schedule, Some(neighbour));
            neighbours += 1;
        }
    }
    assert!(neighbours > 0);
    scene.keeper.forget();
}

#[test]
fn a_job_that_kills_its_process_ends_as_a_dead_letter_on_sqlite() {
    a_dead_letter_it_is(&Scene::on_sqlite());
}

#[test]
fn a_job_that_kills_its_process_ends_as_a_dead_letter_on_postgres() {
    let server = Server::start();
    let scene = Scene::on_postgres(&server);
    assert!(matches!(scene.keeper, Keeper::Postgres { .. }));
    a_dead_letter_it_is(&scene);
}
