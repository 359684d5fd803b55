// SPDX-License-Identifier: Apache-2.0
//! The sampler on this machine, against what others say of it.

use super::*;
use crate::capture::now_ns;
use gpuwhy_model::sample::ProcessSample;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

mod gpu;

fn without_gpus() -> SampleOptions {
    SampleOptions { gpus: false, ..Default::default() }
}

fn readers() -> Readers {
    Readers::new(&without_gpus())
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // Beside the test's own program, not in /tmp: that may be memory, and writing there is no storage.
        let program = std::env::current_exe().unwrap();
        let path = program.with_file_name(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A shell that does one thing for each line it is sent, and says `done` after it.
struct Helper(Child);

impl Helper {
    fn start() -> Self {
        let script = "while read -r line; do eval \"$line\"; echo done; done";
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(shell.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn send(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Everything it printed before `done`.
    fn answer(&mut self) -> String {
        let mut out = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        let mut text = String::new();
        loop {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "the helper ended");
            if line == "done\n" {
                return text;
            }
            text.push_str(&line);
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    /// The shell's own CPU time by `times`: user and system, seconds.
    fn times(&mut self) -> (f64, f64) {
        let text = self.ask("times");
        let mut words = text.split_whitespace().map(|word| {
            let (minutes, seconds) = word.trim_end_matches('s').split_once('m').unwrap();
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        });
        (words.next().unwrap(), words.next().unwrap())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn only(samples: Samples) -> ProcessSample {
    assert_eq!(samples.processes.len(), 1, "{samples:?}");
    samples.processes[0].clone()
}

#[test]
fn cpu_time_is_what_the_process_itself_says() {
    let mut helper = Helper::start();
    helper.ask("for ((i = 0; i < 100000; i++)); do :; done");
    let mut readers = readers();
    readers.watch(vec![helper.pid()]);
    let before = helper.times();
    let wall = Instant::now();
    helper.ask("for ((i = 0; i < 400000; i++)); do [ -e /proc/self ] ; done");
    let wall = wall.elapsed().as_secs_f64();
    let after = helper.times();
    let samples = readers.read();
    let system = samples.system.clone().unwrap();
    let process = only(samples);
    let (user, kernel) = (after.0 - before.0, after.1 - before.1);
    assert!(user > 0.3 && kernel > 0.1, "the helper did too little: {user} {kernel}");
    let measured = (process.user_ns as f64 / 1e9, process.system_ns as f64 / 1e9);
    // Ticks of 10 ms at both ends, and the loop around `times`.
    assert!(
        (measured.0 - user).abs() < 0.05 && (measured.1 - kernel).abs() < 0.05,
        "{measured:?}, truth {user} {kernel}"
    );
    assert!((process.span_ns as f64 / 1e9 - wall) < 0.5, "{} {wall}", process.span_ns);
    // The machine did at least that, and all CPUs together did no more than there was time.
    assert!(system.user_ns as f64 / 1e9 > user - 0.1, "{system:?}");
    let all = system.user_ns + system.system_ns + system.iowait_ns + system.idle_ns + system.steal_ns;
    let available = system.span_ns * u64::from(system.cores);
    assert!(all.abs_diff(available) < available / 5 + 100_000_000, "{all} of {available}");
    // SAFETY: reads a number.
    assert_eq!(i64::from(system.cores), unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) });
    assert!(system.load1.is_some() && system.runnable.is_some_and(|tasks| tasks >= 1));
    assert!(system.memory_available.unwrap() < system.memory_total.unwrap() && system.swap_in.is_some());
}

#[test]
fn a_process_that_began_later_counts_from_its_start() {
    let mut readers = readers();
    let mut helper = Helper::start();
    helper.ask("for ((i = 0; i < 200000; i++)); do :; done");
    // Met only now: nothing noted before.
    readers.watched = vec![helper.pid()];
    let began = crate::process::started_ns(helper.pid()).unwrap();
    let first = only(readers.read());
    let (user, _) = helper.times();
    assert!((first.user_ns as f64 / 1e9 - user).abs() < 0.05, "{first:?}, truth {user}");
    assert!(first.minor_faults > 0 && first.threads == 1 && first.resident > 1 << 20);
    assert!((first.at_ns - first.span_ns).abs_diff(began) < 1_000_000, "{first:?} {began}");
    // One that is older than the sampler: only from now on.
    let mut later = self::readers();
    std::thread::sleep(Duration::from_millis(30));
    later.processes.meet(&[helper.pid()]);
    let mut older = Readers::new(&without_gpus());
    older.watched = vec![helper.pid()];
    assert_eq!((only(older.read()).user_ns, later.processes.read(&[helper.pid()])[0].minor_faults), (0, 0));
}

#[test]
fn bytes_written_and_memory_touched_are_seen() {
    let folder = Folder::new("gpuwhy-sample-io");
    let mut helper = Helper::start();
    let mut readers = readers();
    helper.ask(":");
    readers.watch(vec![helper.pid()]);
    let before = only(readers.read());
    let file = folder.0.join("file");
    // The shell itself writes: 8 MiB in a variable, which is memory too.
    helper.ask("x=$(head -c 8388608 /dev/zero | tr '\\0' x)");
    helper.ask(&format!("printf %s \"$x\" > {}", file.display()));
    let after = only(readers.read());
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
    let written = after.write_bytes.unwrap();
    assert!((8 << 20..9 << 20).contains(&written), "{written}");
    assert!(after.resident > before.resident + (7 << 20), "{before:?} {after:?}");
    assert!(after.anonymous.unwrap() > before.anonymous.unwrap() + (7 << 20));
    assert_eq!((after.swapped, after.page_allocations, after.page_bytes), (Some(0), None, None));
    assert!(after.minor_faults > 1000, "{after:?}");
}

#[test]
fn threads_are_counted_and_a_zombie_is_told_of_once() {
    let mut helper = Helper::start();
    let mut readers = readers();
    let child = helper.ask("bash -c 'for ((i = 0; i < 200000; i++)); do :; done' & echo $!; wait -n 2>/dev/null; :");
    let child: u32 = child.trim().parse().unwrap();
    readers.watched = vec![child];
    // The shell waited for it: it is gone, and that is no error.
    assert!(readers.read().processes.is_empty());
    let mut zombie = Command::new("bash");
    let mut zombie = zombie.args(["-c", "for ((i = 0; i < 200000; i++)); do :; done"]).spawn().unwrap();
    readers.watched = vec![zombie.id()];
    while crate::process::is_running(zombie.id()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let last = only(readers.read());
    assert!(last.user_ns >= 50_000_000 && last.resident == 0, "{last:?}");
    assert!(readers.read().processes.is_empty());
    zombie.wait().unwrap();
    assert!(readers.read().processes.is_empty());
    readers.watched = vec![std::process::id()];
    assert!(only(readers.read()).threads >= 2);
}

#[test]
fn pressure_grows_when_more_run_than_there_are_cpus() {
    if !Path::new("/proc/pressure/cpu").exists() {
        eprintln!("this kernel counts no pressure: only the parser was tested");
        return;
    }
    let mut readers = readers();
    // SAFETY: reads a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize;
    let mut helpers: Vec<Helper> = (0..cores + 2).map(|_| Helper::start()).collect();
    for helper in &mut helpers {
        helper.send("for ((i = 0; i < 300000; i++)); do :; done");
    }
    for helper in &mut helpers {
        helper.answer();
    }
    let busy = readers.read().system.unwrap();
    let stalled = busy.pressure_cpu_ns.unwrap();
    assert!(stalled > busy.span_ns / 20 && stalled <= busy.span_ns + 20_000_000, "{busy:?}");
    assert!(busy.pressure_memory_some_ns.is_some() && busy.pressure_io_full_ns.is_some());
}

/// A cgroup of version 1 with so little CPU time that it is throttled on a busy machine too; if we may make one.
struct TenthOfCpu(PathBuf);

impl TenthOfCpu {
    fn make() -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/cpu/gpuwhy-sample-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let made = Self(folder);
        std::fs::write(made.0.join("cpu.cfs_period_us"), "50000").ok()?;
        std::fs::write(made.0.join("cpu.cfs_quota_us"), "5000").ok()?;
        Some(made)
    }
}

impl Drop for TenthOfCpu {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_cgroup_with_a_tenth_of_a_cpu_is_seen_to_throttle() {
    let Some(cgroup) = TenthOfCpu::make() else {
        eprintln!("no cgroup of version 1 can be made here (not root, or none mounted): only the parser was tested");
        return;
    };
    let mut helper = Helper::start();
    std::fs::write(cgroup.0.join("cgroup.procs"), helper.pid().to_string()).unwrap();
    let mut readers = readers();
    readers.watch(vec![helper.pid()]);
    let before = helper.times();
    let start = now_ns();
    helper.ask("for ((i = 0; i < 80000; i++)); do :; done");
    let samples = readers.read();
    let span = now_ns() - start;
    let after = helper.times();
    let name = format!("/{}", cgroup.0.file_name().unwrap().to_string_lossy());
    let found = samples.cgroups.iter().find(|c| c.path == name).unwrap_or_else(|| panic!("{:?}", samples.cgroups));
    assert_eq!((found.version, found.quota_ns, found.period_ns), (1, Some(5_000_000), Some(50_000_000)));
    let (periods, throttled) = (found.periods.unwrap(), found.throttled_periods.unwrap());
    assert!(periods.abs_diff(span / 50_000_000) <= 2 + periods / 10, "{periods} in {span} ns");
    assert!(throttled > periods / 2 && throttled <= periods, "{throttled} of {periods}");
    let used = (after.0 + after.1 - before.0 - before.1) * 1e9;
    let idle = span as f64 - used;
    // What it did not use it was throttled, but for waiting for a CPU when its turn came.
    let throttled = found.throttled_ns.unwrap() as f64;
    assert!(throttled > idle * 0.4 && throttled < idle * 1.1, "{found:?}: {used} of {span} used");
    // Whoever is in a cgroup of its own for CPU has its memory elsewhere on this machine.
    assert!(samples.cgroups.iter().any(|c| c.path != name && c.memory_used.is_some()), "{:?}", samples.cgroups);
    drop(helper);
}

#[test]
fn the_thread_keeps_its_schedule_and_ends_at_once() {
    let mut helper = Helper::start();
    let sampler = Sampler::start(without_gpus());
    sampler.watch(&[helper.pid(), helper.pid()]);
    std::thread::sleep(Duration::from_millis(3300));
    helper.ask(":");
    let taken = sampler.take();
    assert!(sampler.take().is_empty());
    let start = Instant::now();
    let (last, looks) = sampler.finish();
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    let at: Vec<u64> = taken.iter().chain(&last).map(|s| s.system.as_ref().unwrap().at_ns).collect();
    assert_eq!((taken.len(), last.len(), looks.len()), (3, 1, 0), "{at:?}");
    for pair in at[..3].windows(2) {
        assert!((pair[1] - pair[0]).abs_diff(EVERY_NS) < 200_000_000, "{at:?}");
    }
    assert!(at[3] - at[2] < 700_000_000, "{at:?}");
    assert!(taken.iter().chain(&last).all(|s| s.processes.len() == 1), "one process, watched twice");
    let spans: u64 = taken.iter().chain(&last).map(|s| s.system.as_ref().unwrap().span_ns).sum();
    assert!((3_200_000_000..4_000_000_000).contains(&spans), "{spans}");
}

#[test]
fn a_dropped_sampler_ends_and_a_late_consumer_loses_the_oldest() {
    let start = Instant::now();
    drop(Sampler::start(without_gpus()));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    let shared = Shared::default();
    for at_ns in 0..MOST_WAITING as u64 + 3 {
        let system = gpuwhy_model::sample::SystemSample { at_ns, ..Default::default() };
        shared.push(Samples { system: Some(system), ..Default::default() });
    }
    let state = shared.lock();
    assert_eq!((state.waiting.len(), state.dropped), (MOST_WAITING, 3));
    assert_eq!(state.waiting[0].system.as_ref().unwrap().at_ns, 3);
}

#[test]
fn a_schedule_has_no_drift_and_makes_nothing_up() {
    let s = EVERY_NS;
    assert_eq!(after(5 * s, 5 * s + 1), 6 * s);
    assert_eq!(after(5 * s, 6 * s - 1), 6 * s);
    assert_eq!(after(5 * s, 8 * s + 7), 9 * s);
    assert_eq!(after(5 * s, 4 * s), 6 * s);
}

/// CPU time of this thread, nanoseconds.
fn thread_cpu_ns() -> u64 {
    files::clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[test]
fn a_sample_is_cheap() {
    let mut sleepers: Vec<Child> = (0..50)
        .map(|_| {
            let mut sleep = Command::new("sleep");
            // SAFETY: only asks the kernel to end the child with us.
            unsafe {
                sleep.arg("60").pre_exec(|| {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    Ok(())
                })
            };
            sleep.spawn().unwrap()
        })
        .collect();
    let mut readers = readers();
    readers.watch(sleepers.iter().map(Child::id).collect());
    assert_eq!(readers.read().processes.len(), 50);
    let start = thread_cpu_ns();
    for _ in 0..20 {
        readers.read();
    }
    let each = (thread_cpu_ns() - start) / 20;
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    println!("one sample with 50 processes: {} µs of CPU time", each / 1000);
    assert!(each < 50_000_000, "{each} ns");
}
