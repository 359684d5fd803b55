// SPDX-License-Identifier: Apache-2.0
//! A memory snapshot as text: a verdict, a small table of who held memory, and on request every table.
//!
//! Findings and warnings are drawn by `profile_view`, once for all files.

use crate::{Align, Style, Table};
use gpuwhy_model::units;
use gpuwhy_torch::snapshot::{Device, MemoryReport, Row};
use std::collections::BTreeMap;

/// Rows of each table.
const TOP: usize = 10;
/// Rows of the table on the first screen, and the least share of memory that earns one.
const SHORT_TOP: usize = 5;
const LEAST_SHARE: f64 = 0.01;
/// Characters of names from the file.
const NAME: usize = 48;

/// How much memory was in use at the peak and is now, by which line, and what is wrong.
pub fn verdict(report: &MemoryReport) -> String {
    let mut sentences: Vec<String> = report.devices.iter().flat_map(|device| device_verdict(report, device)).collect();
    if sentences.is_empty() {
        sentences.push("This snapshot has no GPU memory.".to_owned());
    }
    let recorded = report.devices.iter().any(|device| device.trace_entries > 0);
    if recorded && report.findings.is_empty() && report.ooms.is_empty() {
        sentences.push("No leak, no fragmentation and no failed allocation found.".to_owned());
    }
    sentences.join(" ")
}

fn device_verdict(report: &MemoryReport, device: &Device) -> Vec<String> {
    let gpu = format!("cuda:{}", device.index);
    let mut sentences = Vec::new();
    if report.ooms.iter().any(|oom| oom.by.device == device.index) {
        sentences.push(format!("PyTorch ran out of memory on {gpu}."));
    }
    if device.trace_entries > 0 {
        let about = if device.peak_allocated_exact { "" } else { "about " };
        let peak = units::bytes(device.peak_allocated_bytes);
        let holder = top_line(&report.peak, device.index, device.peak_requested_bytes);
        sentences.push(format!("Peak {about}{peak} in use on {gpu}{holder}."));
    }
    let (now, reserved) = (units::bytes(device.allocated_bytes), units::bytes(device.reserved_bytes));
    let holder = if device.trace_entries == 0 {
        top_line(&report.live, device.index, device.requested_bytes)
    } else {
        "".into()
    };
    sentences.push(format!("Now {now} is in use, {reserved} reserved{holder}."));
    if let (Some(headroom), Some(capacity)) = (device.headroom_bytes, device.capacity_bytes) {
        let (headroom, capacity) = (units::bytes(headroom), units::bytes(capacity));
        sentences.push(format!("At least {headroom} of {capacity} stayed unreserved."));
    }
    sentences
}

/// `, mostly train.py:42`, or `, 23 % of it from train.py:42`.
fn top_line(rows: &[Row], device: u32, whole: u64) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.device == device) {
        if let Some(line) = row.short_line() {
            let sum = lines.entry(line).or_default();
            *sum = sum.saturating_add(row.bytes);
        }
    }
    let Some((line, bytes)) = lines.into_iter().max_by_key(|(_, bytes)| *bytes) else { return String::new() };
    let line = units::safe(&line, NAME);
    if bytes >= whole.div_ceil(2) {
        format!(", mostly {line}")
    } else {
        format!(", {} from {line}", units::percent(bytes as f64, whole as f64))
    }
}

/// The table of the first screen: who held memory at the peak, of the GPU with the highest peak.
pub(crate) fn short_lines(report: &MemoryReport, width: usize, style: Style) -> Vec<String> {
    let Some(device) = report.devices.iter().max_by_key(|device| (device.peak_requested_bytes, device.requested_bytes))
    else {
        return Vec::new();
    };
    let (title, rows, whole) = if device.trace_entries > 0 {
        ("Live at the peak", &report.peak, device.peak_requested_bytes)
    } else {
        ("Live now", &report.live, device.requested_bytes)
    };
    let gpu = if report.devices.len() > 1 { format!(" on cuda:{}", device.index) } else { String::new() };
    let mut table = table([
        ("bytes", Align::Right),
        ("share", Align::Right),
        ("line", Align::Left),
        ("op", Align::Left),
        ("category", Align::Left),
    ]);
    let large = |row: &&Row| row.device == device.index && row.bytes as f64 >= whole as f64 * LEAST_SHARE;
    for row in rows.iter().filter(large).take(SHORT_TOP) {
        let (bytes, share) = (units::bytes(row.bytes), units::percent(row.bytes as f64, whole as f64));
        table.push(vec![bytes, share, place(row), op(row), row.category.label().to_owned()]);
    }
    if table.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![style.bold(&format!("{title}{gpu}"))];
    lines.extend(table.lines_within(width, &["op"], style));
    lines
}

/// The names of the sections that [`lines`] has and the first screen has not.
pub(crate) fn section_names(report: &MemoryReport) -> Vec<&'static str> {
    let names = [
        ("live memory", report.live.is_empty()),
        ("churn", report.churn.is_empty()),
        ("largest blocks", report.largest_blocks.is_empty()),
        ("segments", report.segment_sizes.is_empty()),
    ];
    names.into_iter().filter(|(_, empty)| !empty).map(|(name, _)| name).collect()
}

/// Every table.
pub fn lines(report: &MemoryReport, width: usize, style: Style) -> Vec<String> {
    let mut out = Vec::new();
    // Tables are indented.
    let width = width.saturating_sub(2);
    let section = |out: &mut Vec<String>, title: &str, table: Table| section(out, width, style, title, &table);
    for device in &report.devices {
        if !out.is_empty() {
            out.push(String::new());
        }
        out.extend(device_lines(device, width, style));
        let of = |rows: &[Row]| -> Vec<Row> { rows.iter().filter(|r| r.device == device.index).cloned().collect() };
        let (peak, live, churn) = (of(&report.peak), of(&report.live), of(&report.churn));
        if device.trace_entries > 0 {
            section(&mut out, "Live at the peak, by line", holders(&peak, device.peak_requested_bytes));
            section(&mut out, "Live at the peak, by category", categories(&peak, device.peak_requested_bytes));
        }
        section(&mut out, "Live now, by line", holders(&live, device.requested_bytes));
        section(&mut out, "Live now, by category", categories(&live, device.requested_bytes));
        section(&mut out, "Live now, by file", files(&live, device.requested_bytes));
        section(&mut out, "Churn: allocated and freed again", churned(&churn));
        section(&mut out, "Largest blocks", blocks(&of(&report.largest_blocks)));
        section(&mut out, "Segments less than half in use", pinned(report, device.index));
        section(&mut out, "Segments", segments(report, device.index));
        section(&mut out, "Out of memory", ooms(report, device.index));
    }
    out
}

fn section(out: &mut Vec<String>, width: usize, style: Style, title: &str, table: &Table) {
    if !table.is_empty() {
        out.push(String::new());
        out.push(style.bold(title));
        out.extend(table.lines_within(width, &["op"], style).into_iter().map(|line| format!("  {line}")));
    }
}

fn table<const N: usize>(columns: [(&str, Align); N]) -> Table {
    Table::new(columns.map(|(name, align)| (name.to_owned(), Some(align))))
}

fn device_lines(device: &Device, width: usize, style: Style) -> Vec<String> {
    let mut out = vec![style.bold(&format!("Memory of cuda:{}", device.index))];
    let mut table = table([("now", Align::Left), ("", Align::Right), ("", Align::Left)]);
    let mut row = |name: &str, bytes: u64, what: &str| {
        table.push(vec![name.to_owned(), units::bytes(bytes), what.to_owned()]);
    };
    row("reserved", device.reserved_bytes, "taken from the driver");
    row("allocated", device.allocated_bytes, "in blocks in use");
    row("requested", device.requested_bytes, "what the program asked for");
    row("rounding", device.rounding_bytes, "padding inside blocks");
    row("stuck", device.stuck_bytes, "free, but inside segments in use");
    row("releasable", device.releasable_bytes, "torch.cuda.empty_cache() would return it");
    row("largest fit", device.largest_fit_bytes, "largest allocation without reserving more");
    if device.pending_bytes > 0 {
        row("pending", device.pending_bytes, "freed, but still used by a stream");
    }
    if device.private_pool_bytes > 0 {
        let free = units::bytes(device.private_pool_free_bytes);
        row("private pools", device.private_pool_bytes, &format!("reserved for CUDA graphs, {free} free"));
    }
    if let (Some(headroom), Some(capacity)) = (device.headroom_bytes, device.capacity_bytes) {
        row("headroom", headroom, &format!("never reserved, of {}", units::bytes(capacity)));
    }
    out.extend(table.lines_within(width, &[], style).into_iter().map(|line| format!("  {line}")));
    out.extend(peak_lines(device));
    out
}

/// The peaks and the account, to the byte so that they can be checked.
fn peak_lines(device: &Device) -> Vec<String> {
    let exact = if device.peak_allocated_exact { "exact" } else { "approximate" };
    let mut out = vec![
        format!("  peak requested {:>17} bytes", units::count(device.peak_requested_bytes)),
        format!("  peak allocated {:>17} bytes ({exact})", units::count(device.peak_allocated_bytes)),
        format!("  peak reserved  {:>17} bytes", units::count(device.peak_reserved_bytes)),
    ];
    if device.trace_entries > 0 {
        let sum = i128::from(device.preexisting_bytes) + i128::from(device.recorded_allocated_bytes)
            - i128::from(device.recorded_freed_bytes);
        let verdict = if device.reconciled { "reconciled to the byte" } else { "NOT reconciled" };
        out.push(format!(
            "  account: {} before + {} allocated − {} freed = {}; live {}: {verdict}",
            units::count(device.preexisting_bytes),
            units::count(device.recorded_allocated_bytes),
            units::count(device.recorded_freed_bytes),
            signed(sum),
            units::count(device.requested_bytes)
        ));
    }
    out
}

/// The sum; a damaged file can make it negative.
fn signed(n: i128) -> String {
    let digits = units::count(u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX));
    if n < 0 { format!("−{digits}") } else { digits }
}

/// `train.py:42 in step`, or less if less is known.
fn place(row: &Row) -> String {
    let line = match (row.short_line(), &row.function) {
        (Some(line), Some(function)) => format!("{line} in {function}"),
        (Some(line), None) => line,
        (None, _) => "–".to_owned(),
    };
    units::safe(&line, NAME)
}

fn op(row: &Row) -> String {
    units::safe(row.op.as_deref().unwrap_or("–"), NAME)
}

fn holders(rows: &[Row], whole: u64) -> Table {
    let mut table = table([
        ("bytes", Align::Right),
        ("share", Align::Right),
        ("blocks", Align::Right),
        ("line", Align::Left),
        ("op", Align::Left),
        ("category", Align::Left),
    ]);
    for row in rows.iter().take(TOP) {
        table.push(vec![
            units::bytes(row.bytes),
            units::percent(row.bytes as f64, whole as f64),
            units::count(row.count),
            place(row),
            op(row),
            row.category.label().to_owned(),
        ]);
    }
    if let Some(rest) = rows.get(TOP..).filter(|rest| !rest.is_empty()) {
        let (bytes, count) = sum(rest.iter());
        let share = units::percent(bytes as f64, whole as f64);
        table.push(vec![units::bytes(bytes), share, units::count(count), format!("{} more", rest.len())]);
    }
    table
}

fn sum<'a>(rows: impl Iterator<Item = &'a Row>) -> (u64, u64) {
    rows.fold((0u64, 0u64), |(bytes, count), row| (bytes.saturating_add(row.bytes), count.saturating_add(row.count)))
}

/// Groups by a name, largest first.
fn grouped<'a>(rows: &'a [Row], whole: u64, heading: &str, name: impl Fn(&'a Row) -> String) -> Table {
    let mut groups: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry(name(row)).or_default().push(row);
    }
    let mut sums: Vec<_> = groups.into_iter().map(|(name, rows)| (name, sum(rows.into_iter()))).collect();
    sums.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    let mut table =
        table([("bytes", Align::Right), ("share", Align::Right), ("blocks", Align::Right), (heading, Align::Left)]);
    for (name, (bytes, count)) in sums.into_iter().take(TOP) {
        let share = units::percent(bytes as f64, whole as f64);
        table.push(vec![units::bytes(bytes), share, units::count(count), name]);
    }
    table
}

fn categories(rows: &[Row], whole: u64) -> Table {
    grouped(rows, whole, "category", |row| row.category.label().to_owned())
}

/// Only for several files: with one, the table of lines is enough.
fn files(rows: &[Row], whole: u64) -> Table {
    let table = grouped(rows, whole, "file", |row| units::safe(row.file.as_deref().unwrap_or("–"), 80));
    if table.len() > 1 { table } else { Table::default() }
}

fn churned(rows: &[Row]) -> Table {
    let mut table = table([
        ("bytes", Align::Right),
        ("times", Align::Right),
        ("each", Align::Right),
        ("line", Align::Left),
        ("op", Align::Left),
    ]);
    for row in rows.iter().take(TOP) {
        let each = units::bytes(row.size_bytes.unwrap_or(0));
        table.push(vec![units::bytes(row.bytes), units::count(row.count), each, place(row), op(row)]);
    }
    table
}

fn blocks(rows: &[Row]) -> Table {
    let mut table =
        table([("size", Align::Right), ("line", Align::Left), ("op", Align::Left), ("category", Align::Left)]);
    for row in rows.iter().take(TOP / 2) {
        let size = units::bytes(row.size_bytes.unwrap_or(row.bytes));
        table.push(vec![size, place(row), op(row), row.category.label().to_owned()]);
    }
    table
}

fn pinned(report: &MemoryReport, device: u32) -> Table {
    let mut table = table([
        ("segment", Align::Right),
        ("in use", Align::Right),
        ("stuck", Align::Right),
        ("blocks", Align::Right),
        ("largest block from", Align::Left),
    ]);
    for pin in report.pinned.iter().filter(|pin| pin.by.device == device).take(TOP) {
        let figures = [pin.segment_bytes, pin.held_bytes, pin.stuck_bytes].map(units::bytes);
        table.push(figures.into_iter().chain([units::count(pin.by.count), place(&pin.by)]).collect());
    }
    table
}

fn segments(report: &MemoryReport, device: u32) -> Table {
    let mut table =
        table([("size", Align::Right), ("count", Align::Right), ("free", Align::Right), ("pool", Align::Left)]);
    for size in report.segment_sizes.iter().filter(|size| size.device == device).take(TOP) {
        let pool = if size.small_pool { "small" } else { "large" };
        let free = units::bytes(size.free_bytes);
        table.push(vec![units::bytes(size.size_bytes), units::count(size.count), free, pool.to_owned()]);
    }
    table
}

fn ooms(report: &MemoryReport, device: u32) -> Table {
    let mut table = table([
        ("requested", Align::Right),
        ("free on device", Align::Right),
        ("reserved", Align::Right),
        ("stuck", Align::Right),
        ("largest fit", Align::Right),
        ("line", Align::Left),
    ]);
    for oom in report.ooms.iter().filter(|oom| oom.by.device == device).take(TOP) {
        let figures =
            [oom.asked_bytes, oom.device_free_bytes, oom.reserved_bytes, oom.stuck_bytes, oom.largest_fit_bytes];
        table.push(figures.map(units::bytes).into_iter().chain([place(&oom.by)]).collect());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_torch::snapshot::{Category, Options, analyse};

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpuwhy-torch/tests/data");

    fn report(name: &str) -> MemoryReport {
        let file = std::fs::File::open(format!("{FOLDER}/{name}/snapshot.pickle.gz")).unwrap();
        analyse(file, &Options { capacity_bytes: Some(80_000_000_000), ..Options::default() }, None).unwrap()
    }

    /// Compares with a file, so that changes show up in review; `GPUWHY_BLESS=1` rewrites it.
    #[test]
    fn text_is_as_written_down() {
        for name in ["oom", "vision"] {
            let path = format!("{FOLDER}/{name}/memory.txt");
            let text = lines(&report(name), usize::MAX, Style::PLAIN).join("\n") + "\n";
            if std::env::var_os("GPUWHY_BLESS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            assert!(text == std::fs::read_to_string(&path).unwrap(), "{path} differs; GPUWHY_BLESS=1 rewrites it");
        }
    }

    #[test]
    fn names_from_the_file_cannot_drive_the_terminal() {
        let mut report = report("oom");
        for row in report.live.iter_mut().chain(&mut report.peak).chain(&mut report.churn) {
            row.file = Some("/x/evil\x1b[2J.py".into());
            row.function = Some("\x1b]0;owned\x07".into());
            row.op = Some("\u{202e}op".into());
        }
        let text = lines(&report, usize::MAX, Style::PLAIN).join("\n");
        assert!(!text.contains(['\x1b', '\x07', '\u{202e}']));
    }

    #[test]
    fn what_does_not_reconcile_is_said() {
        let mut report = report("oom");
        report.devices[0].reconciled = false;
        report.live[0].category = Category::PreExisting;
        let text = lines(&report, usize::MAX, Style::PLAIN).join("\n");
        assert!(text.contains("NOT reconciled") && text.contains("pre-existing"));
    }
}
