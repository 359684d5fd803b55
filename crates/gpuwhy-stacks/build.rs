// SPDX-License-Identifier: Apache-2.0
//! Compiles the kernel's stack walker for the host, if the feature is enabled.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/host_walker.c");
    println!("cargo:rerun-if-changed=../gpuwhy-capture/bpf/python.h");
    #[cfg(feature = "host-walker")]
    cc::Build::new()
        .file("src/host_walker.c")
        .include("../gpuwhy-capture/bpf")
        .flag("-std=gnu11")
        .flag("-Wno-unused-function")
        .warnings(true)
        .compile("gpuwhy_host_walker");
}
