// SPDX-License-Identifier: Apache-2.0
//! What the run file says beside its events, in the words of the analysis.

use gpuwhy_store::RunFacts;
use gpuwhy_why::{Facts, LossFact, ProcessFact};

/// The facts of a part of a run.
pub(super) fn gather(run: RunFacts, from_ns: u64, to_ns: u64, only: &[u32]) -> Facts {
    let cores = run.session.machine.cores.unwrap_or(0);
    let sampled = run.system.last().map(|sample| sample.cores);
    let process = |process: gpuwhy_store::Process| ProcessFact {
        pid: process.pid,
        name: process.name,
        command: process.command,
        started: process.started,
        ended: process.ended,
    };
    let loss = |row: gpuwhy_store::LossRow| LossFact {
        cause: row.cause,
        op: row.op,
        count: row.count,
        loses_event: row.loses_event,
    };
    Facts {
        from_ns,
        to_ns,
        only: only.to_vec(),
        started: run.session.command.is_some(),
        complete: run.session.stop_unix_ns.is_some(),
        processes: run.processes.into_iter().map(|one| (one.pid, process(one))).collect(),
        threads: run.threads,
        system: run.system,
        cgroups: run.cgroups,
        gpu_seconds: run.gpu_seconds,
        busy: run.busy,
        gpu_processes: run.gpu_processes,
        gpu_errors: run.gpu_errors,
        loss: run.loss.into_iter().map(loss).collect(),
        lossy_seconds: run.lossy_seconds,
        unwatched: run.unwatched,
        cores: sampled.unwrap_or(cores),
    }
}
