// SPDX-License-Identifier: Apache-2.0
//! Everything but the events: typed, and only of the time asked for.

use crate::facts::{second, sums};
use crate::support::*;
use gpuwhy_model::sample::*;
use gpuwhy_model::{Call, LossCause, Samples, ThreadSums};
use gpuwhy_store::{Reader, StackFrame, StackText, StackTrace};

const SECOND: u64 = 1_000_000_000;

/// The samples of [`second`] as they are read.
fn as_read() -> Samples {
    let mut samples = second();
    let at_ns = 2_500_000_000;
    let system = samples.system.as_mut().unwrap();
    (system.at_ns, system.pressure_io_full_ns) = (at_ns, Some(i64::MAX as u64));
    samples.processes[0].at_ns = at_ns;
    samples.cgroups[0].at_ns = at_ns;
    samples.gpus[0].at_ns = at_ns;
    // The other was taken before the run.
    samples.busy = vec![GpuBusy { at_ns, ..samples.busy[1] }];
    samples.gpu_processes.iter_mut().for_each(|process| process.at_ns = at_ns);
    samples.gpu_errors[0].at_ns = at_ns;
    samples
}

#[test]
fn facts_are_what_the_writer_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.add_samples(second());
    writer.set_thread_sums(sums(201, 0, 4_000));
    writer.set_thread_sums(ThreadSums { ended: true, ..sums(201, 6_000, 6_400) });
    writer.set_thread_sums(ThreadSums { has_times: false, ..sums(202, 0, 4_000) });
    writer.set_process(200, "python3");
    for (second, count) in [(1, 4), (2, 9), (7, 2)] {
        writer.add_loss(second, LossCause::RingFull, None, count);
    }
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let facts = reader.facts(0, None).unwrap();
    let expected = as_read();
    assert_eq!(facts.session, reader.session().unwrap());
    assert_eq!(facts.processes, reader.processes().unwrap());
    assert_eq!(facts.processes[0].name, "python3");
    assert_eq!(facts.system, [expected.system.unwrap()]);
    assert_eq!(facts.process_seconds, expected.processes);
    assert_eq!(facts.cgroups, expected.cgroups);
    assert_eq!(facts.gpu_seconds, expected.gpus);
    assert_eq!(facts.busy, expected.busy);
    assert_eq!(facts.gpu_processes, expected.gpu_processes);
    assert_eq!(facts.gpu_errors, expected.gpu_errors);
    assert_eq!(facts.gpus, expected.new_gpus);
    let read = |sums: ThreadSums| ThreadSums {
        born_ns: 0,
        since_ns: sums.since_ns - ORIGIN,
        at_ns: sums.at_ns - ORIGIN,
        ..sums
    };
    let unknown =
        ThreadSums { on_cpu_ns: 0, ready_ns: 0, blocked_ns: 0, throttled_ns: 0, switches: 0, ..sums(202, 0, 4_000) };
    let threads = [
        read(sums(201, 0, 4_000)),
        read(ThreadSums { ended: true, ..sums(201, 6_000, 6_400) }),
        read(ThreadSums { has_times: false, ..unknown }),
    ];
    assert_eq!(facts.threads, threads);
    assert_eq!((facts.loss[0].count, facts.loss[0].seconds), (15, (1, 7)));

    let none = reader.facts(2_500_000_001, Some(3 * SECOND)).unwrap();
    assert_eq!((none.system.len(), none.cgroups.len(), none.busy.len(), none.gpu_errors.len()), (0, 0, 0, 0));
    assert_eq!((none.gpus.len(), none.threads.len(), none.loss[0].count), (1, 3, 9));
    let exact = reader.facts(2_500_000_000, Some(2_500_000_000)).unwrap();
    assert_eq!((exact.system.len(), exact.gpu_seconds.len(), exact.gpu_processes.len()), (1, 1, 2));
    assert_eq!(reader.facts(9 * SECOND, None).unwrap().loss, []);
}

#[test]
fn sums_by_process_are_those_of_its_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut calls: Vec<Call> = (0..40)
        .map(|i| Call {
            pid: 100 + (i % 2) as u32,
            device: Some((i % 3) as u8),
            ret: i32::from(i == 6),
            ..call("cudaMalloc", i * SECOND / 4, 10 + i)
        })
        .collect();
    calls.push(call("cudaFree", 100, 5_000));
    write(&path, &mut calls);
    let reader = Reader::open(&path).unwrap();
    let rows = reader.op_totals_by_process(SECOND, Some(3 * SECOND)).unwrap();
    // The calls 4 to 11, half of them of each process.
    let [odd, even] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((odd.pid, odd.op.as_str(), odd.id), (101, "cudaMalloc", Some(op("cudaMalloc"))));
    assert_eq!((odd.totals.calls, odd.totals.total_ns, odd.totals.max_ns), (4, 40 + 5 + 7 + 9 + 11, 21));
    assert_eq!((even.pid, even.totals.calls, even.totals.errors, even.totals.bytes), (100, 4, 1, 4 * 4_096));
    assert_eq!(even.totals.histogram.total(), 4);
    let all = reader.op_totals_by_process(0, None).unwrap();
    assert_eq!(all.iter().map(|row| row.totals.calls).sum::<u64>(), 41);
    assert_eq!((all[0].op.as_str(), all[0].pid), ("cudaFree", 100));
}

#[test]
fn stacks_are_found_by_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    let frames = "/x/site-packages/torch/nn.py:7 forward\n/home/me/train.py:12 step";
    let text = StackText { frames: frames.into(), top_line: "/home/me/train.py:12 step".into() };
    writer.add_stack(u64::MAX, text);
    writer.finish(&end());
    let found = Reader::open(&path).unwrap().stack_text(&[u64::MAX, 5]).unwrap();
    let frame = |file: &str, line, function: &str, yours| StackFrame {
        file: file.into(),
        line: Some(line),
        function: function.into(),
        yours,
    };
    let trace = StackTrace {
        top_line: Some("/home/me/train.py:12 step".into()),
        frames: vec![
            frame("/x/site-packages/torch/nn.py", 7, "forward", false),
            frame("/home/me/train.py", 12, "step", true),
        ],
    };
    assert_eq!(found, [(u64::MAX, trace)].into());
}
