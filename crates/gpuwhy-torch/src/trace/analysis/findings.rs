// SPDX-License-Identifier: Apache-2.0
//! Findings from the figures: only what was measured, each with its cost. A GPU that was busy throughout gets one
//! finding, which says that.

use super::account::Account;
use super::idle::Gap;
use super::rules::CONVERSION;
use crate::trace::report::{CopyTotal, IdleCause, Total, TraceReport};
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause, Severity, units};
use std::collections::BTreeMap;

/// A group of idle causes becomes a finding from this share of the span.
const IDLE_SHARE: f64 = 0.05;
/// The GPU is the bottleneck when it is busy this share of the span.
const BOUND_SHARE: f64 = 0.9;
/// Below this average length, gaps mean that single launches come too late, not that the CPU did something else.
const SHORT_GAP_NS: u64 = 100_000;

/// All findings, worst first. Warm-up, which ends at `steady_from`, counts only with `include_warmup`.
pub(crate) fn findings(
    report: &TraceReport,
    gaps: &[Gap],
    steady_from: Option<i64>,
    include_warmup: bool,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let from = steady_from.filter(|_| !include_warmup);
    let mut all =
        Scope { report, device: None, account: Account::default(), steady: from.is_some(), short_gaps: false };
    for device in &report.devices {
        let account = if include_warmup { device.account } else { device.steady.unwrap_or(device.account) };
        let counts = |gap: &&Gap| gap.device == device.index && from.is_none_or(|from| gap.to > from);
        let gaps = gaps.iter().filter(counts).count() as u64;
        let scope = Scope {
            device: Some(device.index),
            account,
            steady: !include_warmup && device.steady.is_some(),
            short_gaps: account.idle_ns / gaps.max(1) < SHORT_GAP_NS,
            ..all
        };
        all.account.span_ns = all.account.span_ns.saturating_add(account.span_ns);
        let before = found.len();
        found.extend(scope.idle());
        found.extend(scope.sync_heavy());
        found.extend(scope.exposed_communication());
        found.extend(scope.exposed_copies());
        if found.len() == before {
            found.extend(scope.gpu_bound());
        }
    }
    // Copies and categories are sums over all devices.
    if let [only] = report.devices.as_slice() {
        all.device = Some(only.index);
    }
    found.extend(all.pageable_copies());
    found.extend(all.conversions());
    found.extend(all.recompute());
    Finding::sort(&mut found);
    found
}

/// Causes with the same fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Cpu,
    Input,
    Sync,
    Allocator,
    Loading,
    Queued,
    Profiler,
    Unknown,
}

impl Group {
    const ALL: [Self; 8] = [
        Self::Cpu,
        Self::Input,
        Self::Sync,
        Self::Allocator,
        Self::Loading,
        Self::Queued,
        Self::Profiler,
        Self::Unknown,
    ];

    fn of(cause: &str) -> Self {
        match cause {
            "cpu_op" | "python" | "launch_latency" | "cuda_call" => Self::Cpu,
            "dataloader" => Self::Input,
            "sync" => Self::Sync,
            "allocator" => Self::Allocator,
            "loading" => Self::Loading,
            "queued" => Self::Queued,
            "profiler" => Self::Profiler,
            _ => Self::Unknown,
        }
    }

    fn kind(self, short_gaps: bool) -> &'static str {
        match self {
            Self::Cpu if short_gaps => "launch_bound",
            Self::Cpu => "cpu_bound",
            Self::Input => "input_bound",
            Self::Sync => "sync_stall",
            Self::Allocator => "allocator_stall",
            Self::Loading => "code_loading",
            Self::Queued => "queue_stall",
            Self::Profiler => "profiler_overhead",
            Self::Unknown => "gpu_idle",
        }
    }

    fn words(self, short_gaps: bool) -> &'static str {
        match self {
            Self::Cpu if short_gaps => "the CPU launches too slowly",
            Self::Cpu => "the CPU does other work between launches",
            Self::Input => "it waits for the data loader",
            Self::Sync => "it waits for synchronisation calls to return",
            Self::Allocator => "the allocator asks the driver for memory",
            Self::Loading => "GPU code is being loaded or compiled",
            Self::Queued => "launched work waits for another stream or event",
            Self::Profiler => "the profiler does its own work",
            Self::Unknown => "the trace does not show why",
        }
    }

    fn fixes(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[
                "launch the same work with fewer calls: torch.compile(mode=\"reduce-overhead\"), CUDA graphs, fused optimizer",
                "give the GPU more work per launch: a larger batch or longer sequences",
            ],
            Self::Input => {
                &["use more data loader workers, prefetch_factor and persistent_workers, or cheaper transforms"]
            }
            Self::Sync => &["read values from the GPU (.item(), .cpu(), print) less often"],
            Self::Allocator => &[
                "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and remove torch.cuda.empty_cache() from the loop",
            ],
            Self::Loading => &["profile after warm-up, or load code early with CUDA_MODULE_LOADING=EAGER"],
            Self::Queued => {
                &["check what the work waits for: cudaStreamWaitEvent between streams, and the order of collectives"]
            }
            Self::Profiler => {
                &["none needed: it goes away without the profiler; record longer to make its share smaller"]
            }
            Self::Unknown => &["record with with_stack=True and record_shapes=True to see what the CPU did"],
        }
    }

    /// Whether the fix saves the time. Not for one-time costs, or where the cause is not known.
    fn saves(self) -> bool {
        !matches!(self, Self::Loading | Self::Profiler | Self::Unknown)
    }
}

/// The figures of one device, or of all, over the time that counts.
#[derive(Clone, Copy)]
struct Scope<'a> {
    report: &'a TraceReport,
    /// `None` for several together.
    device: Option<i32>,
    account: Account,
    steady: bool,
    /// Whether idle intervals are short on average.
    short_gaps: bool,
}

impl Scope<'_> {
    fn who(&self) -> String {
        match self.device {
            Some(index) => format!("GPU {index}"),
            None => format!("{} GPUs", self.report.devices.len()),
        }
    }

    fn counts(&self, total_ns: u64, steady_ns: u64) -> u64 {
        if self.steady { steady_ns } else { total_ns }
    }

    fn cost(&self, cause: &IdleCause) -> u64 {
        self.counts(cause.total_ns, cause.steady_ns)
    }

    fn cost_of(&self, total: &Total) -> u64 {
        self.counts(total.total_ns, total.steady_ns)
    }

    /// Sum of the durations of all GPU events.
    fn event_ns(&self) -> u64 {
        sum(self.report.categories.iter().map(|category| self.cost_of(category)))
    }

    /// A count in words. Counts cover the whole recording, also where times leave out warm-up.
    fn number(&self, count: u64, what: &str) -> String {
        let whole = if self.steady { " in the whole recording" } else { "" };
        match (count, what) {
            (1, "times") => format!("once{whole}"),
            _ => format!("{} {what}{whole}", units::count(count)),
        }
    }

    fn share(&self, ns: u64) -> f64 {
        if self.account.span_ns == 0 { 0.0 } else { ns as f64 / self.account.span_ns as f64 }
    }

    fn of_span(&self, ns: u64) -> String {
        let (span, after) = (self.account.span_ns, if self.steady { " after warm-up" } else { "" });
        let all = if self.device.is_none() { format!(" on {}", self.who()) } else { String::new() };
        format!("{} of {}{all}{after} ({})", units::time(ns), units::time(span), units::percent(ns as f64, span as f64))
    }

    fn severity(&self, ns: u64) -> Severity {
        match self.share(ns) {
            share if share >= 0.5 => Severity::High,
            share if share >= 0.2 => Severity::Medium,
            _ => Severity::Low,
        }
    }

    fn finding(&self, kind: &str, ns: u64, title: String, chain: Vec<Link>, root_cause: RootCause) -> Finding {
        Finding {
            kind: kind.into(),
            severity: self.severity(ns),
            title,
            lost_ns: ns,
            is_upper_bound: false,
            lost_bytes: 0,
            share: self.share(ns),
            pid: None,
            tid: None,
            chain,
            root_cause,
            effect: Vec::new(),
            fixes: Vec::new(),
            confidence: Confidence::High,
            confidence_reason: "measured: the trace has the times of everything in the chain".into(),
        }
    }

    fn gpu(&self, what: String, ns: u64, state: String) -> Link {
        Link { layer: "gpu".into(), who: self.who(), what, ns, state, ..Link::default() }
    }

    /// One finding for each group of causes above the threshold.
    fn idle(&self) -> Vec<Finding> {
        Group::ALL.into_iter().filter_map(|group| self.idle_group(group)).collect()
    }

    fn idle_group(&self, group: Group) -> Option<Finding> {
        let causes = self.causes(group);
        let ns = sum(causes.iter().map(|cause| self.cost(cause)));
        let largest = causes.first().filter(|_| self.share(ns) >= IDLE_SHARE)?;
        let short = self.short_gaps;
        let title = format!("{} is idle: {}", self.who(), group.words(short));
        let nothing = self.gpu("has nothing to run".into(), self.account.idle_ns, "union over streams".into());
        let held_up = Link {
            layer: layer(largest).into(),
            who: doer(largest),
            what: deed(largest),
            line: largest.line.clone(),
            state: self.number(largest.count, "times"),
            ns: self.cost(largest),
            evidence: None,
        };
        let chain = vec![nothing, held_up];
        let root = RootCause {
            kind: largest.cause.clone(),
            detail: format!(
                "{}: the {} {}, {} ({})",
                if self.cost(largest) >= ns.div_ceil(2) { "main cause" } else { "largest cause" },
                doer(largest),
                deed(largest),
                units::time(self.cost(largest)),
                units::percent(self.cost(largest) as f64, ns as f64)
            ),
            line: largest.line.clone(),
            ..RootCause::default()
        };
        let mut finding = self.finding(group.kind(short), ns, title, chain, root);
        finding.effect = vec![format!("idle for this reason: {}", self.of_span(ns))];
        finding.effect.extend(self.effects(ns, group));
        finding.effect.extend(causes.iter().skip(1).take(2).map(|cause| self.also(cause)));
        finding.fixes = group
            .fixes()
            .iter()
            .zip([if group.saves() { ns } else { 0 }, 0])
            .map(|(text, saves)| fix(text, saves))
            .collect();
        if group == Group::Unknown {
            finding.confidence = Confidence::Medium;
            finding.confidence_reason =
                "idle time is measured; the trace does not show what the CPU did meanwhile".into();
        }
        Some(finding)
    }

    /// The group's causes, largest first; causes with the same text are merged.
    fn causes(&self, group: Group) -> Vec<IdleCause> {
        let mine = |c: &&IdleCause| Some(c.device) == self.device && Group::of(&c.cause) == group && self.cost(c) > 0;
        let mut causes: BTreeMap<(String, String, Option<&str>), IdleCause> = BTreeMap::new();
        for cause in self.report.idle_causes.iter().filter(mine) {
            causes
                .entry((doer(cause), deed(cause), cause.line.as_deref()))
                .and_modify(|same| {
                    same.total_ns = same.total_ns.saturating_add(cause.total_ns);
                    same.steady_ns = same.steady_ns.saturating_add(cause.steady_ns);
                    same.count += cause.count;
                })
                .or_insert_with(|| cause.clone());
        }
        let mut causes: Vec<IdleCause> = causes.into_values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(self.cost(cause)));
        causes
    }

    fn also(&self, cause: &IdleCause) -> String {
        let line = cause.line.as_deref().map(|line| format!(", {line}")).unwrap_or_default();
        format!("also: the {} {}{line}, {}", doer(cause), deed(cause), units::time(self.cost(cause)))
    }

    fn effects(&self, ns: u64, group: Group) -> Vec<String> {
        let mut effects = Vec::new();
        let steps = &self.report.steps;
        let counted = steps.items.iter().filter(|s| s.complete && (s.warmup.is_none() || !self.steady)).count() as u64;
        if counted > 1 {
            effects.push(format!("{} of GPU idle time in each of {counted} steps", units::time(ns / counted)));
        }
        let launches = &self.report.launches;
        if group == Group::Cpu && launches.count > 0 {
            effects.push(format!(
                "{} launches: the call takes {} (median); the kernel starts {} after it (median) when the GPU is idle",
                units::count(launches.count),
                units::time(launches.call_p50_ns),
                units::time(launches.latency_p50_ns)
            ));
        }
        effects
    }

    fn sync_heavy(&self) -> Option<Finding> {
        if self.report.devices.len() > 1 {
            return None; // `idle_after_ns` is a sum over devices
        }
        let ns = sum(self.report.syncs.iter().map(|sync| sync.idle_after_ns));
        let largest = self.report.syncs.iter().max_by_key(|sync| sync.idle_after_ns)?;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let count: u64 = self.report.syncs.iter().filter(|s| s.idle_after_ns > 0).map(|s| s.count).sum();
        let inside = if largest.op.is_empty() { String::new() } else { format!(" in {}", largest.op) };
        let title = format!("{} runs out of work at {} synchronisations", self.who(), units::count(count));
        let chain = vec![Link {
            layer: "cuda".into(),
            who: "CPU".into(),
            what: format!("waits in {}{inside}", largest.name),
            line: largest.line.clone(),
            state: format!("{} calls", units::count(largest.count)),
            ns: largest.total_ns,
            evidence: None,
        }];
        let root = RootCause {
            kind: "synchronisation".into(),
            detail: format!(
                "{}{inside} returns only when the GPU's queue is empty; the next work is launched after that",
                largest.name
            ),
            line: largest.line.clone(),
            ..RootCause::default()
        };
        let mut finding = self.finding("sync_heavy", ns, title, chain, root);
        // The same idle time also counts under its own cause: the cost of the synchronisation alone is not measured.
        finding.severity = finding.severity.min(Severity::Medium);
        finding.confidence = Confidence::Medium;
        finding.confidence_reason =
            "idle time is measured; how much of it the synchronisation alone costs is not".into();
        finding.effect = vec![format!("idle after synchronisations: {}", self.of_span(ns))];
        finding.fixes = vec![fix("read values from the GPU (.item(), .cpu(), print) less often, or one step later", 0)];
        Some(finding)
    }

    fn exposed_communication(&self) -> Option<Finding> {
        let ns = self.account.exposed_communication_ns;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let largest = self.report.collectives.iter().max_by_key(|c| c.total_ns)?;
        let title = format!("{} waits for communication that no compute hides", self.who());
        let chain = vec![self.gpu(
            format!("runs {}", largest.name),
            largest.total_ns,
            format!("{} kernels, including waits for other ranks", units::count(largest.count)),
        )];
        let detail = format!(
            "{} of {} of communication does not overlap compute",
            units::time(ns),
            units::time(self.account.communication_ns)
        );
        let root = root("communication", detail);
        let mut finding = self.finding("exposed_communication", ns, title, chain, root);
        finding.effect = vec![format!("only communication ran: {}", self.of_span(ns))];
        finding.fixes = vec![
            fix(
                "overlap it: smaller gradient buckets that start earlier, FSDP backward_prefetch, async all-gather",
                ns,
            ),
            fix("compare ranks: one slow rank makes all others wait inside their kernels", 0),
        ];
        Some(finding)
    }

    fn exposed_copies(&self) -> Option<Finding> {
        let ns = self.account.exposed_copy_ns;
        let largest = self.report.copies.iter().max_by_key(|copy| copy.total_ns)?;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let title = format!("{} waits for copies that no compute hides", self.who());
        let chain = vec![self.copy_link(largest)];
        let detail = format!("{} copies run while the GPU does nothing else", largest.direction);
        let root = root("copies", detail);
        let mut finding = self.finding("exposed_copies", ns, title, chain, root);
        finding.effect = vec![format!("only copies ran: {}", self.of_span(ns))];
        finding.fixes =
            vec![fix("copy ahead of use, from pinned memory, on a separate stream (non_blocking=True)", ns)];
        Some(finding)
    }

    /// Copies of pageable memory go through a staging buffer and block the CPU.
    fn pageable_copies(&self) -> Option<Finding> {
        let cost = |copy: &CopyTotal| self.counts(copy.pageable_ns, copy.pageable_steady_ns);
        let ns = sum(self.report.copies.iter().map(cost));
        let largest = self.report.copies.iter().max_by_key(|copy| cost(copy))?;
        if self.share(ns) < 0.01 {
            return None;
        }
        let bytes = largest.pageable_bytes;
        let rate = super::transfers::rate(bytes, largest.pageable_ns).unwrap_or(0);
        let title = "Copies use pageable host memory".to_owned();
        let chain = vec![self.copy_link(largest)];
        let detail = format!(
            "{} of {} copies run at {}/s because the memory is not pinned",
            units::bytes(bytes),
            largest.direction,
            units::bytes(rate)
        );
        let root = root("pageable_memory", detail);
        let mut finding = self.finding("pageable_copies", ns, title, chain, root);
        finding.effect = vec![format!("time in these copies: {}", self.of_span(ns))];
        finding.severity = finding.severity.min(Severity::Medium);
        finding.fixes = vec![fix(
            "use pin_memory=True in the DataLoader (or .pin_memory()) and .to(device, non_blocking=True)",
            ns,
        )];
        Some(finding)
    }

    fn copy_link(&self, copy: &CopyTotal) -> Link {
        self.gpu(
            format!("copies {} {}", units::bytes(copy.bytes), copy.direction),
            copy.total_ns,
            self.number(copy.count, "copies"),
        )
    }

    fn conversions(&self) -> Option<Finding> {
        let all = self.event_ns();
        let found = self.report.categories.iter().find(|c| c.name == CONVERSION)?;
        let ns = self.cost_of(found);
        if (ns as f64) < all as f64 * 0.1 || self.share(ns) < IDLE_SHARE {
            return None;
        }
        let title = "GPU time goes into dtype conversions".to_owned();
        let chain = vec![self.gpu("converts tensors".into(), ns, self.number(found.count, "kernels"))];
        let detail = "weights or activations are stored in another dtype than the compute uses".into();
        let root = root("dtype_conversion", detail);
        let mut finding = self.finding("dtype_conversions", ns, title, chain, root);
        finding.effect = vec![format!("{} of GPU time converts tensors", units::percent(ns as f64, all as f64))];
        finding.severity = Severity::Low;
        finding.fixes =
            vec![fix("keep weights in the compute dtype (bf16), or let torch.compile fuse the conversions", ns)];
        Some(finding)
    }

    fn recompute(&self) -> Option<Finding> {
        let again = self.report.recompute;
        let (ns, all) = (self.counts(again.total_ns, again.steady_ns), self.event_ns());
        if ns == 0 || ns.saturating_mul(20) < all {
            return None;
        }
        let title = "Activation checkpointing computes forward ops a second time".to_owned();
        let chain =
            vec![self.gpu("runs forward ops during the backward".into(), ns, self.number(again.count, "kernels"))];
        let detail = "checkpointing trades time for memory, as requested".into();
        let root = root("activation_checkpointing", detail);
        let mut finding = self.finding("recompute", ns, title, chain, root);
        finding.effect = vec![format!("{} of GPU work is repeated", units::percent(ns as f64, all as f64))];
        finding.severity = Severity::Info;
        finding.fixes = vec![fix("checkpoint fewer layers if memory allows", ns)];
        Some(finding)
    }

    fn gpu_bound(&self) -> Option<Finding> {
        let busy = self.account.busy_ns;
        if self.share(busy) < BOUND_SHARE {
            return None;
        }
        let largest = self.report.categories.first()?;
        let title = format!("{} is the bottleneck: busy {}", self.who(), self.of_span(busy));
        let chain = vec![self.gpu(
            format!("runs {}", largest.name),
            self.cost_of(largest),
            self.number(largest.count, "kernels"),
        )];
        let share = units::percent(self.cost_of(largest) as f64, self.event_ns() as f64);
        let detail = format!("the GPU is the bottleneck; {share} of its time goes to {}", largest.name);
        let root = root("gpu_bound", detail);
        let mut finding = self.finding("gpu_bound", 0, title, chain, root);
        finding.severity = Severity::Info;
        Some(finding)
    }
}

/// A sum that cannot overflow: a forged file can hold any figure.
fn sum(ns: impl Iterator<Item = u64>) -> u64 {
    ns.fold(0, u64::saturating_add)
}

fn fix(text: &str, saves_ns: u64) -> Fix {
    Fix { text: text.into(), saves_ns, saves_bytes: 0 }
}

fn root(kind: &str, detail: String) -> RootCause {
    RootCause { kind: kind.into(), detail, ..RootCause::default() }
}

/// The part of the job that kept the GPU idle.
fn doer(cause: &IdleCause) -> String {
    match cause.cause.as_str() {
        "dataloader" => "data loader",
        "allocator" => "allocator",
        "profiler" => "profiler",
        "queued" => "GPU",
        _ => "CPU",
    }
    .into()
}

fn layer(cause: &IdleCause) -> &'static str {
    match cause.cause.as_str() {
        "queued" => "gpu",
        "sync" | "launch_latency" | "allocator" | "loading" | "cuda_call" => "cuda",
        _ => "thread",
    }
}

fn deed(cause: &IdleCause) -> String {
    let name = &cause.name;
    match cause.cause.as_str() {
        "dataloader" => "fetches the next batch".into(),
        "launch_latency" => format!("launches ({name})"),
        "sync" => format!("returns from {name}"),
        "queued" => "holds work that is already launched".into(),
        "profiler" => format!("does its own work ({name})"),
        "unknown" => "does something the trace does not show".into(),
        "python" if name.is_empty() => "runs Python between ops".into(),
        "python" if cause.line.is_none() => format!("runs Python between ops in {name}"),
        _ => format!("runs {name}"),
    }
}
