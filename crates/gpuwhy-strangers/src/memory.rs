// SPDX-License-Identifier: Apache-2.0
//! A process's memory, read from outside.

use std::io;

/// A process's memory. Addresses and sizes found there are untrusted: the caller must limit them.
///
/// Read with `process_vm_readv`, not `/proc/PID/mem`: a page may be in a file system that never delivers it, and only
/// `process_vm_readv` can always be ended by SIGKILL.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pid: u32,
}

impl Memory {
    /// The memory of a process; needs the right to trace it.
    pub fn of(pid: u32) -> io::Result<Self> {
        let memory = Self { pid };
        // An empty read looks at neither the process nor our rights, one of an address that is never mapped does both.
        match memory.read(0, &mut [0]) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EPERM)) => Err(error),
            _ => Ok(memory),
        }
    }

    /// Fills `to` from `address` on.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < to.len() {
            let rest = &mut to[filled..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let from = address.wrapping_add(filled as u64) as usize;
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(from), iov_len: rest.len() };
            let pid = libc::pid_t::try_from(self.pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
            // SAFETY: the local buffer is ours and as long as is said; the other address is only used there.
            match unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) } {
                count @ 1.. => filled += count.cast_unsigned(),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// A word.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_and_what_is_not_there_refused() {
        let there = [7u64, 8];
        let memory = Memory::of(std::process::id()).unwrap();
        assert_eq!(memory.word((&raw const there[1]).addr() as u64).unwrap(), 8);
        for address in [0, 8, u64::MAX - 3, 1 << 63] {
            assert!(memory.word(address).is_err(), "{address:#x}");
        }
        assert!(Memory::of(u32::MAX).is_err() && Memory::of(4_194_305).is_err());
    }
}
