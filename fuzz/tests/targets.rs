// SPDX-License-Identifier: Apache-2.0
//! Runs every target on a fixed number of inputs, or for FUZZ_SECONDS (`make fuzz`).
#![allow(missing_docs, clippy::unwrap_used)]

use gpuwhy_fuzz::targets::ALL;
use gpuwhy_fuzz::{Counting, Effort, run};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_target_fails() {
    let effort = Effort::from_env().unwrap();
    let asked = std::env::var("FUZZ_TARGET").ok();
    let chosen: Vec<_> = ALL.iter().filter(|target| asked.as_deref().is_none_or(|name| name == target.name)).collect();
    let names: Vec<_> = ALL.iter().map(|target| target.name).collect();
    assert!(!chosen.is_empty(), "invalid FUZZ_TARGET: use one of {}", names.join(", "));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    let mut failures = Vec::new();
    for target in chosen {
        match run(target, effort, &folder) {
            Ok(tried) => {
                assert!(tried > 0, "{}: no input was tried", target.name);
                println!("{}: {tried} inputs", target.name);
            }
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
