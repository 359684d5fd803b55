// SPDX-License-Identifier: Apache-2.0
//! Any bytes at all through the snapshot reader and its analysis: no panic, no memory beyond the limit.
//! Good seeds are the unpacked snapshots under crates/gpuwhy-torch/tests/data.
#![no_main]

use gpuwhy_torch::snapshot::{Options, analyse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let options = Options { memory_limit_bytes: 64 << 20, ..Options::default() };
    let _ = analyse(data, &options, None);
});
