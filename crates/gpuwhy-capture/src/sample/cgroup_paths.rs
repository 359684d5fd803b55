// SPDX-License-Identifier: Apache-2.0
//! Which cgroups a process is in, and in which folders the kernel shows them.

use std::path::{Path, PathBuf};

/// Where distributions mount cgroups; mounts below it are looked for below another folder when one is given.
const USUAL_ROOT: &str = "/sys/fs/cgroup";

/// The hierarchies that are read. Version 1 has one for each controller, version 2 one for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hierarchy {
    /// Version 1, `cpu`: quota and throttling.
    Cpu,
    /// Version 1, `cpuacct`: CPU time used. Often mounted together with `cpu`.
    Cpuacct,
    /// Version 1, `memory`.
    Memory,
    /// Version 2.
    Unified,
}

impl Hierarchy {
    fn of_controller(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "cpuacct" => Some(Self::Cpuacct),
            "memory" => Some(Self::Memory),
            _ => None,
        }
    }
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    hierarchy: Hierarchy,
    /// The cgroup shown at the mount point; not `/` in many containers.
    root: String,
    point: PathBuf,
}

/// All mounted hierarchies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// From the text of `mountinfo`.
    pub(super) fn parse(text: &str, cgroup_root: &Path) -> Self {
        Self(text.lines().filter_map(|line| mounts_of_line(line, cgroup_root)).flatten().collect())
    }

    /// The folder of a cgroup, if it is shown anywhere.
    pub(super) fn folder(&self, hierarchy: Hierarchy, path: &str) -> Option<PathBuf> {
        self.0.iter().filter(|mount| mount.hierarchy == hierarchy).find_map(|mount| {
            let below = match mount.root.as_str() {
                "/" => path,
                root => path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?,
            };
            Some(mount.point.join(below.trim_start_matches('/')))
        })
    }
}

/// `32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct`: one for each controller.
fn mounts_of_line(line: &str, cgroup_root: &Path) -> Option<Vec<Mount>> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescape(place.next()?), unescape(place.next()?));
    let mut kind = kind.split(' ');
    let hierarchies = match kind.next()? {
        "cgroup2" => vec![Hierarchy::Unified],
        "cgroup" => kind.nth(1)?.split(',').filter_map(Hierarchy::of_controller).collect(),
        _ => return None,
    };
    // A root outside our namespace cannot be compared with any path.
    if root.split('/').any(|part| part == "..") {
        return None;
    }
    let point = match Path::new(&point).strip_prefix(USUAL_ROOT) {
        Ok(below) => cgroup_root.join(below),
        Err(_) => PathBuf::from(point),
    };
    let mount = |hierarchy| Mount { hierarchy, root: root.clone(), point: point.clone() };
    Some(hierarchies.into_iter().map(mount).collect())
}

/// Blanks, tabs, newlines and backslashes are written as `\040` in `mountinfo`.
fn unescape(word: &str) -> String {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.first_chunk::<3>().filter(|_| first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0_u32, |sum, d| (b'0'..=b'7').contains(d).then(|| sum * 8 + u32::from(d - b'0')))
        });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The cgroups of a process, from the text of `/proc/PID/cgroup`. A cgroup outside our namespace (`/../x`) or one that
/// was removed is left out.
pub(super) fn memberships(text: &str) -> Vec<(Hierarchy, &str)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if !path.starts_with('/') || path.ends_with(" (deleted)") || path.split('/').any(|part| part == "..") {
            continue;
        }
        if number == "0" && controllers.is_empty() {
            found.push((Hierarchy::Unified, path));
        }
        found.extend(controllers.split(',').filter_map(Hierarchy::of_controller).map(|hierarchy| (hierarchy, path)));
    }
    found
}

/// The cgroups above one, nearest first: `/a/b` is in `/a` and `/`.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(path), |path| parent(path))
}

fn parent(path: &str) -> Option<&str> {
    let end = path.rfind('/').filter(|_| path.len() > 1)?;
    path.get(..end.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/sys/fs/cgroup";

    fn folder(mounts: &Mounts, hierarchy: Hierarchy, path: &str) -> Option<String> {
        mounts.folder(hierarchy, path).map(|folder| folder.to_string_lossy().trim_end_matches('/').to_owned())
    }

    #[test]
    fn combined_mounts_of_version_1() {
        let text = "\
25 20 0:20 / / rw - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 25 0:29 / /mnt/with\\040blank rw - cgroup2 cgroup2 rw,nsdelegate
";
        let mounts = Mounts::parse(text, Path::new(ROOT));
        let at = |hierarchy| folder(&mounts, hierarchy, "/a/b").unwrap();
        assert_eq!(at(Hierarchy::Cpu), "/sys/fs/cgroup/cpu,cpuacct/a/b");
        assert_eq!(at(Hierarchy::Cpuacct), "/sys/fs/cgroup/cpu,cpuacct/a/b");
        assert_eq!(at(Hierarchy::Memory), "/sys/fs/cgroup/memory/a/b");
        assert_eq!(at(Hierarchy::Unified), "/mnt/with blank/a/b");
        assert_eq!(folder(&mounts, Hierarchy::Cpu, "/").unwrap(), "/sys/fs/cgroup/cpu,cpuacct");
        let elsewhere = Mounts::parse(text, Path::new("/host/cgroup"));
        assert_eq!(folder(&elsewhere, Hierarchy::Memory, "/x").unwrap(), "/host/cgroup/memory/x");
    }

    #[test]
    fn version_2_alone() {
        let mounts = Mounts::parse("30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n", Path::new(ROOT));
        let path = "/system.slice/a.service";
        assert_eq!(folder(&mounts, Hierarchy::Unified, path).unwrap(), "/sys/fs/cgroup/system.slice/a.service");
        assert_eq!(folder(&mounts, Hierarchy::Cpu, path), None);
    }

    #[test]
    fn a_container_sees_its_own_cgroup_at_the_mount_point() {
        let text = "9 8 0:26 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n\
                    9 8 0:27 /../other /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let mounts = Mounts::parse(text, Path::new(ROOT));
        assert_eq!(folder(&mounts, Hierarchy::Cpu, "/docker/abc").unwrap(), "/sys/fs/cgroup/cpu");
        assert_eq!(folder(&mounts, Hierarchy::Cpu, "/docker/abc/x").unwrap(), "/sys/fs/cgroup/cpu/x");
        for hidden in ["/docker/abcd", "/docker", "/", "/other"] {
            assert_eq!(folder(&mounts, Hierarchy::Cpu, hidden), None, "{hidden}");
        }
        assert_eq!(folder(&mounts, Hierarchy::Memory, "/other"), None);
    }

    #[test]
    fn broken_lines_are_no_mounts() {
        for line in ["", "1 2 3", "1 2 3 / /x rw", "1 2 3 / /x rw - cgroup", "1 2 3 / /x rw - cgroup c", " - cgroup2"] {
            assert_eq!(Mounts::parse(line, Path::new(ROOT)), Mounts::default(), "{line}");
        }
        assert_eq!(unescape(r"a\040b\134c\9x\"), r"a b\c\9x\");
    }

    #[test]
    fn memberships_of_every_layout() {
        use Hierarchy::{Cpu, Cpuacct, Memory, Unified};
        assert_eq!(memberships("0::/user.slice/a:b\n"), [(Unified, "/user.slice/a:b")]);
        let hybrid = "12:memory:/m\n4:cpu,cpuacct:/c\n1:name=systemd:/init\n0::/u\n";
        assert_eq!(memberships(hybrid), [(Memory, "/m"), (Cpu, "/c"), (Cpuacct, "/c"), (Unified, "/u")]);
        assert_eq!(memberships("0::/../../other\n"), []);
        assert_eq!(memberships("0::/gone (deleted)\nnonsense\n3:cpuset:/x\n1:cpu:relative\n"), []);
        // Dots inside a name do not mean the parent folder.
        assert_eq!(memberships("0::/a..b\n"), [(Unified, "/a..b")]);
    }

    #[test]
    fn ancestors_go_up_to_the_root() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/a").collect::<Vec<_>>(), ["/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
