// SPDX-License-Identifier: Apache-2.0
//! New executable mappings, as they happen: perf's MMAP2 records from every CPU.
//!
//! A library loaded seconds after the start (PyTorch does that) is known here within a scheduling delay,
//! without polling `/proc`.

use crate::error::{CaptureError, Result};
use crate::libraries::FileId;
use crate::lookups::LeftBehind;
use crate::perf::{self, PerfEventAttr};
use gpuwhy_model::Library;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Data pages of each CPU's buffer: 64 kB hold about 500 mappings.
const DATA_PAGES: usize = 16;
const RECORD_LOST: u32 = 2;
const RECORD_MMAP2: u32 = 10;
/// Bytes of a MMAP2 record before the file name.
const MMAP2_NAME: usize = 72;

/// A process mapped a traced library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The process.
    pub pid: u32,
    /// Which library.
    pub library: Library,
    /// Its path, as the kernel saw it.
    pub path: String,
    /// The file. Some file systems give it another device number elsewhere.
    pub file: FileId,
    /// When, `CLOCK_MONOTONIC` ns.
    pub at_ns: u64,
}

impl Mapping {
    /// The library, as far as it can be found after its process has ended.
    pub(crate) fn left_behind(&self) -> LeftBehind {
        LeftBehind { library: self.library, path: self.path.clone(), inode: self.file.inode }
    }
}

/// New mappings since the last call.
#[derive(Debug, Default)]
pub struct News {
    /// Traced libraries newly mapped.
    pub mappings: Vec<Mapping>,
    /// Records the kernel dropped because the buffer was full: look at every process again.
    pub lost: u64,
}

/// Watches every CPU.
pub struct MapWatch {
    rings: Vec<Ring>,
}

impl MapWatch {
    /// Begins watching.
    pub fn new() -> Result<Self> {
        let rings = perf::on_every_cpu(Ring::open).map_err(|source| CaptureError::MapWatch { source })?;
        Ok(Self { rings })
    }

    /// File descriptors that become readable when there is news.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.rings.iter().map(|r| r.fd.as_raw_fd())
    }

    /// Takes what has come in.
    pub fn take(&mut self) -> News {
        let mut news = News::default();
        for ring in &mut self.rings {
            ring.drain(&mut news);
        }
        news
    }
}

/// One CPU's buffer, shared with the kernel.
struct Ring {
    fd: OwnedFd,
    base: *mut u8,
    page: usize,
    scratch: Vec<u8>,
}

impl Ring {
    fn open(cpu: i32) -> std::io::Result<Self> {
        let attr = PerfEventAttr {
            kind: perf::SOFTWARE,
            size: size_of::<PerfEventAttr>() as u32,
            config: perf::DUMMY,
            sample_type: perf::SAMPLE_TIME,
            // mmap, watermark, sample_id_all, mmap2, use_clockid
            flags: 1 << 8 | 1 << 14 | 1 << 18 | 1 << 23 | 1 << 25,
            wakeup: 1, // bytes: wake at once
            clock: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        let fd = perf::open(&attr, cpu)?;
        // SAFETY: sysconf reads a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a fresh mapping of a perf descriptor; unmapped in Drop.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (DATA_PAGES + 1) * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { fd, base: base.cast(), page, scratch: Vec::new() })
    }

    /// `data_head` and `data_tail` stand at these offsets of the first page (linux/perf_event.h).
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the mapped first page, aligned to 8, shared with the kernel as an atomic word.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    fn drain(&mut self, news: &mut News) {
        let head = self.position(1024).load(Ordering::Acquire);
        let mut tail = self.position(1032).load(Ordering::Relaxed);
        while head.wrapping_sub(tail) >= 8 {
            let header = self.copy(tail, 8);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let size = u16::from_ne_bytes([header[6], header[7]]) as usize;
            if size < 8 || size as u64 > head.wrapping_sub(tail) {
                tail = head; // not a record: give up what is there rather than misread it
                news.lost += 1;
                break;
            }
            match kind {
                RECORD_MMAP2 => news.mappings.extend(parse_mmap2(self.copy(tail, size))),
                RECORD_LOST => news.lost += 1,
                _ => {}
            }
            tail = tail.wrapping_add(size as u64);
        }
        self.position(1032).store(tail, Ordering::Release);
    }

    /// Copies a record out of the ring, which may wrap around.
    fn copy(&mut self, at: u64, size: usize) -> &[u8] {
        let capacity = DATA_PAGES * self.page;
        self.scratch.clear();
        for i in 0..size {
            let offset = (at as usize).wrapping_add(i) % capacity;
            // SAFETY: the offset is below the capacity of the data pages, which follow the first page.
            self.scratch.push(unsafe { self.base.add(self.page + offset).read_volatile() });
        }
        &self.scratch
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), (DATA_PAGES + 1) * self.page) };
    }
}

fn parse_mmap2(record: &[u8]) -> Option<Mapping> {
    let half = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let word = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let name = record.get(MMAP2_NAME..)?.split(|b| *b == 0).next()?;
    let file = name.rsplit(|b| *b == b'/').next()?;
    let library = Library::of_file(std::str::from_utf8(file).ok()?)?;
    Some(Mapping {
        pid: half(8)?,
        library,
        path: String::from_utf8_lossy(name).into_owned(),
        file: FileId { device: libc::makedev(half(40)?, half(44)?), inode: word(48)? },
        // The time stands at the end of every record.
        at_ns: word(record.len().checked_sub(8)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_its_process_library_file_and_time() {
        let mut record = vec![0u8; MMAP2_NAME];
        record[8..12].copy_from_slice(&77u32.to_ne_bytes());
        record[40..44].copy_from_slice(&8u32.to_ne_bytes());
        record[44..48].copy_from_slice(&1u32.to_ne_bytes());
        record[48..56].copy_from_slice(&42u64.to_ne_bytes());
        record.extend_from_slice(b"/opt/x/libcudart.so.13\0\0");
        record.extend_from_slice(&999u64.to_ne_bytes());
        let mapping = parse_mmap2(&record).unwrap();
        assert_eq!((mapping.pid, mapping.library, mapping.at_ns), (77, Library::Runtime, 999));
        assert_eq!(mapping.path, "/opt/x/libcudart.so.13");
        assert_eq!(mapping.file, FileId { device: libc::makedev(8, 1), inode: 42 });
        record.truncate(MMAP2_NAME);
        record.extend_from_slice(b"/lib/libc.so.6\0");
        assert_eq!(parse_mmap2(&record), None);
        assert_eq!(parse_mmap2(&record[..20]), None);
    }
}
