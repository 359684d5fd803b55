// SPDX-License-Identifier: Apache-2.0
//! Snapshots made by hand: a tree of Python values and a pickler for it.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use gpuwhy_torch::snapshot::{Error, MemoryReport, Options, analyse};
use std::io::Read;

/// A Python value.
#[derive(Clone)]
pub enum Py {
    None,
    Bool(bool),
    Int(i128),
    Str(&'static str),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(&'static str, Py)>),
}

/// A dict's pairs, values as they come.
#[macro_export]
macro_rules! dict {
    ($($key:literal : $value:expr),* $(,)?) => { $crate::support::Py::Dict(vec![$(($key, $value.into())),*]) };
}

impl From<u64> for Py {
    fn from(n: u64) -> Self {
        Self::Int(n.into())
    }
}
impl From<bool> for Py {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}
impl From<&'static str> for Py {
    fn from(text: &'static str) -> Self {
        Self::Str(text)
    }
}
impl From<Vec<Py>> for Py {
    fn from(items: Vec<Py>) -> Self {
        Self::List(items)
    }
}

/// Pickles in the style of `protocol`: memo opcodes and string forms differ.
pub fn pickle(value: &Py, protocol: u8) -> Vec<u8> {
    let mut out = vec![0x80, protocol];
    let mut memo = 0u32;
    write(&mut out, value, protocol, &mut memo);
    out.push(b'.');
    out
}

fn memoize(out: &mut Vec<u8>, protocol: u8, memo: &mut u32) {
    match (protocol, *memo) {
        (4.., _) => out.push(0x94),
        (_, index @ 0..256) => out.extend([b'q', index as u8]),
        (_, index) => {
            out.push(b'r');
            out.extend(index.to_le_bytes());
        }
    }
    *memo += 1;
}

fn write(out: &mut Vec<u8>, value: &Py, protocol: u8, memo: &mut u32) {
    match value {
        Py::None => out.push(b'N'),
        Py::Bool(b) => out.push(if *b { 0x88 } else { 0x89 }),
        Py::Int(n @ 0..256) => out.extend([b'K', *n as u8]),
        Py::Int(n) => {
            let bytes = n.to_le_bytes();
            // As short as the sign allows.
            let len = (1..=16).find(|len| i128::from_le_bytes(extend(&bytes[..*len])) == *n).unwrap();
            out.extend([0x8a, len as u8]);
            out.extend(&bytes[..len]);
        }
        Py::Str(text) => {
            if protocol >= 4 && text.len() < 256 {
                out.extend([0x8c, text.len() as u8]);
            } else {
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
            }
            out.extend(text.as_bytes());
            memoize(out, protocol, memo);
        }
        Py::List(items) => {
            out.push(b']');
            memoize(out, protocol, memo);
            match items.as_slice() {
                [] => {}
                [one] => {
                    write(out, one, protocol, memo);
                    out.push(b'a');
                }
                many => {
                    for batch in many.chunks(1000) {
                        out.push(b'(');
                        batch.iter().for_each(|item| write(out, item, protocol, memo));
                        out.push(b'e');
                    }
                }
            }
        }
        Py::Tuple(items) => {
            out.push(b'(');
            items.iter().for_each(|item| write(out, item, protocol, memo));
            out.push(b't');
        }
        Py::Dict(pairs) => {
            out.push(b'}');
            memoize(out, protocol, memo);
            out.push(b'(');
            for (key, value) in pairs {
                write(out, &Py::Str(key), protocol, memo);
                write(out, value, protocol, memo);
            }
            out.push(b'u');
        }
    }
}

fn extend(bytes: &[u8]) -> [u8; 16] {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut out = [if negative { 0xff } else { 0 }; 16];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// A frame.
pub fn frame(file: &'static str, line: u64, name: &'static str) -> Py {
    dict! { "name": name, "filename": file, "line": line }
}

/// A trace entry.
pub fn entry(action: &'static str, addr: u64, size: u64, time: u64) -> Py {
    let frames = vec![frame("/home/me/train.py", 10 + size % 7, "step")];
    dict! { "action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": frames }
}

/// A block.
pub fn block(address: u64, size: u64, requested: u64, state: &'static str) -> Py {
    dict! { "address": address, "size": size, "requested_size": requested, "state": state, "frames": vec![] }
}

/// What a segment is like, besides its place and its blocks.
#[derive(Clone, Copy, Default)]
pub struct Kind {
    pub device: u64,
    pub small: bool,
    pub expandable: bool,
    pub pool: (i128, i128),
}

/// A segment.
pub fn segment(kind: Kind, address: u64, total: u64, blocks: Vec<Py>) -> Py {
    let pool = Py::Tuple(vec![Py::Int(kind.pool.0), Py::Int(kind.pool.1)]);
    dict! {
        "device": kind.device, "address": address, "total_size": total,
        "segment_type": if kind.small { "small" } else { "large" },
        "segment_pool_id": pool, "is_expandable": kind.expandable, "frames": vec![], "blocks": blocks
    }
}

/// A snapshot with traces.
pub fn snapshot(segments: Vec<Py>, traces: Vec<Vec<Py>>) -> Py {
    let traces: Vec<Py> = traces.into_iter().map(Py::List).collect();
    dict! { "segments": segments, "device_traces": traces }
}

/// Analyses bytes.
pub fn read(bytes: &[u8]) -> Result<MemoryReport, Error> {
    analyse(bytes, &Options::default(), None)
}

/// Analyses a value made by hand.
pub fn report(value: &Py) -> MemoryReport {
    read(&pickle(value, 4)).unwrap()
}

/// A fixture's bytes, unpacked.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}/snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Numbers that look random and are the same every time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}
