// SPDX-License-Identifier: Apache-2.0
//! Requirements for tracing on this machine: met or missing, with the fix.

use crate::capture::{Capture, Options};
use crate::error::CaptureError;
use crate::libraries;
use crate::programs::Refusal;
use crate::system;
use gpuwhy_stacks::python::{self, PyError};
use gpuwhy_strangers::{ProcFile, read_text};
use std::collections::BTreeMap;
use std::path::Path;

/// Whether a need is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It is.
    Ok,
    /// It is not, and tracing works without it.
    Optional,
    /// It is not, and tracing cannot work.
    Missing,
}

impl Status {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Optional => "absent",
            Self::Missing => "missing",
        }
    }
}

/// One need.
#[derive(Debug, Clone)]
pub struct Need {
    /// Its name, such as `BTF`.
    pub name: &'static str,
    /// Whether it is there.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do if it is missing.
    pub fix: Option<String>,
    /// Messages of the kernel, for --verbose.
    pub details: Vec<String>,
}

impl Need {
    fn new(name: &'static str, met: bool, found: impl Into<String>, fix: &str) -> Self {
        let status = if met { Status::Ok } else { Status::Missing };
        Self { name, status, found: found.into(), fix: (!met).then(|| fix.to_owned()), details: Vec::new() }
    }

    fn optional(mut self) -> Self {
        if self.status == Status::Missing {
            self.status = Status::Optional;
        }
        self
    }
}

/// Checks every requirement; actually loads the programs. `shows_details`: the caller prints [`Need::details`].
pub fn look(shows_details: bool) -> Vec<Need> {
    let release = system::kernel_release();
    let recent = system::kernel_version(&release).is_some_and(|v| v >= (5, 15));
    let mut needs = vec![
        Need::new("kernel", recent, format!("Linux {release}"), "update to Linux 5.15 or newer"),
        Need::new(
            "BTF",
            Path::new("/sys/kernel/btf/vmlinux").exists(),
            "/sys/kernel/btf/vmlinux",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as every current distribution kernel is",
        ),
        privilege(),
        Need::new(
            "PID namespace",
            in_first_pid_namespace(),
            if in_first_pid_namespace() { "of the host" } else { "of a container" },
            "run gpuwhy on the host, or start the container with --pid=host",
        ),
    ];
    needs.push(programs(shows_details));
    needs.push(gpu());
    let users = cuda_users();
    needs.push(cuda_in_use(users.len()));
    needs.push(python_in_use(&users));
    needs
}

/// The first need that is missing, as an error; used before a trace so that it fails with one clear line.
pub fn require() -> Result<(), CaptureError> {
    judge(system::kernel_release(), Path::new("/sys/kernel/btf/vmlinux").exists(), in_first_pid_namespace())?;
    if may_load() { Ok(()) } else { Err(CaptureError::NotPermitted) }
}

/// Capabilities needed without root to trace one's own processes, and those of other users.
const CAPABILITIES: [(&str, u32); 2] = [("CAP_BPF", 39), ("CAP_PERFMON", 38)];
const FOR_OTHERS: [(&str, u32); 2] = [("CAP_SYS_PTRACE", 19), ("CAP_DAC_READ_SEARCH", 2)];

/// Whether this is root or has the capabilities; the kernel reports anything else that is missing.
fn may_load() -> bool {
    is_root() || missing(&CAPABILITIES, effective_capabilities()).is_empty()
}

fn effective_capabilities() -> u64 {
    let status = read_text(Path::new("/proc/self/status"), ProcFile::Status.limit()).unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.unwrap_or(0)
}

fn missing(wanted: &[(&'static str, u32)], effective: u64) -> Vec<&'static str> {
    wanted.iter().filter(|(_, bit)| effective & 1 << bit == 0).map(|(name, _)| *name).collect()
}

fn privilege() -> Need {
    let user = user_id();
    if is_root() {
        return Need::new("privilege", true, format!("user {user}"), "");
    }
    let path = std::env::current_exe().unwrap_or_else(|_| "gpuwhy".into());
    privilege_of(&user.to_string(), effective_capabilities(), &path)
}

fn privilege_of(user: &str, effective: u64, path: &Path) -> Need {
    let lacks = missing(&CAPABILITIES, effective);
    let lacks_for_others = missing(&FOR_OTHERS, effective);
    let found = match (lacks.len(), lacks_for_others.is_empty()) {
        (0, true) => format!("user {user} with capabilities"),
        (0, false) => {
            format!("user {user} without {}: can trace only their own processes", lacks_for_others.join(", "))
        }
        (2, _) => format!("user {user}"),
        _ => format!("user {user} without {}", lacks.join(", ")),
    };
    let names: Vec<_> = CAPABILITIES.iter().chain(&FOR_OTHERS).map(|(name, _)| name.to_lowercase()).collect();
    let fix =
        format!("run with sudo, or give gpuwhy capabilities: sudo setcap {}+ep {}", names.join(","), path.display());
    Need::new("privilege", lacks.is_empty(), found, &fix)
}

fn judge(release: String, has_btf: bool, first_pid_namespace: bool) -> Result<(), CaptureError> {
    if system::kernel_version(&release).is_some_and(|v| v < (5, 15)) {
        return Err(CaptureError::OldKernel { release });
    }
    if !has_btf {
        return Err(CaptureError::NoBtf { release });
    }
    if !first_pid_namespace {
        return Err(CaptureError::PidNamespace);
    }
    Ok(())
}

fn programs(shows_details: bool) -> Need {
    // No targets: nothing is traced, but everything is loaded.
    match Capture::start(&Options { targets: crate::Targets::Pids(Vec::new()), ..Default::default() }) {
        Ok(mut capture) => {
            let warnings = capture.take_warnings();
            let found = format!("loaded; uses uprobe {}", capture.flavour().name());
            let need = match warnings.first() {
                None => Need::new("eBPF programs", true, found, ""),
                Some(why) => Need::new("eBPF programs", false, format!("{found}; {why}"), do_without()).optional(),
            };
            Need { details: capture.refusals().iter().flat_map(Refusal::lines).collect(), ..need }
        }
        Err(error) => {
            let fix = fix_of(&error, is_root(), shows_details);
            let need = Need::new("eBPF programs", false, found_of(&error), &fix);
            Need { details: error.refusals().iter().flat_map(Refusal::lines).collect(), ..need }
        }
    }
}

/// Some kernel features are only available to root.
fn do_without() -> &'static str {
    if is_root() { "none needed: everything else is recorded" } else { "run with sudo to record that as well" }
}

/// The error without advice: that is the fix's part.
fn found_of(error: &CaptureError) -> String {
    match error {
        CaptureError::NotPermitted => "the kernel does not allow this user to load eBPF programs".into(),
        CaptureError::Refused { release, program, why, .. } => {
            let program = if program.is_empty() { "the eBPF programs" } else { program };
            format!("Linux {release} refuses {program}: {why}")
        }
        CaptureError::KillsConfined { release } => {
            format!(
                "Linux {release} kills processes under a seccomp filter (containers) when a probed function returns"
            )
        }
        error => error.to_string(),
    }
}

fn fix_of(error: &CaptureError, root: bool, shows_details: bool) -> String {
    const WORKS: &str = "Linux 6.1, 6.12 and 6.18 are known to work";
    match error {
        CaptureError::NotPermitted if root => {
            "allow eBPF: run on the host, in a container with CAP_BPF and CAP_PERFMON, or turn off kernel lockdown \
             (/sys/kernel/security/lockdown)"
                .into()
        }
        CaptureError::NotPermitted => "run with sudo".into(),
        CaptureError::KillsConfined { .. } => {
            "update the kernel: 6.12.14, 6.13.3, 6.14 and newer do not have this fault".into()
        }
        CaptureError::NoReader { .. } => {
            "free memory, or raise the limit on processes (ulimit -u, the cgroup's pids.max), and try again".into()
        }
        CaptureError::Refused { .. } if shows_details => {
            format!("report this kernel with the kernel's messages below, or use another one: {WORKS}")
        }
        CaptureError::Refused { .. } => {
            format!("run `gpuwhy check -v` for the kernel's messages and report them, or use another kernel: {WORKS}")
        }
        CaptureError::NoBtf { .. } | CaptureError::OldKernel { .. } | CaptureError::PidNamespace => {
            "see the missing needs above".into()
        }
        CaptureError::NoFlavour { .. } => "leave --probes out: gpuwhy then takes the best way this kernel has".into(),
        CaptureError::NoSuchProcess { .. }
        | CaptureError::ProcessDied { .. }
        | CaptureError::Load { .. }
        | CaptureError::Attach { .. }
        | CaptureError::Library { .. }
        | CaptureError::Elf { .. }
        | CaptureError::MapWatch { .. } => "try again; if it fails again, report this line".into(),
    }
}

fn gpu() -> Need {
    let system = system::System::read();
    let found = match (&system.gpu, &system.driver) {
        (Some(gpu), Some(driver)) => {
            format!("{gpu}, driver {driver}, CUDA {}", system.cuda.as_deref().unwrap_or("unknown"))
        }
        _ => "no NVIDIA driver responds".into(),
    };
    Need::new(
        "GPU",
        system.gpu.is_some(),
        found,
        "install the NVIDIA driver (nvidia-smi must work); `gpuwhy demo` needs no GPU",
    )
    .optional()
}

/// Processes that have a CUDA library mapped.
fn cuda_users() -> Vec<u32> {
    libraries::all_processes().into_iter().filter(|pid| libraries::has_any(*pid)).collect()
}

/// Whether gpuwhy can read the lines of the Python that CUDA processes run.
fn python_in_use(users: &[u32]) -> Need {
    let mut versions = BTreeMap::new();
    let mut refused = None;
    for pid in users {
        match python::find(*pid) {
            Ok(found) => *versions.entry(found.version.to_string()).or_insert(0u32) += 1,
            Err(PyError::NoPython { .. }) => {}
            Err(error) => refused = refused.or(Some(error.to_string())),
        }
    }
    let found: Vec<String> = versions.iter().map(|(version, n)| format!("{version} in {n} processes")).collect();
    let said = match (&refused, found.is_empty()) {
        (Some(why), _) => why.clone(),
        (None, true) => "can read lines of CPython 3.8 to 3.15; no CUDA process runs Python now".into(),
        (None, false) => found.join(", "),
    };
    let fix = "run the job with CPython 3.8 to 3.15 to get lines; everything else is recorded";
    Need::new("Python", refused.is_none(), said, fix).optional()
}

fn cuda_in_use(users: usize) -> Need {
    Need::new(
        "CUDA processes",
        users > 0,
        format!("{users} running"),
        "start your job, or let gpuwhy start it: sudo gpuwhy trace -- python3 train.py",
    )
    .optional()
}

fn user_id() -> u32 {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() }
}

fn is_root() -> bool {
    user_id() == 0
}

/// The first PID namespace has a fixed inode number (PROC_PID_INIT_INO).
fn in_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_capabilities_are_missing_is_said() {
        let of = |effective| {
            let need = privilege_of("7", effective, Path::new("/opt/gpuwhy"));
            (need.status, need.found)
        };
        let (bpf, perfmon, ptrace, search) = (1u64 << 39, 1u64 << 38, 1u64 << 19, 1u64 << 2);
        assert_eq!(of(bpf | perfmon | ptrace | search), (Status::Ok, "user 7 with capabilities".into()));
        let own = "user 7 without CAP_SYS_PTRACE: can trace only their own processes";
        assert_eq!(of(bpf | perfmon | search), (Status::Ok, own.into()));
        assert_eq!(of(bpf | ptrace), (Status::Missing, "user 7 without CAP_PERFMON".into()));
        assert_eq!(of(search), (Status::Missing, "user 7".into()));
        let fix = privilege_of("7", 0, Path::new("/opt/gpuwhy")).fix.unwrap();
        assert!(fix.ends_with("setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep /opt/gpuwhy"), "{fix}");
    }

    #[test]
    fn each_error_has_a_fix_of_its_own_that_never_leads_back_to_the_same_command() {
        let release = || "6.12.9".to_owned();
        let refused = CaptureError::Refused {
            release: release(),
            program: "on_fork".into(),
            why: "Invalid argument".into(),
            refusals: Vec::new(),
        };
        let kills = CaptureError::KillsConfined { release: release() };
        let no_reader = CaptureError::NoReader { source: std::io::ErrorKind::OutOfMemory.into() };
        assert_eq!(found_of(&refused), "Linux 6.12.9 refuses on_fork: Invalid argument");
        for (error, root, shows_details, wanted, unwanted) in [
            (&refused, true, false, "run `gpuwhy check -v`", "below"),
            (&refused, true, true, "messages below", "check -v"),
            (&kills, true, false, "update the kernel", "report"),
            (&no_reader, true, false, "ulimit -u", "kernel"),
            (&CaptureError::NotPermitted, false, false, "run with sudo", "lockdown"),
            (&CaptureError::NotPermitted, true, false, "lockdown", "sudo"),
        ] {
            let fix = fix_of(error, root, shows_details);
            assert!(fix.contains(wanted) && !fix.contains(unwanted), "{error}: {fix}");
            let found = found_of(error);
            assert!(!found.contains("check -v") && !found.contains("sudo"), "{found}");
        }
    }

    #[test]
    fn what_is_missing_is_said_in_one_line_with_the_fix() {
        let said = |release: &str, btf, namespace| match judge(release.to_owned(), btf, namespace) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said("6.8.0-45-generic", true, true), "");
        for (line, parts) in [
            (said("5.10.0-8-amd64", true, true), ["5.10.0-8-amd64", "5.15 or newer"]),
            (said("6.1.0", false, true), ["6.1.0", "CONFIG_DEBUG_INFO_BTF=y"]),
            (said("6.1.0", true, false), ["PID namespace", "--pid=host"]),
        ] {
            assert!(parts.iter().all(|part| line.contains(part)) && !line.contains('\n'), "{line}");
        }
    }
}
