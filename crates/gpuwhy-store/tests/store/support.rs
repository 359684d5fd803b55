// SPDX-License-Identifier: Apache-2.0
//! What the tests share: made-up calls, and a short way to write and read a file.

use gpuwhy_model::{Call, CallFlags, OffCpu, OpId, Reason, Wait, WokenBy, ops};
use gpuwhy_store::{Limits, NewRun, Reader, Result, RunEnd, Value, Writer};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Where the tests' runs begin on the monotonic clock.
pub(crate) const ORIGIN: u64 = 77_000_000_000;

/// Values that look random and are the same every time (xorshift).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub(crate) fn op(function: &str) -> OpId {
    ops::by_function(function).unwrap().id
}

/// A plain call `at` nanoseconds after the run began.
pub(crate) fn call(function: &str, at: u64, duration_ns: u64) -> Call {
    Call {
        start_ns: ORIGIN + at,
        duration_ns,
        pid: 100,
        tid: 101,
        op: op(function),
        device: Some(0),
        stream: None,
        arg0: Some(4096),
        arg1: None,
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    }
}

/// A wait of a thread for a futex, `at` nanoseconds after the run began.
pub(crate) fn off_cpu(at: u64, duration_ns: u64, ready_ns: u64) -> OffCpu {
    OffCpu {
        start_ns: ORIGIN + at,
        duration_ns,
        ready_ns,
        pid: 200,
        tid: 201,
        reason: Reason::Asleep,
        wait: Wait::Futex,
        syscall: Some(libc::SYS_futex as u16),
        file: 0,
        object: 0x7f00_0000_1000,
        timeout_ns: None,
        io_wait: false,
        woken_by: WokenBy::Thread,
        waker_pid: 300,
        waker_tid: 301,
        left_cpu: 0,
        cpu: 1,
        unfinished: false,
        weight: 1,
        stack: None,
    }
}

/// Calls of every kind: ties, late ones, ones older than the run, inner, unfinished, failed, huge arguments.
pub(crate) fn any_calls(count: usize, seed: u64) -> Vec<Call> {
    let mut dice = Dice(seed);
    let table = ops::table();
    (0..count as u64)
        .map(|i| {
            let late = if dice.below(50) == 0 { dice.below(3_000_000_000) } else { dice.below(40) };
            let spread = dice.below(40);
            Call {
                start_ns: (ORIGIN + i / 3 * 50_000).saturating_sub(late),
                duration_ns: dice.next() >> (24 + spread),
                pid: 100 + dice.below(5) as u32,
                tid: 100 + dice.below(20) as u32,
                op: table[dice.below(table.len() as u64) as usize].id,
                device: (dice.below(4) > 0).then(|| dice.below(8) as u8),
                stream: (dice.below(3) > 0).then(|| if dice.below(9) == 0 { u64::MAX } else { dice.below(4) }),
                arg0: (dice.below(9) > 0).then(|| if dice.below(30) == 0 { u64::MAX } else { dice.below(1 << 30) }),
                arg1: (dice.below(4) > 0).then(|| if dice.below(9) == 0 { dice.next() } else { dice.below(6) }),
                ret: if dice.below(20) == 0 { dice.next() as i32 } else { 0 },
                flags: CallFlags { inner: dice.below(7) == 0, unfinished: dice.below(200) == 0 },
                weight: 1,
                stack: dice.below(3).checked_sub(1),
            }
        })
        .collect()
}

pub(crate) fn new_run() -> NewRun {
    NewRun {
        version: "0.0.0-test".into(),
        start_unix_ns: 1_700_000_000_250_000_000,
        start_monotonic_ns: ORIGIN,
        ..NewRun::default()
    }
}

pub(crate) fn create(path: &Path) -> Writer {
    Writer::create(path, &new_run()).unwrap().writer
}

pub(crate) fn end() -> RunEnd {
    RunEnd {
        stop_unix_ns: 1_700_000_010_250_000_000,
        stop_monotonic_ns: ORIGIN + 10_000_000_000,
        stop_reason: "exit".into(),
        own_cost: None,
    }
}

/// Writes a finished file.
pub(crate) fn write(path: &Path, calls: &mut [Call]) {
    let mut writer = create(path);
    for batch in calls.chunks_mut(1_000) {
        writer.write_calls(batch).unwrap();
    }
    let done = writer.finish(&end());
    assert!(done.problem.is_none(), "{:?}", done.problem);
}

/// Rows of a guarded query as text, columns separated by `|`.
pub(crate) fn ask(reader: &Reader, sql: &str) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    reader.query(sql, &Limits::default(), |_, values| {
        let texts: Vec<String> = values
            .iter()
            .map(|value| match value {
                Value::Null => "NULL".into(),
                Value::Int(n) => n.to_string(),
                Value::Real(x) => x.to_string(),
                Value::Text(text) => text.to_string(),
                Value::Blob(bytes) => format!("{} bytes", bytes.len()),
            })
            .collect();
        rows.push(texts.join("|"));
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

/// The one number a query gives.
pub(crate) fn number(reader: &Reader, sql: &str) -> i64 {
    ask(reader, sql).unwrap()[0].parse().unwrap()
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A small file system for the length of a test.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// One of 4 MB; `None` where the test may not mount, and on CI that is a failure.
    pub(crate) fn mount() -> Option<Self> {
        Self::mount_of("4m")
    }

    pub(crate) fn mount_of(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
                .arg(folder.path())
                .status()
                .is_ok_and(|status| status.success());
        assert!(mounted || std::env::var_os("CI").is_none_or(|ci| ci != "true"), "CI must be able to mount a tmpfs");
        mounted.then_some(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn make_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(self.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}
