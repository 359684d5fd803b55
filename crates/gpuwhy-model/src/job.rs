// SPDX-License-Identifier: Apache-2.0
//! Jobs: which processes of a run belong together and share one answer.

use std::collections::{BTreeMap, BTreeSet};

/// Programs from which people start others: a common parent among these does not make processes one job.
const SESSIONS: [&str; 13] =
    ["bash", "sh", "dash", "zsh", "fish", "ksh", "login", "sshd", "init", "systemd", "tmux", "screen", "SCREEN"];

/// A process of the run, with what decides its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: &'a str,
    /// Its parent, where known.
    pub parent: Option<u32>,
    /// When it started, where known.
    pub started: Option<i64>,
}

/// A job: a process tree, or the ranks of one launcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// Its processes.
    pub pids: BTreeSet<u32>,
}

/// The jobs of a run. Each process is in exactly one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Jobs {
    list: Vec<Job>,
    place: BTreeMap<u32, usize>,
}

impl Jobs {
    /// All processes as one job: the tree of a command that was traced from its start.
    pub fn one(pids: impl IntoIterator<Item = u32>) -> Self {
        let job = Job { pids: pids.into_iter().collect() };
        Self { place: job.pids.iter().map(|pid| (*pid, 0)).collect(), list: vec![job] }
    }

    /// Jobs of processes that were not started by gpuwhy: trees whose root is the topmost recorded process. Each set in
    /// `ranks` is one job whatever its trees are.
    pub fn of_trees(members: &[Member<'_>], ranks: &[Vec<u32>]) -> Self {
        let known: BTreeMap<u32, &Member<'_>> = members.iter().map(|member| (member.pid, member)).collect();
        let mut above: BTreeMap<u32, u32> = known.keys().map(|pid| (*pid, *pid)).collect();
        for member in members {
            let parent = member.parent.and_then(|parent| known.get(&parent));
            if let Some(parent) = parent.filter(|parent| is_parent(parent, member)) {
                join(&mut above, member.pid, parent.pid);
            }
        }
        for together in ranks {
            let mut pids = together.iter().filter(|pid| known.contains_key(pid));
            if let Some(first) = pids.next() {
                pids.for_each(|pid| join(&mut above, *pid, *first));
            }
        }
        let mut jobs = Self::default();
        let mut by_root: BTreeMap<u32, usize> = BTreeMap::new();
        for pid in known.keys().copied() {
            let place = *by_root.entry(root(&above, pid)).or_insert_with(|| {
                jobs.list.push(Job::default());
                jobs.list.len() - 1
            });
            jobs.list[place].pids.insert(pid);
            jobs.place.insert(pid, place);
        }
        jobs
    }

    /// The job of a process.
    pub fn of(&self, pid: u32) -> Option<&Job> {
        self.list.get(*self.place.get(&pid)?)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Job> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the run has no processes.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Whether the recorded parent really created it: not a later process with the same pid, nor a session that starts anything.
fn is_parent(parent: &Member<'_>, child: &Member<'_>) -> bool {
    let older = parent.started.zip(child.started).is_none_or(|(parent, child)| parent <= child);
    // `-bash`, `bash:1`, `tmux: server`; a shell that runs a script has its name added.
    let first = parent.name.trim_start_matches('-').split(':').next().unwrap_or_default();
    older && !SESSIONS.contains(&first) && parent.pid != child.pid
}

fn root(above: &BTreeMap<u32, u32>, pid: u32) -> u32 {
    let mut at = pid;
    while let Some(next) = above.get(&at).copied().filter(|next| *next != at) {
        at = next;
    }
    at
}

/// Joins two trees. The root with the higher pid goes below the other, so that no cycle can arise.
fn join(above: &mut BTreeMap<u32, u32>, a: u32, b: u32) {
    let (a, b) = (root(above, a), root(above, b));
    above.insert(a.max(b), a.min(b));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32, name: &str, parent: u32) -> Member<'_> {
        Member { pid, name, parent: Some(parent), started: None }
    }

    fn grouped(members: &[Member<'_>], ranks: &[Vec<u32>]) -> Vec<Vec<u32>> {
        Jobs::of_trees(members, ranks).iter().map(|job| job.pids.iter().copied().collect()).collect()
    }

    #[test]
    fn a_job_is_a_tree_and_a_shell_makes_none() {
        let members = [
            member(10, "python3 a.py", 5),
            member(11, "pt_data_worker", 10),
            member(12, "pt_data_worker", 11),
            // Of the same shell, which was not recorded, and of one that was.
            member(20, "python3 b.py", 5),
            member(30, "-bash", 1),
            member(31, "python3 c.py", 30),
            member(32, "python3 d.py", 30),
        ];
        let jobs = grouped(&members, &[]);
        assert_eq!(jobs, [vec![10, 11, 12], vec![20], vec![30], vec![31], vec![32]]);
        let jobs = Jobs::of_trees(&members, &[]);
        assert_eq!(jobs.of(12), jobs.of(10));
        assert_eq!(jobs.of(99), None);
    }

    #[test]
    fn ranks_of_a_launcher_are_one_job() {
        let ranks = [
            member(40, "python3 torchrun", 5),
            member(41, "python3 train.py", 40),
            member(42, "python3 train.py", 40),
            member(43, "pt_data_worker", 42),
            member(50, "python3 other.py", 5),
        ];
        assert_eq!(grouped(&ranks, &[]), [vec![40, 41, 42, 43], vec![50]]);
        // On two machines: their communicator says it.
        let far = [member(41, "python3 train.py", 5), member(61, "python3 train.py", 6), member(70, "x", 6)];
        assert_eq!(grouped(&far, &[vec![61, 41, 99]]), [vec![41, 61], vec![70]]);
    }

    #[test]
    fn numbers_used_again_and_circles_do_no_harm() {
        let child = Member { started: Some(5), ..member(10, "python3", 20) };
        let later = Member { started: Some(9), ..member(20, "python3", 1) };
        assert_eq!(grouped(&[child, later], &[]), [vec![10], vec![20]], "a parent is older");
        assert_eq!(grouped(&[member(1, "a", 2), member(2, "b", 1), member(3, "c", 3)], &[]), [vec![1, 2], vec![3]]);
    }
}
