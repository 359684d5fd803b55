// SPDX-License-Identifier: Apache-2.0
//! `get_trace_stats`: the run in figures.

use super::Asked;
use super::page::{Answer, Page, Paging, pop, pop_counting};
use super::place::{RunHead, Where};
use crate::error::ToolError;
use crate::text::{LONG, NOTICE, clean};
use gpuwhy_ask::stats::{OpStats, ProcessStats};
use gpuwhy_ask::{JobReport, ProcessCalls, tail_ratio};
use gpuwhy_store::LossRow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Jobs told of.
const JOBS: usize = 8;
/// Warnings told of each process.
const WARNINGS: usize = 4;
/// Processes told of.
const PROCESSES: usize = 5;
/// Findings named.
const FINDINGS: usize = 3;
/// The longest verdict, characters.
const VERDICT: usize = 420;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    #[serde(flatten)]
    paging: Paging,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stats {
    #[serde(flatten)]
    head: RunHead,
    /// What was run
    command: Option<String>,
    /// The GPU
    gpu: Option<String>,
    /// What it comes to, in words
    verdict: String,
    /// The worst causes; get_causal_chains tells all of them
    findings: Vec<String>,
    /// Of a run with several jobs, each of them, worst first: ask again with its pid
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    jobs: Vec<Job>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_jobs: usize,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_findings: usize,
    /// CUDA ops, those with most time first
    ops: Vec<Op>,
    #[serde(flatten)]
    page: Page,
    /// Processes with most time in CUDA calls; how many more there are
    processes: Vec<Process>,
    more_processes: usize,
    /// What could not be kept, by cause
    loss: Vec<Loss>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_loss: usize,
    note: &'static str,
}

/// A job.
#[derive(Debug, Serialize, JsonSchema)]
struct Job {
    pid: u32,
    name: String,
    severity: Option<String>,
    /// Its worst cause
    summary: String,
}

/// An op; times are ns.
#[derive(Debug, Serialize, JsonSchema)]
struct Op {
    op: String,
    calls: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    errors: u64,
    p50_ns: u64,
    p95_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    /// p99 in times of p50
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    tail_ratio: Option<f64>,
    /// Calls in the busiest second, and how far the last quarter is below that, percent
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    peak_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    drop_percent: Option<f64>,
    total_ns: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    bytes: u64,
}

/// A process.
#[derive(Debug, Serialize, JsonSchema)]
struct Process {
    pid: u32,
    name: String,
    calls: u64,
    launches: u64,
    /// What is remarkable about it and its calls
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    warnings: Vec<String>,
}

/// Events, or details of them, that were lost.
#[derive(Debug, Serialize, JsonSchema)]
struct Loss {
    cause: String,
    op: Option<String>,
    count: u64,
}

impl Answer for Stats {
    fn shorten(&mut self) -> bool {
        let long = self.processes.iter_mut().rev().find(|process| process.warnings.len() > 1);
        if let Some(process) = long {
            return process.warnings.pop().is_some();
        }
        // A process more matters less than an op, and an op less than the worst finding.
        if self.processes.len() > 2 {
            self.more_processes += 1;
            return self.processes.pop().is_some();
        }
        pop(&mut self.ops)
            || pop_counting(&mut self.loss, &mut self.more_loss)
            || pop_counting(&mut self.jobs, &mut self.more_jobs)
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.ops.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Stats, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let part = arguments.place.part()?;
    let stats = run.stats(&part, asked.work)?;
    let explained = run.explained(&part, asked.work)?;
    let calls = gpuwhy_ask::process_calls(&*run.reader(asked.work)?, &explained.report)?;
    let ops = stats.ops.iter().map(op).collect();
    let (ops, page) = arguments.paging.cut(ops, 12, Some(&run))?;
    let told = explained.report.findings.iter().take(FINDINGS);
    Ok(Stats {
        head: RunHead::of(&run, &stats.session),
        command: stats.session.command.as_deref().map(|command| clean(command, LONG)),
        gpu: stats.session.machine.gpu.as_deref().map(|gpu| clean(gpu, 60)),
        verdict: clean(&explained.report.verdict, VERDICT),
        findings: told.map(|found| format!("{}: {}", found.kind, clean(&found.title, LONG))).collect(),
        jobs: explained.report.jobs.iter().take(JOBS).map(job).collect(),
        more_jobs: explained.report.jobs.len().saturating_sub(JOBS),
        more_findings: explained.report.findings.len().saturating_sub(FINDINGS),
        ops,
        page,
        processes: stats.processes.iter().take(PROCESSES).map(|stats| process(stats, &calls)).collect(),
        more_processes: stats.processes.len().saturating_sub(PROCESSES),
        loss: stats.loss.iter().map(loss).collect(),
        more_loss: 0,
        note: NOTICE,
    })
}

fn job(job: &JobReport) -> Job {
    let severity = job.severity.map(|severity| severity.label().to_ascii_lowercase());
    Job { pid: job.pid, name: clean(&job.name, 40), severity, summary: clean(&job.summary, LONG) }
}

/// To one digit behind the point.
fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn op(op: &OpStats) -> Op {
    let course = op.rates.course();
    Op {
        op: clean(&op.op, 60),
        calls: op.totals.calls,
        errors: op.totals.errors,
        p50_ns: op.quantile(0.5),
        p95_ns: op.quantile(0.95),
        p99_ns: op.quantile(0.99),
        max_ns: op.totals.max_ns,
        tail_ratio: tail_ratio(op.totals.calls, op.quantile(0.5), op.quantile(0.99)).map(tenth),
        peak_per_second: course.map(|course| tenth(course.peak)),
        drop_percent: course.map(|course| tenth(course.drop() * 100.0)),
        total_ns: op.totals.total_ns,
        bytes: op.totals.bytes,
    }
}

fn process(stats: &ProcessStats, calls: &[ProcessCalls]) -> Process {
    let (pid, name) = (stats.process.pid, clean(&stats.process.name, 40));
    let own = calls.iter().find(|calls| calls.pid == pid);
    let warnings = own.map(ProcessCalls::all_warnings).unwrap_or_default();
    let warnings = warnings.iter().take(WARNINGS).map(|warning| clean(warning, 120)).collect();
    Process { pid, name, calls: stats.calls, launches: stats.launches, warnings }
}

fn loss(row: &LossRow) -> Loss {
    Loss { cause: clean(&row.cause, 40), op: row.op.as_deref().map(|op| clean(op, 60)), count: row.count }
}
