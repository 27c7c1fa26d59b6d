//! Simulation: many nodes of the real stages on one clock and one real store,
//! and everything that can go wrong between them, out of one seed.
//!
//! A seed that fails prints itself and the command that tells its story again.

mod books;
mod clients;
mod ledger;
mod planted;
mod weather;
mod witness;
mod world;

use self::{
    planted::Bug,
    world::{FAULTS_MIN, tell},
};

/// Seeds in all, and of the long sweep.
const SEEDS: u64 = 200;
const SEEDS_LONG: u64 = 10_000;
/// Tests that share them, so that they use every core.
const SHARDS: u64 = 4;
/// A story in which nothing is done proves nothing.
const RUNS_MIN: usize = 20;
/// So much of what happened last is printed with a failure, unless
/// `ROTA_SIM_TRACE` asks for more.
const TRACE_LINES: usize = 120;

fn seeds(shard: u64) -> Vec<u64> {
    let asked: Option<u64> = std::env::var("ROTA_SIM_SEED").ok().map(|seed| seed.parse().unwrap());
    if let Some(seed) = asked {
        return if shard == 0 { vec![seed] } else { Vec::new() };
    }
    let count = if std::env::var("ROTA_LONG").is_ok() { SEEDS_LONG } else { SEEDS };
    (0..count).filter(|seed| seed % SHARDS == shard).collect()
}

fn hold(shard: u64) {
    let lines = std::env::var("ROTA_SIM_TRACE").map_or(TRACE_LINES, |lines| lines.parse().unwrap());
    for seed in seeds(shard) {
        match tell(seed, None, lines) {
            Ok(told) => {
                assert!(told.faults >= FAULTS_MIN, "seed {seed} met only {} faults", told.faults);
                assert!(told.runs >= RUNS_MIN, "seed {seed} made only {} runs", told.runs);
            }
            Err(wrong) => panic!(
                "seed {seed}: {}\n\n{}\n\nto see it again: ROTA_SIM_SEED={seed} cargo nextest run -p rota-engine simulation",
                wrong.what,
                wrong.trace.join("\n")
            ),
        }
    }
}

#[test]
fn every_promise_holds_for_the_first_quarter_of_seeds() {
    hold(0);
}

#[test]
fn every_promise_holds_for_the_second_quarter_of_seeds() {
    hold(1);
}

#[test]
fn every_promise_holds_for_the_third_quarter_of_seeds() {
    hold(2);
}

#[test]
fn every_promise_holds_for_the_last_quarter_of_seeds() {
    hold(3);
}

/// A failure that cannot be repeated cannot be understood.
#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in [3, 71] {
        let [first, again] = [(); 2].map(|()| match tell(seed, None, usize::MAX / 4) {
            Ok(told) => told.trace,
            Err(wrong) => wrong.trace,
        });
        let differs = first.iter().zip(&again).position(|(one, two)| one != two);
        let at = differs.unwrap_or(first.len().min(again.len()));
        let around = |story: &[String]| story[at.saturating_sub(3)..story.len().min(at + 3)].join("\n");
        assert!(first == again, "seed {seed} differs at line {at}:\n{}\n\nand\n{}", around(&first), around(&again));
        assert!(first.len() > 500, "{}", first.len());
    }
}

/// A simulator that finds nothing may be blind: it must find what was put there.
#[test]
fn every_planted_bug_is_found_within_200_seeds() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = (0..SEEDS).find_map(|seed| tell(seed, Some(bug), 0).err().map(|wrong| (seed, wrong.what)));
        match found {
            Some((seed, what)) => println!("{bug:?}: seed {seed}: {what}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
