// SPDX-License-Identifier: Apache-2.0
//! hostjob under gpuwhy: its truth, the kernel's own figures, and the run file side by side.

use super::{GPUWHY, Place, number, open, sim};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What the kernel counted for a thread between two of its own marks, taken while it ran.
#[derive(Debug, Clone, Deserialize)]
pub struct Window {
    pub name: String,
    pub pid: u32,
    pub tid: u32,
    pub begin: i64,
    pub end: i64,
    /// By the thread's CPU clock.
    pub cpu_ns: i64,
    /// By schedstat, as `delay_ns`: ready, without a CPU.
    pub on_cpu_ns: i64,
    pub delay_ns: i64,
    pub read_bytes: i64,
    /// Switches because it blocked, and all others.
    pub voluntary: i64,
    pub involuntary: i64,
    pub major_faults: i64,
    /// Schedstat since the thread was made, at the end of the window.
    pub life_on_cpu_ns: i64,
    pub life_delay_ns: i64,
}

/// A child that hostjob waited for.
#[derive(Debug, Clone, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub code: i64,
    pub signal: i64,
    /// When it was dead for certain.
    pub reaped: i64,
    pub life_on_cpu_ns: i64,
    pub life_delay_ns: i64,
}

/// Schedstat of a thread: time on a CPU, and time ready without one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Schedstat {
    pub on_cpu_ns: i64,
    pub delay_ns: i64,
}

impl Schedstat {
    fn read(path: &str) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut numbers = text.split_whitespace().map(|n| n.parse().unwrap());
        Some(Self { on_cpu_ns: numbers.next()?, delay_ns: numbers.next()? })
    }
}

/// What the scheduler counted for a thread since it was traced.
#[derive(Debug)]
pub struct Life {
    pub pid: u32,
    pub tid: u32,
    /// A thread asks for its figures itself, at this time, a little before its end; those of a process are read
    /// when it is dead.
    pub until: Option<i64>,
    pub counted: Schedstat,
}

/// A row of the view `off_cpu`, with times of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone)]
pub struct Off {
    pub start: i64,
    pub duration: i64,
    pub ready: i64,
    pub reason: String,
    pub wait: String,
    pub syscall: String,
    pub file: String,
    pub io_wait: bool,
    pub woken_by: String,
    pub waker_pid: u32,
    pub waker_tid: u32,
    pub timeout_ns: Option<i64>,
    pub object: Option<i64>,
}

impl Off {
    pub fn end(&self) -> i64 {
        self.start + self.duration
    }

    /// When it could have gone on.
    pub fn woken(&self) -> i64 {
        self.end() - self.ready
    }

    pub fn blocked(&self) -> bool {
        matches!(self.reason.as_str(), "asleep" | "uninterruptible" | "stopped")
    }
}

/// A hostjob that ran to its end under gpuwhy.
pub struct HostRun {
    pub place: Place,
    pub db: rusqlite::Connection,
    pub pid: u32,
    /// `CLOCK_MONOTONIC` of the run file's zero.
    pub origin: i64,
    pub truth: Vec<Value>,
    /// Of threads that were there before: schedstat when gpuwhy came.
    before: BTreeMap<u32, Schedstat>,
    /// Of the first thread, when it was dead.
    last: Option<Schedstat>,
    /// CPU time that the hypervisor may have taken meanwhile: the scheduler leaves it out of a thread's time on a CPU.
    pub steal_ns: i64,
}

/// All CPUs' time taken by the hypervisor since the machine began.
fn stolen_ns() -> i64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: i64 = stat.lines().next().unwrap().split_whitespace().nth(8).map_or(0, |n| n.parse().unwrap());
    // SAFETY: only asks for a constant.
    ticks * 1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }
}

/// What it took since then. The counter has steps of 10 ms, and smaller thefts are the usual ones.
fn stolen_since(before: i64) -> i64 {
    let now = stolen_ns();
    if now == 0 { 0 } else { now - before + 1_000_000 }
}

/// Starts hostjob, which waits for a byte: what it prepares is done, and nothing happens in it.
fn start_held(place: &Place, args: &[&str]) -> Child {
    let mut command = Command::new(&sim().hostjob);
    command.args(args).arg("--wait").arg("--truth").arg(place.log());
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(job.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "hostjob {args:?}");
    job
}

/// Attaches gpuwhy to a process and waits until it says that it traces.
fn attach(place: &Place, pid: u32) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut command = Command::new(GPUWHY);
    command.args(["trace", "--budget", "none", "--pid", &pid.to_string(), "--db"]).arg(place.db());
    let mut tracing = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(tracing.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("tracing ") {
        let before = said.len();
        stderr.read_line(&mut said).unwrap();
        assert!(said.len() > before, "gpuwhy did not begin: {said}");
    }
    (tracing, stderr)
}

fn all_asleep(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|entry| std::fs::read_to_string(entry.unwrap().path().join("stat")).unwrap_or_default()).all(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('S'));
        state == Some(true)
    })
}

fn schedstats(pid: u32) -> BTreeMap<u32, Schedstat> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = tasks.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    tids.filter_map(|tid: u32| Some((tid, Schedstat::read(&format!("/proc/{pid}/task/{tid}/schedstat"))?))).collect()
}

/// Waits for a child's death without forgetting it: its figures in /proc are final then.
fn await_death(pid: u32) {
    // SAFETY: plain data, filled in by the call.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` lives through the call.
    let done = unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT) };
    assert_eq!(done, 0, "waitid {pid}");
}

impl HostRun {
    /// Starts hostjob, attaches gpuwhy, does what else is to be done, and lets the job run to its end.
    pub fn attached_after(args: &[&str], meanwhile: impl FnOnce(u32)) -> Self {
        let place = Place::new();
        let mut job = start_held(&place, args);
        let pid = job.id();
        // It may have been kept from a CPU on the way: what it has to wait for there is none of the trace's business.
        crate::common::until("every thread of the job sleeps", || all_asleep(pid));
        let before = schedstats(pid);
        meanwhile(pid);
        let stolen = stolen_ns();
        let (mut tracing, mut stderr) = attach(&place, pid);
        job.stdin.take().unwrap().write_all(b"g").unwrap();
        await_death(pid);
        let last = Schedstat::read(&format!("/proc/{pid}/schedstat"));
        let status = job.wait().unwrap();
        assert!(status.success(), "hostjob {args:?}: {status}");
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert!(tracing.wait().unwrap().success(), "{said}");
        Self::read(place, pid, before, last, stolen_since(stolen))
    }

    pub fn attached(args: &[&str]) -> Self {
        Self::attached_after(args, |_| ())
    }

    /// Lets gpuwhy start hostjob.
    pub fn launched(args: &[&str]) -> Self {
        let place = Place::new();
        let stolen = stolen_ns();
        let mut command = Command::new(GPUWHY);
        command
            .args(["trace", "--budget", "none", "--quiet", "--db"])
            .arg(place.db())
            .arg("--")
            .arg(&sim().hostjob)
            .args(args);
        super::succeed(command.arg("--truth").arg(place.log()));
        let main = lines(&place.log()).into_iter().rfind(|line| line["name"] == "main").unwrap();
        let pid = main["pid"].as_u64().unwrap() as u32;
        Self::read(place, pid, BTreeMap::new(), None, stolen_since(stolen))
    }

    fn read(place: Place, pid: u32, before: BTreeMap<u32, Schedstat>, last: Option<Schedstat>, steal_ns: i64) -> Self {
        let db = open(&place.db());
        let origin = number(&db, "SELECT start_monotonic_ns FROM sessions");
        let truth = lines(&place.log());
        let run = Self { db, pid, origin, truth, before, last, steal_ns, place };
        assert_eq!(number(&run.db, "SELECT events_lost FROM sessions"), 0, "nothing was lost");
        run
    }

    /// The lines of truth of one kind.
    pub fn told(&self, what: &str) -> Vec<&Value> {
        self.truth.iter().filter(|line| line["what"] == what).collect()
    }

    fn parsed<T: for<'a> Deserialize<'a>>(&self, what: &str) -> Vec<T> {
        self.told(what).into_iter().map(|line| serde_json::from_value(line.clone()).unwrap()).collect()
    }

    pub fn windows(&self) -> Vec<Window> {
        self.parsed("window")
    }

    pub fn window(&self, name: &str) -> Window {
        let found = self.windows().into_iter().find(|window| window.name == name);
        found.unwrap_or_else(|| panic!("no window of {name}"))
    }

    pub fn processes(&self) -> Vec<Process> {
        self.parsed("process")
    }

    /// Times off the CPU of a thread that began between two moments, in order.
    pub fn off(&self, tid: u32, begin: i64, end: i64) -> Vec<Off> {
        let sql = "SELECT timestamp, duration_ns, ready_ns, reason, COALESCE(wait, ''), COALESCE(syscall, ''), \
                   COALESCE(file, ''), io_wait, COALESCE(woken_by, ''), COALESCE(waker_pid, 0), \
                   COALESCE(waker_tid, 0), timeout_ns, object \
                   FROM off_cpu WHERE tid = ?1 AND timestamp BETWEEN ?2 AND ?3 ORDER BY timestamp";
        let mut statement = self.db.prepare(sql).unwrap();
        let rows = statement.query_map((tid, begin - self.origin, end - self.origin), |row| {
            Ok(Off {
                start: self.origin + row.get::<_, i64>(0)?,
                duration: row.get(1)?,
                ready: row.get(2)?,
                reason: row.get(3)?,
                wait: row.get(4)?,
                syscall: row.get(5)?,
                file: row.get(6)?,
                io_wait: row.get(7)?,
                woken_by: row.get(8)?,
                waker_pid: row.get(9)?,
                waker_tid: row.get(10)?,
                timeout_ns: row.get(11)?,
                object: row.get(12)?,
            })
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    pub fn off_in(&self, window: &Window) -> Vec<Off> {
        self.off(window.tid, window.begin, window.end)
    }

    /// One number from the run file; times in the condition are the run file's.
    pub fn number(&self, sql: &str) -> i64 {
        number(&self.db, sql)
    }

    /// Schedstat of every thread for the time it was traced: of those that hostjob made, and of the first.
    pub fn lives(&self) -> Vec<Life> {
        let of_threads = self.windows().into_iter().filter(|w| w.tid != w.pid).map(|w| {
            let counted = Schedstat { on_cpu_ns: w.life_on_cpu_ns, delay_ns: w.life_delay_ns };
            Life { pid: w.pid, tid: w.tid, until: Some(w.end), counted }
        });
        let of_processes = self.processes().into_iter().map(|p| {
            let counted = Schedstat { on_cpu_ns: p.life_on_cpu_ns, delay_ns: p.life_delay_ns };
            Life { pid: p.pid, tid: p.pid, until: None, counted }
        });
        let first = self.last.map(|counted| Life { pid: self.pid, tid: self.pid, until: None, counted });
        let since_traced = |mut life: Life| {
            let before = self.before.get(&life.tid).copied().unwrap_or_default();
            life.counted.on_cpu_ns -= before.on_cpu_ns;
            life.counted.delay_ns -= before.delay_ns;
            life
        };
        // Zero is what hostjob tells where the kernel has no schedstat.
        let known = |life: &Life| life.counted.on_cpu_ns > 0;
        of_threads.chain(of_processes).chain(first).filter(known).map(since_traced).collect()
    }
}

/// The lines of a truth file.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether this is a machine of tests/kernels, whose processors are emulated.
pub fn emulated() -> bool {
    std::env::var_os("GPUWHY_TEST_EMULATED").is_some()
}

/// Whether two times are the same within a share of the second and some nanoseconds.
pub fn close(got: i64, truth: i64, share: f64, slack_ns: i64) -> bool {
    (got - truth).abs() as f64 <= truth.abs() as f64 * share + slack_ns as f64
}
