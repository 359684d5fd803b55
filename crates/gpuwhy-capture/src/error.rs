// SPDX-License-Identifier: Apache-2.0
//! What can go wrong while capturing, said with the offending value and the fix.

use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, CaptureError>;

/// Why capturing failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
pub enum CaptureError {
    #[error(
        "this user may not load eBPF programs: run gpuwhy with sudo, or give it CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )]
    NotPermitted,
    #[error(
        "this kernel ({release}) has no BTF at /sys/kernel/btf/vmlinux: gpuwhy needs one built with CONFIG_DEBUG_INFO_BTF=y (every current distribution kernel is)"
    )]
    NoBtf { release: String },
    #[error("kernel {release} is too old: gpuwhy needs Linux 5.15 or newer")]
    OldKernel { release: String },
    #[error(
        "gpuwhy runs inside a PID namespace (a container), where it cannot tell processes apart as the kernel does: run it on the host, or start the container with --pid=host"
    )]
    PidNamespace,
    #[error("there is no process {pid}: `pgrep -a python` lists the running ones")]
    NoSuchProcess { pid: u32 },
    #[error("process {pid} ended before gpuwhy could attach to it")]
    ProcessDied { pid: u32 },
    #[error("the kernel refused gpuwhy's eBPF programs: {why}; `gpuwhy check` tells what is missing")]
    Load { why: String },
    #[error("the kernel refused a probe on {function} in {path}: {why}")]
    Attach { function: String, path: PathBuf, why: String },
    #[error("gpuwhy cannot start the process that looks into others for it: {source}")]
    NoReader { source: std::io::Error },
    #[error("cannot read {path}: {source}")]
    Library { path: PathBuf, source: std::io::Error },
    #[error("{path} is no ELF library gpuwhy can read: {why}")]
    Elf { path: PathBuf, why: String },
    #[error(
        "the kernel refused to report new library mappings: {source}; libraries loaded from now on will not be seen"
    )]
    MapWatch { source: std::io::Error },
}
