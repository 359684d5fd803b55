// SPDX-License-Identifier: Apache-2.0
//! Prints the Python stacks of a running process: `py_stack PID`.

use gpuwhy_stacks::python::host::Walker;
use gpuwhy_stacks::python::{self, Code, Memory, PyCode};
use gpuwhy_stacks::{Frame, Stack};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: py_stack PID")?.parse()?;
    let found = python::find(pid)?;
    let memory = Memory::of(pid)?;
    let mut walker = Walker::new(pid, found.process);
    println!("Python {} in {}, _PyRuntime at {:#x}", found.version, found.path, found.process.runtime);
    for id in memory.thread_ids(&found.process, 1024)? {
        let tstate = walker.find_tstate(id, 0);
        let stack = walker.walk(tstate);
        let named = stack.frames().iter().map(|frame| {
            let raw = PyCode::from_bytes(&walker.read_code(frame.code))?;
            let whole = raw.is_table_cut().then(|| memory.line_table(&found.process, frame.code).ok()).flatten();
            Some(Code::new(found.version, &raw, whole.as_deref()).frame(frame.lasti))
        });
        let frames: Vec<Frame> = named.map(|frame| frame.unwrap_or_else(Frame::unknown)).collect();
        let stack = Stack::new(&frames);
        println!("\nthread {id:#x}");
        for line in stack.frames.lines() {
            println!("  {line}{}", if stack.yours && line == stack.top_line { "   ← your code" } else { "" });
        }
    }
    Ok(())
}
