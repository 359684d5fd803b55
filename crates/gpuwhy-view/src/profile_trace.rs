// SPDX-License-Identifier: Apache-2.0
//! A profiler trace as text: a verdict, a small table of GPU time, and on request every table.

use crate::{Align, Style, Table};
use gpuwhy_model::{Confidence, units};
use gpuwhy_torch::trace::{Account, DeviceReport, IdleCause, Step, Total, TraceReport};

/// Rows of each table.
const ROWS: usize = 10;
/// Rows of the table on the first screen, and the least share of GPU time that earns one.
const SHORT_ROWS: usize = 5;
const LEAST_SHARE: f64 = 0.01;
/// An idle cause is named in the verdict from this share of idle time.
const LEAST_CAUSE: f64 = 0.05;
/// Characters shown of a name.
const NAME: usize = 90;

/// What the trace is: `NVIDIA H200`, `rank 0 of 8`, `6 steps`.
pub(crate) fn facts(report: &TraceReport) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(first) = report.devices.first().filter(|device| !device.name.is_empty()) {
        let name = units::safe(&first.name, 40);
        let same = report.devices.iter().filter(|device| device.name == first.name).count();
        facts.push(if same > 1 { format!("{same} × {name}") } else { name });
    }
    if let (Some(rank), Some(size)) = (report.rank, report.world_size) {
        facts.push(format!("rank {rank} of {size}"));
    }
    match report.steps.count {
        0 => {}
        1 => facts.push("1 step".to_owned()),
        n => facts.push(format!("{} steps", units::count(n))),
    }
    facts.push(format!("{} events", units::count(report.events)));
    facts
}

/// How busy the GPUs were, what they waited for, and how long a step takes.
///
/// Figures cover the time after warm-up where the report has it, unless `include_warmup`.
pub fn verdict(report: &TraceReport, include_warmup: bool) -> String {
    View { report, include_warmup, width: usize::MAX, style: Style::PLAIN }.verdict()
}

/// The table of the first screen: GPU time by kind of work.
pub(crate) fn short_lines(report: &TraceReport, include_warmup: bool, width: usize, style: Style) -> Vec<String> {
    View { report, include_warmup, width, style }.short_totals()
}

/// The names of the sections that [`lines`] has and the first screen has not.
pub(crate) fn section_names(report: &TraceReport) -> Vec<&'static str> {
    let names = [
        ("steps", report.steps.items.is_empty()),
        ("kernels", report.kernels.is_empty()),
        ("ops", report.ops.is_empty()),
        ("modules", report.modules.is_empty()),
        ("lines", report.lines.is_empty()),
        ("idle causes", report.idle_causes.is_empty()),
        ("copies", report.copies.is_empty()),
        ("communication", report.collectives.is_empty()),
    ];
    names.into_iter().filter(|(_, empty)| !empty).map(|(name, _)| name).collect()
}

/// Every table. Names in it come from the trace and are made safe to print. The same time range as [`verdict`].
pub fn lines(report: &TraceReport, include_warmup: bool, width: usize, style: Style) -> Vec<String> {
    let view = View { report, include_warmup, width, style };
    let sections = [
        view.account(),
        view.steps(),
        view.totals("GPU time by kind of work", &report.categories),
        view.kernels(),
        view.totals("GPU time by op", &report.ops),
        view.totals("GPU time by module", &report.modules),
        view.totals("GPU time by Python line", &report.lines),
        view.idle(),
        view.copies(),
        view.collectives(),
        view.fills(),
        view.syncs(),
        view.launches(),
    ];
    let mut out: Vec<String> = Vec::new();
    for section in sections.into_iter().filter(|section| !section.is_empty()) {
        if !out.is_empty() {
            out.push(String::new());
        }
        out.extend(section);
    }
    out
}

struct View<'a> {
    report: &'a TraceReport,
    include_warmup: bool,
    width: usize,
    style: Style,
}

impl View<'_> {
    /// Whether figures leave out warm-up.
    fn steady(&self) -> bool {
        !self.include_warmup && self.report.devices.iter().any(|device| device.steady.is_some())
    }

    fn cost(&self, total: u64, steady: u64) -> u64 {
        if self.steady() { steady } else { total }
    }

    fn account_of(&self, device: &DeviceReport) -> Account {
        if self.include_warmup { device.account } else { device.steady.unwrap_or(device.account) }
    }

    fn verdict(&self) -> String {
        let mut devices: Vec<(&DeviceReport, Account)> =
            self.report.devices.iter().map(|device| (device, self.account_of(device))).collect();
        let idle_share = |account: &Account| account.idle_ns as f64 / account.span_ns.max(1) as f64;
        // The most idle first: that one is described.
        devices.sort_by(|(_, a), (_, b)| idle_share(b).total_cmp(&idle_share(a)));
        let Some((first, account)) = devices.first() else { return "This trace has no GPU work.".to_owned() };
        let mut sentences = vec![self.device_verdict(first, account, devices.len() > 1)];
        let shares =
            devices[1..].iter().map(|(_, account)| units::percent(account.idle_ns as f64, account.span_ns as f64));
        let shares: Vec<String> = shares.collect();
        match shares.as_slice() {
            [] => {}
            [only] => sentences.push(format!("The other GPU was idle {only} of its time.")),
            [most, .., least] => {
                let others = shares.len();
                let range = if most == least { most.clone() } else { format!("{least} to {most}") };
                sentences.push(format!("The other {others} GPUs were idle {range} of their time."));
            }
        }
        sentences.extend(self.step_sentence());
        sentences.join(" ")
    }

    fn device_verdict(&self, device: &DeviceReport, account: &Account, numbered: bool) -> String {
        let gpu = if numbered { format!("GPU {}", device.index) } else { "The GPU".to_owned() };
        let share = |ns: u64| units::percent(ns as f64, account.span_ns as f64);
        let span = units::time(account.span_ns);
        let after = if self.steady() { " after warm-up" } else { "" };
        if account.idle_ns < account.span_ns / 10 {
            let busy = share(account.busy_ns);
            return format!("{gpu} was busy {busy} of {span}{after}: it is the bottleneck.");
        }
        let idle = format!("{gpu} was idle {} of {span}{after}", share(account.idle_ns));
        match self.waited_for(device.index) {
            Some(causes) => format!("{idle} ({}), waiting for {causes}.", units::time(account.idle_ns)),
            None => format!("{idle} ({}).", units::time(account.idle_ns)),
        }
    }

    /// What a device waited for, the three largest: `CPU ops (62.1 ms), Python (28.4 ms) and kernel launches (20.3 ms)`.
    fn waited_for(&self, device: i32) -> Option<String> {
        let mut kinds: Vec<(&str, u64)> = Vec::new();
        for cause in self.report.idle_causes.iter().filter(|cause| cause.device == device) {
            let (kind, ns) = (cause_kind(&cause.cause), self.cost(cause.total_ns, cause.steady_ns));
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum = sum.saturating_add(ns),
                None => kinds.push((kind, ns)),
            }
        }
        kinds.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let whole = sum(kinds.iter().map(|(_, ns)| *ns));
        let large = kinds.iter().filter(|(_, ns)| *ns > 0 && *ns as f64 >= whole as f64 * LEAST_CAUSE).take(3);
        let mut named: Vec<String> = large.map(|(kind, ns)| format!("{kind} ({})", units::time(*ns))).collect();
        let last = named.pop()?;
        Some(if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) })
    }

    fn step_sentence(&self) -> Option<String> {
        let steps = &self.report.steps;
        let time = units::time(steps.median_ns);
        let median = match steps.confidence? {
            Confidence::Low => format!("A step takes about {time}, guessed from repeating kernels."),
            Confidence::Medium | Confidence::High => format!("A step takes {time} (median)."),
        };
        (steps.median_ns > 0).then_some(median)
    }

    fn short_totals(&self) -> Vec<String> {
        let cost = |total: &Total| self.cost(total.total_ns, total.steady_ns);
        let whole = sum(self.report.categories.iter().map(cost));
        let mut table = table(&[("share", Align::Right), ("time", Align::Right), ("", Align::Left)]);
        let large = self.report.categories.iter().filter(|total| cost(total) as f64 >= whole as f64 * LEAST_SHARE);
        for total in large.filter(|total| cost(total) > 0).take(SHORT_ROWS) {
            let ns = cost(total);
            table.push(vec![units::percent(ns as f64, whole as f64), units::time(ns), units::safe(&total.name, NAME)]);
        }
        self.section("GPU time by kind of work", &table, 0)
    }

    fn account(&self) -> Vec<String> {
        if self.report.devices.is_empty() {
            return Vec::new();
        }
        let mut table = numbers(
            &[
                "GPU",
                "when",
                "span",
                "compute",
                "+ exposed comm.",
                "+ exposed copies",
                "+ idle",
                "busy",
                "comm.",
                "copies",
            ],
            2,
        );
        for device in &self.report.devices {
            let mut row = |part: &str, a: &Account| {
                let time = |ns: u64| format!("{} {:>6}", units::time(ns), units::percent(ns as f64, a.span_ns as f64));
                let mut cells = vec![device.index.to_string(), part.to_owned(), units::time(a.span_ns)];
                cells.extend(
                    [a.compute_ns, a.exposed_communication_ns, a.exposed_copy_ns, a.idle_ns, a.busy_ns].map(time),
                );
                cells.extend([a.communication_ns, a.copy_ns].map(units::time));
                table.push(cells);
            };
            row("whole trace", &device.account);
            if let Some(steady) = &device.steady {
                row("after warm-up", steady);
            }
        }
        let mut out = vec![self.style.bold("Where the GPU's time went")];
        out.extend(table.lines_within(self.width, &[], self.style));
        out.extend(self.report.devices.iter().map(|device| self.style.dim(&identity(device))));
        out
    }

    fn steps(&self) -> Vec<String> {
        let steps = &self.report.steps;
        let found = match steps.confidence {
            Some(Confidence::High) => "from",
            Some(Confidence::Medium) => "probably right: from",
            _ => "guessed from",
        };
        let method = match steps.method.as_str() {
            "profiler_step" => "ProfilerStep marks",
            "optimizer_step" => "optimizer steps",
            "annotation" => "annotations",
            "python_function" => "Python functions",
            "dataloader" => "the data loader",
            "periodicity" => "repeating kernels",
            _ => return vec![self.style.bold("Steps: none found")],
        };
        let median =
            if steps.median_ns > 0 { format!(", median {}", units::time(steps.median_ns)) } else { String::new() };
        let mut out =
            vec![self.style.bold(&format!("Steps: {}{median} ({found} {method})", units::count(steps.count)))];
        let mut table =
            table(&[("step", Align::Left), ("duration", Align::Right), ("GPU busy", Align::Right), ("", Align::Left)]);
        for step in steps.items.iter().take(ROWS) {
            let busy = units::percent(step.busy_ns as f64, step.duration_ns as f64);
            table.push(vec![units::safe(&step.name, 40), units::time(step.duration_ns), busy, step_note(step)]);
        }
        out.extend(table.lines_within(self.width, &[], self.style));
        out.extend(more(steps.items.len()));
        out
    }

    fn totals(&self, title: &str, list: &[Total]) -> Vec<String> {
        let mut table =
            table(&[("share", Align::Right), ("time", Align::Right), ("events", Align::Right), ("", Align::Left)]);
        let whole = sum(self.report.categories.iter().map(|c| self.cost(c.total_ns, c.steady_ns)));
        let shown: Vec<&Total> = list.iter().filter(|total| self.cost(total.total_ns, total.steady_ns) > 0).collect();
        for total in shown.iter().take(ROWS) {
            let ns = self.cost(total.total_ns, total.steady_ns);
            table.push(vec![
                units::percent(ns as f64, whole as f64),
                units::time(ns),
                units::count(total.count),
                units::safe(&total.name, NAME),
            ]);
        }
        self.section(title, &table, shown.len())
    }

    fn kernels(&self) -> Vec<String> {
        let columns = [
            ("share", Align::Right),
            ("time", Align::Right),
            ("events", Align::Right),
            ("mean", Align::Right),
            ("kind", Align::Left),
            ("kernel", Align::Left),
        ];
        let mut table = table(&columns);
        let list = &self.report.kernels;
        let whole = sum(list.iter().map(|k| self.cost(k.total_ns, k.steady_ns)));
        for kernel in list.iter().take(ROWS) {
            let ns = self.cost(kernel.total_ns, kernel.steady_ns);
            table.push(vec![
                units::percent(ns as f64, whole as f64),
                units::time(ns),
                units::count(kernel.count),
                units::time(kernel.total_ns / kernel.count.max(1)),
                units::safe(&kernel.category, 30),
                units::safe(&kernel.name, NAME),
            ]);
        }
        self.section("Top kernels", &table, list.len())
    }

    fn idle(&self) -> Vec<String> {
        let columns = [
            ("GPU", Align::Right),
            ("share", Align::Right),
            ("idle", Align::Right),
            ("times", Align::Right),
            ("what the CPU did", Align::Left),
            ("line", Align::Left),
        ];
        let mut table = table(&columns);
        let list: Vec<&IdleCause> =
            self.report.idle_causes.iter().filter(|c| self.cost(c.total_ns, c.steady_ns) > 0).collect();
        let whole = sum(list.iter().map(|c| self.cost(c.total_ns, c.steady_ns)));
        for cause in list.iter().take(ROWS) {
            let ns = self.cost(cause.total_ns, cause.steady_ns);
            table.push(vec![
                cause.device.to_string(),
                units::percent(ns as f64, whole as f64),
                units::time(ns),
                units::count(cause.count),
                cause_text(cause),
                cause.line.as_deref().map(|line| units::safe(line, 60)).unwrap_or_default(),
            ]);
        }
        self.section("Why the GPU was idle", &table, list.len())
    }

    fn copies(&self) -> Vec<String> {
        let mut table = numbers(&["direction", "bytes", "time", "copies", "rate", "pageable"], 1);
        for copy in &self.report.copies {
            let rate = copy.bytes_per_s.map(|rate| format!("{}/s", units::bytes(rate))).unwrap_or_else(|| "–".into());
            table.push(vec![
                copy.direction.clone(),
                units::bytes(copy.bytes),
                units::time(copy.total_ns),
                units::count(copy.count),
                rate,
                units::bytes(copy.pageable_bytes),
            ]);
        }
        self.section("Copies", &table, 0)
    }

    fn collectives(&self) -> Vec<String> {
        let mut table = numbers(&["collective", "type", "ranks", "time", "kernels", "bytes"], 2);
        for c in self.report.collectives.iter().take(ROWS) {
            table.push(vec![
                units::safe(&c.name, 40),
                units::safe(&c.dtype, 20),
                if c.group_size == 0 { "–".into() } else { c.group_size.to_string() },
                units::time(c.total_ns),
                units::count(c.count),
                if c.bytes == 0 { "–".into() } else { units::bytes(c.bytes) },
            ]);
        }
        self.section("Communication", &table, self.report.collectives.len())
    }

    fn fills(&self) -> Vec<String> {
        let columns =
            [("time", Align::Right), ("fills", Align::Right), ("op", Align::Left), ("input dimensions", Align::Left)];
        let mut table = table(&columns);
        for fill in self.report.fills.iter().take(5) {
            let cells = [units::safe(&fill.op, 40), units::safe(&fill.dims, 60)];
            table.push([units::time(fill.total_ns), units::count(fill.count)].into_iter().chain(cells).collect());
        }
        self.section("Fills (memset)", &table, 0)
    }

    fn syncs(&self) -> Vec<String> {
        let columns = [
            ("time", Align::Right),
            ("calls", Align::Right),
            ("idle after", Align::Right),
            ("call", Align::Left),
            ("op", Align::Left),
            ("line", Align::Left),
        ];
        let mut table = table(&columns);
        for sync in self.report.syncs.iter().take(5) {
            table.push(vec![
                units::time(sync.total_ns),
                units::count(sync.count),
                units::time(sync.idle_after_ns),
                units::safe(&sync.name, 40),
                units::safe(&sync.op, 40),
                sync.line.as_deref().map(|line| units::safe(line, 60)).unwrap_or_default(),
            ]);
        }
        self.section("Synchronisation calls", &table, 0)
    }

    fn launches(&self) -> Vec<String> {
        let mut out = Vec::new();
        let launches = &self.report.launches;
        if launches.count > 0 {
            out.push(format!(
                "{} launch calls took {} (median {})",
                units::count(launches.count),
                units::time(launches.total_ns),
                units::time(launches.call_p50_ns),
            ));
            out.push(format!(
                "Kernels start {} (median) after the call when the GPU is idle, {} overall",
                units::time(launches.latency_p50_ns),
                units::time(launches.ahead_p50_ns)
            ));
        }
        let again = &self.report.recompute;
        if again.count > 0 {
            out.push(format!(
                "Activation checkpointing recomputed {} in {} kernels",
                units::time(again.total_ns),
                units::count(again.count)
            ));
        }
        for graph in self.report.graphs.iter().take(ROWS) {
            out.push(format!(
                "CUDA graph {}: {} launches, {} kernels, {} ({} traced back to ops)",
                graph.id,
                units::count(graph.launches),
                units::count(graph.kernels),
                units::time(graph.total_ns),
                units::time(graph.attributed_ns)
            ));
        }
        if !out.is_empty() {
            out.insert(0, self.style.bold("Launches"));
        }
        out
    }

    fn section(&self, title: &str, table: &Table, rows: usize) -> Vec<String> {
        if table.is_empty() {
            return Vec::new();
        }
        let mut out = vec![self.style.bold(title)];
        out.extend(table.lines_within(self.width, &[], self.style));
        out.extend(more(rows));
        out
    }
}

/// The account to the nanosecond, to be checked by adding it up.
fn identity(device: &DeviceReport) -> String {
    let a = &device.account;
    let n = units::count;
    let sign = if a.adds_up() { "=" } else { "≠" };
    format!(
        "GPU {}: {} ns {sign} {} compute + {} exposed communication + {} exposed copies + {} idle",
        device.index,
        n(a.span_ns),
        n(a.compute_ns),
        n(a.exposed_communication_ns),
        n(a.exposed_copy_ns),
        n(a.idle_ns)
    )
}

fn step_note(step: &Step) -> String {
    let warm = step.warmup.as_deref().map(|reason| match reason {
        "loading" => "warm-up: GPU code was loaded or compiled",
        "autotune" => "warm-up: kernels were autotuned",
        "allocator" => "warm-up: memory was reserved from the driver",
        "profiler" => "warm-up: the profiler started",
        _ => "warm-up: far slower than the rest",
    });
    let cut = (!step.complete).then_some("cut off by the end of the recording");
    [warm, cut].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// What the GPU waited for.
fn cause_kind(cause: &str) -> &'static str {
    match cause {
        "cpu_op" => "CPU ops",
        "python" => "Python",
        "dataloader" => "the data loader",
        "sync" => "synchronisation calls",
        "launch_latency" => "kernel launches",
        "allocator" => "the allocator",
        "loading" => "code loading",
        "cuda_call" => "other CUDA calls",
        "profiler" => "the profiler",
        "queued" => "other streams or events",
        _ => "something the trace does not show",
    }
}

fn cause_text(cause: &IdleCause) -> String {
    let name = units::safe(&cause.name, 70);
    match cause.cause.as_str() {
        "cpu_op" => format!("op {name}"),
        "python" if name.is_empty() => "Python between ops".into(),
        "python" if cause.line.is_none() => format!("Python between ops in {name}"),
        "python" => format!("Python: {name}"),
        "dataloader" => "the data loader".into(),
        "sync" => format!("returning from {name}"),
        "launch_latency" => format!("launching: {name}"),
        "allocator" => format!("allocator: {name}"),
        "loading" => format!("loading code: {name}"),
        "cuda_call" => format!("call {name}"),
        "profiler" => format!("profiler: {name}"),
        "queued" => "already launched; waiting for another stream or event".into(),
        _ => "unknown".into(),
    }
}

fn table(columns: &[(&str, Align)]) -> Table {
    Table::new(columns.iter().map(|(name, align)| ((*name).to_owned(), Some(*align))))
}

/// A table whose first `words` columns hold text and the rest numbers.
fn numbers(columns: &[&str], words: usize) -> Table {
    let align = |i: usize| if i < words { Align::Left } else { Align::Right };
    Table::new(columns.iter().enumerate().map(|(i, name)| ((*name).to_owned(), Some(align(i)))))
}

/// A sum that cannot overflow.
fn sum(ns: impl Iterator<Item = u64>) -> u64 {
    ns.fold(0, u64::saturating_add)
}

fn more(rows: usize) -> Option<String> {
    (rows > ROWS).then(|| format!("… and {} more", units::count((rows - ROWS) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_torch::trace::{Options, analyse};
    use std::path::PathBuf;

    fn data(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gpuwhy-torch/tests/data_trace").join(name)
    }

    fn report(name: &str) -> TraceReport {
        let file = std::fs::File::open(data(name)).unwrap();
        analyse(file, &Options::default(), |_| ()).unwrap()
    }

    #[test]
    fn the_text_stays_as_it_is() {
        let text = lines(&report("vision.json.gz"), false, usize::MAX, Style::PLAIN).join("\n") + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(data("vision.txt"), &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(data("vision.txt")).unwrap());
    }

    #[test]
    fn warm_up_is_left_out_unless_asked_for() {
        let report = report("base.json.gz");
        let text = verdict(&report, false);
        assert!(text.contains(" after warm-up (56.4 ms), waiting for CPU ops ("), "{text}");
        let text = lines(&report, false, usize::MAX, Style::PLAIN).join("\n");
        assert!(text.contains("warm-up: far slower than the rest"), "{text}");
        let all = verdict(&report, true);
        assert!(all.contains("idle 99 % of 2.23 s (2.22 s)"), "{all}");
    }

    #[test]
    fn a_report_about_nothing_is_short() {
        let report = TraceReport::default();
        assert_eq!(lines(&report, false, usize::MAX, Style::PLAIN), ["Steps: none found"]);
        assert_eq!(verdict(&report, false), "This trace has no GPU work.");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        let json =
            r#"[{"ph":"X","cat":"kernel","name":"\u001b[2Jk","pid":0,"tid":7,"ts":0,"dur":5,"args":{"device":0}}]"#;
        let report = analyse(json.as_bytes(), &Options::default(), |_| ()).unwrap();
        assert!(report.kernels[0].name.contains('\x1b'));
        assert!(lines(&report, false, usize::MAX, Style::PLAIN).iter().all(|line| !line.contains('\x1b')));
    }
}
