// SPDX-License-Identifier: Apache-2.0
//! What the arguments of each system call say about a wait in it: the table `syscall_kinds` of bpf/waits.h.

/// Kinds, as `enum syscall_kind` of bpf/waits.h numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    File = 1,
    Futex = 2,
    Sleep = 3,
    ClockSleep = 4,
    #[cfg(target_arch = "x86_64")]
    Poll = 5,
    Ppoll = 6,
    Select = 7,
    Epoll = 8,
    Child = 9,
    Signal = 10,
    Yield = 11,
    IoUring = 12,
    Aio = 13,
}

/// Number of entries in the kernel's table.
pub(crate) const TABLE: usize = 512;

/// Calls every architecture has.
const COMMON: &[(libc::c_long, Kind)] = &[
    (libc::SYS_read, Kind::File),
    (libc::SYS_write, Kind::File),
    (libc::SYS_readv, Kind::File),
    (libc::SYS_writev, Kind::File),
    (libc::SYS_pread64, Kind::File),
    (libc::SYS_pwrite64, Kind::File),
    (libc::SYS_preadv, Kind::File),
    (libc::SYS_pwritev, Kind::File),
    (libc::SYS_preadv2, Kind::File),
    (libc::SYS_pwritev2, Kind::File),
    (libc::SYS_close, Kind::File),
    (libc::SYS_ioctl, Kind::File),
    (libc::SYS_fsync, Kind::File),
    (libc::SYS_fdatasync, Kind::File),
    (libc::SYS_sync_file_range, Kind::File),
    (libc::SYS_syncfs, Kind::File),
    (libc::SYS_ftruncate, Kind::File),
    (libc::SYS_fallocate, Kind::File),
    (libc::SYS_fadvise64, Kind::File),
    (libc::SYS_readahead, Kind::File),
    (libc::SYS_getdents64, Kind::File),
    (libc::SYS_fstat, Kind::File),
    (libc::SYS_lseek, Kind::File),
    (libc::SYS_fcntl, Kind::File),
    (libc::SYS_flock, Kind::File),
    (libc::SYS_accept, Kind::File),
    (libc::SYS_accept4, Kind::File),
    (libc::SYS_connect, Kind::File),
    (libc::SYS_sendto, Kind::File),
    (libc::SYS_recvfrom, Kind::File),
    (libc::SYS_sendmsg, Kind::File),
    (libc::SYS_recvmsg, Kind::File),
    (libc::SYS_sendmmsg, Kind::File),
    (libc::SYS_recvmmsg, Kind::File),
    (libc::SYS_shutdown, Kind::File),
    (libc::SYS_sendfile, Kind::File),
    (libc::SYS_splice, Kind::File),
    (libc::SYS_tee, Kind::File),
    (libc::SYS_vmsplice, Kind::File),
    (libc::SYS_copy_file_range, Kind::File),
    (libc::SYS_futex, Kind::Futex),
    (libc::SYS_nanosleep, Kind::Sleep),
    (libc::SYS_clock_nanosleep, Kind::ClockSleep),
    (libc::SYS_ppoll, Kind::Ppoll),
    (libc::SYS_pselect6, Kind::Select),
    (libc::SYS_epoll_pwait, Kind::Epoll),
    (libc::SYS_wait4, Kind::Child),
    (libc::SYS_waitid, Kind::Child),
    (libc::SYS_rt_sigsuspend, Kind::Signal),
    (libc::SYS_rt_sigtimedwait, Kind::Signal),
    (libc::SYS_sched_yield, Kind::Yield),
    (libc::SYS_io_uring_enter, Kind::IoUring),
    (libc::SYS_io_getevents, Kind::Aio),
    (libc::SYS_io_submit, Kind::Aio),
];

/// Old calls that newer architectures left out.
#[cfg(target_arch = "x86_64")]
const ONLY_HERE: &[(libc::c_long, Kind)] = &[
    (libc::SYS_poll, Kind::Poll),
    (libc::SYS_select, Kind::Select),
    (libc::SYS_epoll_wait, Kind::Epoll),
    (libc::SYS_pause, Kind::Signal),
    // The parent waits until its child has become another program.
    (libc::SYS_vfork, Kind::Child),
];
#[cfg(not(target_arch = "x86_64"))]
const ONLY_HERE: &[(libc::c_long, Kind)] = &[];

/// The table, by system call number.
pub(crate) fn kinds() -> [u8; TABLE] {
    let mut table = [0; TABLE];
    for (number, kind) in COMMON.iter().chain(ONLY_HERE) {
        if let Some(entry) = usize::try_from(*number).ok().and_then(|number| table.get_mut(number)) {
            *entry = *kind as u8;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_place() {
        let table = kinds();
        assert_eq!(table.iter().filter(|kind| **kind != 0).count(), COMMON.len() + ONLY_HERE.len());
        assert_eq!(table[libc::SYS_futex as usize], Kind::Futex as u8);
    }

    /// The kernel's half is C: its numbers are read from there.
    #[test]
    fn numbers_agree_with_the_kernels_half() {
        let header = include_str!("../bpf/waits.h");
        for (name, kind) in [
            ("CALL_FILE", Kind::File),
            ("CALL_FUTEX", Kind::Futex),
            ("CALL_SLEEP", Kind::Sleep),
            ("CALL_CLOCK_SLEEP", Kind::ClockSleep),
            ("CALL_PPOLL", Kind::Ppoll),
            ("CALL_SELECT", Kind::Select),
            ("CALL_EPOLL", Kind::Epoll),
            ("CALL_CHILD", Kind::Child),
            ("CALL_SIGNAL", Kind::Signal),
            ("CALL_YIELD", Kind::Yield),
            ("CALL_IO_URING", Kind::IoUring),
            ("CALL_AIO", Kind::Aio),
        ] {
            assert!(header.contains(&format!("\t{name} = {},", kind as u8)), "{name}");
        }
        assert!(header.contains(&format!("#define SYSCALLS {TABLE}")));
    }
}
