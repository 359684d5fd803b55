// SPDX-License-Identifier: Apache-2.0
//! Alerts on GPU memory while a job runs. Pure: figures and the time in, alerts out.
//!
//! - [`rule`]: what people write after `--alert`, and what holds without it.
//! - [`Engine`]: which alerts are raised and which are over. An alert is raised once. It is over when its figure fell
//!   clearly below the limit and stayed there ([`STAY_NS`]); only then can it be raised again.
//! - `series`: how fast a figure grows, and whether its floor keeps rising, in memory that does not grow with time.
//! - [`Schedule`]: when a run that is still recorded may be examined for leaks, how much of it, and for how long.
//!
//! Times are nanoseconds of one monotonic clock, the caller's; sizes are bytes.

mod engine;
pub mod rule;
mod schedule;
mod series;

pub use engine::{Engine, STAY_NS};
pub use rule::{Choice, Rule, RuleError};
pub use schedule::{Look, Schedule};

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It will go wrong if nothing changes.
    Warning,
    /// It has gone wrong, or is about to.
    Critical,
}

impl Level {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Warning, Self::Critical];

    /// As run files, JSON and commands have it.
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
pub enum Kind {
    /// Much of a GPU's memory is in use.
    Memory,
    /// Memory in use grows fast.
    Growth,
    /// A line keeps what it allocates.
    Leak,
    /// An allocation was refused.
    Oom,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Growth, Self::Leak, Self::Oom];

    /// As rules, run files, JSON and commands have it.
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

/// An alert, raised or over. Names in it are from the traced world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Its number in the run, from 1 on.
    pub id: u64,
    /// When it was raised.
    pub at_ns: u64,
    /// Since when it is over; `None` while it is not.
    pub cleared_ns: Option<u64>,
    /// How bad it is.
    pub level: Level,
    /// What it is about.
    pub kind: Kind,
    /// The rule, as it was written.
    pub rule: String,
    /// The process it is about; of a whole GPU, the traced one that has most memory there.
    pub pid: Option<u32>,
    /// CUDA's number of the device, of a process's memory.
    pub device: Option<u32>,
    /// NVML's index, of a whole GPU.
    pub gpu: Option<u32>,
    /// What was found, in the rule's unit: percent, bytes or bytes a second; of a leak bytes a second, of a refusal the
    /// bytes asked for.
    pub value: f64,
    /// The limit, in the same unit; `None` where there is none.
    pub threshold: Option<f64>,
    /// In words, one line.
    pub text: String,
}
