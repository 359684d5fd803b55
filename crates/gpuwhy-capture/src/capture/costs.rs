// SPDX-License-Identifier: Apache-2.0
//! What capturing costs the job.

use super::Capture;
use crate::arch::FirstInstruction;
use crate::governor::ProbePrice;
use crate::programs::{CALIBRATED, Calibrated, Traps};
use gpuwhy_model::OpId;
use std::collections::{BTreeMap, BTreeSet};

/// What a probe costs on this machine, as measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbePrices {
    /// By what it stands on.
    pub by_instruction: BTreeMap<FirstInstruction, ProbePrice>,
    /// Of a followed call, the program's own time at the return, ns.
    pub leave_ns: f64,
}

impl Default for ProbePrices {
    /// Of a usual machine, for when measuring fails.
    fn default() -> Self {
        Self { by_instruction: BTreeMap::new(), leave_ns: 400.0 }
    }
}

impl ProbePrices {
    /// On this instruction; on one that was not measured, what is usual.
    pub fn on(&self, first: FirstInstruction) -> ProbePrice {
        self.by_instruction.get(&first).copied().unwrap_or_default()
    }
}

/// What the probes on a function, in every file that has it, have done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpTraps {
    /// The function.
    pub op: OpId,
    /// What its probes stand on: one kind, or several if copies of the library differ.
    pub first: BTreeSet<FirstInstruction>,
    /// What they did.
    pub traps: Traps,
}

impl Capture {
    /// Measures what a probe costs on this machine; `None`, with a warning, where that fails. To be called once, at the
    /// start, before [`Capture::take`].
    pub fn calibrate(&mut self) -> Option<ProbePrices> {
        let measured = self.programs.calibrate();
        // gpuwhy's own calls are nobody's business; what processes did meanwhile that run already is.
        self.ring.consume_raw_n(usize::MAX);
        self.inbox.borrow_mut().forget_process(std::process::id());
        let lost = self.programs.take_loss();
        self.early_loss.extend(lost.into_iter().filter(|(_, op, _)| *op != Some(CALIBRATED.id)));
        match measured {
            Ok(Calibrated { prices, leave_ns, links }) => {
                self.calibration = links;
                Some(ProbePrices { by_instruction: prices, leave_ns })
            }
            Err(error) => {
                self.warnings.push(format!("cannot measure the cost of a probe: {error}"));
                None
            }
        }
    }

    /// What probes have done so far, by the op that has the probe; only those that were hit.
    pub fn traps(&self) -> Vec<OpTraps> {
        let probed = self.probes.ops();
        let traps = probed.into_iter().map(|(op, first)| OpTraps { op, first, traps: self.programs.traps(op) });
        traps.filter(|op| op.traps.entered > 0).collect()
    }

    /// What following the scheduler has cost so far.
    pub fn switch_traps(&self) -> Traps {
        self.programs.switch_traps()
    }
}
