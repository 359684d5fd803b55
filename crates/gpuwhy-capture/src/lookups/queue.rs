// SPDX-License-Identifier: Apache-2.0
//! Which question a reader gets next, and how long it may take. A process chooses how long it takes to read, and a user can
//! start many: one user's processes must not keep questions about those of others waiting.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Places that questions about one user's processes may have.
const OF_ONE_USER: usize = super::LATER - 1;
/// How long a reader may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// The same for a process of a user one of whose processes was silent for longer. One that is slower gets a second try with
/// the longer limit, after all first tries.
const SHORT_SILENCE: Duration = Duration::from_millis(500);

/// Whose process a question is about, and how long its reader may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// `None`: not about a process, or about one that has ended.
    uid: Option<u32>,
    pub(super) silence: Duration,
    is_second: bool,
}

impl Terms {
    /// Of a small question, which is waited for.
    pub(super) const AT_ONCE: Self = Self { uid: None, silence: SILENCE, is_second: false };
}

/// Questions of kind `T` that wait for a reader.
#[derive(Debug)]
pub(super) struct Queue<T> {
    first: VecDeque<(T, Option<u32>)>,
    second: VecDeque<(T, Option<u32>)>,
    /// Users one of whose processes could not be read in time.
    slow: HashSet<u32>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { first: VecDeque::new(), second: VecDeque::new(), slow: HashSet::new() }
    }

    pub(super) fn push(&mut self, uid: Option<u32>, question: T) {
        self.first.push_back((question, uid));
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    pub(super) fn questions(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.second).map(|(question, _)| question)
    }

    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.first.drain(..).chain(self.second.drain(..)).map(|(question, _)| question).collect()
    }

    /// The next question for a free reader, while others are at work on questions with these terms.
    pub(super) fn next(&mut self, at_work: &[Terms]) -> Option<(T, Terms)> {
        let is_slow = |uid: Option<u32>| uid.is_some_and(|uid| self.slow.contains(&uid));
        let of = |uid: Option<u32>| at_work.iter().filter(|terms| terms.uid == uid).count();
        let may = |uid: Option<u32>| uid.is_none() || of(uid) < OF_ONE_USER;
        let fast = self.first.iter().position(|(_, uid)| may(*uid) && !is_slow(*uid));
        let first = fast.or_else(|| self.first.iter().position(|(_, uid)| may(*uid)));
        if let Some((question, uid)) = first.and_then(|at| self.first.remove(at)) {
            let silence = if uid.is_some_and(|uid| self.slow.contains(&uid)) { SHORT_SILENCE } else { SILENCE };
            return Some((question, Terms { uid, silence, is_second: false }));
        }
        if at_work.iter().any(|terms| terms.is_second) {
            return None;
        }
        let second = self.second.iter().position(|(_, uid)| may(*uid))?;
        let (question, uid) = self.second.remove(second)?;
        Some((question, Terms { uid, silence: SILENCE, is_second: true }))
    }

    /// A reader was silent for too long. Returns the question if it is to be given up.
    pub(super) fn late(&mut self, question: T, terms: Terms) -> Option<T> {
        self.slow.extend(terms.uid);
        if terms.silence < SILENCE {
            self.second.push_back((question, terms.uid));
            return None;
        }
        Some(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1;

    /// A question about a process that is silent for so long before it answers, ms.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Silent(&'static str, u64);

    /// When each question was answered, or given up (`None`), with readers that take no time of their own. `arriving` has
    /// the time, the user and the question, in order.
    fn play(arriving: &[(u64, u32, Silent)]) -> Vec<(&'static str, Option<u64>)> {
        let (mut queue, mut now, mut next) = (Queue::new(), 0, 0);
        let mut readers: Vec<(u64, Silent, Terms)> = Vec::new();
        let mut ends = Vec::new();
        while ends.len() < arriving.len() {
            while arriving.get(next).is_some_and(|(at, ..)| *at <= now) {
                queue.push(Some(arriving[next].1), arriving[next].2);
                next += 1;
            }
            while readers.len() < super::super::LATER {
                let at_work: Vec<Terms> = readers.iter().map(|(_, _, terms)| *terms).collect();
                let Some((question, terms)) = queue.next(&at_work) else { break };
                readers.push((now, question, terms));
            }
            now += MS;
            for (since, question, terms) in std::mem::take(&mut readers) {
                let silence = terms.silence.as_millis() as u64;
                match now - since {
                    passed if passed >= question.1 => ends.push((question.0, Some(now))),
                    passed if passed >= silence => ends.extend(queue.late(question, terms).map(|one| (one.0, None))),
                    _ => readers.push((since, question, terms)),
                }
            }
            assert!(now < 1_000_000, "never ends: {queue:?}");
        }
        ends
    }

    const STALLS: Silent = Silent("stalls", u64::MAX);
    const STALLED: usize = 33;

    fn ended(ends: &[(&str, Option<u64>)], name: &str) -> Option<u64> {
        ends.iter().find(|(one, _)| *one == name).and_then(|(_, at)| *at)
    }

    #[test]
    fn one_users_stalling_processes_do_not_delay_another_users() {
        let stalling = std::iter::repeat_n((0, 1000, STALLS), STALLED);
        let others =
            [(0, 2000, Silent("there", 20)), (30, 2000, Silent("later", 20)), (9_000, 3000, Silent("last", 20))];
        let ends = play(&stalling.chain(others).collect::<Vec<_>>());
        assert!(ended(&ends, "there").unwrap() <= 50, "{ends:?}");
        assert!(ended(&ends, "later").unwrap() <= 100, "{ends:?}");
        assert!(ended(&ends, "last").unwrap() <= 9_050, "{ends:?}");
        assert_eq!(ends.iter().filter(|(_, at)| at.is_none()).count(), STALLED, "all of the others are given up");
    }

    #[test]
    fn the_same_users_other_processes_are_read_soon_and_a_slow_one_at_last() {
        let stalling = std::iter::repeat_n((0, 1000, STALLS), STALLED);
        let own = [(0, 1000, Silent("job", 20)), (0, 1000, Silent("slow", 2_000))];
        let ends = play(&stalling.chain(own).collect::<Vec<_>>());
        // Two of them for five seconds, the others for half a second each, two at a time.
        assert!(ended(&ends, "job").unwrap() <= 14_000, "{ends:?}");
        assert!(ended(&ends, "slow").is_some(), "{ends:?}");
    }

    #[test]
    fn without_stalling_processes_the_order_is_kept() {
        let ends = play(&[(0, 7, Silent("a", 10)), (0, 7, Silent("b", 10)), (0, 7, Silent("c", 10))]);
        assert_eq!(ends, [("a", Some(10)), ("b", Some(10)), ("c", Some(20))]);
    }
}
