// SPDX-License-Identifier: Apache-2.0
//! The offsets that CPython publishes at the start of `_PyRuntime`, from 3.13 on.
//!
//! A table of 64-bit words after the cookie `xdebugpy`. Its order differs between versions, so an unknown version
//! cannot be read.

use super::offsets::{Chain, Lasti, PyOffsets, Version, offsets};

/// How much of `_PyRuntime` to read for [`from_debug_offsets`].
pub const PUBLISHED_BYTES: usize = 1024;

/// Positions of the needed words in a version's table, in words from its start.
struct Table {
    interpreter: u16,
    thread: u16,
    thread_id: u16,
    frame: u16,
    code: u16,
    bytes: u16,
    text: u16,
    /// Whether frames and code objects say where a thread's copy of the bytecode is.
    copies: bool,
}

/// Group starts: 24, 48, 152, 224, 272, 512, 536 bytes.
const V3_13: Table =
    Table { interpreter: 6, thread: 19, thread_id: 24, frame: 28, code: 34, bytes: 64, text: 67, copies: false };
/// Group starts: 24, 48, 176, 248, 312, 592, 616 bytes.
const V3_14: Table =
    Table { interpreter: 6, thread: 22, thread_id: 27, frame: 31, code: 39, bytes: 74, text: 77, copies: true };
/// Group starts: 24, 48, 176, 312, 376, 688, 712 bytes.
const V3_15: Table =
    Table { interpreter: 6, thread: 22, thread_id: 30, frame: 39, code: 47, bytes: 86, text: 89, copies: true };

/// Reads the start of `_PyRuntime`; `None` if it publishes nothing, or in an unknown order.
pub fn from_debug_offsets(bytes: &[u8]) -> Option<PyOffsets> {
    let words = Words(bytes);
    let version = published_version(bytes)?;
    let free_threaded = words.get(2)? != 0;
    let (table, like) = match version.minor {
        13 => (V3_13, 13),
        14 => (V3_14, 14),
        15 => (V3_15, 14),
        _ => return None,
    };
    let code = |index: u16| words.small(table.code + index);
    let frame = |index: u16| words.small(table.frame + index);
    let mut at = PyOffsets {
        version: u16::from(version.major) << 8 | u16::from(version.minor),
        chain: Chain::Direct,
        lasti: Lasti::Pointer,
        free_threaded: free_threaded.into(),
        runtime_interpreters: words.large(5)?,
        interpreter_next: words.large(table.interpreter + 2)?,
        interpreter_threads: words.large(table.interpreter + 3)?,
        tstate_prev: words.small(table.thread + 1)?,
        tstate_next: words.small(table.thread + 2)?,
        tstate_interpreter: words.small(table.thread + 3)?,
        tstate_frame: words.small(table.thread + 4)?,
        tstate_thread_id: words.small(table.thread_id)?,
        frame_previous: frame(1)?,
        frame_code: frame(2)?,
        frame_lasti: frame(3)?,
        frame_owner: frame(5)?,
        code_file: code(1)?,
        code_name: code(2)?,
        code_qualname: code(3)?,
        code_table: code(4)?,
        code_first_line: code(5)?,
        code_bytecode: code(9)?,
        bytes_size: words.small(table.bytes + 1)?,
        bytes_data: words.small(table.bytes + 2)?,
        text_length: words.small(table.text + 2)?,
        text_ascii: words.small(table.text + 3)?,
        ..offsets(Version::three(like))?
    };
    if table.copies && free_threaded {
        at.frame_tlbc = frame(7)?;
        at.code_tlbc = code(10)?;
        // Its "interned" is a byte of its own there.
        at.kind_shift = 8;
    }
    // Not published. A text that is not ASCII has two words more before its characters; the first instruction that
    // can be traced is told just before `co_extra`, the bytecode's copies and the bytecode.
    at.text_compact = at.text_ascii.checked_add(16)?;
    at.code_first_traceable = at.code_bytecode.checked_sub(if at.code_tlbc == 0 { 16 } else { 24 })?;
    // The walker reads a text's length, hash and state at once.
    let state = words.small(table.text + 1)?;
    let at = at.with_parts();
    (state == at.text_length + 16 && at.fits()).then_some(at)
}

/// The version in a published table; `None` if there is no table.
pub(super) fn published_version(bytes: &[u8]) -> Option<Version> {
    if !bytes.starts_with(b"xdebugpy") {
        return None;
    }
    Version::from_hex(Words(bytes).get(1)?)
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn get(&self, index: u16) -> Option<u64> {
        let from = usize::from(index) * 8;
        Some(u64::from_ne_bytes(self.0.get(from..from + 8)?.try_into().ok()?))
    }

    /// An offset inside something small.
    fn small(&self, index: u16) -> Option<u16> {
        u16::try_from(self.get(index)?).ok().filter(|at| *at < 0x4000)
    }

    /// An offset inside an interpreter's or the runtime's state, which take some hundred KB.
    fn large(&self, index: u16) -> Option<u32> {
        u32::try_from(self.get(index)?).ok().filter(|at| *at < 1 << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let mut bytes = vec![0; PUBLISHED_BYTES];
        assert_eq!(from_debug_offsets(&bytes), None);
        bytes[..8].copy_from_slice(b"xdebugpy");
        for version in [0x030d_00f0_u64, 0x030e_00f0, 0x030f_00f0, 0x0310_00f0] {
            bytes[8..16].copy_from_slice(&version.to_ne_bytes());
            assert_eq!(from_debug_offsets(&bytes), None, "{version:#x}: all zero");
            assert_eq!(from_debug_offsets(&bytes[..200]), None, "{version:#x}: cut short");
        }
        bytes[16..].fill(0xff);
        assert_eq!(from_debug_offsets(&bytes), None);
    }
}
