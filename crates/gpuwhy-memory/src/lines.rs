// SPDX-License-Identifier: Apache-2.0
//! From stacks to lines: all stacks that end in one line count for that line.

use crate::facts::SiteFact;
use crate::report::Holder;
use crate::space::{Held, Space};
use std::collections::{BTreeMap, HashMap};

/// Named where an allocation ran no Python.
pub(crate) const NO_LINE: &str = "code without a Python line";
/// Lines kept in a list of holders.
pub(crate) const MOST_HOLDERS: usize = 32;

/// The call sites of the stacks that matter.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    facts: HashMap<u64, SiteFact>,
}

/// Identifies a line by its whole path; a stack without a line by its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineKey {
    Line(String),
    Stack(u64),
    None,
}

impl Lines {
    pub(crate) fn new(facts: HashMap<u64, SiteFact>) -> Self {
        Self { facts }
    }

    pub(crate) fn fact(&self, stack: Option<u64>) -> Option<&SiteFact> {
        self.facts.get(&stack?)
    }

    pub(crate) fn line(&self, stack: Option<u64>) -> Option<String> {
        self.fact(stack)?.line.clone()
    }

    pub(crate) fn key(&self, stack: Option<u64>) -> LineKey {
        let fact = self.fact(stack);
        match (stack, fact.and_then(|fact| fact.place.clone().or_else(|| fact.line.clone()))) {
            (_, Some(place)) => LineKey::Line(place),
            (Some(stack), None) => LineKey::Stack(stack),
            (None, None) => LineKey::None,
        }
    }

    /// Sums by line, most bytes first. One more holder without a line sums up the rest, so the total stays exact.
    pub(crate) fn holders(&self, held: impl Iterator<Item = (Option<u64>, u64, u64)>) -> Vec<Holder> {
        let mut by_line: BTreeMap<LineKey, (Holder, u64)> = BTreeMap::new();
        for (stack, bytes, count) in held.filter(|(_, bytes, _)| *bytes > 0) {
            let entry = by_line.entry(self.key(stack)).or_default();
            entry.0.bytes = entry.0.bytes.saturating_add(bytes);
            entry.0.count += count;
            if bytes > entry.1 {
                let fact = self.fact(stack);
                entry.1 = bytes;
                entry.0.line = fact.and_then(|fact| fact.line.clone());
                entry.0.function = fact.and_then(|fact| fact.function.clone());
                entry.0.stack_id = stack.map(u64::cast_signed);
            }
        }
        let mut all: Vec<Holder> = by_line.into_values().map(|(holder, _)| holder).collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.line.cmp(&b.line)));
        let rest = all.split_off(all.len().min(MOST_HOLDERS));
        if !rest.is_empty() {
            all.push(Holder {
                function: Some(format!("{} other lines", rest.len())),
                bytes: rest.iter().map(|holder| holder.bytes).sum(),
                count: rest.iter().map(|holder| holder.count).sum(),
                ..Holder::default()
            });
        }
        all
    }

    /// The same for the sites of a space.
    pub(crate) fn of_space(&self, space: &Space, held: &[Held]) -> Vec<Holder> {
        let stack = |site: u32| space.sites.get(site as usize).and_then(|site| site.stack);
        self.holders(held.iter().map(|(site, bytes, count)| (stack(*site), *bytes, *count)))
    }
}
