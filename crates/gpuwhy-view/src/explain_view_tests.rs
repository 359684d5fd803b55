// SPDX-License-Identifier: Apache-2.0
use super::*;
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause};
use gpuwhy_why::report::{HeldBy, LossReport, ProcessReport};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

fn link(who: &str, what: &str, line: &str, ns: u64, state: &str) -> Link {
    let [layer, who, what, state] = ["thread", who, what, state].map(str::to_owned);
    Link { layer, who, what, line: Some(line.to_owned()), state, ns, evidence: None }
}

fn starved() -> Finding {
    Finding {
        kind: "input_starved".into(),
        severity: Severity::High,
        title: "Data loading is too slow".into(),
        lost_ns: 37_200_000_000,
        is_upper_bound: false,
        lost_bytes: 0,
        share: 0.31,
        pid: Some(4821),
        tid: Some(4821),
        chain: vec![
            link("python3 4821", "waits for the next batch", "train.py:138", 37_200_000_000, "blocked, pipe"),
            link("pt_data_worker:0–3", "decode on the CPU", "data.py:51", 34_100_000_000, "running"),
        ],
        root_cause: RootCause { detail: "4 data workers decode".into(), ..Default::default() },
        effect: vec!["launches 1,200/s → 640/s".into()],
        fixes: vec![Fix { text: "num_workers 4 → 6 ".repeat(8), saves_ns: 31 * SECOND, saves_bytes: 0 }],
        confidence: Confidence::High,
        confidence_reason: "measured".into(),
    }
}

fn report() -> Report {
    let verdict = "The GPU was idle at least 48 % of the time: 31 % because the data workers cannot keep up. \
        nvidia-smi shows 97 %.";
    let ledger = [("blocked_pipe", 37_200), ("running_cuda", 60_000), ("ready", 22_000), ("blocked_disk", 100)];
    let thread = ThreadReport {
        pid: 4821,
        tid: 4830,
        name: "python3".into(),
        launches: 7,
        wall_ns: 120 * SECOND,
        ledger: ledger.into_iter().map(|(state, ms)| (state, ms * 1_000_000)).collect(),
        cuda: BTreeMap::from([("cudaStreamSync".to_owned(), 9), ("cudaMalloc".to_owned(), 3)]),
        held_by: vec![HeldBy { name: "cpu_hog".into(), pid: 99, ns: 20 * SECOND }],
    };
    Report {
        verdict: verdict.into(),
        healthy: vec!["disk and network: no time lost".into(), "locks: no time lost".into()],
        context: vec!["8 cores, 2.1 idle on average".into()],
        wall_ns: 120 * SECOND,
        gpus: vec![GpuReport {
            idle_min_ns: 57 * SECOND,
            idle_max_ns: 60 * SECOND,
            rate_percent: Some(97.2),
            launches: 1234,
            basis: "NVML's samples".into(),
            ..Default::default()
        }],
        loss: LossReport { events: 3, notes: vec!["3 events were lost".into()], too_much: false },
        threads: vec![thread.clone(), thread.clone(), thread.clone(), thread.clone(), thread],
        findings: vec![starved()],
        ..Default::default()
    }
}

fn shown(report: &Report, detail: Detail, width: usize, style: Style) -> Vec<String> {
    ExplainView { report, per_process: &[], run: "run.db", detail }.lines(width, style)
}

fn full(report: &Report, width: usize, style: Style) -> Vec<String> {
    shown(report, Detail::Full, width, style)
}

#[test]
fn the_first_screen_is_the_answer() {
    let mut report = report();
    report.processes = vec![ProcessReport { pid: 4821, name: "python3 train.py".into(), launches: 7, command: None }];
    report.findings.push(Finding { severity: Severity::Low, ..starved() });
    let expected = "\
python3 train.py (pid 4821) · 120 s traced

The GPU was idle at least 48 % of the time: 31 % because the data workers cannot keep up. nvidia-smi
shows 97 %.

HIGH      Data loading is too slow                                                     37.2 s · 31 %
          python3 4821 waits for the next batch (train.py:138)
          4 data workers decode
          Fix: num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4
          → 6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6  (saves up to 31.0 s)

What cannot be known
  3 events were lost

Healthy: disk and network, locks.
More: gpuwhy explain --full run.db (1 more finding, checks, machine, GPUs, threads)";
    assert_eq!(shown(&report, Detail::Short, 100, Style::PLAIN).join("\n"), expected);
    (report.from_ns, report.to_ns) = (SECOND, 121 * SECOND);
    report.findings[0].confidence = Confidence::Low;
    report.findings[0].confidence_reason = "the scheduler was not recorded".into();
    let text = shown(&report, Detail::Short, 100, Style::PLAIN).join("\n");
    assert!(text.contains("· 120 s traced, from 1.00 s to 121 s\n"), "{text}");
    assert!(text.contains("\n          Not certain: the scheduler was not recorded\n"), "{text}");
}

#[test]
fn everything_stands_in_its_order_and_its_column() {
    let lines = full(&report(), 100, Style::PLAIN);
    let text = lines.join("\n");
    let expected = "\
The GPU was idle at least 48 % of the time: 31 % because the data workers cannot keep up. nvidia-smi
shows 97 %.

[HIGH] Data loading is too slow (37.2 s · 31 %)                                        input_starved
  chain      python3 4821 waits for the next batch, train.py:138              37.2 s   blocked, pipe
             ← pt_data_worker:0–3 decode on the CPU, data.py:51               34.1 s   running
  cause      4 data workers decode
  effect     launches 1,200/s → 640/s
  fix        num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4 →
             6 num_workers 4 → 6 num_workers 4 → 6 num_workers 4 → 6  (saves up to 31.0 s)

Healthy
  disk and network: no time lost
  locks: no time lost

Machine
  8 cores, 2.1 idle on average

GPUs
GPU  idle at least  idle at most  nvidia-smi  launches  basis
0           57.0 s        60.0 s        97 %     1,234  NVML's samples

Threads
thread                        state              ms  mostly
python3 4821/4830 (launches)  running, CUDA  60,000  cudaStreamSync
                              blocked, pipe  37,200
                              ready, no CPU  22,000  cpu_hog 99 had the CPU for 20.0 s
";
    assert!(text.contains("\n… 1 more thread (view `ledger`)"), "{text}");
    assert!(text.ends_with("\n\nWhat cannot be known\n  3 events were lost"), "{text}");
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_narrow_terminal_breaks_prose_and_titles() {
    let lines = full(&report(), 50, Style::PLAIN);
    assert_eq!(lines[0], "The GPU was idle at least 48 % of the time: 31 %");
    let title = lines.iter().position(|line| line.starts_with("[HIGH]")).unwrap();
    assert_eq!(lines[title], "[HIGH] Data loading is too slow");
    assert_eq!(lines[title + 1], format!("       (37.2 s · 31 %){:15}input_starved", ""));
    assert!(lines.iter().any(|line| line == "  fix        num_workers 4 → 6 num_workers 4 → 6"), "{lines:#?}");
    let short = shown(&report(), Detail::Short, 50, Style::PLAIN);
    assert!(short.contains(&format!("HIGH      Data loading is too slow{:3}37.2 s · 31 %", "")), "{short:#?}");
    assert!(short.iter().all(|line| line.width() <= 50), "{short:#?}");
}

#[test]
fn colours_go_by_severity_and_only_where_wanted() {
    for detail in [Detail::Short, Detail::Full] {
        assert!(!shown(&report(), detail, 100, Style::PLAIN).concat().contains('\x1b'));
    }
    let text = full(&report(), 100, Style::COLOUR).join("\n");
    assert!(text.contains("\x1b[31m[HIGH]\x1b[0m Data loading"), "{text:?}");
    let text = shown(&report(), Detail::Short, 100, Style::COLOUR).join("\n");
    assert!(text.contains("\x1b[31mHIGH\x1b[0m      Data loading"), "{text:?}");
    let medium = Report { findings: vec![Finding { severity: Severity::Medium, ..starved() }], ..report() };
    let text = full(&medium, 100, Style::COLOUR).join("\n");
    assert!(text.contains("\x1b[33m[MEDIUM]\x1b[0m Data"), "{text:?}");
}

#[test]
fn names_from_the_traced_world_are_defused() {
    let evil = "evil\x1b]0;owned\x07".to_owned();
    let mut report = report();
    report.verdict.clone_from(&evil);
    report.healthy.push(evil.clone());
    report.context.push(evil.clone());
    report.loss.notes.push(evil.clone());
    report.gpus[0].basis.clone_from(&evil);
    report.threads[0].name.clone_from(&evil);
    report.threads[0].held_by[0].name.clone_from(&evil);
    report.threads[0].cuda.insert(evil.clone(), 100);
    report.findings[0].title.clone_from(&evil);
    report.findings[0].kind.clone_from(&evil);
    report.processes = vec![ProcessReport { name: evil, ..Default::default() }];
    for detail in [Detail::Short, Detail::Full] {
        assert!(!shown(&report, detail, 100, Style::PLAIN).concat().contains('\x1b'));
    }
}

#[test]
fn an_empty_report_is_its_verdict() {
    let report = Report { verdict: "Nothing was traced in this time range.".into(), ..Default::default() };
    assert_eq!(full(&report, 80, Style::PLAIN), ["Nothing was traced in this time range."]);
}

#[test]
fn what_is_critical_of_no_shown_job_comes_before_the_jobs_and_all_jobs_are_counted() {
    let job = |pid: u32, summary: &str, severity| JobReport {
        pid,
        name: "train".into(),
        severity: Some(severity),
        summary: summary.into(),
        ..JobReport::default()
    };
    let critical =
        |pid: Option<u32>, title: &str| Finding { pid, ..Finding::new("oom", Severity::Critical, title.into()) };
    let report = Report {
        jobs: vec![job(7, "leaks", Severity::Critical), job(8, "slow", Severity::High)],
        findings: vec![critical(Some(7), "leaks"), critical(Some(9), "out of memory at 1 s")],
        more_jobs: 18,
        ..Report::default()
    };
    let lines = shown(&report, Detail::Short, 100, Style::PLAIN);
    assert_eq!(
        lines[..5],
        [
            "20 jobs recorded, 2 shown, worst first",
            "",
            "[CRITICAL] out of memory at 1 s (process 9)",
            "[CRITICAL] train 7  leaks",
            "[HIGH]     train 8  slow",
        ]
    );
}
