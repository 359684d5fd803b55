// SPDX-License-Identifier: Apache-2.0
//! Rust's structs are laid out as those in `bpf/python.h`.

use gpuwhy_stacks::python::{PyCode, PyFrame, PyOffsets, PyProcess, PyStack, host};
use std::mem::offset_of;

macro_rules! layout {
    ($($type:ty { $($field:ident),* })*) => {
        vec![$(size_of::<$type>(), $(offset_of!($type, $field)),*),*]
    };
}

#[test]
fn as_in_c() {
    let mut rust = layout! {
        PyProcess { runtime, at }
        PyOffsets {
            version, chain, lasti, shim_owner, kind_shift, free_threaded, runtime_interpreters, interpreter_next,
            interpreter_threads, tstate_prev, tstate_next, tstate_interpreter, tstate_frame, tstate_thread_id,
            cframe_frame, frame_code, frame_previous, frame_lasti, frame_owner, frame_tlbc, frame_bytes, code_from,
            code_bytes, code_first_line, code_file, code_name, code_qualname, code_table, code_first_traceable,
            code_bytecode, code_tlbc, bytes_size, bytes_data, text_length, text_ascii, text_compact,
            frame_locals
        }
        PyFrame { code, lasti, check }
        PyStack { count, status, frames }
        PyCode {
            code, check, first_line, file_bytes, name_bytes, table_bytes, file_width, name_width, status, file, name,
            table
        }
    };
    rust.push(host::SCRATCH_BYTES);
    let c: Vec<usize> = host::layout().iter().map(|at| *at as usize).collect();
    assert_eq!(rust, c);
    assert_eq!(size_of::<PyCode>(), 4096);
    assert_eq!(size_of::<PyProcess>(), 88, "no padding, so that it can be written to a map as bytes");
}
