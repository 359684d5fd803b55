// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory --live`: really traces jobs with known memory behaviour on a simulated GPU while another process watches
//! them. Tests what is seen, not when.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, Tracing, can_trace, number, one_at_a_time, refusal, sim, succeed, text};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The marked line of memjob.py.
fn leak_line() -> String {
    let text = std::fs::read_to_string(&sim().memjob_py).unwrap();
    let number = text.lines().position(|line| line.ends_with("# LINE leak")).unwrap() + 1;
    format!("memjob.py:{number}")
}

fn live(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["memory", "--live", "--db"]).arg(place.db()).args(args);
    command
}

/// A trace of a job that leaks until it is stopped.
fn trace_of_a_leak(place: &Place) -> Tracing {
    let mut command = place.trace();
    command.args(["--quiet", "--", "python3"]).arg(&sim().memjob_py);
    command.args(["leak", "--steps", "100000", "--step-ms", "20"]);
    Tracing::spawn(&mut command, place)
}

/// A live view as JSON lines.
struct Watched {
    child: Child,
    lines: Receiver<Value>,
}

impl Watched {
    fn start(place: &Place) -> Self {
        let mut child = live(place, &["--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = json_lines(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line for which this holds.
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let (mut last, began) = (Value::Null, Instant::now());
        loop {
            let line = self.lines.recv_timeout(LIMIT.saturating_sub(began.elapsed()));
            last = line.unwrap_or_else(|error| panic!("never happened: {what} ({error}); last was {last:#}"));
            if holds(&last) {
                return last;
            }
        }
    }

    /// All lines that are left, and a good end.
    fn end(mut self) -> Vec<Value> {
        let rest = self.lines.iter().collect();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

fn json_lines(from: ChildStdout) -> Receiver<Value> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}")));
        }
    });
    lines
}

#[test]
fn a_leak_is_seen_while_it_grows_and_the_end_is_the_report() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let watched = Watched::start(&place);
    let first = watched.until("it waits", |_| true);
    assert_eq!((&first["type"], &first["schema"]), (&"waiting".into(), &"gpuwhy.memory-live/1".into()));
    let tracing = trace_of_a_leak(&place);
    let grows =
        |line: &Value| line["growing"][0]["line"] == leak_line().as_str() && line["growing"][0]["steadily"] == true;
    let seen = watched.until("the line that grows", grows);
    assert_eq!((&seen["state"], &seen["spaces"][0]["source"]), (&"running".into(), &"torch".into()), "{seen:#}");
    let space = &seen["spaces"][0];
    assert!(space["allocated"].as_u64() <= space["reserved"].as_u64(), "{space:#}");
    assert!(space["bytes_per_second"].as_f64().unwrap() > 0.0, "{space:#}");
    let judged = watched.until("the verdict", |line| line["verdict"].as_str().is_some_and(|v| v.contains("leaks")));
    assert!(judged["verdict"].as_str().unwrap().contains(&leak_line()), "{judged:#}");
    tracing.interrupt();
    let rest = watched.end();
    let [.., last, end] = rest.as_slice() else { panic!("{rest:#?}") };
    assert_eq!((&end["type"], &end["state"]), (&"end".into(), &"ended".into()), "{end:#}");
    // Nothing was missed: the peak is the report's, to the byte.
    let report = succeed(Command::new(GPUWHY).args(["memory", "--json", "--db"]).arg(place.db()));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(end["verdict"], report["verdict"]);
    assert_eq!(last["spaces"][0]["peak_allocated"], report["spaces"][0]["peak_allocated"], "{last:#}");
    assert_eq!(last["spaces"][0]["ended"], true, "{last:#}");
}

#[test]
fn an_ended_run_shows_its_refusals_and_a_killed_one_is_noticed() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut oom = place.trace();
    oom.env("SIMGPU_MEM", "256M").args(["--quiet", "--", "python3"]).arg(&sim().memjob_py);
    let output = oom.args(["oom", "--steps", "2000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let said = String::from_utf8(succeed(&mut live(&place, &[])).stdout).unwrap();
    for part in ["out of memory at", "has already ended", &leak_line(), "shows more"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
    assert!(!said.contains('\x1b'), "no terminal, no colours: {said:?}");
    let lines = Watched::start(&place).end();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0]["oom_count"].as_u64().unwrap() > 0, "{:#}", lines[0]);
    // A run whose gpuwhy was killed.
    let place = Place::new();
    let tracing = trace_of_a_leak(&place);
    let watched = Watched::start(&place);
    watched.until("something is allocated", |line| line["spaces"][0]["allocated"].as_u64() > Some(0));
    tracing.signal("KILL");
    tracing.end();
    end_orphan(&place);
    let lines = watched.end();
    assert_eq!(lines.last().unwrap()["state"], "left", "{lines:#?}");
    // A file that is not a run is refused.
    std::fs::write(place.dir.path().join("no.db"), "something else").unwrap();
    let mut other = Command::new(GPUWHY);
    refusal(other.args(["memory", "--live", "--json", "--db"]).arg(place.dir.path().join("no.db")), 1);
}

/// Ends the job of a gpuwhy that was killed.
fn end_orphan(place: &Place) {
    let pid = number(&place.run_file(), "SELECT pid FROM processes WHERE name LIKE '%memjob%' LIMIT 1");
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
}

/// A live view on a terminal of 24 lines and 90 columns.
struct OnTerminal {
    child: Child,
    screen: Receiver<Vec<u8>>,
    keys: File,
    seen: String,
}

impl OnTerminal {
    fn start(place: &Place, no_color: bool) -> Self {
        let (mut master, mut slave) = (0, 0);
        let mut size = libc::winsize { ws_row: 24, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
        let (name, settings) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: fills two descriptors; the size is ours.
        assert_eq!(unsafe { libc::openpty(&raw mut master, &raw mut slave, name, settings, &raw mut size) }, 0);
        // SAFETY: both were just opened and belong to nobody else.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let mut command = live(place, &[]);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        if no_color {
            command.env("NO_COLOR", "1");
        }
        command.stdin(slave.try_clone().unwrap()).stdout(slave).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        // The command keeps the terminal's other end open as long as it exists.
        drop(command);
        let (keys, mut output) = (File::from(master.try_clone().unwrap()), File::from(master));
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let _ = send.send(buffer[..count].to_vec());
            }
        });
        Self { child, screen, keys, seen: String::new() }
    }

    fn until_seen(&mut self, part: &str) {
        let began = Instant::now();
        while !self.seen.contains(part) {
            let more = self.screen.recv_timeout(LIMIT.saturating_sub(began.elapsed()));
            let more = more.unwrap_or_else(|error| panic!("{part} never came ({error}): {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&more);
        }
    }

    /// Waits for a successful end that restores the terminal.
    fn end(mut self) -> String {
        assert!(self.child.wait().unwrap().success());
        while let Ok(more) = self.screen.recv_timeout(LIMIT) {
            self.seen += &String::from_utf8_lossy(&more);
        }
        let place = self.seen.rfind("\x1b[?25h\x1b[?1049l");
        assert!(place.is_some() && self.seen.contains("\x1b[?1049h"), "{:?}", self.seen);
        self.seen
    }
}

#[test]
fn a_terminal_is_redrawn_and_restored() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut waiting = OnTerminal::start(&place, true);
    waiting.until_seen("waiting for a run");
    waiting.keys.write_all(b"q").unwrap();
    let seen = waiting.end();
    assert!(!seen.contains("\x1b[1m") && !seen.contains("\x1b[2m"), "NO_COLOR: {seen:?}");
    let tracing = trace_of_a_leak(&place);
    let mut watched = OnTerminal::start(&place, false);
    watched.until_seen("in use");
    // The fullest of the recent seconds.
    watched.until_seen("█");
    succeed(Command::new("kill").args(["-TERM", &watched.child.id().to_string()]));
    assert!(watched.end().contains("\x1b[1m"), "colours");
    let mut watched = OnTerminal::start(&place, true);
    watched.until_seen("in use");
    tracing.interrupt();
    let seen = watched.end();
    let after = seen.rsplit("\x1b[?1049l").next().unwrap();
    assert!(after.contains("the run has ended") && after.contains("shows more"), "{after:?}");
}

#[test]
fn it_quits_when_nothing_reads_its_output() {
    let place = Place::new();
    let mut pipe = Command::new("sh");
    let script = r#"{ "$0" memory --live --db "$1"; echo "ended $?" >&2; } | head -1"#;
    let output = succeed(pipe.args(["-c", script, GPUWHY]).arg(place.db()));
    let said = text(&output);
    assert!(said.contains("waiting for a run") && said.contains("ended 0") && !said.contains("panic"), "{said}");
}
