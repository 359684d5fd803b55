// SPDX-License-Identifier: Apache-2.0
//! Where a library's functions are: file offsets for probes, read from its symbol tables.

use crate::arch::{self, FirstInstruction};
use crate::error::CaptureError;
use gpuwhy_stacks::Bounded;
use memchr::memmem;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DynamicTag, PF_X, PT_LOAD, SHT_SYMTAB};
use object::read::elf::{Dyn, ElfFile64, ProgramHeader, SectionHeader};
use object::{Object, ObjectSymbol, ReadCache, ReadRef};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum bytes read of a library; a file that would need more is refused as malicious.
const MOST_READ: u64 = 64 << 20;

/// Entries of a kind that are looked at; a library needs some dozens of others.
const MOST_ENTRIES: usize = 1024;

/// A function found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    /// Offset in the file at which to probe.
    pub offset: u64,
    /// The instruction under the probe, which decides its cost.
    pub first: FirstInstruction,
}

/// Looks up functions by name in a file's dynamic and ordinary symbol tables; `path` is what messages call it.
///
/// Reads only the tables and a few bytes per function: libcuda alone is 100 MB. The file is read, not
/// mapped, because one that shrinks meanwhile must not kill us.
pub(crate) fn find_functions(
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

/// A function that every CUDA runtime has, as it ends in a string table.
const MARK: &[u8] = b"cudaLaunchKernel\0";
/// No string table that is looked through is larger.
const MOST_STRINGS: u64 = 128 << 20;
/// How much of one is looked through at a time.
const CHUNK: usize = 1 << 20;

/// Whether a program or library has the CUDA runtime built in, and still the names of its functions.
///
/// Cheap, since every file of a process is asked: one without a symbol table, or that uses the runtime's own library,
/// has not; of the others only the names are read, and not one by one.
pub(crate) fn has_runtime_built_in(file: &File) -> bool {
    let (cache, left) = (ReadCache::new(file), Cell::new(MOST_READ));
    let data = Bounded::new(&cache, &left);
    let Ok(elf) = ElfFile64::<'_, object::Endianness, _>::parse(data) else { return false };
    let endian = elf.endian();
    let symbols = elf.elf_section_table().iter().find(|section| section.sh_type(endian) == SHT_SYMTAB);
    let Some(names) = symbols.and_then(|table| elf.elf_section_table().iter().nth(table.sh_link(endian) as usize))
    else {
        return false;
    };
    let (offset, size) = (names.sh_offset(endian), names.sh_size(endian));
    size <= MOST_STRINGS && !needs(&elf, "libcudart.so") && holds(file, offset, size, MARK)
}

/// Whether a library of this name is among those a file names as needed.
fn needs<'data, R: ReadRef<'data>>(elf: &ElfFile64<'data, object::Endianness, R>, library: &str) -> bool {
    dynamic(elf, DT_NEEDED).iter().any(|name| name.starts_with(library))
}

/// Folders in which a program has its libraries looked for first; `$ORIGIN` is where it lies.
pub(crate) fn search_path(file: &File, program: &Path) -> Vec<PathBuf> {
    let (cache, left) = (ReadCache::new(file), Cell::new(MOST_READ));
    let data = Bounded::new(&cache, &left);
    let Ok(elf) = ElfFile64::<'_, object::Endianness, _>::parse(data) else { return Vec::new() };
    let origin = program.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_default();
    let origin = origin.to_string_lossy();
    let lists = [dynamic(&elf, DT_RPATH), dynamic(&elf, DT_RUNPATH)].concat();
    let folders = lists
        .iter()
        .flat_map(|list| list.split(':'))
        .map(|folder| PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)));
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// The texts of a file's dynamic entries of a kind.
fn dynamic<'data, R: ReadRef<'data>>(elf: &ElfFile64<'data, object::Endianness, R>, tag: DynamicTag) -> Vec<String> {
    let endian = elf.endian();
    let Ok(Some((entries, strings))) = elf.elf_section_table().dynamic(endian, elf.data()) else { return Vec::new() };
    let Ok(strings) = elf.elf_section_table().strings(endian, elf.data(), strings) else { return Vec::new() };
    let wanted = entries.iter().filter(|entry| entry.tag(endian) == tag).take(MOST_ENTRIES);
    let texts = wanted.filter_map(|entry| entry.string(endian, strings).ok());
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Whether a section of a file contains some bytes.
fn holds(file: &File, offset: u64, size: u64, wanted: &[u8]) -> bool {
    let finder = memmem::Finder::new(wanted);
    let mut buffer = vec![0; CHUNK];
    let end = offset.saturating_add(size);
    let mut at = offset;
    while at < end {
        let room = (end - at).min(CHUNK as u64) as usize;
        let Ok(read @ 1..) = file.read_at(&mut buffer[..room], at) else { return false };
        if finder.find(&buffer[..read]).is_some() {
            return true;
        }
        // A match across two chunks is found in the second.
        let overlap = if read > wanted.len() { wanted.len() - 1 } else { 0 };
        at += (read - overlap) as u64;
        if at + overlap as u64 >= end {
            return false;
        }
    }
    false
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
    Some(Site { offset: offset + pad, first: arch::first_instruction(code.get(pad as usize..)?) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn find(path: &Path) -> Result<HashMap<String, Site>, CaptureError> {
        let open = gpuwhy_strangers::look_at(path).and_then(|seen| seen.open());
        let file = open.map_err(|source| CaptureError::Library { path: path.into(), source })?;
        find_functions(&file, path, &|name| name == "malloc")
    }

    #[test]
    fn a_real_librarys_function_is_found_past_its_landing_pad() {
        let libc = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
        let libc = libc.iter().map(Path::new).find(|path| path.exists()).unwrap();
        let site = find(libc).unwrap()["malloc"];
        let bytes = std::fs::read(libc).unwrap();
        let code = &bytes[site.offset as usize..];
        assert_eq!(arch::landing_pad(code), 0, "the probe does not sit on the landing pad");
        assert_eq!(arch::first_instruction(code), site.first);
    }

    /// A library with `symbols` functions whose names start in a string table of `strings` bytes and never end.
    pub(crate) fn endless_names(symbols: usize, strings: usize) -> Vec<u8> {
        let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (head, row, section) = (64u64, 24u64, 64u64);
        let (table, names) = (head, head + row * symbols as u64);
        let sections = names + strings as u64;
        elf.extend([3u16, 62].iter().flat_map(|half| half.to_le_bytes()));
        elf.extend(1u32.to_le_bytes());
        elf.extend([0, 0, sections].iter().flat_map(|word| word.to_le_bytes()));
        elf.extend(0u32.to_le_bytes());
        elf.extend([64u16, 56, 0, 64, 3, 2].iter().flat_map(|half| half.to_le_bytes()));
        for at in 0..symbols as u32 {
            elf.extend((at % 64).to_le_bytes());
            elf.extend([0x12, 0, 1, 0]);
            elf.extend([0x1000u64, 16].iter().flat_map(|word| word.to_le_bytes()));
        }
        elf.resize(sections as usize, b'a');
        let mut add = |kind: u32, offset: u64, size: u64, link: u32, entry: u64| {
            elf.extend([0, kind].iter().flat_map(|half: &u32| half.to_le_bytes()));
            elf.extend([0, 0, offset, size].iter().flat_map(|word| word.to_le_bytes()));
            elf.extend([link, 0].iter().flat_map(|half| half.to_le_bytes()));
            elf.extend([1, entry].iter().flat_map(|word| word.to_le_bytes()));
        };
        add(0, 0, 0, 0, 0);
        add(11, table, row * symbols as u64, 2, row);
        add(3, names, strings as u64, 0, 0);
        assert_eq!(elf.len() as u64, sections + 3 * section);
        elf
    }

    /// Bytes this thread has read so far.
    fn read_so_far() -> u64 {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn names_without_an_end_are_not_searched_for_it_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcudart.so.13");
        std::fs::write(&path, endless_names(200_000, 1 << 16)).unwrap();
        let before = read_so_far();
        assert_eq!(find(&path).unwrap(), HashMap::new());
        let read = read_so_far() - before;
        assert!(read < 4 * MOST_READ, "{read} bytes were read of a file of 5 MB");
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
