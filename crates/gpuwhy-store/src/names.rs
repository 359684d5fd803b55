// SPDX-License-Identifier: Apache-2.0
//! Names for the numbers the kernel gives: system calls, filesystems, address families. Pure.

use gpuwhy_model::Wait;

/// Pairs of a system call's number on this architecture and the constant's name.
macro_rules! calls {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name)),)*] };
}

/// The system calls threads are seen waiting in.
const SYSCALLS: &[(libc::c_long, &str)] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_openat SYS_openat2 SYS_close SYS_lseek SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs
    SYS_fallocate SYS_ftruncate SYS_truncate SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range
    SYS_readahead SYS_fadvise64 SYS_flock SYS_fcntl SYS_ioctl SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_getdents64 SYS_unlinkat SYS_renameat2 SYS_mkdirat SYS_linkat SYS_symlinkat SYS_readlinkat SYS_faccessat
    SYS_faccessat2 SYS_fchmodat SYS_fchownat SYS_utimensat SYS_chdir SYS_dup SYS_dup3 SYS_pipe2 SYS_getcwd
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_msync SYS_mlock SYS_mlock2 SYS_mlockall SYS_munlock
    SYS_brk SYS_mincore SYS_mbind SYS_move_pages SYS_migrate_pages SYS_set_mempolicy SYS_memfd_create
    SYS_process_vm_readv SYS_process_vm_writev SYS_userfaultfd SYS_membarrier
    SYS_futex SYS_futex_waitv SYS_get_robust_list SYS_set_robust_list SYS_sched_yield SYS_sched_setaffinity
    SYS_sched_getaffinity SYS_sched_setscheduler SYS_nanosleep SYS_clock_nanosleep SYS_clock_gettime
    SYS_restart_syscall SYS_getrandom
    SYS_ppoll SYS_pselect6 SYS_epoll_pwait SYS_epoll_pwait2 SYS_epoll_ctl SYS_epoll_create1 SYS_eventfd2
    SYS_timerfd_create SYS_timerfd_settime SYS_signalfd4 SYS_inotify_init1 SYS_inotify_add_watch
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_io_setup SYS_io_submit SYS_io_getevents
    SYS_io_cancel SYS_io_destroy
    SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_sendto
    SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_setsockopt SYS_getsockopt
    SYS_wait4 SYS_waitid SYS_clone SYS_clone3 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_kill SYS_tgkill
    SYS_pidfd_open SYS_pidfd_send_signal SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_sigaction SYS_rt_sigprocmask
    SYS_rt_sigreturn SYS_ptrace SYS_prctl SYS_seccomp SYS_unshare SYS_setns SYS_mount SYS_umount2
    SYS_semop SYS_semtimedop SYS_semget SYS_semctl SYS_msgsnd SYS_msgrcv SYS_shmat SYS_shmdt SYS_shmctl SYS_shmget
    SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_open SYS_bpf SYS_perf_event_open SYS_finit_module SYS_keyctl
};

/// System calls that newer architectures lack or have no constant for.
#[cfg(target_arch = "x86_64")]
const OLD_SYSCALLS: &[(libc::c_long, &str)] = calls! {
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_rename SYS_renameat SYS_mkdir SYS_rmdir SYS_link SYS_unlink
    SYS_symlink SYS_readlink SYS_chmod SYS_chown SYS_getdents SYS_utimes SYS_poll SYS_select SYS_epoll_wait
    SYS_epoll_create SYS_eventfd SYS_signalfd SYS_pause SYS_fork SYS_vfork SYS_pipe SYS_dup2 SYS_alarm
    SYS_sync_file_range
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_SYSCALLS: &[(libc::c_long, &str)] = &[];

/// The magic numbers of filesystems (statfs(2)).
const FILESYSTEMS: &[(u32, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x6969, "nfs"),
    (0x6573_5546, "fuse"),
    (0x794C_7630, "overlay"),
    (0x0102_1997, "9p"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x00C3_6400, "ceph"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x7371_7368, "squashfs"),
    (0x9FA0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x2FC1_2FC1, "zfs"),
    (0x9584_58F6, "hugetlbfs"),
    (0xF2F5_2010, "f2fs"),
    (0xE0F5_E1E2, "erofs"),
    (0x0027_E0EB, "cgroup"),
    (0x6367_7270, "cgroup2"),
];

/// Address families of sockets.
const FAMILIES: &[(u32, &str)] = &[
    (libc::AF_UNIX as u32, "unix"),
    (libc::AF_INET as u32, "inet"),
    (libc::AF_INET6 as u32, "inet6"),
    (libc::AF_NETLINK as u32, "netlink"),
    (libc::AF_PACKET as u32, "packet"),
    (libc::AF_ALG as u32, "alg"),
    (libc::AF_VSOCK as u32, "vsock"),
    (libc::AF_RDS as u32, "rds"),
    (libc::AF_BLUETOOTH as u32, "bluetooth"),
    (44, "xdp"),
];

/// A system call by its number on this architecture.
pub(crate) fn syscall(number: u16) -> String {
    let known = SYSCALLS.iter().chain(OLD_SYSCALLS).find(|(n, _)| *n == libc::c_long::from(number));
    known.map_or_else(|| format!("syscall {number}"), |(_, name)| name.trim_start_matches("SYS_").to_owned())
}

/// The number of a name from [`syscall`] on this architecture.
pub(crate) fn syscall_number(name: &str) -> Option<u16> {
    let number = match name.strip_prefix("syscall ") {
        Some(number) => return number.parse().ok(),
        None => SYSCALLS.iter().chain(OLD_SYSCALLS).find(|(_, known)| known.strip_prefix("SYS_") == Some(name))?.0,
    };
    u16::try_from(number).ok()
}

/// The number of a text from [`file`]; 0 if unknown.
pub(crate) fn file_number(wait: Wait, text: &str) -> u32 {
    let named = |names: &[(u32, &str)]| names.iter().find(|(_, name)| *name == text).map(|(number, _)| *number);
    let number = match wait {
        Wait::File => named(FILESYSTEMS).or_else(|| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()),
        Wait::BlockDevice | Wait::Gpu | Wait::CharDevice => text.split_once(':').and_then(|(major, minor)| {
            Some(major.parse::<u32>().ok()?.checked_mul(1 << 20)? | (minor.parse::<u32>().ok()? & 0xf_ffff))
        }),
        Wait::Socket => named(FAMILIES).or_else(|| text.strip_prefix("family ")?.parse().ok()),
        _ => None,
    };
    number.unwrap_or(0)
}

/// [`gpuwhy_model::OffCpu::file`] as text; `None` if it is 0 or unknown.
pub(crate) fn file(wait: Wait, number: u32) -> Option<String> {
    let named = |names: &[(u32, &str)]| names.iter().find(|(n, _)| *n == number).map(|(_, name)| (*name).to_owned());
    if number == 0 {
        return None;
    }
    match wait {
        Wait::File => Some(named(FILESYSTEMS).unwrap_or_else(|| format!("{number:#x}"))),
        Wait::BlockDevice | Wait::Gpu | Wait::CharDevice => Some(format!("{}:{}", number >> 20, number & 0xf_ffff)),
        Wait::Socket => Some(named(FAMILIES).unwrap_or_else(|| format!("family {number}"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn system_calls_have_this_machines_names() {
        assert_eq!(syscall(libc::SYS_futex as u16), "futex");
        assert_eq!(syscall(libc::SYS_ppoll as u16), "ppoll");
        assert_eq!(syscall(9_999), "syscall 9999");
        let numbers: HashSet<_> = SYSCALLS.iter().chain(OLD_SYSCALLS).map(|(n, _)| n).collect();
        assert_eq!(numbers.len(), SYSCALLS.len() + OLD_SYSCALLS.len());
        for number in 0..1_000 {
            assert_eq!(syscall_number(&syscall(number)), Some(number));
        }
        assert_eq!(syscall_number("no such call"), None);
    }

    #[test]
    fn what_a_file_is_leads_back_to_its_number() {
        let kinds = [
            (Wait::File, 0xEF53),
            (Wait::File, 0x1234),
            (Wait::Gpu, 195 << 20 | 255),
            (Wait::BlockDevice, 4_095 << 20 | 0xf_ffff),
            (Wait::Socket, 10),
            (Wait::Socket, 99),
            (Wait::Futex, 0),
        ];
        for (wait, number) in kinds {
            assert_eq!(file(wait, number).map_or(0, |text| file_number(wait, &text)), number);
        }
        assert_eq!(file_number(Wait::Gpu, "4096:99999999999"), 0);
    }
}
