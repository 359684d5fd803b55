// SPDX-License-Identifier: Apache-2.0
//! Processes that want to harm whoever looks at them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use gpuwhy_capture::process;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// More than gpuwhy may ever take for a name, and little enough for the test's machine.
const LONG: u64 = 512 << 20;
const ALLOWED_KB: u64 = 32 << 10;

/// A Python script of this folder that says when it is ready and goes on until it is dropped.
struct Script(Child);

impl Script {
    fn start(name: &str, argument: &str) -> Self {
        let path = format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("python3");
        command.args([&path, argument]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The most memory this process ever had, kB.
fn most_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}

#[test]
fn a_command_line_as_large_as_memory_is_not_read_whole() {
    let before = most_memory_kb();
    let script = Script::start("long_command_line.py", &LONG.to_string());
    let pid = script.0.id();
    // It is zeroes: neither a name nor a command.
    assert_eq!(process::name(pid), None);
    assert_eq!(process::command_of(pid).unwrap_or_default().trim_matches(['\'', ' ']), "");
    assert_eq!(process::above_in_job(pid), []);
    let taken = most_memory_kb() - before;
    assert!(taken < ALLOWED_KB, "{taken} kB were taken to read a command line");
}
