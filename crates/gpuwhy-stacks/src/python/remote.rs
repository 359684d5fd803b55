// SPDX-License-Identifier: Apache-2.0
//! Reading a process's memory from outside, bounded.

use super::offsets::PyProcess;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// No line table is longer; a size that says so is the program's mischief.
const LONGEST_TABLE: u64 = 4 << 20;

/// A process's memory; stays that process's even if its number is used again.
#[derive(Debug)]
pub struct Memory {
    file: File,
}

impl Memory {
    /// Opens it; needs the right to trace the process.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/mem"))? })
    }

    /// Fills `to` from `address` on.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, address)
    }

    /// A word.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// A code object's whole line table, which may be longer than what the kernel sends.
    pub fn line_table(&self, process: &PyProcess, code: u64) -> io::Result<Vec<u8>> {
        let at = &process.at;
        let table = self.word(code.wrapping_add(at.code_table.into()))?;
        let size = self.word(table.wrapping_add(at.bytes_size.into()))?;
        if size > LONGEST_TABLE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its line table cannot be that long"));
        }
        let mut bytes = vec![0; size as usize];
        self.read(table.wrapping_add(at.bytes_data.into()), &mut bytes)?;
        Ok(bytes)
    }

    /// What identifies each Python thread (its `pthread_self()`), at most `most` of them.
    pub fn thread_ids(&self, process: &PyProcess, most: usize) -> io::Result<Vec<u64>> {
        let at = &process.at;
        let mut found = Vec::new();
        let mut interpreter = self.word(process.runtime + u64::from(at.runtime_interpreters))?;
        for _ in 0..most {
            if interpreter == 0 {
                break;
            }
            let mut tstate = self.word(interpreter.wrapping_add(at.interpreter_threads.into()))?;
            while tstate != 0 && found.len() < most {
                found.push(self.word(tstate.wrapping_add(at.tstate_thread_id.into()))?);
                tstate = self.word(tstate.wrapping_add(at.tstate_next.into()))?;
            }
            interpreter = self.word(interpreter.wrapping_add(at.interpreter_next.into()))?;
        }
        Ok(found)
    }
}
