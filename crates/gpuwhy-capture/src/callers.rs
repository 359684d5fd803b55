// SPDX-License-Identifier: Apache-2.0
//! Who made a driver call, where the kernel could not tell: looked up in the process's mappings.

use crate::procmaps;
use gpuwhy_model::{Call, Library, LossCause, OpId};
use std::collections::HashMap;
use std::ops::Range;

/// Call sites remembered; a process has a handful. Beyond that all are forgotten and looked up again.
const MOST: usize = 4096;
/// Processes whose code is remembered, and parts of it; PyTorch has some two hundred.
const MOST_PROCESSES: usize = 256;
const MOST_PARTS: usize = 1024;

/// Where a process has code, and which CUDA library each part is of, if any.
type Code = Vec<(Range<u64>, Option<Library>)>;

/// Answers, remembered by process and address.
#[derive(Default)]
pub(crate) struct Callers {
    known: HashMap<(u32, u64), Option<Library>>,
    /// Where processes had their code when last looked at: for calls that are settled when their process is gone.
    code: HashMap<u32, Code>,
    unknown: HashMap<OpId, u64>,
}

impl Callers {
    /// Names the call by what the program called. `None` for a call that belongs to an untraced function of
    /// the runtime, unless inner calls are wanted.
    pub(crate) fn settle(&mut self, mut call: Call, address: u64, all_layers: bool) -> Option<Call> {
        match self.library(call.pid, address) {
            None => *self.unknown.entry(call.op).or_default() += 1,
            // Inside another call: a CUDA library's doing, unless the program was called back.
            Some(library) if call.flags.inner => call.flags.inner = library.is_some(),
            Some(Some(Library::Runtime)) => match call.op.get().and_then(|op| op.runtime_twin) {
                Some(twin) => call.op = twin,
                None => call.flags.inner = true,
            },
            Some(_) => {}
        }
        (all_layers || !call.flags.inner).then_some(call)
    }

    fn library(&mut self, pid: u32, address: u64) -> Option<Option<Library>> {
        if let Some(answer) = self.known.get(&(pid, address)) {
            return Some(*answer);
        }
        let answer = match std::fs::read(format!("/proc/{pid}/maps")) {
            Ok(maps) if !maps.is_empty() => procmaps::library_at(&String::from_utf8_lossy(&maps), address),
            // It has ended.
            _ => self.code.get(&pid)?.iter().find(|(part, _)| part.contains(&address)).map(|(_, library)| *library),
        }?;
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert((pid, address), answer);
        Some(answer)
    }

    /// Remembers where a process has its code.
    pub(crate) fn remember(&mut self, pid: u32) {
        let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else { return };
        if maps.is_empty() || self.code.len() >= MOST_PROCESSES && !self.code.contains_key(&pid) {
            return;
        }
        self.code.insert(pid, procmaps::code(&String::from_utf8_lossy(&maps)).take(MOST_PARTS).collect());
    }

    /// Forgets a process that runs another program now, or none.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.known.retain(|(known, _), _| *known != pid);
        self.code.remove(&pid);
    }

    /// Calls whose caller could not be told even so, since the last time.
    pub(crate) fn take_loss(&mut self) -> impl Iterator<Item = (LossCause, Option<OpId>, u64)> + '_ {
        self.unknown.drain().map(|(op, count)| (LossCause::CallerUnknown, Some(op), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::{CallFlags, ops};

    fn call(function: &str, pid: u32) -> Call {
        let op = ops::by_function(function).unwrap().id;
        let (start_ns, duration_ns, tid, device, stream, arg0, arg1, ret) = (1, 1, 1, None, None, None, None, 0);
        Call {
            start_ns,
            duration_ns,
            pid,
            tid,
            op,
            device,
            stream,
            arg0,
            arg1,
            ret,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        }
    }

    #[test]
    fn a_launch_from_the_runtime_gets_the_runtimes_name_and_other_calls_from_it_are_inner() {
        let mut callers = Callers::default();
        callers.known.insert((7, 0x1000), Some(Library::Runtime));
        callers.known.insert((7, 0x2000), None);
        let name = |call: Option<Call>| call.and_then(|c| c.op.get()).map(|op| op.function.as_str());
        assert_eq!(name(callers.settle(call("cuLaunchKernel", 7), 0x1000, false)), Some("cudaLaunchKernel"));
        assert_eq!(name(callers.settle(call("cuLaunchKernel", 7), 0x2000, false)), Some("cuLaunchKernel"));
        assert_eq!(callers.settle(call("cuCtxSetCurrent", 7), 0x1000, false), None);
        assert!(callers.settle(call("cuCtxSetCurrent", 7), 0x1000, true).unwrap().flags.inner);
        let nested = Call { flags: CallFlags { inner: true, unfinished: false }, ..call("cuMemAlloc_v2", 7) };
        assert_eq!(callers.settle(nested, 0x1000, false), None);
        assert!(!callers.settle(nested, 0x2000, false).unwrap().flags.inner, "the program was called back");
    }

    #[test]
    fn own_code_is_not_the_runtimes_and_what_cannot_be_told_is_counted() {
        let (mut callers, here) = (Callers::default(), own_code as fn() as usize as u64);
        let own = std::process::id();
        assert!(callers.settle(call("cuLaunchKernel", own), here, false).is_some());
        assert_eq!(callers.take_loss().count(), 0);
        assert!(callers.settle(call("cuLaunchKernel", own), 8, false).is_some(), "kept, under the driver's name");
        assert_eq!(callers.take_loss().map(|(_, _, n)| n).sum::<u64>(), 1);
    }

    #[test]
    fn who_called_is_known_of_a_process_that_has_ended() {
        let mut callers = Callers::default();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        callers.remember(pid);
        let code = callers.code[&pid][0].0.start;
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(callers.settle(call("cuLaunchKernel", pid), code, false).is_some());
        assert_eq!(callers.take_loss().count(), 0);
        callers.forget_process(pid);
        assert!(callers.settle(call("cuLaunchKernel", pid), code, false).is_some());
        assert_eq!(callers.take_loss().map(|(_, _, n)| n).sum::<u64>(), 1);
    }

    fn own_code() {}
}
