// SPDX-License-Identifier: Apache-2.0
//! Arguments that most tools share: run, time range and process.

use crate::error::ToolError;
use crate::runs::Run;
use crate::text::{PATH, clean};
use gpuwhy_ask::Part;
use gpuwhy_ask::part::parse_time;
use gpuwhy_ask::stats::RunState;
use gpuwhy_store::Session;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

/// Run, time range and process.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub(crate) struct Where {
    /// Run file (see list_runs); default: the served or newest one
    #[serde(default)]
    pub(crate) run: Option<String>,
    /// From this time on: 90s, 2m, 500ms
    #[serde(default)]
    pub(crate) from: Option<Time>,
    /// Up to this time
    #[serde(default)]
    pub(crate) to: Option<Time>,
    /// Only the last 90s, 2m
    #[serde(default)]
    pub(crate) since: Option<Time>,
    /// Only this process's job; stacks and memory: only the process
    #[serde(default)]
    pub(crate) pid: Option<u32>,
}

impl Where {
    /// The requested time range and process.
    pub(crate) fn part(&self) -> Result<Part, ToolError> {
        if self.since.is_some() && (self.from.is_some() || self.to.is_some()) {
            return Err(ToolError::Arguments(
                "since cannot be combined with from or to: it counts back from the end of the run".into(),
            ));
        }
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        Ok(Part {
            from: time(&self.from),
            to: time(&self.to),
            since: time(&self.since),
            pids: self.pid.into_iter().collect(),
        })
    }
}

/// A time such as "90s", or a number of seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time(pub(crate) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "invalid time: give seconds as a number, or text such as \"90s\", \"2m\" or \"500ms\""
        )]
        enum Written {
            Seconds(f64),
            Text(String),
        }
        let read = match Written::deserialize(from)? {
            Written::Seconds(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| format!("invalid time {seconds}: give seconds from 0 on, such as 90")),
            Written::Text(text) => {
                parse_time(text.trim()).map_err(|wrong| format!("invalid time {:?}: {wrong}", clean(&text, 40)))
            }
        };
        read.map(Self).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "\"90s\", \"2m\", \"500ms\", or a number of seconds" })
    }
}

/// The run, part of every answer about one.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RunHead {
    /// The run file
    pub(crate) run: String,
    /// `ended`, `running` (figures so far), or `cut` (gpuwhy was killed)
    pub(crate) state: &'static str,
    /// Length of the run so far
    pub(crate) duration_ns: u64,
    /// The -wal of a killed gpuwhy is not beside the file: what came after duration_ns is missing
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    pub(crate) lacks_wal: bool,
}

impl RunHead {
    pub(crate) fn of(run: &Run, session: &Session) -> Self {
        Self::new(&run.path, session, run.lacks_wal)
    }

    pub(crate) fn new(path: &Path, session: &Session, lacks_wal: bool) -> Self {
        let state = state_word(gpuwhy_ask::stats::state(session, path, lacks_wal));
        Self { run: clean(&path.to_string_lossy(), PATH), state, duration_ns: session.duration_ns, lacks_wal }
    }
}

pub(crate) fn state_word(state: RunState) -> &'static str {
    match state {
        RunState::Ended => "ended",
        RunState::Running => "running",
        RunState::Cut => "cut",
    }
}
