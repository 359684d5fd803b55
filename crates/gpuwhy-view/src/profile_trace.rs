// SPDX-License-Identifier: Apache-2.0
//! A profiler trace as text: the account first, then what the time went to, then what was waited for.

use crate::{Align, Style, Table};
use gpuwhy_model::{Confidence, units};
use gpuwhy_torch::trace::{Account, DeviceReport, IdleCause, Step, Total, TraceReport};

/// Rows shown of each list.
const ROWS: usize = 10;
/// Characters shown of a name.
const NAME: usize = 90;

/// The report as lines. Names in it come from the trace and are made safe to print.
///
/// Figures cover the time after warm-up where the report tells it apart, unless `include_warmup`.
pub fn lines(report: &TraceReport, include_warmup: bool, style: Style) -> Vec<String> {
    let view = View { report, include_warmup, style };
    let sections = [
        view.head(),
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
        view.small_print(),
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

    fn head(&self) -> Vec<String> {
        let report = self.report;
        let rank = match (report.rank, report.world_size) {
            (Some(rank), Some(size)) => format!(", rank {rank} of {size}"),
            _ => String::new(),
        };
        let mut out =
            vec![format!("{} events, {} of JSON{rank}", units::count(report.events), units::bytes(report.json_bytes))];
        out.extend(report.devices.iter().map(|device| self.verdict(device)));
        out
    }

    /// The one line to read if only one is read.
    fn verdict(&self, device: &DeviceReport) -> String {
        let account = self.account_of(device);
        let share = |ns: u64| units::percent(ns as f64, account.span_ns as f64);
        let name = if device.name.is_empty() { String::new() } else { format!(" ({})", units::safe(&device.name, 40)) };
        let after = if self.steady() { " after warm-up" } else { "" };
        let busy = format!("busy {} of {}{after}", share(account.busy_ns), units::time(account.span_ns));
        let gpu = format!("GPU {}{name}", device.index);
        let line = if account.idle_ns < account.span_ns / 10 {
            format!("{gpu}: {busy}: the GPU is the bottleneck")
        } else {
            format!("{gpu}: {busy}; idle {}: {}", units::time(account.idle_ns), self.idle_in_short(device.index))
        };
        if account.idle_ns > account.span_ns / 2 { self.style.red(&line) } else { self.style.bold(&line) }
    }

    /// Idle time by kind of cause, the three largest: `ops 62.1 ms, Python 28.4 ms, launching 20.3 ms`.
    fn idle_in_short(&self, device: i32) -> String {
        let mut kinds: Vec<(&str, u64)> = Vec::new();
        for cause in self.report.idle_causes.iter().filter(|cause| cause.device == device) {
            let (kind, ns) = (cause_kind(&cause.cause), self.cost(cause.total_ns, cause.steady_ns));
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum = sum.saturating_add(ns),
                None => kinds.push((kind, ns)),
            }
        }
        kinds.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let largest = kinds.iter().filter(|(_, ns)| *ns > 0).take(3);
        largest.map(|(kind, ns)| format!("{kind} {}", units::time(*ns))).collect::<Vec<_>>().join(", ")
    }

    fn account(&self) -> Vec<String> {
        if self.report.devices.is_empty() {
            return Vec::new();
        }
        let mut table = numbers(
            &[
                "GPU",
                "part",
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
            row("all", &device.account);
            if let Some(steady) = &device.steady {
                row("after warm-up", steady);
            }
        }
        let mut out = vec![self.style.bold("Where the GPU's time went")];
        out.extend(table.lines(self.style));
        out.extend(self.report.devices.iter().map(|device| self.style.dim(&identity(device))));
        out
    }

    fn steps(&self) -> Vec<String> {
        let steps = &self.report.steps;
        let sure = match steps.confidence {
            Some(Confidence::High) => "certain",
            Some(Confidence::Medium) => "probable",
            _ => "a guess",
        };
        let by = match steps.method.as_str() {
            "profiler_step" => "ProfilerStep marks",
            "optimizer_step" => "optimizer steps",
            "annotation" => "annotations",
            "python_function" => "Python functions",
            "dataloader" => "data loader",
            "periodicity" => "repeating kernels",
            _ => return vec![self.style.bold("Steps: none found")],
        };
        let median =
            if steps.median_ns > 0 { format!(", median {}", units::time(steps.median_ns)) } else { String::new() };
        let mut out = vec![self.style.bold(&format!("Steps: {} (by {by}: {sure}){median}", units::count(steps.count)))];
        let mut table =
            table(&[("step", Align::Left), ("duration", Align::Right), ("GPU busy", Align::Right), ("", Align::Left)]);
        for step in steps.items.iter().take(ROWS) {
            let busy = units::percent(step.busy_ns as f64, step.duration_ns as f64);
            table.push(vec![units::safe(&step.name, 40), units::time(step.duration_ns), busy, step_note(step)]);
        }
        out.extend(table.lines(self.style));
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
            ("what the CPU did meanwhile", Align::Left),
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
        self.section("Fills", &table, 0)
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
        self.section("The CPU waited for the GPU", &table, 0)
    }

    /// Launches, recomputation, graphs.
    fn small_print(&self) -> Vec<String> {
        let mut out = Vec::new();
        let launches = &self.report.launches;
        if launches.count > 0 {
            out.push(format!(
                "Launches: {}, {} in the calls (median {}); kernels start {} after the call (median) when the GPU waits, {} overall",
                units::count(launches.count),
                units::time(launches.total_ns),
                units::time(launches.call_p50_ns),
                units::time(launches.latency_p50_ns),
                units::time(launches.ahead_p50_ns)
            ));
        }
        let again = &self.report.recompute;
        if again.count > 0 {
            out.push(format!(
                "Computed again (checkpointing): {} in {} kernels",
                units::time(again.total_ns),
                units::count(again.count)
            ));
        }
        for graph in self.report.graphs.iter().take(ROWS) {
            out.push(format!(
                "CUDA graph {}: {} launches, {} kernels, {}; {} of it traced back to ops",
                graph.id,
                units::count(graph.launches),
                units::count(graph.kernels),
                units::time(graph.total_ns),
                units::time(graph.attributed_ns)
            ));
        }
        out
    }

    fn section(&self, title: &str, table: &Table, rows: usize) -> Vec<String> {
        if table.is_empty() {
            return Vec::new();
        }
        let mut out = vec![self.style.bold(title)];
        out.extend(table.lines(self.style));
        out.extend(more(rows));
        out
    }
}

/// The account to the nanosecond: whoever doubts it can add it up.
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
        "loading" => "warm-up: GPU code is loaded or compiled",
        "autotune" => "warm-up: kernels are tried out",
        "allocator" => "warm-up: memory is taken from the driver",
        "profiler" => "warm-up: the profiler starts",
        _ => "warm-up: far slower than the rest",
    });
    let cut = (!step.complete).then_some("cut off by the recording's end");
    [warm, cut].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A cause in a word or two.
fn cause_kind(cause: &str) -> &'static str {
    match cause {
        "cpu_op" => "CPU ops",
        "python" => "Python",
        "dataloader" => "data loader",
        "sync" => "synchronisation",
        "launch_latency" => "launching",
        "allocator" => "allocator",
        "loading" => "loading code",
        "cuda_call" => "other CUDA calls",
        "profiler" => "profiler",
        "queued" => "held up on the GPU",
        _ => "unknown",
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
        "sync" => format!("waiting: {name}"),
        "launch_latency" => format!("launching: {name}"),
        "allocator" => format!("allocator: {name}"),
        "loading" => format!("loading code: {name}"),
        "cuda_call" => format!("call {name}"),
        "profiler" => format!("the profiler: {name}"),
        "queued" => "already launched, held up on the GPU".into(),
        _ => "unknown".into(),
    }
}

fn table(columns: &[(&str, Align)]) -> Table {
    Table::new(columns.iter().map(|(name, align)| ((*name).to_owned(), Some(*align))))
}

/// A table whose first `words` columns are words and the rest numbers.
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
        let text = lines(&report("vision.json.gz"), false, Style::PLAIN).join("\n") + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(data("vision.txt"), &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(data("vision.txt")).unwrap());
    }

    #[test]
    fn warm_up_is_left_out_unless_asked_for() {
        let report = report("base.json.gz");
        let text = lines(&report, false, Style::PLAIN).join("\n");
        assert!(text.contains("after warm-up; idle 56.4 ms: CPU ops"), "{text}");
        assert!(text.contains("warm-up: far slower than the rest"), "{text}");
        let all = lines(&report, true, Style::PLAIN).join("\n");
        assert!(all.contains("busy 0.6 % of 2.23 s; idle 2.22 s"), "{all}");
    }

    #[test]
    fn a_report_about_nothing_is_short() {
        assert_eq!(
            lines(&TraceReport::default(), false, Style::PLAIN),
            ["0 events, 0 B of JSON", "", "Steps: none found"]
        );
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        let json =
            r#"[{"ph":"X","cat":"kernel","name":"\u001b[2Jk","pid":0,"tid":7,"ts":0,"dur":5,"args":{"device":0}}]"#;
        let report = analyse(json.as_bytes(), &Options::default(), |_| ()).unwrap();
        assert!(report.kernels[0].name.contains('\x1b'));
        assert!(lines(&report, false, Style::PLAIN).iter().all(|line| !line.contains('\x1b')));
    }
}
