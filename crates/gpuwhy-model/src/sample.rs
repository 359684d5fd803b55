// SPDX-License-Identifier: Apache-2.0
//! Samples taken once a second: the machine, the job's processes, their cgroups, the GPUs.
//!
//! The kernel's counters since boot are converted to increments per sample. Values that a machine does not provide are
//! `None`. Times are `CLOCK_MONOTONIC` nanoseconds, sizes are bytes.

/// The machine in one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemSample {
    /// When it was taken.
    pub at_ns: u64,
    /// Time since the sample before.
    pub span_ns: u64,
    /// CPU time of all CPUs together, by what it was spent on.
    pub user_ns: u64,
    /// In the kernel, interrupts included.
    pub system_ns: u64,
    /// Idle while a task of that CPU waited for I/O.
    pub iowait_ns: u64,
    /// Idle otherwise.
    pub idle_ns: u64,
    /// Taken away by the hypervisor.
    pub steal_ns: u64,
    /// Logical CPUs online.
    pub cores: u32,
    /// The kernel's load average over a minute.
    pub load1: Option<f64>,
    /// Tasks running or ready at the time of the sample.
    pub runnable: Option<u64>,
    /// Main memory.
    pub memory_total: Option<u64>,
    /// Main memory that programs could still get.
    pub memory_available: Option<u64>,
    /// Swap in use.
    pub swap_used: Option<u64>,
    /// Bytes swapped in in this second.
    pub swap_in: Option<u64>,
    /// Bytes swapped out.
    pub swap_out: Option<u64>,
    /// Pressure stall: time in which some task waited for a CPU.
    pub pressure_cpu_ns: Option<u64>,
    /// Some task waited for memory.
    pub pressure_memory_some_ns: Option<u64>,
    /// All tasks waited for memory.
    pub pressure_memory_full_ns: Option<u64>,
    /// Some task waited for I/O.
    pub pressure_io_some_ns: Option<u64>,
    /// All tasks waited for I/O.
    pub pressure_io_full_ns: Option<u64>,
}

/// One traced process in one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessSample {
    /// When it was taken.
    pub at_ns: u64,
    /// Time since the sample before (of this process).
    pub span_ns: u64,
    /// Process.
    pub pid: u32,
    /// CPU time in user mode in this second.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// Resident memory.
    pub resident: u64,
    /// The anonymous part of `resident` (not files).
    pub anonymous: Option<u64>,
    /// In swap.
    pub swapped: Option<u64>,
    /// Threads.
    pub threads: u32,
    /// Major page faults in this second, by the kernel's own count.
    pub major_faults: u64,
    /// Minor ones.
    pub minor_faults: u64,
    /// Bytes really read from storage in this second.
    pub read_bytes: Option<u64>,
    /// Bytes given to storage.
    pub write_bytes: Option<u64>,
    /// Times the kernel gave the process's threads pages in this second (counted by gpuwhy's own probes).
    pub page_allocations: Option<u64>,
    /// Bytes of those pages.
    pub page_bytes: Option<u64>,
}

/// A cgroup traced processes are in, in one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CgroupSample {
    /// When it was taken.
    pub at_ns: u64,
    /// Its path below the cgroup mount.
    pub path: String,
    /// 1 or 2.
    pub version: u8,
    /// CPU time allowed in each period; `None` without a limit.
    pub quota_ns: Option<u64>,
    /// That period.
    pub period_ns: Option<u64>,
    /// Periods that passed in this second.
    pub periods: Option<u64>,
    /// The part of `periods` in which it was throttled.
    pub throttled_periods: Option<u64>,
    /// The kernel's own figure of throttled time in this second (summed over CPUs).
    pub throttled_ns: Option<u64>,
    /// CPU time used in this second.
    pub usage_ns: Option<u64>,
    /// Memory in use.
    pub memory_used: Option<u64>,
    /// Its limit; `None` without one.
    pub memory_limit: Option<u64>,
    /// Processes killed because of that limit since the sample before.
    pub oom_kills: Option<u64>,
}

/// One GPU in one second, by NVML.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuSample {
    /// When it was taken.
    pub at_ns: u64,
    /// NVML's index, which is not CUDA's ordinal.
    pub gpu: u32,
    /// The rate nvidia-smi shows, percent: time in which some kernel ran, over a window of the driver's choice.
    pub rate_percent: Option<u32>,
    /// The same for memory traffic.
    pub memory_rate_percent: Option<u32>,
    /// Memory in use, by all processes and the driver.
    pub memory_used: Option<u64>,
    /// All its memory.
    pub memory_total: Option<u64>,
    /// Clock of the multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    /// Clock of the memory, MHz.
    pub memory_mhz: Option<u32>,
    /// Power, milliwatts.
    pub power_mw: Option<u32>,
    /// Temperature, °C.
    pub temperature_c: Option<u32>,
    /// Why clocks are lowered: NVML's bits.
    pub throttle_reasons: Option<u64>,
}

/// One entry of NVML's own buffer of utilisation samples (about five a second), more accurate than `rate_percent`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuBusy {
    /// When the driver took it.
    pub at_ns: u64,
    /// NVML's index.
    pub gpu: u32,
    /// Time in which some kernel ran, percent of the time since the sample before.
    pub percent: u32,
}

/// GPU memory of one process, by NVML.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuProcess {
    /// When it was taken.
    pub at_ns: u64,
    /// NVML's index.
    pub gpu: u32,
    /// Process, in the host's numbering.
    pub pid: u32,
    /// Its memory on the GPU; `None` where the driver does not say.
    pub bytes: Option<u64>,
    /// Time in which its kernels ran since the previous sample, percent; `None` where the driver does not say.
    pub sm_percent: Option<u32>,
    /// Its name, zero-padded: it need not be one of the traced ones.
    pub name: [u8; 16],
}

impl GpuProcess {
    /// Its name as text. Invalid UTF-8 (the kernel cuts names anywhere) becomes `?`, so the text is never longer than `name`.
    pub fn name(&self) -> String {
        let mut text = String::new();
        for chunk in self.name.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                text.push('?');
            }
        }
        text.trim_end_matches('\0').to_owned()
    }
}

/// An error the driver reported of a GPU (Xid).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuError {
    /// When it was seen.
    pub at_ns: u64,
    /// NVML's index.
    pub gpu: u32,
    /// The Xid.
    pub xid: u64,
}

/// A GPU's identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index.
    pub gpu: u32,
    /// Name.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// PCI bus id.
    pub bus: String,
}

/// Everything of one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// The machine.
    pub system: Option<SystemSample>,
    /// Traced processes.
    pub processes: Vec<ProcessSample>,
    /// Their cgroups.
    pub cgroups: Vec<CgroupSample>,
    /// GPUs.
    pub gpus: Vec<GpuSample>,
    /// NVML's utilisation samples since the last time.
    pub busy: Vec<GpuBusy>,
    /// GPU memory by process.
    pub gpu_processes: Vec<GpuProcess>,
    /// Errors since the last time.
    pub gpu_errors: Vec<GpuError>,
    /// GPUs seen for the first time.
    pub new_gpus: Vec<Gpu>,
}
