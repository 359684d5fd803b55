// SPDX-License-Identifier: Apache-2.0
//! libFuzzer for any of the targets; FUZZ_TARGET says which.
#![no_main]

use gpuwhy_fuzz::{Target, targets::ALL};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

fn target() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let names: Vec<_> = ALL.iter().map(|target| target.name).collect();
        ALL.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("FUZZ_TARGET is one of {}", names.join(", ")))
    })
}

fuzz_target!(|data: &[u8]| (target().run)(data));
