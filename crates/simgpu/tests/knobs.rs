// SPDX-License-Identifier: Apache-2.0
//! Settings that make the simulated stack behave like a slow one, and the job with a trouble, all checked
//! against the truth log.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Bench, output_of};
use simgpu::log::{Busy, Engine, Truth};

/// Python that drives the stack, with `cuda` and a `stream` at hand.
fn python(bench: &Bench, program: &str) -> Command {
    let start = "import ctypes, simcuda\ncuda = simcuda.Cuda()\ncuda.set_device(0)\nstream = cuda.stream()\n";
    let mut command = Command::new("python3");
    command
        .args(["-c", &format!("{start}{program}")])
        .env("PYTHONPATH", &bench.installed.dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SIMGPU_LOG", bench.root.join("log"));
    command
}

fn kernels(truth: &Truth) -> Vec<Busy> {
    truth.busy().filter(|busy| busy.engine == Engine::Compute).collect()
}

/// The calls of a function: entry and return.
fn calls(truth: &Truth, function: &str) -> Vec<(u64, u64)> {
    truth.calls().filter(|call| &*call.function == function).map(|call| (call.enter_ns, call.exit_ns)).collect()
}

#[test]
fn a_slow_malloc_takes_its_time_and_a_free_waits() {
    let bench = Bench::new("alloc");
    let program = "p = cuda.malloc(4096)\ncuda.launch(cuda.kernel('k', 30000), stream)\ncuda.free_device(p)\n";
    let mut job = python(&bench, program);
    job.env("SIMGPU_ALLOC_US", "2000");
    output_of(job);
    let truth = bench.truth();
    let (malloc, free) = (calls(&truth, "cuMemAlloc_v2"), calls(&truth, "cuMemFree_v2"));
    assert!(malloc[0].1 - malloc[0].0 >= 2_000_000, "{malloc:?}");
    assert!(free[0].1 >= kernels(&truth)[0].end_ns + 2_000_000, "{free:?}");
}

#[test]
fn without_the_setting_a_free_does_not_wait() {
    let bench = Bench::new("alloc-fast");
    // A second is far longer than a free takes on any machine.
    let program = "p = cuda.malloc(4096)\ncuda.launch(cuda.kernel('k', 1000000), stream)\ncuda.free_device(p)\n";
    output_of(python(&bench, program));
    let truth = bench.truth();
    assert!(calls(&truth, "cuMemFree_v2")[0].1 < kernels(&truth)[0].end_ns);
}

const COPIES: &str = "
size = 4 << 20
device, pinned, pageable = cuda.alloc(size), cuda.pinned(size), ctypes.create_string_buffer(size)
cuda.copy_to_device(device, pinned, size, stream)
cuda.copy_to_device(device, ctypes.addressof(pageable) + 1, size - 1, stream)
cuda.copy_to_host(ctypes.addressof(pageable), device, size, stream)
cuda.copy_to_host(pinned + 256, device, size - 256, stream)
";

#[test]
fn pageable_copies_occupy_the_caller() {
    let bench = Bench::new("pageable");
    let mut job = python(&bench, COPIES);
    job.env("SIMGPU_PAGEABLE_GBPS", "1").env("SIMGPU_H2D_GBPS", "0.003").env("SIMGPU_D2H_GBPS", "4");
    output_of(job);
    let truth = bench.truth();
    let copies = calls(&truth, "cudaMemcpyAsync");
    let engine = |direction| truth.busy().filter(move |busy| busy.engine == direction).collect::<Vec<_>>();
    let (up, down) = (engine(Engine::HostToDevice), engine(Engine::DeviceToHost));
    // One piece for page-locked memory, one for each MiB of the other.
    assert_eq!((up.len(), down.len()), (1 + 4, 4 + 1));
    assert_eq!(up.iter().map(|busy| busy.bytes).sum::<u64>(), (8 << 20) - 1);
    // A piece towards the device takes a third of a second, far longer than a call that does not wait for it.
    // Page-locked: back before the copy is done. Pageable: two pieces are staged at most.
    assert!(copies[0].1 < up[0].end_ns);
    assert!(copies[1].1 >= up[2].end_ns && copies[1].1 < up[4].end_ns);
    // To the host: all is there.
    assert!(copies[2].1 >= down[3].end_ns);
    assert!(copies[2].1 - copies[2].0 >= 4 << 20, "1 ns for a byte");
}

#[test]
fn without_the_setting_pageable_copies_are_like_others() {
    let bench = Bench::new("pageable-not");
    output_of(python(&bench, COPIES));
    assert_eq!(bench.truth().busy().count(), 4);
}

fn sharing(bench: &Bench, file: &Path) -> Vec<Busy> {
    let program = "k = cuda.kernel('k', 200)\nfor _ in range(200):\n    cuda.launch(k, stream)\n";
    let start = || python(bench, program).env("SIMGPU_SHARED", file).spawn().expect("start python3");
    for mut job in [start(), start()] {
        assert!(job.wait().expect("wait").success());
    }
    let mut all = kernels(&bench.truth());
    all.sort_by_key(|busy| busy.start_ns);
    all
}

#[test]
fn processes_share_one_gpu() {
    let bench = Bench::new("shared");
    let all = sharing(&bench, &bench.root.join("engines"));
    let mut by_process: BTreeMap<u32, usize> = BTreeMap::new();
    all.iter().for_each(|busy| *by_process.entry(busy.pid).or_default() += 1);
    assert_eq!(by_process.into_values().collect::<Vec<_>>(), [200, 200]);
    for pair in all.windows(2) {
        assert!(pair[0].end_ns <= pair[1].start_ns, "{pair:?} overlap");
    }
}

/// Asks the stand-in for NVML about the logs, as gpuwhy does: twice, because the first read gives zeros.
const ASK_NVML: &str = "
import ctypes, time
nvml = ctypes.CDLL('libnvidia-ml.so.1')
class Sample(ctypes.Structure):
    _fields_ = [('time', ctypes.c_uint64), ('value', ctypes.c_uint64)]
class Process(ctypes.Structure):
    _fields_ = [('pid', ctypes.c_uint), ('bytes', ctypes.c_uint64), ('a', ctypes.c_uint), ('b', ctypes.c_uint)]
assert nvml.nvmlInit_v2() == 0
gpu = ctypes.c_void_p()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
kind, count, samples = ctypes.c_uint(), ctypes.c_uint(100), (Sample * 100)()
for _ in range(2):
    count.value = 100
    assert nvml.nvmlDeviceGetSamples(gpu, 1, ctypes.c_uint64(0), ctypes.byref(kind), ctypes.byref(count), samples) == 0
ahead = max(time.time_ns() - time.monotonic_ns() for _ in range(100)) // 1000
for s in samples[:count.value]:
    print('sample', s.time - ahead, s.value)
there, processes = ctypes.c_uint(8), (Process * 8)()
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, ctypes.byref(there), processes) == 0
for p in processes[:there.value]:
    print('process', p.pid, p.bytes)
rates = (ctypes.c_uint * 2)()
assert nvml.nvmlDeviceGetUtilizationRates(gpu, rates) == 0
print('rate', rates[0], 0)
";

fn ask_nvml(bench: &Bench) -> String {
    let settings = bench.root.join("nvml.conf");
    std::fs::write(&settings, format!("logs {}\n", bench.root.join("log").display())).expect("write the settings");
    let program = format!(
        "import os, subprocess, sys, time
held = cuda.malloc(1 << 20)
k = cuda.kernel('k', 3000)
for _ in range(120):
    cuda.launch(k, stream)
    cuda.synchronize(stream)
    time.sleep(0.004)
time.sleep(0.8)  # the stand-in lets logs settle
print('job', os.getpid(), 0, flush=True)
sys.exit(subprocess.call([sys.executable, '-c', {ASK_NVML:?}]))
"
    );
    let mut job = python(bench, &program);
    job.env("SIMGPU_NVML", settings).env("LD_LIBRARY_PATH", &bench.installed.dir);
    output_of(job)
}

#[test]
fn the_stand_in_for_nvml_tells_what_the_logs_say() {
    let bench = Bench::new("nvml-logs");
    let told = ask_nvml(&bench);
    let rows = |key: &str| -> Vec<(u64, u64)> {
        let lines = told.lines().filter_map(|line| line.strip_prefix(key)?.split_once(' '));
        lines.map(|(a, b)| (a.parse().expect("a number"), b.parse().expect("a number"))).collect()
    };
    let (samples, processes) = (rows("sample "), rows("process "));
    assert_eq!(samples.len(), 100);
    assert_eq!(processes, [(rows("job ")[0].0, 1 << 20)]);
    assert!(rows("rate ")[0].0 <= 100);
    let truth = bench.truth();
    let mut seen = 0;
    for (end_us, percent) in samples {
        let (from, to) = ((end_us - 200_000) * 1000, end_us * 1000);
        let overlap = |busy: &Busy| busy.end_ns.min(to).saturating_sub(busy.start_ns.max(from));
        let busy: u64 = kernels(&truth).iter().map(overlap).sum();
        // The sample's time is off by less than a millisecond, which is half a percent.
        let exact = busy as f64 / 2e6;
        assert!((percent as f64 - exact).abs() <= 2.0, "{percent} % at {end_us} µs, where {exact:.2} % were busy");
        seen += percent;
    }
    assert!(seen > 0, "no sample saw a kernel");
}

#[test]
fn every_trouble_can_be_had() {
    let troubles = "alloc_churn,fork_storm,gil,host_sleep,host_work,lock,pageable,queued_sleep,sync_each";
    for trouble in troubles.split(',').chain(["none", "worker_cpu", "worker_sleep", "worker_sleep,sync_each"]) {
        let bench = Bench::new("trouble");
        let told = bench.root.join("job.json");
        let mut job = Command::new("python3");
        job.arg(&bench.installed.trouble_py)
            .args(["--trouble", trouble, "--seconds", "0.2", "--kernels", "5", "--kernel-us", "100", "--hard-ms", "2"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TROUBLE_TRUTH", &told)
            .env("SIMGPU_LOG", bench.root.join("log"));
        output_of(job);
        let told = std::fs::read_to_string(told).expect("what the job says of itself");
        let healthy = matches!(trouble, "none" | "queued_sleep");
        assert_eq!(told.contains(".py\""), !healthy, "{trouble}: {told}");
        assert!(kernels(&bench.truth()).len() >= 5, "{trouble}");
    }
}
