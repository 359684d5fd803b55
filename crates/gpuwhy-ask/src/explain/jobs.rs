// SPDX-License-Identifier: Apache-2.0
//! Several jobs in one run: which of them are explained, and their reports put together.

use crate::{Asked, Result};
use gpuwhy_model::{Class, Finding, Job, OpId, Severity, units};
use gpuwhy_store::Reader;
use gpuwhy_why::Report;
use gpuwhy_why::report::JobReport;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Jobs explained at most, those with most launches: each takes memory of its own.
const MOST: usize = 16;

/// A job and its report.
#[derive(Debug, Clone)]
pub(super) struct Explained {
    /// `None`: all processes together.
    pub(super) job: Option<Job>,
    pub(super) report: Report,
}

/// The jobs that are worth a report: those that launched in the part, most first. `None` stands for all processes.
pub(super) fn worth(reader: &Reader, asked: &Asked) -> Result<Vec<Option<Job>>> {
    if let [job] = asked.jobs.as_slice() {
        return Ok(vec![(!asked.all).then(|| job.clone())]);
    }
    let mut launches: BTreeMap<u32, u64> = BTreeMap::new();
    let is_launch = |id: Option<OpId>| id.and_then(OpId::get).is_some_and(|op| op.class == Class::Launch);
    for row in reader.op_totals_by_process(asked.from_ns, Some(asked.to_ns))? {
        if is_launch(row.id) {
            *launches.entry(row.pid).or_default() += row.totals.calls;
        }
    }
    let of = |job: &Job| job.pids.iter().filter_map(|pid| launches.get(pid)).sum::<u64>();
    let mut jobs: Vec<(u64, &Job)> = asked.jobs.iter().map(|job| (of(job), job)).filter(|(n, _)| *n > 0).collect();
    jobs.sort_by_key(|(launches, _)| Reverse(*launches));
    jobs.truncate(MOST);
    let jobs: Vec<Option<Job>> = jobs.into_iter().map(|(_, job)| Some(job.clone())).collect();
    Ok(if jobs.is_empty() { vec![None] } else { jobs })
}

/// Gives each report its job's findings, and makes one report of all.
pub(super) fn together(mut explained: Vec<Explained>, findings: Vec<Finding>) -> Report {
    let several = explained.len() > 1;
    let mut nobodys = Vec::new();
    for finding in findings {
        let is_of = |one: &&mut Explained| match (&one.job, finding.pid) {
            (Some(job), Some(pid)) => job.pids.contains(&pid),
            (Some(_), None) => !several,
            (None, _) => true,
        };
        match explained.iter_mut().find(is_of) {
            Some(one) => one.report.findings.push(finding),
            None => nobodys.push(finding),
        }
    }
    explained.iter_mut().for_each(|one| Finding::sort(&mut one.report.findings));
    match explained.pop() {
        Some(mut only) if explained.is_empty() => {
            // What is wrong with a job that launched nothing.
            only.report.findings.append(&mut nobodys);
            Finding::sort(&mut only.report.findings);
            only.report
        }
        Some(last) => {
            explained.push(last);
            all(explained, nobodys)
        }
        None => Report::default(),
    }
}

fn all(mut explained: Vec<Explained>, mut findings: Vec<Finding>) -> Report {
    let lost = |report: &Report| report.findings.iter().map(|finding| finding.lost_ns).max();
    explained.sort_by_key(|one| Reverse((worst(&one.report), lost(&one.report))));
    let jobs: Vec<JobReport> = explained.iter().map(job_report).collect();
    let mut reports = explained.into_iter().map(|one| one.report);
    let mut whole = reports.next().unwrap_or_default();
    tag(&mut whole, jobs.first());
    for (mut report, job) in reports.zip(jobs.iter().skip(1)) {
        tag(&mut report, Some(job));
        whole.gpus.extend(report.gpus);
        whole.processes.extend(report.processes);
        whole.threads.extend(report.threads);
        findings.extend(report.findings);
        whole.loss.notes.extend(report.loss.notes);
    }
    let mut known = std::collections::BTreeSet::new();
    whole.loss.notes.retain(|note| known.insert(note.clone()));
    whole.findings.append(&mut findings);
    Finding::sort(&mut whole.findings);
    // What is well with one job may be wrong with another, and no steady part is that of all.
    whole.healthy.clear();
    whole.steady = None;
    whole.verdict = verdict(&jobs, &whole.verdict);
    whole.jobs = jobs;
    whole
}

fn tag(report: &mut Report, job: Option<&JobReport>) {
    report.gpus.iter_mut().for_each(|gpu| gpu.job = job.map(|job| job.pid));
}

fn worst(report: &Report) -> Option<Severity> {
    report.findings.iter().map(|finding| finding.severity).max()
}

fn job_report(explained: &Explained) -> JobReport {
    let report = &explained.report;
    let main = report.processes.first().cloned().unwrap_or_default();
    JobReport {
        pid: main.pid,
        name: main.name,
        command: main.command,
        pids: explained.job.iter().flat_map(|job| &job.pids).copied().collect(),
        ranks: report.processes.iter().filter(|process| process.launches > 0).count() as u64,
        launches: report.processes.iter().map(|process| process.launches).sum(),
        gpu_idle_min_ns: report.gpu_idle_min_ns,
        gpu_idle_max_ns: report.gpu_idle_max_ns,
        severity: worst(report),
        verdict: report.verdict.clone(),
        summary: summary(report),
    }
}

/// A job in one line: its worst finding.
fn summary(report: &Report) -> String {
    match report.findings.first().filter(|finding| finding.severity > Severity::Info) {
        Some(worst) => worst.title.clone(),
        None if report.loss.too_much => "too much was lost to say".to_owned(),
        None => "no cause costs 1 % or more".to_owned(),
    }
}

fn verdict(jobs: &[JobReport], of_worst: &str) -> String {
    let many = units::count(jobs.len() as u64);
    let who = jobs.first().map(|job| format!("{} {}", job.name, job.pid)).unwrap_or_default();
    format!("{many} jobs were recorded. The worst is {who}: {of_worst}")
}
