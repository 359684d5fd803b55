// SPDX-License-Identifier: Apache-2.0
//! An event as a line of `events.json`: one flat object, without what does not apply.

use gpuwhy_model::ops::{Class, KernelOp, OpId, TorchOp, by_function, kernel_op, torch_op};
use gpuwhy_model::{Call, CallFlags, MemoryEvent, TensorEvent};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// No moment of a run is later: so sums of times do not overflow.
pub(crate) const LATEST_NS: u64 = 1 << 62;
/// No device has so much memory.
pub(crate) const LARGEST: u64 = 1 << 56;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A tensor got memory.
    Alloc,
    /// A tensor gave memory back.
    Free,
    /// PyTorch's allocator had none to give.
    Oom,
    /// A call took memory from the driver.
    DriverAlloc,
    /// A call gave memory back to it.
    DriverFree,
    /// The first launch, copy or wait of a thread after it took memory.
    Work,
    /// A process ended.
    Exit,
    /// The kernel chose a process for want of main memory.
    OomKill,
}

impl Kind {
    /// As it is written.
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

/// An address, written as `"0x7f…"`: as a number it would not be exact everywhere.
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
    pub(crate) kind: Kind,
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
    fn bare(kind: Kind, at_ns: u64, pid: u32, tid: u32) -> Self {
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

    /// An event; `site` is its stack's number. `None` for one that says nothing about memory.
    pub(crate) fn of(event: &MemoryEvent, site: Option<u32>) -> Option<Self> {
        match event {
            MemoryEvent::Tensor(tensor) => Self::of_tensor(tensor, site),
            MemoryEvent::Call(call) => Self::of_call(call, site),
        }
    }

    fn of_tensor(event: &TensorEvent, site: Option<u32>) -> Option<Self> {
        let kinds = [(TorchOp::Alloc, Kind::Alloc), (TorchOp::Free, Kind::Free), (TorchOp::OutOfMemory, Kind::Oom)];
        let kind = kinds.into_iter().find(|(op, _)| torch_op(*op) == event.op)?.1;
        Some(Self {
            device: Some(event.device),
            bytes: Some(event.bytes),
            address: (kind != Kind::Oom).then_some(Address(event.address)),
            allocated: Some(event.allocated),
            reserved: Some(event.reserved),
            site,
            ..Self::bare(kind, event.at_ns, event.pid, event.tid)
        })
    }

    fn of_call(call: &Call, site: Option<u32>) -> Option<Self> {
        let bare = |kind| Self::bare(kind, call.start_ns, call.pid, call.tid);
        if call.op == kernel_op(KernelOp::ProcessExit) {
            return Some(Self { code: call.arg0, signal: call.arg1, ..bare(Kind::Exit) });
        }
        if call.op == kernel_op(KernelOp::OomKill) {
            return Some(bare(Kind::OomKill));
        }
        let op = call.op.get()?;
        let kind = match op.class {
            Class::Alloc => Kind::DriverAlloc,
            Class::Free => Kind::DriverFree,
            _ => Kind::Work,
        };
        let function = Some(Cow::Borrowed(op.function.as_str()));
        if kind == Kind::Work {
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

    /// The event again; `stack` says which stack a site's number stands for. Otherwise what is wrong.
    pub(crate) fn event(&self, stack: impl Fn(u32) -> Option<u64>) -> Result<MemoryEvent, String> {
        let latest = self.at_ns.max(self.duration_ns.unwrap_or(0));
        if latest > LATEST_NS {
            return Err(format!("{latest} ns is later than any run"));
        }
        if let Some(bytes) = [self.bytes, self.allocated, self.reserved].into_iter().flatten().find(|n| *n > LARGEST) {
            return Err(format!("{bytes} bytes are more than any device has"));
        }
        let stack = match self.site {
            Some(site) => Some(stack(site).ok_or_else(|| format!("site {site} is not in the list of sites"))?),
            None => None,
        };
        match self.kind {
            Kind::Alloc => self.tensor(TorchOp::Alloc, stack),
            Kind::Free => self.tensor(TorchOp::Free, stack),
            Kind::Oom => self.tensor(TorchOp::OutOfMemory, stack),
            Kind::Exit => Ok(self.call(kernel_op(KernelOp::ProcessExit), (self.code, self.signal), None)),
            Kind::OomKill => Ok(self.call(kernel_op(KernelOp::OomKill), (None, None), None)),
            Kind::DriverAlloc | Kind::DriverFree | Kind::Work => {
                let arguments = (self.bytes, self.address.map(|address| address.0));
                Ok(self.call(self.op()?, arguments, stack))
            }
        }
    }

    fn op(&self) -> Result<OpId, String> {
        let name = self.function.as_deref().ok_or("`function` is missing")?;
        let op = by_function(name).ok_or_else(|| format!("{name:?} is no function that gpuwhy knows"))?;
        let fits = match self.kind {
            Kind::DriverAlloc => op.class == Class::Alloc,
            Kind::DriverFree => op.class == Class::Free,
            _ => matches!(op.class, Class::Launch | Class::Sync | Class::Copy),
        };
        if fits { Ok(op.id) } else { Err(format!("{name} is no {}", self.kind.name())) }
    }

    fn tensor(&self, op: TorchOp, stack: Option<u64>) -> Result<MemoryEvent, String> {
        let told = |value: Option<u64>, name: &str| value.ok_or_else(|| format!("`{name}` is missing"));
        let address = if op == TorchOp::OutOfMemory { Some(0) } else { self.address.map(|address| address.0) };
        Ok(MemoryEvent::Tensor(TensorEvent {
            at_ns: self.at_ns,
            pid: self.pid,
            tid: self.tid,
            op: torch_op(op),
            device: self.device.ok_or("`device` is missing")?,
            bytes: told(self.bytes, "bytes")?,
            address: told(address, "address")?,
            allocated: told(self.allocated, "allocated")?,
            reserved: told(self.reserved, "reserved")?,
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
