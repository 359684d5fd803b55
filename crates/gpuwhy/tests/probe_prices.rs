// SPDX-License-Identifier: Apache-2.0
//! What a call is said to cost is the price of a probe on that function's first instruction, not on a usual one's.
//!
//! No times are asserted: prices are compared with each other, as measured in the same run.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Place, can_trace, number, one_at_a_time, succeed};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A driver whose functions do nothing and begin as said. A probe on `sub` is single-stepped, one on `push` is emulated.
const DRIVER: &str = r#"
#define FUNCTION(name, first, undo) \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" first "\n" undo \
            "\nxorl %eax, %eax\nret\n.size " #name ", . - " #name);
FUNCTION(cuInit, "push %rbp", "pop %rbp")
FUNCTION(cuMemcpyAsync, "push %rbp", "pop %rbp")
FUNCTION(cuMemsetD8Async, "sub $8, %rsp", "add $8, %rsp")
FUNCTION(cuStreamSynchronize, "endbr64\nsub $0x100, %rsp", "add $0x100, %rsp")
"#;

const PROGRAM: &str = r#"
int cuMemcpyAsync(void *, void *, unsigned long, void *);
int cuMemsetD8Async(void *, unsigned char, unsigned long, void *);
int cuStreamSynchronize(void *);
int main(void)
{
    for (int i = 0; i < 1000; i++)
        cuMemcpyAsync(0, 0, 8, 0);
    for (int i = 0; i < 700; i++)
        cuMemsetD8Async(0, 0, 8, 0);
    for (int i = 0; i < 300; i++)
        cuStreamSynchronize(0);
    return 0;
}
"#;

fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) {
    let file = folder.join("source.c");
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    succeed(Command::new(compiler).current_dir(folder).arg(&file).args(["-O1", "-fPIC", "-o", name]).args(flags));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn each_function_has_the_price_of_its_first_instruction() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let folder = place.dir.path();
    compile(folder, "libcuda.so.1", DRIVER, &["-shared", "-Wl,-soname,libcuda.so.1"]);
    compile(folder, "program", PROGRAM, &["libcuda.so.1"]);
    let mut trace = place.trace();
    trace.args(["--budget", "none", "--no-host", "--quiet", "--"]).arg(folder.join("program"));
    succeed(trace.env("LD_LIBRARY_PATH", folder));
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cuMemsetD8Async'"), 700);
    let text: String = db.query_row("SELECT own_cost FROM sessions", [], |row| row.get(0)).unwrap();
    let costs: Value = serde_json::from_str(&text).unwrap();
    let job = &costs["job"];
    let kinds = job["by_instruction"].as_array().unwrap();
    let of =
        |name: &str| kinds.iter().find(|kind| kind["first_instruction"] == name).unwrap_or_else(|| panic!("{text}"));
    let (push, sub) = (of("push"), of("sub"));
    assert_eq!(kinds.len(), 2, "{text}");
    assert_eq!(push["functions"], serde_json::json!(["cuMemcpyAsync"]));
    assert_eq!(sub["functions"], serde_json::json!(["cuMemsetD8Async", "cuStreamSynchronize"]));
    assert_eq!((&push["calls"], &sub["calls"]), (&1000.into(), &1000.into()));
    // The usual price is that of a push; of each kind the price was used that was measured for it.
    assert_eq!(job["call_ns"], push["call_ns"]);
    let figure = |of: &Value, name: &str| of[name].as_f64().unwrap();
    let measured = figure(sub, "call_ns") / figure(push, "call_ns");
    let used = figure(sub, "cost_ns") / figure(push, "cost_ns");
    assert!((used / measured - 1.0).abs() < 0.01, "{used} and {measured}: {text}");
    assert!(measured > 0.0 && measured.is_finite(), "{text}");
    println!("a probe on sub costs {measured:.1} times as much as one on push: {text}");
}
