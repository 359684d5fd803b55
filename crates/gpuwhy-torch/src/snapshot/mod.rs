// SPDX-License-Identifier: Apache-2.0
//! Memory snapshots (`torch.cuda.memory._snapshot()`, pickled): read without executing anything, replayed to the
//! byte, attributed to lines.
//!
//! [`analyse`] turns bytes into a [`MemoryReport`] in stages: `input` (chunks, gzip) → `pickle` (data
//! opcodes) → `tables` (typed rows) → `model` (one shape for all versions) → `replay` (requested bytes) and
//! `allocator` (whole blocks) → `analysis` → `report`.

mod allocator;
mod analysis;
mod error;
mod hash;
mod input;
mod model;
mod pickle;
mod place;
mod quick;
mod replay;
mod report;
mod rows;
mod strings;
mod tables;
mod value;

pub use error::Error;
pub use gpuwhy_stacks::{Owner, owner};
pub use report::{Category, Device, MemoryReport, Oom, Pinned, Row, SegmentSize};
use std::io::Read;

/// Default limit on memory for reading, bytes; a snapshot of 1 GB stays well below.
const DEFAULT_MEMORY_LIMIT: u64 = 8 << 30;

/// Options, and facts that are not in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only this device.
    pub device: Option<u32>,
    /// The device's memory, bytes; needed for headroom.
    pub capacity_bytes: Option<u64>,
    /// Limit on memory while reading, bytes.
    pub memory_limit_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, capacity_bytes: None, memory_limit_bytes: DEFAULT_MEMORY_LIMIT }
    }
}

/// Reads and analyses a snapshot, plain or gzipped, from any source of bytes (`&[u8]`, a file).
///
/// Of a file that is cut off or damaged, the readable part is analysed, and the report's warnings say so. `progress` is
/// called on this thread with the bytes of `source` done; of a gzipped one these are compressed bytes, to be compared
/// with the file's size.
///
/// # Errors
/// When the pickle holds anything but plain data, is not a snapshot, or ends before anything useful.
pub fn analyse(
    source: impl Read + Send,
    options: &Options,
    progress: Option<&mut dyn FnMut(u64)>,
) -> Result<MemoryReport, Error> {
    let read = input::with_input(source, progress, |input| pickle::read(input, options.memory_limit_bytes))??;
    let snapshot = model::Snapshot::new(read)?;
    Ok(analysis::report(&snapshot, options))
}
