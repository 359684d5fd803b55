// SPDX-License-Identifier: Apache-2.0
//! The BPF object: loading the flavour this kernel has, attaching probes, reading counters.

mod limits;
pub(crate) mod parts;
mod probes;
mod refusal;

pub(crate) use limits::Limit;
use limits::Limits;
pub use limits::Share;
use parts::{GivenUp, Part, without};
pub(crate) use probes::same_program;
pub use refusal::Refusal;

use crate::arch::FirstInstruction;
use crate::calibrate::{Calibrator, OwnSite};
use crate::elf::Site;
use crate::error::{CaptureError, Result};
use crate::features::Features;
use crate::governor::ProbePrice;
use crate::host::{self, HostOptions, HostParts};
use crate::libraries::FileId;
use crate::syscalls;
use crate::system;
use gpuwhy_model::ops::{self, KernelOp, TorchOp, kernel_op, torch_op};
use gpuwhy_model::{Decode, LossCause, Op, OpId};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject, ProgramMut};
use skeleton::{GpuwhySkel, GpuwhySkelBuilder, OpenGpuwhySkel};
use std::collections::BTreeMap;
use std::io::Read;
use std::mem::MaybeUninit;
use std::sync::LazyLock;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::restriction)]
pub(crate) mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/gpuwhy.skel.rs"));
}

/// How probes are attached; newer kernels have cheaper ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// `uprobe.session`, Linux 6.13: one program sees entry and return, and can decline the return.
    Session,
    /// `uprobe.multi`, Linux 6.6.
    Multi,
    /// A perf event for each probe, Linux 5.15.
    Plain,
}

impl Flavour {
    /// Best first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Plain];

    /// As shown to the user.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Multi => "multi",
            Self::Plain => "plain",
        }
    }
}

/// What is fixed before loading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadOptions {
    pub(crate) all_processes: bool,
    pub(crate) all_layers: bool,
    pub(crate) find_callers: bool,
    pub(crate) ring_bytes: u32,
    pub(crate) host: HostOptions,
    pub(crate) stacks: bool,
}

/// What came of looking for Python stacks; what went wrong is counted as loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// Different call sites whose stack was read.
    pub found: u64,
    /// Looks at threads that were running no Python; one that never does is looked at every 20 ms at most.
    pub none: u64,
}

/// What probes on a function, or switches, have cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traps {
    /// Entries.
    pub entered: u64,
    /// Of them, those followed to their return.
    pub followed: u64,
    /// How often the time spent at the end was taken.
    pub timed: u64,
    /// That time, ns.
    pub spent_ns: u64,
}

impl Traps {
    /// What came since an earlier look.
    pub fn since(self, before: Self) -> Self {
        Self {
            entered: self.entered.saturating_sub(before.entered),
            followed: self.followed.saturating_sub(before.followed),
            timed: self.timed.saturating_sub(before.timed),
            spent_ns: self.spent_ns.saturating_sub(before.spent_ns),
        }
    }

    /// The time spent at the end, on average, ns.
    pub fn average_ns(self) -> Option<f64> {
        (self.timed > 0).then(|| self.spent_ns as f64 / self.timed as f64)
    }
}

/// What a probe costs on this machine.
#[derive(Debug)]
pub(crate) struct Calibrated {
    /// By what it stands on.
    pub(crate) prices: BTreeMap<FirstInstruction, ProbePrice>,
    /// Of a followed call, the program's own time at the return, ns.
    pub(crate) leave_ns: f64,
    /// What keeps the probes on gpuwhy's own functions.
    pub(crate) links: Vec<Link>,
}

/// What gpuwhy's own functions are probed as: a launch, since only those can be counted. Its arguments are whatever is in
/// registers and on the stack.
pub(crate) static CALIBRATED: LazyLock<&'static Op> = LazyLock::new(|| {
    let launch = |op: &&Op| op.decode == Decode::LaunchDim3;
    ops::table().iter().find(launch).unwrap_or(&ops::table()[0])
});

/// The loaded programs and their maps.
pub(crate) struct Programs {
    skel: GpuwhySkel<'static>,
    pub(crate) flavour: Flavour,
    /// Keeps the programs on tracepoints attached.
    tracepoints: Vec<Link>,
    /// To have every thread's sums reported, where the host's side is recorded.
    report: Option<Link>,
    host: HostParts,
    /// What could not be had, in words.
    pub(crate) warnings: Vec<String>,
    /// Why.
    pub(crate) refusals: Vec<Refusal>,
    /// Counters as of the last [`Programs::take_loss`].
    last_lost: Box<[[u64; LOSS_OPS]; LOSS_CAUSES]>,
    last_recursion: u64,
    limits: Limits,
}

const LOSS_OPS: usize = 512;
const LOSS_CAUSES: usize = LossCause::ALL.len();

impl Programs {
    /// Loads the best flavour the kernel takes, or the one asked for.
    pub(crate) fn load(options: LoadOptions, wanted: Option<Flavour>) -> Result<Self> {
        let features = Features::read();
        let mut refusals = Vec::new();
        let mut last = None;
        if let Some(flavour) = wanted.filter(|flavour| !features.has_flavour(*flavour)) {
            return Err(CaptureError::NoFlavour { release: system::kernel_release(), flavour: flavour.name() });
        }
        let has = |flavour: &Flavour| wanted.map_or(features.has_flavour(*flavour), |wanted| wanted == *flavour);
        for flavour in Flavour::ALL.into_iter().filter(has) {
            match Self::load_with_what_works(options, flavour, &features, &mut refusals) {
                Ok(programs) => return Ok(programs),
                Err(error) => {
                    // The verifier says EACCES, too, when it refuses a program; it leaves a log.
                    let verifier = refusals.last().is_some_and(|refusal: &Refusal| refusal.is_verifiers());
                    if matches!(error.kind(), libbpf_rs::ErrorKind::PermissionDenied) && !verifier {
                        return Err(CaptureError::NotPermitted);
                    }
                    last = Some(error);
                }
            }
        }
        let why = last.map(|e| e.to_string()).unwrap_or_else(|| "no flavour to try".into());
        let release = system::kernel_release();
        // What was refused last, by the oldest way of attaching, is what this kernel lacks.
        let program = refusals.last().and_then(|refusal| refusal.program.clone()).unwrap_or_default();
        Err(CaptureError::Refused { release, program, why, refusals })
    }

    /// Loads a flavour. Where a program is refused, what needs it is left out.
    fn load_with_what_works(
        options: LoadOptions,
        flavour: Flavour,
        features: &Features,
        refusals: &mut Vec<Refusal>,
    ) -> libbpf_rs::Result<Self> {
        let (mut given_up, earlier) = (GivenUp::default(), refusals.len());
        loop {
            let (loaded, refusal) = refusal::listen(|| Self::load_flavour(options, flavour, features, &given_up));
            let error = match loaded {
                Ok(mut programs) => {
                    programs.refusals = refusals.split_off(earlier);
                    return Ok(programs);
                }
                Err(error) => error,
            };
            let program = refusal.program.clone().unwrap_or_default();
            refusals.push(refusal);
            if program.is_empty() || !given_up.give_up_for(&program) {
                return Err(error);
            }
        }
    }

    fn load_flavour(
        options: LoadOptions,
        flavour: Flavour,
        features: &Features,
        given_up: &GivenUp,
    ) -> libbpf_rs::Result<Self> {
        // The skeleton borrows its object for as long as it lives, which is as long as gpuwhy does: one
        // small allocation for each try is given up for that.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = GpuwhySkelBuilder::default().open(storage)?;
        let mut refused: Vec<String> =
            given_up.parts().iter().map(|part| format!("{} (this kernel refuses it)", without(*part))).collect();
        let mut host = HostParts { options: options.host, given_up: given_up.clone() };
        if host.options.sched && !system::may_follow_scheduler() {
            host.options.sched = false;
            refused
                .push("this real-time kernel is too old to follow the scheduler (6.12 is needed): left out".to_owned());
        }
        configure(&mut open, options, flavour, &host, features)?;
        let skel = open.load()?;
        let mut tracepoints = vec![
            skel.progs.on_fork.attach_trace()?,
            skel.progs.on_exec.attach_trace()?,
            skel.progs.on_exit.attach_trace()?,
        ];
        let (links, mut warnings) = host::attach(&skel.progs, &host, features)?;
        tracepoints.extend(links);
        warnings.append(&mut refused);
        let report = if host.has(Part::Threads) { Some(skel.progs.report_threads.attach_trace()?) } else { None };
        let last_lost = Box::new([[0; LOSS_OPS]; LOSS_CAUSES]);
        Ok(Self {
            skel,
            flavour,
            tracepoints,
            report,
            host,
            warnings,
            refusals: Vec::new(),
            last_lost,
            last_recursion: 0,
            limits: Limits::new(),
        })
    }

    /// Begins to watch the threads that the targets, and their children, have already.
    pub(crate) fn adopt_threads(&mut self) -> libbpf_rs::Result<()> {
        // A child may be met before its parent; a chain of more generations than this, each with a smaller number
        // than its parent's, is not to be expected.
        const ROUNDS: usize = 8;
        if !self.host.has(Part::Threads) {
            return Ok(());
        }
        let link = self.skel.progs.adopt_threads.attach_trace()?;
        for _ in 0..ROUNDS {
            let before = self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.adopted);
            read_through(&link)?;
            if self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.adopted) == before {
                break;
            }
        }
        Ok(())
    }

    /// Has every watched thread's sums reported; at the end also what it is waiting for.
    pub(crate) fn report_threads(&self) -> libbpf_rs::Result<()> {
        self.report.as_ref().map_or(Ok(()), read_through)
    }

    /// Says when following the scheduler ends, `CLOCK_MONOTONIC` ns: now.
    pub(crate) fn set_host_end(&mut self, at_ns: u64) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_ready`.
            unsafe { std::ptr::write_volatile(&raw mut bss.host_end_ns, at_ns) };
        }
    }

    /// Says how far the wall clock is ahead of `CLOCK_MONOTONIC`, ns.
    pub(crate) fn set_realtime_offset(&mut self, offset_ns: i64) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_ready`.
            unsafe { std::ptr::write_volatile(&raw mut bss.realtime_offset_ns, offset_ns) };
        }
    }

    /// Says where a process's Python keeps its frames.
    pub(crate) fn set_python(&self, pid: u32, process: &[u8]) -> libbpf_rs::Result<()> {
        self.skel.maps.py_processes.update(&pid.to_ne_bytes(), process, MapFlags::ANY)
    }

    /// Forgets where a process's Python keeps its frames.
    pub(crate) fn forget_python(&self, pid: u32) {
        // Gone already is just as well.
        let _ = self.skel.maps.py_processes.delete(&pid.to_ne_bytes());
    }

    /// Has a call site told of again when it is next seen.
    pub(crate) fn forget_site(&self, key: u64) {
        let _ = self.skel.maps.known_sites.delete(&key.to_ne_bytes());
    }

    /// What came of looking for Python stacks.
    pub(crate) fn stack_counts(&self) -> StackCounts {
        let counts = self.skel.maps.bss_data.as_deref().map_or((0, 0), |bss| (bss.stacks_found, bss.stacks_none));
        StackCounts { found: counts.0, none: counts.1 }
    }

    /// Gives away what keeps programs attached, to be dropped.
    pub(crate) fn take_links(&mut self) -> Vec<Link> {
        self.tracepoints.drain(..).chain(self.report.take()).collect()
    }

    /// Measures what a probe costs on this machine. Records of gpuwhy's own calls are left in the ring.
    pub(crate) fn calibrate(&mut self) -> std::result::Result<Calibrated, Box<dyn std::error::Error>> {
        let op = *CALIBRATED;
        let calibrator = Calibrator::new()?;
        let sites = calibrator.sites();
        let places: Vec<_> = sites.iter().map(|own| (op, Site { offset: own.offset, first: own.first })).collect();
        self.set_calibrating(true);
        let attached = self.attach(calibrator.path(), &places, false);
        let calls: Vec<f64> = sites.iter().map(OwnSite::added_ns).collect();
        let spent = self.traps(op.id);
        // Sampled, all calls but the first are only counted.
        let own = std::process::id();
        let is_sampled = self.limit(own, op.id, Limit::Sampled);
        let price = |(own, call_ns): (&OwnSite, f64)| (own.first, ProbePrice { call_ns, entry_ns: own.added_ns() });
        let prices = sites.iter().zip(calls).map(price).collect();
        self.unlimit(own, op.id);
        self.set_calibrating(false);
        self.forget_traps(op.id)?;
        self.take_shares();
        if !is_sampled {
            return Err("the kernel has no room for limits".into());
        }
        Ok(Calibrated { prices, leave_ns: spent.average_ns().unwrap_or(0.0), links: attached? })
    }

    /// None of them was the job's.
    fn forget_traps(&self, op: OpId) -> libbpf_rs::Result<()> {
        let none = vec![vec![0; size_of::<Traps>()]; libbpf_rs::num_possible_cpus()?];
        self.skel.maps.traps.update_percpu(&u32::from(op.0).to_ne_bytes(), &none, MapFlags::ANY)
    }

    fn set_calibrating(&mut self, on: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_ready`.
            unsafe { std::ptr::write_volatile(&raw mut bss.calibrating, on) };
        }
    }

    /// Whether switches and samples get Python stacks.
    pub(crate) fn set_switch_stacks(&mut self, on: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_ready`.
            unsafe { std::ptr::write_volatile(&raw mut bss.no_switch_stacks, !on) };
        }
    }

    /// Says that a file has the runtime built in.
    pub(crate) fn add_linked_in(&self, file: FileId) -> libbpf_rs::Result<()> {
        self.skel.maps.linked_in.update(&file.inode.to_ne_bytes(), &[1], MapFlags::ANY)
    }

    /// What a function's probes have cost so far, on all CPUs.
    pub(crate) fn traps(&self, op: OpId) -> Traps {
        let key = u32::from(op.0).to_ne_bytes();
        let per_cpu = self.skel.maps.traps.lookup_percpu(&key, MapFlags::ANY).ok().flatten().unwrap_or_default();
        let mut sum = Traps::default();
        for one in per_cpu {
            let word = |at: usize| one.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
            sum.entered += word(0);
            sum.followed += word(8);
            sum.timed += word(16);
            sum.spent_ns += word(24);
        }
        sum
    }

    /// The same of switches of watched threads.
    pub(crate) fn switch_traps(&self) -> Traps {
        self.traps(OpId(LOSS_OPS as u16 - 1))
    }

    /// Says since when everything mapped is probed, `CLOCK_MONOTONIC` ns.
    pub(crate) fn set_ready(&mut self, at_ns: u64) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: a plain word in memory shared with the kernel; volatile because that reads it.
            unsafe { std::ptr::write_volatile(&raw mut bss.ready_ns, at_ns) };
        }
    }

    /// Says that no new calls shall be followed.
    pub(crate) fn set_stopping(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_ready`.
            unsafe { std::ptr::write_volatile(&raw mut bss.stopping, true) };
        }
    }

    /// What [`Programs::set_ready`] said last.
    pub(crate) fn ready(&self) -> u64 {
        self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.ready_ns)
    }

    pub(crate) fn add_target(&self, pid: u32) -> Result<()> {
        let one = 1u32.to_ne_bytes();
        self.skel
            .maps
            .targets
            .update(&pid.to_ne_bytes(), &one, MapFlags::ANY)
            .map_err(|e| CaptureError::Load { why: format!("process {pid} could not be marked as a target: {e}") })
    }

    pub(crate) fn remove_target(&self, pid: u32) {
        // Gone already is just as well.
        let _ = self.skel.maps.targets.delete(&pid.to_ne_bytes());
    }

    /// Whether a process is traced; children are added by the kernel itself.
    pub(crate) fn is_target(&self, pid: u32) -> bool {
        matches!(self.skel.maps.targets.lookup(&pid.to_ne_bytes(), MapFlags::ANY), Ok(Some(_)))
    }

    /// Whether any target is left; the kernel removes them as they end.
    pub(crate) fn has_targets(&self) -> bool {
        self.skel.maps.targets.keys().next().is_some()
    }

    /// The ring buffer, to be read by the caller.
    pub(crate) fn ring(&self) -> &dyn MapCore {
        &self.skel.maps.ring
    }

    /// Forgets the live allocations and contexts of a process that ended.
    pub(crate) fn forget_process(&self, pid: u32) {
        // Both keys begin with a handle of 8 bytes; the process follows it.
        let pid = pid.to_ne_bytes();
        let maps = &self.skel.maps;
        let maps: [&dyn MapCore; 4] = [&maps.live, &maps.contexts, &maps.transfers, &maps.named];
        for map in maps {
            let keys: Vec<Vec<u8>> = map.keys().filter(|key| key.get(8..12) == Some(&pid)).collect();
            for key in keys {
                // Gone already is just as well.
                let _ = map.delete(&key);
            }
        }
    }

    /// What was lost since the last time, by cause and op.
    pub(crate) fn take_loss(&mut self) -> Vec<(LossCause, Option<OpId>, u64)> {
        let mut out = Vec::new();
        if let Some(bss) = self.skel.maps.bss_data.as_deref() {
            for cause in LossCause::ALL {
                for op in 0..LOSS_OPS {
                    // SAFETY: a plain counter in memory shared with the kernel; volatile because others write it.
                    let now = unsafe { std::ptr::read_volatile(&raw const bss.lost[cause as usize][op]) };
                    let last = &mut self.last_lost[cause as usize][op];
                    if now > *last {
                        let op = OpId(op as u16);
                        out.push((cause, op.get().map(|_| op), now - *last));
                        *last = now;
                    }
                }
            }
        }
        let recursion = self.recursion_misses();
        if recursion > self.last_recursion {
            out.push((LossCause::Recursion, None, recursion - self.last_recursion));
            self.last_recursion = recursion;
        }
        out
    }

    /// Times the kernel skipped one of our probe programs because one was already running on that CPU.
    fn recursion_misses(&self) -> u64 {
        let progs = &self.skel.progs;
        let ours: &[&ProgramMut<'_>] = match self.flavour {
            Flavour::Session => &[&progs.session, &progs.session_rare, &progs.multi_torch],
            Flavour::Multi => &[
                &progs.multi_enter,
                &progs.multi_leave,
                &progs.multi_enter_rare,
                &progs.multi_leave_rare,
                &progs.multi_torch,
            ],
            Flavour::Plain => &[
                &progs.plain_enter,
                &progs.plain_leave,
                &progs.plain_enter_rare,
                &progs.plain_leave_rare,
                &progs.plain_torch,
            ],
        };
        let host = [&progs.on_switch, &progs.on_waking, &progs.on_wakeup, &progs.on_migrate, &progs.on_sample];
        let host: &[&ProgramMut<'_>] = if self.host.has(Part::Sched) { &host } else { &[] };
        ours.iter().chain(host).map(|program| recursion_misses_of(program)).sum()
    }

    /// Has the kernel report every call that is still open as unfinished.
    pub(crate) fn report_open_calls(&self) -> libbpf_rs::Result<()> {
        read_through(&self.skel.progs.still_open.attach_trace()?)
    }
}

/// Runs an iterator program over all tasks. It writes to the ring, not to its reader.
fn read_through(link: &Link) -> libbpf_rs::Result<()> {
    let mut sink = Vec::new();
    Iter::new(link)?.read_to_end(&mut sink)?;
    Ok(())
}

fn recursion_misses_of(program: &ProgramMut<'_>) -> u64 {
    use std::os::fd::{AsFd, AsRawFd};
    let mut info = libbpf_rs::libbpf_sys::bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the fd is open for as long as the program is borrowed, and the kernel writes at most `size` bytes.
    let rc = unsafe {
        libbpf_rs::libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_fd().as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    if rc == 0 { info.recursion_misses } else { 0 }
}

fn configure(
    open: &mut OpenGpuwhySkel<'_>,
    options: LoadOptions,
    flavour: Flavour,
    host: &HostParts,
    features: &Features,
) -> libbpf_rs::Result<()> {
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.all_processes = options.all_processes;
        rodata.all_layers = options.all_layers;
        rodata.find_callers = options.find_callers && host.has(Part::Callers);
        rodata.own_tgid = std::process::id();
        rodata.kernel_ops = u32::from(kernel_op(KernelOp::SchedSwitch).0);
        rodata.torch_ops = u32::from(torch_op(TorchOp::Alloc).0);
        rodata.stacks = options.stacks && host.has(Part::Stacks);
        rodata.host = host.has(Part::Threads);
        rodata.sched = host.has(Part::Sched);
        rodata.switch_shape = features.switch_shape;
        rodata.oom_victim_is_task = features.oom_victim_is_task;
        rodata.syscall_kinds = syscalls::kinds();
        // SAFETY: sysconf reads a number.
        rodata.page_shift = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096).trailing_zeros();
    }
    host::choose(&mut open.progs, host, features);
    if system::kernel_version(&system::kernel_release()).is_some_and(|version| version < (6, 1)) {
        // Older kernels want maps of probes and samples made in full beforehand; then not so large.
        open.maps.live.set_max_entries(65_536)?;
        let maps = &mut open.maps;
        for map in [&mut maps.targets, &mut maps.live, &mut maps.contexts, &mut maps.transfers] {
            map.set_map_flags(0)?;
        }
        maps.limits.set_map_flags(0)?;
        maps.shares.set_map_flags(0)?;
    }
    open.maps.ring.set_max_entries(options.ring_bytes)?;
    let progs = &mut open.progs;
    for program in [&mut progs.session, &mut progs.session_rare] {
        program.set_autoload(flavour == Flavour::Session);
    }
    for program in
        [&mut progs.multi_enter, &mut progs.multi_leave, &mut progs.multi_enter_rare, &mut progs.multi_leave_rare]
    {
        program.set_autoload(flavour == Flavour::Multi);
    }
    for program in [
        &mut progs.plain_enter,
        &mut progs.plain_leave,
        &mut progs.plain_enter_rare,
        &mut progs.plain_leave_rare,
        &mut progs.plain_torch,
    ] {
        program.set_autoload(flavour == Flavour::Plain);
    }
    progs.multi_torch.set_autoload(flavour != Flavour::Plain);
    Ok(())
}
