// SPDX-License-Identifier: Apache-2.0
//! The kernel's walker, run here on another process: for tests, and to see what it would see.

use super::code::{PyCode, PyStack};
use super::offsets::PyProcess;

/// `struct py_scratch`.
#[repr(C, align(8))]
struct Scratch([u8; SCRATCH_BYTES]);

/// Its size; a test compares it with C's.
pub const SCRATCH_BYTES: usize = 256 + 2048 + 32;

unsafe extern "C" {
    static host_layout_entries: u32;
    static host_layout: [u32; 0];
    fn host_attach(pid: libc::pid_t);
    fn host_reads() -> u64;
    fn host_find_tstate(p: *const PyProcess, s: *mut Scratch, thread_pointer: u64, cached: u64) -> u64;
    fn host_walk(p: *const PyProcess, s: *mut Scratch, tstate: u64, out: *mut PyStack);
    fn host_site_hash(p: *const PyProcess, s: *mut Scratch, thread_pointer: u64, tstate: u64) -> u64;
    fn host_read_code(p: *const PyProcess, s: *mut Scratch, code: u64, out: *mut PyCode);
    fn host_code_size(code: *const PyCode) -> u32;
}

/// Walks one process.
pub struct Walker {
    pid: u32,
    process: PyProcess,
    scratch: Scratch,
    reads: u64,
}

impl Walker {
    /// For a process that [`super::find`] found.
    pub fn new(pid: u32, process: PyProcess) -> Self {
        Self { pid, process, scratch: Scratch([0; SCRATCH_BYTES]), reads: 0 }
    }

    /// Reads of the process's memory that the last call took.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The state of the thread with this thread pointer, or 0.
    pub fn find_tstate(&mut self, thread_pointer: u64, cached: u64) -> u64 {
        // SAFETY: C reads the process's description and writes the scratch, both ours and laid out as in C.
        self.counted(|p, s| unsafe { host_find_tstate(p, s, thread_pointer, cached) })
    }

    /// A thread's frames.
    pub fn walk(&mut self, tstate: u64) -> PyStack {
        let mut stack = PyStack::default();
        // SAFETY: as above; `stack` is laid out as in C.
        self.counted(|p, s| unsafe { host_walk(p, s, tstate, &raw mut stack) });
        stack
    }

    /// A hash of where a thread is, or 0.
    pub fn site_hash(&mut self, thread_pointer: u64, tstate: u64) -> u64 {
        // SAFETY: as in `find_tstate`.
        self.counted(|p, s| unsafe { host_site_hash(p, s, thread_pointer, tstate) })
    }

    /// A code object as a ring record would bring it.
    pub fn read_code(&mut self, code: u64) -> Vec<u8> {
        let mut raw = PyCode::default();
        // SAFETY: as above; `raw` is laid out as in C, and its used size is not more than its size.
        self.counted(|p, s| unsafe {
            host_read_code(p, s, code, &raw mut raw);
            let size = (host_code_size(&raw const raw) as usize).min(size_of::<PyCode>());
            std::slice::from_raw_parts((&raw const raw).cast::<u8>(), size).to_vec()
        })
    }

    fn counted<T>(&mut self, call: impl FnOnce(*const PyProcess, *mut Scratch) -> T) -> T {
        // SAFETY: sets two variables of this thread.
        unsafe { host_attach(self.pid as libc::pid_t) };
        let result = call(&raw const self.process, &raw mut self.scratch);
        // SAFETY: reads one of them.
        self.reads = unsafe { host_reads() };
        result
    }
}

/// Sizes and offsets as C has them, in the order of `host_walker.c`.
pub fn layout() -> &'static [u32] {
    // SAFETY: a constant array and the number of its entries.
    unsafe { std::slice::from_raw_parts((&raw const host_layout).cast(), host_layout_entries as usize) }
}
