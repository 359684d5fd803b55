// SPDX-License-Identifier: Apache-2.0
//! What must hold for every thread of every scenario: times add up, rows and sums agree, and both are what the
//! kernel counted itself.

use super::host::{HostRun, Schedstat, Window, emulated};

/// A row of `thread_time`.
#[derive(Debug)]
struct ThreadTime {
    pid: u32,
    tid: u32,
    lifetime: i64,
    on_cpu: i64,
    ready: i64,
    blocked: i64,
    throttled: i64,
    switches: i64,
    since: i64,
    /// Of the ready time, see [`waking`].
    waking: i64,
}

/// How far gpuwhy's and the scheduler's own sums may be apart, beside 1 %.
///
/// - The figures are not taken at once, those of a new process begin a little after its fork, and those of a dead
///   one are read a little before its last switch: 200 us.
/// - The scheduler reads its clock when it begins to look for the next thread, gpuwhy when it has found it: 2 us for
///   each switch.
fn slack(switches: i64) -> i64 {
    200_000 + 2_000 * switches
}

impl HostRun {
    /// Everything below. In an emulated machine (tests/kernels) what gpuwhy and the scheduler read from two clocks cannot be
    /// compared; that everything adds up does not depend on them.
    pub fn check(&self) {
        self.check_sums();
        if !emulated() {
            self.check_windows();
            self.check_schedstat();
        }
    }

    fn thread_times(&self) -> Vec<ThreadTime> {
        let sql = format!(
            "WITH woken AS ({}) \
             SELECT t.pid, t.tid, lifetime_ns, on_cpu_ns, ready_ns, blocked_ns, throttled_ns, switches, since, \
                    COALESCE((SELECT SUM(ns) FROM woken AS w WHERE w.pid = t.pid AND w.tid = t.tid), 0) \
             FROM thread_time AS t",
            waking("TRUE")
        );
        let mut statement = self.db.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| {
            Ok(ThreadTime {
                pid: row.get(0)?,
                tid: row.get(1)?,
                lifetime: row.get(2)?,
                on_cpu: row.get(3)?,
                ready: row.get(4)?,
                blocked: row.get(5)?,
                throttled: row.get(6)?,
                switches: row.get(7)?,
                since: row.get(8)?,
                waking: row.get(9)?,
            })
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Each thread's times add up to its life, and its rows to its times: nothing is lost.
    pub fn check_sums(&self) {
        let threads = self.thread_times();
        for window in self.windows() {
            let known = threads.iter().any(|t| (t.pid, t.tid) == (window.pid, window.tid));
            assert!(known, "no time of {} ({}/{})", window.name, window.pid, window.tid);
        }
        for thread in &threads {
            let sum = thread.on_cpu + thread.ready + thread.blocked;
            assert!((sum - thread.lifetime).abs() * 1000 <= thread.lifetime, "times of {thread:?} do not add up");
            assert!(thread.throttled <= thread.ready, "{thread:?}");
            self.check_rows_of(thread);
        }
    }

    fn check_rows_of(&self, thread: &ThreadTime) {
        let of = |what: &str| {
            let table = format!("FROM off_cpu WHERE pid = {} AND tid = {}", thread.pid, thread.tid);
            self.number(&format!("SELECT {what} {table}"))
        };
        // The last switch, from which a thread does not come back, makes no row; after an exec by another than the
        // first thread, two threads have had the number.
        let rows = of("COALESCE(SUM(weight), 0)");
        assert!((thread.switches - 2..=thread.switches).contains(&rows), "{rows} rows of {thread:?}");
        // A burst may be stored thinned out; its rows stand for others and do not add up.
        if of("MAX(weight)") > 1 {
            return;
        }
        for (name, total) in [("ready_ns", thread.ready), ("blocked_ns", thread.blocked)] {
            let rows = of(&format!("SUM({name})"));
            assert!((rows - total).abs() * 1000 <= total + 10_000_000, "{name} of rows: {rows}, of {thread:?}");
        }
        let throttled = of("SUM(CASE WHEN reason = 'throttled' THEN ready_ns END)");
        assert!((throttled - thread.throttled).abs() * 1000 <= thread.throttled + 10_000_000, "{throttled} {thread:?}");
    }

    /// Between a thread's own marks there are as many rows as the kernel counted switches, of each kind.
    pub fn check_windows(&self) {
        for window in self.windows() {
            let rows = self.off_in(&window);
            let blocked = rows.iter().filter(|row| row.blocked()).count() as i64;
            let others = rows.len() as i64 - blocked;
            assert_eq!((blocked, others), (window.voluntary, window.involuntary), "switches in {window:?}");
            self.check_window_times(&window, rows.iter().map(|row| row.duration).sum());
        }
    }

    fn check_window_times(&self, window: &Window, off: i64) {
        let on_cpu = window.end - window.begin - off;
        let (begin, end) = (window.begin - self.origin, window.end - self.origin);
        let within = format!("tid = {} AND timestamp BETWEEN {begin} AND {end}", window.tid);
        let waking = self.number(&format!("SELECT SUM(ns) FROM ({})", waking(&within)));
        let slack = slack(window.voluntary + window.involuntary) + self.put_off(&within);
        assert_between(on_cpu, window.cpu_ns, (waking, self.steal_ns), slack, &format!("on a CPU in {window:?}"));
    }

    /// Each thread's times are what the scheduler has in /proc/PID/task/TID/schedstat.
    pub fn check_schedstat(&self) {
        let threads = self.thread_times();
        for life in self.lives() {
            let found = threads.iter().find(|t| (t.pid, t.tid) == (life.pid, life.tid));
            let thread = found.unwrap_or_else(|| panic!("no time of {life:?}"));
            let (on_cpu, ready) = life.until.map_or((thread.on_cpu, thread.ready), |end| self.until(thread, end));
            let of_thread = format!("pid = {} AND tid = {}", thread.pid, thread.tid);
            let slack = slack(thread.switches) + self.put_off(&of_thread);
            let Schedstat { on_cpu_ns, delay_ns } = life.counted;
            let what = format!("{life:?} {thread:?}");
            assert_between(on_cpu, on_cpu_ns, (thread.waking, self.steal_ns), slack, &format!("on a CPU: {what}"));
            assert_between(ready, delay_ns, (0, thread.waking), slack, &format!("ready: {what}"));
        }
    }

    /// How far the scheduler's figures may be off for switches in the kernel. One that is asked for while the kernel
    /// copies or maps something large is put off, by up to a few ms; the scheduler's clock stands still from the asking
    /// on, and it takes that time for waiting. The thread runs meanwhile.
    fn put_off(&self, which: &str) -> i64 {
        let put_off = "reason = 'preempted' AND syscall IS NOT NULL";
        self.number(&format!("SELECT COUNT(*) FROM off_cpu WHERE {which} AND {put_off}")) * 4_000_000
    }

    /// A thread's time on a CPU and ready until a moment when it ran, by its rows.
    fn until(&self, thread: &ThreadTime, end: i64) -> (i64, i64) {
        let rows = self.off(thread.tid, self.origin + thread.since, end);
        let away: i64 = rows.iter().map(|row| row.duration).sum();
        let ready = rows.iter().map(|row| row.ready).sum();
        (end - self.origin - thread.since - away, ready)
    }
}

/// The SQL of threads' ready time that the scheduler may have counted as running instead.
///
/// Between the waking of a thread and the switch to it pass some 5 to 50 us, when its CPU idles or is taken from
/// somebody at once: another CPU must be told, and in a virtual machine woken. For those cases the scheduler saves
/// itself a look at its clock (`rq_clock_skip_update`), so that the thread seems to run from its waking on.
fn waking(which: &str) -> String {
    format!(
        "SELECT pid, tid, SUM(MIN(ready_ns, 50000)) AS ns FROM off_cpu \
         WHERE {which} AND reason NOT IN ('preempted', 'yielded', 'throttled') GROUP BY pid, tid \
         UNION ALL \
         SELECT pid, tid, SUM(duration_ns) FROM cpu_held WHERE {which} AND holder_tid = 0 GROUP BY pid, tid"
    )
}

/// Insists on `truth` within 1 % and the slack, or a known amount `(less, more)` beyond it.
///
/// What the hypervisor took is not running for the scheduler, but passes on any clock: `more` time on a CPU.
fn assert_between(got: i64, truth: i64, (less, more): (i64, i64), slack: i64, what: &str) {
    let slack = slack + truth / 100;
    assert!((truth - less - slack..=truth + more + slack).contains(&got), "{got} for {truth}: {what}");
}
