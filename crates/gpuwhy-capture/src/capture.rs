// SPDX-License-Identifier: Apache-2.0
//! The whole of capturing behind one type: start, take what came in, stop.

mod costs;
mod limits;
mod looking;
mod mappings;

pub use costs::{OpTraps, ProbePrices};
pub use limits::Missed;

use crate::attach::{self, Probes};
use crate::batch::Batch;
use crate::callers::Callers;
use crate::confined;
use crate::error::{CaptureError, Result};
use crate::governor::Agreement;
use crate::host::HostOptions;
use crate::libraries::AttachedLibrary;
use crate::lookups::{Answer, Lookups, ProcessNames, Question};
use crate::map_watch::{MapWatch, Mapping};
use crate::names::Names;
use crate::process;
use crate::programs::{Flavour, LoadOptions, Programs, Refusal, StackCounts};
use crate::python::Pythons;
use crate::record::{Life, LifeEvent};
use crate::sockets::Sockets;
use crate::system;
use gpuwhy_model::ops::{KernelOp, kernel_op};
use gpuwhy_model::{Call, LossCause, OpId};
use gpuwhy_stacks::python::PyProcess;
use libbpf_rs::{Link, RingBuffer, RingBufferBuilder};
use looking::Purpose;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Processes whose names are remembered from when their libraries were found, at most.
const MOST_NAMES: usize = 4096;
/// How long an ended process and a stranger's mappings are remembered: records of both may be taken in any order.
const REMEMBERED_NS: u64 = 5_000_000_000;

/// How long the start waits for what is known of processes that run already, and the end for what was asked last.
const LONGEST_START: Duration = Duration::from_secs(10);
const LONGEST_END: Duration = Duration::from_secs(1);

/// Which processes to trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Every process that uses CUDA, also those started later.
    All,
    /// These and their children.
    Pids(Vec<u32>),
}

/// How to capture.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which processes.
    pub targets: Targets,
    /// Whether to report what CUDA libraries call inside a call, too.
    pub all_layers: bool,
    /// A way of attaching to use instead of the best one.
    pub flavour: Option<Flavour>,
    /// Whether the kernel may tell which library made a call; off, it is always looked up in /proc.
    pub find_callers: bool,
    /// Size of the buffer between kernel and gpuwhy: a power of two, in bytes.
    pub ring_bytes: u32,
    /// What to record of the host's side.
    pub host: HostOptions,
    /// Whether to read Python stacks.
    pub stacks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            targets: Targets::All,
            all_layers: false,
            flavour: None,
            find_callers: true,
            ring_bytes: 16 << 20,
            host: HostOptions::ALL,
            stacks: true,
        }
    }
}

/// A running capture. Dropping it detaches everything.
pub struct Capture {
    // The ring reads a map of `programs`, so it is dropped first.
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Batch>>,
    programs: Programs,
    probes: Probes,
    /// Whoever looks into processes.
    lookups: Lookups<Purpose>,
    names: Names,
    /// Loss that was counted before anybody asked.
    early_loss: Vec<(LossCause, Option<OpId>, u64)>,
    /// Keeps a probe on a function of gpuwhy's own.
    calibration: Vec<Link>,
    map_watch: Option<MapWatch>,
    poll_fds: Vec<libc::pollfd>,
    all_processes: bool,
    all_layers: bool,
    callers: Callers,
    /// Processes that made a traced call.
    used_cuda: HashSet<u32>,
    /// Traced processes that are alive, as far as known.
    processes: BTreeSet<u32>,
    /// Mappings of processes that are not traced, or have ended: those of the last seconds.
    strangers: Vec<Mapping>,
    /// Traced processes that ended in the last seconds, and when that was told.
    ended: HashMap<u32, u64>,
    /// What processes with CUDA libraries were called when those were found.
    names_when_found: HashMap<u32, ProcessNames>,
    sockets: Sockets,
    pythons: Option<Pythons>,
    /// What each process that makes calls gave up to stay within its budget.
    agreement: Agreement,
    /// Probes that are being removed.
    detaching: Vec<(OpId, JoinHandle<()>)>,
    missed: Vec<Missed>,
    /// Whether Python stacks are read at switches.
    switch_stacks: bool,
    began_ns: u64,
    /// When mappings were last looked at.
    looked_ns: u64,
    warnings: Vec<String>,
}

impl Capture {
    /// Loads the programs, marks the targets and attaches to every library they have mapped.
    pub fn start(options: &Options) -> Result<Self> {
        let (all_processes, asked) = match &options.targets {
            Targets::All => (true, &[][..]),
            Targets::Pids(pids) => (false, pids.as_slice()),
        };
        let mut pids = Vec::new();
        for id in asked {
            let running = process::of_thread(*id).filter(|pid| process::is_running(*pid));
            pids.push(running.ok_or(CaptureError::NoSuchProcess { pid: *id })?);
        }
        let lookups = Lookups::start().map_err(|source| CaptureError::NoReader { source })?;
        let load = LoadOptions {
            all_processes,
            all_layers: options.all_layers,
            find_callers: options.find_callers,
            ring_bytes: options.ring_bytes,
            host: options.host,
            stacks: options.stacks,
        };
        if confined::are_killed_by_return_probes() {
            return Err(CaptureError::KillsConfined { release: system::kernel_release() });
        }
        let programs = Programs::load(load, options.flavour)?;
        let inbox = Rc::new(RefCell::new(Batch::default()));
        let ring = open_ring(&programs, &inbox)?;
        let mut capture = Self {
            ring,
            inbox,
            programs,
            probes: Probes::default(),
            lookups,
            names: Names::default(),
            early_loss: Vec::new(),
            calibration: Vec::new(),
            map_watch: None,
            poll_fds: Vec::new(),
            all_processes,
            all_layers: options.all_layers,
            callers: Callers::default(),
            used_cuda: HashSet::new(),
            processes: BTreeSet::new(),
            strangers: Vec::new(),
            ended: HashMap::new(),
            names_when_found: HashMap::new(),
            sockets: Sockets::default(),
            pythons: options.stacks.then(Pythons::default),
            agreement: Agreement::default(),
            detaching: Vec::new(),
            missed: Vec::new(),
            switch_stacks: true,
            began_ns: now_ns(),
            looked_ns: now_ns(),
            warnings: Vec::new(),
        };
        capture.warnings.append(&mut capture.programs.warnings);
        capture.keep_clock();
        capture.watch_mappings();
        for (id, pid) in asked.iter().zip(&pids).filter(|(id, pid)| id != pid) {
            capture.warnings.push(format!("{id} is a thread of process {pid}: tracing the whole process"));
        }
        capture.attach_existing(&pids)?;
        capture.adopt_threads();
        for pid in capture.processes.clone() {
            capture.expect_python(pid);
        }
        capture.look_for_python();
        capture.wait_for_answers(LONGEST_START);
        Ok(capture)
    }

    /// Begins to watch the threads that the targets have already.
    fn adopt_threads(&mut self) {
        if let Err(error) = self.programs.adopt_threads() {
            self.warnings.push(format!("cannot follow threads that started before the trace: {error}"));
        }
    }

    fn expect_python(&mut self, pid: u32) {
        if let Some(pythons) = &mut self.pythons {
            pythons.expect(pid);
        }
    }

    fn set_python(&mut self, pid: u32, process: &PyProcess) {
        if let Err(error) = self.programs.set_python(pid, process.as_bytes()) {
            self.warnings.push(format!("cannot read Python stacks of process {pid}: {error}"));
        }
    }

    /// When the programs were loaded and looking for targets began, `CLOCK_MONOTONIC` ns: no record is older.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// What came of looking for Python stacks.
    pub fn stack_counts(&self) -> StackCounts {
        self.programs.stack_counts()
    }

    /// Some deadlines are on the wall clock, which may be set while tracing.
    fn keep_clock(&mut self) {
        let realtime = clock_ns(libc::CLOCK_REALTIME).cast_signed();
        self.programs.set_realtime_offset(realtime.wrapping_sub(now_ns().cast_signed()));
    }

    /// To be called about once a second: has threads' sums reported, to be taken with the next batches.
    pub fn every_second(&mut self) {
        self.keep_clock();
        self.sockets.forget();
        let long_ago = now_ns().saturating_sub(REMEMBERED_NS);
        self.strangers.retain(|mapping| mapping.at_ns > long_ago);
        for (pid, _) in self.ended.extract_if(|_, at_ns| *at_ns <= long_ago) {
            self.names_when_found.remove(&pid);
        }
        // Those whose end was not told, because the ring was full.
        self.processes.retain(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
        self.forget_lost_callers();
        if let Err(error) = self.programs.report_threads() {
            self.warnings.push(format!("cannot read per-thread times: {error}"));
        }
    }

    /// Traced processes that are alive, as far as known.
    pub fn processes(&self) -> &BTreeSet<u32> {
        &self.processes
    }

    /// Marks a process that gpuwhy itself is about to start.
    pub fn add_target(&mut self, pid: u32) -> Result<()> {
        self.programs.add_target(pid)?;
        self.processes.insert(pid);
        self.adopt_threads();
        Ok(())
    }

    /// Whether any of the processes asked for, or a child of theirs, still runs.
    pub fn has_targets(&self) -> bool {
        self.programs.has_targets()
    }

    /// Takes what came in, at most 8k records at a time. Returns whether anything did.
    pub fn take(&mut self, batch: &mut Batch) -> bool {
        batch.clear();
        let taken = self.ring.consume_raw_n(8 * 1024);
        std::mem::swap(&mut *self.inbox.borrow_mut(), batch);
        for (call, address) in batch.unsettled.drain(..) {
            let look_up = &mut |pid, address| match self.lookups.ask_now(Question::Caller { pid, address }) {
                Some(Answer::Caller(answer)) => answer,
                _ => Ok(None),
            };
            batch.calls.extend(self.callers.settle(call, address, self.all_layers, look_up));
        }
        // Stacks between beginnings and ends: a new process's Python must be known, and what is known of code goes with
        // the program.
        let is_end = |life: &&Life| matches!(life.event, LifeEvent::Exec | LifeEvent::Exit);
        for life in batch.life.iter().filter(|life| !is_end(life)) {
            self.follow_life(life);
        }
        self.name_stacks(batch);
        for raw in batch.raw_names.drain(..) {
            batch.names.extend(self.names.take(raw));
        }
        self.meet_callers(batch);
        for life in batch.life.iter().filter(is_end) {
            self.follow_life(life);
        }
        self.settle_probes();
        self.find_owners(&mut batch.calls);
        if batch.unknown > 0 {
            self.warnings.push(format!("dropped {} malformed records from the kernel", batch.unknown));
        }
        taken > 0
    }

    /// Puts stacks into words, and ids into events in place of the kernel's numbers.
    fn name_stacks(&mut self, batch: &mut Batch) {
        let Some(pythons) = &mut self.pythons else { return };
        for record in batch.python.drain(..) {
            batch.stacks.extend(pythons.take(record, &mut |question| self.lookups.ask_now(question)));
        }
        for key in pythons.forgotten.drain(..) {
            self.programs.forget_site(key);
        }
        let calls = batch.calls.iter_mut().map(|call| &mut call.stack);
        let transfers = batch.transfers.iter_mut().map(|transfer| &mut transfer.call.stack);
        let tensors = batch.tensors.iter_mut().map(|event| &mut event.stack);
        let off = batch.off.iter_mut().map(|off| &mut off.stack);
        for stack in calls.chain(transfers).chain(tensors).chain(off) {
            *stack = stack.and_then(|key| pythons.id_of(key));
        }
    }

    fn follow_life(&mut self, life: &Life) {
        match life.event {
            LifeEvent::Fork => {
                self.processes.insert(life.pid);
                let python = self.pythons.as_mut().and_then(|pythons| pythons.forked(life.parent, life.pid));
                if let Some(process) = python {
                    self.set_python(life.pid, &process);
                }
            }
            LifeEvent::FirstCall => {
                if self.used_cuda.insert(life.pid) {
                    self.look_for_runtime(life.pid);
                }
                // When everybody who uses CUDA is traced, this is how a process is known to; its other threads and its
                // children are found now.
                if self.processes.insert(life.pid) {
                    self.expect_python(life.pid);
                } else {
                    return;
                }
                if self.all_processes && self.programs.add_target(life.pid).is_ok() {
                    self.adopt_threads();
                    self.processes.extend(process::descendants(life.pid));
                }
            }
            LifeEvent::Exec => {
                self.forget_caller(life.pid);
                self.callers.forget_process(life.pid);
                self.names.forget_process(life.pid);
                if self.pythons.is_some() {
                    self.programs.forget_python(life.pid);
                }
                self.expect_python(life.pid);
            }
            LifeEvent::Exit => {
                self.forget_caller(life.pid);
                self.callers.forget_process(life.pid);
                self.names.forget_process(life.pid);
                self.lookups.forget(life.pid);
                self.processes.remove(&life.pid);
                self.note_ended(life.pid);
                if let Some(pythons) = &mut self.pythons {
                    pythons.ended(life.pid);
                    self.programs.forget_python(life.pid);
                }
                // Looking through every live allocation is worth it only for processes that may have some.
                if self.used_cuda.remove(&life.pid) {
                    self.programs.forget_process(life.pid);
                }
            }
        }
    }

    /// Retransmits come without an owner: those of traced processes get one, the others are dropped.
    fn find_owners(&mut self, calls: &mut Vec<Call>) {
        let retransmit = kernel_op(KernelOp::TcpRetransmit);
        if !calls.iter().any(|call| call.op == retransmit) {
            return;
        }
        calls.retain_mut(|call| {
            if call.op != retransmit {
                return true;
            }
            let inode = call.stream.take().unwrap_or(0);
            let owner = self.sockets.owner(inode, &self.processes);
            call.pid = owner.unwrap_or(0);
            call.tid = call.pid;
            owner.is_some()
        });
    }

    /// What a process is called, unless that takes too long to say. One that has ended since its first call is called
    /// what it was when its libraries were found.
    pub fn names_of(&mut self, pid: u32, and_python: bool) -> Option<ProcessNames> {
        let now = self.ask_for_names(pid, and_python);
        now.filter(|names| names.name.is_some()).or_else(|| self.names_when_found.get(&pid).cloned())
    }

    fn ask_for_names(&mut self, pid: u32, and_python: bool) -> Option<ProcessNames> {
        match self.lookups.ask_now(Question::Names { pid, and_python }) {
            Some(Answer::Names(names)) => Some(names),
            _ => None,
        }
    }

    /// Asks for the names of a process and of those above it in its job now: they may end a moment after its first call.
    fn remember_names(&mut self, pid: u32) {
        let mut unknown = vec![pid];
        while let Some(pid) = unknown.pop() {
            if self.names_when_found.len() >= MOST_NAMES {
                self.names_when_found.clear();
            }
            let Some(names) = self.ask_for_names(pid, false) else { continue };
            unknown.extend(names.above.iter().filter(|above| !self.names_when_found.contains_key(above)));
            self.names_when_found.insert(pid, names);
        }
    }

    /// CPU time that looking into processes took so far, in other processes, ns.
    pub fn looking_ns(&self) -> u64 {
        self.lookups.spent_ns()
    }

    /// What was lost since the last time.
    pub fn take_loss(&mut self) -> Vec<(LossCause, Option<OpId>, u64)> {
        let mut loss = std::mem::take(&mut self.early_loss);
        loss.extend(self.programs.take_loss());
        loss.extend(self.callers.take_loss());
        let unknown = self.pythons.as_mut().map_or(0, |pythons| std::mem::take(&mut pythons.unknown));
        loss.extend((unknown > 0).then_some((LossCause::UnknownPython, None, unknown)));
        let unread = self.lookups.take_unread();
        loss.extend((unread > 0).then_some((LossCause::ProcessUnread, None, unread)));
        loss
    }

    /// The libraries that have probes.
    pub fn attached(&self) -> &[AttachedLibrary] {
        self.probes.attached()
    }

    /// How probes are attached.
    pub fn flavour(&self) -> Flavour {
        self.programs.flavour
    }

    /// Programs that this kernel refused and that are done without.
    pub fn refusals(&self) -> &[Refusal] {
        &self.programs.refusals
    }

    /// Things that went wrong without stopping the capture, since the last time.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.warnings.append(&mut self.probes.warnings);
        self.warnings.append(&mut self.lookups.take_warnings());
        std::mem::take(&mut self.warnings)
    }

    /// Detaches every probe.
    fn detach(&mut self) {
        let mut links = self.probes.take_links();
        links.extend(self.programs.take_links());
        links.append(&mut self.calibration);
        attach::detach(links);
    }

    /// Begins to end it: no new calls are followed, and nothing more of the scheduler. What is in the ring is best taken
    /// now, to make room for [`Capture::report_last`].
    pub fn end(&mut self) {
        self.programs.set_stopping();
        // Calls under way get a moment to return; what is open after that is reported as it is.
        std::thread::sleep(Duration::from_millis(20));
        self.programs.set_host_end(now_ns());
        self.wait_for_answers(LONGEST_END);
        self.lookups.give_up_the_rest();
        self.warnings.extend(self.lookups.unsaid());
    }

    /// Has what is still under way reported: open calls, threads that wait, everybody's sums.
    pub fn report_last(&mut self) {
        if let Err(error) = self.programs.report_open_calls() {
            self.warnings.push(format!("calls still open at the end are missing: {error}"));
        }
        if let Err(error) = self.programs.report_threads() {
            self.warnings.push(format!("cannot read final per-thread times: {error}"));
        }
    }

    /// Ends it: detaches every probe. What is still in the ring is taken with [`Capture::take`] as before.
    pub fn stop(&mut self) {
        self.detach();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.detach();
    }
}

fn open_ring(programs: &Programs, inbox: &Rc<RefCell<Batch>>) -> Result<RingBuffer<'static>> {
    let failed = |e: libbpf_rs::Error| CaptureError::Load { why: format!("cannot read the ring buffer: {e}") };
    let inbox = Rc::clone(inbox);
    let mut builder = RingBufferBuilder::new();
    builder
        .add(programs.ring(), move |bytes| {
            inbox.borrow_mut().take_record(bytes);
            0
        })
        .map_err(failed)?;
    builder.build().map_err(failed)
}

/// Now, `CLOCK_MONOTONIC` nanoseconds: the clock of every event.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
