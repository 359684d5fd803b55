// SPDX-License-Identifier: Apache-2.0
//! Ring records of library reports: the structs of bpf/torch.h and bpf/rare.h, distinguished by size, or by their first
//! word if the size varies.

use gpuwhy_model::{Communicator, OpId, Split, TensorEvent};

const TENSOR: usize = 72;
const COMMUNICATOR: usize = 88;
/// "fun_name".
const NAME_RECORD: u64 = 0x656d_616e_5f6e_7566;
const NAME_HEAD: usize = 40;
const DEVICE_UNKNOWN: u32 = 0xff;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToldRecord {
    Tensor(TensorEvent),
    Communicator(Communicator),
    Name(RawName),
}

/// A function was looked up, by a name or from another handle that may have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawName {
    pub(crate) at_ns: u64,
    pub(crate) pid: u32,
    pub(crate) handle: u64,
    pub(crate) from: u64,
    pub(crate) name: Option<String>,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads one; `None` for a record of another kind.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Option<ToldRecord> {
    match bytes.len() {
        TENSOR => tensor(bytes).map(ToldRecord::Tensor),
        COMMUNICATOR => communicator(bytes).map(ToldRecord::Communicator),
        _ if word(bytes, 0)? == NAME_RECORD => name(bytes).map(ToldRecord::Name),
        _ => None,
    }
}

fn tensor(bytes: &[u8]) -> Option<TensorEvent> {
    Some(TensorEvent {
        at_ns: word(bytes, 0)?,
        bytes: word(bytes, 8)?,
        address: word(bytes, 16)?,
        allocated: word(bytes, 24)?,
        reserved: word(bytes, 32)?,
        stack: word(bytes, 40).filter(|stack| *stack != 0),
        pid: half(bytes, 48)?,
        tid: half(bytes, 52)?,
        op: OpId(u16::try_from(half(bytes, 56)?).ok()?),
        device: half(bytes, 60)? as u8,
    })
}

fn communicator(bytes: &[u8]) -> Option<Communicator> {
    let parent = word(bytes, 24)?;
    let split = (parent != 0).then_some(Split {
        parent,
        color: half(bytes, 48)?.cast_signed(),
        key: half(bytes, 52)?.cast_signed(),
    });
    let whole = |value: u32| split.is_none().then_some(value);
    Some(Communicator {
        at_ns: word(bytes, 0)?,
        handle: word(bytes, 8)?,
        id: word(bytes, 16).filter(|id| *id != 0),
        pid: half(bytes, 32)?,
        tid: half(bytes, 36)?,
        ranks: whole(half(bytes, 40)?),
        rank: whole(half(bytes, 44)?),
        op: OpId(u16::try_from(half(bytes, 56)?).ok()?),
        device: half(bytes, 60).filter(|device| *device != DEVICE_UNKNOWN).map(|device| device as u8),
        split,
    })
}

fn name(bytes: &[u8]) -> Option<RawName> {
    // The length counts the zero at the end; negative when the name could not be read.
    let length = usize::try_from(half(bytes, 36)?.cast_signed()).unwrap_or(0).saturating_sub(1);
    let name = bytes.get(NAME_HEAD..)?.get(..length).filter(|name| !name.is_empty());
    Some(RawName {
        at_ns: word(bytes, 8)?,
        handle: word(bytes, 16)?,
        from: word(bytes, 24)?,
        pid: half(bytes, 32)?,
        name: name.map(|name| String::from_utf8_lossy(name).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn halves(low: u32, high: u32) -> u64 {
        u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn a_tensors_record_is_read_field_by_field() {
        let bytes = words(&[1, 512, 0x7000, 4096, 8192, 0, halves(7, 8), halves(300, 3), 0]);
        let Some(ToldRecord::Tensor(event)) = parse(&bytes) else { panic!() };
        assert_eq!((event.at_ns, event.bytes, event.address), (1, 512, 0x7000));
        assert_eq!((event.allocated, event.reserved, event.stack), (4096, 8192, None));
        assert_eq!((event.pid, event.tid, event.op, event.device), (7, 8, OpId(300), 3));
    }

    #[test]
    fn one_that_was_split_off_does_not_claim_ranks() {
        let made = |parent| {
            let split = halves((-1i32).cast_unsigned(), 5);
            let bytes = words(&[9, 0xc0, 77, parent, halves(1, 2), halves(4, 3), split, halves(9, 0xff), 0, 0, 0]);
            let Some(ToldRecord::Communicator(made)) = parse(&bytes) else { panic!() };
            made
        };
        let whole = made(0);
        assert_eq!((whole.ranks, whole.rank, whole.id, whole.split), (Some(4), Some(3), Some(77), None));
        assert_eq!(whole.device, None);
        let part = made(0xb0);
        assert_eq!((part.ranks, part.rank), (None, None));
        assert_eq!(part.split, Some(Split { parent: 0xb0, color: -1, key: 5 }));
    }

    #[test]
    fn names_may_be_long_missing_or_no_text() {
        let record = |length: i32, text: &[u8]| {
            let mut bytes = words(&[NAME_RECORD, 1, 2, 3, halves(4, length.cast_unsigned())]);
            bytes.extend_from_slice(text);
            bytes
        };
        let name = |bytes: &[u8]| match parse(bytes) {
            Some(ToldRecord::Name(raw)) => raw.name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(&record(5, b"gemm\0rest")).as_deref(), Some("gemm"));
        assert_eq!(name(&record(-14, b"junk")), None);
        assert_eq!(name(&record(0, b"")), None);
        assert_eq!(name(&record(3, b"\xff\xfe\0")).as_deref(), Some("\u{fffd}\u{fffd}"));
        assert_eq!(
            parse(&record(100, b"short")),
            Some(ToldRecord::Name(RawName { at_ns: 1, pid: 4, handle: 2, from: 3, name: None }))
        );
    }
}
