// SPDX-License-Identifier: Apache-2.0
//! Finding CPython's variables in a file that maps them. The file belongs to a process that is not trusted.

use crate::Bounded;
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol, ReadCache};
use std::cell::Cell;
use std::fs::File;

/// Symbol tables of the largest interpreters take a few MB; a file that claims more is refused.
const MOST_READ: u64 = 64 << 20;

/// Facts about a file that contains CPython. Addresses are those in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// Of `_PyRuntime`.
    pub(super) runtime: u64,
    /// Of `Py_Version`, from 3.11.
    pub(super) version: Option<u64>,
    /// Start of each loaded segment, in the file and in memory.
    segments: Vec<(u64, u64)>,
}

impl Image {
    /// By how much the file's addresses are moved, given that its byte `offset` is mapped at `start`.
    pub(super) fn bias(&self, offset: u64, start: u64) -> Option<u64> {
        let page = |address: u64| address & !0xfff;
        let (_, address) = self.segments.iter().find(|(in_file, _)| page(*in_file) == offset)?;
        Some(start.wrapping_sub(page(*address)))
    }
}

/// Finds `_PyRuntime`: in the dynamic symbols, then in the static ones, then as its own section, which even stripped
/// files have from 3.10 on. `Ok(None)`: the file does not contain CPython.
pub(super) fn look(file: &File) -> Result<Option<Image>, object::Error> {
    let (cache, left) = (ReadCache::new(file), Cell::new(MOST_READ));
    let elf: ElfFile64<'_, object::Endianness, _> = ElfFile64::parse(Bounded::new(&cache, &left))?;
    let (mut runtime, mut version) = (None, None);
    for symbol in elf.dynamic_symbols().chain(elf.symbols()) {
        if !symbol.is_definition() {
            continue;
        }
        match symbol.name_bytes() {
            Ok(b"_PyRuntime") => runtime = runtime.or(Some(symbol.address())),
            Ok(b"Py_Version") => version = version.or(Some(symbol.address())),
            _ => {}
        }
        if runtime.is_some() && version.is_some() {
            break;
        }
    }
    let runtime = runtime.or_else(|| elf.section_by_name(".PyRuntime").map(|section| section.address()));
    let endian = elf.endian();
    let segments = elf.elf_program_headers().iter().filter(|ph| ph.p_type(endian) == PT_LOAD);
    let segments = segments.map(|ph| (ph.p_offset(endian), ph.p_vaddr(endian))).collect();
    Ok(runtime.map(|runtime| Image { runtime, version, segments }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_python_and_files_of_nonsense() {
        assert_eq!(look(&File::open("/proc/self/exe").unwrap()).unwrap(), None);
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        bytes.truncate(1 << 16);
        let path = std::env::temp_dir().join(format!("gpuwhy-stacks-elf-{}", std::process::id()));
        // Broken in the header, in the tables it points to, and cut short.
        for (at, size) in [(0, 4), (0x20, 32), (0x40, 512), (0x4000, 0)] {
            let mut broken = bytes.clone();
            broken[at..at + size].fill(0xff);
            std::fs::write(&path, &broken).unwrap();
            assert_eq!(look(&File::open(&path).unwrap()).ok().flatten(), None, "{at:#x}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_move_of_a_file_comes_from_any_of_its_mappings() {
        let image = Image { runtime: 0, version: None, segments: vec![(0, 0), (0x2e10, 0x4e10)] };
        assert_eq!(image.bias(0, 0x7000_0000), Some(0x7000_0000));
        assert_eq!(image.bias(0x2000, 0x7000_4000), Some(0x7000_0000));
        assert_eq!(image.bias(0x1000, 0x7000_1000), None);
        let fixed = Image { segments: vec![(0, 0x40_0000)], ..image };
        assert_eq!(fixed.bias(0, 0x40_0000), Some(0));
    }
}
