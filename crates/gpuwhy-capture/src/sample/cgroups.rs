// SPDX-License-Identifier: Apache-2.0
//! The cgroups of the traced processes: quota, throttling, CPU time and memory. The effective limit may be in an
//! ancestor, so ancestors with a limit are sampled as well.

use super::cgroup_paths::{Hierarchy, Mounts, ancestors, memberships};
use super::files::{number, text, value_of};
use crate::capture::now_ns;
use gpuwhy_model::sample::CgroupSample;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest page count, more than any machine has.
const NO_LIMIT: u64 = 1 << 62;

/// A cgroup: its version and its path. In version 1, equal paths in several hierarchies are taken for one.
type Key = (u8, String);

/// What to read of a cgroup: in which hierarchies, and whether a traced process is in it. If not, only its limit is
/// reported.
type Wanted = BTreeMap<Hierarchy, bool>;

/// Counters since the cgroup was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    periods: Option<u64>,
    throttled_periods: Option<u64>,
    throttled_ns: Option<u64>,
    usage_ns: Option<u64>,
    oom_kills: Option<u64>,
}

/// Reads cgroups and remembers the counters of the time before.
#[derive(Debug)]
pub(super) struct CgroupReader {
    proc_root: PathBuf,
    mounts: Mounts,
    before: HashMap<Key, Counters>,
}

impl CgroupReader {
    pub(super) fn new(proc_root: PathBuf, cgroup_root: &Path) -> Self {
        let mounts = text(&proc_root.join("self/mountinfo")).unwrap_or_default();
        Self { mounts: Mounts::parse(&mounts, cgroup_root), proc_root, before: HashMap::new() }
    }

    /// Notes where the counters of cgroups not met yet stand; those known go on counting from the sample before.
    pub(super) fn meet(&mut self, pids: &[u32]) {
        for (key, wanted) in self.wanted(pids) {
            if !self.before.contains_key(&key) {
                let (_, now) = self.read_one(&key.1, &wanted);
                self.before.insert(key, now);
            }
        }
    }

    /// One sample for each cgroup; the first of each only has levels, and 0 of what is counted.
    pub(super) fn read(&mut self, pids: &[u32]) -> Vec<CgroupSample> {
        let mut samples = Vec::new();
        let mut seen = HashMap::new();
        for (key, wanted) in self.wanted(pids) {
            let at_ns = now_ns();
            let (mut sample, now) = self.read_one(&key.1, &wanted);
            if sample == CgroupSample::default() && now == Counters::default() {
                continue;
            }
            let before = self.before.get(&key).copied().unwrap_or_default();
            (sample.at_ns, sample.version, sample.path) = (at_ns, key.0, key.1.clone());
            add_gained(&mut sample, &now, &before);
            samples.push(sample);
            seen.insert(key, now);
        }
        self.before = seen;
        samples
    }

    /// The cgroups of all processes and everything above them. Processes of a job mostly share them, so equal texts
    /// are looked at once.
    fn wanted(&self, pids: &[u32]) -> BTreeMap<Key, Wanted> {
        let texts: HashSet<String> =
            pids.iter().filter_map(|pid| text(&self.proc_root.join(format!("{pid}/cgroup")))).collect();
        let mut wanted = BTreeMap::<Key, Wanted>::new();
        for text in &texts {
            let all = memberships(text);
            // Beside version 1, version 2 only keeps track of processes: it counts where it has a limit.
            let hybrid = all.iter().any(|(hierarchy, _)| matches!(hierarchy, Hierarchy::Cpu | Hierarchy::Memory));
            for (hierarchy, path) in all {
                let version = if hierarchy == Hierarchy::Unified { 2 } else { 1 };
                let own = !(hybrid && version == 2);
                for (path, own) in std::iter::once((path, own)).chain(ancestors(path).map(|path| (path, false))) {
                    let cgroup = wanted.entry((version, path.to_owned())).or_default();
                    *cgroup.entry(hierarchy).or_default() |= own;
                }
            }
        }
        wanted
    }

    fn read_one(&self, path: &str, wanted: &Wanted) -> (CgroupSample, Counters) {
        let (mut sample, mut now) = (CgroupSample::default(), Counters::default());
        for (&hierarchy, own) in wanted {
            let Some(folder) = self.mounts.folder(hierarchy, path) else { continue };
            let limited = || match hierarchy {
                Hierarchy::Cpu => quota_of_version_1(&folder).is_some(),
                // Read after its sibling: the CPU time of a cgroup with a quota.
                Hierarchy::Cpuacct => sample.quota_ns.is_some(),
                Hierarchy::Memory => limit_of_version_1(&folder).is_some(),
                Hierarchy::Unified => quota_of_version_2(&folder).is_some() || limit_of_version_2(&folder).is_some(),
            };
            if !own && !limited() {
                continue;
            }
            match hierarchy {
                Hierarchy::Cpu => cpu_of_version_1(&folder, &mut sample, &mut now),
                Hierarchy::Cpuacct => now.usage_ns = number(&folder.join("cpuacct.usage")),
                Hierarchy::Memory => memory_of_version_1(&folder, &mut sample, &mut now),
                Hierarchy::Unified => version_2(&folder, &mut sample, &mut now),
            }
        }
        (sample, now)
    }
}

fn add_gained(sample: &mut CgroupSample, now: &Counters, before: &Counters) {
    let gained = |now: Option<u64>, before: Option<u64>| now.map(|now| now.saturating_sub(before.unwrap_or(now)));
    sample.periods = gained(now.periods, before.periods);
    sample.throttled_periods = gained(now.throttled_periods, before.throttled_periods);
    sample.throttled_ns = gained(now.throttled_ns, before.throttled_ns);
    sample.usage_ns = gained(now.usage_ns, before.usage_ns);
    sample.oom_kills = gained(now.oom_kills, before.oom_kills);
}

/// Quota and period in nanoseconds; the file has microseconds, and -1 for none.
fn quota_of_version_1(folder: &Path) -> Option<(u64, Option<u64>)> {
    let quota = u64::try_from(number::<i64>(&folder.join("cpu.cfs_quota_us"))?).ok()?;
    let period = number::<u64>(&folder.join("cpu.cfs_period_us")).and_then(|us| us.checked_mul(1000));
    Some((quota.checked_mul(1000)?, period))
}

fn cpu_of_version_1(folder: &Path, sample: &mut CgroupSample, now: &mut Counters) {
    (sample.quota_ns, sample.period_ns) = parted(quota_of_version_1(folder));
    if let Some(stat) = text(&folder.join("cpu.stat")) {
        now.periods = value_of(&stat, "nr_periods");
        now.throttled_periods = value_of(&stat, "nr_throttled");
        // Nanoseconds already.
        now.throttled_ns = value_of(&stat, "throttled_time");
    }
}

fn limit_of_version_1(folder: &Path) -> Option<u64> {
    number(&folder.join("memory.limit_in_bytes")).filter(|limit| *limit < NO_LIMIT)
}

fn memory_of_version_1(folder: &Path, sample: &mut CgroupSample, now: &mut Counters) {
    sample.memory_used = number(&folder.join("memory.usage_in_bytes"));
    sample.memory_limit = limit_of_version_1(folder);
    now.oom_kills = text(&folder.join("memory.oom_control")).and_then(|text| value_of(&text, "oom_kill"));
}

/// Quota and period in nanoseconds, from `150000 100000` in microseconds; `max` means none.
fn quota_of_version_2(folder: &Path) -> Option<(u64, Option<u64>)> {
    let max = text(&folder.join("cpu.max"))?;
    let mut words = max.split_ascii_whitespace().map(|word| word.parse::<u64>().ok()?.checked_mul(1000));
    Some((words.next()??, words.next().flatten()))
}

fn limit_of_version_2(folder: &Path) -> Option<u64> {
    number(&folder.join("memory.max"))
}

/// All times of version 2 are in microseconds.
fn version_2(folder: &Path, sample: &mut CgroupSample, now: &mut Counters) {
    (sample.quota_ns, sample.period_ns) = parted(quota_of_version_2(folder));
    if let Some(stat) = text(&folder.join("cpu.stat")) {
        let ns = |name| value_of(&stat, name).and_then(|us| us.checked_mul(1000));
        now.usage_ns = ns("usage_usec");
        now.periods = value_of(&stat, "nr_periods");
        now.throttled_periods = value_of(&stat, "nr_throttled");
        now.throttled_ns = ns("throttled_usec");
    }
    sample.memory_used = number(&folder.join("memory.current"));
    sample.memory_limit = limit_of_version_2(folder);
    now.oom_kills = text(&folder.join("memory.events")).and_then(|text| value_of(&text, "oom_kill"));
}

fn parted(quota: Option<(u64, Option<u64>)>) -> (Option<u64>, Option<u64>) {
    quota.map_or((None, None), |(quota, period)| (Some(quota), period))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder that stands for `/proc` and one for `/sys/fs/cgroup`.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, mountinfo: &str) -> Self {
            let fake = Self(std::env::temp_dir().join(format!("gpuwhy-cgroups-{name}-{}", std::process::id())));
            fake.write("proc/self/mountinfo", mountinfo);
            fake
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn reader(&self) -> CgroupReader {
            CgroupReader::new(self.0.join("proc"), &self.0.join("cgroup"))
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn version_2_with_a_limit_above() {
        let fake = Fake::new("v2", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        fake.write("proc/7/cgroup", "0::/pod/app\n");
        fake.write("proc/8/cgroup", "0::/pod/app\n");
        fake.write("cgroup/cpu.stat", "usage_usec 1000000\n");
        fake.write("cgroup/pod/cpu.max", "150000 100000\n");
        let stat =
            |n: u64| format!("usage_usec {n}\nuser_usec 1\nnr_periods {n}\nnr_throttled 2\nthrottled_usec {n}\n");
        fake.write("cgroup/pod/cpu.stat", &stat(10));
        fake.write("cgroup/pod/memory.max", "max\n");
        fake.write("cgroup/pod/app/cpu.max", "max 100000\n");
        fake.write("cgroup/pod/app/cpu.stat", "usage_usec 5\n");
        fake.write("cgroup/pod/app/memory.current", "4096\n");
        fake.write("cgroup/pod/app/memory.max", "8192\n");
        fake.write("cgroup/pod/app/memory.events", "low 0\noom 3\noom_kill 1\noom_group_kill 0\n");
        let mut reader = fake.reader();
        let first = reader.read(&[7, 8, 9]);
        assert_eq!(
            first.iter().map(|c| (c.version, c.path.as_str())).collect::<Vec<_>>(),
            [(2, "/pod"), (2, "/pod/app")]
        );
        assert_eq!((first[0].quota_ns, first[0].period_ns), (Some(150_000_000), Some(100_000_000)));
        assert_eq!((first[0].periods, first[0].usage_ns, first[0].oom_kills), (Some(0), Some(0), None));
        assert_eq!((first[1].quota_ns, first[1].period_ns, first[1].periods), (None, None, None));
        assert_eq!(
            (first[1].memory_used, first[1].memory_limit, first[1].oom_kills),
            (Some(4096), Some(8192), Some(0))
        );
        fake.write("cgroup/pod/cpu.stat", &stat(17));
        fake.write("cgroup/pod/app/memory.events", "oom_kill 3\n");
        let second = reader.read(&[7]);
        assert_eq!((second[0].periods, second[0].throttled_periods), (Some(7), Some(0)));
        assert_eq!((second[0].usage_ns, second[0].throttled_ns), (Some(7000), Some(7000)));
        assert_eq!(second[1].oom_kills, Some(2));
        // A process can be moved.
        fake.write("proc/7/cgroup", "0::/\n");
        let moved = reader.read(&[7]);
        assert_eq!(moved.iter().map(|c| c.path.as_str()).collect::<Vec<_>>(), ["/"]);
        assert_eq!(moved[0].usage_ns, Some(0));
    }

    #[test]
    fn version_1_with_paths_that_differ() {
        let fake = Fake::new(
            "v1",
            "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        fake.write("proc/7/cgroup", "5:memory:/m\n4:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/u\n");
        fake.write("proc/8/cgroup", "5:memory:/c\n4:cpu,cpuacct:/c\n0::/u\n");
        fake.write("cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n");
        fake.write("cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
        fake.write("cgroup/cpu,cpuacct/c/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 99\n");
        fake.write("cgroup/cpu,cpuacct/c/cpuacct.usage", "123\n");
        fake.write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        fake.write("cgroup/cpu,cpuacct/m/cpuacct.usage", "1\n");
        fake.write("cgroup/memory/m/memory.usage_in_bytes", "4096\n");
        fake.write("cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
        fake.write("cgroup/memory/m/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
        fake.write("cgroup/memory/c/memory.usage_in_bytes", "1\n");
        fake.write("cgroup/memory/c/memory.limit_in_bytes", "8192\n");
        fake.write("cgroup/unified/u/cpu.stat", "usage_usec 5\n");
        let mut reader = fake.reader();
        let samples = reader.read(&[7]);
        assert_eq!(samples.iter().map(|c| (c.version, c.path.as_str())).collect::<Vec<_>>(), [(1, "/c"), (1, "/m")]);
        assert_eq!((samples[0].quota_ns, samples[0].period_ns), (Some(50_000_000), Some(100_000_000)));
        assert_eq!((samples[0].memory_used, samples[0].memory_limit), (None, None));
        assert_eq!((samples[1].memory_used, samples[1].memory_limit), (Some(4096), None));
        assert_eq!((samples[1].quota_ns, samples[1].usage_ns, samples[1].oom_kills), (None, None, Some(0)));
        // With equal paths, one sample has both.
        let samples = reader.read(&[8]);
        assert_eq!(samples.len(), 1, "{samples:?}");
        assert_eq!((samples[0].usage_ns, samples[0].memory_limit), (Some(0), Some(8192)));
        fake.write("cgroup/cpu,cpuacct/c/cpu.stat", "nr_periods 9\nnr_throttled 5\nthrottled_time 100\n");
        let samples = reader.read(&[8]);
        assert_eq!(
            (samples[0].periods, samples[0].throttled_periods, samples[0].throttled_ns),
            (Some(0), Some(1), Some(1))
        );
    }

    #[test]
    fn nothing_mounted_gives_nothing() {
        let fake = Fake::new("none", "");
        fake.write("proc/7/cgroup", "5:memory:/m\n0::/../other\n");
        assert_eq!(fake.reader().read(&[7]), []);
    }
}
