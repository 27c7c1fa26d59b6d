//! When a run that may be the death of its process has it to itself.
//!
//! Nothing is started beside such a run, and it is not started beside others. But a
//! process has other work, and either side may take hours: so the wait for the others
//! has a bound, after which it starts all the same; so has the time for which nothing is
//! started beside it; and then others have their turn before the doors close again.

use jiff::Timestamp;

use crate::duration::Span;

/// So long others may go on once a suspect waits.
pub const WAIT: Span = Span::secs(5);
/// So long nothing is started beside a suspect: what kills its process does it soon.
pub const APART: Span = Span::secs(5);
/// So long others are started again after that.
pub const TURN: Span = Span::secs(5);

/// Whether anything is started in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doors {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To everything; not closed again before then.
    Open {
        until: Timestamp,
    },
    Closed {
        since: Timestamp,
    },
    /// A suspect is under way: by itself, or beside others that did not end.
    Apart {
        until: Timestamp,
        beside: bool,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Open { until: Timestamp::MIN }
    }
}

/// What may be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Anything,
    Nothing,
    Suspect,
}

impl Doors {
    /// What may be started: `waits` is whether a suspect does, `busy` whether anything
    /// is under way. Once the suspect's turn has come, it is [taken](Self::take).
    pub fn look(&mut self, waits: bool, busy: bool, now: Timestamp) -> Start {
        match self.state {
            State::Apart { .. } if !busy => self.state = State::default(),
            State::Apart { until, .. } if until <= now => self.state = State::Open { until: TURN.after(now) },
            State::Apart { .. } => return Start::Nothing,
            State::Closed { .. } if !waits => self.state = State::default(),
            State::Open { .. } | State::Closed { .. } => {}
        }
        if let State::Open { until } = self.state {
            if !waits || now < until {
                return Start::Anything;
            }
            self.state = State::Closed { since: now };
        }
        let State::Closed { since } = self.state else { return Start::Nothing };
        if !busy || WAIT.after(since) <= now { Start::Suspect } else { Start::Nothing }
    }

    /// A suspect is started.
    pub fn take(&mut self, busy: bool, now: Timestamp) {
        self.state = State::Apart { until: APART.after(now), beside: busy };
    }

    /// Whether the suspect whose turn it is starts although others are under way.
    pub fn lets_in_beside_others(&self) -> bool {
        matches!(self.state, State::Apart { beside: true, .. })
    }

    /// When there is something to look at, although nothing ended.
    pub fn next_at(&self, waits: bool) -> Option<Timestamp> {
        match self.state {
            State::Open { until } => waits.then_some(until),
            State::Closed { since } => Some(WAIT.after(since)),
            State::Apart { until, .. } => Some(until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(secs).unwrap()
    }

    #[test]
    fn a_suspect_has_the_process_to_itself() {
        let mut doors = Doors::default();
        assert_eq!(doors.look(false, true, at(0)), Start::Anything);
        assert_eq!(doors.look(true, true, at(1)), Start::Nothing, "others go on");
        assert_eq!(doors.look(true, false, at(2)), Start::Suspect);
        doors.take(false, at(2));
        assert_eq!(doors.look(true, true, at(3)), Start::Nothing, "and the next one waits");
        assert!(!doors.lets_in_beside_others());
        assert_eq!(doors.look(true, false, at(4)), Start::Suspect, "at once");
        doors.take(false, at(4));
        assert_eq!(doors.look(false, false, at(5)), Start::Anything);
    }

    /// Neither those before it nor it itself can hold up a process for ever.
    #[test]
    fn neither_side_waits_for_ever() {
        let mut doors = Doors::default();
        let mut started = Vec::new();
        for second in 0..40 {
            match doors.look(true, true, at(second)) {
                Start::Suspect => {
                    doors.take(true, at(second));
                    assert!(doors.lets_in_beside_others());
                    started.push((second, "suspect"));
                }
                Start::Anything => started.push((second, "anything")),
                Start::Nothing => assert!(doors.next_at(true).is_some_and(|next| next > at(second))),
            }
        }
        let suspects: Vec<i64> = started.iter().filter(|(_, what)| *what == "suspect").map(|(at, _)| *at).collect();
        assert_eq!(suspects, [5, 20, 35]);
        assert_eq!(started.len() - suspects.len(), 10, "five seconds of each fifteen: {started:?}");
    }

    #[test]
    fn one_that_is_gone_closes_nothing() {
        let mut doors = Doors::default();
        assert_eq!(doors.look(true, true, at(0)), Start::Nothing);
        assert_eq!(doors.look(false, true, at(1)), Start::Anything);
    }
}
