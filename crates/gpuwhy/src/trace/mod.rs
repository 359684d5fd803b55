// SPDX-License-Identifier: Apache-2.0
//! Recording a run: start or find the job, write captured events to the run file, show progress, end cleanly.

mod alerts;
mod answer;
mod budget;
mod capabilities;
mod cost;
mod display;
mod figures;
mod host;
mod job;
mod ledger;
mod limits;
pub(crate) mod privileges;
mod processes;
mod recorder;
mod screen;
mod sources;
pub(crate) mod sudo;
mod summary;
mod writer;

pub(crate) use alerts::AlertSettings;
pub(crate) use display::Display;
pub(crate) use summary::Summary;

use gpuwhy_capture::Options;
use gpuwhy_capture::governor::Budget;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What to record and how.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// What to capture.
    pub(crate) capture: Options,
    /// Whether to sample the machine, processes and GPUs once a second.
    pub(crate) samples: bool,
    /// NVML's library, when it is not the machine's own.
    pub(crate) nvml: Option<PathBuf>,
    /// The job to start; empty for none.
    pub(crate) command: Vec<OsString>,
    /// Variables added to the job's environment.
    pub(crate) extra_env: Vec<(OsString, OsString)>,
    /// Stop after this time.
    pub(crate) duration: Option<Duration>,
    /// The run file.
    pub(crate) db: PathBuf,
    /// Maximum size of the run file, bytes.
    pub(crate) max_size: Option<u64>,
    /// What to show.
    pub(crate) display: Display,
    /// Maximum overhead for the job.
    pub(crate) budget: Budget,
    /// Alert rules and command.
    pub(crate) alerts: AlertSettings,
    /// Whether to print the explanation at the end.
    pub(crate) explain: bool,
}

/// How the recording ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// gpuwhy's exit code: the job's, or 0.
    pub(crate) exit_code: u8,
    /// What was recorded.
    pub(crate) summary: Summary,
}

/// Records a run from beginning to end.
pub(crate) fn record(settings: &Settings) -> anyhow::Result<Ended> {
    recorder::run(settings)
}
