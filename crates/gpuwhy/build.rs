// SPDX-License-Identifier: Apache-2.0
//! Lets the binary run with an older glibc than the one it is built with, down to 2.27 (Ubuntu
//! 18.04, RHEL 8).
//!
//! A linker takes the newest version of each function that the build machine has, and the binary then refuses to start
//! where that version is missing. With `--wrap`, references to the functions named here lead to `__wrap_…` instead. Those
//! of [`OLDER`] are written here and jump to the version that every glibc has; the others are in `src/glibc.rs`. A wrapped
//! function that only weak references name, and for which there is no replacement, is absent: the standard library then
//! does without it. `tests/old_systems.rs` fails when a function is missing here.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

/// Functions with a new version that does the same for gpuwhy as the one before, and that version on x86-64.
const OLDER: &[(&str, &str)] = &[
    ("dladdr", "2.2.5"),
    ("dlclose", "2.2.5"),
    ("dlerror", "2.2.5"),
    ("dlopen", "2.2.5"),
    ("dlsym", "2.2.5"),
    ("exp", "2.2.5"),
    ("exp2", "2.2.5"),
    ("log", "2.2.5"),
    ("log2", "2.2.5"),
    ("pow", "2.2.5"),
    ("pthread_attr_getguardsize", "2.2.5"),
    ("pthread_attr_getstack", "2.2.5"),
    ("pthread_attr_setguardsize", "2.2.5"),
    ("pthread_attr_setstack", "2.2.5"),
    ("pthread_attr_setstacksize", "2.2.5"),
    ("pthread_create", "2.2.5"),
    ("pthread_detach", "2.2.5"),
    ("pthread_getattr_np", "2.2.5"),
    ("pthread_getspecific", "2.2.5"),
    ("pthread_join", "2.2.5"),
    ("pthread_key_create", "2.2.5"),
    ("pthread_key_delete", "2.2.5"),
    ("pthread_kill", "2.2.5"),
    ("pthread_mutex_trylock", "2.2.5"),
    ("pthread_mutexattr_destroy", "2.2.5"),
    ("pthread_mutexattr_init", "2.2.5"),
    ("pthread_mutexattr_settype", "2.2.5"),
    ("pthread_once", "2.2.5"),
    ("pthread_rwlock_rdlock", "2.2.5"),
    ("pthread_rwlock_unlock", "2.2.5"),
    ("pthread_rwlock_wrlock", "2.2.5"),
    ("pthread_setname_np", "2.12"),
    ("pthread_setspecific", "2.2.5"),
    ("pthread_sigmask", "2.2.5"),
];

/// Functions that an older glibc has under another name: what C compiled with newer headers (2.38) calls, and that name.
const RENAMED: &[(&str, &str)] = &[
    ("__isoc23_sscanf", "__isoc99_sscanf"),
    ("__isoc23_strtol", "strtol"),
    ("__isoc23_strtoll", "strtoll"),
    ("__isoc23_strtoul", "strtoul"),
    ("__isoc23_strtoull", "strtoull"),
    ("fcntl64", "fcntl"),
];

/// Functions that `src/glibc.rs` has.
const REPLACED: &[&str] = &[
    "__libc_start_main",
    "fstat",
    "fstat64",
    "fstatat",
    "fstatat64",
    "gettid",
    "lstat",
    "lstat64",
    "renameat2",
    "stat",
    "stat64",
];

/// Functions that the standard library can do without.
const ABSENT: &[&str] = &["posix_spawn_file_actions_addchdir_np", "statx"];

/// Where these functions were before glibc 2.34; newer ones have the libraries still, empty.
const FORMER_LIBRARIES: &str =
    "-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,-l:libm.so.6,--pop-state";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let mut code = String::new();
    if variable("CARGO_CFG_TARGET_ENV") == "gnu" {
        let (jump, oldest) = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
            "x86_64" => ("jmp", None),
            "aarch64" => ("b", Some("2.17")),
            other => return Err(format!("gpuwhy does not know the oldest glibc of {other}").into()),
        };
        for (name, version) in OLDER {
            let version = oldest.unwrap_or(version);
            writeln!(code, ".symver older_{name}, {name}@GLIBC_{version}")?;
            forward(&mut code, jump, name, &format!("older_{name}"))?;
        }
        for (name, other) in RENAMED {
            forward(&mut code, jump, name, other)?;
        }
        let wrapped = OLDER.iter().chain(RENAMED).map(|(name, _)| name).chain(REPLACED).chain(ABSENT);
        for name in wrapped {
            println!("cargo:rustc-link-arg-bins=-Wl,--wrap={name}");
        }
        println!("cargo:rustc-link-arg-bins={FORMER_LIBRARIES}");
    }
    std::fs::write(PathBuf::from(variable("OUT_DIR")).join("glibc.s"), code)?;
    Ok(())
}

/// Writes a function that is another one under the name that `--wrap` gives.
fn forward(code: &mut String, jump: &str, name: &str, to: &str) -> std::fmt::Result {
    // The processor may allow indirect calls to landing pads only.
    let pad = if jump == "jmp" { "endbr64" } else { "hint #34" };
    let name = format!("__wrap_{name}");
    writeln!(code, ".globl {name}\n.hidden {name}\n.type {name}, %function")?;
    let to = if jump == "jmp" { format!("{to}@PLT") } else { to.to_owned() };
    writeln!(code, "{name}:\n    {pad}\n    {jump} {to}\n.size {name}, . - {name}")
}
