// SPDX-License-Identifier: Apache-2.0
//! Source lines stored in the run file. They show what a line does with its allocations.

use crate::Result;
use gpuwhy_model::SourceLine;
use gpuwhy_store::{Reader, StackFrame};
use std::collections::HashMap;

/// The lines of a run, by file and number.
#[derive(Debug, Default)]
pub(super) struct Sources {
    lines: HashMap<(String, u32), SourceLine>,
}

impl Sources {
    pub(super) fn of(reader: &Reader) -> Result<Self> {
        let lines = reader.source_lines()?.into_iter().map(|line| ((line.file.clone(), line.line), line));
        Ok(Self { lines: lines.collect() })
    }

    fn at(&self, file: &str, line: u32) -> Option<&SourceLine> {
        self.lines.get(&(file.to_owned(), line))
    }

    /// The text of a stack's line, and of what is around it or around one of its callers.
    pub(super) fn of_stack(&self, top: Option<(&str, u32)>, frames: &[StackFrame]) -> Option<String> {
        let text = top.and_then(|(file, line)| self.at(file, line)?.text.clone());
        let around = frames.iter().find_map(|frame| self.at(&frame.file, frame.line?)?.around.as_deref());
        match (text, around) {
            (Some(text), Some(around)) => Some(format!("{text}\n{around}")),
            (text, around) => text.or_else(|| around.map(str::to_owned)),
        }
    }
}
