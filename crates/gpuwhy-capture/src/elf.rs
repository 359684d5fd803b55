// SPDX-License-Identifier: Apache-2.0
//! Where a library's functions are: file offsets for probes, read from its symbol tables.

use crate::arch::{self, ProbeCost};
use crate::error::{CaptureError, Result};
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol, ReadCache, ReadRef};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// A function found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Offset in the file at which to probe.
    pub offset: u64,
    /// What the probe will cost there.
    pub cost: ProbeCost,
}

/// Looks up functions by name in a file's dynamic and ordinary symbol tables.
///
/// Reads only the tables and a few bytes per function: libcuda alone is 100 MB. The file is read, not
/// mapped, because one that shrinks meanwhile must not kill us.
pub fn find_functions(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<HashMap<String, Site>> {
    let file = File::open(path).map_err(|source| CaptureError::Library { path: path.into(), source })?;
    let cache = ReadCache::new(file);
    let elf: ElfFile64<'_, object::Endianness, _> =
        ElfFile64::parse(&cache).map_err(|e| CaptureError::Elf { path: path.into(), why: e.to_string() })?;
    let mut found = HashMap::new();
    for symbol in elf.dynamic_symbols().chain(elf.symbols()) {
        if !symbol.is_definition() || symbol.size() == 0 && symbol.kind() != object::SymbolKind::Text {
            continue;
        }
        let Ok(name) = symbol.name() else { continue };
        // A symbol of the ordinary table may carry its version: cudaMalloc@@libcudart.so.13.
        let name = name.split('@').next().unwrap_or(name);
        if !wanted(name) || found.contains_key(name) {
            continue;
        }
        if let Some(site) = site_of(&elf, &cache, symbol.address()) {
            found.insert(name.to_owned(), site);
        }
    }
    Ok(found)
}

/// Turns a virtual address into a file offset inside an executable segment, past any landing pad.
fn site_of<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, object::Endianness, R>,
    data: R,
    address: u64,
) -> Option<Site> {
    let endian = elf.endian();
    let segment = elf.elf_program_headers().iter().find(|ph| {
        ph.p_type(endian) == PT_LOAD
            && (ph.p_flags(endian) & PF_X) == PF_X
            && address.checked_sub(ph.p_vaddr(endian)).is_some_and(|at| at < ph.p_filesz(endian))
    })?;
    let offset = (address - segment.p_vaddr(endian)).checked_add(segment.p_offset(endian))?;
    let code = data.read_bytes_at(offset, arch::PROLOGUE as u64).ok()?;
    let pad = arch::landing_pad(code);
    Some(Site { offset: offset + pad, cost: arch::probe_cost(code.get(pad as usize..)?) })
}
