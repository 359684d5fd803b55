// SPDX-License-Identifier: Apache-2.0
//! An event as a line of `events.json`: one flat object without the keys that do not apply.

use gpuwhy_model::ops::{Class, KernelOp, OpId, TorchOp, by_function, kernel_op, torch_op};
use gpuwhy_model::{Call, CallFlags, MemoryEvent, TensorEvent};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The latest valid time: sums of times do not overflow.
pub(crate) const LATEST_NS: u64 = 1 << 62;
/// The largest valid size: no device has as much memory.
pub(crate) const LARGEST: u64 = 1 << 56;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RowKind {
    /// A tensor was allocated.
    Alloc,
    /// A tensor was freed.
    Free,
    /// PyTorch's allocator ran out of memory.
    Oom,
    /// A call allocated memory from the driver.
    DriverAlloc,
    /// A call returned memory to the driver.
    DriverFree,
    /// A thread's first launch, copy or wait after it took memory from the driver.
    Work,
    /// A process ended.
    Exit,
    /// The kernel killed a process because main memory ran out.
    OomKill,
}

impl RowKind {
    /// The name in JSON and CSV.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Oom => "oom",
            Self::DriverAlloc => "driver_alloc",
            Self::DriverFree => "driver_free",
            Self::Work => "work",
            Self::Exit => "exit",
            Self::OomKill => "oom_kill",
        }
    }
}

/// An address, written as `"0x7f…"`: many JSON readers would round a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u64);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Hex;
        impl Visitor<'_> for Hex {
            type Value = Address;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address like \"0x7f00\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Address, E> {
                let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
                let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                number.map(Address).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Hex)
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) at_ns: u64,
    pub(crate) kind: RowKind,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<Address>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allocated: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) site: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<Cow<'static, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<i32>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) unfinished: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<u64>,
}

impl Row {
    fn bare(kind: RowKind, at_ns: u64, pid: u32, tid: u32) -> Self {
        Self {
            at_ns,
            kind,
            pid,
            tid,
            device: None,
            bytes: None,
            address: None,
            allocated: None,
            reserved: None,
            site: None,
            function: None,
            duration_ns: None,
            result: None,
            unfinished: false,
            code: None,
            signal: None,
        }
    }

    /// From an event; `site` is the number of its stack. `None` for an event that has nothing to do with memory.
    pub(crate) fn of(event: &MemoryEvent, site: Option<u32>) -> Option<Self> {
        match event {
            MemoryEvent::Tensor(tensor) => Self::of_tensor(tensor, site),
            MemoryEvent::Call(call) => Self::of_call(call, site),
        }
    }

    fn of_tensor(event: &TensorEvent, site: Option<u32>) -> Option<Self> {
        let kinds =
            [(TorchOp::Alloc, RowKind::Alloc), (TorchOp::Free, RowKind::Free), (TorchOp::OutOfMemory, RowKind::Oom)];
        let kind = kinds.into_iter().find(|(op, _)| torch_op(*op) == event.op)?.1;
        Some(Self {
            device: Some(event.device),
            bytes: Some(event.bytes),
            address: (kind != RowKind::Oom).then_some(Address(event.address)),
            allocated: Some(event.allocated),
            reserved: Some(event.reserved),
            site,
            ..Self::bare(kind, event.at_ns, event.pid, event.tid)
        })
    }

    fn of_call(call: &Call, site: Option<u32>) -> Option<Self> {
        let bare = |kind| Self::bare(kind, call.start_ns, call.pid, call.tid);
        if call.op == kernel_op(KernelOp::ProcessExit) {
            return Some(Self { code: call.arg0, signal: call.arg1, ..bare(RowKind::Exit) });
        }
        if call.op == kernel_op(KernelOp::OomKill) {
            return Some(bare(RowKind::OomKill));
        }
        let op = call.op.get()?;
        let kind = match op.class {
            Class::Alloc => RowKind::DriverAlloc,
            Class::Free => RowKind::DriverFree,
            _ => RowKind::Work,
        };
        let function = Some(Cow::Borrowed(op.function.as_str()));
        if kind == RowKind::Work {
            return Some(Self { function, ..bare(kind) });
        }
        Some(Self {
            device: call.device,
            bytes: call.arg0,
            address: call.arg1.map(Address),
            site,
            function,
            duration_ns: Some(call.duration_ns),
            result: (!call.flags.unfinished).then_some(call.ret),
            unfinished: call.flags.unfinished,
            ..bare(kind)
        })
    }

    /// Back to an event; `stack` maps a site's number to its stack. An error says what is wrong.
    pub(crate) fn event(&self, stack: impl Fn(u32) -> Option<u64>) -> Result<MemoryEvent, String> {
        let latest = self.at_ns.max(self.duration_ns.unwrap_or(0));
        if latest > LATEST_NS {
            return Err(format!("invalid time {latest} ns: no run is that long"));
        }
        if let Some(bytes) = [self.bytes, self.allocated, self.reserved].into_iter().flatten().find(|n| *n > LARGEST) {
            return Err(format!("invalid size {bytes} bytes: no GPU is that large"));
        }
        let stack = match self.site {
            Some(site) => Some(stack(site).ok_or_else(|| format!("site {site} is not in the list of sites"))?),
            None => None,
        };
        match self.kind {
            RowKind::Alloc => self.tensor(TorchOp::Alloc, stack),
            RowKind::Free => self.tensor(TorchOp::Free, stack),
            RowKind::Oom => self.tensor(TorchOp::OutOfMemory, stack),
            RowKind::Exit => Ok(self.call(kernel_op(KernelOp::ProcessExit), (self.code, self.signal), None)),
            RowKind::OomKill => Ok(self.call(kernel_op(KernelOp::OomKill), (None, None), None)),
            RowKind::DriverAlloc | RowKind::DriverFree | RowKind::Work => {
                let arguments = (self.bytes, self.address.map(|address| address.0));
                Ok(self.call(self.op()?, arguments, stack))
            }
        }
    }

    fn op(&self) -> Result<OpId, String> {
        let name = self.function.as_deref().ok_or("`function` is missing")?;
        let op = by_function(name).ok_or_else(|| format!("unknown function {name:?}"))?;
        let fits = match self.kind {
            RowKind::DriverAlloc => op.class == Class::Alloc,
            RowKind::DriverFree => op.class == Class::Free,
            _ => matches!(op.class, Class::Launch | Class::Sync | Class::Copy),
        };
        if fits { Ok(op.id) } else { Err(format!("function {name} does not fit kind {}", self.kind.name())) }
    }

    fn tensor(&self, op: TorchOp, stack: Option<u64>) -> Result<MemoryEvent, String> {
        let need = |value: Option<u64>, name: &str| value.ok_or_else(|| format!("`{name}` is missing"));
        let address = if op == TorchOp::OutOfMemory { Some(0) } else { self.address.map(|address| address.0) };
        Ok(MemoryEvent::Tensor(TensorEvent {
            at_ns: self.at_ns,
            pid: self.pid,
            tid: self.tid,
            op: torch_op(op),
            device: self.device.ok_or("`device` is missing")?,
            bytes: need(self.bytes, "bytes")?,
            address: need(address, "address")?,
            allocated: need(self.allocated, "allocated")?,
            reserved: need(self.reserved, "reserved")?,
            stack,
        }))
    }

    fn call(&self, op: OpId, (arg0, arg1): (Option<u64>, Option<u64>), stack: Option<u64>) -> MemoryEvent {
        MemoryEvent::Call(Call {
            start_ns: self.at_ns,
            duration_ns: self.duration_ns.unwrap_or(0),
            pid: self.pid,
            tid: self.tid,
            op,
            device: self.device,
            stream: None,
            arg0,
            arg1,
            ret: self.result.unwrap_or(0),
            flags: CallFlags { inner: false, unfinished: self.unfinished },
            weight: 1,
            stack,
        })
    }
}
