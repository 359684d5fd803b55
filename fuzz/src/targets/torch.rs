// SPDX-License-Identifier: Apache-2.0
//! PyTorch's files: profiler traces and memory snapshots.

use flate2::read::GzDecoder;
use gpuwhy_torch::{snapshot, trace};
use std::io::Read;

/// A trace of a few events, so small that most changes matter.
const SMALL_TRACE: &str = r#"{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H100","totalGlobalMem":85000000000}],
"distributedInfo":{"backend":"nccl","rank":0,"world_size":2},"baseTimeNanoseconds":1700000000000000000,"traceEvents":[
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":10.5,"dur":20.25,"args":{"External id":1,"Sequence number":7}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":12,"dur":3,"args":{"correlation":5,"cbid":211}},
{"ph":"X","cat":"kernel","name":"ampere_sgemm","pid":0,"tid":7,"ts":20,"dur":50,"args":{"device":0,"stream":7,"correlation":5}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pageable -> Device)","pid":0,"tid":7,"ts":80,"dur":5,"args":{"device":0,"stream":7,"bytes":4096,"correlation":6}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":5,"dur":100,"args":{}},
{"ph":"M","name":"process_name","pid":1,"args":{"name":"python"}},
{"ph":"s","id":5,"pid":1,"tid":1,"ts":12,"cat":"ac2g","name":"ac2g"}],"traceName":"x"}"#;

/// Words of a trace.
pub(super) const JSON: &[&[u8]] = &[
    b"\"dur\":-1",
    b"\"ts\":1e308",
    b"\"ts\":99999999999999999999",
    b"\"args\":{}",
    b"\"correlation\":",
    b"\"device\":4294967295",
    b"\\ud800",
    b"\"ph\":\"X\",",
    b"ProfilerStep#",
    b"[[[[[[[[",
];

fn packed(path: &str) -> Vec<u8> {
    let path = format!("{}/../crates/gpuwhy-torch/tests/{path}", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
    let read = GzDecoder::new(file).read_to_end(&mut bytes);
    read.unwrap_or_else(|why| panic!("{path}: {why}"));
    bytes
}

pub(super) fn traces() -> Vec<Vec<u8>> {
    // The start of a real trace: a whole one takes long to read, and most changes would not matter.
    let mut real = packed("data_trace/graphs.json.gz");
    real.truncate(64 << 10);
    vec![SMALL_TRACE.into(), SMALL_TRACE.replace('\n', "").into(), real]
}

/// An error, or a report whose accounts add up.
pub(super) fn trace(data: &[u8]) {
    let options =
        trace::Options { workers: 1, include_warmup: data.len().is_multiple_of(2), ..trace::Options::default() };
    let Ok(report) = trace::analyse(data, &options, |_| ()) else { return };
    for device in &report.devices {
        assert!(device.account.adds_up());
        assert!(device.steady.is_none_or(|steady| steady.adds_up()));
        let causes = report.idle_causes.iter().filter(|cause| cause.device == device.index);
        assert_eq!(causes.map(|cause| cause.total_ns).sum::<u64>(), device.account.idle_ns);
    }
}

pub(super) fn snapshots() -> Vec<Vec<u8>> {
    vec![packed("data/expandable_late/snapshot.pickle.gz"), packed("data/pending/snapshot.pickle.gz")]
}

/// No panic, and no memory use above the limit.
pub(super) fn snapshot(data: &[u8]) {
    let options = snapshot::Options { memory_limit_bytes: 64 << 20, ..snapshot::Options::default() };
    let _ = snapshot::analyse(data, &options, None);
}
