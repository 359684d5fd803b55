// SPDX-License-Identifier: Apache-2.0
//! `get_trace_stats`: statistics of the run.

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

/// Maximum jobs in an answer.
const JOBS: usize = 8;
/// Maximum warnings per process.
const WARNINGS: usize = 4;
/// Maximum processes in an answer.
const PROCESSES: usize = 5;
/// Rows of loss that matter as much as ops.
const LOSSES: usize = 3;
/// Maximum findings in an answer.
const FINDINGS: usize = 3;
/// Maximum length of the verdict, characters.
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
    /// The command
    command: Option<String>,
    /// The GPU
    gpu: Option<String>,
    /// The answer in one or two sentences
    verdict: String,
    /// The worst causes; get_causal_chains has all
    findings: Vec<String>,
    /// If the run has several jobs: each job, worst first; ask again with its pid
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    jobs: Vec<Job>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_jobs: usize,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_findings: usize,
    /// CUDA ops, most time first
    ops: Vec<Op>,
    #[serde(flatten)]
    page: Page,
    /// Processes with the most time in CUDA calls, and how many more there are
    processes: Vec<Process>,
    more_processes: usize,
    /// Lost events and details, by cause
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
    /// p99 divided by p50
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    tail_ratio: Option<f64>,
    /// Calls in the busiest second, and how many percent below that the last quarter is
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
    /// What is unusual about the process and its calls
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_warnings: usize,
}

/// Lost events or details.
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
            return pop_counting(&mut process.warnings, &mut process.more_warnings);
        }
        // Processes matter less than ops, and ops less than the worst finding.
        if self.processes.len() > 2 {
            self.more_processes += 1;
            return self.processes.pop().is_some();
        }
        self.loss.len() > LOSSES && pop_counting(&mut self.loss, &mut self.more_loss)
            || pop(&mut self.ops)
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
        more_jobs: explained.report.jobs.len().saturating_sub(JOBS)
            + usize::try_from(explained.report.more_jobs).unwrap_or(0),
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

/// Rounds to one decimal.
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
    let all = own.map(ProcessCalls::all_warnings).unwrap_or_default();
    let warnings: Vec<String> = all.iter().take(WARNINGS).map(|warning| clean(warning, 120)).collect();
    let more_warnings = all.len() - warnings.len();
    Process { pid, name, calls: stats.calls, launches: stats.launches, warnings, more_warnings }
}

fn loss(row: &LossRow) -> Loss {
    Loss { cause: clean(&row.cause, 40), op: row.op.as_deref().map(|op| clean(op, 60)), count: row.count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn lossy() -> Stats {
        let op = |i: u64| Op {
            op: format!("cudaLaunchKernel{i}"),
            calls: 1_000_000,
            errors: 0,
            p50_ns: 4_000,
            p95_ns: 9_000,
            p99_ns: 20_000,
            max_ns: 1_000_000,
            tail_ratio: Some(5.0),
            peak_per_second: None,
            drop_percent: None,
            total_ns: 5_000_000_000,
            bytes: 0,
        };
        let loss = |i: u64| Loss { cause: "ring_full".into(), op: Some(format!("cudaMemcpyAsync{i}")), count: 900 - i };
        let process = |pid| Process {
            pid,
            name: "python3 train.py".into(),
            calls: 1_000_000,
            launches: 900_000,
            warnings: (0..4)
                .map(|i| format!("warning {i} that says something of this process at some length"))
                .collect(),
            more_warnings: 2,
        };
        let (ops, page) = Paging::default().cut((0..10).map(op).collect(), 12, None).unwrap();
        Stats {
            head: RunHead::new(Path::new("run.db"), &Default::default(), false),
            command: None,
            gpu: None,
            verdict: "the GPU waited for its data most of the time ".repeat(8),
            findings: vec!["input_starved: the GPU waited".into()],
            jobs: Vec::new(),
            more_jobs: 0,
            more_findings: 0,
            ops,
            page,
            processes: (1..4).map(process).collect(),
            more_processes: 0,
            loss: (0..12).map(loss).collect(),
            more_loss: 0,
            note: NOTICE,
        }
    }

    #[test]
    fn what_is_left_out_is_counted_and_loss_leaves_room_for_ops() {
        let value = crate::tools::page::fit(lossy(), 3_800).unwrap();
        let more = |value: &serde_json::Value, name: &str| usize::try_from(value[name].as_u64().unwrap_or(0)).unwrap();
        let losses = value["loss"].as_array().unwrap();
        assert_eq!(losses.len() + more(&value, "more_loss"), 12, "{value}");
        assert_eq!(losses[0]["count"], 900, "the largest stays");
        assert!(value["ops"].as_array().unwrap().len() >= 3, "{value}");
        let processes = value["processes"].as_array().unwrap();
        assert_eq!(processes.len() + more(&value, "more_processes"), 3);
        for process in processes {
            assert_eq!(process["warnings"].as_array().unwrap().len() + more(process, "more_warnings"), 6, "{process}");
        }
    }
}
