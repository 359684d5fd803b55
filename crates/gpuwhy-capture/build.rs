// SPDX-License-Identifier: Apache-2.0
//! Compiles the BPF programs with clang and generates their skeleton.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("gpuwhy.skel.rs");
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("gpuwhy has no probes for {other}: add bpf/arch_{other}.h").into()),
    };
    SkeletonBuilder::new()
        .source("bpf/gpuwhy.bpf.c")
        .clang_args([format!("-D__TARGET_ARCH_{arch}"), "-Wall".into(), "-Wno-unused-function".into()])
        .build_and_generate(&out)?;
    println!("cargo:rerun-if-changed=bpf");
    Ok(())
}
