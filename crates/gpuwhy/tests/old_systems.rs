// SPDX-License-Identifier: Apache-2.0
//! What the binary asks of a system: no newer C library than RHEL 8 has, and no library that a machine may lack.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, sim};
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader, SectionHeader};
use object::{Endianness, NameOrOrdinal, Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::Path;

/// The newest glibc that may be needed: that of Ubuntu 18.04. RHEL 8 has 2.28.
const NEWEST: [u32; 2] = [2, 27];
/// The newest libgcc that RHEL 8 has.
const NEWEST_GCC: [u32; 2] = [7, 0];

/// Libraries a file is linked with, and the versions it needs of them (`libc.so.6`, `GLIBC_2.28`).
struct Needs {
    libraries: Vec<String>,
    versions: BTreeSet<(String, String)>,
    symbols: usize,
}

fn needs(path: &Path) -> Needs {
    let data = std::fs::read(path).unwrap();
    let data = data.as_slice();
    let elf = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = elf.endian().unwrap();
    let sections = elf.sections(endian, data).unwrap();
    let name =
        |strings: object::StringTable<'_>, at: u32| String::from_utf8(strings.get(at).unwrap().to_vec()).unwrap();
    let (entries, strings) = sections.dynamic(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, strings).unwrap();
    let needed = entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    let libraries: Vec<String> = needed.map(|entry| name(strings, entry.d_val(endian) as u32)).collect();
    let mut versions = BTreeSet::new();
    let section = sections.iter().find(|section| section.sh_type(endian) == object::elf::SHT_GNU_VERNEED);
    let (mut files, link) = section.unwrap().gnu_verneed(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, link).unwrap();
    while let Some((file, mut list)) = files.next().unwrap() {
        while let Some(version) = list.next().unwrap() {
            versions.insert((name(strings, file.vn_file.get(endian)), name(strings, version.vna_name.get(endian))));
        }
    }
    // As the files are searched: an old dynamic linker refuses to start what names the wrong one.
    for (library, _) in &versions {
        assert!(libraries.contains(library), "{} needs versions of {library}, and {libraries:?}", path.display());
    }
    let symbols = object::File::parse(data).unwrap().dynamic_symbols().filter(|symbol| symbol.is_undefined()).count();
    Needs { libraries, versions, symbols }
}

/// The two numbers that a version begins with: `GLIBC_2.2.5` is 2.2.
fn number(version: &str, of: &str) -> Option<[u32; 2]> {
    let mut parts = version.strip_prefix(of)?.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??])
}

fn assert_old_enough(path: &Path) {
    let needs = needs(path);
    assert!(needs.symbols > 10 && !needs.versions.is_empty(), "{} was read", path.display());
    for (library, version) in &needs.versions {
        let known = [("GLIBC_", NEWEST), ("GCC_", NEWEST_GCC)];
        let old = known.iter().any(|(of, newest)| number(version, of).is_some_and(|number| number <= *newest));
        let ours = sim().dir.join(library).exists();
        // What has no number, such as GLIBC_ABI_DT_RELR, is newer than all of these.
        assert!(old || ours, "{} needs {version} of {library}", path.display());
    }
}

#[test]
fn the_binary_needs_no_newer_glibc_than_rhel_8_has() {
    assert_old_enough(Path::new(GPUWHY));
}

#[test]
fn the_simulated_stack_in_it_does_not_either() {
    for file in [&sim().cuda, &sim().cudart, &sim().c10, &sim().nccl, &sim().nvml] {
        assert_old_enough(file);
    }
}

/// Before 2.34 these were not in the C library, and a version is looked for in the library it is said to be of.
#[test]
fn functions_are_looked_for_where_an_old_glibc_has_them() {
    let data = std::fs::read(GPUWHY).unwrap();
    let elf = object::read::elf::ElfFile64::<Endianness>::parse(data.as_slice()).unwrap();
    let mut seen = 0;
    for import in elf.imports().unwrap() {
        let import = import.unwrap();
        let NameOrOrdinal::Name(name) = import.name() else { continue };
        let home = match name {
            b"pthread_create" | b"pthread_join" | b"pthread_key_create" => "libpthread.so.0",
            b"dlopen" | b"dlsym" => "libdl.so.2",
            _ => continue,
        };
        assert_eq!(String::from_utf8_lossy(import.library()), home, "{}", String::from_utf8_lossy(name));
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn the_binary_needs_no_library_that_a_machine_may_lack() {
    let usual = ["libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0"];
    let loaders = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    let found = needs(Path::new(GPUWHY)).libraries;
    let unusual: Vec<_> =
        found.iter().filter(|name| !usual.iter().chain(&loaders).any(|known| name == known)).collect();
    assert!(found.iter().any(|name| name == "libc.so.6") && unusual.is_empty(), "{unusual:?}");
}

#[test]
fn versions_are_compared_as_numbers() {
    assert_eq!(number("GLIBC_2.2.5", "GLIBC_"), Some([2, 2]));
    assert!(number("GLIBC_2.9", "GLIBC_").unwrap() < number("GLIBC_2.28", "GLIBC_").unwrap());
    assert_eq!(number("GLIBC_ABI_DT_RELR", "GLIBC_"), None);
    assert_eq!(number("GLIBC_PRIVATE", "GLIBC_"), None);
}
