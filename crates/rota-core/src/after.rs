//! Jobs that start after others: which ends count, when a job is due, and which
//! definitions would start each other for ever.
//!
//! The end of a run is written down for each job that waits for such an end, in
//! the transaction of the end itself; whoever turns these into runs asks
//! [`decide`]. What it holds back stays written down, so a job that waits for
//! several others needs no state besides the ends themselves.
//!
//! Jobs are known by name here: one that is deleted and made again is the same
//! to those that wait for it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{JobId, RunId},
    job::{After, AfterEnd, Match, after_cycle, flow},
    problem::Problem,
    run::Verdict,
};

/// The end of a run that a job may have waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// The job that waits.
    pub downstream: JobId,
    /// The name of the job whose run has ended.
    pub upstream: String,
    pub run: RunId,
    pub verdict: Verdict,
    pub at: Timestamp,
    /// It was looked at before, and others are still to come.
    pub held: bool,
}

/// What becomes of the ends that a job has waited for. Each of them is in
/// exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// For each run to be made: the ends that call for it.
    pub runs: Vec<Vec<JobEnd>>,
    /// To be kept until the others have come.
    pub held: Vec<JobEnd>,
    /// A later end of the same job stands in for these.
    pub superseded: Vec<JobEnd>,
    /// The job does not wait for these any more.
    pub unwanted: Vec<JobEnd>,
}

/// Decides what a job that starts `after` others owes, given all ends that are
/// written down for it, in the order they came.
pub fn decide(after: Option<&After>, ends: &[JobEnd]) -> Due {
    let mut due = Due::default();
    let counts = |end: &&JobEnd| after.is_some_and(|after| after.waits_for(&end.upstream, end.verdict));
    let (wanted, unwanted): (Vec<&JobEnd>, Vec<&JobEnd>) = ends.iter().partition(counts);
    due.unwanted = unwanted.into_iter().cloned().collect();
    let Some(after) = after else { return due };
    match after.matching.unwrap_or(Match::All) {
        Match::Any => due.runs = wanted.into_iter().map(|end| vec![end.clone()]).collect(),
        Match::All => {
            let mut latest: BTreeMap<&str, &JobEnd> = BTreeMap::new();
            for end in wanted {
                due.superseded.extend(latest.insert(&end.upstream, end).cloned());
            }
            let names: BTreeSet<&str> = after.jobs.iter().map(String::as_str).collect();
            let ends = latest.values().map(|end| (*end).clone()).collect();
            if latest.len() == names.len() { due.runs.push(ends) } else { due.held = ends }
        }
    }
    due
}

impl After {
    /// Whether the end of a run of this job, with this verdict, counts.
    pub fn waits_for(&self, upstream: &str, verdict: Verdict) -> bool {
        self.jobs.iter().any(|name| name == upstream) && self.on.unwrap_or(AfterEnd::Succeeded).counts(verdict)
    }
}

/// Why an `after` cannot be saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterRefusal {
    /// There is no job of this name.
    NoSuchJob(String),
    /// Each of these starts after the next, and the last after the first.
    Cycle(Vec<String>),
}

impl AfterRefusal {
    /// As a problem of the document that was to be saved.
    pub fn problem(&self, after: &[String]) -> Problem {
        match self {
            Self::NoSuchJob(name) => {
                let place = after.iter().position(|one| one == name).unwrap_or_default();
                let path = format!("triggers.after.jobs[{place}]");
                Problem::new(path, "unknown_job", format!("there is no job `{name}`"))
            }
            Self::Cycle(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let told = format!("jobs start each other: {}", flow::written(&names));
                Problem::new("triggers.after.jobs", "cycle", told)
            }
        }
    }
}

/// Which of the jobs that a tenant saves together cannot be saved, for what they
/// start after. `stored` are the edges of its other jobs, each a job and one that
/// it starts after; `known` are the names of stored jobs that are spoken of.
pub fn refusals(
    stored: &[(String, String)],
    known: &BTreeSet<String>,
    saved: &[(&str, &[String])],
) -> Vec<Option<AfterRefusal>> {
    let names: HashSet<&str> = known.iter().map(String::as_str).chain(saved.iter().map(|(name, _)| *name)).collect();
    let missing = |after: &[String]| after.iter().find(|name| !names.contains(name.as_str())).cloned();
    let mut refused: Vec<Option<AfterRefusal>> =
        saved.iter().map(|(_, after)| missing(after).map(AfterRefusal::NoSuchJob)).collect();
    let replaced: HashSet<&str> = saved.iter().map(|(name, _)| *name).collect();
    loop {
        let kept = stored.iter().filter(|(job, _)| !replaced.contains(job.as_str()));
        let kept = kept.map(|(job, after)| (job.as_str(), after.as_str()));
        let new = saved.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let new = new.flat_map(|((name, after), _)| after.iter().map(|one| (*name, one.as_str())));
        let Some(cycle) = after_cycle(kept.chain(new)) else { return refused };
        let mut found = false;
        for ((name, _), refused) in saved.iter().zip(&mut refused) {
            let Some(place) = cycle.iter().position(|one| one == name).filter(|_| refused.is_none()) else { continue };
            // Told from the job that is refused on.
            let way = cycle[place..].iter().chain(&cycle[..place]);
            *refused = Some(AfterRefusal::Cycle(way.map(|name| (*name).to_owned()).collect()));
            found = true;
        }
        if !found {
            // It was stored before: nobody who saves now is to blame.
            return refused;
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn end(upstream: &str, n: u128, verdict: Verdict) -> JobEnd {
        let at = Timestamp::from_second(1_767_607_200 + n as i64).unwrap();
        JobEnd {
            downstream: JobId(1),
            upstream: upstream.into(),
            run: RunId(Uuid::from_u128(n)),
            verdict,
            at,
            held: false,
        }
    }

    fn after(jobs: &[&str], matching: Match, on: AfterEnd) -> After {
        let jobs = jobs.iter().map(|name| (*name).to_owned()).collect();
        After { jobs, matching: Some(matching), on: Some(on) }
    }

    fn ids(ends: &[JobEnd]) -> Vec<u128> {
        ends.iter().map(|end| end.run.0.as_u128()).collect()
    }

    #[test]
    fn any_makes_a_run_of_each_end() {
        let any = after(&["a", "b"], Match::Any, AfterEnd::Succeeded);
        let ends = [end("a", 1, Verdict::Succeeded), end("a", 2, Verdict::Succeeded), end("b", 3, Verdict::Succeeded)];
        let due = decide(Some(&any), &ends);
        assert_eq!(due.runs.iter().map(|ends| ids(ends)).collect::<Vec<_>>(), [vec![1], vec![2], vec![3]]);
        assert!(due.held.is_empty() && due.superseded.is_empty() && due.unwanted.is_empty());
    }

    /// One run for each full set; what came twice meanwhile counts once.
    #[test]
    fn all_waits_for_each_of_them() {
        let all = after(&["a", "b"], Match::All, AfterEnd::Succeeded);
        let first = [end("a", 1, Verdict::Succeeded), end("a", 2, Verdict::Succeeded)];
        let due = decide(Some(&all), &first);
        assert_eq!((due.runs.len(), ids(&due.held), ids(&due.superseded)), (0, vec![2], vec![1]));
        let then = [due.held, vec![end("b", 3, Verdict::Succeeded)]].concat();
        let due = decide(Some(&all), &then);
        assert_eq!(due.runs.iter().map(|ends| ids(ends)).collect::<Vec<_>>(), [vec![2, 3]]);
        assert!(due.held.is_empty());
    }

    #[test]
    fn only_the_ends_that_are_asked_for_count() {
        for on in AfterEnd::ALL {
            let any = after(&["a"], Match::Any, on);
            for verdict in Verdict::ALL {
                let due = decide(Some(&any), &[end("a", 1, verdict)]);
                assert_eq!(due.runs.len(), usize::from(on.counts(verdict)), "{on} {verdict}");
                assert_eq!(due.runs.len() + due.unwanted.len(), 1, "each end is accounted for");
            }
        }
        let edited = after(&["b"], Match::Any, AfterEnd::Ended);
        assert_eq!(ids(&decide(Some(&edited), &[end("a", 1, Verdict::Succeeded)]).unwanted), [1]);
        assert_eq!(ids(&decide(None, &[end("a", 1, Verdict::Succeeded)]).unwanted), [1]);
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn jobs_that_would_start_each_other_are_refused_with_the_way_round() {
        let stored = [("b".to_owned(), "a".to_owned())];
        let known = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let cycle = |names: &[&str]| Some(AfterRefusal::Cycle(texts(names)));
        let saved = texts(&["b"]);
        assert_eq!(refusals(&stored, &known, &[("a", &saved)]), [cycle(&["a", "b"])], "against what is stored");
        let (one, two, free) = (texts(&["y"]), texts(&["x"]), texts(&["a"]));
        let batch: [(&str, &[String]); 3] = [("x", &one), ("free", &free), ("y", &two)];
        assert_eq!(refusals(&stored, &known, &batch), [cycle(&["x", "y"]), None, cycle(&["y", "x"])], "in one batch");
        let pairs: Vec<(&str, Vec<String>)> =
            [("p", "q"), ("q", "p"), ("x", "y"), ("y", "x")].map(|(name, after)| (name, texts(&[after]))).into();
        let pairs: Vec<(&str, &[String])> = pairs.iter().map(|(name, after)| (*name, &after[..])).collect();
        assert!(refusals(&[], &BTreeSet::new(), &pairs).iter().all(Option::is_some), "each of two cycles");
        let old = [("b".to_owned(), "a".to_owned()), ("a".to_owned(), "b".to_owned())];
        assert_eq!(refusals(&old, &known, &[("free", &free)]), [None], "nobody is to blame for a stored one");
        let replaced: [(&str, &[String]); 2] = [("a", &saved), ("b", &[])];
        assert_eq!(refusals(&stored, &known, &replaced), [None, None], "an edge that goes with the same save");
    }

    #[test]
    fn a_job_that_is_not_there_is_named_with_its_place() {
        let after = texts(&["a", "gone"]);
        let refused = refusals(&[], &BTreeSet::from(["a".to_owned()]), &[("b", &after)]);
        let problem = refused[0].as_ref().unwrap().problem(&after);
        assert_eq!((problem.path.as_str(), problem.code), ("triggers.after.jobs[1]", "unknown_job"));
        let mutual = refusals(&[], &BTreeSet::new(), &[("b", &texts(&["c"])), ("c", &[])]);
        assert_eq!(mutual, [None, None], "one that is saved with it is there");
    }
}
