//! When an exchange is answered. Pure: what it knows at a moment goes in, and what it does
//! next comes out.

use jiff::Timestamp;
use rota_core::duration::Span;

/// What an exchange knows at one moment of its wait.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Facts {
    pub now: Timestamp,
    /// So long the worker waits for work.
    pub until: Timestamp,
    /// So long the store is waited for; then reports are said to be pending.
    pub settle_until: Timestamp,
    /// Every report of this exchange is answered for.
    pub reports_answered: bool,
    /// There is work for the worker, or something to stop or to let go of.
    pub has_news: bool,
    /// Work was looked for since the exchange began, or cannot be.
    pub looked: bool,
    /// The worker said something, or cannot wait: what it has to say next waits for the answer.
    pub in_haste: bool,
    /// A later exchange of the same worker waits in its place.
    pub superseded: bool,
    /// The worker was asked to drain.
    pub drain: bool,
    /// This node drains: another one has work.
    pub node_drains: bool,
    pub store_away: bool,
    /// The clock was set: whoever asks again is answered by the clock as it is then.
    pub stepped: bool,
    /// When the worker must say what it holds: the store has leases that it does not list.
    pub unlisted_until: Option<Timestamp>,
}

/// What an exchange does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Answer,
    /// Unless something changes before.
    WaitUntil(Timestamp),
}

/// Answers as soon as there is something to say, and never before the reports are answered
/// for, as far as the store can be waited for.
pub(super) fn next(facts: &Facts) -> Next {
    let Facts { now, until, settle_until, .. } = *facts;
    let store_waited_for = now >= settle_until;
    let reported = facts.reports_answered || facts.stepped || store_waited_for || facts.node_drains && facts.store_away;
    let must_list = facts.unlisted_until.is_some_and(|at| at <= now);
    let waited = facts.stepped || now >= until && (facts.looked || store_waited_for);
    let goes = facts.superseded || facts.drain || facts.node_drains;
    if reported && (facts.has_news || must_list || waited || goes || facts.in_haste && facts.looked) {
        return Next::Answer;
    }
    let wake_at = if reported && facts.looked { until } else { settle_until };
    let wake_at = facts.unlisted_until.map_or(wake_at, |at| wake_at.min(at));
    // Whoever looks in vain looks again a little later, and does not spin.
    Next::WaitUntil(wake_at.max(Span::millis(1).after(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_607_200 + second).unwrap()
    }

    /// A worker that waits for 20 seconds, one second ago, and nothing has happened.
    fn idle() -> Facts {
        Facts {
            now: at(1),
            until: at(20),
            settle_until: at(10),
            reports_answered: true,
            has_news: false,
            looked: true,
            in_haste: false,
            superseded: false,
            drain: false,
            node_drains: false,
            store_away: false,
            stepped: false,
            unlisted_until: None,
        }
    }

    #[test]
    fn an_exchange_is_answered_when_there_is_something_to_say_and_not_before() {
        let (idle, answer, wait) = (idle(), Next::Answer, |second| Next::WaitUntil(at(second)));
        let unsettled = Facts { reports_answered: false, ..idle };
        let unlooked = Facts { looked: false, ..idle };
        for (name, facts, expected) in [
            ("nothing has happened", idle, wait(20)),
            ("there is work", Facts { has_news: true, ..idle }, answer),
            ("it was asked to drain", Facts { drain: true, ..idle }, answer),
            ("another waits in its place", Facts { superseded: true, ..idle }, answer),
            ("the node drains", Facts { node_drains: true, ..idle }, answer),
            ("the clock was set", Facts { stepped: true, ..idle }, answer),
            ("it has waited", Facts { now: at(20), ..idle }, answer),
            ("it said something", Facts { in_haste: true, ..idle }, answer),
            ("the store is away", Facts { store_away: true, ..idle }, wait(20)),
            // Work was not looked for yet.
            ("nothing was looked for", unlooked, wait(10)),
            ("it said something, and nothing was looked for", Facts { in_haste: true, ..unlooked }, wait(10)),
            ("it cannot wait, and nothing was looked for", Facts { until: at(1), ..unlooked }, wait(10)),
            ("nothing is looked for at all", Facts { until: at(1), now: at(10), ..unlooked }, answer),
            // The store has not answered for its reports.
            ("reports are open", unsettled, wait(10)),
            ("reports are open, and there is work", Facts { has_news: true, ..unsettled }, wait(10)),
            ("reports are open, and it has waited", Facts { until: at(1), ..unsettled }, wait(10)),
            ("reports are open for too long", Facts { now: at(10), until: at(10), ..unsettled }, answer),
            ("reports are open for too long, and it waits", Facts { now: at(10), ..unsettled }, wait(20)),
            ("reports are open, and the node drains", Facts { node_drains: true, ..unsettled }, wait(10)),
            (
                "reports are open, and the node drains without a store",
                Facts { node_drains: true, store_away: true, ..unsettled },
                answer,
            ),
            ("reports are open, and the clock was set", Facts { stepped: true, ..unsettled }, answer),
            // The store has leases that it does not list.
            ("it does not list a lease", Facts { unlisted_until: Some(at(3)), ..idle }, wait(3)),
            ("it did not list a lease for long", Facts { unlisted_until: Some(at(1)), ..idle }, answer),
            ("that, and reports are open", Facts { unlisted_until: Some(at(3)), ..unsettled }, wait(3)),
        ] {
            assert_eq!(next(&facts), expected, "{name}");
        }
    }

    /// A moment that has passed must not make it spin.
    #[test]
    fn a_wait_is_never_empty() {
        let facts = Facts { reports_answered: false, unlisted_until: Some(at(0)), ..idle() };
        assert_eq!(next(&facts), Next::WaitUntil(Span::millis(1).after(at(1))));
    }
}
