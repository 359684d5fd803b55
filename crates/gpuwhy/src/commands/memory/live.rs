// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory --live`: a run's memory while it is recorded. Reads the new rows every second. Another thread examines
//! the whole run, less and less often as that takes longer.

use super::terminal::{Terminal, pause};
use crate::cli::Memory;
use crate::output;
use anyhow::Context;
use gpuwhy_ask::memory::{Examined, LiveRun, LiveUpdate, Picture, State, examine_unless};
use gpuwhy_ask::{Error, Part};
use gpuwhy_store::Reader;
use gpuwhy_view::{Style, memory_live};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.memory-live/1";
/// Time between updates.
const EVERY: Duration = Duration::from_secs(1);
/// Time between lines, without a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// The whole run is first examined after this long; then the pause is this many times the last examination: 3 % of the time.
const FIRST_EXAMINATION: Duration = Duration::from_secs(5);
const REST: u32 = 32;
/// The byte a terminal sends for Ctrl-D.
const CTRL_D: u8 = 4;
/// Growing lines shown without a terminal.
const GROWING: usize = 3;

pub(super) fn run(args: &Memory) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for Ctrl-C")?;
    }
    let run = args.run();
    let mut live = Live {
        run: LiveRun::new(&run, args.of.pids()),
        examiner: Examiner::new(&run, args.of.pids(), &stop),
        display: Display::new(args),
        stop,
    };
    let ended = live.watch()?;
    let Live { examiner, display, stop, .. } = live;
    drop(examiner);
    display.end(ended, &run, &part(args.of.pids()), &stop)?;
    Ok(ExitCode::SUCCESS)
}

fn part(pids: &[u32]) -> Part {
    Part { pids: pids.to_vec(), ..Part::default() }
}

/// `CLOCK_MONOTONIC`, the clock of the run's own times.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

struct Live {
    run: LiveRun,
    examiner: Examiner,
    display: Display,
    stop: Arc<AtomicBool>,
}

impl Live {
    /// Shows updates until the run ends or the user quits. Returns the run's end, and whether it had ended at the first
    /// update already.
    fn watch(&mut self) -> anyhow::Result<Option<(State, bool)>> {
        loop {
            let next = Instant::now() + EVERY;
            if let Some(examined) = self.examiner.done() {
                self.run.judged(&examined.report);
            }
            let stop = Arc::clone(&self.stop);
            let is_stopped = move || stop.load(Ordering::Relaxed);
            let update = match self.run.update(&is_stopped, now_ns(), !self.examiner.is_busy()) {
                Err(Error::Stopped) => return Ok(None),
                other => other?,
            };
            self.display.show(&update);
            match update.state {
                State::Waiting => {}
                State::Running => self.examiner.start_if_due(),
                ended => return Ok(Some((ended, update.is_first))),
            }
            if !self.wait(next) {
                return Ok(None);
            }
        }
    }

    /// Waits for the next update; `false` if the user quits.
    fn wait(&self, next: Instant) -> bool {
        while Instant::now() < next && !self.stop.load(Ordering::Relaxed) {
            // Ctrl-D quits most programs, so it quits this one.
            if matches!(self.display.key_before(next), Some(b'q' | b'Q' | CTRL_D)) {
                return false;
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Examines the whole run from time to time, on its own thread.
struct Examiner {
    path: PathBuf,
    pids: Vec<u32>,
    stop: Arc<AtomicBool>,
    /// Ends the examination at work.
    give_up: Arc<AtomicBool>,
    due: Option<Instant>,
    working: Option<JoinHandle<(Option<Examined>, Duration)>>,
}

impl Examiner {
    fn new(path: &Path, pids: &[u32], stop: &Arc<AtomicBool>) -> Self {
        let give_up = Arc::new(AtomicBool::new(false));
        Self { path: path.into(), pids: pids.to_vec(), stop: Arc::clone(stop), give_up, due: None, working: None }
    }

    fn is_busy(&self) -> bool {
        self.working.is_some()
    }

    fn start_if_due(&mut self) {
        let due = *self.due.get_or_insert_with(|| Instant::now() + FIRST_EXAMINATION);
        if self.is_busy() || Instant::now() < due {
            return;
        }
        let (path, part) = (self.path.clone(), part(&self.pids));
        let (stop, give_up) = (Arc::clone(&self.stop), Arc::clone(&self.give_up));
        let work = move || {
            let begun = Instant::now();
            let is_stopped = || stop.load(Ordering::Relaxed) || give_up.load(Ordering::Relaxed);
            // A failure may be gone next time; the updates report what is wrong with a file.
            let examined = Reader::open(&path).ok().and_then(|reader| examine_unless(&is_stopped, &reader, &part).ok());
            (examined, begun.elapsed())
        };
        self.working = std::thread::Builder::new().name("examine".into()).spawn(work).ok();
    }

    /// The result, once there is one.
    fn done(&mut self) -> Option<Examined> {
        let working = self.working.take_if(|working| working.is_finished())?;
        let (examined, took) = working.join().ok()?;
        self.due = Some(Instant::now() + (took * REST).max(FIRST_EXAMINATION));
        examined
    }
}

impl Drop for Examiner {
    fn drop(&mut self) {
        self.give_up.store(true, Ordering::Relaxed);
        if let Some(working) = self.working.take() {
            let _ = working.join();
        }
    }
}

/// The output.
enum Display {
    Screen { terminal: Terminal, style: Style, run: String },
    Plain(Plain),
    Json { run: String, waited: bool },
}

/// Output without a terminal, and what it has printed so far.
#[derive(Default)]
struct Plain {
    run: String,
    waited: bool,
    last: Option<Instant>,
    ooms: u64,
    verdict: Option<String>,
    notes: Vec<String>,
}

impl Display {
    fn new(args: &Memory) -> Self {
        let run = args.run().display().to_string();
        if args.json {
            return Self::Json { run, waited: false };
        }
        match Terminal::take() {
            Some(terminal) => Self::Screen { terminal, style: output::stdout_style(), run },
            None => Self::Plain(Plain { run, ..Plain::default() }),
        }
    }

    fn show(&mut self, update: &LiveUpdate) {
        match self {
            Self::Screen { terminal, style, run } => terminal.draw(&screen(update, run, terminal.size(), *style)),
            Self::Plain(plain) => plain.show(update),
            Self::Json { run, waited } => match update.state {
                State::Waiting if *waited => {}
                State::Waiting => {
                    *waited = true;
                    output::say(&json!({ "schema": SCHEMA, "type": "waiting", "run": run }).to_string());
                }
                _ => output::say(&picture_json(&update.picture, &update.state, run).to_string()),
            },
        }
    }

    fn key_before(&self, next: Instant) -> Option<u8> {
        match self {
            Self::Screen { terminal, .. } => terminal.key_before(next),
            // The reader of standard output is gone: quit.
            _ => pause(next.saturating_duration_since(Instant::now())).then_some(CTRL_D),
        }
    }

    /// Restores the terminal, then prints the verdict on the whole run if that has ended.
    fn end(self, ended: Option<(State, bool)>, db: &Path, part: &Part, stop: &AtomicBool) -> anyhow::Result<()> {
        let is_json = matches!(self, Self::Json { .. });
        drop(self);
        let Some((state, was_complete)) = ended else { return Ok(()) };
        let is_stopped = || stop.load(Ordering::Relaxed);
        let examine = || examine_unless(&is_stopped, &Reader::open(db)?, part);
        let report = match output::patiently("examining memory", examine) {
            Err(Error::Stopped) => return Ok(()),
            other => other?.report,
        };
        if is_json {
            let mut line = json!({ "schema": SCHEMA, "type": "end", "run": db.display().to_string() });
            line["state"] = state_name(&state).into();
            line["reason"] = if let State::Ended(reason) = &state { reason.as_str().into() } else { Value::Null };
            line["verdict"] = report.verdict.into();
            line["verdict_at_ns"] = report.to_ns.into();
            output::say(&line.to_string());
            return Ok(());
        }
        output::say(&end_line(&state, was_complete, db));
        let (width, style) = (output::stdout_columns(), output::stdout_style());
        gpuwhy_view::explain_view::verdict(&report.verdict, width, style).iter().for_each(|line| output::say(line));
        output::say(&style.dim(&format!("gpuwhy memory --db {} shows more", db.display())));
        Ok(())
    }
}

fn state_name(state: &State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::Running => "running",
        State::Ended(_) => "ended",
        State::Left => "left",
    }
}

fn end_line(state: &State, was_complete: bool, db: &Path) -> String {
    match state {
        State::Left => {
            format!("{}: recording stopped: gpuwhy was killed before it could end the run", db.display())
        }
        _ if was_complete => format!("{}: this run has already ended", db.display()),
        _ => format!("{}: the run has ended", db.display()),
    }
}

fn picture_json(picture: &Picture, state: &State, run: &str) -> Value {
    let mut value = serde_json::to_value(picture).unwrap_or_default();
    value["schema"] = SCHEMA.into();
    value["type"] = "memory".into();
    value["run"] = run.into();
    value["state"] = state_name(state).into();
    value
}

fn waiting(run: &str) -> [String; 2] {
    [
        format!("gpuwhy: waiting for a run at {run}"),
        format!("start one with `gpuwhy trace --db {run} -- …`, or choose another file with --db"),
    ]
}

fn screen(update: &LiveUpdate, run: &str, size: (usize, usize), style: Style) -> Vec<String> {
    if update.state == State::Waiting {
        let [what, how] = waiting(run);
        return vec![what, how, style.dim("q quits")];
    }
    let at = gpuwhy_model::units::time(update.picture.at_ns);
    memory_live::lines(&update.picture, &format!("gpuwhy memory  {run}  at {at}  (q quits)"), size, style)
}

impl Plain {
    fn show(&mut self, update: &LiveUpdate) {
        if update.state == State::Waiting {
            if !std::mem::replace(&mut self.waited, true) {
                output::say(&waiting(&self.run).join(": "));
            }
            return;
        }
        let picture = &update.picture;
        let new = usize::try_from(picture.oom_count.saturating_sub(self.ooms)).unwrap_or(usize::MAX);
        self.ooms = picture.oom_count;
        for oom in picture.ooms.iter().skip(picture.ooms.len().saturating_sub(new)) {
            output::say(&memory_live::oom_line(oom));
        }
        if picture.verdict != self.verdict {
            self.verdict.clone_from(&picture.verdict);
            let said = self.verdict.iter().map(|verdict| gpuwhy_model::units::safe(verdict, 1000));
            said.for_each(|verdict| output::say(&verdict));
        }
        if picture.notes != self.notes {
            self.notes.clone_from(&picture.notes);
            self.notes.iter().for_each(|note| output::say(note));
        }
        if update.state == State::Running && self.last.is_some_and(|last| last.elapsed() < PLAIN_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let seconds = picture.at_ns as f64 / 1e9;
        for space in &picture.spaces {
            output::say(&format!("{seconds:>6.0} s  {}", memory_live::space_line(space)));
        }
        for line in picture.growing.iter().filter(|line| line.steadily || line.leaks).take(GROWING) {
            output::say(&format!("{:>8}  grows: {}", "", memory_live::growing_line(line)));
        }
    }
}
