// SPDX-License-Identifier: Apache-2.0
//! A job made of synthetic events: it allocates, frees, launches and waits on request, and keeps a simple account of it.
#![allow(dead_code, unreachable_pub)]

use gpuwhy_memory::{Analyser, Facts, ProcessFact, Report, SiteFact, StepFinder};
use gpuwhy_model::ops::{KernelOp, TorchOp, by_function, kernel_op, torch_op};
use gpuwhy_model::{Call, CallFlags, MemoryEvent, TensorEvent};
use std::collections::{BTreeMap, HashMap};

pub const PID: u32 = 4821;
pub const MB: u64 = 1 << 20;

/// A small generator: the same numbers every time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The job. A stack's number is its line: stack 7 is `job.py:7`.
#[derive(Default)]
pub struct Job {
    pub events: Vec<MemoryEvent>,
    pub now: u64,
    pub allocated: u64,
    pub reserved: u64,
    /// Address → bytes and stack.
    pub live: BTreeMap<u64, (u64, u64)>,
    /// The highest total, and live memory then by stack.
    pub peak: (u64, BTreeMap<u64, u64>),
    pub next: u64,
}

impl Job {
    pub fn call(&mut self, function: &str, stack: u64) -> &mut Call {
        self.now += 100;
        self.events.push(MemoryEvent::Call(Call {
            start_ns: self.now,
            duration_ns: 50,
            pid: PID,
            tid: PID,
            op: by_function(function).unwrap().id,
            device: Some(0),
            stream: None,
            arg0: None,
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: Some(stack),
        }));
        let Some(MemoryEvent::Call(call)) = self.events.last_mut() else { unreachable!() };
        call
    }

    pub fn launch(&mut self, stack: u64) {
        self.call("cudaLaunchKernel", stack);
    }

    pub fn wait(&mut self, stack: u64) {
        self.call("cudaStreamSynchronize", stack);
    }

    fn report(&mut self, op: TorchOp, bytes: u64, address: u64, stack: u64) {
        self.now += 100;
        self.events.push(MemoryEvent::Tensor(TensorEvent {
            at_ns: self.now,
            pid: PID,
            tid: PID,
            op: torch_op(op),
            device: 0,
            bytes,
            address,
            allocated: self.allocated,
            reserved: self.reserved,
            stack: Some(stack),
        }));
    }

    /// Allocates a tensor; takes memory from the driver if not enough is reserved.
    pub fn alloc(&mut self, bytes: u64, stack: u64) -> u64 {
        self.next += 1;
        let address = self.next << 20;
        if self.allocated + bytes > self.reserved {
            let segment = bytes.next_multiple_of(2 << 20);
            self.malloc(segment, stack);
            self.reserved += segment;
        }
        self.allocated += bytes;
        self.live.insert(address, (bytes, stack));
        if self.allocated > self.peak.0 {
            let mut by_stack = BTreeMap::new();
            for (bytes, stack) in self.live.values() {
                *by_stack.entry(*stack).or_default() += bytes;
            }
            self.peak = (self.allocated, by_stack);
        }
        self.report(TorchOp::Alloc, bytes, address, stack);
        address
    }

    pub fn free(&mut self, address: u64) {
        let (bytes, stack) = self.live.remove(&address).unwrap();
        self.allocated -= bytes;
        self.report(TorchOp::Free, bytes, address, stack);
    }

    pub fn refuse(&mut self, bytes: u64, stack: u64) {
        self.report(TorchOp::OutOfMemory, bytes, 0, stack);
    }

    /// Allocates memory directly from the driver.
    pub fn malloc(&mut self, bytes: u64, stack: u64) -> u64 {
        self.next += 1;
        let address = (1 << 50) + (self.next << 20);
        let call = self.call("cudaMalloc", stack);
        (call.arg0, call.arg1) = (Some(bytes), Some(address));
        address
    }

    pub fn free_device(&mut self, address: u64, stack: u64) {
        self.call("cudaFree", stack).arg1 = Some(address);
    }

    pub fn exit(&mut self, code: u64, signal: u64) {
        let call = self.call("cudaFree", 0);
        (call.op, call.arg0, call.arg1) = (kernel_op(KernelOp::ProcessExit), Some(code), Some(signal));
    }

    pub fn facts(&self) -> Facts {
        let process = ProcessFact { pid: PID, name: "python3".into(), ended_ns: None };
        Facts { to_ns: self.now, processes: BTreeMap::from([(PID, process)]), ..Facts::default() }
    }

    pub fn examine(&self) -> Report {
        self.examine_with(self.facts())
    }

    pub fn examine_with(&self, facts: Facts) -> Report {
        let mut finder = StepFinder::new(facts.from_ns, facts.to_ns);
        self.events.iter().for_each(|event| finder.feed(event));
        let mut analyser = Analyser::new(facts, finder.finish());
        self.events.iter().for_each(|event| analyser.feed(event));
        analyser.finish(&mut |ids| ids.iter().map(|id| (*id, site(*id))).collect::<HashMap<_, _>>())
    }
}

pub fn site(stack: u64) -> SiteFact {
    let line = format!("job.py:{stack}");
    SiteFact { place: Some(format!("/home/me/{line}")), line: Some(line), ..SiteFact::default() }
}

/// A transformer's step: layers from the same lines, then code that runs once, then a wait. Every tenth step logs.
pub fn step(job: &mut Job, number: u64, layers: u64) {
    let mut activations = Vec::new();
    for _ in 0..layers {
        for line in 10..14 {
            activations.push(job.alloc(3 * MB + line, line));
            job.launch(line);
        }
    }
    job.launch(20);
    for address in activations {
        job.launch(30);
        job.free(address);
    }
    job.launch(40);
    job.launch(41);
    job.wait(50);
    if number % 10 == 9 {
        job.wait(60);
    }
}
