// SPDX-License-Identifier: Apache-2.0
//! `events.json`: written and read back, also after changes of every kind.
#![allow(missing_docs, clippy::unwrap_used)]

use gpuwhy_bundle::{
    CsvWriter, Error, EventsFile, EventsWriter, Header, Process, Run, Selection, Site, Steps, is_events_file,
};
use gpuwhy_memory::alerts::{Alert, AlertKind, Level};
use gpuwhy_memory::steps::Certainty;
use gpuwhy_memory::{Analyser, ProcessSteps, Report, SiteFact, Unreported};
use gpuwhy_model::ops::{KernelOp, TorchOp, by_function, kernel_op, torch_op};
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use gpuwhy_model::{Call, CallFlags, MemoryEvent, TensorEvent};
use std::path::Path;

const PID: u32 = 4821;
const EVIL: &str = "=cmd|'/C calc'!A0,\"</script>\"\n\u{1b}[2J";

fn tensor(at_ns: u64, op: TorchOp, address: u64, bytes: u64, allocated: u64, stack: u64) -> MemoryEvent {
    let (tid, reserved) = (PID, 1 << 20);
    let op = torch_op(op);
    MemoryEvent::Tensor(TensorEvent {
        at_ns,
        pid: PID,
        tid,
        op,
        device: 0,
        bytes,
        address,
        allocated,
        reserved,
        stack: Some(stack),
    })
}

fn call(at_ns: u64, function: &str, arg0: Option<u64>, arg1: Option<u64>, stack: Option<u64>) -> Call {
    Call {
        start_ns: at_ns,
        duration_ns: if stack.is_some() { 77 } else { 0 },
        pid: PID,
        tid: PID,
        op: by_function(function).unwrap().id,
        device: stack.map(|_| 0),
        stream: None,
        arg0,
        arg1,
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack,
    }
}

/// One of each kind, and a loop.
fn events() -> Vec<MemoryEvent> {
    let mut all = vec![
        MemoryEvent::Call(call(5, "cudaMalloc", Some(1 << 20), Some(u64::MAX), Some(9))),
        MemoryEvent::Call(call(6, "cudaLaunchKernel", None, None, None)),
        MemoryEvent::Call(Call { ret: 2, ..call(7, "cudaMalloc", Some(1 << 30), None, Some(7)) }),
    ];
    for i in 0..40 {
        all.push(tensor(100 + i * 100, TorchOp::Alloc, 512 * (i + 1), 512, 512 * (i + 1), 7 + i % 3));
        if i % 4 == 0 {
            all.push(tensor(150 + i * 100, TorchOp::Free, 512 * (i + 1), 512, 512 * i, 7));
        }
    }
    all.push(tensor(9_000, TorchOp::OutOfMemory, 0, 1 << 40, 512, 8));
    all.push(MemoryEvent::Call(call(9_100, "cudaFree", None, Some(u64::MAX), Some(9))));
    let mut end = call(9_200, "cudaFree", Some(1), Some(9), None);
    end.op = kernel_op(KernelOp::OomKill);
    (end.arg0, end.arg1) = (None, None);
    all.push(MemoryEvent::Call(end));
    all.push(MemoryEvent::Call(Call {
        op: kernel_op(KernelOp::ProcessExit),
        arg0: Some(0),
        arg1: Some(9),
        start_ns: 9_300,
        ..end
    }));
    all
}

fn header() -> Header {
    let fact = SiteFact {
        line: Some(format!("{EVIL}:7")),
        place: Some("/home/me/train.py:7 step".into()),
        function: Some("step".into()),
        frames: vec!["/home/me/train.py:7 step".into(), "/home/me/train.py:70 main".into()],
        source: Some("kept.append(loss.detach())".into()),
    };
    let steps = ProcessSteps {
        certainty: Certainty::High,
        marker: Some((by_function("cudaStreamSynchronize").unwrap().id, Some(8))),
        before: 3,
        marks: (1..40).map(|i| i * 100).collect(),
        launches: 12,
        step_ns: 100,
        active_ns: (5, 9_000),
        has_tensors: true,
    };
    let mut header = Header {
        gpuwhy: "1.2.3".into(),
        run: Run { file: "run.db".into(), start_unix_ns: 1_800_000_000_000_000_001, ..Run::default() },
        part: Selection { from_ns: 0, to_ns: 10_000, pids: vec![] },
        lost: 3,
        unreported: vec![Unreported { from_ns: 9_500, to_ns: 9_600, pid: Some(PID) }],
        notes: vec!["a note".into()],
        processes: vec![Process { pid: PID, name: EVIL.into(), ended_ns: Some(7) }],
        steps: vec![Steps::new(PID, &steps, |stack| Some(stack as u32 - 7))],
        sites: vec![Site::new(0, 7, Some(&fact)), Site::new(1, 8, Some(&fact)), Site::new(2, 9, None)],
        alerts: vec![Alert {
            id: 1,
            at_ns: 9_000,
            cleared_ns: None,
            level: Level::Critical,
            kind: AlertKind::Oom,
            rule: "oom".into(),
            pid: Some(PID),
            device: Some(0),
            gpu: None,
            value: 512.0,
            threshold: None,
            text: EVIL.into(),
        }],
        event_count: events().len() as u64,
        ..Header::default()
    };
    let sample =
        GpuSample { at_ns: 50, memory_used: Some(1 << 21), memory_total: Some(1 << 30), ..GpuSample::default() };
    // A name that the kernel cut in the middle of a letter.
    let user = GpuProcess {
        at_ns: 50,
        pid: 99,
        bytes: Some(1 << 20),
        name: *b"na\xc3\xafvely-longer\xc3",
        ..GpuProcess::default()
    };
    header.set_devices(&[sample], &[user]);
    header
}

fn file() -> Vec<u8> {
    let mut writer = EventsWriter::new(Vec::new(), &header()).unwrap();
    events().iter().for_each(|event| writer.event(event).unwrap());
    writer.finish().unwrap()
}

/// Reads a file and examines what is in it, as `gpuwhy memory` does.
fn read(path: &Path, content: &[u8]) -> Result<(Header, Vec<MemoryEvent>, Report), Error> {
    std::fs::write(path, content).unwrap();
    let file = EventsFile::open(path)?;
    let header = file.header().clone();
    let mut analyser = Analyser::new(header.facts(&[]), header.found_steps());
    let mut events = Vec::new();
    file.events(|event, _| {
        analyser.feed(event);
        events.push(*event);
    })?;
    let words = header.site_facts();
    let report = analyser.finish(&mut |ids| ids.iter().filter_map(|id| Some((*id, words.get(id)?.clone()))).collect());
    Ok((header, events, report))
}

#[test]
fn a_written_file_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("any.name");
    let (read_header, read_events, report) = read(&path, &file()).unwrap();
    assert!(is_events_file(&path).unwrap());
    assert_eq!(read_header, header());
    assert_eq!(read_events, events());
    assert_eq!(
        (report.oom_count, report.ends.len(), report.gaps[0].others[0].name.as_str()),
        (1, 1, "na\u{ef}vely-longer?")
    );
    assert_eq!(
        read_header.site_facts()[&7].source.as_deref(),
        Some("detach(\nloss\n.append("),
        "words, not the source"
    );
    // Each event has a line.
    let text = String::from_utf8(file()).unwrap();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("{\"at_ns\":") && line.contains("\"kind\"")).count(),
        events().len()
    );
    // Layout and order of keys do not matter.
    let value: serde_json::Value = serde_json::from_slice(&file()).unwrap();
    let (again, other_events, other_report) =
        read(&path, serde_json::to_string_pretty(&value).unwrap().as_bytes()).unwrap();
    assert_eq!((again, other_events, other_report), (read_header, read_events, report));
}

#[test]
fn the_table_has_a_row_for_each_and_no_formulas() {
    let mut writer = CsvWriter::new(Vec::new(), &header()).unwrap();
    events().iter().for_each(|event| writer.event(event).unwrap());
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    // A line's end inside quotes belongs to the cell.
    let mut quoted = false;
    let ends_row = |c: char| {
        quoted ^= c == '"';
        c == '\n' && !quoted
    };
    let rows: Vec<&str> = text.split_terminator(ends_row).collect();
    assert!(!text.contains('\r'), "{text:?}");
    assert_eq!(rows.len(), events().len(), "all but the launch, and a head");
    assert!(rows[1].starts_with("5,driver_alloc,4821,4821,\"'=cmd|'/C calc'!A0,\"\"</script>\"\"\n\u{fffd}[2J\",0,1048576,0xffffffffffffffff,,,cudaMalloc,77,0,,,9"), "{}", rows[1]);
    assert!(rows.last().unwrap().contains(",-9,"), "by a signal: {}", rows.last().unwrap());
}

#[test]
fn a_file_that_is_cut_off_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) = (dir.path().join("events.json"), file());
    for length in 0..whole.trim_ascii_end().len() {
        let error = read(&path, &whole[..length]).unwrap_err();
        assert!(matches!(error, Error::CutOff { .. }), "{length}: {error}");
    }
}

#[test]
fn changed_bytes_are_errors_or_other_events_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) = (dir.path().join("events.json"), file());
    let mut state = 1_u64;
    let mut dice = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let words: [&[u8]; 10] =
        [b"18446744073709551615", b"-1", b"1e999", b"null", b"[[[[", b"\"", b"}", b"\xff", b"99999999999", b"{"];
    let mut read_anyway = 0;
    for _ in 0..4_000 {
        let mut changed = whole.clone();
        for _ in 0..=dice(3) {
            let at = dice(changed.len());
            match dice(4) {
                0 => changed[at] = dice(256) as u8,
                1 => changed[at] = b'0' + dice(10) as u8,
                2 => drop(changed.splice(at..(at + dice(9)).min(changed.len()), [])),
                _ => drop(
                    changed.splice(at..(at + dice(9)).min(changed.len()), words[dice(words.len())].iter().copied()),
                ),
            }
        }
        match read(&path, &changed) {
            Ok(_) => read_anyway += 1,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(read_anyway > 50, "most changes of digits are other numbers: {read_anyway}");
}

#[test]
fn errors_name_what_is_wrong_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.json");
    let text = String::from_utf8(file()).unwrap();
    let said = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        read(&path, text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    };
    assert!(said("memory-events/1", "memory-events/2").contains("use the gpuwhy that wrote it"));
    assert!(said("\"schema\"", "\"other\"").contains("not the events.json of a memory bundle"));
    assert!(said("\"lost\": 3,\n", "").contains("`lost` is missing"));
    assert!(said("\"event_count\": 57", "\"event_count\": 58").contains("is 58 but the file has 57 events"));
    let line = said("\"kind\":\"free\"", "\"kind\":\"lost\"");
    assert!(line.contains("line ") && line.contains("unknown variant `lost`"), "{line}");
    assert!(said("\"address\":\"0x200\"", "\"address\":\"200\"").contains("an address like"));
    assert!(said("\"address\":\"0x200\",", "").contains("event 4: `address` is missing"));
    assert!(said("{\"at_ns\":100,", "{\"at_ns\":1,").contains("earlier than that of the previous event"));
    assert!(said("\"function\":\"cudaMalloc\"", "\"function\":\"rm\"").contains("unknown function \"rm\""));
    assert!(
        said("\"function\":\"cudaMalloc\"", "\"function\":\"cudaFree\"")
            .contains("cudaFree does not fit kind driver_alloc")
    );
    assert!(said("\"site\":2,\"function\"", "\"site\":3,\"function\"").contains("site 3 is not in the list"));
    assert!(said("\"to_ns\":10000", "\"to_ns\":18446744073709551615").contains("invalid time range"));
    let long = format!("\"notes\": [\"{}\"", "x".repeat(100_000));
    assert!(said("\"notes\": [\n\"a note\"", &long).contains("over 64 KiB"));
    let deep = format!("\"other\": {}", "[".repeat(100_000));
    assert!(said("\"lost\": 3", &deep).contains("over 32 levels"));
    assert!(read(&path, b"[1]").unwrap_err().to_string().contains("an object"));
    assert!(matches!(EventsFile::open(dir.path()), Err(Error::Read { .. })), "a folder");
    assert!(!is_events_file(dir.path()).unwrap());
}
