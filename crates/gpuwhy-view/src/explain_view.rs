// SPDX-License-Identifier: Apache-2.0
//! An explanation on the screen: the verdict, the findings, what is well, the machine, the GPUs, where the time of
//! the threads that matter went, and what cannot be known.

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
/// A finding is no wider than this, save its chain.
const BLOCK: usize = 110;
/// Where the second column of a finding begins.
const HANG: usize = 10;
/// Who and what of a link have this much room beside its time, or stand above it.
const LEAST_SAID: usize = 44;
/// Threads whose time is shown: those that launch, then the busiest, if they ran this share of the time.
const THREADS: usize = 4;
const LEAST_RUNNING: f64 = 0.02;
/// States shown of each, and the least share of its time that is worth a line.
const STATES: usize = 6;
const LEAST_SHARE: f64 = 0.01;
/// No name is longer than this on a screen.
const NAME: usize = 40;

/// What there is to show.
#[derive(Debug, Clone, Copy)]
pub struct ExplainView<'a> {
    /// The explanation.
    pub report: &'a Report,
    /// Calls by process, where they were asked for.
    pub per_process: &'a [ProcessCalls],
    /// The run file, for commands that are suggested.
    pub run: &'a str,
}

impl ExplainView<'_> {
    /// All of it, for a terminal of so many columns.
    pub fn lines(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        if !report.jobs.is_empty() {
            return self.jobs(width, style);
        }
        let mut lines = verdict(&report.verdict, width, style);
        for finding in &report.findings {
            lines.push(String::new());
            lines.extend(finding_lines(finding, width, style));
        }
        section(&mut lines, "Checked and healthy", list(&report.healthy, width), style);
        section(&mut lines, "The machine", list(&report.context, width), style);
        section(&mut lines, "", gpu_lines(&report.gpus, width, style), style);
        section(&mut lines, "", thread_lines(report, width, style), style);
        self.end(lines, width, style)
    }

    /// Several jobs: each in a line, the worst first, and how to look at one.
    fn jobs(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        let mut lines = job_lines(report, self.run, width, style);
        section(&mut lines, "The machine", list(&report.context, width), style);
        section(&mut lines, "", gpu_lines(&report.gpus, width, style), style);
        self.end(lines, width, style)
    }

    /// What every explanation ends with.
    fn end(&self, mut lines: Vec<String>, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        section(&mut lines, "", per_process::lines(self.per_process, width, style), style);
        let unknown = list(&report.loss.notes, width).into_iter().map(|line| style.yellow(&line)).collect();
        section(&mut lines, "What cannot be known", unknown, style);
        lines
    }
}

/// Several jobs, the worst first, and the command to look at one. What is critical and no job's summary comes before them.
pub fn job_lines(report: &Report, run: &str, width: usize, style: Style) -> Vec<String> {
    let jobs = &report.jobs;
    let shown = if report.more_jobs > 0 { format!(", {} shown", jobs.len()) } else { String::new() };
    let all = units::count(jobs.len() as u64 + report.more_jobs);
    let mut lines = vec![style.bold(&format!("{all} jobs were recorded{shown}; the worst first"))];
    lines.push(String::new());
    let is_summary = |finding: &&Finding| jobs.iter().any(|job| job.summary == finding.title);
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
        lines.push(first.replacen(label.trim_end(), &severity(label.trim_end(), worst, style), 1));
        lines.extend(shown);
    }
    if let Some(first) = jobs.first() {
        lines.push(String::new());
        let run = units::safe(run, 500);
        lines.push(style.dim(&format!("look at one: gpuwhy explain --db {run} --pid {}", first.pid)));
    }
    lines
}

/// `python3 train.py 4821`; of several ranks how many.
fn job_name(job: &JobReport) -> String {
    let ranks = if job.ranks > 1 { format!(" ({} ranks)", job.ranks) } else { String::new() };
    format!("{} {}{ranks}", units::safe(&job.name, NAME), job.pid)
}

/// The verdict, broken into lines.
pub fn verdict(text: &str, width: usize, style: Style) -> Vec<String> {
    let lines = wrap(&units::safe(text, 4000), width.min(PROSE), 0);
    lines.iter().map(|line| style.bold(line)).collect()
}

/// A finding in one line: how bad it is, and its title.
pub fn title_line(finding: &Finding, style: Style) -> String {
    let label = severity(&format!("[{}]", finding.severity.label()), finding.severity, style);
    format!("{label} {}", units::safe(&finding.title, 200))
}

/// A finding as [`Finding::to_text`] lays it out, fitted to the terminal.
pub(crate) fn finding_lines(finding: &Finding, width: usize, style: Style) -> Vec<String> {
    let (text, width) = (finding.to_text(), width.min(BLOCK));
    let mut lines = text.lines();
    let label = format!("[{}]", finding.severity.label());
    let kind = units::safe(&finding.kind, 40);
    let head = lines.next().unwrap_or_default();
    let title = head.strip_suffix(kind.as_str()).unwrap_or(head).trim_end();
    let room = width.saturating_sub(kind.width() + 2);
    let mut shown = wrap(title, room, label.width() + 1);
    if let Some(last) = shown.last_mut() {
        let gap = width.saturating_sub(last.width() + kind.width()).clamp(2, 88);
        *last = format!("{last}{}{}", " ".repeat(gap), style.dim(&kind));
    }
    if let Some(rest) = shown.first().and_then(|first| first.strip_prefix(&label)) {
        shown[0] = format!("{}{rest}", severity(&label, finding.severity, style));
    }
    let mut lines: Vec<&str> = lines.collect();
    let rest = lines.split_off(finding.chain.len().min(lines.len()));
    shown.extend(chain_lines(finding, &lines, width));
    shown.extend(rest.into_iter().flat_map(|line| wrap(line, width, HANG)));
    shown
}

/// A chain as the text has it where that fits. Else who and what wrap beside the times and states, and where that leaves them
/// too little room, above.
fn chain_lines(finding: &Finding, lines: &[&str], width: usize) -> Vec<String> {
    if lines.iter().all(|line| line.trim_end().width() <= width) {
        return lines.iter().map(|line| line.trim_end().to_owned()).collect();
    }
    let timed = finding.chain.iter().any(|link| link.ns > 0);
    let parts: Vec<(&str, String)> = finding
        .chain
        .iter()
        .zip(lines)
        .map(|(link, line)| {
            let (time, state) =
                (if link.ns > 0 { units::time(link.ns) } else { String::new() }, units::safe(&link.state, 80));
            let said = line.trim_end().strip_suffix(state.as_str()).unwrap_or(line).trim_end();
            let said = said.strip_suffix(time.as_str()).unwrap_or(said).trim_end();
            (said, if timed { format!("{time:>7}  {state}").trim_end().to_owned() } else { state })
        })
        .collect();
    let measured = parts.iter().map(|(_, measured)| measured.width()).max().unwrap_or(0);
    let room = width.saturating_sub(measured + 2);
    let mut shown = Vec::new();
    for (said, measured) in parts {
        let beside = room >= LEAST_SAID;
        let mut lines = wrap(said, if beside { room } else { width }, HANG + 2);
        match lines.first_mut().filter(|_| beside) {
            Some(first) => *first = format!("{first}{}  {measured}", " ".repeat(room.saturating_sub(first.width()))),
            None => lines.push(format!("{:1$}{2}", "", HANG + 2, measured.trim_start())),
        }
        shown.extend(lines.into_iter().map(|line| line.trim_end().to_owned()));
    }
    shown
}

fn severity(text: &str, severity: Severity, style: Style) -> String {
    match severity {
        Severity::Critical | Severity::High => style.red(text),
        Severity::Medium => style.yellow(text),
        Severity::Low => style.bold(text),
        Severity::Info => style.green(text),
    }
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

/// One line a GPU: how long it had no work in all of the time that is explained, what nvidia-smi would say, and how gpuwhy
/// knows. Without shares: those on the screen are of the steady time.
fn gpu_lines(gpus: &[GpuReport], width: usize, style: Style) -> Vec<String> {
    let heads = [
        ("GPU", Align::Left),
        ("idle at least", Align::Right),
        ("idle at most", Align::Right),
        ("nvidia-smi", Align::Right),
        ("launches", Align::Right),
        ("known from", Align::Left),
    ];
    let mut table = Table::new(heads.map(|(name, align)| (name.to_owned(), Some(align))));
    for gpu in gpus {
        let of = gpu.job.map(|pid| format!(" of {pid}")).unwrap_or_default();
        table.push(vec![
            format!("{}{of}", gpu.device),
            units::time(gpu.idle_min_ns),
            units::time(gpu.idle_max_ns),
            gpu.rate_percent.map_or_else(|| "not known".to_owned(), |rate| format!("{rate:.0} %")),
            units::count(gpu.launches),
            units::safe(&gpu.basis, 200),
        ]);
    }
    if table.is_empty() { Vec::new() } else { table.lines_within(width, &["launches"], style) }
}

/// Where the time of the threads that matter went, in all of the time that is explained.
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
        let more = format!("… {} more {threads}: the view `ledger` has all", units::count(hidden as u64));
        lines.push(style.dim(&more));
    }
    lines
}

/// `python3 4821`, of a thread beside the main one `python3 4821/4830`; one that launches says so.
fn thread_name(thread: &ThreadReport) -> String {
    let name = units::safe(&thread.name, NAME);
    let id = if thread.pid == thread.tid { thread.pid.to_string() } else { format!("{}/{}", thread.pid, thread.tid) };
    if thread.launches > 0 { format!("{name} {id} (launches)") } else { format!("{name} {id}") }
}

/// The states that matter, most time first; what is left is put together.
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

/// In CUDA, which op; without a CPU, who had it.
fn mostly(thread: &ThreadReport, state: State) -> Option<String> {
    match state {
        State::RunningCuda => {
            let (op, _) = thread.cuda.iter().max_by_key(|(_, ns)| **ns)?;
            Some(units::safe(op, NAME))
        }
        State::Ready => {
            let ready = thread.ledger.get(state.name()).copied().unwrap_or(0);
            // Who had it a moment only explains nothing.
            let held = thread.held_by.first().filter(|held| held.ns >= ready / 10)?;
            let name = units::safe(&held.name, NAME);
            Some(format!("{name} {} had the CPU {} of it", held.pid, units::time(held.ns)))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "explain_view_tests.rs"]
mod tests;
