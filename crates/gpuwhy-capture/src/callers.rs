// SPDX-License-Identifier: Apache-2.0
//! Finds the library that made a driver call in the process's mappings, if the kernel could not identify it.

use crate::lookups::Refusal;
use gpuwhy_model::{Call, Library, LossCause, OpId};
use std::collections::HashMap;
use std::ops::Range;

/// Call sites remembered; a process has a handful. Beyond that all are forgotten and looked up again.
const MOST: usize = 4096;
/// Maximum number of processes whose code mappings are cached.
const MOST_PROCESSES: usize = 256;

/// The code mappings of a process, and the CUDA library of each, if any.
type Code = Vec<(Range<u64>, Option<Library>)>;
type LookUp<'a> = &'a mut dyn FnMut(u32, u64) -> Result<Option<Option<Library>>, Refusal>;

/// Answers, remembered by process and address.
#[derive(Default)]
pub(crate) struct Callers {
    known: HashMap<(u32, u64), Option<Library>>,
    /// The last known code mappings, for calls resolved after their process has ended.
    code: HashMap<u32, Code>,
    unknown: HashMap<OpId, u64>,
}

impl Callers {
    /// Names the call by what the program called. `None` for a call that belongs to an untraced function of
    /// the runtime, unless inner calls are wanted.
    ///
    /// `look_up` returns the CUDA library at an address of a process, if any: `None` if nothing is mapped there or the
    /// lookup timed out, an error if the process has ended.
    pub(crate) fn settle(
        &mut self,
        mut call: Call,
        address: u64,
        all_layers: bool,
        look_up: LookUp<'_>,
    ) -> Option<Call> {
        match self.library(call.pid, address, look_up) {
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

    fn library(&mut self, pid: u32, address: u64, look_up: LookUp<'_>) -> Option<Option<Library>> {
        if let Some(answer) = self.known.get(&(pid, address)) {
            return Some(*answer);
        }
        let answer = match look_up(pid, address) {
            Ok(answer) => answer,
            // It has ended.
            Err(_) => {
                self.code.get(&pid)?.iter().find(|(part, _)| part.contains(&address)).map(|(_, library)| *library)
            }
        }?;
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert((pid, address), answer);
        Some(answer)
    }

    /// Remembers where a process has its code.
    pub(crate) fn remember(&mut self, pid: u32, code: Code) {
        if self.code.len() < MOST_PROCESSES || self.code.contains_key(&pid) {
            self.code.insert(pid, code);
        }
    }

    /// Forgets a process that runs another program now, or none.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.known.retain(|(known, _), _| *known != pid);
        self.code.remove(&pid);
    }

    /// Calls since the last time whose caller is still unknown.
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
        assert_eq!(name(callers.settle(call("cuLaunchKernel", 7), 0x1000, false, &mut gone)), Some("cudaLaunchKernel"));
        assert_eq!(name(callers.settle(call("cuLaunchKernel", 7), 0x2000, false, &mut gone)), Some("cuLaunchKernel"));
        assert_eq!(callers.settle(call("cuCtxSetCurrent", 7), 0x1000, false, &mut gone), None);
        assert!(callers.settle(call("cuCtxSetCurrent", 7), 0x1000, true, &mut gone).unwrap().flags.inner);
        let nested = Call { flags: CallFlags { inner: true, unfinished: false }, ..call("cuMemAlloc_v2", 7) };
        assert_eq!(callers.settle(nested, 0x1000, false, &mut gone), None);
        assert!(!callers.settle(nested, 0x2000, false, &mut gone).unwrap().flags.inner, "the program was called back");
    }

    #[test]
    fn own_code_is_not_the_runtimes_and_what_cannot_be_told_is_counted() {
        let (mut callers, here) = (Callers::default(), own_code as fn() as usize as u64);
        let own = std::process::id();
        assert!(callers.settle(call("cuLaunchKernel", own), here, false, &mut own_maps).is_some());
        assert_eq!(callers.take_loss().count(), 0);
        assert!(
            callers.settle(call("cuLaunchKernel", own), 8, false, &mut own_maps).is_some(),
            "kept, under the driver's name"
        );
        assert_eq!(callers.take_loss().map(|(_, _, n)| n).sum::<u64>(), 1);
    }

    #[test]
    fn who_called_is_known_of_a_process_that_has_ended() {
        let mut callers = Callers::default();
        let (pid, code) = (7, 0x1000);
        callers.remember(pid, vec![(code..0x2000, None)]);
        assert!(callers.settle(call("cuLaunchKernel", pid), code, false, &mut gone).is_some());
        assert_eq!(callers.take_loss().count(), 0);
        callers.forget_process(pid);
        assert!(callers.settle(call("cuLaunchKernel", pid), code, false, &mut gone).is_some());
        assert_eq!(callers.take_loss().map(|(_, _, n)| n).sum::<u64>(), 1);
    }

    fn own_code() {}

    fn gone(_: u32, _: u64) -> Result<Option<Option<Library>>, Refusal> {
        Err(Refusal::Gone)
    }

    fn own_maps(_: u32, address: u64) -> Result<Option<Option<Library>>, Refusal> {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        Ok(crate::procmaps::library_at(&String::from_utf8_lossy(&maps), address))
    }
}
