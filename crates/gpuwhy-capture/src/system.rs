// SPDX-License-Identifier: Apache-2.0
//! The machine a run was recorded on.

use gpuwhy_strangers::{ProcFile, read_proc, read_text};
use std::path::Path;

/// Larger than /proc/cpuinfo of the largest machine.
const MOST_TEXT: usize = 8 << 20;

/// Facts about the machine; unknown ones are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// GPUs: `2 × NVIDIA H200`.
    pub gpu: Option<String>,
    /// NVIDIA's driver version.
    pub driver: Option<String>,
    /// The CUDA version that driver supports.
    pub cuda: Option<String>,
    /// Processor model.
    pub cpu: Option<String>,
    /// Logical CPUs.
    pub cores: u32,
    /// Main memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Kernel release.
    pub kernel: String,
}

impl System {
    /// Looks at this machine.
    pub fn read() -> Self {
        let mut system = Self {
            cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
            // SAFETY: sysconf reads a number.
            cores: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32,
            memory_bytes: read("/proc/meminfo").and_then(|text| kilobytes(&field(&text, "MemTotal")?)),
            kernel: kernel_release(),
            ..Default::default()
        };
        system.read_gpus();
        system
    }

    /// Through NVML, loaded now if there is one; a machine without a driver is fine.
    fn read_gpus(&mut self) {
        let Some(nvml) = open_nvml(None) else { return };
        self.driver = nvml.sys_driver_version().ok();
        self.cuda = nvml.sys_cuda_driver_version().ok().map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        let count = nvml.device_count().unwrap_or(0);
        let mut names: Vec<String> = (0..count).filter_map(|i| nvml.device_by_index(i).ok()?.name().ok()).collect();
        names.dedup();
        self.gpu = match (count, names.len()) {
            (0, _) | (_, 0) => None,
            (1, _) => names.pop(),
            (n, 1) => names.pop().map(|name| format!("{n} × {name}")),
            _ => Some(names.join(", ")),
        };
    }
}

/// NVML from a given file, else from the linker's path or the folders containers mount the driver at.
pub(crate) fn open_nvml(path: Option<&Path>) -> Option<nvml_wrapper::Nvml> {
    if let Some(path) = path {
        return nvml_wrapper::Nvml::builder().lib_path(path.as_ref()).init().ok();
    }
    if let Ok(nvml) = nvml_wrapper::Nvml::init() {
        return Some(nvml);
    }
    ["/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"]
        .iter()
        .filter(|path| Path::new(path).exists())
        .find_map(|path| nvml_wrapper::Nvml::builder().lib_path(path.as_ref()).init().ok())
}

/// The Python a process runs, by the name of its interpreter or libpython: `3.12`.
pub fn python_of(pid: u32) -> Option<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let exe = exe.file_name()?.to_str()?.to_owned();
    python_version(&exe).or_else(|| {
        let maps = String::from_utf8_lossy(&read_proc(pid, ProcFile::Maps).ok()?).into_owned();
        maps.lines().filter_map(|l| l.rsplit('/').next()).find_map(|file| python_version(file.strip_prefix("lib")?))
    })
}

/// `3.12` from `python3.12` or `python3.12.so.1.0`.
fn python_version(file: &str) -> Option<String> {
    let rest = file.strip_prefix("python")?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let version = rest[..end].trim_end_matches('.');
    version.contains('.').then(|| version.to_owned())
}

/// The kernel's release, `6.18.44`.
pub fn kernel_release() -> String {
    read("/proc/sys/kernel/osrelease").map(|s| s.trim().to_owned()).unwrap_or_else(|| "unknown".into())
}

/// Real-time kernels before 6.12 take a lock that may sleep when something is put into a ring buffer, which must not
/// happen while the scheduler switches.
pub(crate) fn may_follow_scheduler() -> bool {
    let realtime = read("/sys/kernel/realtime").is_some_and(|text| text.trim() == "1");
    !realtime || kernel_version(&kernel_release()).is_some_and(|version| version >= (6, 12))
}

/// Major and minor version of a kernel release.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn read(path: &str) -> Option<String> {
    read_text(Path::new(path), MOST_TEXT).ok()
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_out_of_names() {
        assert_eq!(kernel_version("6.18.44-custom"), Some((6, 18)));
        assert_eq!(kernel_version("5.15.0-91-generic"), Some((5, 15)));
        assert_eq!(kernel_version("weird"), None);
        assert_eq!(python_version("python3.12").as_deref(), Some("3.12"));
        assert_eq!(python_version("python3.9.so.1.0").as_deref(), Some("3.9"));
        assert_eq!(python_version("python3"), None);
    }

    #[test]
    fn proc_files_are_read_by_field() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\n";
        assert_eq!(kilobytes(&field(text, "MemTotal").unwrap()), Some(16384 * 1024));
        assert_eq!(field(text, "SwapTotal"), None);
    }

    #[test]
    fn this_machine_is_described() {
        let system = System::read();
        assert!(system.cores >= 1);
        assert!(system.memory_bytes.unwrap() > 1 << 20);
        assert!(kernel_version(&system.kernel).is_some());
    }
}
