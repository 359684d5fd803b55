// SPDX-License-Identifier: Apache-2.0
//! What the truth log says of NCCL's communicators, of memory reports, graphs, and functions: checked against
//! what simjob itself says.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Bench, number, outer, output_of, rows};
use simgpu::log::detail::{Collective, Communicator, Detail, Function, Graph, Report};
use simgpu::log::{Call, Truth};

fn int(word: &str) -> u64 {
    word.parse().expect("a number")
}

/// Calls in the order of their begin, with what `pick` sees in them.
fn picked<T>(truth: &Truth, pick: fn(&Detail) -> Option<T>) -> Vec<(Call, T)> {
    let mut calls: Vec<(Call, T)> = truth
        .calls()
        .filter_map(|call| call.detail.as_ref().and_then(pick).map(|found| (call.clone(), found)))
        .collect();
    calls.sort_by_key(|(call, _)| (call.enter_ns, call.depth));
    calls
}

fn communicators(truth: &Truth) -> Vec<(Call, Communicator)> {
    picked(truth, |detail| if let Detail::Communicator(found) = detail { Some(*found) } else { None })
}

fn collectives(truth: &Truth) -> Vec<(Call, Collective)> {
    picked(truth, |detail| if let Detail::Collective(found) = detail { Some(*found) } else { None })
}

#[test]
fn communicators_are_told_apart() {
    let bench = Bench::new("nccl");
    let told = output_of(bench.play("nccl", &["--rounds", "5"]));
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), number(&told, "calls"));

    let comms = communicators(&truth);
    let made = |function: &str| {
        comms.iter().filter(|(call, _)| &*call.function == function).map(|(_, comm)| *comm).collect::<Vec<_>>()
    };
    let (world, pair) = (made("ncclCommInitRank")[0], made("ncclCommInitRankConfig")[0]);
    assert_eq!((world.ranks, world.rank, pair.ranks, pair.rank), (4, 1, 2, 0));
    for (row, comm) in rows(&told, "id").iter().zip([world, pair]) {
        assert!(comm.id.starts_with(row[1].as_bytes()), "{row:?} {comm:?}");
    }
    let splits = made("ncclCommSplit");
    assert_eq!((splits[0].parent, splits[0].color, splits[0].key), (world.handle, 3, 7));
    assert_eq!((splits[1].parent, splits[1].color, splits[1].handle), (world.handle, -1, 0));
    let scalable = made("ncclCommInitRankScalable")[0];
    assert_eq!((scalable.ranks, scalable.rank), (16, 15));
    let all = made("ncclCommInitAll")[0];
    assert_eq!((all.ranks, all.rank), (2, 0));
    let ended: BTreeSet<u64> =
        comms.iter().filter(|(call, _)| &*call.function == "ncclCommAbort").map(|(_, comm)| comm.handle).collect();
    assert_eq!(ended, BTreeSet::from([pair.handle]));
}

#[test]
fn operations_are_numbered_by_communicator() {
    let bench = Bench::new("nccl-numbers");
    let told = output_of(bench.play("nccl", &["--rounds", "4"]));
    let truth = bench.truth();
    // Addresses recur once a communicator is gone: a new life begins with number 0.
    let mut lives: BTreeMap<u64, Vec<Vec<Collective>>> = BTreeMap::new();
    for (call, operation) in collectives(&truth) {
        let of_address = lives.entry(operation.communicator).or_default();
        if operation.sequence == 0 {
            of_address.push(Vec::new());
        }
        let life = of_address.last_mut().expect("number 0 first");
        assert_eq!(operation.sequence, life.len() as u64, "{call:?}");
        life.push(operation);
    }
    let counted: Vec<(u64, u64)> =
        lives.iter().flat_map(|(address, lives)| lives.iter().map(|life| (*address, life.len() as u64))).collect();
    let mut said: Vec<(u64, u64)> = rows(&told, "communicator").iter().map(|row| (int(row[1]), int(row[4]))).collect();
    assert_eq!(said.len(), 6);
    said.sort_unstable();
    let mut sorted = counted;
    sorted.sort_unstable();
    assert_eq!(sorted, said);
    for (call, operation) in collectives(&truth) {
        let rows = rows(&told, "communicator");
        let fits = |row: &&Vec<&str>| {
            int(row[1]) == operation.communicator
                && int(row[2]) == operation.ranks as u64
                && int(row[3]) == operation.rank as u64
        };
        assert!(rows.iter().any(|row| fits(&row)), "{call:?}");
    }
    let send = collectives(&truth).into_iter().find(|(call, _)| &*call.function == "ncclSend").expect("a send");
    assert_eq!((send.1.count, send.1.data_type, send.1.peer, send.0.bytes), (100, 7, 0, 400));
    // Each operation launches one kernel, at once or at the end of its group.
    let launches = truth.counters()["cuLaunchKernelEx"].inner_calls;
    assert_eq!(launches, collectives(&truth).len() as u64);
}

fn reports(truth: &Truth) -> Vec<(Call, Report)> {
    picked(truth, |detail| if let Detail::Report(found) = detail { Some(*found) } else { None })
}

#[test]
fn memory_reports_add_up() {
    let bench = Bench::new("torch");
    let mut job = bench.play("torch", &["--rounds", "4"]);
    job.env("SIMGPU_DEVICES", "2");
    let told = output_of(job);
    let truth = bench.truth();
    let reports = reports(&truth);
    let mut allocated: BTreeMap<i32, i64> = BTreeMap::new();
    for (call, report) in reports.iter().filter(|(call, _)| call.pointer != 0) {
        let sum = allocated.entry(report.device_index).or_default();
        *sum += report.size;
        assert_eq!(*sum as u64, report.total_allocated, "{call:?}");
        assert!(report.total_reserved >= report.total_allocated && report.device_type == 1);
        assert_eq!(report.size.unsigned_abs(), call.bytes);
    }
    assert_eq!(allocated, BTreeMap::from([(0, 0), (1, 0)]));
    assert_eq!(reports.len() as u64, number(&told, "allocs") + number(&told, "frees") + 1);
    assert!(number(&told, "allocs") > 1000);
    let out_of_memory: Vec<_> = reports.iter().filter(|(call, _)| call.function.contains("OutOfMemory")).collect();
    assert_eq!(out_of_memory.len(), 1);
    assert_eq!(out_of_memory[0].1.size, 1 << 50);
    assert!(truth.live().is_empty());

    let checkpoints = rows(&told, "checkpoint");
    assert_eq!(checkpoints.len(), (4 * 2 + 2) * 2);
    for row in &checkpoints {
        let (time, device, held) = (int(row[0]), int(row[1]) as i32, int(row[2]));
        let last = reports
            .iter()
            .rfind(|(call, report)| call.enter_ns < time && report.device_index == device && call.pointer != 0);
        assert_eq!(last.expect("a report before").1.total_allocated, held, "{row:?}");
    }
    assert_eq!(checkpoints.last().expect("a line")[2..], ["0", "0"]);
}

fn graphs(truth: &Truth) -> Vec<(Call, Graph)> {
    picked(truth, |detail| if let Detail::Graph(found) = detail { Some(*found) } else { None })
}

#[test]
fn a_graph_can_be_followed() {
    let bench = Bench::new("graphs");
    let told = output_of(bench.play("graphs", &["--kernel-ns", "30000"]));
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), number(&told, "calls"));
    let lines = rows(&told, "graph");
    assert_eq!(lines.len(), 2);
    for row in &lines {
        let (graph, exec, kernels, launches) = (int(row[0]), int(row[1]), int(row[2]), int(row[3]));
        let steps: Vec<(Call, Graph)> =
            graphs(&truth).into_iter().filter(|(_, step)| step.graph == graph || step.exec == exec).collect();
        let count = |function: &str| steps.iter().filter(|(call, _)| &*call.function == function).count() as u64;
        for function in ["cudaStreamEndCapture", "cuStreamEndCapture", "cudaGraphExecDestroy", "cudaGraphDestroy"] {
            assert_eq!(count(function), 1, "{function}");
        }
        assert_eq!(count("cudaGraphInstantiate") + count("cudaGraphInstantiateWithParams"), 1);
        assert_eq!((count("cudaGraphLaunch"), count("cuGraphLaunch")), (launches, launches));
        let (_, made) = steps.iter().find(|(call, _)| call.function.starts_with("cudaGraphInst")).expect("made");
        assert_eq!((made.graph, made.exec), (graph, exec));
        for (call, step) in steps.iter().filter(|(call, _)| &*call.function == "cuGraphLaunch") {
            assert_eq!(step.pieces as u64, kernels);
            let busy: Vec<_> = truth
                .busy()
                .filter(|busy| busy.start_ns >= call.enter_ns && &*busy.function == "cuGraphLaunch")
                .take(kernels as usize)
                .collect();
            assert_eq!(busy.iter().map(|busy| busy.end_ns - busy.start_ns).sum::<u64>(), kernels * 30000);
        }
    }
    // Launches while capturing ran nothing; those of the graphs ran all.
    let queued: Vec<_> = truth.busy().collect();
    assert_eq!(queued.len(), 20 * 5 + 7 * 2);
    assert!(queued.iter().all(|busy| &*busy.function == "cuGraphLaunch"));
    assert_eq!(outer(&truth, "cudaLaunchKernel"), 7);
}

fn functions(truth: &Truth) -> Vec<(Call, Function)> {
    picked(truth, |detail| if let Detail::Function(found) = detail { Some(*found) } else { None })
}

#[test]
fn functions_have_names() {
    let bench = Bench::new("modules");
    let told = output_of(bench.play("modules", &["--rounds", "4"]));
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), number(&told, "calls"));
    let functions = functions(&truth);
    let lines = rows(&told, "function");
    assert_eq!(lines.len(), 5);
    for row in &lines {
        let found: Vec<_> = functions
            .iter()
            .filter(|(call, _)| call.text.as_deref() == Some(row[0]))
            .map(|(call, f)| (call, *f))
            .collect();
        let lookup =
            found.iter().find(|(call, _)| matches!(&*call.function, "cuModuleGetFunction" | "cuKernelGetFunction"));
        let handle = lookup.expect("a function of that name").1.handle;
        let by_driver = |call: &Call| call.function.starts_with("cuLaunchKernel") && call.pointer == handle;
        assert_eq!(truth.calls().filter(|call| by_driver(call)).count() as u64, int(row[2]), "{}", row[0]);
        let lazy = row[0].contains("lazy");
        assert_eq!(handle != int(row[1]), lazy, "the runtime's handle is not the driver's");
        assert!(found.iter().all(|(call, _)| (call.depth == 1) == lazy), "{found:?}");
    }
    assert!(lines.iter().any(|row| row[0].len() > 900), "a long name");
    // The runtime looks a kernel up once, in one library.
    assert_eq!(truth.counters()["cuLibraryLoadData"].inner_calls, 1);
    assert_eq!(truth.counters()["cuLibraryGetKernel"].inner_calls, 2);
    let loaded: Vec<_> = truth.calls().filter(|call| &*call.function == "cuLibraryLoadFromFile").collect();
    assert_eq!(loaded[0].text.as_deref(), Some("/proc/self/exe"));
    assert!(matches!(loaded[0].detail, Some(Detail::Module(module)) if module.handle != 0));
}

#[test]
fn kernels_of_one_name_keep_their_durations() {
    let bench = Bench::new("names");
    let program = "import simcuda\ncuda = simcuda.Cuda()\ncuda.set_device(0)\nstream = cuda.stream()\n\
                   for us in (10, 20, 10):\n    cuda.launch(cuda.kernel('same', us), stream)\n";
    let mut job = std::process::Command::new("python3");
    job.args(["-c", program])
        .env("PYTHONPATH", &bench.installed.dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SIMGPU_LOG", bench.root.join("log"));
    output_of(job);
    let took: Vec<u64> = bench.truth().busy().map(|busy| busy.end_ns - busy.start_ns).collect();
    assert_eq!(took, [10_000, 20_000, 10_000]);
}
