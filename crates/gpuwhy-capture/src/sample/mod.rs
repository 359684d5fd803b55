// SPDX-License-Identifier: Apache-2.0
//! Once a second: the machine, the watched processes, their cgroups, the GPUs.
//!
//! [`Sampler`] is a thread of its own, so that a driver that answers slowly holds up nothing else. It keeps to a fixed
//! schedule on `CLOCK_MONOTONIC`; a second that could not be kept is not made up for, the next sample spans both.

mod cgroup_paths;
mod cgroups;
mod files;
mod gpus;
mod processes;
mod system;
#[cfg(test)]
mod tests;

pub(crate) use processes::started_ns;

use crate::capture::now_ns;
use crate::system::open_nvml;
use cgroups::CgroupReader;
use gpus::Gpus;
use gpuwhy_model::sample::{GpuSample, Samples};
use nvml_wrapper::Nvml;
use processes::ProcessReader;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use system::SystemReader;

/// Time between samples.
const EVERY_NS: u64 = 1_000_000_000;

/// Samples kept for a consumer that is late; then the oldest go.
const MOST_WAITING: usize = 120;

/// Looks at the GPUs' memory out of turn are at least this far apart: a program may run out of memory again and again.
const LOOK_NS: u64 = 50_000_000;

/// How long the end of the thread is waited for. A driver call that hangs must not hang gpuwhy.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to sample, and where.
#[derive(Debug, Clone)]
pub struct SampleOptions {
    /// Ask NVML. Without a driver this costs one try.
    pub gpus: bool,
    /// NVML's library, when it is not where the dynamic linker finds it.
    pub nvml_path: Option<PathBuf>,
    /// `/proc`.
    pub proc_root: PathBuf,
    /// `/sys/fs/cgroup`: mounts that `mountinfo` shows there are looked for here.
    pub cgroup_root: PathBuf,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self { gpus: true, nvml_path: None, proc_root: "/proc".into(), cgroup_root: "/sys/fs/cgroup".into() }
    }
}

/// A thread that takes [`Samples`] once a second. Dropped, it ends at once.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
}

/// State shared by the thread and its owner.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The owner changed something.
    wake: Condvar,
    /// The thread ended.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Samples>,
    dropped: u64,
    /// A request for an extra sample, and the extra samples.
    look: bool,
    looks: VecDeque<GpuSample>,
    /// The processes to sample, when they changed.
    watch: Option<Vec<u32>>,
    /// The driver, when it answered.
    nvml: Option<Box<Nvml>>,
    stop: Option<Stop>,
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// With a last sample.
    Finish,
    /// At once.
    Quit,
}

/// The next action of the thread.
#[derive(Debug)]
enum Next {
    Watch(Vec<u32>),
    Meet(Box<Nvml>),
    Look,
    Sample,
    Stop(Stop),
}

impl Sampler {
    /// Starts it. The first sample comes after a second; the processes come with [`Sampler::watch`].
    pub fn start(options: SampleOptions) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("samples".into()).spawn(move || {
            let ending = Ending(theirs);
            run(&ending.0, &options);
        });
        if thread.is_err() {
            // No thread, no samples: the run goes on without.
            shared.lock().ended = true;
        }
        Self { shared }
    }

    /// Replaces the processes to sample. Where their counters stand is noted now, so that what they do until the next
    /// sample counts.
    pub fn watch(&self, pids: &[u32]) {
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        self.shared.lock().watch = Some(pids);
        self.shared.wake.notify_one();
    }

    /// Samples not taken yet, oldest first. Does not wait.
    pub fn take(&self) -> Vec<Samples> {
        self.shared.lock().waiting.drain(..).collect()
    }

    /// Asks for a look at the GPUs' memory now, out of turn: memory ran out, and a second later the job may be gone.
    pub fn look(&self) {
        self.shared.lock().look = true;
        self.shared.wake.notify_one();
    }

    /// Extra samples not taken yet; they contain only memory.
    pub fn take_looks(&self) -> Vec<GpuSample> {
        self.shared.lock().looks.drain(..).collect()
    }

    /// Samples lost because they were not taken in time (after two minutes).
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// Takes a last sample, of the second that just runs, and hands out everything not taken yet, looks too.
    pub fn finish(self) -> (Vec<Samples>, Vec<GpuSample>) {
        self.shared.stop(Stop::Finish);
        (self.take(), self.take_looks())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop(Stop::Quit);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread and waits for it, unless it hangs in a driver call.
    fn stop(&self, stop: Stop) {
        let mut state = self.lock();
        // Told already, and waited for.
        if state.stop.replace(stop).is_some() {
            return;
        }
        self.wake.notify_one();
        let ended = self.done.wait_timeout_while(state, PATIENCE, |state| !state.ended);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for the time of the next sample (`CLOCK_MONOTONIC` ns) or a word of the owner.
    fn next(&self, at_ns: u64) -> Next {
        let mut state = self.lock();
        loop {
            if let Some(pids) = state.watch.take() {
                return Next::Watch(pids);
            }
            if let Some(stop) = state.stop {
                return Next::Stop(stop);
            }
            if let Some(nvml) = state.nvml.take() {
                return Next::Meet(nvml);
            }
            if std::mem::take(&mut state.look) {
                return Next::Look;
            }
            let left = at_ns.saturating_sub(now_ns());
            if left == 0 {
                return Next::Sample;
            }
            let woken = self.wake.wait_timeout(state, Duration::from_nanos(left));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn push(&self, samples: Samples) {
        let mut state = self.lock();
        if state.waiting.len() >= MOST_WAITING {
            state.waiting.pop_front();
            state.dropped += 1;
        }
        state.waiting.push_back(samples);
    }

    fn push_looks(&self, looks: Vec<GpuSample>) {
        let mut state = self.lock();
        state.looks.extend(looks);
        let beyond = state.looks.len().saturating_sub(MOST_WAITING);
        state.looks.drain(..beyond);
    }
}

/// Says that the thread ended, however it did.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.done.notify_all();
    }
}

/// The thread.
fn run(shared: &Arc<Shared>, options: &SampleOptions) {
    let mut next_ns = now_ns() + EVERY_NS;
    let mut readers = Readers::new(options);
    if options.gpus {
        open_beside(Arc::clone(shared), options.nvml_path.clone());
    }
    let nvml = OnceCell::new();
    let (mut gpus, mut looked_ns) = (None::<Gpus<'_>>, 0);
    loop {
        let stop = match shared.next(next_ns) {
            Next::Watch(pids) => {
                readers.watch(pids);
                continue;
            }
            Next::Meet(driver) => {
                gpus = Some(Gpus::new(nvml.get_or_init(|| driver)));
                continue;
            }
            Next::Look => {
                if let Some(gpus) = gpus.as_ref().filter(|_| now_ns() >= looked_ns + LOOK_NS) {
                    shared.push_looks(gpus.memory());
                    looked_ns = now_ns();
                }
                continue;
            }
            Next::Stop(Stop::Quit) => return,
            Next::Stop(Stop::Finish) => true,
            Next::Sample => false,
        };
        let mut samples = readers.read();
        if let Some(gpus) = &mut gpus {
            gpus.read(&mut samples);
        }
        shared.push(samples);
        if stop {
            return;
        }
        next_ns = after(next_ns, now_ns());
    }
}

/// The next time on the schedule.
fn after(planned_ns: u64, now_ns: u64) -> u64 {
    let missed = now_ns.saturating_sub(planned_ns) / EVERY_NS;
    planned_ns + (missed + 1) * EVERY_NS
}

/// Opens NVML on another thread: if no process uses the GPU, this can take seconds.
fn open_beside(shared: Arc<Shared>, path: Option<PathBuf>) {
    let open = move || {
        if let Some(nvml) = open_nvml(path.as_deref()) {
            shared.lock().nvml = Some(Box::new(nvml));
            shared.wake.notify_one();
        }
    };
    // Without the thread there are no GPU samples; everything else continues.
    let _ = std::thread::Builder::new().name("nvml".into()).spawn(open);
}

/// Everything that is read without a driver.
#[derive(Debug)]
struct Readers {
    system: SystemReader,
    processes: ProcessReader,
    cgroups: CgroupReader,
    watched: Vec<u32>,
}

impl Readers {
    /// Notes where the machine's counters stand.
    fn new(options: &SampleOptions) -> Self {
        let units = files::Units::read();
        let mut readers = Self {
            system: SystemReader::new(&options.proc_root, units),
            processes: ProcessReader::new(options.proc_root.clone(), units),
            cgroups: CgroupReader::new(options.proc_root.clone(), &options.cgroup_root),
            watched: Vec::new(),
        };
        readers.system.read();
        readers
    }

    /// Other processes from now on, sorted.
    fn watch(&mut self, pids: Vec<u32>) {
        self.processes.meet(&pids);
        self.cgroups.meet(&pids);
        self.watched = pids;
    }

    fn read(&mut self) -> Samples {
        Samples {
            system: self.system.read(),
            processes: self.processes.read(&self.watched),
            cgroups: self.cgroups.read(&self.watched),
            ..Default::default()
        }
    }
}
