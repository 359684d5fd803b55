// SPDX-License-Identifier: Apache-2.0
//! Host samples, once a second, combined with what the kernel counted per process meanwhile.

use crate::trace::Settings;
use crate::trace::alerts::Alerting;
use crate::trace::writer::WriterThread;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::sample::{SampleOptions, Sampler};
use gpuwhy_model::ops::{TorchOp, torch_op};
use gpuwhy_model::sample::GpuSample;
use gpuwhy_model::{Call, Samples};
use std::collections::{BTreeSet, HashMap};

/// Pages allocated to a thread or process.
#[derive(Debug, Clone, Copy, Default)]
struct Pages {
    allocations: u64,
    bytes: u64,
}

/// Collects samples for the run file.
pub(crate) struct HostSide {
    sampler: Option<Sampler>,
    watched: BTreeSet<u32>,
    /// Pages of each thread at its last sums.
    threads: HashMap<(u32, u32), Pages>,
    /// Pages of each process since its last sample.
    fresh: HashMap<u32, Pages>,
}

impl HostSide {
    /// Starts sampling if the settings ask for it.
    pub(crate) fn start(settings: &Settings) -> Self {
        let options = || SampleOptions { nvml_path: settings.nvml.clone(), ..SampleOptions::default() };
        let sampler = settings.samples.then(|| Sampler::start(options()));
        Self { sampler, watched: BTreeSet::new(), threads: HashMap::new(), fresh: HashMap::new() }
    }

    /// Sets the processes to sample.
    pub(crate) fn watch(&mut self, processes: &BTreeSet<u32>) {
        if let Some(sampler) = self.sampler.as_ref().filter(|_| self.watched != *processes) {
            self.watched = processes.clone();
            sampler.watch(&processes.iter().copied().collect::<Vec<_>>());
        }
    }

    /// Adds the pages allocated to threads. If memory ran out, samples the GPUs immediately.
    pub(crate) fn note(&mut self, batch: &Batch) {
        let Some(sampler) = &self.sampler else { return };
        if ran_out(batch) {
            sampler.look();
        }
        for sums in &batch.sums {
            let key = (sums.pid, sums.tid);
            let now = Pages { allocations: sums.page_allocations, bytes: sums.page_bytes };
            let before = if sums.ended { self.threads.remove(&key) } else { self.threads.insert(key, now) };
            let before = before.filter(|before| before.allocations <= now.allocations).unwrap_or_default();
            let fresh = self.fresh.entry(sums.pid).or_default();
            fresh.allocations += now.allocations - before.allocations;
            fresh.bytes += now.bytes.saturating_sub(before.bytes);
        }
    }

    /// Sends the samples to the writer.
    pub(crate) fn every_second(&mut self, processes: &BTreeSet<u32>, alerts: &mut Alerting, writer: &WriterThread) {
        self.watch(processes);
        if let Some(sampler) = &self.sampler {
            let (samples, looks) = (sampler.take(), sampler.take_looks());
            self.pass_on(samples, looks, alerts, writer);
        }
        self.fresh.retain(|pid, _| processes.contains(pid));
    }

    /// Sends the last samples.
    pub(crate) fn finish(&mut self, alerts: &mut Alerting, writer: &WriterThread) {
        let (samples, looks) = self.sampler.take().map(Sampler::finish).unwrap_or_default();
        self.pass_on(samples, looks, alerts, writer);
    }

    fn pass_on(&mut self, samples: Vec<Samples>, looks: Vec<GpuSample>, alerts: &mut Alerting, writer: &WriterThread) {
        if !looks.is_empty() {
            writer.samples(Samples { gpus: looks, ..Samples::default() });
        }
        for mut samples in samples {
            alerts.samples(&samples, &self.watched);
            for process in &mut samples.processes {
                let fresh = self.fresh.remove(&process.pid);
                process.page_allocations = fresh.map(|pages| pages.allocations);
                process.page_bytes = fresh.map(|pages| pages.bytes);
            }
            writer.samples(samples);
        }
    }
}

/// Whether PyTorch's allocator or the driver reported that memory ran out.
fn ran_out(batch: &Batch) -> bool {
    let reported = torch_op(TorchOp::OutOfMemory);
    batch.tensors.iter().any(|event| event.op == reported) || batch.calls.iter().any(Call::is_refused_memory)
}
