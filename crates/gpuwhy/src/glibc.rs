// SPDX-License-Identifier: Apache-2.0
//! Replacements for what a glibc older than the build machine's lacks: program startup, and functions that are a single
//! system call. `build.rs` handles the others and explains how references are redirected here.

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_char, c_int, c_uint, c_void, stat};
use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(include_str!(concat!(env!("OUT_DIR"), "/glibc.s")), options(att_syntax, raw));
#[cfg(target_arch = "aarch64")]
global_asm!(include_str!(concat!(env!("OUT_DIR"), "/glibc.s")), options(raw));

// From 2.34 on, glibc calls the program's constructors and the C compiler's startup code leaves that to it. An older
// glibc calls the function passed as the fourth argument.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".symver older_start, __libc_start_main@GLIBC_2.2.5",
    ".globl __wrap___libc_start_main",
    ".hidden __wrap___libc_start_main",
    "__wrap___libc_start_main:",
    "endbr64",
    "test rcx, rcx",
    "jnz 2f",
    "lea rcx, [rip + {init}]",
    "2:",
    "jmp older_start@PLT",
    init = sym run_constructors,
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".symver older_start, __libc_start_main@GLIBC_2.17",
    ".globl __wrap___libc_start_main",
    ".hidden __wrap___libc_start_main",
    "__wrap___libc_start_main:",
    "hint #34",
    "cbnz x3, 2f",
    "adrp x3, {init}",
    "add x3, x3, :lo12:{init}",
    "2:",
    "b older_start",
    init = sym run_constructors,
);

type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

unsafe extern "C" {
    /// Defined by the linker: start and end of the list of constructors.
    static __init_array_start: [Constructor; 0];
    static __init_array_end: [Constructor; 0];
}

extern "C" fn run_constructors(argc: c_int, argv: *const *const c_char, environment: *const *const c_char) {
    let mut next = (&raw const __init_array_start).cast::<Constructor>();
    let end = (&raw const __init_array_end).cast::<Constructor>();
    while next < end {
        // SAFETY: between the two the linker put the addresses of functions of this type, and nothing else.
        unsafe { (*next)(argc, argv, environment) };
        next = next.wrapping_add(1);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_gettid() -> libc::pid_t {
    // SAFETY: a system call without arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// As `renameat2(2)` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's arguments are what the system call takes.
    unsafe { libc::syscall(libc::SYS_renameat2, from_folder, from, to_folder, to, flags) as c_int }
}

unsafe fn stat_at(folder: c_int, path: *const c_char, found: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments are what the system call takes; its structure is glibc's on 64-bit systems.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, found, flags) as c_int }
}

/// Functions of the same form, each under its small-file and large-file names, which are equivalent on 64-bit.
macro_rules! stat_functions {
    ($($name:ident, $name64:ident ($($argument:ident: $kind:ty),*) => $does:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's arguments, handed on.
            unsafe { $does }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name64($($argument: $kind),*) -> c_int {
            // SAFETY: as above.
            unsafe { $does }
        }
    )*};
}

stat_functions! {
    __wrap_stat, __wrap_stat64 (path: *const c_char, found: *mut stat) => stat_at(AT_FDCWD, path, found.cast(), 0);
    __wrap_lstat, __wrap_lstat64 (path: *const c_char, found: *mut stat)
        => stat_at(AT_FDCWD, path, found.cast(), AT_SYMLINK_NOFOLLOW);
    __wrap_fstat, __wrap_fstat64 (fd: c_int, found: *mut stat) => libc::syscall(libc::SYS_fstat, fd, found) as c_int;
    __wrap_fstatat, __wrap_fstatat64 (folder: c_int, path: *const c_char, found: *mut stat, flags: c_int)
        => stat_at(folder, path, found.cast(), flags);
}
