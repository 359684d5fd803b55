// SPDX-License-Identifier: Apache-2.0
//! Jobs that say what they do, copies of the libraries, and calls that nobody was listening to.

use super::compare::{ByThread, Recorded, list, recorded_calls, recorded_sums, true_sums};
use super::{Place, number, sim, succeed};
use gpuwhy_model::ops;
use simgpu::log::Call;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Insists that nothing was lost and that counts, errors and bytes are the log's, function by function.
pub fn assert_exact(place: &Place) {
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    assert_eq!(recorded_sums(&db, &truth), true_sums(&truth));
    let calls: u64 = true_sums(&truth).values().map(|sums| sums.calls).sum();
    let summed = format!(
        "SELECT SUM(calls) FROM seconds WHERE pid IN ({}) \
         AND op NOT IN (SELECT op FROM ops WHERE layer IN ('kernel', 'torch'))",
        list(&truth.pids())
    );
    assert_eq!(number(&db, &summed), calls as i64, "per-second sums cover every call");
}

/// Insists that nothing was lost, no detail either.
pub fn assert_nothing_lost(db: &rusqlite::Connection) {
    assert_eq!(number(db, "SELECT events_lost FROM sessions"), 0, "events lost");
    assert_eq!(losses(db), [], "any loss, details included");
}

/// Causes of loss and how often each was.
pub fn losses(db: &rusqlite::Connection) -> Vec<(String, i64)> {
    let mut statement = db.prepare("SELECT cause, SUM(count) FROM loss GROUP BY cause").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Another copy of all the libraries, at another path; its runtime.
pub fn copy_of_libraries(dir: &Path) -> PathBuf {
    let sim = sim();
    for file in [&sim.cuda, &sim.cudart, &sim.c10, &sim.nccl] {
        succeed(Command::new("cp").arg(file).arg(dir));
    }
    dir.join(sim.cudart.file_name().unwrap())
}

/// The words of every line that begins with `key`, without it.
pub fn rows<'a>(printed: &'a str, key: &str) -> Vec<Vec<&'a str>> {
    let lines = printed.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(|words| words[0] == key).map(|words| words[1..].to_vec()).collect()
}

/// The lines of JSON that a job printed.
pub fn reports(printed: &str) -> Vec<serde_json::Value> {
    printed.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last line of JSON.
pub fn report(printed: &str) -> serde_json::Value {
    reports(printed).pop().unwrap_or_else(|| panic!("no report in {printed:?}"))
}

/// Any job that says `ready PID` and then waits for a line.
pub struct Waiting {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    pub pid: u32,
}

impl Waiting {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let pid = line.strip_prefix("ready ").unwrap_or_else(|| panic!("the job said {line:?}"));
        let pid = pid.trim().parse().unwrap();
        Self { child, stdout, pid }
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    /// Its end and all it said.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Its end, which must be a good one, and all it said.
    pub fn end_well(self) -> String {
        let (status, said) = self.end();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// A time in which a process's calls were not watched, `CLOCK_MONOTONIC` ns.
#[derive(Debug)]
pub struct Unwatched {
    pub pid: u32,
    pub path: String,
    pub from_ns: u64,
    pub to_ns: u64,
}

pub fn unwatched(db: &rusqlite::Connection) -> Vec<Unwatched> {
    let origin = number(db, "SELECT start_monotonic_ns FROM sessions");
    let mut statement = db.prepare("SELECT pid, path, from_ns, to_ns FROM unwatched").unwrap();
    let rows = statement.query_map([], |row| {
        let at = |column| row.get::<_, i64>(column).map(|ns| (origin + ns) as u64);
        Ok(Unwatched { pid: row.get(0)?, path: row.get(1)?, from_ns: at(2)?, to_ns: at(3)? })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// How long a thread that was about to make a call may have had no CPU, ns.
const ON_ITS_WAY: u64 = 20_000_000;

/// A tie may be moved by nanoseconds.
const TIE: u64 = 100;

/// Whether a row can be this call under its driver's name: who made it could not be told.
fn is_same_of_driver(truth: &Call, got: &Recorded) -> bool {
    let twin = ops::by_function(&got.function).and_then(|op| op.runtime_twin?.get());
    let named = Call { function: got.function.as_str().into(), ..truth.clone() };
    match twin {
        Some(twin) => twin.function.as_str() == &*truth.function && is_same(&named, got),
        None => truth.function.starts_with("cuda") && !got.function.starts_with("cuda") && is_within(truth, got),
    }
}

/// Whether a row's time is part of the call's.
fn is_within(truth: &Call, got: &Recorded) -> bool {
    got.start_ns + TIE >= truth.enter_ns && got.end_ns <= truth.exit_ns + TIE
}

/// Whether a row can be this call.
fn is_same(truth: &Call, got: &Recorded) -> bool {
    let around = got.start_ns <= truth.enter_ns + TIE && got.end_ns + TIE >= truth.exit_ns;
    let at_driver = ops::by_function(&truth.function).is_some_and(|op| op.seen_at_driver || op.runtime_twin.is_some());
    got.function == *truth.function && (around || at_driver && is_within(truth, got))
}

/// Insists that the run file has these calls, of these processes none twice and no other, but for those made while a library of their
/// process was not watched. Returns how many have a row and how many have none.
pub fn assert_missing_are_unwatched(expected: &ByThread<Call>, db: &rusqlite::Connection) -> (usize, usize) {
    let (mut recorded, unwatched) = (recorded_calls(db, "events"), unwatched(db));
    // Where every process is traced, those of others on this machine are, too.
    let ours = |pid: u32| expected.keys().any(|(p, _)| *p == pid);
    recorded.retain(|(pid, _), _| ours(*pid));
    let (mut seen, mut missing, mut unexplained) = (0, 0, Vec::new());
    let mut late = std::collections::BTreeSet::new();
    let mut nameless = number(db, "SELECT COALESCE(SUM(count), 0) FROM loss WHERE cause = 'caller_unknown'");
    for (thread, calls) in expected {
        let mut rows = recorded.remove(thread).unwrap_or_default().into_iter().peekable();
        for call in calls {
            if rows.next_if(|row| is_same(call, row)).is_some() {
                seen += 1;
                continue;
            }
            if nameless > 0 && rows.next_if(|row| is_same_of_driver(call, row)).is_some() {
                (seen, nameless) = (seen + 1, nameless - 1);
                continue;
            }
            missing += 1;
            let told = |u: &Unwatched| u.pid == call.pid && (u.from_ns..=u.to_ns).contains(&call.enter_ns);
            // Seen once, 0.13 ms after an attach: probably a call that was past the place of the probe when that was set, and said
            // only later that it began. One for each thread.
            let on_its_way =
                |u: &Unwatched| u.pid == call.pid && (u.to_ns..u.to_ns + ON_ITS_WAY).contains(&call.enter_ns);
            let explained = unwatched.iter().any(told) || late.insert(*thread) && unwatched.iter().any(on_its_way);
            if !explained {
                unexplained.push(format!("{} of {} at {}", call.function, call.pid, call.enter_ns));
            }
        }
        let left = rows.next();
        assert!(left.is_none(), "a row without a call, in order, of {thread:?}: {left:?}");
    }
    assert!(recorded.is_empty(), "threads that made no call: {:?}", recorded.keys());
    let some = &unexplained[..unexplained.len().min(5)];
    assert!(
        unexplained.is_empty(),
        "{} calls are neither recorded nor said to be unwatched ({seen} recorded, {missing} not); such as {some:#?}; \
         unwatched: {unwatched:#?}",
        unexplained.len(),
    );
    (seen, missing)
}
