// SPDX-License-Identifier: Apache-2.0
//! Finds the requested op, and similar names if it does not exist.

use super::read::{number, text};
use super::{StackError, StackUnit};
use crate::{Limits, Reader, Result};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// How many names to offer.
const OFFERED: usize = 3;

/// The requested op, as found in the file.
pub(super) struct WantedOp {
    /// As the file writes it.
    pub(super) asked: String,
    /// Its ids: an op may be several functions.
    pub(super) ids: BTreeSet<i64>,
    /// Where its events come from.
    source: Source,
}

/// Where an op's events come from, which decides where they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A CUDA library: they are calls.
    Library,
    Kernel,
    Allocator,
}

impl Source {
    fn of_layer(layer: Option<&str>) -> Self {
        match layer {
            Some("kernel") => Self::Kernel,
            Some("torch") => Self::Allocator,
            _ => Self::Library,
        }
    }
}

impl WantedOp {
    /// Times off the CPU are kept in a table of their own.
    pub(super) fn is_switch(&self) -> bool {
        self.source == Source::Kernel && self.asked == "sched_switch"
    }

    /// Reports of PyTorch's allocator have their own table.
    pub(super) fn is_tensor(&self) -> bool {
        self.source == Source::Allocator
    }

    pub(super) fn unit(&self) -> StackUnit {
        match (self.source, self.asked.as_str()) {
            (Source::Kernel, "sched_switch") => StackUnit::OffCpu,
            (Source::Kernel, "cpu_sample") => StackUnit::Sample,
            (Source::Kernel, _) => StackUnit::Event,
            (Source::Library | Source::Allocator, _) => StackUnit::Call,
        }
    }
}

impl Reader {
    /// Finds an op by its short name or exact function.
    pub(super) fn find_op(&self, asked: &str, limits: &Limits) -> std::result::Result<WantedOp, StackError> {
        let mut found: Option<WantedOp> = None;
        self.query("SELECT id, name, function, layer FROM op_ ORDER BY id", limits, |_, row| {
            let names = [text(row.get(1)), text(row.get(2))];
            // The short name first: it means all its functions, one of which may have the same name.
            if let Some(name) = names.into_iter().flatten().find(|name| name.eq_ignore_ascii_case(asked)) {
                let source = Source::of_layer(text(row.get(3)));
                let op = found.get_or_insert_with(|| WantedOp { asked: name.to_owned(), ids: BTreeSet::new(), source });
                op.ids.extend(number(row.first()));
            }
            ControlFlow::Continue(())
        })?;
        match found {
            Some(op) if op.source == Source::Kernel && op.asked == "sched_wakeup" => Err(StackError::Wakeup),
            Some(op) => Ok(op),
            None => Err(StackError::UnknownOp { op: asked.to_owned(), near: nearest(asked, self.ops_seen(limits)?) }),
        }
    }

    /// Short names of the ops that have events here.
    fn ops_seen(&self, limits: &Limits) -> Result<BTreeSet<String>> {
        let mut seen = BTreeSet::new();
        let sql = "SELECT name FROM op_ WHERE id IN (SELECT op FROM context_ WHERE flags & 1 = 0)
            UNION ALL SELECT 'sched_switch' WHERE EXISTS (SELECT 1 FROM off_)";
        self.query(sql, limits, |_, row| {
            seen.extend(text(row.first()).map(str::to_owned));
            ControlFlow::Continue(())
        })?;
        Ok(seen)
    }
}

/// The few names most similar to the requested one.
fn nearest(asked: &str, names: BTreeSet<String>) -> Vec<String> {
    let asked = asked.to_ascii_lowercase();
    let mut names: Vec<(usize, String)> = names
        .into_iter()
        .map(|name| {
            let lower = name.to_ascii_lowercase();
            // `malloc` means a name that contains it.
            let within = !asked.is_empty() && lower.contains(&asked);
            (if within { 0 } else { distance(&asked, &lower) }, name)
        })
        .collect();
    names.sort();
    names.into_iter().take(OFFERED).map(|(_, name)| name).collect()
}

/// How many letters to add, drop or change to get from one word to the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["cudaMalloc", "cudaFree", "cudaMallocHost", "sched_switch"].map(str::to_owned);
        assert_eq!(distance("cudamaloc", "cudamalloc"), 1);
        assert_eq!(nearest("cudaMaloc", names.clone().into())[0], "cudaMalloc");
        assert_eq!(nearest("malloc", names.clone().into())[..2], ["cudaMalloc", "cudaMallocHost"]);
        assert_eq!(nearest("switch", names.into())[0], "sched_switch");
    }
}
