// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy trace --alert`: really traces jobs with known memory behaviour on a simulated GPU. The truth is what the jobs
//! report, the simulated allocator's log and NVML's settings.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::jobs::{Waiting, report as said_report, reports};
use common::{GPUWHY, Place, Tracing, can_trace, number, one_at_a_time, sim, succeed, text, until};
use serde_json::Value;
use simgpu::log::detail::{Detail, Report};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// A user without rights.
const NOBODY: u32 = 65534;
/// A small GPU's memory, bytes.
const TOTAL: u64 = 256 << 20;

/// The `--on-alert` command: writes a line for each alert.
const COMMAND: &str = r#"printf '%s|' "$GPUWHY_ALERT_KIND" "$GPUWHY_ALERT_LEVEL" "$GPUWHY_ALERT_RULE" "$GPUWHY_ALERT_PID" \
    "$GPUWHY_ALERT_VALUE" "$GPUWHY_ALERT_THRESHOLD" "$GPUWHY_ALERT_RUN" "$GPUWHY_ALERT_TEXT" >> "$ALERTS_OUT"; echo >> "$ALERTS_OUT""#;

/// A memjob that starts after gpuwhy has attached and sampled NVML.
struct Attached {
    place: Place,
    pid: u32,
    status: ExitStatus,
    output: String,
}

impl Attached {
    fn out(place: &Place) -> PathBuf {
        place.dir.path().join("alerts.txt")
    }

    /// `used`: the memory in use that NVML always reports.
    fn new(job: &[&str], used: u64, args: &[&str]) -> Self {
        let place = Place::new();
        let mut trace = place.trace();
        trace.args(["--on-alert", COMMAND]).args(args);
        Self::of(place, trace, job, used)
    }

    fn of(place: Place, mut trace: Command, job: &[&str], used: u64) -> Self {
        let settings = place.dir.path().join("nvml.conf");
        std::fs::write(&settings, format!("count 1\nmemory_total {TOTAL}\nmemory_used {used}\n")).unwrap();
        let mut command = Command::new("python3");
        command.arg(&sim().memjob_py).args(job).arg("--hold").env("SIMGPU_MEM", format!("{}M", TOTAL >> 20));
        command.env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full");
        let mut job = Waiting::start(&mut command);
        let pid = job.pid;
        trace.env("SIMGPU_NVML", &settings).env("ALERTS_OUT", Self::out(&place)).args(["--pid", &pid.to_string()]);
        let tracing = Tracing::start(&mut trace, &place, 3);
        tracing.wait_for_process(pid);
        until("NVML is sampled", || {
            number(&place.run_file(), "SELECT COUNT(*) FROM gpu_seconds WHERE memory_used IS NOT NULL") > 1
        });
        job.go();
        let (status, _) = job.end();
        let output = text(&tracing.end());
        Self { place, pid, status, output }
    }

    /// The command's output, by alert.
    fn commands(&self) -> Vec<Vec<String>> {
        let written = std::fs::read_to_string(Self::out(&self.place)).unwrap_or_default();
        written.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    }

    fn memory(&self) -> Value {
        let mut command = Command::new(GPUWHY);
        command.args(["memory", "--json", "--db"]).arg(self.place.db());
        serde_json::from_slice(&succeed(&mut command).stdout).unwrap()
    }
}

#[test]
fn a_full_gpu_and_a_refusal_each_raise_one_alert_everywhere() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let used = 240_000_000;
    let run = Attached::new(
        &["oom", "--steps", "2000"],
        used,
        &["--alert", "none", "--alert", "memory>80%", "--alert", "oom"],
    );
    assert_eq!(run.status.code(), Some(1), "it ran out of memory: {}", run.output);
    let truth = run.place.truth();
    let refused: Vec<Report> = truth
        .calls()
        .filter(|call| call.function.contains("OutOfMemory"))
        .filter_map(|call| if let Some(Detail::Report(report)) = &call.detail { Some(*report) } else { None })
        .collect();
    let [refused] = refused.as_slice() else { panic!("one refusal: {refused:?}") };
    let memory = run.memory();
    let [full, oom] = memory["alerts"].as_array().unwrap().as_slice() else { panic!("two: {:#}", memory["alerts"]) };
    // The run file.
    assert_eq!(
        (&full["kind"], &full["level"], &full["rule"]),
        (&"memory".into(), &"warning".into(), &"memory>80%".into())
    );
    let percent = used as f64 / TOTAL as f64 * 100.0;
    assert!((full["value"].as_f64().unwrap() - percent).abs() < 1e-9, "{full:#}");
    assert_eq!((&full["gpu"], &full["threshold"], &full["cleared_ns"]), (&0.into(), &80.0.into(), &Value::Null));
    assert_eq!((&oom["kind"], &oom["level"], &oom["pid"]), (&"oom".into(), &"critical".into(), &run.pid.into()));
    assert_eq!(oom["value"].as_f64(), Some(refused.size.unsigned_abs() as f64), "{oom:#}");
    assert_eq!(oom["at_ns"], memory["ooms"][0]["at_ns"], "{memory:#}");
    assert_eq!(number(&run.place.run_file(), "SELECT COUNT(*) FROM alerts"), 2);
    // The command.
    let db = run.place.db().canonicalize().unwrap().display().to_string();
    let commands = run.commands();
    assert_eq!(commands.len(), 2, "{commands:?}");
    assert_eq!(commands[0][..4], ["memory", "warning", "memory>80%", ""]);
    assert_eq!((commands[0][4].parse::<f64>().unwrap(), commands[0][5].as_str()), (percent, "80"));
    assert_eq!(commands[1][..4], ["oom".to_owned(), "critical".into(), "oom".into(), run.pid.to_string()]);
    assert_eq!(commands[1][4..7], [refused.size.unsigned_abs().to_string(), String::new(), db]);
    assert_eq!(commands[1][7], oom["text"].as_str().unwrap());
    // The terminal, and the report.
    assert_eq!(run.output.matches("gpuwhy: ALERT (warning) memory>80%: GPU 0").count(), 1, "{}", run.output);
    assert_eq!(run.output.matches("gpuwhy: ALERT (critical) oom: out of memory").count(), 1, "{}", run.output);
    assert!(!run.output.contains('\x1b') && !run.output.contains("on-alert"), "{}", run.output);
    let mut shown = Command::new(GPUWHY);
    let shown = text(&succeed(shown.args(["memory", "--full", "--db"]).arg(run.place.db())));
    assert!(shown.contains("Alerts during the recording") && shown.contains("critical (oom)"), "{shown}");
}

#[test]
fn a_healthy_job_raises_none() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = Attached::new(&["healthy", "--steps", "200"], TOTAL / 2, &["--alert", "growth>500MB/s"]);
    assert!(run.status.success(), "{}", run.output);
    assert_eq!(number(&run.place.run_file(), "SELECT COUNT(*) FROM alerts"), 0);
    assert_eq!(run.memory()["alerts"], serde_json::json!([]));
    assert!(!run.output.contains("ALERT") && run.commands().is_empty(), "{}", run.output);
}

/// Under sudo the command runs as the caller, as the job does: it has none of gpuwhy's rights.
#[test]
fn the_command_has_no_more_rights_than_the_job() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    chown(place.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let rights = r#"{ id -u; id -g; grep -E 'CapPrm|CapInh|CapAmb|NoNewPrivs' /proc/self/status; } > "$ALERTS_OUT""#;
    let mut trace = place.trace();
    trace.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string()).args(["--on-alert", rights]);
    let run = Attached::of(place, trace, &["caught", "--steps", "40", "--onset", "20"], TOTAL / 2);
    let said = std::fs::read_to_string(Attached::out(&run.place)).unwrap_or_else(|_| panic!("{}", run.output));
    let words: Vec<&str> = said.split_whitespace().collect();
    let nobody = NOBODY.to_string();
    let none = "0000000000000000";
    let expected = [&nobody, &nobody, "CapInh:", none, "CapPrm:", none, "CapAmb:", none, "NoNewPrivs:", "1"];
    assert_eq!(words, expected, "{said}");
    assert_eq!(number(&run.place.run_file(), "SELECT COUNT(*) FROM alerts WHERE kind = 'oom'"), 1);
}

/// The alert's command ends the job. So on a machine of any speed, the alert came while the job ran, unless the job used
/// up its steps.
#[test]
fn a_leak_raises_an_alert_with_its_line_while_the_job_runs() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let enough = place.dir.path().join("enough");
    let mut trace = place.trace();
    trace.env("ENOUGH", &enough).args(["--json", "--on-alert"]);
    trace.arg(r#"[ "$GPUWHY_ALERT_KIND" != leak ] || touch "$ENOUGH""#).args(["--", "python3"]).arg(&sim().memjob_py);
    trace.args(["leak", "--onset", "10", "--steps", "6000", "--step-ms", "20", "--until"]).arg(&enough);
    let output = succeed(&mut trace);
    let truth = said_report(&String::from_utf8_lossy(&output.stderr));
    assert!(truth["steps"].as_u64().unwrap() < 6000, "the alert came in time: {}", text(&output));
    let lines = reports(&String::from_utf8_lossy(&output.stdout));
    let alerts: Vec<&Value> = lines.iter().filter(|line| line["type"] == "alert").collect();
    let [alert] = alerts.as_slice() else { panic!("one: {alerts:#?}") };
    let line = format!("memjob.py:{}", truth["lines"]["leak"]);
    assert_eq!((&alert["kind"], &alert["pid"]), (&"leak".into(), &truth["pid"]), "{alert:#}");
    assert!(alert["text"].as_str().unwrap().contains(&line), "{alert:#}");
    let stored = "SELECT COUNT(*) FROM alerts WHERE kind = 'leak' AND cleared_ns IS NULL AND value > 0";
    assert_eq!(number(&place.run_file(), stored), 1);
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM alerts"), 1);
}

#[test]
fn an_invalid_rule_is_refused_with_examples() {
    for (rule, named) in [
        ("memory>lots", "invalid limit \"lots\""),
        ("memory>85", "\"85\" has no unit"),
        ("heat>5", "unknown alert \"heat\""),
        ("growth>5MB", "invalid unit \"MB\""),
    ] {
        let output = Command::new(GPUWHY).args(["trace", "--alert", rule, "true"]).output().unwrap();
        let said = text(&output);
        assert_ne!(output.status.code(), Some(0));
        assert!(said.contains(named) && said.contains("growth>500MB/s"), "{rule}: {said}");
    }
}
