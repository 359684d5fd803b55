// SPDX-License-Identifier: Apache-2.0
//! Lets the binary run with an older glibc than the one it is built with (`older-glibc` says which, and why).
//!
//! With `--wrap`, references to the functions named here, also those in the standard library and in C code, lead to
//! `__wrap_…` instead. Some of these are written here and jump to an older version; the others are in `src/glibc.rs`. A
//! wrapped function that only weak references name, and for which there is no replacement, is absent: the standard library
//! then does without it. `tests/old_systems.rs` fails when a function is missing here.

use older_glibc::OLDER;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

/// Functions that an older glibc has under another name: what C compiled with newer headers calls, and that name.
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

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return Ok(());
    }
    let out = variable("OUT_DIR");
    let mut code = older_glibc::versions("older_");
    for (name, _, _) in OLDER {
        forward(&mut code, name, &format!("older_{name}"))?;
    }
    for (name, other) in RENAMED {
        forward(&mut code, name, other)?;
    }
    std::fs::write(Path::new(&out).join("glibc.s"), code)?;
    let written = OLDER.iter().map(|(name, _, _)| name).chain(RENAMED.iter().map(|(name, _)| name));
    for name in written.chain(REPLACED).chain(ABSENT) {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={name}");
    }
    older_glibc::stubs(Path::new(&out))?;
    println!("cargo:rustc-link-search=native={out}");
    for stub in older_glibc::STUBS {
        println!("cargo:rustc-link-lib=dylib={stub}");
    }
    Ok(())
}

/// Writes a function that is another one under the name that `--wrap` gives.
fn forward(code: &mut String, name: &str, to: &str) -> std::fmt::Result {
    // The processor may allow indirect calls to landing pads only: `hint #34` is `bti c`.
    let jump = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => format!("endbr64\n    jmp {to}@PLT"),
        _ => format!("hint #34\n    b {to}"),
    };
    let name = format!("__wrap_{name}");
    writeln!(code, ".globl {name}\n.hidden {name}\n.type {name}, %function")?;
    writeln!(code, "{name}:\n    {jump}\n.size {name}, . - {name}")
}
