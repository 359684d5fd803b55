// SPDX-License-Identifier: Apache-2.0
//! Programs that had the CPU while a thread of the job was ready: their processes, for how long, and whether they belong
//! to the job.

use crate::scene::Scene;
use crate::story::ChainTotals;
use std::collections::BTreeMap;

/// Programs named in a sentence.
pub(crate) const NAMED: usize = 2;

/// A program that had the CPU: all processes of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// Its processes, the one with most time first.
    pub(crate) pids: Vec<u32>,
    pub(crate) ns: u64,
    /// Whether it belongs to the job.
    pub(crate) own: bool,
}

impl Program {
    /// `stress 77`, `cpu_hog (8 processes)`.
    pub(crate) fn words(&self) -> String {
        match self.pids.as_slice() {
            [pid] => format!("{} {pid}", self.name),
            pids => format!("{} ({} processes)", self.name, pids.len()),
        }
    }

    /// Whether somebody can stop it or give it a lower priority: not the kernel's threads, and not gpuwhy itself.
    pub(crate) fn can_be_moved(&self) -> bool {
        // Older run files have no brackets.
        const KERNEL: [&str; 14] = [
            "kworker/",
            "ksoftirqd/",
            "migration/",
            "kcompactd",
            "kswapd",
            "kdamond",
            "khugepaged",
            "kthreadd",
            "rcu_",
            "rcuc/",
            "rcuop/",
            "jbd2/",
            "irq/",
            "cpuhp/",
        ];
        let name = self.name.as_str();
        !name.starts_with('[') && !name.starts_with("gpuwhy") && !KERNEL.iter().any(|known| name.starts_with(known))
    }

    /// The process with most time.
    pub(crate) fn first(&self) -> Option<u32> {
        self.pids.first().copied()
    }
}

/// `pt_data_worker:3` is one of `pt_data_worker`.
pub(crate) fn base(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((base, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Programs that had the CPU, most time first. Other programs come before the job's own if together they had it longer.
pub(crate) fn programs(part: &ChainTotals, scene: &Scene<'_>) -> Vec<Program> {
    let mut by_name: BTreeMap<(bool, String), BTreeMap<u32, u64>> = BTreeMap::new();
    // Threads rename themselves: use the process's name, or that of its thread with most time.
    let mut held: Vec<(u64, u32)> = part.holders.iter().map(|(holder, ns)| (*ns, *holder)).collect();
    held.sort_unstable_by_key(|(ns, holder)| (std::cmp::Reverse(*ns), *holder));
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for (ns, holder) in held {
        let Some(holder) = scene.timeline.holders.get(holder as usize) else { continue };
        let own = scene.facts.is_traced(holder.pid);
        let recorded = scene.facts.is_recorded(holder.pid);
        let name = || if recorded { scene.name(holder.pid) } else { holder.name.clone() };
        let name = names.entry(holder.pid).or_insert_with(name);
        *by_name.entry((own, base(name).to_owned())).or_default().entry(holder.pid).or_default() += ns;
    }
    let program = |((own, name), pids): ((bool, String), BTreeMap<u32, u64>)| {
        let ns = pids.values().sum();
        let mut ranked: Vec<(u32, u64)> = pids.into_iter().collect();
        ranked.sort_by_key(|(pid, ns)| (std::cmp::Reverse(*ns), *pid));
        let pids: Vec<u32> = ranked.into_iter().map(|(pid, _)| pid).collect();
        // A single process keeps its whole name.
        let name = match pids.as_slice() {
            [pid] => names.get(pid).cloned().unwrap_or(name),
            _ => name,
        };
        Program { name, pids, ns, own }
    };
    let mut programs: Vec<Program> = by_name.into_iter().map(program).collect();
    let of = |own: bool| programs.iter().filter(|program| program.own == own).map(|program| program.ns).sum::<u64>();
    let others_first = of(false) >= of(true);
    programs.sort_by_key(|program| (program.own == others_first, std::cmp::Reverse(program.ns), program.first()));
    programs
}

/// `sh 77, cc1 (3 processes) and 3 more`.
pub(crate) fn named(programs: &[Program]) -> String {
    let names: Vec<String> = programs.iter().take(NAMED).map(Program::words).collect();
    match programs.len() {
        0 => "an unknown program".to_owned(),
        more if more > NAMED => format!("{} and {} more", names.join(", "), more - NAMED),
        _ => names.join(" and "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_kernel_nor_gpuwhy_can_be_stopped() {
        let can = |name: &str| Program { name: name.into(), pids: vec![7], ns: 1, own: false }.can_be_moved();
        for name in ["[kworker/0:1]", "kworker/0:1-eve", "kdamond.0", "ksoftirqd/1", "gpuwhy", "gpuwhy-reader"] {
            assert!(!can(name), "{name}");
        }
        for name in ["sh", "cc1", "kubelet", "migrate.py"] {
            assert!(can(name), "{name}");
        }
    }

    #[test]
    fn numbered_processes_are_one_program() {
        assert_eq!(base("pt_data_worker:12"), "pt_data_worker");
        assert_eq!(base("lto cgu:x"), "lto cgu:x");
        assert_eq!(base("stress:"), "stress:");
    }
}
