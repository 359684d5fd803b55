// SPDX-License-Identifier: Apache-2.0
//! The programs on the kernel's own tracepoints: which are wanted, which this kernel has, attaching them.

use crate::features::Features;
use crate::perf::{self, PerfEventAttr};
use crate::programs::parts::{GivenUp, Part, without};
use crate::programs::skeleton::{GpuwhyProgs, OpenGpuwhyProgs};
use libbpf_rs::{Link, OpenProgramMut, ProgramMut};
use std::os::fd::{AsRawFd, IntoRawFd};

/// Which parts of the host's side to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostOptions {
    /// What each thread does: running, ready, blocked, woken by whom, who had the CPU.
    pub sched: bool,
    /// Page faults, reclaim, page allocations, the lock of the address space.
    pub memory: bool,
    /// Disk requests and TCP retransmits.
    pub io: bool,
    /// Samples of running threads, every [`SAMPLE_NS`].
    pub cpu_samples: bool,
}

/// Time between two samples of a CPU, ns: 49 a second, so as not to march in step with anything.
pub const SAMPLE_NS: u64 = 1_000_000_000 / 49;

impl HostOptions {
    /// Everything.
    pub const ALL: Self = Self { sched: true, memory: true, io: true, cpu_samples: true };
    /// Nothing: CUDA calls only.
    pub const NONE: Self = Self { sched: false, memory: false, io: false, cpu_samples: false };

    /// Whether anything is wanted.
    pub fn any(self) -> bool {
        self.sched || self.memory || self.io || self.cpu_samples
    }
}

/// Every tracepoint program: its tracepoint, and whom it serves. `$of` is the skeleton's struct of programs, `$borrow`
/// how it is borrowed.
macro_rules! tracepoints {
    ($of:ident, $($borrow:tt)+) => {
        [
            ("sched_switch", Part::Sched, $($borrow)+ $of.on_switch),
            ("sched_waking", Part::Sched, $($borrow)+ $of.on_waking),
            ("sched_wakeup", Part::Sched, $($borrow)+ $of.on_wakeup),
            ("sched_wakeup_new", Part::Sched, $($borrow)+ $of.on_wakeup_new),
            ("sched_migrate_task", Part::Sched, $($borrow)+ $of.on_migrate),
            // Ends before starts: an interrupt of which only the start is seen would never end.
            ("softirq_exit", Part::Interrupts, $($borrow)+ $of.on_softirq_end),
            ("softirq_entry", Part::Interrupts, $($borrow)+ $of.on_softirq),
            ("irq_handler_exit", Part::Interrupts, $($borrow)+ $of.on_irq_end),
            ("irq_handler_entry", Part::Interrupts, $($borrow)+ $of.on_irq),
            ("hrtimer_expire_exit", Part::Interrupts, $($borrow)+ $of.on_timer_end),
            ("hrtimer_expire_entry", Part::Interrupts, $($borrow)+ $of.on_timer),
            ("block_io_start", Part::Io, $($borrow)+ $of.on_block_start),
            ("block_rq_issue", Part::Io, $($borrow)+ $of.on_block_issue),
            ("block_rq_complete", Part::Io, $($borrow)+ $of.on_block_end),
            ("tcp_retransmit_skb", Part::Io, $($borrow)+ $of.on_retransmit),
            ("contention_begin", Part::Memory, $($borrow)+ $of.on_contention),
            ("contention_end", Part::Memory, $($borrow)+ $of.on_contention_end),
            ("mm_vmscan_direct_reclaim_begin", Part::Memory, $($borrow)+ $of.on_reclaim),
            ("mm_vmscan_direct_reclaim_end", Part::Memory, $($borrow)+ $of.on_reclaim_end),
            ("mm_vmscan_memcg_reclaim_begin", Part::Memory, $($borrow)+ $of.on_cgroup_reclaim),
            ("mm_vmscan_memcg_reclaim_end", Part::Memory, $($borrow)+ $of.on_cgroup_reclaim_end),
            ("mm_compaction_begin", Part::Memory, $($borrow)+ $of.on_compaction),
            ("mm_compaction_end", Part::Memory, $($borrow)+ $of.on_compaction_end),
            ("mm_page_alloc", Part::Memory, $($borrow)+ $of.on_pages),
            ("mark_victim", Part::OomKills, $($borrow)+ $of.on_oom_kill),
        ]
    };
}

/// What is recorded of the host: what was requested, minus what this kernel refuses.
#[derive(Debug, Clone)]
pub(crate) struct HostParts {
    pub(crate) options: HostOptions,
    pub(crate) given_up: GivenUp,
}

impl HostParts {
    /// Whether a kind of event is recorded.
    pub(crate) fn has(&self, part: Part) -> bool {
        let options = self.options;
        let asked = match part {
            Part::Threads | Part::OomKills => options.any(),
            Part::Sched => options.sched,
            Part::Memory | Part::MajorFaults => options.memory,
            Part::Io => options.io,
            // Needed to know what is an interrupt's doing.
            Part::Interrupts => options.sched || options.memory,
            Part::CpuSamples => options.cpu_samples,
            Part::Stacks | Part::Callers => true,
        };
        let threads = matches!(part, Part::Stacks | Part::Callers) || !self.given_up.has(Part::Threads);
        asked && threads && !self.given_up.has(part)
    }

    fn is_wanted(&self, features: &Features, tracepoint: &str, part: Part) -> bool {
        // Where both exist, the later of the two would only say the same again.
        let superseded = tracepoint == "block_rq_issue" && features.has("block_io_start");
        self.has(part) && !superseded && features.has(tracepoint)
    }
}

/// Chooses what is loaded.
pub(crate) fn choose(progs: &mut OpenGpuwhyProgs<'_>, parts: &HostParts, features: &Features) {
    let programs: [(&str, Part, &mut OpenProgramMut<'_>); _] = tracepoints!(progs, &mut);
    for (tracepoint, part, program) in programs {
        program.set_autoload(parts.is_wanted(features, tracepoint, part));
    }
    progs.on_major_fault.set_autoload(parts.has(Part::MajorFaults));
    progs.on_sample.set_autoload(parts.has(Part::CpuSamples));
    progs.adopt_threads.set_autoload(parts.has(Part::Threads));
    progs.report_threads.set_autoload(parts.has(Part::Threads));
}

/// Attaches the loaded programs. Also returns warnings about what is unavailable.
pub(crate) fn attach(
    progs: &GpuwhyProgs<'_>,
    parts: &HostParts,
    features: &Features,
) -> libbpf_rs::Result<(Vec<Link>, Vec<String>)> {
    let mut links = Vec::new();
    let mut warnings = Vec::new();
    let programs: [(&str, Part, &ProgramMut<'_>); _] = tracepoints!(progs, &);
    for (tracepoint, part, program) in programs {
        if parts.is_wanted(features, tracepoint, part) {
            links.push(program.attach_trace()?);
        }
    }
    let mut on_event = |part, program: &ProgramMut<'_>, event, period| {
        if !parts.has(part) {
            return;
        }
        match attach_to_event(program, event, period) {
            Ok(more) => links.extend(more),
            Err(error) => warnings.push(format!("{}: {error}", without(part))),
        }
    };
    on_event(Part::MajorFaults, &progs.on_major_fault, perf::MAJOR_FAULTS, 1);
    on_event(Part::CpuSamples, &progs.on_sample, perf::CPU_CLOCK, SAMPLE_NS);
    Ok((links, warnings))
}

/// A software event of each CPU, which fires every `period` of what it counts.
fn attach_to_event(program: &ProgramMut<'_>, config: u64, period: u64) -> Result<Vec<Link>, String> {
    let attr = PerfEventAttr {
        kind: perf::SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config,
        sample_period: period,
        ..Default::default()
    };
    let events = perf::on_every_cpu(|cpu| perf::open(&attr, cpu)).map_err(|e| e.to_string())?;
    let mut links = Vec::new();
    for event in events {
        links.push(program.attach_perf_event(event.as_raw_fd()).map_err(|e| e.to_string())?);
        // The link closes it.
        let _ = event.into_raw_fd();
    }
    Ok(links)
}
