// SPDX-License-Identifier: Apache-2.0
//! Lines of source that stacks name. They are kept with the run, so that an answer is the same wherever it is asked for.

/// A block that matters to whoever reads a line in it: it keeps what is cast inside of it until it ends.
pub const AUTOCAST: &str = "autocast(";

/// A line of a source file, as it was while the run was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as stacks name it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// Its text, secrets removed; `None` where files of this name differ.
    pub text: Option<String>,
    /// [`AUTOCAST`] if the line stands in a loop inside such a block.
    pub around: Option<String>,
}
