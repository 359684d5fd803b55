// SPDX-License-Identifier: Apache-2.0
//! Reading a process's memory from outside, bounded.

use super::code::{Code, PyCode, STATUS_OK};
use super::offsets::PyProcess;
use std::io;

/// Maximum length of a line table; a larger size is invalid or malicious.
const LONGEST_TABLE: u64 = 4 << 20;

/// `py_mix`.
fn mix(hash: u64, more: u64) -> u64 {
    let hash = (hash ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// A process's memory, as CPython lays it out.
#[derive(Debug)]
pub struct Memory(gpuwhy_strangers::Memory);

impl Memory {
    /// Opens it; needs the right to trace the process.
    pub fn of(pid: u32) -> io::Result<Self> {
        gpuwhy_strangers::Memory::of(pid).map(Self)
    }

    /// Fills `to` from `address` on.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read(address, to)
    }

    /// A word.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        self.0.word(address)
    }

    /// A code object's whole line table, which may be longer than what the kernel sends.
    pub fn line_table(&self, process: &PyProcess, code: u64) -> io::Result<Vec<u8>> {
        let at = &process.at;
        let table = self.word(code.wrapping_add(at.code_table.into()))?;
        let size = self.word(table.wrapping_add(at.bytes_size.into()))?;
        if size > LONGEST_TABLE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its line table is too long"));
        }
        let mut bytes = vec![0; size as usize];
        self.read(table.wrapping_add(at.bytes_data.into()), &mut bytes)?;
        Ok(bytes)
    }

    /// Names and lines of a code object that the kernel had no time to report. `None` if another object, or none, is
    /// there now.
    pub fn code(&self, process: &PyProcess, code: u64, check: u32) -> io::Result<Option<Code>> {
        let at = &process.at;
        let field = |offset: u16| self.word(code.wrapping_add(offset.into()));
        let mut first = [0; 4];
        self.read(code.wrapping_add(at.code_first_line.into()), &mut first)?;
        let first_line = i32::from_ne_bytes(first);
        let (file, name, table) = (field(at.code_file)?, field(at.code_name)?, field(at.code_table)?);
        // The walker's own check, see py_code_check; of code that is run once it is another, see py_content_check.
        let fold = |hash: u64| (hash ^ (hash >> 32)) as u32;
        let base = fold([file, name, table].into_iter().fold(u64::from(first_line.cast_unsigned()), mix));
        if base != check && fold(self.content(process, file, table, base.into())?) != check {
            return Ok(None);
        }
        let mut raw = Box::<PyCode>::default();
        raw.first_line = first_line;
        raw.status = STATUS_OK as u8;
        (raw.file_bytes, raw.file_width) = self.text(process, file, true, &mut raw.file)?;
        (raw.name_bytes, raw.name_width) = self.text(process, field(at.code_qualname)?, false, &mut raw.name)?;
        let table = self.line_table(process, code)?;
        Ok(Some(Code::new(process.at.version(), &raw, Some(&table))))
    }

    fn content(&self, process: &PyProcess, file: u64, table: u64, check: u64) -> io::Result<u64> {
        let at = &process.at;
        let length = self.word(file.wrapping_add(at.text_length.into()))?;
        let hash = self.mix_bytes(mix(check, length), length, file.wrapping_add(at.text_ascii.into()))?;
        let size = self.word(table.wrapping_add(at.bytes_size.into()))?;
        self.mix_bytes(mix(hash, size), size, table.wrapping_add(at.bytes_data.into()))
    }

    fn mix_bytes(&self, hash: u64, size: u64, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 32];
        self.read(address, &mut bytes[..size.min(32) as usize])?;
        let words = bytes.chunks_exact(8).filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
        Ok(words.fold(hash, mix))
    }

    /// Reads a text, cut to the buffer; returns its size and character width, both 0 if there is none.
    fn text(&self, process: &PyProcess, text: u64, keep_end: bool, to: &mut [u8]) -> io::Result<(u32, u8)> {
        const LONGEST: u64 = 1 << 20;
        let at = &process.at;
        let length = self.word(text.wrapping_add(at.text_length.into()))?;
        let state = self.word(text.wrapping_add(u64::from(at.text_length) + 16))? as u32;
        let bits = state >> (at.kind_shift & 31);
        let width = (bits & 7) as u8;
        if !matches!(width, 1 | 2 | 4) || length > LONGEST {
            return Ok((0, 0));
        }
        let compact = text.wrapping_add(at.text_compact.into());
        let mut data = if bits & 16 != 0 { text.wrapping_add(at.text_ascii.into()) } else { compact };
        if bits & 8 == 0 {
            data = self.word(compact)?;
        }
        let size = length * u64::from(width);
        let kept = size.min(to.len() as u64);
        if keep_end {
            data = data.wrapping_add(size - kept);
        }
        self.read(data, &mut to[..kept as usize])?;
        Ok((size as u32, width))
    }

    /// The id of each Python thread (its `pthread_self()`), at most `most`.
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
