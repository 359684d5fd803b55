// SPDX-License-Identifier: Apache-2.0
//! Ring records (`struct record` of bpf/state.h) as the model's types.

use gpuwhy_model::{Call, CallFlags, Class, OpId, Transfer};

/// Size of `struct record`.
const SIZE: usize = 64;
/// Size of `struct long_record`, which starts with a `struct record`.
const LONG: usize = 80;
const DEVICE_UNKNOWN: u8 = 0xff;
const FLAG_INNER: u8 = 1;
const FLAG_UNFINISHED: u8 = 2;
const FLAG_ARG0: u8 = 4;
const FLAG_ARG1: u8 = 8;
const FLAG_STREAM: u8 = 16;
const FLAG_CALLER: u8 = 64;
const FLAG_SEQUENCE: u8 = 128;
const OP_EXEC: u16 = 0x3fe;
const OP_EXIT: u16 = 0x3fd;
const OP_FORK: u16 = 0x3fc;
const OP_THREAD: u16 = 0x3fb;

/// Something that happened in a traced process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A call.
    Call(Call),
    /// A driver call by code at this address, whose library the kernel could not identify.
    CallFrom(Call, u64),
    /// A transfer between ranks.
    Transfer(Transfer),
    /// A thread or process came or went.
    Life(Life),
}

/// A thread or process came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The event.
    pub event: LifeEvent,
    /// When, `CLOCK_MONOTONIC` ns.
    pub at_ns: u64,
    /// When the thread, or the program it now runs, began; the same clock. 0 when it ended.
    pub since_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The process that made this one.
    pub parent: u32,
    /// The kernel's name of the thread, at most 15 bytes.
    pub comm: String,
}

/// What happened to a thread or process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeEvent {
    /// A thread made its first traced call.
    FirstCall,
    /// The process was made. Told only where the host's side is recorded.
    Fork,
    /// The process runs another program now.
    Exec,
    /// The process ended.
    Exit,
}

/// Reads one ring record; `None` for one of a size or kind this version does not know.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Option<Record> {
    if let Ok(bytes) = <&[u8; LONG]>::try_from(bytes) {
        return parse_long(bytes);
    }
    let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
    let half = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    let op = u16::from_ne_bytes([bytes[52], bytes[53]]);
    let (device, flags) = (bytes[54], bytes[55]);
    let event = match op {
        OP_EXEC => LifeEvent::Exec,
        OP_EXIT => LifeEvent::Exit,
        OP_FORK => LifeEvent::Fork,
        OP_THREAD => LifeEvent::FirstCall,
        _ => {
            let known = |flag: u8, value: u64| (flags & flag != 0).then_some(value);
            let caller = known(FLAG_CALLER, word(24));
            let call = Call {
                start_ns: word(0),
                duration_ns: word(8),
                pid: half(40),
                tid: half(44),
                op: OpId(op),
                device: (device != DEVICE_UNKNOWN).then_some(device),
                stream: known(FLAG_STREAM, word(32)),
                arg0: known(FLAG_ARG0, word(16)),
                arg1: known(FLAG_ARG1, word(24)).filter(|_| caller.is_none()),
                ret: half(48) as i32,
                flags: CallFlags { inner: flags & FLAG_INNER != 0, unfinished: flags & FLAG_UNFINISHED != 0 },
                weight: 1,
                stack: Some(word(56)).filter(|stack| *stack != 0),
            };
            if !call.op.is_cuda() {
                return Some(Record::Call(told(call)));
            }
            return Some(caller.map_or(Record::Call(call), |address| Record::CallFrom(call, address)));
        }
    };
    let comm = bytes[16..32].split(|b| *b == 0).next().unwrap_or_default();
    Some(Record::Life(Life {
        event,
        at_ns: word(0),
        since_ns: word(8),
        pid: half(40),
        tid: half(44),
        parent: half(48),
        comm: String::from_utf8_lossy(comm).into_owned(),
    }))
}

/// A call with additional data.
fn parse_long(bytes: &[u8; LONG]) -> Option<Record> {
    let Some(Record::Call(call)) = parse(&bytes[..SIZE]) else { return None };
    let half = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    let (weight, sequence, peer) = (half(64), half(68), half(72).cast_signed());
    if call.op.get().is_some_and(|op| op.class == Class::Collective) {
        let sequence = (bytes[55] & FLAG_SEQUENCE != 0).then_some(sequence);
        return Some(Record::Transfer(Transfer { call, sequence, peer: u32::try_from(peer).ok() }));
    }
    Some(Record::Call(Call { weight: weight.max(1), ..call }))
}

/// The kernel always sends two arguments; those without a meaning become `None`.
fn told(mut call: Call) -> Call {
    let (arg0, arg1) = call.op.get().map_or(("", ""), |op| op.decode.meaning());
    call.arg0 = call.arg0.filter(|_| !arg0.is_empty());
    call.arg1 = call.arg1.filter(|_| !arg1.is_empty());
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::LossCause;
    use gpuwhy_model::ops::{self, KernelOp, kernel_op};

    fn raw(op: u16, device: u8, flags: u8) -> [u8; SIZE] {
        let mut bytes = [0u8; SIZE];
        for (i, value) in [1000u64, 250, 4096, 0x7f00_dead_0000, 5].into_iter().enumerate() {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[40..44].copy_from_slice(&42u32.to_ne_bytes());
        bytes[44..48].copy_from_slice(&43u32.to_ne_bytes());
        bytes[48..52].copy_from_slice(&(-2i32).to_ne_bytes());
        bytes[52..54].copy_from_slice(&op.to_ne_bytes());
        bytes[54] = device;
        bytes[55] = flags;
        bytes
    }

    #[test]
    fn what_the_kernel_did_not_know_is_none() {
        let Some(Record::Call(call)) = parse(&raw(3, DEVICE_UNKNOWN, FLAG_ARG0 | FLAG_INNER)) else { panic!() };
        assert_eq!((call.start_ns, call.duration_ns, call.pid, call.tid, call.ret), (1000, 250, 42, 43, -2));
        assert_eq!((call.device, call.stream, call.arg0, call.arg1), (None, None, Some(4096), None));
        assert!(call.flags.inner && !call.flags.unfinished);
    }

    #[test]
    fn a_caller_in_question_stands_where_the_second_argument_would() {
        let record = parse(&raw(3, 0, FLAG_ARG0 | FLAG_ARG1 | FLAG_CALLER));
        let Some(Record::CallFrom(call, address)) = record else { panic!("{record:?}") };
        assert_eq!((call.arg0, call.arg1, address), (Some(4096), None, 0x7f00_dead_0000));
    }

    /// The kernel's half is C: its numbers are read from there.
    #[test]
    fn numbers_agree_with_the_kernels_half() {
        let header = include_str!("../bpf/state.h");
        let number = |name: &str| {
            let line = header.lines().map(str::trim).find(|l| l.contains(&format!("{name} ")))?;
            let value = line.rsplit(' ').next()?.trim_end_matches(',');
            value.strip_prefix("0x").map_or(value.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
        };
        for (name, ours) in [
            ("FLAG_INNER", u64::from(FLAG_INNER)),
            ("FLAG_UNFINISHED", u64::from(FLAG_UNFINISHED)),
            ("FLAG_ARG0", u64::from(FLAG_ARG0)),
            ("FLAG_ARG1", u64::from(FLAG_ARG1)),
            ("FLAG_STREAM", u64::from(FLAG_STREAM)),
            ("FLAG_CALLER", u64::from(FLAG_CALLER)),
            ("FLAG_SEQUENCE", u64::from(FLAG_SEQUENCE)),
            ("DEVICE_UNKNOWN", u64::from(DEVICE_UNKNOWN)),
            ("OP_EXEC", u64::from(OP_EXEC)),
            ("OP_EXIT", u64::from(OP_EXIT)),
            ("OP_FORK", u64::from(OP_FORK)),
            ("OP_THREAD", u64::from(OP_THREAD)),
            ("LOSS_CAUSES", LossCause::ALL.len() as u64),
        ] {
            assert_eq!(number(name), Some(ours), "{name}");
        }
        let mut counted = 0;
        for cause in LossCause::ALL {
            if let Some(theirs) = number(&format!("LOSS_{}", cause.name().to_uppercase())) {
                assert_eq!(theirs, cause as u64, "{}", cause.name());
                counted += 1;
            }
        }
        assert!(counted >= 5, "the kernel counts at least five causes: {counted}");
    }

    #[test]
    fn what_the_kernel_tells_is_numbered_alike() {
        let header = include_str!("../bpf/state.h");
        let first = kernel_op(KernelOp::SchedSwitch).0;
        let told = ops::table().iter().filter(|op| !op.id.is_cuda());
        for op in told {
            let line = format!("\tOP_{} = {},", op.name.to_uppercase(), op.id.0 - first);
            assert!(header.contains(&line), "{line:?} is not in state.h");
        }
    }

    #[test]
    fn names_stop_at_the_first_zero() {
        let mut bytes = raw(OP_EXEC, 0, 0);
        bytes[16..32].copy_from_slice(b"python3\0\xffjunk000");
        let Some(Record::Life(life)) = parse(&bytes) else { panic!() };
        assert_eq!((life.event, life.comm.as_str(), life.pid), (LifeEvent::Exec, "python3", 42));
        assert_eq!(parse(&bytes[..40]), None);
    }
}
