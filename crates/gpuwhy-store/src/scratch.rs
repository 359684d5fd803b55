// SPDX-License-Identifier: Apache-2.0
//! SQLite's temporary files for readers: in memory, with limits on size and time.
//!
//! A sort that does not fit SQLite's cache uses temporary files, which SQLite limits neither in size nor in time: with
//! a limit of 1 s, one ran for 17 s and filled 4.4 GB of a disk. With `temp_store` in memory, the sort would be a
//! single step of SQLite's virtual machine, during which nothing checks the time. So readers use their own SQLite file
//! system (VFS), which forwards everything except temporary files to the default one. Temporary files are kept here:
//! writes beyond the size limit fail, and so does every read and write after the query's deadline. The data sorted
//! between two of these fits SQLite's cache.

use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The file system's name.
const NAME: &CStr = c"gpuwhy-scratch";
/// Memory is taken in pieces of so many bytes.
const PIECE: usize = 64 << 10;
/// Default limit for all temporary files of this process, bytes.
const USUAL_MOST: u64 = 1 << 30;

static MOST: AtomicU64 = AtomicU64::new(USUAL_MOST);
static TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The deadline of this thread's query.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Bounds the temporary files of all readers together, bytes.
pub(crate) fn limit(most: u64) {
    MOST.store(most, Ordering::Relaxed);
}

/// Sets the time after which temporary files of this thread's queries fail; returns the previous one.
pub(crate) fn fail_after(deadline: Option<Instant>) -> Option<Instant> {
    DEADLINE.replace(deadline)
}

fn is_late() -> bool {
    DEADLINE.get().is_some_and(|deadline| Instant::now() > deadline)
}

/// The name of the file system to open a file with; `None` if SQLite has none that it could stand before.
pub(crate) fn file_system() -> Option<&'static CStr> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    REGISTERED.get_or_init(register).then_some(NAME)
}

fn register() -> bool {
    // SAFETY: asks for the default file system, which lives as long as the process.
    let usual = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
    if usual.is_null() {
        return false;
    }
    // SAFETY: SQLite's description of its own file system, which it does not change.
    let mut ours = unsafe { *usual };
    ours.zName = NAME.as_ptr();
    ours.pNext = null_mut();
    ours.szOsFile = ours.szOsFile.max(size_of::<ScratchFile>() as c_int);
    ours.xOpen = Some(open);
    // It must live as long as SQLite does.
    let ours = Box::leak(Box::new(ours));
    // SAFETY: the description is complete, its functions are SQLite's own but for `open`, and it is never freed.
    unsafe { ffi::sqlite3_vfs_register(ours, 0) == ffi::SQLITE_OK }
}

/// The file object that SQLite allocates; SQLite knows only the first field.
#[repr(C)]
struct ScratchFile {
    base: ffi::sqlite3_file,
    /// From `Box::into_raw`, freed in `close`.
    pieces: *mut Pieces,
}

/// The bytes of a temporary file.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Box<[u8]>>,
    length: usize,
}

impl Pieces {
    /// Grows the file to at least this size; `false` if all temporary files together would be too large.
    fn reach(&mut self, length: usize) -> bool {
        while self.pieces.len() * PIECE < length {
            let room =
                |taken: u64| taken.checked_add(PIECE as u64).filter(|taken| *taken <= MOST.load(Ordering::Relaxed));
            if TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
                return false;
            }
            self.pieces.push(vec![0; PIECE].into_boxed_slice());
        }
        self.length = self.length.max(length);
        true
    }

    fn cut(&mut self, length: usize) {
        let pieces = length.div_ceil(PIECE);
        let freed = self.pieces.len().saturating_sub(pieces);
        self.pieces.truncate(pieces);
        TAKEN.fetch_sub((freed * PIECE) as u64, Ordering::Relaxed);
        self.length = self.length.min(length);
        // A later write beyond the end must find zeroes before it.
        if let Some(last) = self.pieces.last_mut() {
            let kept = self.length - (pieces - 1) * PIECE;
            last[kept..].fill(0);
        }
    }

    fn write(&mut self, bytes: &[u8], at: usize) -> bool {
        if !self.reach(at.saturating_add(bytes.len())) {
            return false;
        }
        let mut done = 0;
        while done < bytes.len() {
            let (piece, from) = ((at + done) / PIECE, (at + done) % PIECE);
            let part = (bytes.len() - done).min(PIECE - from);
            self.pieces[piece][from..from + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
        true
    }

    /// Fills `bytes` with what there is from `at` on, and zeroes; how many bytes there were.
    fn read(&self, bytes: &mut [u8], at: usize) -> usize {
        let there = self.length.saturating_sub(at).min(bytes.len());
        let mut done = 0;
        while done < there {
            let (piece, from) = ((at + done) / PIECE, (at + done) % PIECE);
            let part = (there - done).min(PIECE - from);
            bytes[done..done + part].copy_from_slice(&self.pieces[piece][from..from + part]);
            done += part;
        }
        bytes[there..].fill(0);
        there
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        TAKEN.fetch_sub((self.pieces.len() * PIECE) as u64, Ordering::Relaxed);
    }
}

const METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(with_number),
    xFileSize: Some(size),
    xLock: Some(with_number),
    xUnlock: Some(with_number),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};
static OUR_METHODS: ffi::sqlite3_io_methods = METHODS;

const TEMPORARY: c_int = ffi::SQLITE_OPEN_TEMP_DB
    | ffi::SQLITE_OPEN_TRANSIENT_DB
    | ffi::SQLITE_OPEN_TEMP_JOURNAL
    | ffi::SQLITE_OPEN_SUBJOURNAL;

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    if flags & TEMPORARY == 0 {
        // SAFETY: as in `register`; it was there then.
        let usual = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
        // SAFETY: SQLite's own file system gets what SQLite gave us, and its file fits: see `szOsFile`.
        return unsafe {
            (*usual).xOpen.map_or(ffi::SQLITE_CANTOPEN, |open| open(usual, name, file, flags, out_flags))
        };
    }
    let scratch = ScratchFile {
        base: ffi::sqlite3_file { pMethods: from_ref(&OUR_METHODS) },
        pieces: Box::into_raw(Box::default()),
    };
    // SAFETY: SQLite allocated `szOsFile` bytes for the file, aligned for any type; `out_flags` is null or its own.
    unsafe {
        file.cast::<ScratchFile>().write(scratch);
        if !out_flags.is_null() {
            *out_flags = flags;
        }
    }
    ffi::SQLITE_OK
}

/// The fields of a file that [`open`] created.
///
/// # Safety
/// `file` is such a file, not closed yet, and not used elsewhere meanwhile: SQLite uses a file from one thread at a
/// time.
unsafe fn pieces<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Pieces {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*file.cast::<ScratchFile>()).pieces }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once, and never uses it again.
    drop(unsafe { Box::from_raw((*file.cast::<ScratchFile>()).pieces) });
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, to: *mut c_void, amount: c_int, at: i64) -> c_int {
    let (Ok(amount), Ok(at)) = (usize::try_from(amount), usize::try_from(at)) else { return ffi::SQLITE_IOERR_READ };
    if is_late() {
        return ffi::SQLITE_INTERRUPT;
    }
    // SAFETY: one of our files, and a buffer of `amount` bytes that SQLite owns and that may not be initialised, so it
    // is before anything refers to it.
    let (pieces, to) = unsafe {
        to.cast::<u8>().write_bytes(0, amount);
        (pieces(file), std::slice::from_raw_parts_mut(to.cast::<u8>(), amount))
    };
    if pieces.read(to, at) == amount { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_SHORT_READ }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, from: *const c_void, amount: c_int, at: i64) -> c_int {
    let (Ok(amount), Ok(at)) = (usize::try_from(amount), usize::try_from(at)) else { return ffi::SQLITE_IOERR_WRITE };
    if is_late() {
        return ffi::SQLITE_INTERRUPT;
    }
    // SAFETY: one of our files, and `amount` bytes that SQLite wants written.
    let (pieces, bytes) = unsafe { (pieces(file), std::slice::from_raw_parts(from.cast::<u8>(), amount)) };
    if pieces.write(bytes, at) { ffi::SQLITE_OK } else { ffi::SQLITE_FULL }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    let Ok(length) = usize::try_from(length) else { return ffi::SQLITE_IOERR_TRUNCATE };
    // SAFETY: one of our files.
    unsafe { pieces(file) }.cut(length);
    ffi::SQLITE_OK
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, to: *mut i64) -> c_int {
    // SAFETY: one of our files, and a number of SQLite's.
    unsafe { *to = pieces(file).length as i64 };
    ffi::SQLITE_OK
}

/// Nothing to sync and nothing to lock.
unsafe extern "C" fn with_number(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn is_reserved(_: *mut ffi::sqlite3_file, to: *mut c_int) -> c_int {
    // SAFETY: a number of SQLite's.
    unsafe { *to = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector(_: *mut ffi::sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_gaps_are_zero_and_what_is_cut_is_gone() {
        let mut file = Pieces::default();
        let long: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        assert!(file.write(&long, 100_000));
        let mut back = vec![9; 300_100];
        assert_eq!(file.read(&mut back, 0), 300_000);
        assert!(back[..100_000].iter().all(|byte| *byte == 0) && back[100_000..300_000] == long[..]);
        assert_eq!(back[300_000..], [0; 100]);
        file.cut(150_000);
        assert!(file.write(&[7], 250_000));
        let mut back = [1; 3];
        assert_eq!((file.read(&mut back, 149_999), back), (3, [long[49_999], 0, 0]));
        assert_eq!(file.read(&mut back, 250_001), 0);
        file.cut(0);
        assert!(file.pieces.is_empty());
    }

    /// A sort of about 3 MB, with room for 100 kB in SQLite's cache.
    fn sort() -> rusqlite::Result<i64> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let db = rusqlite::Connection::open_with_flags_and_vfs(":memory:", flags, file_system().unwrap())?;
        db.pragma_update(None, "cache_size", -100)?;
        let numbers = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 30000)";
        let sql =
            format!("{numbers} SELECT COUNT(*) FROM (SELECT x FROM n ORDER BY randomblob(100) LIMIT -1 OFFSET 1)");
        db.query_row(&sql, [], |row| row.get(0))
    }

    #[test]
    fn a_sort_looks_at_the_clock_and_at_its_limit() {
        assert_eq!(sort(), Ok(29_999));
        let before = fail_after(Some(Instant::now()));
        let late = sort().unwrap_err();
        assert_eq!(late.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted), "{late}");
        assert!(fail_after(before).is_some());
        limit(1 << 20);
        let full = sort().unwrap_err();
        limit(USUAL_MOST);
        assert_eq!(full.sqlite_error_code(), Some(rusqlite::ErrorCode::DiskFull), "{full}");
        assert_eq!(sort(), Ok(29_999));
        assert_eq!(TAKEN.load(Ordering::Relaxed) % PIECE as u64, 0);
    }
}
