// SPDX-License-Identifier: Apache-2.0
//! The line, op and category of each allocation, from its stack and from the entries around it.
//!
//! The backward runs on threads without Python frames. Its allocations still get a line: the recording is in order, and
//! the backward started at a line that has frames.

use crate::snapshot::hash::FastMap;
use crate::snapshot::place::{Part, Place, Places};
use crate::snapshot::replay::{Account, Before, NEVER};
use crate::snapshot::report::{Category, Row};
use crate::snapshot::rows::{Action, Entry, NOTHING, grow};

/// The key by which allocations are grouped. Equal text has equal ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::snapshot) struct Holder {
    line: u32,
    op: u32,
    pub(in crate::snapshot) category: Category,
}

impl Holder {
    fn new(place: Place, category: Category) -> Self {
        Self { line: place.line, op: place.op, category }
    }
}

/// Bytes and count by holder and, for churn, size.
type Groups = FastMap<(Holder, u64), (u64, u64)>;

/// A backward pass: entries from `start` up to, not including, `end`.
struct Pass {
    start: usize,
    end: usize,
    /// The line that called it; 0: not known.
    caller: u32,
    /// What it leaves behind is freed before the end, as with gradients set to None; what remains is not a gradient.
    gradients_freed: bool,
}

impl Pass {
    fn look_at_gradients(&mut self, entries: &[Entry], account: &Account) {
        let (mut freed, mut kept) = (0, 0);
        let freed_at = account.freed_at.iter().zip(entries).skip(self.start).take(self.end - self.start);
        for (&at, entry) in freed_at.filter(|(at, entry)| entry.action == Action::Alloc && **at as usize >= self.end) {
            grow(if at == NEVER { &mut kept } else { &mut freed }, entry.size);
        }
        self.gradients_freed = freed > kept;
    }
}

/// Finds the holders of one device's allocations.
pub(in crate::snapshot) struct Holders<'a> {
    device: u32,
    places: Places<'a>,
    entries: &'a [Entry],
    account: &'a Account,
    passes: Vec<Pass>,
    /// The op of backward allocations that name none.
    backward_op: u32,
}

impl<'a> Holders<'a> {
    pub(in crate::snapshot) fn new(
        device: u32,
        mut places: Places<'a>,
        entries: &'a [Entry],
        account: &'a Account,
    ) -> Self {
        let mut passes = backward_passes(&mut places, entries);
        for pass in &mut passes {
            pass.look_at_gradients(entries, account);
        }
        let backward_op = places.op_id("backward");
        Self { device, places, entries, account, passes, backward_op }
    }

    fn pass_at(&self, entry: usize) -> Option<&Pass> {
        let after = self.passes.partition_point(|pass| pass.start <= entry);
        self.passes.get(after.checked_sub(1)?).filter(|pass| entry < pass.end)
    }

    /// Whether two backward passes follow this entry. A single one may have been cut off by an error.
    fn used_up_after(&self, entry: usize) -> bool {
        self.passes.partition_point(|pass| pass.start <= entry) + 1 < self.passes.len()
    }

    /// The holder of what this entry allocated.
    pub(in crate::snapshot) fn of_entry(&mut self, entry: usize) -> Holder {
        let stack = self.entries[entry].stack;
        let freed_at = self.account.freed_at[entry];
        let used_up = freed_at == NEVER && self.used_up_after(entry);
        let pass = self.pass_at(entry).map(|pass| (pass.end, pass.caller, pass.gradients_freed));
        let place = self.places.get(stack);
        let Some((end, caller, freed)) = pass.filter(|_| place.part.in_backward().unwrap_or(true)) else {
            let category = match place.part {
                Part::Optimizer if freed_at == NEVER => Category::OptimizerState,
                // A backward consumes every activation made before it, so this is something else.
                Part::Forward if used_up => Category::Other,
                part => part.category(),
            };
            return Holder::new(place, category);
        };
        let category = match place.part {
            Part::Workspace => Category::Workspace,
            Part::Accumulate => Category::Gradients,
            Part::Recompute | Part::Backward | Part::Unknown if freed_at == NEVER && freed => Category::Other,
            Part::Recompute => Category::Recomputed,
            // Outlives its pass: a gradient for the optimizer.
            _ if freed_at as usize >= end => Category::Gradients,
            _ => Category::Backward,
        };
        let mut holder = Holder::new(place, category);
        if !place.yours && caller != 0 {
            holder.line = caller;
        }
        if holder.op == 0 && place.part != Part::Recompute {
            holder.op = self.backward_op;
        }
        holder
    }

    /// The holder of memory from before the recording.
    pub(in crate::snapshot) fn of_before(&mut self, before: &Before) -> Holder {
        let place = self.places.get(before.stack);
        let category = match place.part {
            Part::Unknown => Category::PreExisting,
            Part::Optimizer => Category::OptimizerState,
            part => part.category(),
        };
        Holder::new(place, category)
    }

    /// The holder in words, without figures.
    pub(in crate::snapshot) fn row(&self, holder: Holder) -> Row {
        let line = self.places.line(holder.line);
        Row {
            device: self.device,
            file: line.map(|line| line.file.clone()),
            line: line.map(|line| line.line),
            function: line.map(|line| line.function.clone()),
            op: self.places.op(holder.op).map(str::to_owned),
            category: holder.category,
            bytes: 0,
            count: 0,
            size_bytes: None,
        }
    }

    /// The place of an entry that is not an allocation: an OOM.
    pub(in crate::snapshot) fn row_of_entry(&mut self, entry: usize) -> Row {
        let caller = self.pass_at(entry).map_or(0, |pass| pass.caller);
        let place = self.places.get(self.entries[entry].stack);
        let mut holder = Holder::new(place, place.part.category());
        if caller != 0 && !place.yours && place.part.in_backward().unwrap_or(true) {
            let op = if place.op == 0 { self.backward_op } else { place.op };
            holder = Holder { line: caller, op, category: Category::Backward };
        }
        self.row(holder)
    }

    /// A stack's place as a row.
    pub(in crate::snapshot) fn row_of_stack(&mut self, stack: u32) -> Row {
        let place = self.places.get(stack);
        self.row(Holder::new(place, place.part.category()))
    }

    /// What is live after `at` entries, by holder; adds up to the requested bytes live then.
    pub(in crate::snapshot) fn live_after(&mut self, at: usize) -> Vec<Row> {
        let mut groups = Groups::default();
        let (entries, account) = (self.entries, self.account);
        for i in account.live_after(entries, at) {
            add(&mut groups, (self.of_entry(i), 0), entries[i].size);
        }
        for before in account.before_after(at) {
            add(&mut groups, (self.of_before(before), 0), before.requested);
        }
        self.rows(groups, usize::MAX)
    }

    /// What was allocated and freed again, by holder and size; the `most` largest.
    pub(in crate::snapshot) fn churn(&mut self, most: usize) -> Vec<Row> {
        let mut groups = Groups::default();
        let (entries, account) = (self.entries, self.account);
        for (i, &freed_at) in account.freed_at.iter().enumerate() {
            if freed_at != NEVER {
                add(&mut groups, (self.of_entry(i), entries[i].size), entries[i].size);
            }
        }
        self.rows(groups, most)
    }

    /// The largest groups as rows, most bytes first.
    fn rows(&self, groups: Groups, most: usize) -> Vec<Row> {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|&((holder, size), (bytes, _))| (std::cmp::Reverse(bytes), size, holder));
        groups.truncate(most);
        let in_words = |((holder, size), (bytes, count)): ((Holder, u64), (u64, u64))| {
            let size_bytes = (size > 0).then_some(size);
            Row { bytes, count, size_bytes, ..self.row(holder) }
        };
        groups.into_iter().map(in_words).collect()
    }
}

fn add(groups: &mut Groups, key: (Holder, u64), bytes: u64) {
    let group = groups.entry(key).or_default();
    grow(&mut group.0, bytes);
    group.1 += 1;
}

/// Finds the backward passes. Entries without frames belong to the entries around them.
fn backward_passes(places: &mut Places<'_>, entries: &[Entry]) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    let mut open = false;
    let mut last = (NOTHING, None);
    for (i, entry) in entries.iter().enumerate() {
        if entry.stack != last.0 {
            last = (entry.stack, places.get(entry.stack).part.in_backward());
        }
        match last.1 {
            Some(true) => {
                if !open {
                    open = true;
                    passes.push(Pass { start: i, end: entries.len(), caller: 0, gradients_freed: false });
                }
                if let Some(pass) = passes.last_mut()
                    && pass.caller == 0
                    && places.get(entry.stack).yours
                {
                    pass.caller = places.get(entry.stack).line;
                }
            }
            Some(false) if open => {
                open = false;
                if let Some(pass) = passes.last_mut() {
                    pass.end = i;
                }
            }
            _ => {}
        }
    }
    passes
}
