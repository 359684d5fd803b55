// SPDX-License-Identifier: Apache-2.0
//! Errors of capturing, with the offending value and the fix.

use crate::programs::Refusal;
use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, CaptureError>;

impl CaptureError {
    /// The programs the kernel refused, with its messages, if that is the reason.
    pub fn refusals(&self) -> &[Refusal] {
        match self {
            Self::Refused { refusals, .. } => refusals,
            _ => &[],
        }
    }
}

/// Why capturing failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // see the message of each variant
pub enum CaptureError {
    #[error(
        "this user may not load eBPF programs: run gpuwhy with sudo, or give it CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )]
    NotPermitted,
    #[error(
        "kernel {release} has no BTF at /sys/kernel/btf/vmlinux: use one built with CONFIG_DEBUG_INFO_BTF=y, as every current distribution kernel is"
    )]
    NoBtf { release: String },
    #[error("kernel {release} is too old: gpuwhy needs Linux 5.15 or newer")]
    OldKernel { release: String },
    #[error(
        "gpuwhy runs inside a PID namespace (a container), where process ids differ from the kernel's: run it on the host, or start the container with --pid=host"
    )]
    PidNamespace,
    #[error("no process {pid}: `pgrep -a python` lists running Python processes")]
    NoSuchProcess { pid: u32 },
    #[error("process {pid} ended before gpuwhy could attach to it")]
    ProcessDied { pid: u32 },
    #[error(
        "Linux {release} refuses {}: {why}; please report this with the output of `gpuwhy check -v`", if program.is_empty() { "gpuwhy's eBPF programs".into() } else { format!("gpuwhy's eBPF program {program}") }
    )]
    Refused { release: String, program: String, why: String, refusals: Vec<Refusal> },
    #[error(
        "Linux {release} kills a process under a seccomp filter, as in a container, when a probed function returns: update the kernel (fixed in 6.12.14, 6.13.3, 6.14 and newer)"
    )]
    KillsConfined { release: String },
    #[error(
        "Linux {release} does not support uprobe {flavour}: leave out --probes, and gpuwhy picks the best kind it supports"
    )]
    NoFlavour { release: String, flavour: &'static str },
    #[error("gpuwhy's eBPF programs are loaded, but {why}")]
    Load { why: String },
    #[error("the kernel refused a probe on {function} in {path}: {why}")]
    Attach { function: String, path: PathBuf, why: String },
    #[error("cannot start the process that reads other processes' files and memory: {source}")]
    NoReader { source: std::io::Error },
    #[error("cannot read {path}: {source}")]
    Library { path: PathBuf, source: std::io::Error },
    #[error("{path} is not an ELF library that gpuwhy can read: {why}")]
    Elf { path: PathBuf, why: String },
    #[error("the kernel refuses to report new library mappings: {source}; libraries loaded from now on are not traced")]
    MapWatch { source: std::io::Error },
}
