// SPDX-License-Identifier: Apache-2.0
//! Findings from measured memory: what is wrong and what to do. A healthy snapshot has none.

use super::growth::Growth;
use crate::snapshot::allocator::Played;
use crate::snapshot::report::{Category, Device, Oom, Pinned, Row};
use crate::snapshot::rows::{grow, total};
use gpuwhy_model::units;
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause, Severity};

const GB: u64 = 1_000_000_000;
/// Stuck memory is a finding from this share of reserved memory and this size. Freed activations always leave some
/// between two steps (13 to 15 % in ordinary training).
const STUCK_PERCENT: u64 = 20;
const STUCK_AT_LEAST: u64 = 100_000_000;
/// Headroom below these is critical, or low.
const HEADROOM_CRITICAL: u64 = GB;
const HEADROOM_LOW: u64 = 2 * GB;
/// The cache thrashes when it is emptied and refilled at least this often; once or twice, between phases, is normal.
const FLUSHES_AT_LEAST: u64 = 3;
const TAKEN_AGAIN_AT_LEAST: u64 = 20;
/// Lines named in one finding.
const MAX_LINES: usize = 3;

pub(super) struct Measured<'a> {
    pub(super) device: &'a Device,
    pub(super) played: &'a Played,
    /// Every segment with stuck memory, most stuck first.
    pub(super) pinned: &'a [Pinned],
    pub(super) ooms: &'a [Oom],
    pub(super) growth: &'a [Growth],
}

pub(super) fn find(measured: &Measured<'_>) -> Vec<Finding> {
    let found =
        [out_of_memory(measured), fragmentation(measured), growth(measured), headroom(measured), thrash(measured)];
    found.into_iter().flatten().collect()
}

fn cuda(device: &Device) -> String {
    format!("cuda:{}", device.index)
}

/// The subject of a link: the function, because the line is shown beside it.
fn who(row: &Row) -> String {
    row.function.clone().filter(|_| row.file.is_some()).unwrap_or_else(|| place(row))
}

/// A row's line, else its op, else its category.
fn place(row: &Row) -> String {
    row.short_line().or_else(|| row.op.clone()).unwrap_or_else(|| row.category.label().to_owned())
}

fn link(who: &str, what: String, row: Option<&Row>, state: String) -> Link {
    let line = row.and_then(Row::short_line);
    Link { layer: "memory".into(), who: who.to_owned(), what, line, state, ..Link::default() }
}

fn fix(text: impl Into<String>, saves_bytes: u64) -> Fix {
    Fix { text: text.into(), saves_ns: 0, saves_bytes }
}

fn expandable(saves_bytes: u64) -> Fix {
    fix("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", saves_bytes)
}

/// The base of every finding here: measured, and without a cost in time.
fn measured_finding() -> Finding {
    let confidence_reason = "measured: the snapshot lists every block".into();
    Finding { confidence_reason, ..Finding::new("", Severity::Info, String::new()) }
}

fn out_of_memory(measured: &Measured<'_>) -> Option<Finding> {
    // If any of them ended the job, it was the last.
    let oom = measured.ooms.last()?;
    let device = cuda(measured.device);
    let asked = units::bytes(oom.asked_bytes);
    let free = oom.stuck_bytes.saturating_add(oom.releasable_bytes);
    let mut chain = vec![
        link(
            &device,
            format!("was asked for {asked}"),
            Some(&oom.by),
            format!("{} free on the device", units::bytes(oom.device_free_bytes)),
        ),
        link(
            &device,
            format!("held {} in live blocks", units::bytes(oom.allocated_bytes)),
            None,
            format!("{} reserved, {} stuck", units::bytes(oom.reserved_bytes), units::bytes(oom.stuck_bytes)),
        ),
    ];
    if let Some(holder) = &oom.largest_holder {
        let what = format!("holds {} in {} blocks", units::bytes(holder.bytes), units::count(holder.count));
        chain.push(link(&who(holder), what, Some(holder), holder.category.label().to_owned()));
    }
    let (root_cause, fixes) = oom_cause(measured, oom, free);
    let times = if measured.played.oom_count > 1 {
        format!(", {} times", units::count(measured.played.oom_count))
    } else {
        String::new()
    };
    Some(Finding {
        kind: "out_of_memory".into(),
        severity: Severity::Critical,
        title: format!(
            "Out of memory on {device}{times}: the largest free piece was {}",
            units::bytes(oom.largest_fit_bytes)
        ),
        lost_bytes: oom.asked_bytes,
        chain,
        root_cause,
        effect: vec![format!(
            "{} were free inside PyTorch's segments, the largest piece {}",
            units::bytes(free),
            units::bytes(oom.largest_fit_bytes)
        )],
        fixes,
        ..measured_finding()
    })
}

fn oom_cause(measured: &Measured<'_>, oom: &Oom, free: u64) -> (RootCause, Vec<Fix>) {
    let holder = oom.largest_holder.as_ref();
    let grows = measured.growth.first();
    let mut fixes = Vec::new();
    if let Some(grown) = grows {
        fixes.push(fix(format!("free what {} keeps", place(&grown.row)), grown.row.bytes));
    } else if let Some(holder) = holder {
        fixes.push(fix(advice(holder), holder.bytes));
    }
    let fragmented = free >= oom.asked_bytes && !measured.device.expandable_segments;
    let (kind, detail, line) = if let Some(grown) = grows {
        let row = &grown.row;
        let detail = format!("{} keeps what it allocates: {} so far", place(row), units::bytes(row.bytes));
        ("memory_growth", detail, row.short_line())
    } else if fragmented {
        let detail = format!("{} were free, but every piece was too small", units::bytes(free));
        ("fragmentation", detail, None)
    } else if let Some(holder) = holder {
        let detail = format!("{} holds the most: {}", place(holder), units::bytes(holder.bytes));
        ("memory_full", detail, holder.short_line())
    } else {
        ("memory_full", "the device is full".to_owned(), None)
    };
    if fragmented {
        fixes.push(expandable(free));
    }
    let mut detail = detail;
    if oom.device_free_bytes >= oom.asked_bytes {
        detail.push_str("; the device had room, so a limit is set (set_per_process_memory_fraction)");
        fixes.push(fix("raise or remove torch.cuda.set_per_process_memory_fraction", 0));
    }
    (RootCause { kind: kind.into(), detail, line, ..RootCause::default() }, fixes)
}

/// The fix for this category of memory.
fn advice(row: &Row) -> String {
    match row.category {
        Category::Activations | Category::Recomputed => {
            "use activation checkpointing, or a smaller batch or sequence".into()
        }
        Category::OptimizerState | Category::OptimizerTemporary => {
            "use an 8-bit or sharded optimizer, or one with less state".into()
        }
        Category::Parameters => "load the parameters in a smaller dtype, or shard them".into(),
        Category::Gradients | Category::Backward => "use a smaller batch with gradient accumulation".into(),
        _ => format!("free what {} keeps, or make it smaller", place(row)),
    }
}

fn fragmentation(measured: &Measured<'_>) -> Option<Finding> {
    let device = measured.device;
    let stuck = device.stuck_bytes;
    let enough =
        stuck >= STUCK_AT_LEAST && stuck.saturating_mul(100) >= device.reserved_bytes.saturating_mul(STUCK_PERCENT);
    if !enough || device.expandable_segments {
        return None;
    }
    // The line with the largest block of a segment gets the blame: that block keeps the segment reserved.
    let mut lines: Vec<(String, u64, &Row)> = Vec::new();
    for pin in measured.pinned.iter().filter(|p| p.by.device == device.index) {
        let name = place(&pin.by);
        match lines.iter_mut().find(|(known, ..)| *known == name) {
            Some(line) => grow(&mut line.1, pin.stuck_bytes),
            None => lines.push((name, pin.stuck_bytes, &pin.by)),
        }
    }
    lines.sort_by_key(|line| std::cmp::Reverse(line.1));
    let share = units::percent(stuck as f64, device.reserved_bytes as f64);
    let mut chain = vec![link(
        &cuda(device),
        format!("has {} free that larger allocations cannot use", units::bytes(stuck)),
        None,
        format!("{share} of {} reserved", units::bytes(device.reserved_bytes)),
    )];
    chain.extend(lines.iter().take(MAX_LINES).map(|(_, bytes, row)| {
        let what = format!("keeps {} of segments from being reused", units::bytes(*bytes));
        link(&who(row), what, Some(row), row.category.label().to_owned())
    }));
    let top = lines.first();
    let detail = match top {
        Some((name, bytes, _)) => {
            format!("live blocks from {name} sit between free ones and keep {} stuck", units::bytes(*bytes))
        }
        None => "long-lived blocks sit between free ones".to_owned(),
    };
    Some(Finding {
        kind: "fragmentation".into(),
        severity: if stuck / STUCK_PERCENT / 2 >= device.reserved_bytes / 100 {
            Severity::High
        } else {
            Severity::Medium
        },
        title: format!("Fragmentation: {share} of the memory reserved on {} is free but unusable", cuda(device)),
        lost_bytes: stuck,
        chain,
        root_cause: RootCause {
            kind: "long_lived_blocks".into(),
            detail,
            line: top.and_then(|(.., row)| row.short_line()),
            ..RootCause::default()
        },
        effect: vec![format!("the largest allocation that still fits is {}", units::bytes(device.largest_fit_bytes))],
        fixes: vec![
            expandable(stuck),
            fix("allocate long-lived tensors before the first step, or copy them to the CPU", 0),
        ],
        ..measured_finding()
    })
}

fn growth(measured: &Measured<'_>) -> Option<Finding> {
    let first = measured.growth.first()?;
    let device = cuda(measured.device);
    let bytes = total(measured.growth.iter().map(|g| g.row.bytes));
    let each = total(measured.growth.iter().map(|g| g.each));
    let (unit, units_name) = match (first.annotated, first.stride) {
        (false, _) => ("tenth of the recording".to_owned(), "tenths of the recording".to_owned()),
        (true, 1) => ("step".to_owned(), "steps".to_owned()),
        (true, stride) => (format!("{stride} steps"), format!("groups of {stride} steps")),
    };
    let chain = measured.growth.iter().take(MAX_LINES).map(|g| {
        let what = format!("kept {} in {} blocks", units::bytes(g.row.bytes), units::count(g.row.count));
        let state = format!("in {} of {} {units_name}, {} each", g.in_steps, g.steps, units::bytes(g.each));
        link(&who(&g.row), what, Some(&g.row), state)
    });
    let share = bytes.saturating_mul(100) >= measured.device.requested_bytes.saturating_mul(10);
    let (confidence, reason) = if first.annotated {
        (Confidence::High, "measured: the blocks each step left behind")
    } else {
        (
            Confidence::Medium,
            "the blocks are measured, but the recording has no step marks: its tenths are used as steps",
        )
    };
    Some(Finding {
        kind: "memory_growth".into(),
        severity: if share { Severity::High } else { Severity::Medium },
        title: format!("Live memory on {device} grows by {} every {unit}", units::bytes(each)),
        lost_bytes: bytes,
        chain: chain.collect(),
        root_cause: RootCause {
            kind: "retained_tensors".into(),
            detail: format!("{} never frees what it allocates", place(&first.row)),
            line: first.row.short_line(),
            ..RootCause::default()
        },
        effect: vec![format!(
            "{} of the {} live now",
            units::bytes(bytes),
            units::bytes(measured.device.requested_bytes)
        )],
        fixes: vec![fix(
            "do not keep GPU tensors in lists or attributes across steps; keep .item() or .cpu() copies",
            bytes,
        )],
        confidence,
        confidence_reason: reason.into(),
        ..measured_finding()
    })
}

fn headroom(measured: &Measured<'_>) -> Option<Finding> {
    let device = measured.device;
    let (headroom, capacity) = (device.headroom_bytes?, device.capacity_bytes?);
    let severity = match headroom {
        0..HEADROOM_CRITICAL => Severity::Critical,
        HEADROOM_CRITICAL..HEADROOM_LOW => Severity::Medium,
        _ => return None,
    };
    let mut fixes = vec![fix("use a smaller batch or activation checkpointing", 0)];
    if device.releasable_bytes > 0 {
        fixes.insert(0, fix("call torch.cuda.empty_cache() after the peak", device.releasable_bytes));
    }
    Some(Finding {
        kind: "low_headroom".into(),
        severity,
        title: format!(
            "Only {} of {} left on {} at the peak",
            units::bytes(headroom),
            units::bytes(capacity),
            cuda(device)
        ),
        chain: vec![link(
            &cuda(device),
            format!("reserved up to {}", units::bytes(device.peak_reserved_bytes)),
            None,
            format!("{} allocated at the peak", units::bytes(device.peak_allocated_bytes)),
        )],
        root_cause: RootCause {
            kind: "near_capacity".into(),
            detail: "a slightly larger batch, or another process on the GPU, would run out of memory".into(),
            ..RootCause::default()
        },
        fixes,
        ..measured_finding()
    })
}

fn thrash(measured: &Measured<'_>) -> Option<Finding> {
    let Played { taken, given_back: returned, flushes, taken_again: again, .. } = *measured.played;
    if flushes < FLUSHES_AT_LEAST || again.0 < TAKEN_AGAIN_AT_LEAST {
        return None;
    }
    Some(Finding {
        kind: "allocator_thrash".into(),
        severity: Severity::Medium,
        title: format!(
            "PyTorch's cache on {} was emptied {} times and {} reserved again",
            cuda(measured.device),
            units::count(flushes),
            units::bytes(again.1)
        ),
        chain: vec![link(
            &cuda(measured.device),
            format!("reserved {} in {} calls", units::bytes(taken.1), units::count(taken.0)),
            None,
            format!("returned {} in {} calls", units::bytes(returned.1), units::count(returned.0)),
        )],
        root_cause: RootCause {
            kind: "cache_flushed".into(),
            detail:
                "the allocator's cache is emptied while the job still needs it (empty_cache, or retries near the limit)"
                    .into(),
            ..RootCause::default()
        },
        effect: vec![format!(
            "{} calls to the driver that the cache would have saved; each waits for the GPU",
            units::count(again.0)
        )],
        fixes: vec![fix("remove torch.cuda.empty_cache() from the loop; near the limit, use a smaller batch", 0)],
        ..measured_finding()
    })
}
