// SPDX-License-Identifier: Apache-2.0
//! The accounting at the end of a trace: calls, loss, file and overhead.

use crate::thinned::Thinned;
use crate::trace::budget::JobCost;
use crate::trace::cost::OwnCost;
use gpuwhy_model::{LossCause, Unwatched, units};
use gpuwhy_view::ops_table::TIME_NOTE;
use gpuwhy_view::{OpsTable, Style};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// From so many events on, bytes per event mean something: an empty file takes about 200 kB.
const ENOUGH_EVENTS: u64 = 10_000;
/// Overhead below this share is not given exactly.
const LEAST_SHARE: f64 = 0.001;

/// The end of a trace.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) elapsed: Duration,
    /// Known events of all kinds: stored and lost together.
    pub(crate) seen: u64,
    /// CUDA calls the program made, part of `seen`.
    pub(crate) cuda_calls: u64,
    pub(crate) stored: u64,
    pub(crate) lost: u64,
    /// Stored events that are represented by another's row.
    pub(crate) thinned: u64,
    pub(crate) max_size: Option<u64>,
    pub(crate) loss_by_cause: BTreeMap<LossCause, u64>,
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    pub(crate) own: OwnCost,
    pub(crate) job_cost: JobCost,
    /// Functions that were paused at times to stay within the budget.
    pub(crate) incomplete: Vec<&'static str>,
    pub(crate) unwatched: UnwatchedTime,
    /// How long gpuwhy ran, attaching and detaching included; the base of its CPU share.
    pub(crate) alive: Duration,
    pub(crate) libraries: usize,
    /// Different Python call sites seen.
    pub(crate) stacks: u64,
    pub(crate) problem: Option<String>,
    pub(crate) table: OpsTable,
}

/// Times in which libraries were in use before they were watched.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct UnwatchedTime {
    /// How often.
    pub(crate) times: u64,
    /// The longest, ns.
    pub(crate) longest_ns: u64,
    /// How often a library was not watched at all.
    pub(crate) never: u64,
}

impl UnwatchedTime {
    pub(crate) fn add(&mut self, row: &Unwatched) {
        if row.to_ns == u64::MAX {
            self.never += 1;
            return;
        }
        self.times += 1;
        self.longest_ns = self.longest_ns.max(row.to_ns.saturating_sub(row.from_ns));
    }

    fn words(self) -> impl Iterator<Item = String> {
        let never = (self.never > 0).then(|| {
            let times = units::count(self.never);
            format!("not watched: {times} times gpuwhy could not attach to a process's CUDA library (view `unwatched`)")
        });
        let late = (self.times > 0).then(|| {
            format!(
                "{} times a library was in use before gpuwhy attached, for at most {}: calls made then are missing (view `unwatched`)",
                units::count(self.times),
                units::time(self.longest_ns)
            )
        });
        never.into_iter().chain(late)
    }
}

impl Summary {
    /// For people: what was recorded, where, what was lost and what it cost the job; warnings. `verbose` adds the op table and
    /// what gpuwhy itself used.
    pub(crate) fn lines(&self, verbose: bool, width: usize, style: Style) -> Vec<String> {
        let mut lines = vec![String::new()];
        if verbose && !self.table.rows.is_empty() {
            lines.extend(self.table.lines(40, width, style));
            lines.push(style.dim(TIME_NOTE));
            lines.push(String::new());
        }
        let lost = match self.lost {
            0 => style.green("none lost"),
            n => style.red(&format!("{} of {} lost ({})", units::count(n), units::count(self.seen), self.causes())),
        };
        let host = match self.seen.saturating_sub(self.cuda_calls) {
            0 => String::new(),
            n => format!(" and {} other events", units::count(n)),
        };
        lines.push(format!(
            "gpuwhy: recorded {} calls{host} in {}, {lost}",
            units::count(self.cuda_calls),
            units::time(self.elapsed.as_nanos() as u64),
        ));
        let file = units::safe(&self.path.display().to_string(), 500);
        let overhead =
            if self.cuda_calls > 0 { format!(", overhead about {}", self.overhead()) } else { String::new() };
        lines.push(format!("        {file}: {}{overhead}", units::bytes(self.size_bytes)));
        if verbose {
            lines.extend(self.details().into_iter().map(|detail| format!("        {detail}")));
        }
        if !self.incomplete.is_empty() {
            let functions = self.incomplete.join(", ");
            let text = format!("paused at times to stay within --budget: {functions}; their counts are too low");
            lines.push(format!("        {}", style.yellow(&text)));
        }
        lines.extend(self.unwatched.words().map(|words| format!("        {words}")));
        lines.extend(self.unread().map(|unread| format!("        {unread}")));
        lines.extend(self.kept_small().note().map(|note| format!("        {note}")));
        let python = self.python_troubles();
        lines.extend(python.into_iter().map(|trouble| format!("        Python: {trouble}")));
        lines.extend(self.advice().map(|advice| format!("        {}", style.yellow(&advice))));
        lines
    }

    /// What tracing cost the job: the share of its busiest process's time.
    fn overhead(&self) -> String {
        let share = self.job_cost.probes + self.job_cost.switches;
        let share = if share < LEAST_SHARE { "0.1 % or less".to_owned() } else { units::percent(share, 1.0) };
        format!("{share} of the job's busiest process")
    }

    /// With --verbose: the rows in the file, how the overhead is made up, and what gpuwhy itself used.
    fn details(&self) -> Vec<String> {
        let percent = |share: f64| units::percent(share, 1.0);
        let mut details = vec![format!("{} events stored{}", units::count(self.stored), self.bytes_each())];
        if self.cuda_calls > 0 {
            let (probes, switches) = (percent(self.job_cost.probes), percent(self.job_cost.switches));
            details.push(format!("overhead: CUDA calls {probes}, context switches {switches}"));
        }
        details.push(format!(
            "gpuwhy itself: {} of CPU ({} of a core), peak memory {}",
            units::time(self.own.cpu_ns),
            units::percent(self.own.cpu_ns as f64, self.alive.as_nanos() as f64),
            units::bytes(self.own.peak_memory_bytes),
        ));
        details.extend((self.stacks > 0).then(|| format!("Python: {} call sites", units::count(self.stacks))));
        details
    }

    /// Bytes per event in the file. Left out for a short run, whose file is mostly of fixed size.
    fn bytes_each(&self) -> String {
        if self.stored < ENOUGH_EVENTS {
            return String::new();
        }
        self.size_bytes.checked_div(self.stored).map(|n| format!(", {n} bytes an event")).unwrap_or_default()
    }

    fn kept_small(&self) -> Thinned {
        let refused = self.loss_by_cause.get(&LossCause::SizeCap).copied().unwrap_or(0);
        Thinned { stored: self.stored, thinned: self.thinned, refused, max_size: self.max_size }
    }

    /// Processes whose libraries could not be read.
    fn unread(&self) -> Option<String> {
        let processes = self.loss_by_cause.get(&LossCause::ProcessUnread)?;
        Some(format!("not watched: {} processes whose libraries could not be read in time", units::count(*processes)))
    }

    /// Python stacks that are incomplete or missing.
    fn python_troubles(&self) -> Option<String> {
        let of = |cause, what: &str| self.loss_by_cause.get(&cause).map(|n| format!("{} {what}", units::count(*n)));
        let troubles = [
            of(LossCause::StackUnreadable, "stacks could be read only in part"),
            of(LossCause::StackTruncated, "stacks had more frames than gpuwhy keeps"),
            of(LossCause::UnknownPython, "processes run a Python that gpuwhy cannot read"),
        ];
        let troubles: Vec<String> = troubles.into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join(", "))
    }

    /// What went wrong, or why there are no calls.
    fn advice(&self) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        if self.libraries == 0 {
            return Some(
                "no CUDA library was found: the program uses none, or ended before gpuwhy could attach".into(),
            );
        }
        if self.cuda_calls == 0 && self.unwatched.never > 0 {
            return Some("no call was seen, but not every CUDA library was watched: there may have been calls".into());
        }
        if self.cuda_calls == 0 {
            return Some("CUDA was loaded, but no call was made while tracing".into());
        }
        if self.loss_by_cause.contains_key(&LossCause::WriteFailed) {
            return Some(
                "the run file could not be written for a while: the lost calls are in `seconds`, not in `events`"
                    .into(),
            );
        }
        self.loss_by_cause.contains_key(&LossCause::RingFull).then(|| {
            "the machine was too busy to keep up: counts are exact, details of the lost calls are missing".into()
        })
    }

    fn causes(&self) -> String {
        let causes: Vec<String> =
            self.loss_by_cause.iter().map(|(cause, n)| format!("{} {}", cause.name(), units::count(*n))).collect();
        causes.join(", ")
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let causes: BTreeMap<&str, u64> = self.loss_by_cause.iter().map(|(cause, n)| (cause.name(), *n)).collect();
        serde_json::json!({
            "type": "summary",
            "elapsed_ns": self.elapsed.as_nanos() as u64,
            "seen": self.seen,
            "cuda_calls": self.cuda_calls,
            "stored": self.stored,
            "lost": self.lost,
            "thinned": self.thinned,
            "max_size": self.max_size,
            "loss_by_cause": causes,
            "file": self.path.to_string_lossy(),
            "size_bytes": self.size_bytes,
            "own_cost": self.own,
            "job_cost": self.job_cost,
            "incomplete_ops": self.incomplete,
            "unwatched": self.unwatched,
            "libraries": self.libraries,
            "python_call_sites": self.stacks,
            "problem": self.problem,
            "ops": self.table.rows,
        })
    }
}
