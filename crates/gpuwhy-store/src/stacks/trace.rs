// SPDX-License-Identifier: Apache-2.0
//! Single stacks by their ids.

use super::StackFrame;
use crate::{Reader, Result};
use gpuwhy_stacks::Stack;
use rusqlite::OptionalExtension;
use std::collections::HashMap;

/// A stack in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackTrace {
    /// The innermost line of the user's code; without one, the `top_line` of `stack_traces`.
    pub top_line: Option<String>,
    /// The frames, innermost first.
    pub frames: Vec<StackFrame>,
}

impl Reader {
    /// The stacks with these ids ([`gpuwhy_model::Call::stack`] of a replayed event). Those the file has no frames of
    /// are missing.
    pub fn stack_text(&self, ids: &[u64]) -> Result<HashMap<u64, StackTrace>> {
        let read = || -> rusqlite::Result<HashMap<u64, StackTrace>> {
            let mut statement = self.db.prepare("SELECT frames, top_line FROM stack_ WHERE id = ?1")?;
            let mut found = HashMap::new();
            for id in ids {
                let trace = statement.query_row([id.cast_signed()], |row| {
                    let frames = Stack::parse(row.get_ref(0)?.as_str()?).map(StackFrame::from).collect();
                    Ok(StackTrace { top_line: row.get(1)?, frames })
                });
                if let Some(trace) = trace.optional()? {
                    found.insert(*id, trace);
                }
            }
            Ok(found)
        };
        read().map_err(|source| self.error(source))
    }
}
