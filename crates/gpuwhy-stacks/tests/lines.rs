// SPDX-License-Identifier: Apache-2.0
//! Line tables of the whole standard library, instruction by instruction, as each interpreter reads them itself.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in test functions; their helpers are the same")]

mod common;

use common::{Interpreter, interpreters};
use gpuwhy_stacks::python::{Version, lines};
use std::process::{Command, Stdio};

/// Takes numbers and bytes off the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, size: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(size);
        self.0 = rest;
        bytes
    }

    fn number(&mut self) -> i32 {
        i32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
}

#[test]
fn every_instruction_of_the_standard_library_has_pythons_line() {
    let interpreters = interpreters();
    std::thread::scope(|scope| {
        for interpreter in &interpreters {
            scope.spawn(|| compare(interpreter));
        }
    });
}

fn compare(interpreter: &Interpreter) {
    let version = Version::three(interpreter.minor);
    let output = Command::new(&interpreter.program)
        .args(["-I", "-W", "ignore", "-c", include_str!("all_lines.py")])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", interpreter.version);
    let mut input = Input(&output.stdout);
    let (mut codes, mut instructions) = (0, 0);
    while !input.0.is_empty() {
        let (first, size, ranges) = (input.number(), input.number() as usize, input.number());
        let table = input.bytes(size);
        for _ in 0..ranges {
            let (begin, end, line) = (input.number(), input.number(), input.number());
            let wanted = u32::try_from(line).ok().filter(|line| *line > 0);
            for lasti in (begin..end).step_by(2) {
                let found = lines::line(version, table, first, lasti);
                assert_eq!(found, wanted, "{}: {table:?} from {first} at {lasti}", interpreter.version);
                instructions += 1;
            }
        }
        codes += 1;
    }
    assert!(codes > 1000, "{}: only {codes} functions", interpreter.version);
    println!("{}: {codes} functions, {instructions} instructions equal", interpreter.version);
}
