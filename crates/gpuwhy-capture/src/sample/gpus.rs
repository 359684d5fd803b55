// SPDX-License-Identifier: Apache-2.0
//! The GPUs, through NVML: rates, memory, clocks, the driver's own utilisation samples, processes and errors.
//!
//! A figure that a GPU or driver does not report is `None` and does not affect the others.

use super::files::{ahead_of_monotonic_ns, clock_ns};
use crate::capture::now_ns;
use gpuwhy_model::host::padded_name;
use gpuwhy_model::sample::{Gpu, GpuBusy, GpuError, GpuProcess, GpuSample, Samples};
use gpuwhy_strangers::{ProcFile, read_proc};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, EventSet, Nvml};
use std::collections::{BTreeMap, BTreeSet};

/// Errors taken in one second from one GPU: a broken one can report them without end.
const MOST_ERRORS: usize = 64;

/// The driver works out the times of its utilisation samples anew at every read, and they shift by up to a millisecond:
/// what is this close (µs) to the newest one taken is that one. Samples are at least a sixth of a second apart.
const SAME_SAMPLE_US: u64 = 20_000;

/// NVML's value for an Xid it cannot name.
const UNKNOWN_XID: u64 = 999;

/// The GPUs of this machine.
pub(super) struct Gpus<'nvml> {
    gpus: Vec<Watched<'nvml>>,
    told: bool,
}

struct Watched<'nvml> {
    device: Device<'nvml>,
    gpu: Gpu,
    /// Each GPU has a set of its own, because one that refuses would cost the others theirs.
    errors: Option<EventSet<'nvml>>,
    /// The newest utilisation sample taken, in the driver's clock (`CLOCK_REALTIME`, µs); `None` if it keeps none.
    last_seen_us: Option<u64>,
    /// The same of the samples of processes.
    process_seen_us: u64,
}

impl<'nvml> Gpus<'nvml> {
    pub(super) fn new(nvml: &'nvml Nvml) -> Self {
        let watch = |index| Some(Watched::new(nvml, index, nvml.device_by_index(index).ok()?));
        Self { gpus: (0..nvml.device_count().unwrap_or(0)).filter_map(watch).collect(), told: false }
    }

    /// Adds this second to the samples.
    pub(super) fn read(&mut self, samples: &mut Samples) {
        if !std::mem::replace(&mut self.told, true) {
            samples.new_gpus.extend(self.gpus.iter().map(|watched| watched.gpu.clone()));
        }
        for watched in &mut self.gpus {
            samples.gpus.extend(watched.levels());
            watched.busy(&mut samples.busy);
            watched.processes(&mut samples.gpu_processes);
            watched.errors(&mut samples.gpu_errors);
        }
    }
}

impl Gpus<'_> {
    /// How much memory is used on each, and nothing else.
    pub(super) fn memory(&self) -> Vec<GpuSample> {
        let look = |watched: &Watched<'_>| {
            let at_ns = now_ns();
            let memory = watched.device.memory_info().ok()?;
            let (memory_used, memory_total) = (Some(memory.used), Some(memory.total));
            Some(GpuSample { at_ns, gpu: watched.gpu.gpu, memory_used, memory_total, ..GpuSample::default() })
        };
        self.gpus.iter().filter_map(look).collect()
    }
}

impl<'nvml> Watched<'nvml> {
    fn new(nvml: &'nvml Nvml, index: u32, device: Device<'nvml>) -> Self {
        let bus = device.pci_info().map(|pci| bus_as_linux_writes_it(&pci.bus_id)).unwrap_or_default();
        let (name, uuid) = (device.name().unwrap_or_default(), device.uuid().unwrap_or_default());
        let mut watched = Self {
            gpu: Gpu { gpu: index, name, uuid, bus },
            errors: watch_errors(nvml, &device),
            last_seen_us: Some(0),
            process_seen_us: realtime_us(),
            device,
        };
        watched.prime();
        watched
    }

    /// The first read of the driver's buffer gives zeros and what is older than we are: it is thrown away.
    fn prime(&mut self) {
        let first = self.device.samples(Sampling::GpuUtilization, None);
        let unsupported = matches!(first, Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)));
        let newest = first.iter().flatten().map(|sample| sample.timestamp).max().unwrap_or(0);
        self.last_seen_us = (!unsupported).then(|| newest.max(realtime_us()));
    }

    /// `None` if nothing could be read.
    fn levels(&self) -> Option<GpuSample> {
        let device = &self.device;
        let at_ns = now_ns();
        let rates = device.utilization_rates().ok();
        let memory = device.memory_info().ok();
        let sample = GpuSample {
            at_ns,
            gpu: self.gpu.gpu,
            rate_percent: rates.as_ref().map(|rates| rates.gpu),
            memory_rate_percent: rates.as_ref().map(|rates| rates.memory),
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.as_ref().map(|memory| memory.total),
            sm_mhz: device.clock_info(Clock::SM).ok(),
            memory_mhz: device.clock_info(Clock::Memory).ok(),
            power_mw: device.power_usage().ok(),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            throttle_reasons: device.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
        };
        let empty = GpuSample { at_ns, gpu: self.gpu.gpu, ..Default::default() };
        (sample != empty).then_some(sample)
    }

    /// The driver's utilisation samples not taken yet, oldest first.
    fn busy(&mut self, busy: &mut Vec<GpuBusy>) {
        let Some(last_seen) = &mut self.last_seen_us else { return };
        // The wall clock may have been set back; samples from then on are new all the same.
        *last_seen = (*last_seen).min(realtime_us());
        let Ok(mut samples) = self.device.samples(Sampling::GpuUtilization, *last_seen) else { return };
        let ahead_ns = ahead_of_monotonic_ns(libc::CLOCK_REALTIME);
        samples.sort_by_key(|sample| sample.timestamp);
        for sample in samples {
            let percent = match sample.value {
                SampleValue::U32(percent) => percent,
                SampleValue::U64(percent) => u32::try_from(percent).unwrap_or(u32::MAX),
                SampleValue::I64(percent) => u32::try_from(percent).unwrap_or(0),
                SampleValue::F64(percent) => percent as u32,
            };
            if sample.timestamp > last_seen.saturating_add(SAME_SAMPLE_US) {
                *last_seen = sample.timestamp;
                let at_ns = u64::try_from(i128::from(sample.timestamp) * 1000 - ahead_ns).unwrap_or(0);
                busy.push(GpuBusy { at_ns, gpu: self.gpu.gpu, percent: percent.min(100) });
            }
        }
    }

    fn processes(&mut self, processes: &mut Vec<GpuProcess>) {
        let at_ns = now_ns();
        let busy = self.busy_processes();
        let compute = self.device.running_compute_processes().unwrap_or_default();
        let graphics = self.device.running_graphics_processes().unwrap_or_default();
        let of_gpu = |(pid, bytes)| {
            let sm_percent = busy.as_ref().map(|busy| busy.get(&pid).copied().unwrap_or(0));
            GpuProcess { at_ns, gpu: self.gpu.gpu, pid, bytes, sm_percent, name: task_name(pid) }
        };
        processes.extend(memory_by_process(&compute, &graphics).into_iter().map(of_gpu));
    }

    /// How much of the time since the last look each process's kernels ran, percent: the mean of the driver's samples
    /// (a few a second). A process without samples did nothing. `None` if the driver keeps none.
    fn busy_processes(&mut self) -> Option<BTreeMap<u32, u32>> {
        let samples = match self.device.process_utilization_stats(self.process_seen_us) {
            Ok(samples) => samples,
            // Even if there is nothing new: no report differs from zero.
            Err(_) => return None,
        };
        let mut sums = BTreeMap::<u32, u32>::new();
        let mut moments = BTreeSet::new();
        for sample in samples.iter().filter(|sample| sample.timestamp > self.process_seen_us) {
            *sums.entry(sample.pid).or_default() += sample.sm_util.min(100);
            moments.insert(sample.timestamp);
        }
        // NVML reports a process only when it was active.
        let moments = u32::try_from(moments.len()).unwrap_or(u32::MAX).max(1);
        let newest = samples.iter().map(|sample| sample.timestamp).max().unwrap_or(0);
        self.process_seen_us = self.process_seen_us.max(newest).min(realtime_us());
        Some(sums.into_iter().map(|(pid, sum)| (pid, sum.div_ceil(moments))).collect())
    }

    fn errors(&self, errors: &mut Vec<GpuError>) {
        let Some(set) = &self.errors else { return };
        for _ in 0..MOST_ERRORS {
            // Any other result means that there is no event now.
            let Ok(event) = set.wait(0) else { return };
            let xid = match event.event_data {
                Some(XidError::Value(xid)) => xid,
                Some(XidError::Unknown) => UNKNOWN_XID,
                None => continue,
            };
            errors.push(GpuError { at_ns: now_ns(), gpu: self.gpu.gpu, xid });
        }
    }
}

/// The kernel's name of a process, zero-padded; zeros when it is gone.
fn task_name(pid: u32) -> [u8; 16] {
    let comm = read_proc(pid, ProcFile::Comm).unwrap_or_default();
    padded_name(comm.strip_suffix(b"\n").unwrap_or(&comm))
}

fn watch_errors<'nvml>(nvml: &'nvml Nvml, device: &Device<'nvml>) -> Option<EventSet<'nvml>> {
    let supported = device.supported_event_types().ok()?;
    if !supported.contains(EventTypes::CRITICAL_XID_ERROR) {
        return None;
    }
    device.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().ok()?).ok()
}

/// A process may be in both lists with the same memory, and several times in one (once per MIG instance).
fn memory_by_process(compute: &[ProcessInfo], graphics: &[ProcessInfo]) -> BTreeMap<u32, Option<u64>> {
    let mut by_process = sum_by_process(compute);
    for (pid, bytes) in sum_by_process(graphics) {
        let entry = by_process.entry(pid).or_default();
        *entry = (*entry).max(bytes);
    }
    by_process
}

fn sum_by_process(list: &[ProcessInfo]) -> BTreeMap<u32, Option<u64>> {
    let mut sums = BTreeMap::<u32, Option<u64>>::new();
    for process in list {
        let sum = sums.entry(process.pid).or_default();
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
        }
    }
    sums
}

/// NVML writes the domain with eight digits, Linux and CUDA with four: `0000:3b:00.0`.
fn bus_as_linux_writes_it(bus: &str) -> String {
    let bus = bus.to_ascii_lowercase();
    bus.strip_prefix("0000").filter(|rest| rest.find(':') == Some(4)).map(str::to_owned).unwrap_or(bus)
}

fn realtime_us() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory: memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn bus_ids_are_written_one_way() {
        assert_eq!(bus_as_linux_writes_it("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(bus_as_linux_writes_it("00010000:3B:00.0"), "00010000:3b:00.0");
        assert_eq!(bus_as_linux_writes_it("0000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(bus_as_linux_writes_it(""), "");
    }

    #[test]
    fn memory_is_counted_once_for_each_process() {
        use UsedGpuMemory::{Unavailable, Used};
        let compute = [process(1, Used(10)), process(1, Used(5)), process(2, Unavailable)];
        let graphics = [process(1, Used(15)), process(3, Used(7)), process(2, Used(1))];
        let expected = [(1, Some(15)), (2, Some(1)), (3, Some(7))];
        assert_eq!(memory_by_process(&compute, &graphics), BTreeMap::from(expected));
    }
}
