// SPDX-License-Identifier: Apache-2.0
//! A control group of a test's own, in whichever hierarchy this machine has.

use std::path::{Path, PathBuf};

/// Removed when the test ends, by when its processes have.
pub struct Cgroup {
    path: PathBuf,
    v2: bool,
}

/// Where a controller can be used: its own hierarchy (v1), or the common one (v2) if its root hands it on.
fn root_of(controller: &str) -> Option<(PathBuf, bool)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let groups: Vec<_> = fields.filter(|f| f[2].starts_with("cgroup")).collect();
    let v1 = groups.iter().find(|f| f[2] == "cgroup" && f[3].split(',').any(|option| option == controller));
    if let Some(fields) = v1 {
        return Some((fields[1].into(), false));
    }
    let v2 = Path::new(groups.iter().find(|f| f[2] == "cgroup2")?[1]);
    let handed_on = || {
        let controllers = std::fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
        controllers.split_whitespace().any(|c| c == controller)
    };
    if !handed_on() {
        let _ = std::fs::write(v2.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    handed_on().then(|| (v2.to_owned(), true))
}

impl Cgroup {
    /// `None` where there is no such controller, which under CI is a failure.
    pub fn with(controller: &str) -> Option<Self> {
        let root = root_of(controller);
        assert!(root.is_some() || std::env::var_os("CI").is_none(), "no {controller} controller, and CI must not skip");
        let Some((root, v2)) = root else {
            eprintln!("skipped: no cgroup controller {controller}");
            return None;
        };
        let path = root.join(format!("gpuwhy-test-{controller}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Some(Self { path, v2 })
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.path.join(file);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// So many percent of one CPU, in periods of 100 ms.
    pub fn limit_cpu(&self, percent: u32) {
        let quota = percent * 1000;
        if self.v2 {
            self.set("cpu.max", &format!("{quota} 100000"));
        } else {
            self.set("cpu.cfs_period_us", "100000");
            self.set("cpu.cfs_quota_us", &quota.to_string());
        }
    }

    pub fn limit_memory(&self, bytes: u64) {
        self.set(if self.v2 { "memory.max" } else { "memory.limit_in_bytes" }, &bytes.to_string());
    }

    pub fn add(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }

    /// The cgroup's own figure for the time its threads were kept from running.
    pub fn throttled_ns(&self) -> i64 {
        let stat = std::fs::read_to_string(self.path.join("cpu.stat")).unwrap();
        let value = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map(|value| value.parse::<i64>().unwrap())
        };
        value("throttled_time").or_else(|| Some(value("throttled_usec")? * 1000)).unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}
