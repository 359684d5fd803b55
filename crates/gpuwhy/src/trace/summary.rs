// SPDX-License-Identifier: Apache-2.0
//! What is said when a trace ends: seen, stored, lost, where, and what it cost.

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

/// From so many events on, what an event takes in the file is worth a word: an empty file takes 200 kB or so.
const ENOUGH_EVENTS: u64 = 10_000;

/// The end of a trace.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) elapsed: Duration,
    /// Events of all kinds, as far as gpuwhy knows: stored and lost together.
    pub(crate) seen: u64,
    /// Of them, CUDA calls the program made.
    pub(crate) cuda_calls: u64,
    pub(crate) stored: u64,
    pub(crate) lost: u64,
    /// Of those stored, events that are the weight of another's row.
    pub(crate) thinned: u64,
    pub(crate) max_size: Option<u64>,
    pub(crate) loss_by_cause: BTreeMap<LossCause, u64>,
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    pub(crate) own: OwnCost,
    pub(crate) job_cost: JobCost,
    /// Functions whose calls were not all seen, to stay within the budget.
    pub(crate) incomplete: Vec<&'static str>,
    pub(crate) unwatched: UnwatchedTime,
    /// How long gpuwhy ran, attaching and detaching included: what its CPU time is a share of.
    pub(crate) alive: Duration,
    pub(crate) libraries: usize,
    /// Different Python call sites seen.
    pub(crate) stacks: u64,
    pub(crate) problem: Option<String>,
    pub(crate) table: OpsTable,
}

/// How long libraries were in use before they were watched, all in all.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct UnwatchedTime {
    /// Times a process had one.
    pub(crate) times: u64,
    /// The longest, ns.
    pub(crate) longest_ns: u64,
    /// Times a library was not watched at all.
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
            format!("not watched: {times} times a process had a CUDA library that gpuwhy could not attach to (view unwatched)")
        });
        let late = (self.times > 0).then(|| {
            format!(
                "{} times a library was in use before it was watched, for {} at most: calls made then are missing (view unwatched)",
                units::count(self.times),
                units::time(self.longest_ns)
            )
        });
        never.into_iter().chain(late)
    }
}

impl Summary {
    /// For people.
    pub(crate) fn lines(&self, with_table: bool, width: usize, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        if with_table && !self.table.rows.is_empty() {
            lines.push(String::new());
            lines.extend(self.table.lines(40, width, style));
            lines.push(style.dim(TIME_NOTE));
            lines.push(String::new());
        }
        let lost = match self.lost {
            0 => style.green("0 lost"),
            n => style.red(&format!("{} lost ({})", units::count(n), self.causes())),
        };
        let host = match self.seen.saturating_sub(self.cuda_calls) {
            0 => String::new(),
            n => format!(" and {} other events", units::count(n)),
        };
        lines.push(format!(
            "gpuwhy: {} calls{host} seen, {} stored, {lost} in {}",
            units::count(self.cuda_calls),
            units::count(self.stored),
            units::time(self.elapsed.as_nanos() as u64),
        ));
        lines.push(format!("        {} ({}{})", self.path.display(), units::bytes(self.size_bytes), self.bytes_each()));
        lines.push(format!(
            "        gpuwhy itself: {} of CPU ({} of a core), {} of memory at most",
            units::time(self.own.cpu_ns),
            units::percent(self.own.cpu_ns as f64, self.alive.as_nanos() as f64),
            units::bytes(self.own.peak_memory_bytes),
        ));
        if self.cuda_calls > 0 {
            lines.push(format!(
                "        cost to the job: about {} of its busiest process's time (CUDA calls {}, switches {})",
                units::percent(self.job_cost.probes + self.job_cost.switches, 1.0),
                units::percent(self.job_cost.probes, 1.0),
                units::percent(self.job_cost.switches, 1.0),
            ));
        }
        if !self.incomplete.is_empty() {
            let functions = self.incomplete.join(", ");
            lines.push(format!(
                "        {}",
                style.yellow(&format!(
                    "to stay within --budget not all calls were seen of {functions}: their counts are too low"
                ))
            ));
        }
        lines.extend(self.unwatched.words().map(|words| format!("        {words}")));
        lines.extend(self.unread().map(|unread| format!("        {unread}")));
        lines.extend(self.kept_small().note().map(|note| format!("        {note}")));
        lines.extend(self.python().map(|python| format!("        {python}")));
        lines.extend(self.advice().map(|advice| format!("        {}", style.yellow(&advice))));
        lines
    }

    /// What an event takes in the file. Of a short run that is mostly what every file takes, and says nothing.
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

    /// How many Python lines there are, and what is wrong with some.
    fn python(&self) -> Option<String> {
        let of = |cause, what: &str| {
            self.loss_by_cause.get(&cause).map(|n| format!("; {} {what}", units::count(*n))).unwrap_or_default()
        };
        let troubles = of(LossCause::StackUnreadable, "could be read in part only")
            + &of(LossCause::StackTruncated, "had more frames than are kept")
            + &of(LossCause::UnknownPython, "processes run a Python gpuwhy cannot read");
        (self.stacks > 0 || !troubles.is_empty())
            .then(|| format!("Python: {} call sites{troubles}", units::count(self.stacks)))
    }

    /// What to do when the outcome is not what was hoped for.
    fn advice(&self) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        if self.libraries == 0 {
            return Some(
                "no CUDA library was found in what was traced: it uses none, or ended before gpuwhy could attach"
                    .into(),
            );
        }
        if self.cuda_calls == 0 && self.unwatched.never > 0 {
            return Some("no call was seen, but not every CUDA library was watched: calls may have been made".into());
        }
        if self.cuda_calls == 0 {
            return Some("CUDA was loaded, but no call was made while tracing".into());
        }
        if self.loss_by_cause.contains_key(&LossCause::WriteFailed) {
            return Some(
                "the run file could not be written for a while: `seconds` has the lost calls, `events` not".into(),
            );
        }
        self.loss_by_cause.contains_key(&LossCause::RingFull).then(|| {
            "the machine was too busy to keep up: counts are exact, the lost calls' details are not there".into()
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
