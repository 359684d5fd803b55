// SPDX-License-Identifier: Apache-2.0
//! CPython, seen from outside: which process runs it, where its structures have what, and what code objects say.

mod code;
mod elf;
mod find;
#[cfg(feature = "host-walker")]
pub mod host;
pub mod lines;
mod offsets;
mod published;
mod remote;
pub mod text;

pub use code::{
    Code, MAX_FRAMES, PyCode, PyFrame, PyStack, STATUS_NO_STATE, STATUS_OK, STATUS_TRUNCATED, STATUS_UNREADABLE,
};
pub use find::{Found, PyError, find};
pub use offsets::{Chain, Lasti, PyOffsets, PyProcess, Version, offsets};
pub use published::{PUBLISHED_BYTES, from_debug_offsets};
pub use remote::Memory;
