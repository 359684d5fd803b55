// SPDX-License-Identifier: Apache-2.0
//! Compares runs made of synthetic events.
#![allow(missing_docs, clippy::unwrap_used)]

mod described;
mod synth;

use gpuwhy_memory::Report;
use gpuwhy_memory::compare::{Change, Comparison, RunGrowth, compare};
use std::collections::BTreeSet;
use synth::Job;

const MB: u64 = 1 << 20;

/// A job of this many steps; each keeps an allocation of this line, if given.
fn job(steps: u64, keeps: Option<u64>) -> Report {
    let mut job = Job::default();
    job.alloc(100 * MB, 1);
    for _ in 0..steps {
        job.now += 10_000_000;
        let activation = job.alloc(20 * MB, 2);
        if let Some(line) = keeps {
            job.alloc(MB, line);
        }
        (0..5).for_each(|_| job.launch(4));
        job.free(activation);
        job.wait(5);
    }
    job.examine()
}

fn compared(runs: &[(&str, &Report)]) -> Comparison {
    compare(&runs.iter().map(|(name, report)| ((*name).to_owned(), *report)).collect::<Vec<_>>())
}

#[test]
fn line_slope_and_peaks_are_those_of_the_jobs() {
    let (healthy, leaky) = (job(60, None), job(90, Some(3)));
    let all = compared(&[("healthy", &healthy), ("leaky", &leaky), ("fixed", &healthy)]);
    let leak = &all.lines[0];
    assert_eq!(leak.line.as_deref(), Some("job.py:3"));
    let per_step = leak.in_runs[1].bytes_per_step.unwrap();
    assert!((per_step / MB as f64 - 1.0).abs() < 0.02, "{per_step}");
    assert_eq!(leak.in_runs[1].change, Change::New);
    assert_eq!(leak.in_runs[1].at_end, 90 * MB);
    let peaks: Vec<u64> = all.runs.iter().map(|run| run.peak_allocated).collect();
    assert_eq!(peaks, [120 * MB, 210 * MB, 120 * MB]);
    assert_eq!(all.runs.iter().map(|run| run.steps.unwrap()).collect::<Vec<_>>(), [60, 90, 60]);
    assert_eq!(all.runs[2].growth, RunGrowth::Steady);
    let said = "leaky keeps 1.05 MB/step at job.py:3 that healthy and fixed do not; peak 126 MB → 220 MB → 126 MB.";
    assert_eq!(all.verdict, said);
}

#[test]
fn every_key_of_the_json_is_documented_and_there() {
    let all = compared(&[("a", &job(60, None)), ("b", &job(60, Some(3)))]);
    let mut real = BTreeSet::new();
    described::keys_in(&serde_json::to_value(&all).unwrap(), &mut real);
    described::assert_described("gpuwhy.memory-compare/1", &real, &["schema", "run"]);
}
