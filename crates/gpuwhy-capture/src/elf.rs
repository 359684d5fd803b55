// SPDX-License-Identifier: Apache-2.0
//! Where a library's functions are: file offsets for probes, read from its symbol tables.

use crate::arch::{self, ProbeCost};
use crate::error::CaptureError;
use gpuwhy_stacks::Bounded;
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol, ReadCache, ReadRef};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// No library needs more of it read than this; a file made to look as if it did is refused.
const MOST_READ: u64 = 64 << 20;

/// A function found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Offset in the file at which to probe.
    pub offset: u64,
    /// What the probe will cost there.
    pub cost: ProbeCost,
}

/// Looks up functions by name in a file's dynamic and ordinary symbol tables; `path` is what messages call it.
///
/// Reads only the tables and a few bytes per function: libcuda alone is 100 MB. The file is read, not
/// mapped, because one that shrinks meanwhile must not kill us.
pub fn find_functions(
    file: &File,
    path: &Path,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<HashMap<String, Site>, CaptureError> {
    let (cache, left) = (ReadCache::new(file), Cell::new(MOST_READ));
    let data = Bounded::new(&cache, &left);
    let elf: ElfFile64<'_, object::Endianness, _> =
        ElfFile64::parse(data).map_err(|e| CaptureError::Elf { path: path.into(), why: e.to_string() })?;
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
        if let Some(site) = site_of(&elf, data, symbol.address()) {
            found.insert(name.to_owned(), site);
        }
    }
    Ok(found)
}

/// Opens a file that processes we do not trust may have put there: never waits for a pipe to be written.
pub fn open_regular(path: &Path) -> Result<File, CaptureError> {
    let failed = |source| CaptureError::Library { path: path.into(), source };
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        return Ok(file);
    }
    Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file")))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &Path) -> Result<HashMap<String, Site>, CaptureError> {
        find_functions(&open_regular(path)?, path, &|name| name == "malloc")
    }

    #[test]
    fn a_real_librarys_function_is_found_past_its_landing_pad() {
        let libc = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
        let libc = libc.iter().map(Path::new).find(|path| path.exists()).unwrap();
        let site = find(libc).unwrap()["malloc"];
        let bytes = std::fs::read(libc).unwrap();
        let code = &bytes[site.offset as usize..];
        assert_eq!(arch::landing_pad(code), 0, "the probe does not sit on the landing pad");
        assert_eq!(arch::probe_cost(code), site.cost);
    }

    #[test]
    fn pipes_folders_and_nonsense_are_refused_without_waiting() {
        let dir = std::env::temp_dir().join(format!("gpuwhy-elf-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (pipe, text) = (dir.join("pipe"), dir.join("text"));
        std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        std::fs::write(&text, "no library at all").unwrap();
        let refused = [&pipe, &dir, &text].map(|path| find(path).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(refused, [true; 3]);
    }
}
