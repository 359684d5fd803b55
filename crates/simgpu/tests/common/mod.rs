// SPDX-License-Identifier: Apache-2.0
//! What the tests share: a folder with the installed stack, and simjob runs.
//! Each test file uses only a part of it.

#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use simgpu::log::Truth;
use simgpu::{Installed, install};

/// The stack, installed once before this process starts any other: a child
/// forked while simjob is being written would make it too busy to execute.
fn installed() -> Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stack");
    INSTALLED.get_or_init(|| install(&dir).expect("install")).clone()
}

/// The stack, and a folder of its own for one test, removed at the end.
pub(crate) struct Bench {
    pub(crate) root: PathBuf,
    pub(crate) installed: Installed,
}

impl Bench {
    pub(crate) fn new(name: &str) -> Bench {
        let root = std::env::temp_dir().join(format!("simgpu-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("log")).expect("create the test's folder");
        Bench { root, installed: installed() }
    }

    /// simjob, ready to run with logging into the bench's folder.
    pub(crate) fn simjob(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.installed.simjob);
        command
            .arg("--cudart")
            .arg(&self.installed.cudart)
            .args(arguments)
            .env("SIMGPU_LOG", self.root.join("log"))
            .stdin(Stdio::null());
        command
    }

    /// One of simjob's plays, with the installed runtime unless the arguments name others.
    pub(crate) fn play(&self, mode: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.installed.simjob);
        command
            .arg(mode)
            .args(arguments)
            .env("SIMJOB_CUDART", &self.installed.cudart)
            .env("SIMGPU_LOG", self.root.join("log"))
            .stdin(Stdio::null());
        command
    }

    /// A copy of the runtime, with a driver beside it, in a folder of the bench's own.
    pub(crate) fn copy_of_cudart(&self, folder: &str) -> String {
        let folder = self.root.join(folder);
        fs::create_dir_all(&folder).expect("create the folder");
        for library in [&self.installed.cudart, &self.installed.cuda] {
            fs::copy(library, folder.join(library.file_name().expect("a name"))).expect("copy the library");
        }
        folder.join("libcudart.so.13").into_os_string().into_string().expect("text")
    }

    pub(crate) fn truth(&self) -> Truth {
        Truth::read(&self.root.join("log")).expect("read the truth")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A folder left behind in the temporary folder is no failure.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output_of(mut command: Command) -> String {
    let output = command.output().expect("run the command");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A whole number in a line of JSON without nesting.
pub(crate) fn number(json: &str, key: &str) -> u64 {
    let label = format!("\"{key}\":");
    let start = json.find(&label).expect("the key") + label.len();
    let digits: String = json[start..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// The words of every line that begins with `key`, without it.
pub(crate) fn rows<'a>(printed: &'a str, key: &str) -> Vec<Vec<&'a str>> {
    let lines = printed.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(|words| words[0] == key).map(|words| words[1..].to_vec()).collect()
}

/// Calls of one function that the program made itself.
pub(crate) fn outer(truth: &Truth, function: &str) -> u64 {
    truth.counters().get(function).map_or(0, |counter| counter.outer_calls)
}

/// The process ids at the end of simjob's report.
pub(crate) fn pids(json: &str) -> Vec<u32> {
    let list = json.split_once("\"pids\":[").expect("pids").1;
    let list = list.split_once(']').expect("end of the list").0;
    let mut pids: Vec<u32> = list.split(',').map(|pid| pid.parse().expect("a pid")).collect();
    pids.sort_unstable();
    pids
}
