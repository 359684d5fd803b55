// SPDX-License-Identifier: Apache-2.0
//! An explanation on the screen. Short: what was traced, the verdict, up to three findings, the checks that passed. Full:
//! all findings, figures of the checks, the machine, the GPUs and the threads as well.

use crate::finding_view::{self, Detail, paint};
use crate::per_process;
use crate::style::Style;
use crate::table::{Align, Table};
use crate::wrap::wrap;
use gpuwhy_model::{Finding, Severity, units};
use gpuwhy_why::State;
use gpuwhy_why::process_calls::ProcessCalls;
use gpuwhy_why::report::{GpuReport, JobReport, Report, ThreadReport};
use unicode_width::UnicodeWidthStr;

/// Prose is no wider than this, however wide the terminal.
pub(crate) const PROSE: usize = 100;
/// A line of a list of jobs is no wider than this.
const BLOCK: usize = 110;
/// Threads shown: those that launch, then the busiest, if they ran at least this share of the time.
const THREADS: usize = 4;
const LEAST_RUNNING: f64 = 0.02;
/// States shown per thread, and the least share of its time that gets a line.
const STATES: usize = 6;
const LEAST_SHARE: f64 = 0.01;
/// No name is longer than this on a screen.
const NAME: usize = 40;

/// What there is to show.
#[derive(Debug, Clone, Copy)]
pub struct ExplainView<'a> {
    /// The explanation.
    pub report: &'a Report,
    /// Calls by process; empty unless asked for.
    pub per_process: &'a [ProcessCalls],
    /// The run file, for suggested commands.
    pub run: &'a str,
    /// Short, or everything.
    pub detail: Detail,
}

impl ExplainView<'_> {
    /// The lines for a terminal of `width` columns.
    pub fn lines(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        if !report.jobs.is_empty() {
            return self.jobs(width, style);
        }
        let mut lines = header(report, width, style);
        lines.extend(verdict(&report.verdict, width, style));
        lines.extend(finding_view::lines(&report.findings, self.detail, width, style));
        if self.detail == Detail::Full {
            section(&mut lines, "Healthy", list(&report.healthy, width), style);
            section(&mut lines, "Machine", list(&report.context, width), style);
            section(&mut lines, "GPUs", gpu_lines(&report.gpus, width, style), style);
            section(&mut lines, "Threads", thread_lines(report, width, style), style);
        }
        self.end(&mut lines, width, style);
        if self.detail == Detail::Short {
            section(&mut lines, "", outlook(report, self.run, width, style), style);
        }
        lines
    }

    /// Several jobs: one line each, worst first, and the command that explains one.
    fn jobs(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        let mut lines = job_lines(report, self.run, width, style);
        if self.detail == Detail::Full {
            section(&mut lines, "Machine", list(&report.context, width), style);
            section(&mut lines, "GPUs", gpu_lines(&report.gpus, width, style), style);
        }
        self.end(&mut lines, width, style);
        lines
    }

    /// Calls by process, and what lost events mean for the answer.
    fn end(&self, lines: &mut Vec<String>, width: usize, style: Style) {
        section(lines, "", per_process::lines(self.per_process, width, style), style);
        let unknown = list(&self.report.loss.notes, width).into_iter().map(|line| style.yellow(&line)).collect();
        section(lines, "What cannot be known", unknown, style);
    }
}

/// `python3 train.py (pid 15828) · 6.20 s traced`, and an empty line.
fn header(report: &Report, width: usize, style: Style) -> Vec<String> {
    let Some(main) = report.processes.first() else { return Vec::new() };
    let more = report.processes.iter().skip(1).filter(|process| process.launches > 0).count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let name = units::safe(&main.name, 2 * NAME);
    let who = if name == format!("pid {}", main.pid) { name } else { format!("{name} (pid {})", main.pid) };
    let from = if report.from_ns > 0 {
        format!(", from {} to {}", units::time(report.from_ns), units::time(report.to_ns))
    } else {
        String::new()
    };
    let text = format!("{who}{more} · {} traced{from}", units::time(report.wall_ns));
    let mut lines: Vec<String> = wrap(&text, width.min(PROSE), 2).iter().map(|line| style.dim(line)).collect();
    lines.push(String::new());
    lines
}

/// The end of a short screen: the checks that passed, and the command that shows everything.
pub fn outlook(report: &Report, run: &str, width: usize, style: Style) -> Vec<String> {
    let names: Vec<&str> = report.healthy.iter().filter_map(|check| check.split(':').next()).collect();
    let mut lines = Vec::new();
    if !names.is_empty() {
        lines.extend(wrap(&units::safe(&format!("Healthy: {}.", names.join(", ")), 500), width.min(PROSE), 2));
    }
    let findings = match finding_view::hidden(&report.findings, Detail::Short) as u64 {
        0 => String::new(),
        1 => "1 more finding, ".to_owned(),
        n => format!("{} more findings, ", units::count(n)),
    };
    let run = units::safe(run, 500);
    let more = format!("More: gpuwhy explain --full {run} ({findings}checks, machine, GPUs, threads)");
    lines.extend(wrap(&more, width.min(PROSE), 2).iter().map(|line| style.dim(line)));
    lines
}

/// Several jobs, worst first, and the command that explains one. A critical finding that is no job's summary comes before
/// them.
pub fn job_lines(report: &Report, run: &str, width: usize, style: Style) -> Vec<String> {
    let jobs = &report.jobs;
    let shown = if report.more_jobs > 0 { format!(", {} shown", jobs.len()) } else { String::new() };
    let all = units::count(jobs.len() as u64 + report.more_jobs);
    let mut lines = vec![style.bold(&format!("{all} jobs recorded{shown}, worst first"))];
    lines.push(String::new());
    let is_summary = |finding: &&Finding| jobs.iter().any(|job| job.summary == finding.headline());
    let critical = report.findings.iter().filter(|finding| finding.severity == Severity::Critical);
    for finding in critical.filter(|finding| !is_summary(finding)) {
        let of = finding.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        lines.push(format!("{}{of}", title_line(finding, style)));
    }
    let names: Vec<String> = jobs.iter().map(job_name).collect();
    let room = names.iter().map(|name| name.width()).max().unwrap_or(0);
    for (job, name) in jobs.iter().zip(names) {
        let worst = job.severity.unwrap_or(Severity::Info);
        let label = format!("{:<10}", format!("[{}]", worst.label()));
        let pad = " ".repeat(room.saturating_sub(name.width()));
        let line = format!("{label} {name}{pad}  {}", units::safe(&job.summary, 200));
        let mut shown = wrap(&line, width.min(BLOCK), label.len() + 1).into_iter();
        let first = shown.next().unwrap_or_default();
        lines.push(first.replacen(label.trim_end(), &paint(label.trim_end(), worst, style), 1));
        lines.extend(shown);
    }
    if let Some(first) = jobs.first() {
        lines.push(String::new());
        let run = units::safe(run, 500);
        lines.push(style.dim(&format!("More: gpuwhy explain --db {run} --pid {}", first.pid)));
    }
    lines
}

/// A finding in one line: severity, title and cost.
fn title_line(finding: &Finding, style: Style) -> String {
    let label = paint(&format!("[{}]", finding.severity.label()), finding.severity, style);
    format!("{label} {}", units::safe(&finding.headline(), 240))
}

/// `python3 train.py 4821`; with several ranks their number.
fn job_name(job: &JobReport) -> String {
    let ranks = if job.ranks > 1 { format!(" ({} ranks)", job.ranks) } else { String::new() };
    format!("{} {}{ranks}", units::safe(&job.name, NAME), job.pid)
}

/// The verdict, broken into lines.
pub fn verdict(text: &str, width: usize, style: Style) -> Vec<String> {
    let lines = wrap(&units::safe(text, 4000), width.min(PROSE), 0);
    lines.iter().map(|line| style.bold(line)).collect()
}

/// Adds lines under a heading, if there are any.
pub(crate) fn section(lines: &mut Vec<String>, heading: &str, body: Vec<String>, style: Style) {
    if body.is_empty() {
        return;
    }
    lines.push(String::new());
    if !heading.is_empty() {
        lines.push(style.bold(heading));
    }
    lines.extend(body);
}

pub(crate) fn list(texts: &[String], width: usize) -> Vec<String> {
    texts.iter().flat_map(|text| wrap(&format!("  {}", units::safe(text, 1000)), width.min(PROSE), 4)).collect()
}

/// One line per GPU: bounds of its idle time in the whole time range, the rate nvidia-smi shows, and the basis. Without
/// shares: those on the screen are of the steady state.
fn gpu_lines(gpus: &[GpuReport], width: usize, style: Style) -> Vec<String> {
    let heads = [
        ("GPU", Align::Left),
        ("idle at least", Align::Right),
        ("idle at most", Align::Right),
        ("nvidia-smi", Align::Right),
        ("launches", Align::Right),
        ("basis", Align::Left),
    ];
    let mut table = Table::new(heads.map(|(name, align)| (name.to_owned(), Some(align))));
    for gpu in gpus {
        let of = gpu.job.map(|pid| format!(" of {pid}")).unwrap_or_default();
        table.push(vec![
            format!("{}{of}", gpu.device),
            units::time(gpu.idle_min_ns),
            units::time(gpu.idle_max_ns),
            gpu.rate_percent.map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.0} %")),
            units::count(gpu.launches),
            units::safe(&gpu.basis, 200),
        ]);
    }
    if table.is_empty() { Vec::new() } else { table.lines_within(width, &["launches"], style) }
}

/// Where the time of the most important threads went, in the whole time range.
fn thread_lines(report: &Report, width: usize, style: Style) -> Vec<String> {
    let threads = &report.threads;
    let heads = [("thread", Align::Left), ("state", Align::Left), ("ms", Align::Right), ("mostly", Align::Left)];
    let mut table = Table::new(heads.map(|(name, align)| (name.to_owned(), Some(align))));
    let matters = |thread: &&ThreadReport| {
        let of = |state: State| thread.ledger.get(state.name()).copied().unwrap_or(0);
        let running = of(State::RunningCuda) + of(State::RunningHost);
        thread.launches > 0 || running as f64 >= LEAST_RUNNING * report.wall_ns as f64
    };
    let shown: Vec<&ThreadReport> = threads.iter().filter(matters).take(THREADS).collect();
    for thread in &shown {
        let mut who = thread_name(thread);
        for (state, ns) in states(thread) {
            table.push(vec![
                std::mem::take(&mut who),
                state.map_or("other", State::words).to_owned(),
                units::count(ns / 1_000_000),
                state.and_then(|state| mostly(thread, state)).unwrap_or_default(),
            ]);
        }
    }
    let mut lines = if table.is_empty() { Vec::new() } else { table.lines_within(width, &[], style) };
    let hidden = threads.len() - shown.len();
    if hidden > 0 && !lines.is_empty() {
        let threads = if hidden == 1 { "thread" } else { "threads" };
        let more = format!("… {} more {threads} (view `ledger`)", units::count(hidden as u64));
        lines.push(style.dim(&more));
    }
    lines
}

/// `python3 4821`; a thread other than the main one: `python3 4821/4830`; a launching thread is marked.
fn thread_name(thread: &ThreadReport) -> String {
    let name = units::safe(&thread.name, NAME);
    let id = if thread.pid == thread.tid { thread.pid.to_string() } else { format!("{}/{}", thread.pid, thread.tid) };
    if thread.launches > 0 { format!("{name} {id} (launches)") } else { format!("{name} {id}") }
}

/// The most important states, most time first; the rest is one sum.
fn states(thread: &ThreadReport) -> Vec<(Option<State>, u64)> {
    let of = |state: &State| thread.ledger.get(state.name()).copied().unwrap_or(0);
    let mut all: Vec<(Option<State>, u64)> = State::ALL.iter().map(|state| (Some(*state), of(state))).collect();
    all.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let worth = |ns: u64| ns as f64 >= LEAST_SHARE * thread.wall_ns as f64 && ns > 0;
    let shown = all.iter().take(STATES).take_while(|(_, ns)| worth(*ns)).count().max(1);
    let rest: u64 = all.split_off(shown).iter().map(|(_, ns)| ns).sum();
    if worth(rest) {
        all.push((None, rest));
    }
    all
}

/// For CUDA time the op; for ready time the program that had the CPU.
fn mostly(thread: &ThreadReport, state: State) -> Option<String> {
    match state {
        State::RunningCuda => {
            let (op, _) = thread.cuda.iter().max_by_key(|(_, ns)| **ns)?;
            Some(units::safe(op, NAME))
        }
        State::Ready => {
            let ready = thread.ledger.get(state.name()).copied().unwrap_or(0);
            // A program that had it only briefly explains nothing.
            let held = thread.held_by.first().filter(|held| held.ns >= ready / 10)?;
            let name = units::safe(&held.name, NAME);
            Some(format!("{name} {} had the CPU for {}", held.pid, units::time(held.ns)))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "explain_view_tests.rs"]
mod tests;
