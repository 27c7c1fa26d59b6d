//! The sweep: a node dies around every write that it makes, and the next one
//! goes on as if nothing had been.
//!
//! What to die at is listed by the stores themselves: see
//! [`rota_store::failpoint`]. A new write is swept without a word here, and a
//! point that no node gets to fails the test.

use rota_store::failpoint::{Moment, Origin, Point, WRITES};

use super::{scene::Scene, server::Server};

fn points() -> Vec<(Point, Moment)> {
    let of_nodes = WRITES.iter().filter(|point| !matches!(point.origin, Origin::Caller | Origin::Elsewhere));
    of_nodes.flat_map(|point| Moment::ALL.map(|moment| (*point, moment))).collect()
}

/// Deals the points to chains of lives that are led at the same time, each on a
/// store of its own: most of a life is waiting.
fn sweep(chains: usize, scene: impl Fn() -> Scene + Sync) {
    std::thread::scope(|scope| {
        for chain in 0..chains {
            let scene = &scene;
            scope.spawn(move || {
                let mut scene = scene();
                for (point, moment) in points().into_iter().skip(chain).step_by(chains) {
                    scene.die_at(point, moment);
                    scene.recover();
                }
                scene.drain();
                scene.close();
            });
        }
    });
}

#[test]
fn a_node_may_die_around_each_of_its_writes_on_sqlite() {
    sweep(6, Scene::on_sqlite);
}

#[test]
fn a_node_may_die_around_each_of_its_writes_on_postgres() {
    let server = Server::start();
    sweep(4, || Scene::on_postgres(&server));
}
