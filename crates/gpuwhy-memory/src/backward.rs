// SPDX-License-Identifier: Apache-2.0
//! Assigns tensors that autograd's threads allocate to the line that called `backward()`. These threads run no Python, so
//! their reports have no stack, and gradients, often half of a job's memory, would have no line. But the thread that calls
//! `backward()` makes the first gradient itself, right before it waits, and the stack of that report is in PyTorch's
//! autograd. Until it allocates elsewhere, the other threads work for that call. If that small report has no stack because
//! the budget is tight, they work for the only such call that the process was seen to make, if there is exactly one.
//! Python on autograd's threads (custom functions, recomputed activations, compiled code) has and keeps its own stack.

use crate::facts::SiteFact;
use gpuwhy_model::TensorEvent;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The file with `backward()` and `grad()`.
const AUTOGRAD: &str = "torch/autograd/__init__.py";
/// Threads remembered of a process: the last that ran Python and allocated, and autograd's.
const MOST_THREADS: usize = 16;
const MOST_HELPERS: usize = 1024;

/// The stacks that are in a call of `backward()`.
pub fn backward_stacks(words: &HashMap<u64, SiteFact>) -> BTreeSet<u64> {
    words.iter().filter(|(_, fact)| calls_backward(fact)).map(|(stack, _)| *stack).collect()
}

/// Whether a stack is in a call of `backward()`.
pub(crate) fn calls_backward(fact: &SiteFact) -> bool {
    fact.frames.iter().any(|frame| frame.split_once(".py:").is_some_and(|(file, _)| is_autograd(file)))
}

/// A file's path without its ending.
fn is_autograd(file: &str) -> bool {
    AUTOGRAD.strip_suffix(".py").and_then(|name| file.strip_suffix(name)).is_some_and(|left| left.ends_with('/'))
}

/// A thread that runs Python.
#[derive(Debug, Clone, Copy)]
struct Caller {
    tid: u32,
    /// The stack of its last allocation that has one.
    stack: u64,
    /// It has allocated without a stack since then: the budget is tight.
    lost: bool,
}

/// A process.
#[derive(Debug, Default)]
struct Process {
    /// Threads that run Python, the one that allocated last at the end.
    callers: Vec<Caller>,
    /// Threads that allocated for a call of `backward()` and had run no Python before.
    helpers: BTreeSet<u32>,
    /// Calls of `backward()` seen in this process.
    calls: BTreeSet<u64>,
    /// When the first stack was missing, ns.
    thinned: Option<u64>,
}

/// Finds the call of `backward()` that a report without a stack belongs to, and reports that lost their stack.
#[derive(Debug, Default)]
pub(crate) struct BackwardWatch {
    calls: BTreeSet<u64>,
    processes: BTreeMap<u32, Process>,
}

impl BackwardWatch {
    pub(crate) fn new(calls: BTreeSet<u64>) -> Self {
        Self { calls, ..Self::default() }
    }

    pub(crate) fn set_calls(&mut self, calls: BTreeSet<u64>) {
        self.calls = calls;
    }

    pub(crate) fn knows_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn take_calls(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.calls)
    }

    /// A process has ended; its id may be used again.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// The stack an allocation counts for: its own, or that of its call of `backward()`.
    pub(crate) fn stack_of(&mut self, event: &TensorEvent) -> Option<u64> {
        let process = self.processes.entry(event.pid).or_default();
        match event.stack {
            Some(stack) => {
                // Python on autograd's own thread, such as a custom function, does not call `backward()`.
                if !process.helpers.contains(&event.tid) {
                    process.calls.extend(self.calls.get(&stack));
                    process.call(Caller { tid: event.tid, stack, lost: false });
                }
                Some(stack)
            }
            None => process.without_stack(event, &self.calls),
        }
    }

    /// The call that a thread without Python works for now, if that is certain.
    pub(crate) fn waiting_for(&self, pid: u32, tid: u32) -> Option<u64> {
        let process = self.processes.get(&pid).filter(|_| tid != pid)?;
        let is_caller = process.callers.iter().any(|caller| caller.tid == tid);
        process.waiting(&self.calls).filter(|_| !is_caller)
    }

    /// The time from which on lines of small tensors are missing in a process, ns.
    pub(crate) fn thinned_from(&self, pid: u32) -> Option<u64> {
        self.processes.get(&pid)?.thinned
    }
}

impl Process {
    fn call(&mut self, caller: Caller) {
        self.callers.retain(|known| known.tid != caller.tid);
        if self.callers.len() >= MOST_THREADS {
            self.callers.remove(0);
        }
        self.callers.push(caller);
    }

    fn without_stack(&mut self, event: &TensorEvent, calls: &BTreeSet<u64>) -> Option<u64> {
        if let Some(caller) = self.callers.iter().find(|caller| caller.tid == event.tid) {
            // It runs Python, but this report has no stack.
            self.thinned.get_or_insert(event.at_ns);
            self.call(Caller { lost: true, ..*caller });
            return None;
        }
        let only = || self.only_call().filter(|_| self.callers.iter().any(|caller| caller.lost));
        let call = self.waiting(calls).or_else(only);
        // The main thread is never one of autograd's.
        let call = call.filter(|_| event.tid != event.pid)?;
        if self.helpers.len() < MOST_HELPERS {
            self.helpers.insert(event.tid);
        }
        Some(call)
    }

    /// The latest call that has started and, as far as was seen, not returned.
    fn waiting(&self, calls: &BTreeSet<u64>) -> Option<u64> {
        let waits = |caller: &&Caller| !caller.lost && calls.contains(&caller.stack);
        self.callers.iter().rev().find(waits).map(|caller| caller.stack)
    }

    fn only_call(&self) -> Option<u64> {
        self.calls.first().copied().filter(|_| self.calls.len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(frames: &[&str]) -> SiteFact {
        SiteFact { frames: frames.iter().map(|frame| (*frame).to_owned()).collect(), ..SiteFact::default() }
    }

    fn report(pid: u32, tid: u32, stack: Option<u64>) -> TensorEvent {
        let op = gpuwhy_model::ops::torch_op(gpuwhy_model::ops::TorchOp::Alloc);
        TensorEvent { at_ns: 0, pid, tid, op, device: 0, bytes: 1, address: 1, allocated: 1, reserved: 1, stack }
    }

    #[test]
    fn only_pytorchs_own_autograd_counts() {
        let words = HashMap::from([
            (1, fact(&["/venv/torch/autograd/__init__.py:231 _make_grads", "/a/train.py:57 train"])),
            (2, fact(&["/a/train.py:57 train"])),
            (3, fact(&["/a/mytorch/autograd/__init__.py:1 backward"])),
            (4, fact(&["/venv/torch/autograd/function.py:307 apply", "/a/torch/autograd/__init__.pyc:3 f"])),
        ]);
        assert_eq!(backward_stacks(&words), BTreeSet::from([1]));
    }

    #[test]
    fn threads_without_python_work_for_the_call_that_waits() {
        let mut watch = BackwardWatch::new(BTreeSet::from([57, 77]));
        let mut stack_of = |pid, tid, stack| watch.stack_of(&report(pid, tid, stack));
        assert_eq!(stack_of(1, 10, Some(55)), Some(55));
        assert_eq!(stack_of(1, 20, None), None, "no thread waits in backward()");
        assert_eq!(stack_of(1, 10, Some(57)), Some(57));
        assert_eq!(stack_of(1, 20, None), Some(57));
        assert_eq!(stack_of(2, 20, None), None, "another process");
        // A custom function's Python, on autograd's thread.
        assert_eq!(stack_of(1, 20, Some(99)), Some(99));
        assert_eq!(stack_of(1, 20, None), Some(57));
        // Another thread loads the next batch.
        assert_eq!(stack_of(1, 30, Some(12)), Some(12));
        assert_eq!(stack_of(1, 20, None), Some(57));
        // `autograd.grad()` with gradients made before it.
        assert_eq!(stack_of(1, 10, Some(58)), Some(58));
        assert_eq!(stack_of(1, 20, None), None, "backward() is over");
        assert_eq!(stack_of(1, 10, Some(77)), Some(77));
        assert_eq!(stack_of(1, 20, None), Some(77));
        assert_eq!(watch.thinned_from(1), None);
    }

    #[test]
    fn with_missing_stacks_only_certain_calls_are_assigned() {
        let mut watch = BackwardWatch::new(BTreeSet::from([57, 77]));
        let mut stack_of = |tid, stack| watch.stack_of(&report(1, tid, stack));
        assert_eq!(stack_of(1, Some(57)), Some(57));
        assert_eq!(stack_of(30, Some(12)), Some(12));
        assert_eq!(stack_of(30, None), None, "it runs Python: it loads the next batch, while backward() runs");
        assert_eq!(stack_of(1, None), None, "nor is the main thread one of autograd's");
        assert_eq!(stack_of(20, None), Some(57), "the only call");
        assert_eq!(stack_of(1, Some(77)), Some(77));
        assert_eq!(stack_of(1, None), None);
        assert_eq!(stack_of(20, None), None, "it could be either of two calls");
        assert!(watch.thinned_from(1).is_some());
        watch.forget(1);
        assert_eq!(watch.thinned_from(1), None);
    }
}
