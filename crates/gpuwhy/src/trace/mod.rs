// SPDX-License-Identifier: Apache-2.0
//! Recording a run: start the job or find it, move what is captured into the run file, show progress,
//! end cleanly.

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
    /// Whether to look at the machine, the processes and the GPUs every second.
    pub(crate) samples: bool,
    /// NVML's library, when it is not the machine's own.
    pub(crate) nvml: Option<PathBuf>,
    /// The job to start; empty for none.
    pub(crate) command: Vec<OsString>,
    /// Variables the job gets besides its environment.
    pub(crate) extra_env: Vec<(OsString, OsString)>,
    /// When to stop by itself.
    pub(crate) duration: Option<Duration>,
    /// The run file.
    pub(crate) db: PathBuf,
    /// How large it may become, bytes.
    pub(crate) max_size: Option<u64>,
    /// What to show.
    pub(crate) display: Display,
    /// What tracing may cost the job.
    pub(crate) budget: Budget,
    /// What to be alerted of.
    pub(crate) alerts: AlertSettings,
    /// Whether to say in the end why the job was slow.
    pub(crate) explain: bool,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What gpuwhy should exit with: the job's code, or 0.
    pub(crate) exit_code: u8,
    /// What was recorded.
    pub(crate) summary: Summary,
}

/// Records a run from beginning to end.
pub(crate) fn record(settings: &Settings) -> anyhow::Result<Ended> {
    recorder::run(settings)
}
