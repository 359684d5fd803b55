// SPDX-License-Identifier: Apache-2.0
//! For build scripts: makes binaries run with an older glibc than the build machine's, down to 2.27 (Ubuntu 18.04; RHEL
//! 8 has 2.28).
//!
//! A linker uses the newest version of each function on the build machine, and the dynamic linker refuses to start a
//! program that needs a version it lacks. Assembler directives ([`versions`]) select a version that every glibc has.
//! Before 2.34, threads and dlopen were in separate libraries, so a binary must also link with these and name them as
//! the source of the versions. Newer machines only have empty ones: [`stubs`] makes libraries to link with.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where glibc had a function before 2.34.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// libdl.
    Loader,
    /// libm, as before.
    Math,
    /// libpthread.
    Threads,
}

use Home::{Loader, Math, Threads};

/// Functions that got a new version after 2.27 and whose older version works the same for us: their library, and the
/// older version on x86-64.
pub const OLDER: &[(&str, Home, &str)] = &[
    ("dladdr", Loader, "2.2.5"),
    ("dlclose", Loader, "2.2.5"),
    ("dlerror", Loader, "2.2.5"),
    ("dlopen", Loader, "2.2.5"),
    ("dlsym", Loader, "2.2.5"),
    ("exp", Math, "2.2.5"),
    ("exp2", Math, "2.2.5"),
    ("log", Math, "2.2.5"),
    ("log2", Math, "2.2.5"),
    ("pow", Math, "2.2.5"),
    ("pthread_attr_getguardsize", Threads, "2.2.5"),
    ("pthread_attr_getstack", Threads, "2.2.5"),
    ("pthread_attr_setguardsize", Threads, "2.2.5"),
    ("pthread_attr_setstack", Threads, "2.2.5"),
    ("pthread_attr_setstacksize", Threads, "2.2.5"),
    ("pthread_create", Threads, "2.2.5"),
    ("pthread_detach", Threads, "2.2.5"),
    ("pthread_getattr_np", Threads, "2.2.5"),
    ("pthread_getspecific", Threads, "2.2.5"),
    ("pthread_join", Threads, "2.2.5"),
    ("pthread_key_create", Threads, "2.2.5"),
    ("pthread_key_delete", Threads, "2.2.5"),
    ("pthread_kill", Threads, "2.2.5"),
    ("pthread_mutex_consistent", Threads, "2.12"),
    ("pthread_mutex_trylock", Threads, "2.2.5"),
    ("pthread_mutexattr_destroy", Threads, "2.2.5"),
    ("pthread_mutexattr_init", Threads, "2.2.5"),
    ("pthread_mutexattr_setpshared", Threads, "2.2.5"),
    ("pthread_mutexattr_setrobust", Threads, "2.12"),
    ("pthread_mutexattr_settype", Threads, "2.2.5"),
    ("pthread_once", Threads, "2.2.5"),
    ("pthread_rwlock_rdlock", Threads, "2.2.5"),
    ("pthread_rwlock_unlock", Threads, "2.2.5"),
    ("pthread_rwlock_wrlock", Threads, "2.2.5"),
    ("pthread_setname_np", Threads, "2.12"),
    ("pthread_setspecific", Threads, "2.2.5"),
    ("pthread_sigmask", Threads, "2.2.5"),
];

/// The architecture built for, as Cargo names it.
fn is_x86() -> bool {
    std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64")
}

/// On other architectures, every version starts with 2.17.
fn version_here(on_x86: &'static str) -> &'static str {
    if is_x86() { on_x86 } else { "2.17" }
}

/// Assembler directives that bind references to `prefix` + function to the version that every glibc has.
pub fn versions(prefix: &str) -> String {
    let mut text = String::new();
    for (name, _, version) in OLDER {
        // Writing to a string does not fail.
        let _ = writeln!(text, ".symver {prefix}{name}, {name}@GLIBC_{}", version_here(version));
    }
    text
}

/// Names of the stubs for `-l`. They cannot be found by mistake at run time, because they do not have a library's file
/// name.
pub const STUBS: [&str; 2] = ["former_pthread", "former_dl"];

/// Makes the libraries of [`STUBS`], to link with before the C library, and returns their paths.
pub fn stubs(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let homes = [(Threads, "libpthread.so.0"), (Loader, "libdl.so.2")];
    STUBS.iter().zip(homes).map(|(stub, (home, library))| make_stub(folder, stub, home, library)).collect()
}

fn make_stub(folder: &Path, stub: &str, home: Home, library: &str) -> io::Result<PathBuf> {
    let (mut code, mut versions) = (String::from(".text\n"), Vec::new());
    for (name, _, version) in OLDER.iter().filter(|(_, of, _)| *of == home) {
        let version = version_here(version);
        let _ = writeln!(code, ".globl stub_{name}\n.type stub_{name}, %function\nstub_{name}: .byte 0");
        // Hidden, as newer machines have it: no reference without a version may find it.
        let _ = writeln!(code, ".symver stub_{name}, {name}@GLIBC_{version}, remove");
        versions.push(version);
    }
    versions.sort_unstable();
    versions.dedup();
    let script: String = versions.iter().map(|version| format!("GLIBC_{version} {{}};\n")).collect();
    let file = |end: &str| folder.join(format!("lib{stub}.{end}"));
    std::fs::write(file("s"), code)?;
    std::fs::write(file("map"), script)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let mut command = Command::new(compiler);
    command.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{library}")]);
    command.arg(format!("-Wl,--version-script={}", file("map").display()));
    let status = command.arg("-o").arg(file("so")).arg(file("s")).status()?;
    if status.success() { Ok(file("so")) } else { Err(io::Error::other(format!("{command:?} failed: {status}"))) }
}
