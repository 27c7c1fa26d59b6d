//! Flow: which steps wait for which, and whether anything waits for itself.
//!
//! A step waits for what its `needs` say. Where nothing is written it waits for
//! the step written before it, so that a plain list runs from top to bottom. A
//! step that another names in `on_failure: run` is outside that order: it waits
//! for the steps that name it. An `always` step waits for all written before it.
//!
//! Cycles are found without recursion, so that a long chain cannot exhaust the
//! stack.
//!
//! When a waiting step may start, and whether it is skipped, is decided where
//! runs are settled.

use std::collections::{BTreeMap, BTreeSet};

use super::step::{OnFailure, Step};

/// What each step waits for, in the order of the document.
pub fn needs(steps: &[Step]) -> Vec<Vec<&str>> {
    let rescuers = rescuers(steps);
    (0..steps.len()).map(|index| needs_of(steps, index, &rescuers)).collect()
}

/// Each step that runs only on the failure of others, with these others.
fn rescuers(steps: &[Step]) -> BTreeMap<&str, Vec<&str>> {
    let mut rescuers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for step in steps {
        if let Some(OnFailure::Run(rescuer)) = &step.on_failure {
            rescuers.entry(rescuer).or_default().push(&step.id);
        }
    }
    rescuers
}

fn needs_of<'a>(steps: &'a [Step], index: usize, rescuers: &BTreeMap<&'a str, Vec<&'a str>>) -> Vec<&'a str> {
    let step = &steps[index];
    let rescued = rescuers.get(step.id.as_str());
    let ordinary = |before: &&Step| !before.is_always() && !rescuers.contains_key(before.id.as_str());
    let mut needs: Vec<&str> = match &step.needs {
        Some(written) => written.iter().map(String::as_str).collect(),
        None if rescued.is_some() => Vec::new(),
        None if step.is_always() => steps[..index].iter().map(|before| before.id.as_str()).collect(),
        None => steps[..index].iter().rev().find(ordinary).map(|before| before.id.as_str()).into_iter().collect(),
    };
    for failing in rescued.into_iter().flatten() {
        if !needs.contains(failing) {
            needs.push(failing);
        }
    }
    needs
}

/// The names on a cycle of steps that wait for each other, if there is one.
pub fn step_cycle(steps: &[Step]) -> Option<Vec<&str>> {
    let ids = steps.iter().map(|step| step.id.as_str());
    let mut edges = BTreeMap::new();
    for (id, needs) in ids.zip(needs(steps)) {
        // Of two steps with one id the first counts; the second is refused elsewhere.
        edges.entry(id).or_insert(needs);
    }
    cycle(&edges)
}

/// The names on a cycle of jobs that start after each other, if there is one.
///
/// An edge is a job and one that it starts after. Each name on the cycle starts
/// after the next, and the last after the first.
pub fn after_cycle<'a>(edges: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Vec<&'a str>> {
    let mut waits: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (job, after) in edges {
        waits.entry(job).or_default().push(after);
    }
    cycle(&waits)
}

/// A cycle written for people: `a -> b -> a`.
pub fn written(cycle: &[&str]) -> String {
    let mut names = cycle.to_vec();
    names.extend(cycle.first());
    names.join(" -> ")
}

/// Walks depth first; a name met again while it is still on the way closes a cycle.
fn cycle<'a>(edges: &BTreeMap<&'a str, Vec<&'a str>>) -> Option<Vec<&'a str>> {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in edges.keys().copied() {
        let mut way = Way::default();
        way.enter(start);
        while let Some((name, next)) = way.last() {
            let Some(after) = edges.get(name).and_then(|all| all.get(next)).copied() else {
                done.insert(way.leave());
                continue;
            };
            if let Some(from) = way.position(after) {
                return Some(way.names[from..].to_vec());
            }
            if !done.contains(after) {
                way.enter(after);
            }
        }
    }
    None
}

/// The names between the start of a walk and where it stands.
#[derive(Default)]
struct Way<'a> {
    names: Vec<&'a str>,
    /// For each name, which of its edges comes next.
    next: Vec<usize>,
    places: BTreeMap<&'a str, usize>,
}

impl<'a> Way<'a> {
    fn enter(&mut self, name: &'a str) {
        self.places.insert(name, self.names.len());
        self.names.push(name);
        self.next.push(0);
    }

    /// The last name, and the edge of it to take; the next call takes the next.
    fn last(&mut self) -> Option<(&'a str, usize)> {
        let next = self.next.last_mut()?;
        *next += 1;
        self.names.last().map(|name| (*name, *next - 1))
    }

    fn leave(&mut self) -> &'a str {
        let name = self.names.pop().unwrap_or_default();
        self.next.pop();
        self.places.remove(name);
        name
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn steps(value: Value) -> Vec<Step> {
        let mut list: Vec<Value> = serde_json::from_value(value).unwrap();
        for step in &mut list {
            step["sleep"] = json!({ "for": "1s" });
        }
        serde_json::from_value(Value::Array(list)).unwrap()
    }

    #[test]
    fn plain_list_runs_from_top_to_bottom() {
        let list = steps(json!([{ "id": "a" }, { "id": "b" }, { "id": "c" }]));
        assert_eq!(needs(&list), [vec![], vec!["a"], vec!["b"]]);
    }

    #[test]
    fn written_needs_take_the_place_of_the_order() {
        let list = steps(json!([{ "id": "a" }, { "id": "b", "needs": [] }, { "id": "c", "needs": ["a", "b"] }]));
        assert_eq!(needs(&list), [vec![], vec![], vec!["a", "b"]]);
    }

    #[test]
    fn rescuers_and_clean_ups_stand_outside_the_order() {
        let list = steps(json!([
            { "id": "a", "on_failure": "run mend" }, { "id": "mend" }, { "id": "b", "on_failure": "run mend" },
            { "id": "tidy", "always": true }, { "id": "c" },
        ]));
        let expected = [vec![], vec!["a", "b"], vec!["a"], vec!["a", "mend", "b"], vec!["b"]];
        assert_eq!(needs(&list), expected);
        assert_eq!(step_cycle(&list), None);
    }

    #[test]
    fn steps_that_wait_for_each_other_are_named() {
        for (list, found) in [
            (json!([{ "id": "a", "needs": ["a"] }]), "a -> a"),
            (json!([{ "id": "a", "needs": ["b"] }, { "id": "b" }]), "a -> b -> a"),
            (json!([{ "id": "a", "on_failure": "run a" }]), "a -> a"),
            (json!([{ "id": "x" }, { "id": "a", "needs": ["c"] }, { "id": "b" }, { "id": "c" }]), "a -> c -> b -> a"),
        ] {
            let list = steps(list);
            assert_eq!(step_cycle(&list).map(|cycle| written(&cycle)).as_deref(), Some(found));
        }
    }

    #[test]
    fn jobs_that_start_after_each_other_are_named() {
        assert_eq!(after_cycle([]), None);
        assert_eq!(after_cycle([("a", "a")]), Some(vec!["a"]));
        assert_eq!(after_cycle([("a", "b"), ("b", "c"), ("a", "c"), ("d", "a")]), None);
        assert_eq!(after_cycle([("z", "a"), ("a", "b"), ("b", "c"), ("c", "a")]), Some(vec!["a", "b", "c"]));
    }

    /// A tenant may have very many jobs: neither the stack nor the time may give out.
    #[test]
    fn long_chains_and_dense_graphs_are_no_danger() {
        let names: Vec<String> = (0..20_000).map(|number| format!("{number:06}")).collect();
        let chain = names.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str()));
        assert_eq!(after_cycle(chain.clone()), None);
        let closed = after_cycle(chain.chain([(names[19_999].as_str(), names[0].as_str())]));
        assert_eq!(closed.map(|cycle| cycle.len()), Some(20_000));
        let dense = (0..500).flat_map(|a| (0..a).map(move |b| (a, b)));
        assert_eq!(after_cycle(dense.map(|(a, b)| (names[a].as_str(), names[b].as_str()))), None);
    }
}
