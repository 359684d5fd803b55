// SPDX-License-Identifier: Apache-2.0
//! The loop that moves events from capture to the run file.

use crate::output;
use crate::trace::alerts::Alerting;
use crate::trace::answer::{self, Answer};
use crate::trace::budget::Budgeting;
use crate::trace::cost::{Costs, OwnCost};
use crate::trace::display::Progress;
use crate::trace::figures::Figures;
use crate::trace::host::HostSide;
use crate::trace::job::{HeldJob, Job, RunningJob};
use crate::trace::ledger::LiveLedger;
use crate::trace::limits;
use crate::trace::privileges::{self, Circumstances};
use crate::trace::processes::Processes;
use crate::trace::sources::Sources;
use crate::trace::sudo::Caller;
use crate::trace::summary::UnwatchedTime;
use crate::trace::writer::{Snapshot, WriterThread};
use crate::trace::{Display, Ended, Settings, Summary};
use anyhow::{Context, anyhow};
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::capture::{Capture, now_ns};
use gpuwhy_capture::system::System;
use gpuwhy_capture::{Flavour, Options, Refusal, Targets, needs, process};
use gpuwhy_model::{Class, LossCause, OpId};
use gpuwhy_store::{Created, Error, Finished, LibraryRow, Machine, Missing, NewRun, RunEnd, Writer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Origin;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pause between reads of the ring. At a million calls a second, 640 kB arrive in this time.
const PAUSE: Duration = Duration::from_millis(10);
/// A batch of this size means that more records wait: do not pause.
const BUSY: usize = 4096;
/// Interval at which the writer writes.
const TICK: Duration = Duration::from_millis(250);

/// Why a trace ended; stored in the run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    JobEnded,
    TargetsEnded,
    Duration,
    Interrupted,
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Self::JobEnded => "exit",
            Self::TargetsEnded => "targets_ended",
            Self::Duration => "duration",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Records a run from beginning to end.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<Ended> {
    let began = Instant::now();
    needs::require()?;
    // A signal ignored at startup (nohup) stays ignored, for gpuwhy and the job.
    let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(watched).context("cannot install signal handlers")?;
    let open_files = limits::raise_open_files();
    let job = match settings.command.as_slice() {
        [] => None,
        command => Some(Job::find(command, &settings.extra_env)?),
    };
    let mut capture = Capture::start(&settings.capture)?;
    let budgeting = Budgeting::start(settings.budget, &mut capture, settings.capture.ring_bytes);
    let start_ns = capture.began_ns();
    let caller = Caller::from_env();
    let created = create_file(settings, caller.as_ref(), &new_run(settings, start_ns))?;
    let shell = settings.alerts.shell(caller.as_ref(), open_files);
    let to_json = settings.display == Display::Json;
    let held = job.as_ref().map(|job| job.start_held(to_json, open_files)).transpose()?;
    let progress = Progress::new(settings.display);
    give_up_rights(caller.as_ref(), &created.writer, &capture, &progress);
    if let Some(moved) = &created.moved_to {
        progress.note(&format!("renamed the existing {} to {}", settings.db.display(), moved.display()));
    }
    let alerts = Alerting::start(settings, shell, created.writer.path(), start_ns, &progress);
    let ledger = settings.capture.host.sched.then(|| LiveLedger::new(start_ns));
    let machine = machine();
    let writer = WriterThread::start(created.writer, ledger).context("cannot start the writer thread")?;
    let mut recorder = Recorder {
        capture,
        sources: Sources::start(&writer, whose_sources(settings, caller.as_ref())),
        writer,
        batch: Batch::default(),
        budgeting,
        processes: Processes::new(machine.clone()),
        host: HostSide::start(settings),
        alerts,
        libraries_noted: 0,
        lost_by_op: HashMap::new(),
        lost_by_cause: BTreeMap::new(),
        start_ns,
        ring_bytes: settings.capture.ring_bytes,
        max_size: settings.max_size,
        began,
        troubled: false,
        unwatched: UnwatchedTime::default(),
        progress,
    };
    recorder.writer.machine(machine);
    let mut running = match job.as_ref().zip(held) {
        None => None,
        Some((job, held)) => Some(recorder.release_job(job, held)?),
    };
    output::details(recorder.capture.refusals().iter().flat_map(Refusal::lines));
    recorder.announce(settings, running.is_some());
    let stop = recorder.watch(settings, running.as_mut(), &mut signals);
    let (summary, mut progress) = recorder.finish(stop);
    progress.end_recording();
    let answer = if settings.explain { answer::find(&summary, running.as_mut(), &mut signals) } else { Answer::None };
    progress.finish(&summary, &answer);
    if running.as_mut().is_some_and(|job| job.ended().is_none()) && settings.display == Display::Human {
        output::say_aside("gpuwhy: tracing has ended; the job continues, and gpuwhy will exit with its exit code");
    }
    Ok(Ended { exit_code: running.map_or(0, |job| wait_for_end(job, &mut signals)), summary })
}

/// Creates the run file with the rights of the user who called sudo.
fn create_file(settings: &Settings, caller: Option<&Caller>, run: &NewRun) -> anyhow::Result<Created> {
    let created = privileges::with_rights_of(caller, || Writer::create(&settings.db, run))?;
    created.map_err(|error| match (&error, caller) {
        (Error::CannotCreate { source, .. } | Error::CannotMoveAside { source, .. }, Some(caller))
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            anyhow!("{error} ({})", caller.rights())
        }
        _ => error.into(),
    })
}

/// When tracing every process, source files are read only for the tracing user's processes; in a job, for all.
fn whose_sources(settings: &Settings, caller: Option<&Caller>) -> Option<u32> {
    // SAFETY: reads a number.
    let own = || unsafe { libc::geteuid() };
    matches!(settings.capture.targets, Targets::All).then(|| caller.map_or_else(own, |caller| caller.uid))
}

/// Called after the last step that needs all of root's rights, and before threads start, because they inherit the rest.
fn give_up_rights(caller: Option<&Caller>, file: &Writer, capture: &Capture, progress: &Progress) {
    let folder = file.path().parent().unwrap_or(Path::new("/"));
    let plain_probes = capture.flavour() == Flavour::Plain;
    let reduced = privileges::reduce(caller, &Circumstances { folder, plain_probes });
    reduced.warnings.iter().for_each(|warning| progress.warn(warning));
    reduced.notes.iter().for_each(|note| progress.note(note));
}

/// A job may outlive its trace; until it ends, gpuwhy still passes signals on.
fn wait_for_end(mut job: RunningJob, signals: &mut SignalsInfo<WithOrigin>) -> u8 {
    loop {
        if let Some(code) = job.ended() {
            return code;
        }
        for origin in signals.pending() {
            pass_on(&job, &origin);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ctrl-C in a terminal reaches the job directly; a signal sent only to gpuwhy is passed on.
pub(super) fn pass_on(job: &RunningJob, origin: &Origin) {
    if origin.process.is_some_and(|sender| sender.pid != 0) {
        job.signal(origin.signal);
    }
}

struct Recorder {
    capture: Capture,
    writer: WriterThread,
    batch: Batch,
    budgeting: Budgeting,
    processes: Processes,
    host: HostSide,
    sources: Sources,
    alerts: Alerting,
    libraries_noted: usize,
    lost_by_op: HashMap<OpId, u64>,
    lost_by_cause: BTreeMap<LossCause, u64>,
    start_ns: u64,
    ring_bytes: u32,
    max_size: Option<u64>,
    /// When gpuwhy itself began, attaching included.
    began: Instant,
    /// Whether the last write failed; reported once, when it starts.
    troubled: bool,
    unwatched: UnwatchedTime,
    progress: Progress,
}

impl Recorder {
    /// Attaches to the libraries the job will likely load, and releases it.
    fn release_job(&mut self, job: &Job, held: HeldJob) -> anyhow::Result<RunningJob> {
        self.capture.add_target(held.pid())?;
        self.host.watch(self.capture.processes());
        self.capture.attach_ahead(&job.program, &job.arguments, &job.env);
        held.release()
    }

    fn announce(&mut self, settings: &Settings, has_job: bool) {
        let what = match &settings.capture.targets {
            _ if has_job => "the job and its children".to_owned(),
            Targets::All => "every process that uses CUDA".to_owned(),
            Targets::Pids(pids) => match pids.as_slice() {
                [pid] => format!("process {pid} and its children"),
                pids => {
                    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                    format!("processes {} and their children", pids.join(", "))
                }
            },
        };
        let attached = self.capture.attached();
        let probes: usize = attached.iter().map(|library| library.functions).sum();
        self.progress
            .note(&format!("tracing {what}: {probes} functions in {} CUDA libraries; Ctrl-C stops it", attached.len()));
        self.note_libraries();
    }

    /// Records until the job ends, the duration is over, or a signal arrives.
    fn watch(
        &mut self,
        settings: &Settings,
        mut job: Option<&mut RunningJob>,
        signals: &mut SignalsInfo<WithOrigin>,
    ) -> Stop {
        let mut ticks = 0u64;
        let mut interrupts = 0;
        loop {
            self.capture.follow_mappings();
            let busy = self.drain_some() >= BUSY;
            let elapsed = self.elapsed();
            if elapsed.as_nanos() / TICK.as_nanos() > u128::from(ticks) {
                ticks = (elapsed.as_nanos() / TICK.as_nanos()) as u64;
                self.collect_loss(elapsed.saturating_sub(TICK / 2));
                self.alerts.tick(now_ns(), self.capture.processes(), &self.writer, &self.progress);
                self.writer.tick(elapsed);
                if ticks.is_multiple_of(4) {
                    self.every_second();
                }
            }
            self.keep_to_budget();
            self.show_progress();
            for origin in signals.pending() {
                interrupts += 1;
                match &job {
                    Some(job) if interrupts == 1 => pass_on(job, &origin),
                    _ => return Stop::Interrupted,
                }
            }
            if job.as_mut().is_some_and(|job| job.ended().is_some()) {
                return Stop::JobEnded;
            }
            if job.is_none() && self.targets_gone(&settings.capture) {
                return Stop::TargetsEnded;
            }
            if settings.duration.is_some_and(|limit| elapsed >= limit) {
                return Stop::Duration;
            }
            if !busy {
                self.capture.wait(PAUSE);
            }
        }
    }

    fn targets_gone(&self, options: &Options) -> bool {
        options.targets != Targets::All && !self.capture.has_targets()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.start_ns))
    }

    /// Moves one batch from the ring to the writer; returns how many records it had.
    fn drain_some(&mut self) -> usize {
        if !self.capture.take(&mut self.batch) {
            return 0;
        }
        // Some records may have been discarded, but more may follow them.
        let records = self.batch.len().max(1);
        self.processes.note(&self.batch, &mut self.capture, &self.writer);
        self.host.note(&self.batch);
        self.alerts.note(&self.batch);
        self.budgeting.note(&self.batch);
        self.sources.note(&self.batch);
        let next = self.writer.spare();
        self.writer.batch(std::mem::replace(&mut self.batch, next));
        records
    }

    fn every_second(&mut self) {
        self.note_libraries();
        while self.drain_some() >= BUSY {}
        self.capture.every_second();
        self.host.every_second(self.capture.processes(), &mut self.alerts, &self.writer);
        for warning in self.capture.take_warnings() {
            self.progress.warn(&warning);
        }
    }

    fn keep_to_budget(&mut self) {
        for row in self.budgeting.tick(&mut self.capture, now_ns(), self.alerts.aside_ns()) {
            match row.pid.filter(|_| self.capture.callers().nth(1).is_some()) {
                Some(pid) => self.progress.note(&format!("process {pid}: {}", row.reason)),
                None => self.progress.note(&row.reason),
            }
            let are_reports = row.op.and_then(OpId::get).is_some_and(|op| op.class == Class::Tensor);
            if let Some(pid) = row.pid.filter(|_| are_reports && row.action == "detach") {
                self.alerts.pause_reports(pid, row.at_ns);
            }
            self.writer.governor(row);
        }
    }

    fn show_progress(&mut self) {
        let Some(snapshot) = self.writer.new_snapshot() else { return };
        if let Some(trouble) = snapshot.trouble.as_ref().filter(|_| !self.troubled) {
            self.progress.warn(trouble);
        }
        if self.troubled && snapshot.trouble.is_none() {
            self.progress.warn("the run file is writable again: the events kept in memory are now in it");
        }
        self.troubled = snapshot.trouble.is_some();
        self.progress.update(&snapshot, &self.lost_by_op);
    }

    /// Counts the events lost since the last call, at about `when`.
    fn collect_loss(&mut self, when: Duration) {
        for (cause, op, count) in self.capture.take_loss() {
            self.writer.loss(when.as_secs(), cause, op, count);
            *self.lost_by_cause.entry(cause).or_default() += count;
            if let Some(op) = op.filter(|_| cause.loses_event()) {
                *self.lost_by_op.entry(op).or_default() += count;
            }
        }
    }

    /// Writes libraries attached since the last call to the run file.
    fn note_libraries(&mut self) {
        let attached = self.capture.attached();
        for library in &attached[self.libraries_noted..] {
            let mut notes = Vec::new();
            if library.hidden {
                let says = "no CUDA runtime functions found (linked in without symbols, or not used): calls are recorded at the \
                            driver, under the driver's names";
                self.progress.note(&format!("{}: {says}", library.path));
                notes.push(says.to_owned());
            }
            if library.linked_in {
                notes.push("the CUDA runtime is linked into this file".to_owned());
            }
            if library.slow_functions > 0 {
                notes.push(format!(
                    "{} functions are expensive to probe: the kernel cannot emulate their first instruction",
                    library.slow_functions
                ));
            }
            if library.refused > 0 {
                notes.push(format!("{} functions cannot be probed", library.refused));
            }
            self.writer.library(LibraryRow {
                path: library.path.clone(),
                library: library.library.name().to_owned(),
                inode: format!("{}:{}", library.file.device, library.file.inode),
                functions: library.functions as u32,
                attached_ns: library.attached_ns,
                note: (!notes.is_empty()).then(|| notes.join("; ")),
            });
        }
        self.libraries_noted = attached.len();
        for row in self.capture.take_unwatched() {
            self.unwatched.add(&row);
            self.writer.unwatched(row);
        }
    }

    /// Detaches, takes the remaining records, closes the file.
    fn finish(mut self, stop: Stop) -> (Summary, Progress) {
        let elapsed = self.elapsed();
        let stop_ns = now_ns();
        // Make room in the ring first, so that the final reports are not lost.
        self.capture.end();
        while self.drain_some() > 0 {}
        self.capture.report_last();
        while self.drain_some() > 0 {}
        self.budgeting.finish(&self.capture, self.alerts.aside_ns());
        self.capture.stop();
        while self.drain_some() > 0 {}
        self.host.finish(&mut self.alerts, &self.writer);
        self.alerts.end(stop_ns, &self.writer, &self.progress);
        self.collect_loss(elapsed);
        self.capture.note_last_mappings();
        self.note_libraries();
        for warning in self.capture.take_warnings() {
            self.progress.warn(&warning);
        }
        self.sources.finish();
        let own = OwnCost::so_far(self.ring_bytes, self.capture.looking_ns());
        let stacks = self.capture.stack_counts();
        let end = RunEnd {
            stop_unix_ns: unix_ns(),
            stop_monotonic_ns: stop_ns,
            stop_reason: stop.name().to_owned(),
            own_cost: serde_json::to_string(&Costs { own, job: self.budgeting.cost() }).ok(),
        };
        let (finished, snapshot) = self.writer.finish(end).unzip();
        self.alerts.finish(&self.progress);
        let mut snapshot = Snapshot { elapsed, ..snapshot.unwrap_or_default() };
        // Nothing waits any more: every event is in the file or lost.
        snapshot.missing = Missing {
            lost: finished.as_ref().map(|finished| finished.lost_by_op.clone()).unwrap_or_default(),
            ..Missing::default()
        };
        let stored = finished.as_ref().map_or(snapshot.stored, |f| f.stored);
        let lost_calls: u64 = self.lost_by_op.iter().filter(|(op, _)| is_call(**op)).map(|(_, n)| n).sum();
        let made: u64 = snapshot.totals.iter().filter(|(op, _)| is_call(*op)).map(|(_, totals)| totals.calls).sum();
        // Events lost in the writer.
        self.lost_by_cause.extend(finished.iter().flat_map(|finished| finished.lost.iter().copied()));
        let lost: u64 = self.lost_by_cause.iter().filter(|(cause, _)| cause.loses_event()).map(|(_, n)| n).sum();
        let summary = Summary {
            elapsed,
            seen: stored + lost,
            cuda_calls: made + lost_calls,
            stored,
            lost,
            thinned: finished.as_ref().map_or(0, |f| f.thinned),
            max_size: self.max_size,
            loss_by_cause: self.lost_by_cause,
            path: finished.as_ref().map(|f| f.path.clone()).unwrap_or_default(),
            size_bytes: finished.as_ref().map_or(0, |f| f.size_bytes),
            own: OwnCost::so_far(self.ring_bytes, self.capture.looking_ns()),
            job_cost: self.budgeting.cost(),
            incomplete: self.budgeting.incomplete(),
            unwatched: self.unwatched,
            alive: self.began.elapsed(),
            libraries: self.libraries_noted,
            problem: problem(finished.as_ref()),
            stacks: stacks.found,
            table: Figures::final_table(&snapshot, &self.lost_by_op),
        };
        (summary, self.progress)
    }
}

/// Whether the op is a library call, not an event from the kernel or an allocator.
fn is_call(op: OpId) -> bool {
    op.is_cuda() && op.get().is_none_or(|op| op.class != Class::Tensor)
}

/// The problem with the run file, if any.
fn problem(finished: Option<&Finished>) -> Option<String> {
    match finished {
        Some(finished) => {
            let both = [&finished.problem, &finished.also].into_iter().flatten().map(ToString::to_string);
            let both: Vec<String> = both.collect();
            (!both.is_empty()).then(|| both.join("; "))
        }
        None => Some("the writer thread ended early; the file has what was committed until then".to_owned()),
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: a struct for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the current action without changing it.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

fn machine() -> Machine {
    let system = System::read();
    Machine {
        gpu: system.gpu,
        driver: system.driver,
        cuda: system.cuda,
        cpu: system.cpu,
        cores: Some(system.cores),
        memory_bytes: system.memory_bytes,
        kernel: Some(system.kernel),
        python: None,
    }
}

fn new_run(settings: &Settings, start_ns: u64) -> NewRun {
    let words: Vec<String> = settings.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let flags: Vec<String> =
        std::env::args_os().skip(1).take_while(|a| a != "--").map(|a| a.to_string_lossy().into_owned()).collect();
    NewRun {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // The same time by the wall clock.
        start_unix_ns: unix_ns().saturating_sub(now_ns().saturating_sub(start_ns)),
        start_monotonic_ns: start_ns,
        command: (!words.is_empty()).then(|| process::command_line(&words)),
        flags: Some(process::command_line(&flags)),
        // NVML starts a thread, which must not have more rights than the others, so it is queried later.
        machine: Machine::default(),
        max_size: settings.max_size,
        owner: Caller::from_env().map(|caller| caller.owner()),
    }
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
