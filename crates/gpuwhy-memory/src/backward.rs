// SPDX-License-Identifier: Apache-2.0
//! Tensors that autograd's own threads allocate while another thread waits in `backward()`. Those threads run no Python, so
//! their reports have no stack: gradients, often half of a job's memory, would be nobody's. But the thread that calls
//! `backward()` makes the first gradient itself, right before it waits, and that report's stack stands in PyTorch's
//! autograd. Until it allocates somewhere else, it is that call which the others work for. Where the budget is tight and
//! that small report has no stack, it is still the only such call that the process makes, if there is one only.

use crate::facts::SiteFact;
use gpuwhy_model::TensorEvent;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where `backward()` and `grad()` are.
const AUTOGRAD: &str = "torch/autograd/__init__.py";
/// Threads of a process that are remembered: those that allocated last.
const MOST_THREADS: usize = 16;

/// Which of these stacks stand in a call of `backward()`.
pub fn backward_stacks(words: &HashMap<u64, SiteFact>) -> BTreeSet<u64> {
    let stands_in = |fact: &SiteFact| {
        fact.frames.iter().any(|frame| frame.split_once(".py:").is_some_and(|(file, _)| is_autograd(file)))
    };
    words.iter().filter(|(_, fact)| stands_in(fact)).map(|(stack, _)| *stack).collect()
}

/// A file's path without its ending.
fn is_autograd(file: &str) -> bool {
    AUTOGRAD.strip_suffix(".py").and_then(|name| file.strip_suffix(name)).is_some_and(|left| left.ends_with('/'))
}

/// Knows which call of `backward()` a report without a stack belongs to, and which reports have lost theirs.
#[derive(Debug, Default)]
pub(crate) struct BackwardWatch {
    calls: BTreeSet<u64>,
    /// The stacks in which the threads of a process allocated last, the latest last.
    last: BTreeMap<u32, Vec<(u32, u64)>>,
    /// Threads that worked for such calls, by process, and the calls.
    helpers: BTreeMap<u32, (BTreeSet<u32>, BTreeSet<u64>)>,
    /// When a thread of the process that runs Python first reported without a stack: from then on the budget was tight.
    thinned: BTreeMap<u32, u64>,
}

impl BackwardWatch {
    pub(crate) fn new(calls: BTreeSet<u64>) -> Self {
        Self { calls, ..Self::default() }
    }

    /// The stack an allocation counts for: its own, or that of the call it is a part of.
    pub(crate) fn stack_of(&mut self, event: &TensorEvent) -> Option<u64> {
        let threads = self.last.entry(event.pid).or_default();
        let Some(stack) = event.stack else {
            if threads.iter().any(|(tid, _)| *tid == event.tid) {
                self.thinned.entry(event.pid).or_insert(event.at_ns);
            }
            // The thread's own last stack says nothing: under a tight budget reports lose theirs.
            let other = threads.iter().rev().find(|(tid, _)| *tid != event.tid);
            let call = other.map(|(_, stack)| *stack).filter(|stack| self.calls.contains(stack));
            return self.helped(event, call);
        };
        threads.retain(|(tid, _)| *tid != event.tid);
        if threads.len() >= MOST_THREADS {
            threads.remove(0);
        }
        threads.push((event.tid, stack));
        Some(stack)
    }

    /// From when on lines of small tensors are missing in a process, ns.
    pub(crate) fn thinned_from(&self, pid: u32) -> Option<u64> {
        self.thinned.get(&pid).copied()
    }
}

impl BackwardWatch {
    /// The call a thread without Python works for, where that is known or was the same before.
    fn helped(&mut self, event: &TensorEvent, call: Option<u64>) -> Option<u64> {
        let (threads, calls) = self.helpers.entry(event.pid).or_default();
        if let Some(call) = call {
            threads.insert(event.tid);
            calls.insert(call);
            return Some(call);
        }
        let only = calls.first().copied().filter(|_| calls.len() == 1);
        only.filter(|_| threads.contains(&event.tid))
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
        assert_eq!(stack_of(1, 20, None), None, "nobody waits in backward()");
        assert_eq!(stack_of(1, 10, Some(57)), Some(57));
        assert_eq!(stack_of(1, 20, None), Some(57));
        assert_eq!(stack_of(1, 10, None), None, "its own stack was not taken");
        assert_eq!(stack_of(2, 20, None), None, "another process");
        // A custom function's Python, on autograd's thread.
        assert_eq!(stack_of(1, 20, Some(99)), Some(99));
        assert_eq!(stack_of(1, 20, None), Some(57));
        assert_eq!(stack_of(1, 10, Some(58)), Some(58));
        assert_eq!(stack_of(1, 20, None), Some(57), "it works for nobody else");
        assert_eq!(stack_of(1, 30, None), None, "another thread may");
        assert_eq!(stack_of(1, 10, Some(77)), Some(77));
        assert_eq!(stack_of(1, 20, None), Some(77));
        assert_eq!(stack_of(1, 10, Some(58)), Some(58));
        assert_eq!(stack_of(1, 20, None), None, "for which of two is not known");
    }
}
