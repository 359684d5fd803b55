// SPDX-License-Identifier: Apache-2.0
//! Compiles the simulated CUDA libraries and the load generator with the
//! system's C compiler into OUT_DIR, from where src/lib.rs embeds them.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags that give every exported function the shape that it has in the real
/// libraries: it begins by pushing the frame pointer, it does not jump into
/// another function at its end, and no two functions share one body.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
    "-fno-schedule-insns2",
    "-fno-optimize-sibling-calls",
    "-fno-ipa-icf",
    // Thread-local data without a call per access; the libraries use little.
    "-ftls-model=initial-exec",
    "-pthread",
];

struct Library {
    file: &'static str,
    sources: &'static [&'static str],
    flags: &'static [&'static str],
    /// Libraries built before, to link with.
    needs: &'static [&'static str],
    version_script: Option<&'static str>,
}

const RUNTIME: &[&str] =
    &["runtime_core.c", "runtime_exec.c", "runtime_kernel.c", "runtime_graph.c", "runtime_memory.c", "runtime_copy.c"];

const LIBRARIES: &[Library] = &[
    Library {
        file: "libcuda.so.1",
        sources: &[
            "simlog.c",
            "device.c",
            "shared.c",
            "kernel.c",
            "graph.c",
            "memory.c",
            "address_map.c",
            "driver_context.c",
            "driver_memory.c",
            "driver_copy.c",
            "driver_exec.c",
            "driver_graph.c",
            "driver_module.c",
        ],
        flags: &[],
        needs: &[],
        version_script: None,
    },
    Library {
        file: "libcudart.so.13",
        sources: RUNTIME,
        flags: &[],
        needs: &["libcuda.so.1"],
        version_script: Some("libcudart.map"),
    },
    Library {
        file: "libc10.so",
        sources: &["c10.c"],
        // Exceptions of C++ callbacks pass through it.
        flags: &["-fexceptions"],
        needs: &["libcudart.so.13", "libcuda.so.1"],
        version_script: None,
    },
    Library { file: "libnccl.so.2", sources: &["nccl.c"], flags: &[], needs: &["libcuda.so.1"], version_script: None },
    Library {
        file: "libnvidia-ml.so.1",
        sources: &["nvml.c", "nvml_truth.c"],
        flags: &[],
        needs: &[],
        version_script: None,
    },
];

const SIMJOB: &[&str] = &[
    "simjob.c",
    "simjob_load.c",
    "simjob_modes.c",
    "simjob_tour.c",
    "simjob_plays.c",
    "simjob_libraries.c",
    "simjob_windows.c",
    "simjob_nccl.c",
    "simjob_torch.c",
    "simjob_stories.c",
];

const HOSTJOB: &[&str] =
    &["hostjob.c", "hostjob_edges.c", "hostjob_io.c", "hostjob_life.c", "hostjob_sched.c", "hostjob_waits.c"];

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn run(mut command: Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !status.success() {
        return Err(format!("{command:?} failed: {status}").into());
    }
    Ok(())
}

fn folder_from(variable: &str) -> Outcome<PathBuf> {
    let value = env::var_os(variable).ok_or_else(|| format!("{variable} is not set"))?;
    Ok(PathBuf::from(value))
}

fn compiler() -> Command {
    println!("cargo:rerun-if-env-changed=CC");
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn build_libraries(sources: &Path, out: &Path, cf_protection: &str) -> Outcome {
    fs::create_dir_all(out)?;
    // They are part of the gpuwhy binary (`gpuwhy demo`) and must run with the same glibc.
    let stubs = older_glibc::stubs(out)?;
    let versions = out.join("older_glibc.h");
    fs::write(&versions, format!("__asm__({:?});\n", older_glibc::versions("")))?;
    for library in LIBRARIES {
        let mut cc = compiler();
        cc.args(FLAGS)
            .args(library.flags)
            .arg(format!("-fcf-protection={cf_protection}"))
            .args(["-shared", "-Wl,-rpath,$ORIGIN", "-Wl,--no-undefined"])
            .arg("-include")
            .arg(&versions)
            .arg(format!("-Wl,-soname,{}", library.file));
        if let Some(script) = library.version_script {
            let script = sources.join(script);
            cc.arg(format!("-Wl,--version-script={}", script.display()));
        }
        cc.args(library.sources.iter().map(|name| sources.join(name)))
            .args(&stubs)
            .args(library.needs.iter().map(|name| out.join(name)))
            .arg("-o")
            .arg(out.join(library.file));
        run(cc)?;
    }
    Ok(())
}

fn build_program(sources: &Path, files: &[&str], out: &Path) -> Outcome {
    let mut cc = compiler();
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-g0", "-pthread"])
        .args(files.iter().map(|name| sources.join(name)))
        .arg("-ldl")
        .arg("-o")
        .arg(out);
    run(cc)
}

/// A program with a static runtime, as with `libcudart_static.a`: with symbols, or stripped.
fn build_static_program(sources: &Path, out: &Path, strip: bool) -> Outcome {
    let mut cc = compiler();
    cc.args(FLAGS)
        .args(["-fcf-protection=none", "-DSIMGPU_STATIC", "-Wl,-rpath,$ORIGIN"])
        .args(strip.then_some("-s"))
        .args(RUNTIME.iter().chain(&["static_driver.c", "staticjob.c"]).map(|name| sources.join(name)))
        .arg("-ldl")
        .arg("-o")
        .arg(out);
    run(cc)
}

/// A C++ program linked with the libraries that lie beside it.
fn build_throwjob(sources: &Path, out: &Path) -> Outcome {
    println!("cargo:rerun-if-env-changed=CXX");
    let mut cxx = Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    cxx.args(["-std=c++17", "-Wall", "-Wextra", "-O2", "-g0", "-Wl,-rpath,$ORIGIN"])
        .arg(sources.join("throwjob.cc"))
        .args(["libc10.so", "libcudart.so.13", "libcuda.so.1"].map(|name| out.join(name)))
        .arg("-o")
        .arg(out.join("throwjob"));
    run(cxx)
}

fn main() -> Outcome {
    let sources = folder_from("CARGO_MANIFEST_DIR")?.join("c");
    let out = folder_from("OUT_DIR")?;
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c");
    build_libraries(&sources, &out, "none")?;
    build_libraries(&sources, &out.join("cet"), "full")?;
    build_program(&sources, SIMJOB, &out.join("simjob"))?;
    build_program(&sources, HOSTJOB, &out.join("hostjob"))?;
    build_static_program(&sources, &out.join("staticjob"), false)?;
    build_static_program(&sources, &out.join("staticjob-stripped"), true)?;
    build_throwjob(&sources, &out)
}
