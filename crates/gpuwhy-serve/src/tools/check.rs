// SPDX-License-Identifier: Apache-2.0
//! `get_check`: can this machine be traced?

use super::Asked;
use super::page::Answer;
use crate::error::ToolError;
use crate::text::clean;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Check {
    /// Whether everything required is there
    ready: bool,
    /// What tracing needs, missing items first
    needs: Vec<One>,
    /// Met needs left out for brevity
    left_out: usize,
}

/// A requirement for tracing.
#[derive(Debug, Serialize, JsonSchema)]
struct One {
    name: String,
    /// ok, absent (optional) or missing
    status: String,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    fix: Option<String>,
}

impl Answer for Check {
    fn shorten(&mut self) -> bool {
        if self.needs.last().is_some_and(|need| need.status == "ok") {
            self.left_out += 1;
            return self.needs.pop().is_some();
        }
        false
    }
}

pub(crate) fn answer(asked: &Asked<'_>, _: Arguments) -> Result<Check, ToolError> {
    let mut needs: Vec<One> = (asked.check)()
        .into_iter()
        .map(|need| One {
            name: clean(&need.name, 60),
            status: need.status.to_owned(),
            found: clean(&need.found, 160),
            fix: need.fix.map(|fix| clean(&fix, 240)),
        })
        .collect();
    let rank = |need: &One| ["missing", "absent", "ok"].iter().position(|status| need.status == *status);
    needs.sort_by_key(rank);
    Ok(Check { ready: needs.iter().all(|need| need.status != "missing"), needs, left_out: 0 })
}
