// SPDX-License-Identifier: Apache-2.0
//! A simulated CUDA stack for tests and demonstrations.
//!
//! The crate carries real shared libraries with the names and signatures of
//! CUDA's driver and runtime, of NCCL, and of the part of PyTorch's `libc10`
//! that reports memory. They drive a simulated GPU in real time, and write an
//! independent log of what really happened, which [`log`] reads.
//!
//! [`install`] writes the libraries, the load generator `simjob`, a small
//! Python training program, one with a trouble of choice (`trouble.py`),
//! `hostjob`, whose threads do things to the scheduler, the disk and memory
//! that are exactly known, `staticjob`, which has the runtime linked in, and
//! `throwjob`, which throws C++ exceptions through libc10, into a folder. Environment variables configure the
//! libraries:
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `SIMGPU_DEVICES` | number of GPUs | 1 |
//! | `SIMGPU_MEM` | memory of each; `K`, `M` and `G` are understood | 16G |
//! | `SIMGPU_H2D_GBPS`, `SIMGPU_D2H_GBPS`, `SIMGPU_D2D_GBPS` | speed of copies in GB/s; 0: they take no time | 25, 25, 2000 |
//! | `SIMGPU_PAGEABLE_GBPS` | speed at which the calling thread stages copies of host memory that is not page-locked: towards the device they return once staged, towards the host when done; 0: such copies are like others | 0 |
//! | `SIMGPU_ALLOC_US` | CPU time that each device malloc and free of the driver takes (stream-ordered ones excepted); unless it is 0, a free also waits for the device's outstanding work | 0 |
//! | `SIMGPU_SYNC` | `block`: waiting for the GPU sleeps instead of spinning | `spin` |
//! | `SIMGPU_SHARED` | a file through which all processes that name it share the engines of their GPUs; made if need be | none |
//! | `SIMGPU_LOG` | folder of the truth log | none |
//! | `SIMGPU_LOG_LEVEL` | `counts`: counters only; `full`: records too | `full` |

pub mod log;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name)).as_slice()
    };
}

/// Every file that [`install`] writes: path, contents, permissions.
const FILES: &[(&str, &[u8], u32)] = &[
    ("libcuda.so.1", built!("libcuda.so.1"), 0o755),
    ("libcudart.so.13", built!("libcudart.so.13"), 0o755),
    ("libc10.so", built!("libc10.so"), 0o755),
    ("libnccl.so.2", built!("libnccl.so.2"), 0o755),
    ("libnvidia-ml.so.1", built!("libnvidia-ml.so.1"), 0o755),
    ("cet/libcuda.so.1", built!("cet/libcuda.so.1"), 0o755),
    ("cet/libcudart.so.13", built!("cet/libcudart.so.13"), 0o755),
    ("cet/libc10.so", built!("cet/libc10.so"), 0o755),
    ("cet/libnccl.so.2", built!("cet/libnccl.so.2"), 0o755),
    ("simjob", built!("simjob"), 0o755),
    ("hostjob", built!("hostjob"), 0o755),
    ("staticjob", built!("staticjob"), 0o755),
    ("staticjob-stripped", built!("staticjob-stripped"), 0o755),
    ("throwjob", built!("throwjob"), 0o755),
    ("train.py", include_bytes!("../py/train.py"), 0o755),
    ("simcuda.py", include_bytes!("../py/simcuda.py"), 0o644),
    ("trouble.py", include_bytes!("../py/trouble.py"), 0o755),
    ("trouble_data.py", include_bytes!("../py/trouble_data.py"), 0o644),
    ("trouble_host.py", include_bytes!("../py/trouble_host.py"), 0o644),
    ("trouble_options.py", include_bytes!("../py/trouble_options.py"), 0o644),
    ("memjob.py", include_bytes!("../py/memjob.py"), 0o755),
    ("site-packages/simcuda.py", include_bytes!("../py/simcuda.py"), 0o644),
    ("site-packages/simtorch.py", include_bytes!("../py/site-packages/simtorch.py"), 0o644),
    ("bystander.py", include_bytes!("../py/bystander.py"), 0o755),
];

/// Where [`install`] put everything. All paths lie under `dir`.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The folder itself, absolute.
    pub dir: PathBuf,
    /// The driver, `libcuda.so.1`.
    pub cuda: PathBuf,
    /// The runtime, `libcudart.so.13`; it finds the driver beside itself.
    pub cudart: PathBuf,
    /// `libc10.so`, with PyTorch's memory reports and a caching allocator.
    pub c10: PathBuf,
    /// `libnccl.so.2`.
    pub nccl: PathBuf,
    /// `libnvidia-ml.so.1`: no driver until a file `nvml.conf` lies beside it or `SIMGPU_NVML` names one (`c/nvml.c`).
    pub nvml: PathBuf,
    /// The driver compiled for control-flow protection (`endbr64` first).
    pub cet_cuda: PathBuf,
    /// The runtime compiled for control-flow protection.
    pub cet_cudart: PathBuf,
    /// `libc10.so` compiled for control-flow protection.
    pub cet_c10: PathBuf,
    /// `libnccl.so.2` compiled for control-flow protection.
    pub cet_nccl: PathBuf,
    /// The load generator.
    pub simjob: PathBuf,
    /// Programs whose threads do something exactly known; it needs no GPU.
    pub hostjob: PathBuf,
    /// A program with the runtime linked in, which loads the driver at its first call.
    pub staticjob: PathBuf,
    /// The same without symbols.
    pub staticjob_stripped: PathBuf,
    /// A C++ program whose exceptions pass through a function of libc10, in a tree of processes.
    pub throwjob: PathBuf,
    /// The training program, to run with `python3`.
    pub train_py: PathBuf,
    /// A training program with one known trouble, to run with `python3`.
    pub trouble_py: PathBuf,
    /// A training program whose memory does something known, to run with `python3`.
    pub memjob_py: PathBuf,
    /// What runs beside it: a process that takes a CPU's or the GPU's time.
    pub bystander_py: PathBuf,
}

/// Writes the simulated stack into `dir`, which is created if need be.
///
/// Files already there are replaced, not overwritten in place, so processes
/// that still run the old ones are not disturbed.
///
/// # Errors
///
/// Whatever the file system reports.
pub fn install(dir: &Path) -> io::Result<Installed> {
    for folder in ["cet", "site-packages"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    let dir = dir.canonicalize()?;
    for (name, contents, mode) in FILES {
        let path = dir.join(name);
        let fresh = dir.join(format!("{name}.{}.new", std::process::id()));
        fs::write(&fresh, contents)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(*mode))?;
        fs::rename(&fresh, &path)?;
    }
    Ok(Installed {
        cuda: dir.join("libcuda.so.1"),
        cudart: dir.join("libcudart.so.13"),
        c10: dir.join("libc10.so"),
        nccl: dir.join("libnccl.so.2"),
        nvml: dir.join("libnvidia-ml.so.1"),
        cet_cuda: dir.join("cet/libcuda.so.1"),
        cet_cudart: dir.join("cet/libcudart.so.13"),
        cet_c10: dir.join("cet/libc10.so"),
        cet_nccl: dir.join("cet/libnccl.so.2"),
        simjob: dir.join("simjob"),
        hostjob: dir.join("hostjob"),
        staticjob: dir.join("staticjob"),
        staticjob_stripped: dir.join("staticjob-stripped"),
        throwjob: dir.join("throwjob"),
        train_py: dir.join("train.py"),
        trouble_py: dir.join("trouble.py"),
        memjob_py: dir.join("memjob.py"),
        bystander_py: dir.join("bystander.py"),
        dir,
    })
}
