// SPDX-License-Identifier: Apache-2.0
//! Combines several run files, so that one query covers all ranks or nodes.
//!
//! - **Ids stay unique.** Each run gets 2^22 ids for its processes and threads; CPUs, GPUs and row ids continue those
//!   of the previous runs. An id of the result leads back to one run (the view `merged`).
//! - **Times are on one clock**, that of the run that started first, aligned by the wall clocks at the start of each
//!   run.
//! - **Files are untrusted.** A run is opened read-only and guarded, only plain tables are read, and each value is
//!   checked against its column. Nothing in the file is executed.
//! - **All or nothing.** The result is written under a temporary name in the same folder and renamed when complete.
//!   Existing files are never overwritten.
//!
//! Memory does not grow with the files: rows are copied one at a time; those whose id is their time are merged in
//! order.

pub(crate) mod copy;
mod findings;
pub(crate) mod input;
pub(crate) mod tables;
pub(crate) mod target;

use crate::{Owner, Result};
use copy::Copier;
use input::Input;
use std::path::{Path, PathBuf};
use target::Target;

/// The inputs and output of a merge.
pub struct MergeRequest<'a> {
    /// The run files, which get the numbers 0, 1, … in this order.
    pub inputs: &'a [PathBuf],
    /// The file to be made.
    pub output: &'a Path,
    /// gpuwhy's version.
    pub version: &'a str,
    /// Owner of the new file; `None`: the current user.
    pub owner: Option<Owner>,
}

/// A file made of several.
#[derive(Debug)]
pub struct Merged {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Events in it: those with a row and those that are another row's weight.
    pub stored: u64,
    /// The recorded runs in it.
    pub runs: Vec<MergedRun>,
}

/// One of the runs a file was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedRun {
    /// Its file.
    pub path: PathBuf,
    /// The offset added to its process and thread ids.
    pub pid_offset: u64,
    /// How long after the first run it began.
    pub clock_offset_ns: u64,
    /// Whether it has no end: its gpuwhy was killed.
    pub unfinished: bool,
}

/// Merges runs. `go_on` is called regularly; when it returns false, the partial result is removed.
pub fn merge(request: &MergeRequest<'_>, mut go_on: impl FnMut() -> bool) -> Result<Merged> {
    // Before anything is read: a wrong name for the result should not cost minutes.
    let target = Target::create(request.output, request.owner)?;
    let mut inputs = input::open_all(request.inputs)?;
    target.begin()?;
    for input in &mut inputs {
        target.know_words(input)?;
    }
    copy_all(&target, &inputs, &mut go_on)?;
    target.write_session(&inputs, request.version)?;
    let size_bytes = target.finish()?;
    let run = |input: &Input| MergedRun {
        path: input.path.clone(),
        pid_offset: input.shift.pid_offset().cast_unsigned(),
        clock_offset_ns: input.shift.clock_ns.cast_unsigned(),
        unfinished: input.session.stop_unix_ns.is_none(),
    };
    let stored = inputs.iter().map(|input| input.session.counts[1].cast_unsigned()).sum();
    Ok(Merged { size_bytes, stored, runs: inputs.iter().map(run).collect() })
}

fn copy_all(target: &Target, inputs: &[Input], go_on: &mut dyn FnMut() -> bool) -> Result<()> {
    let mut copier = Copier { db: target.db(), path: target.path(), go_on, rows: 0, reducer: None };
    for table in &tables::TABLES {
        for input in inputs {
            copier.table(input, table)?;
        }
    }
    for table in &tables::EVENTS {
        copier.events(inputs, table)?;
    }
    let mut spans = findings::Spans::default();
    for input in inputs {
        findings::copy(target.db(), target.path(), input, &mut spans)?;
    }
    Ok(())
}
