// SPDX-License-Identifier: Apache-2.0
//! Checks the account of traces against figures known from elsewhere, and shows how much the rules leave
//! unclassified. For trace collections that are not part of this repository:
//!
//! ```text
//! cargo run --release --example profile_check -- FILE[=BUSY_MS/SPAN_MS[/STEPS]]...
//! ```
//!
//! Prints a line for each file; the exit status says whether all figures agree to 0.1 ms and all parts add up.

use gpuwhy_torch::trace::{Options, TraceReport, analyse};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut good = true;
    for argument in std::env::args().skip(1) {
        let (path, expected) = argument.split_once('=').unwrap_or((&argument, ""));
        let start = Instant::now();
        let report = std::fs::File::open(path)
            .map_err(|e| e.to_string())
            .and_then(|file| analyse(file, &Options::default(), |_| ()).map_err(|e| e.to_string()));
        match report {
            Ok(report) => good &= check(path, expected, &report, start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("{path}: {error}");
                good &= expected.is_empty();
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(path: &str, expected: &str, report: &TraceReport, seconds: f64) -> bool {
    let all: u64 = report.categories.iter().map(|c| c.total_ns).sum();
    let none: u64 = report.categories.iter().filter(|c| c.name == "unclassified").map(|c| c.total_ns).sum();
    println!(
        "{path}: {} steps ({}), {:.2} % unclassified, {:.0} MB of JSON in {seconds:.2} s",
        report.steps.count,
        report.steps.method,
        none as f64 * 100.0 / all.max(1) as f64,
        report.json_bytes as f64 / 1e6
    );
    let mut good = true;
    for device in &report.devices {
        let a = &device.account;
        let idle: u64 = report.idle_causes.iter().filter(|c| c.device == device.index).map(|c| c.total_ns).sum();
        good &= a.adds_up() && idle == a.idle_ns;
        let adds = if good { "adds up" } else { "DOES NOT ADD UP" };
        println!("    GPU {}: busy {:.1} ms of {:.1} ms, {adds}", device.index, ms(a.busy_ns), ms(a.span_ns));
    }
    let numbers: Vec<f64> = expected.split('/').filter_map(|n| n.parse().ok()).collect();
    if let (Some(device), [busy, span, steps @ ..]) = (report.devices.first(), numbers.as_slice()) {
        let near = |ns: u64, want: f64| (ms(ns) - want).abs() <= 0.1;
        let agree = near(device.account.busy_ns, *busy)
            && near(device.account.span_ns, *span)
            && steps.first().is_none_or(|want| report.steps.count as f64 == *want);
        println!("    expected {expected}: {}", if agree { "agrees" } else { "DIFFERS" });
        good &= agree;
    }
    good
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
