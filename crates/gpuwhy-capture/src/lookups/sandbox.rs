// SPDX-License-Identifier: Apache-2.0
//! The sandbox of a reader: the rights to read processes and their files, the system calls that reading needs, and
//! little memory. An attacker who takes it over through a parsed file has no more.

use std::io;

/// linux/capability.h: what reading takes. The last opens files through `/proc/PID/map_files`.
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_CHECKPOINT_RESTORE: u32 = 40;
const KEPT: u64 = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_SYS_PTRACE | 1 << CAP_CHECKPOINT_RESTORE;
/// Capabilities the interface has room for.
const MOST: u32 = 64;
/// The user `nobody`, who owns no files.
const NOBODY: libc::uid_t = 65_534;
/// All of the address space, most of which is the program itself.
const MOST_MEMORY: u64 = 2 << 30;
const MOST_FILES: u64 = 4096;

/// Drops rights that neither reading nor starting readers needs.
pub(super) fn give_up_rights() -> io::Result<()> {
    for capability in (0..MOST).filter(|capability| KEPT & 1 << capability == 0) {
        // SAFETY: plain system call with numbers. Without the right to do it there is less to give up.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
    }
    // Access files as `nobody`: root could write its own files without any capability. Signals use the real user, so
    // that processes of `nobody` cannot kill this one. SAFETY: plain system calls with numbers.
    unsafe {
        libc::setfsgid(NOBODY);
        libc::setfsuid(NOBODY);
    }
    keep_capabilities()?;
    // SAFETY: plain system calls with numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let limits = [(libc::RLIMIT_AS, MOST_MEMORY), (libc::RLIMIT_FSIZE, 0), (libc::RLIMIT_CORE, 0)];
    for (resource, most) in limits {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the struct is ours and outlives the call.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
    }
    let limit = libc::rlimit { rlim_cur: MOST_FILES, rlim_max: MOST_FILES };
    // SAFETY: as above; a system that allows fewer files keeps its limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Ok(())
}

/// `struct __user_cap_header_struct` of version 3, and the two `__user_cap_data_struct` it goes with.
fn keep_capabilities() -> io::Result<()> {
    let header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    // SAFETY: version 3 means that the kernel fills six words, which are ours.
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) } as libc::c_int)?;
    let permitted = (u64::from(data[1]) | u64::from(data[4]) << 32) & KEPT;
    let (low, high) = (permitted as u32, (permitted >> 32) as u32);
    let data = [low, low, 0, high, high, 0];
    // SAFETY: the kernel reads six words.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) } as libc::c_int)
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// System calls that reading takes, and answering. Everything else fails with EPERM.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_process_vm_readv,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Permanently refuses system calls that change anything. (The flags of some forms of open cannot be checked: an empty
/// file can be created where every user may, but not written.)
pub(super) fn allow_reading_only() -> io::Result<()> {
    // struct seccomp_data: the number at byte 0, the architecture at byte 4.
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |value| statement(libc::BPF_RET | libc::BPF_K, value);
    let unless_equal_skip_to = |value, skip| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: skip,
        jf: 0,
        k: value,
    };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut filter = vec![load(4), unless_equal_skip_to(AUDIT_ARCH, 1), answer(refuse), load(0)];
    for (at, call) in ALLOWED.iter().enumerate() {
        // Over what is left of the list and the refusal.
        filter.push(unless_equal_skip_to(*call as u32, (ALLOWED.len() - at) as u8));
    }
    filter.extend([answer(refuse), answer(libc::SECCOMP_RET_ALLOW)]);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter outlive the call, and its length is said.
    check(unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as libc::c_ulong, &raw const program, 0, 0)
    })
}

fn statement(code: u32, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process in the sandbox can do, one bit per violation.
    fn wrong() -> libc::c_int {
        // SAFETY: plain system calls with numbers and strings that outlive them.
        unsafe {
            let may_read = libc::open(c"/etc/shadow".as_ptr(), libc::O_RDONLY) >= 0;
            let may_write = libc::open(c"/etc/shadow".as_ptr(), libc::O_WRONLY) >= 0;
            let may_connect = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0;
            let may_signal = libc::kill(1, 0) == 0;
            let may_fork = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) >= 0;
            libc::setfsuid(0);
            let may_rise = libc::open(c"/etc/shadow".as_ptr(), libc::O_WRONLY) >= 0
                || libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0;
            let outcomes = [!may_read, may_write, may_connect, may_signal, may_fork, may_rise];
            outcomes.iter().rev().fold(0, |bits, bad| bits << 1 | libc::c_int::from(*bad))
        }
    }

    #[test]
    fn who_reads_can_do_nothing_else() {
        // SAFETY: reads a number.
        let root = unsafe { libc::geteuid() } == 0;
        assert!(root || std::env::var_os("CI").is_none(), "this test needs root, and CI must not skip it");
        if !root {
            return;
        }
        // SAFETY: the child makes system calls and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ready = give_up_rights().is_ok() && allow_reading_only().is_ok();
            let outcome = if ready { wrong() } else { 0x40 };
            // SAFETY: ends the child.
            unsafe { libc::_exit(outcome) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "bits of `wrong`, or 0x40 if there is no sandbox");
    }
}
