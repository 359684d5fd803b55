// SPDX-License-Identifier: Apache-2.0
//! `list_runs`: the available run files.

use super::Asked;
use super::page::{Answer, Page, Paging, pop};
use super::place::{Time, state_word};
use crate::error::ToolError;
use crate::text::{NOTICE, PATH, clean};
use gpuwhy_ask::runs::RunInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    /// Only runs started within the last 2h, 30m
    #[serde(default)]
    since: Option<Time>,
    #[serde(flatten)]
    paging: Paging,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct List {
    runs: Vec<One>,
    #[serde(flatten)]
    page: Page,
    note: &'static str,
}

/// A run file.
#[derive(Debug, Serialize, JsonSchema)]
struct One {
    /// Pass this as run
    run: String,
    /// ended, running, or cut (gpuwhy was killed)
    state: &'static str,
    /// Start time, Unix seconds
    started_unix_s: u64,
    duration_ns: u64,
    /// The -wal of a killed gpuwhy is not beside the file: what came after duration_ns is missing
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    lacks_wal: bool,
    events: u64,
    bytes: u64,
    command: Option<String>,
    gpu: Option<String>,
}

impl Answer for List {
    fn shorten(&mut self) -> bool {
        pop(&mut self.runs)
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.runs.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<List, ToolError> {
    let mut runs = asked.runs.folders().runs();
    if let Some(since) = arguments.since {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = now.saturating_sub(since.0);
        runs.retain(|run| Duration::from_nanos(run.session.start_unix_ns) >= first);
    }
    let (runs, page) = arguments.paging.cut(runs, 20, None)?;
    Ok(List { runs: runs.iter().map(one).collect(), page, note: NOTICE })
}

fn one(info: &RunInfo) -> One {
    One {
        run: clean(&info.path.to_string_lossy(), PATH),
        state: state_word(info.state),
        started_unix_s: info.session.start_unix_ns / 1_000_000_000,
        duration_ns: info.session.duration_ns,
        lacks_wal: info.lacks_wal,
        events: info.session.events_stored,
        bytes: info.bytes,
        command: info.session.command.as_deref().map(|command| clean(command, 100)),
        gpu: info.session.machine.gpu.as_deref().map(|gpu| clean(gpu, 60)),
    }
}
