// SPDX-License-Identifier: Apache-2.0
//! `get_profile`: what PyTorch's own traces and memory snapshots say.

use super::page::{Answer, Page, Paging, pop, pop_counting};
use super::{Asked, Finding};
use crate::error::ToolError;
use crate::folders::Folders;
use crate::text::{LONG, NOTICE, clean};
use gpuwhy_ask::profile::{self, Analysed, Question, Report};
use gpuwhy_model::units;
use gpuwhy_torch::snapshot::{Device, MemoryReport, Row};
use gpuwhy_torch::trace::{Total, TraceReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    /// A file or folder inside the folders this server may read
    path: String,
    /// Include warm-up steps in findings
    #[serde(default)]
    include_warmup: bool,
    /// GPU memory in GB, such as 80
    #[serde(default)]
    gpu_gb: Option<f64>,
    /// Only this device
    #[serde(default)]
    device: Option<u32>,
    #[serde(flatten)]
    paging: Paging,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Profile {
    /// Each file with its summary
    files: Vec<File>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_files: usize,
    /// Findings, worst first
    findings: Vec<Finding>,
    #[serde(flatten)]
    page: Page,
    note: &'static str,
}

/// A file.
#[derive(Debug, Serialize, JsonSchema)]
struct File {
    path: String,
    /// trace or memory
    kind: &'static str,
    /// Its main figures, or why it could not be read
    summary: Vec<String>,
}

impl Answer for Profile {
    fn shorten(&mut self) -> bool {
        pop(&mut self.findings) || pop_counting(&mut self.files, &mut self.more_files)
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.findings.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Profile, ToolError> {
    let paths = files_of(asked.runs.folders(), asked.runs.folders().resolve(&arguments.path)?)?;
    if arguments.gpu_gb.is_some_and(|gb| !(gb > 0.0 && gb < 1e6)) {
        return Err(ToolError::Arguments(format!(
            "invalid gpu_gb {}: give the GPU's memory in GB, such as 80",
            arguments.gpu_gb.unwrap_or_default()
        )));
    }
    let question = Question {
        paths,
        include_warmup: arguments.include_warmup,
        gpu_gb: arguments.gpu_gb,
        device: arguments.device,
        ..Question::default()
    };
    let files = profile::analyse(&question, &|_, _| Box::new(|_| {}), &|| asked.work.check().is_err())?;
    asked.work.check()?;
    let found = profile::findings(&files).iter().map(|found| Finding::new(found, false)).collect();
    let (findings, page) = arguments.paging.cut(found, 6, None)?;
    Ok(Profile { files: files.iter().map(file).collect(), more_files: 0, findings, page, note: NOTICE })
}

/// The file itself, or PyTorch's files in a folder. Links that lead outside the allowed folders are skipped.
fn files_of(folders: &Folders, path: PathBuf) -> Result<Vec<PathBuf>, ToolError> {
    if !path.is_dir() {
        return Ok(vec![path]);
    }
    let found = profile::in_folder(&path)?.into_iter().map(|source| source.path);
    let inside: Vec<PathBuf> = found.filter(|path| folders.holds(path)).collect();
    if inside.is_empty() { Err(gpuwhy_ask::Error::EmptyFolder { path }.into()) } else { Ok(inside) }
}

fn file(file: &Analysed) -> File {
    let (kind, mut summary) = match file.report() {
        Some(Report::Trace(report)) => ("trace", trace(report)),
        Some(Report::Memory(report)) => ("memory", memory(report)),
        None => ("unreadable", Vec::new()),
    };
    summary.extend(profile::warnings(file).into_iter().take(2));
    let summary = summary.iter().map(|line| clean(line, 240)).collect();
    File { path: clean(&file.source.path.to_string_lossy(), LONG), kind, summary }
}

/// Where each device's time went, and the lines with the most time.
fn trace(report: &TraceReport) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for device in report.devices.iter().take(4) {
        let account = device.steady.as_ref().unwrap_or(&device.account);
        let of = |ns: u64| units::percent(ns as f64, account.span_ns as f64);
        told.push(format!(
            "device {} {}: {} recorded, computing {}, exposed communication {}, idle {}",
            device.index,
            device.name,
            units::time(account.span_ns),
            of(account.compute_ns),
            of(account.exposed_communication_ns),
            of(account.idle_ns)
        ));
    }
    if report.steps.count > 0 {
        told.push(format!("{} steps, {} each (median)", report.steps.count, units::time(report.steps.median_ns)));
    }
    let named = |what: &str, totals: &[Total]| {
        let top: Vec<String> = totals
            .iter()
            .take(3)
            .map(|total| format!("{} {}", clean(&total.name, 60), units::time(total.total_ns)))
            .collect();
        (!top.is_empty()).then(|| format!("most GPU time by {what}: {}", top.join("; ")))
    };
    told.extend(named("line", &report.lines));
    told.extend(named("kernel category", &report.categories));
    told
}

/// Each device's memory, and the lines that hold the most.
fn memory(report: &MemoryReport) -> Vec<String> {
    let device = |device: &Device| {
        format!(
            "device {}: {} allocated of {} reserved, peak {}, {} stuck in fragments",
            device.index,
            units::bytes(device.allocated_bytes),
            units::bytes(device.reserved_bytes),
            units::bytes(device.peak_allocated_bytes),
            units::bytes(device.stuck_bytes)
        )
    };
    let mut told: Vec<String> = report.devices.iter().take(4).map(device).collect();
    let holder = |row: &Row| {
        let line = row.short_line().unwrap_or_else(|| "unknown line".to_owned());
        format!("{} {} ({})", clean(&line, 60), units::bytes(row.bytes), row.category.label())
    };
    let top: Vec<String> = report.peak.iter().take(3).map(holder).collect();
    if !top.is_empty() {
        told.push(format!("most memory at the peak: {}", top.join("; ")));
    }
    told
}
