// SPDX-License-Identifier: Apache-2.0
//! A memory snapshot's report as text: per device what memory is and adds up to, then who holds it.
//!
//! Findings and warnings are not drawn here: whoever shows the whole profile shows them once, for all its parts.

use crate::{Align, Style, Table};
use gpuwhy_model::units;
use gpuwhy_torch::snapshot::{Device, MemoryReport, Row};
use std::collections::BTreeMap;

/// Rows shown of each list.
const TOP: usize = 10;
/// Characters of names from the file.
const NAME: usize = 48;

/// The report as lines.
pub fn lines(report: &MemoryReport, style: Style) -> Vec<String> {
    let mut out = Vec::new();
    for device in &report.devices {
        out.extend(device_lines(device, style));
        let of = |rows: &[Row]| -> Vec<Row> { rows.iter().filter(|r| r.device == device.index).cloned().collect() };
        let (peak, live, churn) = (of(&report.peak), of(&report.live), of(&report.churn));
        if device.trace_entries > 0 {
            section(&mut out, style, "Live at the peak, by line", holders(&peak, device.peak_requested_bytes));
            section(&mut out, style, "Live at the peak, by category", categories(&peak, device.peak_requested_bytes));
        }
        section(&mut out, style, "Live now, by line", holders(&live, device.requested_bytes));
        section(&mut out, style, "Live now, by category", categories(&live, device.requested_bytes));
        section(&mut out, style, "Live now, by file", files(&live, device.requested_bytes));
        section(&mut out, style, "Allocated and freed again", churned(&churn));
        section(&mut out, style, "Largest blocks", blocks(&of(&report.largest_blocks)));
        section(&mut out, style, "Segments held by little", pinned(report, device.index));
        section(&mut out, style, "Segments", segments(report, device.index));
        section(&mut out, style, "Out of memory", ooms(report, device.index));
    }
    out
}

fn section(out: &mut Vec<String>, style: Style, title: &str, table: Table) {
    if !table.is_empty() {
        out.push(String::new());
        out.push(style.bold(title));
        out.extend(table.lines(style).into_iter().map(|line| format!("  {line}")));
    }
}

fn table<const N: usize>(columns: [(&str, Align); N]) -> Table {
    Table::new(columns.map(|(name, align)| (name.to_owned(), Some(align))))
}

fn device_lines(device: &Device, style: Style) -> Vec<String> {
    let mut out = vec![style.bold(&format!("Memory of cuda:{}", device.index))];
    let mut table = table([("now", Align::Left), ("", Align::Right), ("", Align::Left)]);
    let mut row = |name: &str, bytes: u64, what: &str| {
        table.push(vec![name.to_owned(), units::bytes(bytes), what.to_owned()]);
    };
    row("reserved", device.reserved_bytes, "taken from the device");
    row("allocated", device.allocated_bytes, "in blocks the program holds");
    row("requested", device.requested_bytes, "what it asked for");
    row("rounding", device.rounding_bytes, "inside blocks, beyond that");
    row("stuck", device.stuck_bytes, "free, in segments that are in use");
    row("releasable", device.releasable_bytes, "what torch.cuda.empty_cache() would return");
    row("largest fit", device.largest_fit_bytes, "largest allocation without taking more");
    if device.pending_bytes > 0 {
        row("pending", device.pending_bytes, "freed, still used by a stream");
    }
    if device.private_pool_bytes > 0 {
        let free = units::bytes(device.private_pool_free_bytes);
        row("private pools", device.private_pool_bytes, &format!("reserved for CUDA graphs, {free} of it free"));
    }
    if let (Some(headroom), Some(capacity)) = (device.headroom_bytes, device.capacity_bytes) {
        row("headroom", headroom, &format!("of {} at the highest reservation", units::bytes(capacity)));
    }
    out.extend(table.lines(style).into_iter().map(|line| format!("  {line}")));
    out.extend(peak_lines(device));
    out
}

/// The peaks and the account, in bytes: these are to be checked, not to be skimmed.
fn peak_lines(device: &Device) -> Vec<String> {
    let exact = if device.peak_allocated_exact { "exact" } else { "close: the recording does not cover it all" };
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

/// A sum that damaged figures can make negative.
fn signed(n: i128) -> String {
    let digits = units::count(u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX));
    if n < 0 { format!("−{digits}") } else { digits }
}

/// `train.py:42 in step`, or what else is known.
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

/// Only where there is more than one: with one, the lines have said it.
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
        ("largest from", Align::Left),
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
        ("asked for", Align::Right),
        ("free on device", Align::Right),
        ("reserved", Align::Right),
        ("stuck", Align::Right),
        ("largest fit", Align::Right),
        ("by", Align::Left),
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

    /// The text as a file, so that a change of it shows; `GPUWHY_BLESS=1` writes it anew.
    #[test]
    fn text_is_as_written_down() {
        for name in ["oom", "vision"] {
            let path = format!("{FOLDER}/{name}/memory.txt");
            let text = lines(&report(name), Style::PLAIN).join("\n") + "\n";
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
        let text = lines(&report, Style::PLAIN).join("\n");
        assert!(!text.contains(['\x1b', '\x07', '\u{202e}']));
    }

    #[test]
    fn what_does_not_reconcile_is_said() {
        let mut report = report("oom");
        report.devices[0].reconciled = false;
        report.live[0].category = Category::PreExisting;
        let text = lines(&report, Style::PLAIN).join("\n");
        assert!(text.contains("NOT reconciled") && text.contains("pre-existing"));
    }
}
