// SPDX-License-Identifier: Apache-2.0
//! Records from the kernel: frames as addresses, and each code object once, with its names and line table.

use super::offsets::Version;
use super::{lines, text};
use crate::stack::Frame;
use serde::{Deserialize, Serialize};

/// Frames in a [`PyStack`]: `PY_MAX_FRAMES`.
pub const MAX_FRAMES: usize = 128;
const FILE_BYTES: usize = 256;
const NAME_BYTES: usize = 128;
const TABLE_BYTES: usize = 3680;

/// All frames are there.
pub const STATUS_OK: u32 = 0;
/// The thread runs no Python.
pub const STATUS_NO_STATE: u32 = 1;
/// Something could not be read; frames up to there are.
pub const STATUS_UNREADABLE: u32 = 2;
/// There were more frames; the innermost are there.
pub const STATUS_TRUNCATED: u32 = 3;

/// `struct py_frame`: a code object and where in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PyFrame {
    /// The code object's address.
    pub code: u64,
    /// Bytes from its first instruction; negative before it.
    pub lasti: i32,
    /// Tells it from other code objects at that address, at other times.
    pub check: u32,
}

/// `struct py_stack`: frames, innermost first.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct PyStack {
    /// How many frames.
    pub count: u32,
    /// One of the `STATUS_` constants.
    pub status: u32,
    /// The frames; beyond `count` whatever was there.
    pub frames: [PyFrame; MAX_FRAMES],
}

impl PyStack {
    /// The frames that are there.
    pub fn frames(&self) -> &[PyFrame] {
        &self.frames[..(self.count as usize).min(MAX_FRAMES)]
    }
}

impl Default for PyStack {
    fn default() -> Self {
        Self { count: 0, status: STATUS_NO_STATE, frames: [PyFrame::default(); MAX_FRAMES] }
    }
}

/// `struct py_code`: a code object as the kernel read it. Sizes are the true ones, which may be more than there is.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct PyCode {
    /// Its address.
    pub code: u64,
    /// As in [`PyFrame`].
    pub check: u32,
    /// The function's first line.
    pub first_line: i32,
    /// Size of the file's name in bytes.
    pub file_bytes: u32,
    /// Size of the function's name in bytes.
    pub name_bytes: u32,
    /// Size of the line table in bytes.
    pub table_bytes: u32,
    /// Bytes a character; 0 if the name could not be read.
    pub file_width: u8,
    /// The same for the function's name.
    pub name_width: u8,
    /// [`STATUS_OK`] or [`STATUS_UNREADABLE`].
    pub status: u8,
    /// Zero.
    pub unused: u8,
    /// The file's name; its end, if it is longer.
    pub file: [u8; FILE_BYTES],
    /// The function's name; only its start if it is too long.
    pub name: [u8; NAME_BYTES],
    /// The line table; only its start if it is too long.
    pub table: [u8; TABLE_BYTES],
}

impl PyCode {
    /// Bytes before the line table: no record is shorter.
    pub const HEAD: usize = std::mem::offset_of!(PyCode, table);

    /// From a ring record, whose line table may be cut to its used size. `None` if it is not such a record.
    pub fn from_bytes(bytes: &[u8]) -> Option<Box<Self>> {
        if bytes.len() < Self::HEAD || bytes.len() > size_of::<Self>() {
            return None;
        }
        let mut code = Box::<Self>::default();
        // SAFETY: a repr(C) struct of integers, of which every pattern of bits is one; not more bytes than it has.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(code.as_mut()).cast(), bytes.len());
        }
        Some(code)
    }

    /// Whether the line table is longer than what is here: [`super::Memory::line_table`] has the rest, while the
    /// process lives.
    pub fn is_table_cut(&self) -> bool {
        self.table_bytes as usize > TABLE_BYTES
    }
}

impl Default for PyCode {
    fn default() -> Self {
        Self {
            code: 0,
            check: 0,
            first_line: 0,
            file_bytes: 0,
            name_bytes: 0,
            table_bytes: 0,
            file_width: 0,
            name_width: 0,
            status: STATUS_UNREADABLE as u8,
            unused: 0,
            file: [0; FILE_BYTES],
            name: [0; NAME_BYTES],
            table: [0; TABLE_BYTES],
        }
    }
}

/// A code object by its names, kept for as long as frames may refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The source file; starts with `…` if it was too long.
    pub file: String,
    /// The function; ends with `…` if it was too long.
    pub function: String,
    version: Version,
    first_line: i32,
    table: Box<[u8]>,
}

impl Code {
    /// From what the kernel read. `whole_table` is the line table, where the kernel's copy
    /// [is cut](PyCode::is_table_cut) and the process could still be asked.
    pub fn new(version: Version, raw: &PyCode, whole_table: Option<&[u8]>) -> Self {
        let kept = |bytes: &[u8], size: u32| bytes[..bytes.len().min(size as usize)].to_vec();
        let readable = |name: Option<String>| name.unwrap_or_else(|| "?".into());
        let mut file = readable(text::decode(&kept(&raw.file, raw.file_bytes), raw.file_width));
        if raw.file_bytes as usize > FILE_BYTES {
            file.insert(0, '…');
        }
        let mut function = readable(text::decode(&kept(&raw.name, raw.name_bytes), raw.name_width));
        if raw.name_bytes as usize > NAME_BYTES {
            function.push('…');
        }
        let table = whole_table.map_or_else(|| kept(&raw.table, raw.table_bytes), <[u8]>::to_vec);
        Self { file, function, version, first_line: raw.first_line, table: table.into() }
    }

    /// The line at which a frame is.
    pub fn line(&self, lasti: i32) -> Option<u32> {
        lines::line(self.version, &self.table, self.first_line, lasti)
    }

    /// The frame, named.
    pub fn frame(&self, lasti: i32) -> Frame {
        Frame { file: self.file.clone(), function: self.function.clone(), line: self.line(lasti) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_wrong_size_are_refused_and_short_ones_read() {
        assert!(PyCode::from_bytes(&[0; PyCode::HEAD - 1]).is_none());
        assert!(PyCode::from_bytes(&[0; size_of::<PyCode>() + 1]).is_none());
        let mut bytes = vec![0; PyCode::HEAD + 2];
        bytes[..8].copy_from_slice(&7u64.to_ne_bytes());
        bytes[PyCode::HEAD + 1] = 9;
        let code = PyCode::from_bytes(&bytes).unwrap();
        assert_eq!((code.code, code.table[1]), (7, 9));
    }

    #[test]
    fn sizes_that_lie_do_no_harm() {
        let raw = PyCode {
            file_bytes: u32::MAX,
            name_bytes: u32::MAX,
            table_bytes: u32::MAX,
            file_width: 1,
            name_width: 9,
            ..PyCode::default()
        };
        let code = Code::new(Version::three(12), &raw, None);
        assert!(code.file.starts_with('…'));
        assert_eq!(code.function, "?…");
        assert_eq!(code.line(4), None);
    }
}
