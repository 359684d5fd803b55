// SPDX-License-Identifier: Apache-2.0
//! Where each version of CPython keeps what the walker reads, in 64-bit builds without debugging aids.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Major and minor version: within one, layouts do not change once it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// 3, so far.
    pub major: u8,
    /// 12 in 3.12.
    pub minor: u8,
}

impl Version {
    /// Python 3.`minor`.
    pub const fn three(minor: u8) -> Self {
        Self { major: 3, minor }
    }

    /// From `PY_VERSION_HEX`: 0x030c01f0 is 3.12.1.
    pub fn from_hex(hex: u64) -> Option<Self> {
        let version = Self { major: u8::try_from(hex >> 24).ok()?, minor: (hex >> 16) as u8 };
        (version.major >= 2).then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Where a thread state has its innermost frame: `enum py_chain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Chain {
    /// In a field.
    Direct = 0,
    /// Behind a pointer to its C frame.
    CFrame = 1,
}

/// How a frame stores its position: `enum py_lasti`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Lasti {
    /// Bytes from the first instruction.
    Bytes = 0,
    /// Instructions of two bytes.
    Units = 1,
    /// The address of an instruction.
    Pointer = 2,
}

/// `struct py_offsets` of `bpf/python.h`, which documents each field. Offsets in bytes.
#[allow(missing_docs, reason = "documented where the walker reads them, in bpf/python.h")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct PyOffsets {
    /// `major << 8 | minor`
    pub version: u16,
    pub chain: Chain,
    pub lasti: Lasti,
    pub shim_owner: u8,
    pub kind_shift: u8,
    pub free_threaded: u8,
    pub unused: u8,
    pub runtime_interpreters: u32,
    pub interpreter_next: u32,
    pub interpreter_threads: u32,
    pub tstate_prev: u16,
    pub tstate_next: u16,
    pub tstate_interpreter: u16,
    pub tstate_frame: u16,
    pub tstate_thread_id: u16,
    pub cframe_frame: u16,
    pub frame_code: u16,
    pub frame_previous: u16,
    pub frame_lasti: u16,
    pub frame_owner: u16,
    pub frame_tlbc: u16,
    pub frame_bytes: u16,
    pub code_from: u16,
    pub code_bytes: u16,
    pub code_first_line: u16,
    pub code_file: u16,
    pub code_name: u16,
    pub code_qualname: u16,
    pub code_table: u16,
    pub code_first_traceable: u16,
    pub code_bytecode: u16,
    pub code_tlbc: u16,
    pub bytes_size: u16,
    pub bytes_data: u16,
    pub text_length: u16,
    pub text_ascii: u16,
    pub text_compact: u16,
    pub frame_locals: u16,
}

/// `struct py_process` of `bpf/python.h`: what the kernel must know of a process to walk it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct PyProcess {
    /// Address of `_PyRuntime` in the process.
    pub runtime: u64,
    /// Where its version of Python has what.
    pub at: PyOffsets,
}

impl PyProcess {
    /// As the map in the kernel holds it.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a repr(C) struct of integers without padding (a test compares it with C's), as bytes.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

impl PyOffsets {
    /// Which Python these are for.
    pub fn version(&self) -> Version {
        Version { major: (self.version >> 8) as u8, minor: self.version as u8 }
    }

    /// Whether the walker, which masks offsets to stay inside what it reads, would read what is meant.
    pub(super) fn fits(&self) -> bool {
        let inside = |at: u16, size: u16, limit: u16| at.checked_add(size).is_some_and(|end| end <= limit);
        let word = |at: u16, limit: u16| at.is_multiple_of(8) && inside(at, 8, limit);
        let in_tstate =
            [self.tstate_prev, self.tstate_next, self.tstate_interpreter, self.tstate_frame, self.tstate_thread_id];
        let in_frame = [self.frame_code, self.frame_previous, self.frame_lasti, self.frame_locals];
        let in_code = [self.code_file, self.code_name, self.code_qualname, self.code_table];
        let from_code = |at: u16| at.checked_sub(self.code_from);
        let half_in_code =
            |at: u16| from_code(at).is_some_and(|at| at.is_multiple_of(4) && inside(at, 4, self.code_bytes));
        self.frame_bytes <= 128
            && self.code_bytes < 256
            && in_tstate.iter().all(|at| word(*at, 192))
            && in_frame.iter().all(|at| word(*at, self.frame_bytes))
            && inside(self.frame_owner, 1, self.frame_bytes)
            && self.frame_tlbc.is_multiple_of(4)
            && inside(self.frame_tlbc, 4, self.frame_bytes)
            && in_code.iter().all(|at| from_code(*at).is_some_and(|at| word(at, self.code_bytes)))
            && half_in_code(self.code_first_line)
            && (self.code_first_traceable == 0 || half_in_code(self.code_first_traceable))
    }

    /// Works out which parts of frames and code objects are read at once.
    pub(super) fn with_parts(mut self) -> Self {
        let up = |at: u16| (at.saturating_add(7)) & !7;
        self.frame_bytes = match self.lasti {
            Lasti::Pointer => up(self.frame_owner.saturating_add(1)).max(self.frame_lasti.saturating_add(8)),
            _ => self.frame_lasti.saturating_add(8),
        };
        self.code_from = self.code_first_line & !7;
        let end = self.code_table.saturating_add(8).max(self.code_first_traceable.saturating_add(4));
        self.code_bytes = up(end.saturating_sub(self.code_from));
        self
    }
}

/// The layout of 3.8; later versions are defined by their changes.
const V3_8: PyOffsets = PyOffsets {
    version: 0x308,
    chain: Chain::Direct,
    lasti: Lasti::Bytes,
    shim_owner: 0,
    kind_shift: 2,
    free_threaded: 0,
    unused: 0,
    runtime_interpreters: 32,
    interpreter_next: 0,
    interpreter_threads: 8,
    tstate_prev: 0,
    tstate_next: 8,
    tstate_interpreter: 16,
    tstate_frame: 24,
    tstate_thread_id: 176,
    cframe_frame: 0,
    frame_code: 32,
    frame_previous: 24,
    frame_lasti: 104,
    frame_owner: 0,
    frame_tlbc: 0,
    frame_bytes: 0,
    code_from: 0,
    code_bytes: 0,
    code_first_line: 40,
    code_file: 104,
    code_name: 112,
    code_qualname: 112,
    code_table: 120,
    code_first_traceable: 0,
    code_bytecode: 0,
    code_tlbc: 0,
    bytes_size: 16,
    bytes_data: 32,
    text_length: 16,
    text_ascii: 48,
    text_compact: 72,
    frame_locals: 56,
};

const V3_9: PyOffsets = PyOffsets { version: 0x309, ..V3_8 };

/// `f_lasti` counts instructions.
const V3_10: PyOffsets = PyOffsets { version: 0x30a, lasti: Lasti::Units, frame_lasti: 96, ..V3_9 };

/// Frames are no longer objects and have their own stack.
const V3_11: PyOffsets = PyOffsets {
    version: 0x30b,
    chain: Chain::CFrame,
    lasti: Lasti::Pointer,
    runtime_interpreters: 40,
    interpreter_threads: 16,
    tstate_frame: 56,
    tstate_thread_id: 152,
    cframe_frame: 8,
    frame_previous: 48,
    frame_lasti: 56,
    frame_locals: 24,
    frame_owner: 69,
    code_first_line: 72,
    code_file: 112,
    code_name: 120,
    code_qualname: 128,
    code_table: 136,
    code_first_traceable: 168,
    code_bytecode: 184,
    ..V3_10
};

/// C's frames between Python's are marked, texts lost a field.
const V3_12: PyOffsets = PyOffsets {
    version: 0x30c,
    shim_owner: 3,
    interpreter_threads: 72,
    tstate_thread_id: 136,
    cframe_frame: 0,
    frame_code: 0,
    frame_previous: 8,
    frame_locals: 40,
    frame_owner: 70,
    code_first_line: 68,
    code_first_traceable: 176,
    code_bytecode: 192,
    text_ascii: 40,
    text_compact: 56,
    ..V3_11
};

/// From here on the interpreter publishes its offsets; these are a release's own.
const V3_13: PyOffsets = PyOffsets {
    version: 0x30d,
    chain: Chain::Direct,
    runtime_interpreters: 632,
    interpreter_next: 7264,
    interpreter_threads: 7344,
    tstate_frame: 72,
    tstate_thread_id: 152,
    code_first_traceable: 184,
    code_bytecode: 200,
    ..V3_12
};

const V3_14: PyOffsets = PyOffsets {
    version: 0x30e,
    runtime_interpreters: 808,
    interpreter_next: 7272,
    frame_owner: 74,
    code_first_traceable: 192,
    code_bytecode: 208,
    ..V3_13
};

/// The offsets of a version's releases, or `None` for a version that is not known. From 3.13 on, what the process
/// publishes ([`super::from_debug_offsets`]) is better: it also holds for other builds.
pub fn offsets(version: Version) -> Option<PyOffsets> {
    let found = [V3_8, V3_9, V3_10, V3_11, V3_12, V3_13, V3_14].into_iter().find(|at| at.version() == version)?;
    Some(found.with_parts())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_one_the_walker_can_use() {
        for minor in 8..=14 {
            let at = offsets(Version::three(minor)).unwrap();
            assert!(at.fits(), "{at:?}");
        }
        assert_eq!(offsets(Version::three(7)), None);
        assert_eq!(offsets(Version { major: 2, minor: 7 }), None);
    }

    #[test]
    fn offsets_that_the_walker_would_bend_are_refused() {
        let good = offsets(Version::three(13)).unwrap();
        assert!(!PyOffsets { tstate_thread_id: 192, ..good }.fits());
        assert!(!PyOffsets { frame_code: 4, ..good }.fits());
        assert!(!PyOffsets { code_file: 8, ..good }.fits());
        assert!(!PyOffsets { code_bytes: 512, ..good }.fits());
    }
}
