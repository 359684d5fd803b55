// SPDX-License-Identifier: Apache-2.0
//! Fixes for memory problems, by the pattern that was seen.

mod leak;

pub(crate) use leak::leak;

use crate::report::{Fragmentation, Gap, Leak, Oom, OtherProcess};
use gpuwhy_model::{Fix, units};

/// Any job leaves a twentieth of its reserved memory unused.
const LEFT_OVER: u64 = 20;
/// PyTorch takes this much from the driver at once for tensors of up to 10 MB.
const SEGMENT: u64 = 20 << 20;
/// Memory outside the process matters from a quarter of the device on.
const MUCH: u64 = 4;

/// The words the analysis searches for in the source of a line. Nothing else in the source matters, so a file that stores
/// only these gives the same fixes. `autocast(` may be around the loop that contains the line.
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

/// Whether enough was reserved and free, and more than any job leaves unused.
pub(crate) fn is_scattered(oom: &Oom) -> bool {
    let unused = oom.reserved.saturating_sub(oom.allocated);
    oom.asked > 0 && unused >= oom.asked && unused >= oom.reserved / LEFT_OVER
}

/// Whether one request exceeds everything in use, or the whole device.
pub(crate) fn is_too_large(oom: &Oom) -> bool {
    oom.asked > oom.allocated || oom.device_total.is_some_and(|total| oom.asked >= total)
}

/// Memory of other processes, if the device was full, they held a large share of it, and the request would have fitted
/// without them.
pub(crate) fn had_by_others(oom: &Oom) -> Option<u64> {
    would_do(oom, others(oom))
}

fn others(oom: &Oom) -> u64 {
    oom.others.iter().fold(0, |sum: u64, other| sum.saturating_add(other.bytes))
}

/// The same for memory in use that belongs neither to the process's PyTorch nor to other processes.
pub(crate) fn had_outside(oom: &Oom) -> Option<u64> {
    would_do(oom, oom.device_used?.saturating_sub(oom.reserved).saturating_sub(others(oom)))
}

fn would_do(oom: &Oom, bytes: u64) -> Option<u64> {
    let total = oom.device_total?;
    // The last NVML sample may be a second old; the job may have taken more since then.
    let used = oom.device_used?.max(oom.reserved.saturating_add(others(oom)));
    let free = total.saturating_sub(used);
    // With room left, it was refused for another reason: a limit set on PyTorch.
    let is_short = free < oom.asked.max(SEGMENT);
    (is_short && bytes >= total / MUCH && oom.asked <= free.saturating_add(bytes)).then_some(bytes)
}

/// Fixes for running out of memory.
pub(crate) fn oom(oom: &Oom, leaks: &[Leak]) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if had_by_others(oom).is_some() {
        fixes.extend(stop_others(&oom.others));
    } else if had_outside(oom).is_some() {
        let text =
            "run fewer of the job's processes on this GPU, or use smaller library workspaces (gpuwhy memory --gap)";
        fixes.push(fix(text.to_owned(), 0));
    } else if is_too_large(oom) {
        let line = oom.line.as_deref().unwrap_or("the request");
        let text =
            format!("{line}: check the shape of the tensor, or make it in parts (smaller batch, shorter sequence)");
        return vec![fix(text, oom.asked)];
    }
    let of_it = leaks.iter().filter(|leak| leak.pid == oom.pid && leak.device == oom.device);
    for leak in of_it {
        let line = leak.line.as_deref().unwrap_or("an unknown line");
        fixes.push(fix(format!("stop the leak at {line}"), leak.grown_bytes));
    }
    let unused = oom.reserved.saturating_sub(oom.allocated);
    if is_scattered(oom) {
        let text = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: enough memory was free, but not in one piece";
        fixes.push(fix(text.to_owned(), unused));
    }
    if let Some(most) = oom.live.first().filter(|most| fixes.is_empty() && most.bytes > oom.allocated / 4) {
        let line = most.line.as_deref().unwrap_or("code without a Python line");
        fixes.push(fix(
            format!("{line} holds the most: use a smaller batch, gradient checkpointing or lower precision there"),
            0,
        ));
    }
    if fixes.is_empty() {
        fixes.push(fix("use a smaller batch, gradient checkpointing or lower precision".to_owned(), 0));
    }
    fixes
}

/// Fixes for memory that PyTorch has reserved and cannot use.
pub(crate) fn fragmentation(one: &Fragmentation) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if one.retaken_bytes > 0
        && let Some(by) = one.returned_by.first()
    {
        let line = by.line.as_deref().unwrap_or("an unknown line");
        let text = format!(
            "do not call torch.cuda.empty_cache() in every step ({line}): PyTorch takes the memory again right after"
        );
        fixes.push(Fix { text, saves_ns: one.churn_ns, saves_bytes: 0 });
    }
    let unused = one.peak_reserved.saturating_sub(one.allocated_then);
    let text =
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that segments grow instead of staying half empty";
    fixes.push(fix(text.to_owned(), unused));
    let text = "pad batches to a few sizes: every new size reserves segments that other sizes do not fit into";
    fixes.push(fix(text.to_owned(), 0));
    fixes
}

/// Fixes for time spent in driver calls.
pub(crate) fn latency(one: &Fragmentation) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let worst = one.driver_by.iter().max_by_key(|by| by.late_ns).and_then(|by| by.line.as_deref());
    let is_past = |line: &&str| one.past_allocator.iter().any(|holder| holder.line.as_deref() == Some(line));
    if let Some(by) = worst.filter(is_past) {
        fixes.push(Fix {
            text: format!("allocate once, before the loop, instead of in {by}"),
            saves_ns: one.late_ns,
            saves_bytes: 0,
        });
    }
    let text =
        "let PyTorch's allocator reuse its memory instead of asking the driver: no empty_cache(), few tensor sizes";
    fixes.push(Fix { text: text.to_owned(), saves_ns: if fixes.is_empty() { one.late_ns } else { 0 }, saves_bytes: 0 });
    fixes
}

fn stop_others(others: &[OtherProcess]) -> impl Iterator<Item = Fix> {
    others.iter().filter(|other| other.bytes > 0).take(3).map(|other| {
        let name = if other.name.is_empty() { "another process" } else { &other.name };
        fix(format!("stop {name} (pid {}), or give it another GPU", other.pid), other.bytes)
    })
}

/// Fixes for hidden memory.
pub(crate) fn hidden(gap: &Gap) -> Vec<Fix> {
    let mut fixes = Vec::new();
    fixes.extend(stop_others(&gap.others));
    fixes.push(fix(
        "run fewer processes on the GPU, since each has its own CUDA context; CUDA_MODULE_LOADING=LAZY loads fewer kernels"
            .to_owned(),
        0,
    ));
    fixes.push(fix(
        "limit library buffers: CUBLAS_WORKSPACE_CONFIG=:4096:2 for cuBLAS, NCCL_BUFFSIZE for NCCL".to_owned(),
        0,
    ));
    fixes
}

/// Fixes for running out of main memory.
pub(crate) fn killed() -> Vec<Fix> {
    let text = "use less main memory (fewer data workers, smaller prefetch queues and caches), or raise the memory limit of \
                the job's cgroup or container";
    vec![fix(text.to_owned(), 0)]
}

/// Fixes before memory runs out.
pub(crate) fn risk(total: u64) -> Vec<Fix> {
    let text = format!(
        "leave room below {}: use a slightly smaller batch, or expandable_segments:True to lower peak reserved memory",
        units::bytes(total)
    );
    vec![fix(text, 0)]
}
