// SPDX-License-Identifier: Apache-2.0
//! Alerts on GPU memory while a job runs. Pure: figures and the time in, alerts out.
//!
//! - [`rule`]: the rules of `--alert`, and the default rules.
//! - [`Engine`]: raises alerts and ends them. An alert ends when its figure has fallen clearly below the limit and stayed
//!   there ([`STAY_NS`]); only then can it be raised again.
//! - `series`: how fast a figure grows, and whether its floor keeps rising, in constant memory.
//! - [`Schedule`]: when a run that is still being recorded may be examined for leaks, how much of it, and for how long.
//!
//! Times are nanoseconds of the caller's monotonic clock; sizes are bytes.

mod engine;
pub mod rule;
mod schedule;
mod series;

pub use engine::{Engine, STAY_NS};
pub use rule::{Choice, Rule, RuleError};
pub use schedule::{Examination, Schedule};

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Memory will run out if nothing changes.
    Warning,
    /// Memory has run out, or is about to.
    Critical,
}

impl Level {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Warning, Self::Critical];

    /// The name in run files, JSON and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// The level of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// What an alert, or a rule, is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// Much of a GPU's memory is in use.
    Memory,
    /// Memory in use grows fast.
    Growth,
    /// A line leaks.
    Leak,
    /// An allocation was refused.
    Oom,
}

impl AlertKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Growth, Self::Leak, Self::Oom];

    /// The name in rules, run files, JSON and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Growth => "growth",
            Self::Leak => "leak",
            Self::Oom => "oom",
        }
    }

    /// The kind of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An alert, raised or ended. Names in it come from the traced processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Its number in the run, starting at 1.
    pub id: u64,
    /// When it was raised.
    pub at_ns: u64,
    /// When it ended; `None` while it holds.
    pub cleared_ns: Option<u64>,
    /// How bad it is.
    pub level: Level,
    /// What it is about.
    pub kind: AlertKind,
    /// The rule, as it was written.
    pub rule: String,
    /// The process it is about; for a whole GPU, the traced process with most memory there.
    pub pid: Option<u32>,
    /// CUDA's device number, for a process's memory.
    pub device: Option<u32>,
    /// NVML's index, for a whole GPU.
    pub gpu: Option<u32>,
    /// The figure in the rule's unit: percent, bytes or bytes a second; for a leak bytes a second, for a refusal the bytes
    /// asked for.
    pub value: f64,
    /// The limit, in the same unit, if the rule has one.
    pub threshold: Option<f64>,
    /// One line of text.
    pub text: String,
}
