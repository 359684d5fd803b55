// SPDX-License-Identifier: Apache-2.0
//! Links each kernel to the call that launched it and to its op.

use crate::trace::rows::{GpuRow, NONE, Rows};
use std::collections::HashMap;

/// No row.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Row numbers by id: a plain table, as ids mostly count up; a map where they are scattered.
#[derive(Debug)]
enum Index {
    Table { from: u64, rows: Vec<u32> },
    Map(HashMap<u64, u32>),
}

impl Index {
    /// From ids in row order; of equal ids, the first row wins.
    fn new(ids: impl Iterator<Item = u64> + Clone) -> Self {
        let known = || ids.clone().filter(|id| *id != NONE);
        let (count, from, to) = known().fold((0u64, u64::MAX, 0), |(n, a, b), id| (n + 1, a.min(id), b.max(id)));
        let numbered = ids.clone().zip(0u32..).filter(|(id, _)| *id != NONE);
        if count == 0 || to - from < count * 8 + 4096 {
            let mut rows = vec![NO_ROW; if count == 0 { 0 } else { (to - from + 1) as usize }];
            for (id, row) in numbered {
                let slot = &mut rows[(id - from) as usize];
                if *slot == NO_ROW {
                    *slot = row;
                }
            }
            Self::Table { from, rows }
        } else {
            let mut map = HashMap::with_capacity(count as usize);
            for (id, row) in numbered {
                map.entry(id).or_insert(row);
            }
            Self::Map(map)
        }
    }

    #[inline]
    fn get(&self, id: u64) -> u32 {
        match self {
            Self::Table { from, rows } => {
                id.checked_sub(*from).and_then(|i| rows.get(usize::try_from(i).ok()?)).copied().unwrap_or(NO_ROW)
            }
            Self::Map(map) => map.get(&id).copied().unwrap_or(NO_ROW),
        }
    }
}

/// Links between rows.
#[derive(Debug)]
pub(crate) struct Links {
    /// For each row of `gpu`, its row in `calls`, or [`NO_ROW`].
    pub(crate) call: Vec<u32>,
    ops: Index,
}

impl Links {
    pub(crate) fn new(rows: &Rows) -> Self {
        let calls = Index::new(rows.calls.iter().map(|call| call.correlation));
        let call = rows.gpu.iter().map(|row| calls.get(row.correlation)).collect();
        Self { call, ops: Index::new(rows.ops.iter().map(|op| op.external)) }
    }

    /// The row of the op that `row` names as its cause. Files up to 2023 give kernels without one their own
    /// correlation as the external id: no link.
    pub(crate) fn op(&self, row: &GpuRow) -> Option<usize> {
        if row.external == row.correlation || row.external == 0 {
            return None;
        }
        self.op_by_id(row.external)
    }

    /// The row of the op with this external id.
    pub(crate) fn op_by_id(&self, external: u64) -> Option<usize> {
        Some(self.ops.get(external)).filter(|op| *op != NO_ROW).map(|op| op as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_near_and_far() {
        for ids in [vec![7, 9, NONE, 8, 9], vec![1, u64::MAX - 1, NONE, 5, 1]] {
            let index = Index::new(ids.iter().copied());
            assert_eq!(index.get(ids[0]), 0);
            assert_eq!(index.get(ids[1]), 1);
            assert_eq!(index.get(ids[3]), 3);
            assert_eq!(index.get(4), NO_ROW);
            assert_eq!(index.get(NONE), NO_ROW);
        }
        assert_eq!(Index::new(std::iter::empty()).get(0), NO_ROW);
    }
}
