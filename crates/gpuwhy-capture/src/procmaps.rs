// SPDX-License-Identifier: Apache-2.0
//! Which traced libraries a process has mapped: `/proc/PID/maps`, parsed.

use gpuwhy_model::Library;
use std::ops::Range;

/// An executable mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped<'a> {
    /// The path as the process sees it, without any ` (deleted)`.
    pub path: &'a str,
    /// `start-end` in hexadecimal: the name of the mapping under `/proc/PID/map_files`.
    pub range: &'a str,
    /// The file's inode number; 0 if unknown.
    pub inode: u64,
    /// Whether the file was deleted.
    pub deleted: bool,
}

impl Mapped<'_> {
    /// Which traced library it is, by its file name.
    pub(crate) fn library(&self) -> Option<Library> {
        Library::of_file(self.path.rsplit('/').next()?)
    }
}

/// Which CUDA library an address lies in, if any; `None` when nothing is mapped there.
pub(crate) fn library_at(maps: &str, address: u64) -> Option<Option<Library>> {
    let line = maps.lines().find(|line| {
        let ends = line.split(' ').next().and_then(|range| range.split_once('-'));
        let ends = ends.map(|(from, to)| (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)));
        matches!(ends, Some((Ok(from), Ok(to))) if (from..to).contains(&address))
    })?;
    let file = line.rsplit('/').next().unwrap_or_default();
    Some(Library::of_file(file.strip_suffix(" (deleted)").unwrap_or(file)))
}

/// The code mappings of a process, and the CUDA library of each, if any.
pub(crate) fn code(maps: &str) -> impl Iterator<Item = (Range<u64>, Option<Library>)> {
    executable(maps).filter_map(|file| {
        let (from, to) = file.range.split_once('-')?;
        let ends = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
        Some((ends, file.library()))
    })
}

/// Files with executable mappings that are not traced libraries, each about once.
pub(crate) fn other_files(maps: &str) -> impl Iterator<Item = Mapped<'_>> {
    let files = executable(maps).filter(|file| file.path.starts_with('/') && file.library().is_none());
    let mut last = "";
    files.filter(move |file| std::mem::replace(&mut last, file.path) != file.path)
}

/// The traced libraries in the text of a `/proc/PID/maps`, one entry for each executable mapping.
pub(crate) fn traced_libraries(maps: &str) -> impl Iterator<Item = (Library, Mapped<'_>)> {
    executable(maps).filter_map(|file| Some((file.library()?, file)))
}

fn executable(maps: &str) -> impl Iterator<Item = Mapped<'_>> {
    maps.lines().filter_map(|line| {
        // start-end perms offset dev inode   path (which may contain spaces)
        let mut rest = line;
        let mut field = || {
            rest = rest.trim_start_matches(' ');
            let (head, tail) = rest.split_once(' ')?;
            rest = tail;
            Some(head)
        };
        let (range, perms) = (field()?, field()?);
        let (_offset, _dev, inode) = (field()?, field()?, field()?);
        if !perms.contains('x') {
            return None;
        }
        let whole = rest.trim_start_matches(' ');
        let path = whole.strip_suffix(" (deleted)").unwrap_or(whole);
        Some(Mapped { path, range, inode: inode.parse().unwrap_or(0), deleted: path != whole })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_mappings_of_traced_libraries_count() {
        let maps = "\
555555554000-555555556000 r-xp 00000000 08:01 42                         /usr/bin/python3.12
7f0000000000-7f0000001000 r--p 00000000 08:01 77                         /opt/my env/lib/libcudart.so.13
7f0000001000-7f0000009000 r-xp 00001000 08:01 77                         /opt/my env/lib/libcudart.so.13
7f0000010000-7f0000019000 r-xp 00001000 08:01 78                         /tmp/libcuda.so.1 (deleted)
7f0000020000-7f0000029000 r-xp 00001000 08:01 79                         /usr/lib/libcudnn.so.9
7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
garbage
";
        let found: Vec<_> = traced_libraries(maps).collect();
        assert_eq!(found.len(), 2);
        let (path, range) = ("/opt/my env/lib/libcudart.so.13", "7f0000001000-7f0000009000");
        assert_eq!(found[0], (Library::Runtime, Mapped { path, range, inode: 77, deleted: false }));
        assert_eq!((found[1].0, found[1].1.path, found[1].1.deleted), (Library::Driver, "/tmp/libcuda.so.1", true));
        let others: Vec<_> = other_files(maps).map(|file| file.path).collect();
        assert_eq!(others, ["/usr/bin/python3.12", "/usr/lib/libcudnn.so.9"]);
        assert_eq!(library_at(maps, 0x7f00_0000_8fff), Some(Some(Library::Runtime)));
        assert_eq!(library_at(maps, 0x7f00_0001_0000), Some(Some(Library::Driver)));
        assert_eq!(library_at(maps, 0x7f00_0000_9000), None);
        assert_eq!(library_at(maps, 0x5555_5555_4000), Some(None));
        let code: Vec<_> = code(maps).collect();
        assert_eq!(code.len(), 5, "{code:x?}");
        assert_eq!(code[1], (0x7f00_0000_1000..0x7f00_0000_9000, Some(Library::Runtime)));
    }
}
