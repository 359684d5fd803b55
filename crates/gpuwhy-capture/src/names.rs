// SPDX-License-Identifier: Apache-2.0
//! Names of GPU functions by their handles: those looked up by name, and those made from one that was.

use crate::told_record::RawName;
use gpuwhy_model::FunctionName;
use std::collections::HashMap;
use std::sync::Arc;

/// Handles remembered of all processes. PyTorch has some thousands; a program that looks up functions without end
/// loses names.
const MOST: usize = 1 << 17;

/// The known names.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<u32, HashMap<u64, Arc<str>>>,
    count: usize,
}

impl Names {
    /// Takes what the kernel saw; gives a name that is new.
    pub(crate) fn take(&mut self, raw: RawName) -> Option<FunctionName> {
        let of_process = self.known.entry(raw.pid).or_default();
        let name: Arc<str> = match raw.name {
            Some(name) => name.into(),
            None => of_process.get(&raw.from)?.clone(),
        };
        if of_process.get(&raw.handle) == Some(&name) {
            return None;
        }
        if self.count >= MOST && !of_process.contains_key(&raw.handle) {
            return None;
        }
        self.count += usize::from(of_process.insert(raw.handle, name.clone()).is_none());
        Some(FunctionName { at_ns: raw.at_ns, pid: raw.pid, handle: raw.handle, name: name.to_string() })
    }

    /// Forgets a process that runs another program now, or none.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.count -= self.known.remove(&pid).map_or(0, |names| names.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pid: u32, handle: u64, from: u64, name: Option<&str>) -> RawName {
        RawName { at_ns: 1, pid, handle, from, name: name.map(str::to_owned) }
    }

    #[test]
    fn a_handle_made_from_a_named_one_has_its_name() {
        let mut names = Names::default();
        assert_eq!(names.take(raw(1, 0x10, 0, Some("gemm"))).unwrap().name, "gemm");
        assert_eq!(names.take(raw(1, 0x20, 0x10, None)).unwrap().name, "gemm");
        assert_eq!(names.take(raw(1, 0x20, 0x10, None)), None, "told once");
        assert_eq!(names.take(raw(2, 0x20, 0x10, None)), None, "another process's handles are others");
        names.forget_process(1);
        assert_eq!((names.take(raw(1, 0x30, 0x10, None)), names.count), (None, 0));
    }
}
