// SPDX-License-Identifier: Apache-2.0
//! Conclusions from the figures: only what was measured, each with what it cost. A trace whose GPU worked all the
//! time is told so, and nothing else.

use super::account::Account;
use super::rules::CONVERSION;
use crate::trace::report::{DeviceReport, IdleCause, TraceReport};
use gpuwhy_model::{Confidence, Finding, Fix, Link, Lost, RootCause, Severity, units};

/// Idle time of one group of causes is worth a finding from this share of the span.
const IDLE_SHARE: f64 = 0.05;
/// The GPU is the bottleneck when it is busy this share of the span.
const BOUND_SHARE: f64 = 0.9;
/// Idle intervals shorter than this on average mean that single launches come too late, not that something else ran.
const SHORT_GAP_NS: u64 = 100_000;

/// All findings, worst first.
pub(crate) fn findings(report: &TraceReport, include_warmup: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for device in &report.devices {
        let scope = Scope {
            report,
            device,
            account: if include_warmup { device.account } else { device.steady.unwrap_or(device.account) },
            steady: !include_warmup && device.steady.is_some(),
        };
        let before = found.len();
        found.extend(scope.idle());
        found.extend(scope.sync_heavy());
        found.extend(scope.exposed_communication());
        found.extend(scope.exposed_copies());
        if found.len() == before {
            found.extend(scope.gpu_bound());
        }
    }
    // Copies and categories are summed over devices.
    if let Some(device) = report.devices.iter().max_by_key(|device| device.account.busy_ns) {
        let scope = Scope { report, device, account: device.account, steady: false };
        found.extend(scope.pageable_copies());
        found.extend(scope.conversions());
        found.extend(scope.recompute());
    }
    Finding::sort(&mut found);
    found
}

/// Causes that call for the same remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Cpu,
    Input,
    Sync,
    Allocator,
    Loading,
    Other,
}

impl Group {
    const ALL: [Self; 6] = [Self::Cpu, Self::Input, Self::Sync, Self::Allocator, Self::Loading, Self::Other];

    fn of(cause: &str) -> Self {
        match cause {
            "cpu_op" | "python" | "launch_latency" | "cuda_call" => Self::Cpu,
            "dataloader" => Self::Input,
            "sync" => Self::Sync,
            "allocator" => Self::Allocator,
            "loading" => Self::Loading,
            _ => Self::Other,
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
            Self::Other => "gpu_idle",
        }
    }

    fn words(self, short_gaps: bool) -> &'static str {
        match self {
            Self::Cpu if short_gaps => "the CPU launches too slowly",
            Self::Cpu => "the CPU does other work between launches",
            Self::Input => "waiting for the data loader",
            Self::Sync => "waiting for synchronisation to return",
            Self::Allocator => "the allocator asks the driver for memory",
            Self::Loading => "GPU code is loaded or compiled",
            Self::Other => "the trace does not show why",
        }
    }

    fn fixes(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[
                "launch the same work with fewer calls: torch.compile(mode=\"reduce-overhead\"), CUDA graphs, fused optimizer",
                "give the GPU more to do for each launch: a larger batch or longer sequences",
            ],
            Self::Input => &["more data loader workers, prefetch_factor and persistent_workers, or cheaper transforms"],
            Self::Sync => &["read values from the GPU (.item(), .cpu(), print) less often"],
            Self::Allocator => {
                &["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and no torch.cuda.empty_cache() in the loop"]
            }
            Self::Loading => &["profile after warm-up; load code early with CUDA_MODULE_LOADING=EAGER"],
            Self::Other => &["record with with_stack=True and record_shapes=True to see what the CPU did"],
        }
    }
}

/// One device's figures, over the time that counts.
struct Scope<'a> {
    report: &'a TraceReport,
    device: &'a DeviceReport,
    account: Account,
    steady: bool,
}

impl Scope<'_> {
    fn who(&self) -> String {
        format!("GPU {}", self.device.index)
    }

    fn cost(&self, cause: &IdleCause) -> u64 {
        if self.steady { cause.steady_ns } else { cause.total_ns }
    }

    fn share(&self, ns: u64) -> f64 {
        if self.account.span_ns == 0 { 0.0 } else { ns as f64 / self.account.span_ns as f64 }
    }

    fn of_span(&self, ns: u64) -> String {
        let (span, after) = (self.account.span_ns, if self.steady { " after warm-up" } else { "" });
        format!("{} of {}{after} ({})", units::time(ns), units::time(span), units::percent(ns as f64, span as f64))
    }

    fn severity(&self, ns: u64) -> Severity {
        match self.share(ns) {
            share if share >= 0.5 => Severity::High,
            share if share >= 0.2 => Severity::Medium,
            _ => Severity::Low,
        }
    }

    fn lost(&self, ns: u64) -> Lost {
        Lost { ns, bytes: 0, of_ns: self.account.span_ns }
    }

    fn finding(&self, kind: &str, ns: u64, title: String, chain: Vec<Link>, root_cause: RootCause) -> Finding {
        Finding {
            kind: kind.into(),
            severity: self.severity(ns),
            title,
            lost: self.lost(ns),
            chain,
            root_cause,
            effects: Vec::new(),
            fixes: Vec::new(),
            confidence: Confidence::High,
            pid: None,
        }
    }

    /// One finding for each group of causes that cost enough.
    fn idle(&self) -> Vec<Finding> {
        Group::ALL.into_iter().filter_map(|group| self.idle_group(group)).collect()
    }

    fn idle_group(&self, group: Group) -> Option<Finding> {
        let mine = |c: &&IdleCause| c.device == self.device.index && Group::of(&c.cause) == group && self.cost(c) > 0;
        let mut causes: Vec<&IdleCause> = self.report.idle_causes.iter().filter(mine).collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(self.cost(cause)));
        let ns: u64 = causes.iter().map(|cause| self.cost(cause)).sum();
        let largest = causes.first().filter(|_| self.share(ns) >= IDLE_SHARE)?;
        let short = causes.iter().map(|c| c.total_ns).sum::<u64>() / causes.iter().map(|c| c.count).sum::<u64>().max(1)
            < SHORT_GAP_NS;
        let title = format!("{} idle {}: {}", self.who(), self.of_span(ns), group.words(short));
        let nothing = Link {
            who: self.who(),
            what: "has nothing to run".into(),
            line: None,
            ns: self.account.idle_ns,
            evidence: "union over streams".into(),
        };
        let mut chain = vec![nothing];
        chain.push(Link {
            who: doer(largest),
            what: deed(largest),
            line: largest.line.clone(),
            ns: self.cost(largest),
            evidence: format!("in {} gaps", units::count(largest.count)),
        });
        let root = RootCause {
            kind: largest.cause.clone(),
            summary: format!("most of it: {} {}, {}", doer(largest), deed(largest), units::time(self.cost(largest))),
            line: largest.line.clone(),
        };
        let mut finding = self.finding(group.kind(short), ns, title, chain, root);
        finding.effects = self.effects(ns, group);
        finding.effects.extend(causes.iter().skip(1).take(2).map(|cause| self.also(cause)));
        finding.fixes = group.fixes().iter().zip([ns, 0]).map(|(fix, saves_ns)| self::fix(fix, saves_ns)).collect();
        if group == Group::Other {
            finding.confidence = Confidence::Medium;
        }
        Some(finding)
    }

    fn also(&self, cause: &IdleCause) -> String {
        let line = cause.line.as_deref().map(|line| format!(", {line}")).unwrap_or_default();
        format!("also: {} {}{line}, {}", doer(cause), deed(cause), units::time(self.cost(cause)))
    }

    fn effects(&self, ns: u64, group: Group) -> Vec<String> {
        let mut effects = Vec::new();
        let steps = &self.report.steps;
        let counted = steps.items.iter().filter(|s| s.complete && (s.warmup.is_none() || !self.steady)).count() as u64;
        if counted > 1 {
            effects.push(format!("{} of idle GPU for each of {counted} steps", units::time(ns / counted)));
        }
        let launches = &self.report.launches;
        if group == Group::Cpu && launches.count > 0 {
            effects.push(format!(
                "{} launches, median {} in the call; median {} from the call to the kernel's start when the GPU waits",
                units::count(launches.count),
                units::time(launches.call_p50_ns),
                units::time(launches.latency_p50_ns)
            ));
        }
        effects
    }

    fn sync_heavy(&self) -> Option<Finding> {
        if self.report.devices.len() > 1 {
            return None; // idle time after a call is not kept by device
        }
        let ns = sum(self.report.syncs.iter().map(|sync| sync.idle_after_ns));
        let largest = self.report.syncs.iter().max_by_key(|sync| sync.idle_after_ns)?;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let count: u64 = self.report.syncs.iter().filter(|s| s.idle_after_ns > 0).map(|s| s.count).sum();
        let inside = if largest.op.is_empty() { String::new() } else { format!(" in {}", largest.op) };
        let title = format!(
            "{} runs dry at {} synchronisations: idle {} after them",
            self.who(),
            units::count(count),
            self.of_span(ns)
        );
        let chain = vec![Link {
            who: "CPU".into(),
            what: format!("waits in {}{inside}", largest.name),
            line: largest.line.clone(),
            ns: largest.total_ns,
            evidence: format!("{} calls", units::count(largest.count)),
        }];
        let root = RootCause {
            kind: "synchronisation".into(),
            summary: format!(
                "{}{inside} empties the GPU's queue; the next work is launched only afterwards",
                largest.name
            ),
            line: largest.line.clone(),
        };
        let mut finding = self.finding("sync_heavy", ns, title, chain, root);
        // The same idle time also has a cause of its own: how much the sync alone cost is not measured.
        finding.severity = finding.severity.min(Severity::Medium);
        finding.confidence = Confidence::Medium;
        finding.fixes = vec![fix("read values from the GPU (.item(), .cpu(), print) less often, or one step later", 0)];
        Some(finding)
    }

    fn exposed_communication(&self) -> Option<Finding> {
        let ns = self.account.exposed_communication_ns;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let largest = self.report.collectives.iter().max_by_key(|c| c.total_ns)?;
        let title = format!("{} only communicates {}: no compute hides it", self.who(), self.of_span(ns));
        let chain = vec![Link {
            who: self.who(),
            what: format!("runs {}", largest.name),
            line: None,
            ns: largest.total_ns,
            evidence: format!("{} kernels, waiting for other ranks included", units::count(largest.count)),
        }];
        let summary = format!(
            "{} of {} communication is not overlapped by compute",
            units::time(ns),
            units::time(self.account.communication_ns)
        );
        let root = RootCause { kind: "communication".into(), summary, line: None };
        let mut finding = self.finding("exposed_communication", ns, title, chain, root);
        finding.fixes = vec![
            fix(
                "overlap it: smaller gradient buckets that start earlier, FSDP backward_prefetch, async all-gather",
                ns,
            ),
            fix("compare ranks: a slow one makes all others wait inside their kernels", 0),
        ];
        Some(finding)
    }

    fn exposed_copies(&self) -> Option<Finding> {
        let ns = self.account.exposed_copy_ns;
        let largest = self.report.copies.iter().max_by_key(|copy| copy.total_ns)?;
        if self.share(ns) < IDLE_SHARE {
            return None;
        }
        let title = format!("{} only copies {}: no compute hides it", self.who(), self.of_span(ns));
        let chain = vec![copy_link(&self.who(), largest)];
        let summary = format!("{} copies run alone on the GPU", largest.direction);
        let root = RootCause { kind: "copies".into(), summary, line: None };
        let mut finding = self.finding("exposed_copies", ns, title, chain, root);
        finding.fixes =
            vec![fix("copy on a stream of its own from pinned memory, ahead of use (non_blocking=True)", ns)];
        Some(finding)
    }

    /// Copies from ordinary memory go through a staging buffer and hold up the CPU.
    fn pageable_copies(&self) -> Option<Finding> {
        let ns = sum(self.report.copies.iter().map(|copy| copy.pageable_ns));
        let largest = self.report.copies.iter().max_by_key(|copy| copy.pageable_ns)?;
        if self.share(ns) < 0.01 {
            return None;
        }
        let bytes = largest.pageable_bytes;
        let rate = super::transfers::rate(bytes, largest.pageable_ns).unwrap_or(0);
        let title = format!("copies from pageable memory take {}", self.of_span(ns));
        let chain = vec![copy_link(&self.who(), largest)];
        let summary = format!(
            "{} of {} copies at {}/s: the memory is not pinned",
            units::bytes(bytes),
            largest.direction,
            units::bytes(rate)
        );
        let root = RootCause { kind: "pageable_memory".into(), summary, line: None };
        let mut finding = self.finding("pageable_copies", ns, title, chain, root);
        finding.severity = finding.severity.min(Severity::Medium);
        finding.fixes =
            vec![fix("pin_memory=True in the DataLoader (or .pin_memory()) and .to(device, non_blocking=True)", ns)];
        Some(finding)
    }

    fn conversions(&self) -> Option<Finding> {
        let all = sum(self.report.categories.iter().map(|c| c.total_ns));
        let found = self.report.categories.iter().find(|c| c.name == CONVERSION)?;
        let share = found.total_ns as f64 / all.max(1) as f64;
        if share < 0.1 || self.share(found.total_ns) < IDLE_SHARE {
            return None;
        }
        let ns = found.total_ns;
        let title = format!("{} of GPU time converts between types", units::percent(ns as f64, all as f64));
        let chain = vec![Link {
            who: self.who(),
            what: "converts tensors".into(),
            line: None,
            ns,
            evidence: format!("{} kernels", units::count(found.count)),
        }];
        let summary = "weights or activations are kept in another type than the one computed in".into();
        let root = RootCause { kind: "dtype_conversion".into(), summary, line: None };
        let mut finding = self.finding("dtype_conversions", ns, title, chain, root);
        finding.severity = Severity::Low;
        finding.fixes =
            vec![fix("keep weights in the compute type (bf16) or let torch.compile fuse the conversions", ns)];
        Some(finding)
    }

    fn recompute(&self) -> Option<Finding> {
        let again = self.report.recompute;
        if again.total_ns.saturating_mul(20) < self.device.account.busy_ns || again.count == 0 {
            return None;
        }
        let share = units::percent(again.total_ns as f64, self.device.account.busy_ns as f64);
        let title = format!("activation checkpointing computes {share} of GPU work a second time");
        let chain = vec![Link {
            who: self.who(),
            what: "runs forward ops inside the backward".into(),
            line: None,
            ns: again.total_ns,
            evidence: format!("{} kernels", units::count(again.count)),
        }];
        let summary = "memory is traded for time, as asked".into();
        let root = RootCause { kind: "activation_checkpointing".into(), summary, line: None };
        let mut finding = self.finding("recompute", again.total_ns, title, chain, root);
        finding.severity = Severity::Info;
        finding.fixes = vec![fix("checkpoint fewer layers if memory allows", again.total_ns)];
        Some(finding)
    }

    fn gpu_bound(&self) -> Option<Finding> {
        let busy = self.account.busy_ns;
        if self.share(busy) < BOUND_SHARE {
            return None;
        }
        let largest = self.report.categories.first()?;
        let title = format!("{} is the bottleneck: busy {}", self.who(), self.of_span(busy));
        let chain = vec![Link {
            who: self.who(),
            what: format!("runs {}", largest.name),
            line: None,
            ns: largest.total_ns,
            evidence: format!("{} kernels", units::count(largest.count)),
        }];
        let summary = format!("the GPU is the bottleneck; most of its time goes to {}", largest.name);
        let root = RootCause { kind: "gpu_bound".into(), summary, line: None };
        let mut finding = self.finding("gpu_bound", 0, title, chain, root);
        finding.severity = Severity::Info;
        Some(finding)
    }
}

/// A sum that cannot overflow, for figures that a made-up file can make as large as it likes.
fn sum(ns: impl Iterator<Item = u64>) -> u64 {
    ns.fold(0, u64::saturating_add)
}

fn fix(action: &str, saves_ns: u64) -> Fix {
    Fix { action: action.into(), saves_ns, saves_bytes: 0 }
}

fn copy_link(who: &str, copy: &crate::trace::report::CopyTotal) -> Link {
    Link {
        who: who.into(),
        what: format!("copies {} {}", units::bytes(copy.bytes), copy.direction),
        line: None,
        ns: copy.total_ns,
        evidence: format!("{} copies", units::count(copy.count)),
    }
}

/// Who held things up.
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

/// What it did meanwhile.
fn deed(cause: &IdleCause) -> String {
    let name = &cause.name;
    match cause.cause.as_str() {
        "dataloader" => "fetches the next batch".into(),
        "launch_latency" => format!("launches ({name})"),
        "sync" => format!("returns from {name}"),
        "queued" => "holds work that is already launched".into(),
        "profiler" => format!("works for itself ({name})"),
        "unknown" => "does something the trace does not show".into(),
        "python" if name.is_empty() => "runs Python between ops".into(),
        "python" if cause.line.is_none() => format!("runs Python between ops in {name}"),
        _ => format!("runs {name}"),
    }
}
