// SPDX-License-Identifier: Apache-2.0
//! What a recording consists of, and what becomes of it when this kernel refuses a program: the part that needs it is left
//! out, and everything else goes on.

/// Something gpuwhy can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Python lines, read by the programs on calls, switches and samples.
    Stacks,
    /// Asking the kernel whose code made a call.
    Callers,
    /// Running, ready, blocked.
    Sched,
    /// Whose doing an interrupt's wake-up is.
    Interrupts,
    /// Reclaim, page allocations, the lock of the address space.
    Memory,
    MajorFaults,
    Io,
    CpuSamples,
    OomKills,
    /// Threads that exist already, and their sums: nothing of the host's side works without.
    Threads,
}

/// The programs that a part needs, besides the probes, and what is missing without it.
const PARTS: [(Part, &[&str], &str); 10] = [
    (Part::Stacks, &[], "Python lines are not recorded"),
    (Part::Callers, &[], "who made a call is looked up in /proc, which misses processes that end at once"),
    (
        Part::Sched,
        &["on_switch", "on_waking", "on_wakeup", "on_wakeup_new", "on_migrate"],
        "what threads wait for, and who has the CPU instead of them, is not recorded",
    ),
    (
        Part::Interrupts,
        &["on_softirq", "on_softirq_end", "on_irq", "on_irq_end", "on_timer", "on_timer_end"],
        "a thread that an interrupt woke seems to be woken by whatever ran there",
    ),
    (
        Part::Memory,
        &[
            "on_contention",
            "on_contention_end",
            "on_reclaim",
            "on_reclaim_end",
            "on_cgroup_reclaim",
            "on_cgroup_reclaim_end",
            "on_compaction",
            "on_compaction_end",
            "on_pages",
        ],
        "memory reclaim, compaction and waits for the address space's lock are not recorded",
    ),
    (Part::MajorFaults, &["on_major_fault"], "page faults that need the disk are not recorded"),
    (
        Part::Io,
        &["on_block_start", "on_block_issue", "on_block_end", "on_retransmit"],
        "disk requests and TCP retransmits are not recorded",
    ),
    (Part::CpuSamples, &["on_sample"], "running threads are not sampled"),
    (Part::OomKills, &["on_oom_kill"], "kills for lack of host memory are not recorded"),
    (Part::Threads, &["adopt_threads", "report_threads"], "nothing but CUDA calls and PyTorch's allocator is recorded"),
];

/// Programs that read Python stacks besides the probes.
const READ_STACKS: [&str; 2] = ["on_switch", "on_sample"];
/// What a recording cannot be without.
const INDISPENSABLE: [&str; 4] = ["on_fork", "on_exec", "on_exit", "still_open"];

/// What the user reads where a part is missing.
pub(crate) fn without(part: Part) -> &'static str {
    PARTS.iter().find(|(candidate, ..)| *candidate == part).map_or("", |(.., words)| words)
}

/// The parts that were given up because the kernel refused a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GivenUp {
    parts: Vec<Part>,
    /// The program for which stacks were given up; that they are why it was refused is a guess until it loads.
    without_stacks: Option<String>,
    /// They were not why.
    stacks_are_fine: bool,
}

impl GivenUp {
    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Gives up what may have a program refused. False: nothing is left to try without.
    pub(crate) fn give_up_for(&mut self, program: &str) -> bool {
        if INDISPENSABLE.contains(&program) {
            return false;
        }
        let part = PARTS.iter().find(|(_, programs, _)| programs.contains(&program)).map(|(part, ..)| *part);
        if (part.is_none() || READ_STACKS.contains(&program)) && !self.stacks_are_fine {
            if self.without_stacks.as_deref() != Some(program) {
                self.without_stacks = Some(program.to_owned());
                return self.add(Part::Stacks);
            }
            self.parts.retain(|part| *part != Part::Stacks);
            self.stacks_are_fine = true;
        }
        self.add(part.unwrap_or(Part::Callers))
    }

    fn add(&mut self, part: Part) -> bool {
        let is_new = !self.has(part);
        if is_new {
            self.parts.push(part);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads from a kernel that refuses these programs, unless it is loaded without the part.
    fn load(refused: &[(&str, Part)]) -> Option<Vec<Part>> {
        let mut given_up = GivenUp::default();
        for _ in 0..20 {
            match refused.iter().find(|(_, part)| !given_up.has(*part)) {
                None => return Some(given_up.parts),
                Some((program, _)) if !given_up.give_up_for(program) => return None,
                Some(_) => {}
            }
        }
        panic!("{refused:?} is tried for ever");
    }

    #[test]
    fn a_refused_program_costs_its_part_only() {
        for (part, programs, words) in PARTS {
            assert!(!words.is_empty() && without(part) == words);
            for program in programs {
                assert_eq!(load(&[(program, part)]), Some(vec![part]), "{program}");
            }
        }
        assert_eq!(
            load(&[("on_pages", Part::Memory), ("on_retransmit", Part::Io)]),
            Some(vec![Part::Memory, Part::Io])
        );
    }

    #[test]
    fn stacks_are_given_up_first_where_they_are_read_and_kept_where_they_were_not_why() {
        assert_eq!(load(&[("plain_torch", Part::Stacks)]), Some(vec![Part::Stacks]));
        assert_eq!(load(&[("on_switch", Part::Stacks)]), Some(vec![Part::Stacks]));
        assert_eq!(load(&[("plain_enter", Part::Callers)]), Some(vec![Part::Callers]));
        assert_eq!(load(&[("on_sample", Part::CpuSamples)]), Some(vec![Part::CpuSamples]));
    }

    #[test]
    fn what_nothing_works_without_is_an_error() {
        for program in INDISPENSABLE {
            let mut given_up = GivenUp::default();
            assert!(!given_up.give_up_for(program) && given_up.parts().is_empty());
        }
        let mut given_up = GivenUp::default();
        let tries = (0..10).take_while(|_| given_up.give_up_for("plain_leave")).count();
        assert_eq!(tries, 2, "without stacks, then without asking for callers");
    }
}
