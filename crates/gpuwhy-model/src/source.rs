// SPDX-License-Identifier: Apache-2.0
//! Source lines named by stacks. They are stored with the run, so that an answer does not depend on the machine.

/// A block that matters for lines inside it: it keeps tensors cast inside it until it ends.
pub const AUTOCAST: &str = "autocast(";

/// A line of a source file, as it was while the run was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as named in stacks.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// Its text, secrets removed; `None` where files of this name differ.
    pub text: Option<String>,
    /// [`AUTOCAST`] if the line stands in a loop inside such a block.
    pub around: Option<String>,
}
