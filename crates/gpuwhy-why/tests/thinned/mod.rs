// SPDX-License-Identifier: Apache-2.0
//! A job's events as a run file with little room has them.

use gpuwhy_model::replay::Event;
use gpuwhy_model::thin::{self, Thinning};
use gpuwhy_model::{Call, OffCpu};
use std::collections::HashSet;

/// Thins as the writer does, in batches of so many events.
pub(crate) fn thinned(events: &[Event], how: Thinning, batch: usize) -> Vec<Event> {
    let mut kept = Vec::new();
    let mut callers = HashSet::new();
    for batch in events.chunks(batch) {
        let (mut calls, mut offs): (Vec<Call>, Vec<OffCpu>) = (Vec::new(), Vec::new());
        for event in batch {
            match event {
                Event::Call(call) => calls.push(*call),
                Event::Off(off) => offs.push(*off),
                Event::Run(_) | Event::Moved(_) => kept.push(*event),
            }
        }
        callers.extend(calls.iter().filter(|call| call.op.is_cuda()).map(|call| call.tid));
        let (mut few_calls, mut few_offs) = (Vec::new(), Vec::new());
        thin::calls(&calls, how, &mut few_calls);
        thin::offs(&offs, how, |tid| callers.contains(&tid), &mut few_offs);
        kept.extend(few_calls.into_iter().map(Event::Call));
        kept.extend(few_offs.into_iter().map(Event::Off));
    }
    kept.sort_by_key(Event::start_ns);
    let weight = |events: &[Event]| events.iter().map(Event::weight).sum::<u64>();
    assert_eq!(weight(&kept), weight(events));
    kept
}
