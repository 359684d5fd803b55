// SPDX-License-Identifier: Apache-2.0
//! What to do about memory, by the pattern that was seen.

mod leak;

pub(crate) use leak::leak;

use crate::report::{Fragmentation, Gap, Leak, Oom, OtherProcess};
use gpuwhy_model::{Fix, units};

/// A twentieth of what is reserved is left over in any job.
const LEFT_OVER: u64 = 20;
/// What PyTorch takes from the driver at once for tensors of up to 10 MB.
const SEGMENT: u64 = 20 << 20;
/// A quarter of the device is much.
const MUCH: u64 = 4;

/// What is looked for in the source of a line, and all that is: who keeps these words of it keeps what it says. `autocast(`
/// may stand around the loop that the line is in.
pub const HINTS: [&str; 12] = [
    "retain_graph=True",
    "create_graph=True",
    "autocast(",
    "detach(",
    ".clone(",
    "loss",
    ".append(",
    ".extend(",
    "+=",
    "] =",
    "cudaMalloc",
    "malloc(",
];

fn fix(text: String, saves_bytes: u64) -> Fix {
    Fix { text, saves_ns: 0, saves_bytes }
}

/// Whether enough was reserved and free, and more than what is left over anywhere.
pub(crate) fn is_scattered(oom: &Oom) -> bool {
    let unused = oom.reserved.saturating_sub(oom.allocated);
    oom.asked > 0 && unused >= oom.asked && unused >= oom.reserved / LEFT_OVER
}

/// Whether one request is for more than all that was in use, or than the device has.
pub(crate) fn is_too_large(oom: &Oom) -> bool {
    oom.asked > oom.allocated || oom.device_total.is_some_and(|total| oom.asked >= total)
}

/// What other processes had, where that was much of the device, there was no room, and without them there would have been.
pub(crate) fn had_by_others(oom: &Oom) -> Option<u64> {
    would_do(oom, others(oom))
}

fn others(oom: &Oom) -> u64 {
    oom.others.iter().fold(0, |sum: u64, other| sum.saturating_add(other.bytes))
}

/// The same of what was in use and is nobody's: not that process's PyTorch's, and not other processes'.
pub(crate) fn had_outside(oom: &Oom) -> Option<u64> {
    would_do(oom, oom.device_used?.saturating_sub(oom.reserved).saturating_sub(others(oom)))
}

fn would_do(oom: &Oom, bytes: u64) -> Option<u64> {
    let total = oom.device_total?;
    // The last look may be a second old: the job may have taken more since.
    let used = oom.device_used?.max(oom.reserved.saturating_add(others(oom)));
    let free = total.saturating_sub(used);
    // With room left it was refused for another reason: a limit on what PyTorch may have.
    let is_short = free < oom.asked.max(SEGMENT);
    (is_short && bytes >= total / MUCH && oom.asked <= free.saturating_add(bytes)).then_some(bytes)
}

/// What to do when memory ran out.
pub(crate) fn oom(oom: &Oom, leaks: &[Leak]) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if had_by_others(oom).is_some() {
        fixes.extend(stop_others(&oom.others));
    } else if had_outside(oom).is_some() {
        fixes.push(fix("see hidden_memory: fewer processes of the job on this GPU, smaller workspaces".to_owned(), 0));
    } else if is_too_large(oom) {
        let line = oom.line.as_deref().unwrap_or("the request");
        let text =
            format!("{line}: check the shape of what it makes, or make it in parts (smaller batch, shorter sequence)");
        return vec![fix(text, oom.asked)];
    }
    let of_it = leaks.iter().filter(|leak| leak.pid == oom.pid && leak.device == oom.device);
    for leak in of_it {
        let line = leak.line.as_deref().unwrap_or("a line without a name");
        fixes.push(fix(format!("stop the leak at {line} (see memory_leak)"), leak.grown_bytes));
    }
    let unused = oom.reserved.saturating_sub(oom.allocated);
    if is_scattered(oom) {
        let text =
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: enough memory was reserved, but not in one piece";
        fixes.push(fix(text.to_owned(), unused));
    }
    if let Some(most) = oom.live.first().filter(|most| fixes.is_empty() && most.bytes > oom.allocated / 4) {
        let line = most.line.as_deref().unwrap_or("code without a Python line");
        fixes.push(fix(
            format!("most is held by {line}: a smaller batch, gradient checkpointing or lower precision there"),
            0,
        ));
    }
    if fixes.is_empty() {
        fixes.push(fix("use a smaller batch, gradient checkpointing or lower precision".to_owned(), 0));
    }
    fixes
}

/// What to do about memory that PyTorch has and cannot use.
pub(crate) fn fragmentation(one: &Fragmentation) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if one.retaken_bytes > 0
        && let Some(by) = one.returned_by.first()
    {
        let line = by.line.as_deref().unwrap_or("the code that does");
        let text =
            format!("do not call torch.cuda.empty_cache() at {line} in every step: what it gives back is taken again");
        fixes.push(Fix { text, saves_ns: one.churn_ns, saves_bytes: 0 });
    }
    let unused = one.peak_reserved.saturating_sub(one.allocated_then);
    let text =
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that segments can grow instead of being left over";
    fixes.push(fix(text.to_owned(), unused));
    fixes.push(fix("pad batches to few sizes: every new size takes segments that others do not fit in".to_owned(), 0));
    fixes
}

/// What to do about a driver that takes ever longer.
pub(crate) fn latency(one: &Fragmentation) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let worst = one.driver_by.iter().max_by_key(|by| by.late_ns).and_then(|by| by.line.as_deref());
    let is_past = |line: &&str| one.past_allocator.iter().any(|holder| holder.line.as_deref() == Some(line));
    if let Some(by) = worst.filter(is_past) {
        fixes.push(Fix {
            text: format!("allocate once, before the loop, instead of at {by}"),
            saves_ns: one.late_ns,
            saves_bytes: 0,
        });
    }
    let text =
        "let PyTorch's allocator keep what it has (no empty_cache(), few sizes): it then need not ask the driver";
    fixes.push(Fix { text: text.to_owned(), saves_ns: if fixes.is_empty() { one.late_ns } else { 0 }, saves_bytes: 0 });
    fixes
}

fn stop_others(others: &[OtherProcess]) -> impl Iterator<Item = Fix> {
    others.iter().filter(|other| other.bytes > 0).take(3).map(|other| {
        let name = if other.name.is_empty() { "another process" } else { &other.name };
        fix(format!("stop {name} (pid {}), or give it another GPU", other.pid), other.bytes)
    })
}

/// What to do about memory that nobody sees.
pub(crate) fn hidden(gap: &Gap) -> Vec<Fix> {
    let mut fixes = Vec::new();
    fixes.extend(stop_others(&gap.others));
    fixes.push(fix(
        "every process has a CUDA context of its own: fewer processes on a GPU; CUDA_MODULE_LOADING=LAZY loads fewer kernels"
            .to_owned(),
        0,
    ));
    fixes.push(fix(
        "libraries: CUBLAS_WORKSPACE_CONFIG=:4096:2 and NCCL_BUFFSIZE bound what cuBLAS and NCCL take beside PyTorch"
            .to_owned(),
        0,
    ));
    fixes
}

/// What to do about main memory that ran out.
pub(crate) fn killed() -> Vec<Fix> {
    let text = "use less main memory (fewer data workers, smaller prefetch queues and caches), or raise the limit of the job's \
                cgroup or container";
    vec![fix(text.to_owned(), 0)]
}

/// What to do before memory runs out.
pub(crate) fn risk(total: u64) -> Vec<Fix> {
    let text = format!(
        "leave room below {}: a slightly smaller batch, or expandable_segments:True against peaks of reservation",
        units::bytes(total)
    );
    vec![fix(text, 0)]
}
