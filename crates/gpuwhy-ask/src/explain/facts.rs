// SPDX-License-Identifier: Apache-2.0
//! Converts the store's facts of a run to those of the analysis.

use gpuwhy_model::Job;
use gpuwhy_store::RunFacts;
use gpuwhy_why::{Facts, LossFact, ProcessFact};

/// The facts of a time range, for one job or (`None`) for all processes.
pub(super) fn gather(run: &RunFacts, from_ns: u64, to_ns: u64, job: Option<&Job>) -> Facts {
    let cores = run.session.machine.cores.unwrap_or(0);
    let sampled = run.system.last().map(|sample| sample.cores);
    let is_of_job = |pid: u32| job.is_none_or(|job| job.pids.contains(&pid));
    let process = |process: &gpuwhy_store::Process| ProcessFact {
        pid: process.pid,
        name: process.name.clone(),
        command: process.command.clone(),
        started: process.started,
        ended: process.ended,
    };
    let loss = |row: &gpuwhy_store::LossRow| LossFact {
        cause: row.cause.clone(),
        op: row.op.clone(),
        count: row.count,
        loses_event: row.loses_event,
    };
    let unwatched = run.unwatched.iter().filter(|span| span.pid.is_none_or(is_of_job));
    let (own, others) = run.processes.iter().map(|one| (one.pid, process(one))).partition(|(pid, _)| is_of_job(*pid));
    Facts {
        from_ns,
        to_ns,
        started: run.session.command.is_some(),
        complete: run.session.stop_unix_ns.is_some(),
        processes: own,
        others,
        threads: run.threads.iter().filter(|thread| is_of_job(thread.pid)).copied().collect(),
        system: run.system.clone(),
        cgroups: run.cgroups.clone(),
        gpu_seconds: run.gpu_seconds.clone(),
        busy: run.busy.clone(),
        gpu_processes: run.gpu_processes.clone(),
        gpu_errors: run.gpu_errors.clone(),
        loss: run.loss.iter().map(loss).collect(),
        lossy_seconds: run.lossy_seconds.clone(),
        unwatched: unwatched.map(|span| (span.from_ns, span.to_ns)).collect(),
        cores: sampled.unwrap_or(cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_store::UnwatchedSpan;

    #[test]
    fn what_was_not_followed_in_one_process_counts_for_its_job() {
        let span = |from_ns, pid| UnwatchedSpan { from_ns, to_ns: from_ns + 5, pid };
        let unwatched = vec![span(10, Some(7)), span(20, Some(8)), span(30, None)];
        let run = RunFacts { unwatched, ..RunFacts::default() };
        let job = Job { pids: [7].into() };
        assert_eq!(gather(&run, 0, 100, Some(&job)).unwatched, [(10, 15), (30, 35)]);
        assert_eq!(gather(&run, 0, 100, None).unwatched.len(), 3);
    }
}
