// SPDX-License-Identifier: Apache-2.0
//! Several jobs in one run: chooses which are explained and combines their reports.

use crate::{Asked, Result};
use gpuwhy_model::{Class, Finding, Job, OpId, Severity, units};
use gpuwhy_store::{Process, Reader};
use gpuwhy_why::Report;
use gpuwhy_why::report::{JobReport, ProcessReport};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most jobs explained, those with most launches: each takes its own memory.
const MOST: usize = 16;

/// Kinds of findings about allocating and freeing: the GPU time it cost, and the time the calls took.
const ALLOC_CHURN: &str = "alloc_churn";
const ALLOC_LATENCY: &str = "alloc_latency";

/// A job and its report.
#[derive(Debug, Clone)]
pub(super) struct Explained {
    /// `None`: all processes together.
    pub(super) job: Option<Job>,
    pub(super) report: Report,
}

/// Which jobs of a run are explained.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Those with work for a GPU, most launches first; `None` stands for all processes together.
    pub(super) explained: Vec<Option<Job>>,
    /// The others, and whether they had work for a GPU: they are listed if something is wrong with them.
    others: Vec<(Job, bool)>,
}

/// Chooses the jobs that are explained: those that launched, or copied, in the time range.
pub(super) fn choose(reader: &Reader, asked: &Asked) -> Result<Chosen> {
    if let [job] = asked.jobs.as_slice() {
        return Ok(Chosen { explained: vec![(!asked.all).then(|| job.clone())], ..Chosen::default() });
    }
    let mut work: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let class = |id: Option<OpId>| id.and_then(OpId::get).map(|op| op.class);
    for row in reader.op_totals_by_process(asked.from_ns, Some(asked.to_ns))? {
        let of_process = work.entry(row.pid).or_default();
        match class(row.id) {
            Some(Class::Launch) => of_process.0 += row.totals.calls,
            Some(Class::Copy) => of_process.1 += row.totals.calls,
            _ => {}
        }
    }
    let of = |job: &Job| {
        let works = job.pids.iter().filter_map(|pid| work.get(pid));
        works.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let mut jobs: Vec<((u64, u64), &Job)> = asked.jobs.iter().map(|job| (of(job), job)).collect();
    jobs.sort_by_key(|(work, _)| Reverse(*work));
    let busy = jobs.iter().filter(|(work, _)| *work > (0, 0)).count();
    if busy == 0 {
        return Ok(Chosen { explained: vec![None], ..Chosen::default() });
    }
    let mut jobs = jobs.into_iter().map(|(work, job)| (job.clone(), work > (0, 0)));
    let explained = jobs.by_ref().take(busy.min(MOST)).map(|(job, _)| Some(job)).collect();
    Ok(Chosen { explained, others: jobs.collect() })
}

/// Jobs that were not explained and have a finding that is worth telling, each with what is known of it.
fn with_findings(others: Vec<(Job, bool)>, findings: &[Finding], asked: &Asked) -> Vec<Explained> {
    let worth: Vec<u32> =
        findings.iter().filter(|found| found.severity >= Severity::Medium).filter_map(|found| found.pid).collect();
    let of_job = |(job, busy): (Job, bool)| {
        let pid = *worth.iter().find(|pid| job.pids.contains(pid))?;
        let mut processes: Vec<ProcessReport> =
            asked.processes.iter().filter(|one| job.pids.contains(&one.pid)).map(process).collect();
        processes.sort_by_key(|process| process.pid != pid);
        let (from_ns, to_ns) = (asked.from_ns, asked.to_ns);
        let wall_ns = to_ns.saturating_sub(from_ns);
        let why =
            if busy { "Its time was not explained: other jobs launched more." } else { "It launched no kernels." };
        let report = Report { from_ns, to_ns, wall_ns, processes, verdict: why.to_owned(), ..Report::default() };
        Some(Explained { job: Some(job), report })
    };
    others.into_iter().filter_map(of_job).collect()
}

fn process(process: &Process) -> ProcessReport {
    let Process { pid, name, command, .. } = process.clone();
    ProcessReport { pid, name, command, launches: 0 }
}

/// Gives each report its job's findings, and combines the reports.
pub(super) fn together(mut explained: Vec<Explained>, findings: Vec<Finding>, chosen: Chosen, asked: &Asked) -> Report {
    let busy: Vec<Job> = chosen.others.iter().filter(|(_, busy)| *busy).map(|(job, _)| job.clone()).collect();
    explained.extend(with_findings(chosen.others, &findings, asked));
    let is_listed = |job: &&Job| explained.iter().any(|one| one.job.as_ref() == Some(*job));
    let more_jobs = busy.iter().filter(|job| !is_listed(job)).count() as u64;
    let several = explained.len() > 1;
    let mut of_no_job = Vec::new();
    let mut of_each: Vec<Vec<Finding>> = vec![Vec::new(); explained.len()];
    for finding in findings {
        let is_of = |one: &Explained| match (&one.job, finding.pid) {
            (Some(job), Some(pid)) => job.pids.contains(&pid),
            (Some(_), None) => !several,
            (None, _) => true,
        };
        let own = explained.iter().position(is_of).and_then(|place| of_each.get_mut(place));
        own.unwrap_or(&mut of_no_job).push(finding);
    }
    if let [own] = of_each.as_mut_slice() {
        // A job that launched nothing has findings, too.
        own.append(&mut of_no_job);
    }
    for (one, own) in explained.iter_mut().zip(of_each) {
        let own = absorb(&mut one.report.findings, own);
        one.report.add_findings(own);
    }
    match explained.pop() {
        Some(only) if explained.is_empty() => only.report,
        Some(last) => {
            explained.push(last);
            all(explained, of_no_job, more_jobs)
        }
        None => Report::default(),
    }
}

/// Time in calls that allocate and free is found twice: by its cost in GPU time, and by the memory analysis. Merges both into
/// one finding with the severity of `gpuwhy memory`. Returns the other important findings about memory.
fn absorb(findings: &mut [Finding], of_memory: Vec<Finding>) -> Vec<Finding> {
    let mut others = Vec::new();
    for finding in of_memory {
        let same = |found: &&mut Finding| found.kind == ALLOC_CHURN && found.pid == finding.pid;
        match findings.iter_mut().find(same).filter(|_| finding.lost_ns > 0) {
            Some(found) => {
                found.severity = finding.severity;
                found.effect.push(finding.headline());
            }
            // Without a cost in GPU time it is for `gpuwhy memory` only.
            None if finding.kind == ALLOC_LATENCY => {}
            None => others.extend(Some(finding).filter(|finding| finding.severity >= Severity::Medium)),
        }
    }
    others
}

fn all(mut explained: Vec<Explained>, of_no_job: Vec<Finding>, more_jobs: u64) -> Report {
    let mut findings = Vec::new();
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
    // The verdict already has the jobs' findings.
    whole.findings.append(&mut findings);
    // A check may pass in one job and fail in another, and the jobs have no common steady state.
    whole.healthy.clear();
    whole.steady = None;
    whole.verdict = verdict(&jobs, more_jobs, &whole.verdict);
    whole.add_findings(of_no_job);
    (whole.jobs, whole.more_jobs) = (jobs, more_jobs);
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
        Some(worst) => worst.headline(),
        None if report.loss.too_much => "too many events were lost to say".to_owned(),
        None if report.processes.iter().all(|process| process.launches == 0) => "launched no kernels".to_owned(),
        None => "no cause costs 1 % or more".to_owned(),
    }
}

fn verdict(jobs: &[JobReport], more_jobs: u64, of_worst: &str) -> String {
    let many = units::count(jobs.len() as u64 + more_jobs);
    let who = jobs.first().map(|job| format!("{} {}", job.name, job.pid)).unwrap_or_default();
    format!("{many} jobs were recorded; the worst is {who}. {of_worst}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_store::Session;

    fn costing(kind: &str, severity: Severity) -> Finding {
        Finding { pid: Some(7), lost_ns: 5, ..Finding::new(kind, severity, format!("{kind} cost time")) }
    }

    /// A run with these processes.
    fn asked(pids: &[u32]) -> Asked {
        let process = |pid: &u32| Process {
            pid: *pid,
            name: format!("job {pid}"),
            started: None,
            ended: None,
            parent: None,
            container: None,
            command: None,
        };
        Asked {
            session: Session::default(),
            from_ns: 0,
            to_ns: 9,
            processes: pids.iter().map(process).collect(),
            jobs: Vec::new(),
            all: true,
        }
    }

    fn together(explained: Vec<Explained>, findings: Vec<Finding>) -> Report {
        super::together(explained, findings, Chosen::default(), &asked(&[]))
    }

    fn explained(findings: Vec<Finding>) -> Vec<Explained> {
        let report = Report { findings, verdict: "The launching thread slept.".into(), ..Report::default() };
        vec![Explained { job: None, report }]
    }

    #[test]
    fn one_problem_has_one_severity_in_every_answer() {
        for kind in ["fragmentation", ALLOC_LATENCY] {
            for severity in [Severity::Low, Severity::High] {
                let time = explained(vec![costing(ALLOC_CHURN, Severity::Medium)]);
                let report = together(time, vec![costing(kind, severity)]);
                assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
                assert_eq!((report.findings[0].kind.as_str(), report.findings[0].severity), (ALLOC_CHURN, severity));
                assert_eq!(report.findings[0].effect, [format!("{kind} cost time (5 ns)")]);
            }
        }
        // Of memory that is reserved for nothing the time says nothing; and what cost no GPU time stays with memory.
        let unused = Finding { lost_ns: 0, ..costing("fragmentation", Severity::High) };
        let report = together(explained(vec![costing(ALLOC_CHURN, Severity::Medium)]), vec![unused]);
        assert_eq!(report.findings.len(), 2);
        let report = together(explained(Vec::new()), vec![costing(ALLOC_LATENCY, Severity::High)]);
        assert_eq!(report.findings, []);
    }

    #[test]
    fn what_ended_the_job_opens_the_verdict() {
        let leak = Finding { lost_bytes: 9, ..Finding::new("memory_leak", Severity::Critical, "a.py:3 leaks".into()) };
        let oom = Finding::new("oom", Severity::Critical, "out of memory at 3.07 s: a.py:3 asked for 1 MB".into());
        let slept = Finding { lost_ns: 1 << 40, ..Finding::new("host_sleep", Severity::High, "slept".into()) };
        let report = together(explained(vec![slept.clone()]), vec![leak.clone(), oom]);
        let kinds: Vec<&str> = report.findings.iter().map(|found| found.kind.as_str()).collect();
        assert_eq!(kinds, ["oom", "memory_leak", "host_sleep"]);
        let verdict = "Out of memory at 3.07 s: a.py:3 asked for 1 MB. a.py:3 leaks. The launching thread slept.";
        assert_eq!(report.verdict, verdict);
        // What ended nothing comes after what cost the time.
        let report = together(explained(vec![slept]), vec![Finding { severity: Severity::High, ..leak }]);
        assert_eq!(report.verdict, "The launching thread slept. a.py:3 leaks.");
    }

    #[test]
    fn what_ended_a_job_that_launched_nothing_is_said_first() {
        let job = |pid: u32| {
            let job = Job { pids: [pid].into() };
            Explained { job: Some(job), report: Report { verdict: format!("About {pid}."), ..Report::default() } }
        };
        let oom = Finding { pid: Some(9), ..Finding::new("oom", Severity::Critical, "out of memory at 1 s".into()) };
        let report = together(vec![job(7), job(8)], vec![oom]);
        assert!(
            report.verdict.starts_with("Out of memory at 1 s. 2 jobs were recorded; the worst is"),
            "{}",
            report.verdict
        );
    }

    #[test]
    fn a_job_without_launches_is_listed_for_its_finding_and_what_is_not_listed_is_counted() {
        let job = |pid: u32| Job { pids: [pid].into() };
        let launches = ProcessReport { pid: 7, launches: 5, ..ProcessReport::default() };
        let slow = Report { verdict: "Slow.".into(), processes: vec![launches], ..Report::default() };
        let works = || vec![Explained { job: Some(job(7)), report: slow.clone() }];
        let oom = Finding { pid: Some(9), ..Finding::new("oom", Severity::Critical, "out of memory at 1 s".into()) };
        let others = vec![(job(8), true), (job(9), false), (job(10), false)];
        let chosen = || Chosen { explained: Vec::new(), others: others.clone() };
        let report = super::together(works(), vec![oom], chosen(), &asked(&[7, 8, 9, 10]));
        let listed: Vec<(u32, &str)> = report.jobs.iter().map(|job| (job.pid, job.summary.as_str())).collect();
        assert_eq!(listed, [(9, "out of memory at 1 s"), (7, "no cause costs 1 % or more")]);
        assert_eq!(report.more_jobs, 1, "job 8 had work, and is not listed");
        let verdict = "3 jobs were recorded; the worst is job 9 9. Out of memory at 1 s. It launched no kernels.";
        assert_eq!(report.verdict, verdict);
        // Nothing wrong with those without work: they are no news.
        let report = super::together(works(), Vec::new(), chosen(), &asked(&[7, 8, 9, 10]));
        assert_eq!(report.verdict, "Slow.");
    }
}
