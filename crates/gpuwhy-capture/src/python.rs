// SPDX-License-Identifier: Apache-2.0
//! Python stacks: gives the kernel the location of a process's interpreter frames, and turns the frames that the kernel
//! sends into files, functions and lines.

use crate::batch::NamedStack;
use crate::lookups::{Answer, PythonAnswer, Question};
use gpuwhy_stacks::python::{Code, PyCode, PyFrame, PyProcess, Version};
use gpuwhy_stacks::{Frame, Stack};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// "py_stack" and "ppy_code", as in bpf/stacks.h.
const STACK_RECORD: u64 = 0x6b63_6174_735f_7970;
const CODE_RECORD: u64 = 0x6564_6f63_5f79_7070;
const STACK_HEAD: usize = 32;
const CODE_HEAD: usize = 16;
const FRAME: usize = 16;

/// An interpreter may be a library that is mapped shortly after the program starts: search again after this time, then
/// after twice as long, …
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// Processes that are asked about at a time.
const LOOKS_AT_ONCE: usize = 4;
/// Numbers of stacks remembered; the kernel remembers 65,536.
const MAX_KEYS: usize = 1 << 18;
/// Code objects remembered of all processes, some kB each at most; beyond that frames are called unknown.
const MAX_CODES: usize = 1 << 17;

/// A Python record from the kernel.
#[derive(Debug)]
pub(crate) enum PythonRecord {
    /// A stack seen for the first time.
    Stack(RawStack),
    /// A code object seen for the first time.
    Code(Box<RawCode>),
}

/// A stack as the kernel walked it.
#[derive(Debug)]
pub(crate) struct RawStack {
    key: u64,
    pid: u32,
    frames: Vec<PyFrame>,
}

/// A code object as the kernel read it.
#[derive(Debug)]
pub(crate) struct RawCode {
    pid: u32,
    version: Version,
    code: Box<PyCode>,
}

/// Whether a ring record is about Python.
#[inline]
pub(crate) fn is_python(bytes: &[u8]) -> bool {
    matches!(word(bytes, 0), Some(STACK_RECORD | CODE_RECORD))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads a ring record about Python; `None` if it is malformed.
pub(crate) fn parse(bytes: &[u8]) -> Option<PythonRecord> {
    if word(bytes, 0)? == CODE_RECORD {
        let version = half(bytes, 12)?;
        return Some(PythonRecord::Code(Box::new(RawCode {
            pid: half(bytes, 8)?,
            version: Version { major: (version >> 8) as u8, minor: version as u8 },
            code: PyCode::from_bytes(bytes.get(CODE_HEAD..)?)?,
        })));
    }
    let count = half(bytes, 24)? as usize;
    let frames = bytes.get(STACK_HEAD..)?.chunks_exact(FRAME).take(count);
    let frame = |bytes: &[u8]| {
        Some(PyFrame { code: word(bytes, 0)?, lasti: half(bytes, 8)?.cast_signed(), check: half(bytes, 12)? })
    };
    Some(PythonRecord::Stack(RawStack {
        key: word(bytes, 8)?,
        pid: half(bytes, 16)?,
        frames: frames.map(frame).collect::<Option<_>>()?,
    }))
}

/// When to look at a process again.
struct Retry {
    at: Instant,
    pause: Duration,
    looked_at: Look,
}

/// Whether a process is being looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    No,
    Now,
    /// What was seen so far is from the program it ran before exec.
    TooEarly,
}

/// Asks about a process, and has the answer at once if that can be.
pub(crate) type Ask<'a> = &'a mut dyn FnMut(Question) -> Option<Answer>;

/// The Python interpreters of traced processes.
#[derive(Default)]
pub(crate) struct Pythons {
    /// Processes that may run Python and are to be looked at.
    waiting: HashMap<u32, Retry>,
    known: HashMap<u32, PyProcess>,
    /// By process, and there by address and check.
    codes: HashMap<u32, HashMap<(u64, u32), Code>>,
    codes_known: usize,
    ids: HashMap<u64, u64>,
    order: VecDeque<u64>,
    /// Warnings about processes whose Python gpuwhy does not know.
    pub(crate) warnings: Vec<String>,
    /// How many of those, since the last time.
    pub(crate) unknown: u64,
    /// Keys of evicted stacks, which the kernel must also forget.
    pub(crate) forgotten: Vec<u64>,
}

impl Pythons {
    /// Has a process looked at: it is new here, or runs another program now.
    pub(crate) fn expect(&mut self, pid: u32) {
        self.known.remove(&pid);
        self.forget_codes(pid);
        let is_under_way = self.waiting.get(&pid).is_some_and(|retry| retry.looked_at != Look::No);
        let looked_at = if is_under_way { Look::TooEarly } else { Look::No };
        self.waiting.insert(pid, Retry { at: Instant::now(), pause: FIRST_RETRY, looked_at });
    }

    /// A child runs the same program as its parent. The kernel has noted that if it knew the parent then; set it again
    /// in case it did not.
    pub(crate) fn forked(&mut self, parent: u32, child: u32) -> Option<PyProcess> {
        let process = self.known.get(&parent).copied();
        match process {
            Some(process) => {
                self.known.insert(child, process);
            }
            None => self.expect(child),
        }
        process
    }

    fn forget_codes(&mut self, pid: u32) {
        self.codes_known -= self.codes.remove(&pid).map_or(0, |codes| codes.len());
    }

    /// Forgets a process that ended. Its stacks keep their names.
    pub(crate) fn ended(&mut self, pid: u32) {
        self.waiting.remove(&pid);
        self.known.remove(&pid);
        self.forget_codes(pid);
    }

    /// Processes to inspect now.
    pub(crate) fn due(&mut self) -> Vec<u32> {
        let now = Instant::now();
        let under_way = self.waiting.values().filter(|retry| retry.looked_at != Look::No).count();
        let due = self.waiting.iter_mut().filter(|(_, retry)| retry.at <= now && retry.looked_at == Look::No);
        due.take(LOOKS_AT_ONCE.saturating_sub(under_way))
            .map(|(pid, retry)| {
                retry.looked_at = Look::Now;
                *pid
            })
            .collect()
    }

    /// Handles the result of an inspection, `None` if it timed out; returns what the kernel must know.
    pub(crate) fn looked_at(&mut self, pid: u32, answer: Option<PythonAnswer>) -> Option<PyProcess> {
        let retry = self.waiting.get_mut(&pid)?;
        if std::mem::replace(&mut retry.looked_at, Look::No) == Look::TooEarly {
            return None;
        }
        match answer {
            Some(PythonAnswer::NotYet) => {
                retry.at = Instant::now() + retry.pause;
                retry.pause = (retry.pause * 2).min(LAST_RETRY);
                return None;
            }
            Some(PythonAnswer::Found(process)) => {
                self.waiting.remove(&pid);
                self.known.insert(pid, process);
                return Some(process);
            }
            Some(PythonAnswer::Unknown(why)) => {
                self.unknown += 1;
                self.warnings.push(format!("no Python lines: {why}"));
            }
            None => self.unknown += 1,
            Some(PythonAnswer::Gone) => {}
        }
        self.waiting.remove(&pid);
        None
    }

    /// Handles a record from the kernel; returns a newly resolved stack with its id.
    pub(crate) fn take(&mut self, record: PythonRecord, ask: Ask<'_>) -> Option<NamedStack> {
        match record {
            PythonRecord::Code(raw) => {
                if self.codes_known < MAX_CODES {
                    let key = (raw.code.code, raw.code.check);
                    // A table too long for the record is read from the process, if it still lives.
                    let whole = raw.code.is_table_cut().then(|| self.whole_table(&raw, ask)).flatten();
                    let code = Code::new(raw.version, &raw.code, whole.as_deref());
                    let new = self.codes.entry(raw.pid).or_default().insert(key, code).is_none();
                    self.codes_known += usize::from(new);
                }
                None
            }
            PythonRecord::Stack(raw) => {
                self.read_missing(&raw, ask);
                let codes = self.codes.get(&raw.pid);
                let frame = |f: &PyFrame| {
                    let code = codes.and_then(|codes| codes.get(&(f.code, f.check)));
                    code.map_or_else(Frame::unknown, |code| code.frame(f.lasti))
                };
                let stack = Stack::new(&raw.frames.iter().map(frame).collect::<Vec<_>>());
                let id = stack.id.cast_unsigned();
                if self.ids.insert(raw.key, id).is_none() {
                    self.order.push_back(raw.key);
                }
                while self.order.len() > MAX_KEYS {
                    let oldest = self.order.pop_front();
                    oldest.and_then(|oldest| self.ids.remove(&oldest));
                    self.forgotten.extend(oldest);
                }
                Some(NamedStack { id, pid: raw.pid, stack })
            }
        }
    }

    /// Reads from the process what the kernel had no time to report; the process usually still waits at the same place.
    fn read_missing(&mut self, raw: &RawStack, ask: Ask<'_>) {
        let codes = self.codes.entry(raw.pid).or_default();
        let missing = |f: &&PyFrame| !codes.contains_key(&(f.code, f.check));
        let missing: Vec<PyFrame> = raw.frames.iter().filter(missing).copied().collect();
        let Some(process) = self.known.get(&raw.pid).filter(|_| !missing.is_empty()) else { return };
        for PyFrame { code, check, .. } in missing {
            let question = Question::Code { pid: raw.pid, process: *process, code, check };
            if let Some(Answer::Code(Some(read))) = ask(question)
                && self.codes_known < MAX_CODES
                && codes.insert((code, check), read).is_none()
            {
                self.codes_known += 1;
            }
        }
    }

    fn whole_table(&self, raw: &RawCode, ask: Ask<'_>) -> Option<Vec<u8>> {
        let process = *self.known.get(&raw.pid)?;
        match ask(Question::LineTable { pid: raw.pid, process, code: raw.code.code }) {
            Some(Answer::LineTable(table)) => table,
            _ => None,
        }
    }

    /// The id of the stack the kernel calls by this number.
    #[inline]
    pub(crate) fn id_of(&self, key: u64) -> Option<u64> {
        self.ids.get(&key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack_bytes(frames: &[(u64, i32, u32)]) -> Vec<u8> {
        let mut bytes = STACK_RECORD.to_ne_bytes().to_vec();
        bytes.extend(42u64.to_ne_bytes());
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(8u32.to_ne_bytes());
        bytes.extend((frames.len() as u32).to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        for (code, lasti, check) in frames {
            bytes.extend(code.to_ne_bytes());
            bytes.extend(lasti.to_ne_bytes());
            bytes.extend(check.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_stack_whose_code_was_lost_has_unknown_frames_and_an_id() {
        let bytes = stack_bytes(&[(0x1000, 4, 1), (0x2000, -2, 2)]);
        assert!(is_python(&bytes));
        let Some(PythonRecord::Stack(raw)) = parse(&bytes) else { panic!() };
        assert_eq!((raw.key, raw.pid, raw.frames.len(), raw.frames[1].lasti), (42, 7, 2, -2));
        let mut pythons = Pythons::default();
        let NamedStack { id, stack, .. } = pythons.take(PythonRecord::Stack(raw), &mut |_| None).unwrap();
        assert_eq!(stack.frames.lines().count(), 2);
        assert_eq!((pythons.id_of(42), pythons.id_of(43)), (Some(id), None));
    }

    #[test]
    fn broken_records_are_refused() {
        let bytes = stack_bytes(&[(1, 2, 3)]);
        assert!(!is_python(&[0; 64]) && !is_python(&[1, 2]));
        assert!(parse(&bytes[..20]).is_none());
        assert!(parse(&CODE_RECORD.to_ne_bytes()).is_none());
    }

    /// The kernel's half is C: its numbers are read from there.
    #[test]
    fn numbers_agree_with_the_kernels_half() {
        let header = include_str!("../bpf/stacks.h");
        for (name, ours) in [("STACK_RECORD", STACK_RECORD), ("CODE_RECORD", CODE_RECORD)] {
            assert!(header.contains(&format!("#define {name} {ours:#x}ULL")), "{name}");
        }
    }
}
