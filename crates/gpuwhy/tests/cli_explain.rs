// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy explain`, and what `trace` and `demo` say in the end: real jobs, really traced, on a simulated GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, open, refusal, sim, succeed, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Keeps the GPU's queue full for two seconds, whatever the host is kept from.
const HEALTHY: &str = "
import sys, time
sys.path.insert(0, sys.argv[1])
import simcuda
cuda = simcuda.Cuda()
cuda.set_device(0)
stream, kernel = cuda.stream(), cuda.kernel('gemm', 25000)
for step in range(100):
    cuda.launch(kernel, stream)
    time.sleep(0 if step < 20 else 0.02)
cuda.synchronize(stream)
";

/// A run made once for several tests, and what was said when it ended.
struct Recorded {
    place: Place,
    said: Output,
}

impl Recorded {
    fn demo(scenario: &str) -> Self {
        let place = Place::new();
        // Before whatever else this machine does: the job's trouble is to be its own.
        let mut command = Command::new("nice");
        command.args(["-n", "-19", GPUWHY, "--verbose", "demo", scenario, "--duration", "5s", "--db"]);
        command.arg(place.db());
        Self { said: succeed(&mut command), place }
    }

    fn stdout(&self) -> String {
        String::from_utf8(self.said.stdout.clone()).unwrap()
    }
}

/// Data workers that cannot keep up.
fn starving() -> &'static Recorded {
    static RUN: OnceLock<Recorded> = OnceLock::new();
    RUN.get_or_init(|| Recorded::demo("dataloader"))
}

/// A job the GPU is the limit of, traced with JSON.
fn busy() -> &'static Recorded {
    static RUN: OnceLock<Recorded> = OnceLock::new();
    RUN.get_or_init(|| {
        let place = Place::new();
        let mut command = place.trace();
        command.args(["--json", "--", "python3", "-c", HEALTHY]).arg(&sim().dir);
        Recorded { said: succeed(&mut command), place }
    })
}

fn explain(db: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["explain", "--db"]).arg(db).args(args);
    command
}

fn json(db: &Path, args: &[&str]) -> Value {
    let output = succeed(explain(db, args).arg("--json"));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn findings(report: &Value) -> Vec<Value> {
    report["findings"].as_array().unwrap().clone()
}

/// Those that are worth an engineer's time.
fn serious(report: &Value) -> Vec<Value> {
    let bad = |finding: &Value| ["medium", "high", "critical"].contains(&finding["severity"].as_str().unwrap());
    findings(report).into_iter().filter(bad).collect()
}

/// The lines of a function of train.py.
fn lines_of(function: &str) -> std::ops::Range<u64> {
    let source = std::fs::read_to_string(&sim().train_py).unwrap();
    let starts = |line: &str| line.starts_with("def ") || line.starts_with("class ");
    let from = source.lines().position(|line| line.starts_with(&format!("def {function}("))).unwrap();
    let length = source.lines().skip(from + 1).position(starts).unwrap();
    from as u64 + 1..(from + length) as u64 + 2
}

fn number_of(line: &Value) -> Option<u64> {
    line.as_str()?.strip_prefix("train.py:")?.parse().ok()
}

// ---- what it answers ----

#[test]
fn slow_data_workers_are_named_with_their_line() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = starving();
    let report = json(&run.place.db(), &[]);
    let found = serious(&report).into_iter().find(|finding| finding["kind"] == "input_starved");
    let found = found.unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(found["root_cause"]["kind"], "cpu_bound_worker", "{found:#}");
    let mut lines: Vec<&Value> = found["chain"].as_array().unwrap().iter().map(|link| &link["line"]).collect();
    lines.push(&found["root_cause"]["line"]);
    let decode = lines_of("decode_item");
    assert!(lines.into_iter().filter_map(number_of).any(|line| decode.contains(&line)), "{decode:?}: {found:#}");
    assert_eq!(found["title"], "Data loading is too slow", "{found:#}");
    assert!(found["root_cause"]["detail"].as_str().unwrap().contains("pt_data_worker"), "{found:#}");
    assert!(report["verdict"].as_str().unwrap().contains("the data worker"), "{report:#}");
    let [least, most] = ["gpu_idle_min_ns", "gpu_idle_max_ns"].map(|key| report[key].as_u64().unwrap());
    assert!(0 < least && least <= most && most <= report["wall_ns"].as_u64().unwrap());
    assert!(report["gpus"][0]["rate_percent"].is_number(), "the demo's GPU has an NVML: {report:#}");
}

#[test]
fn the_demo_ends_with_the_explanation() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = starving();
    let (stdout, stderr) = (run.stdout(), String::from_utf8_lossy(&run.said.stderr));
    assert!(stderr.lines().any(|line| line.starts_with("cudaLaunchKernel ")), "{stderr}");
    let order =
        [" traced\n", "The GPU was idle", "nvidia-smi shows", "HIGH ", "Data loading", "Fix: ", "Healthy: ", "More: "];
    let mut rest = stdout.as_str();
    for part in order.into_iter().chain(["gpuwhy explain ", "gpuwhy query --db"]) {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} is missing or too early in {stdout}")).1;
    }
    let full = text(&succeed(&mut explain(&run.place.db(), &["--full"])));
    let mut rest = full.as_str();
    for part in
        ["[HIGH]", "input_starved", "chain", "fix", "Healthy\n", "Machine\n", "GPUs\n", "Threads\n", "(launches)"]
    {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} is missing or too early in {full}")).1;
    }
    assert!(!stdout.contains('\x1b'), "no terminal, no colours");
    let again = String::from_utf8(succeed(&mut explain(&run.place.db(), &[])).stdout).unwrap();
    assert!(stdout.contains(&again), "explain says the same:\n{again}");
}

#[test]
fn busy_processes_on_every_core_are_named() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = Recorded::demo("cpu-contention");
    let report = json(&run.place.db(), &[]);
    let found = serious(&report).into_iter().find(|finding| finding["kind"] == "cpu_contention");
    let found = found.unwrap_or_else(|| panic!("{report:#}"));
    let who = format!("{found}{}", report["threads"][0]["held_by"]);
    assert!(who.contains("cpu_hog"), "{found:#}");
    let name = found["root_cause"]["name"].as_str().unwrap();
    assert_eq!(name, "cpu_hog", "the job's own processes are not to blame: {found:#}");
    let said = format!("{}{}", report["verdict"], report["findings"]);
    assert!(!said.contains("the job's own cpu_hog") && !said.contains("num_workers"), "{said}");
}

#[test]
fn a_shell_that_takes_one_cpu_is_named() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut shell = Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
    // Without a higher priority for the job, as `Recorded::demo` has it: the shell is to take its share.
    succeed(Command::new(GPUWHY).args(["demo", "dataloader", "--duration", "5s", "--db"]).arg(place.db()));
    shell.kill().unwrap();
    shell.wait().unwrap();
    let report = json(&place.db(), &[]);
    let pid = shell.id();
    let named = |text: &str| text.contains(&format!("sh {pid}"));
    let causes = serious(&report);
    let said = format!("{causes:?}");
    assert!(causes.iter().any(|finding| named(&finding.to_string())), "{said}");
    assert!(said.contains("ready without a CPU") && !said.contains("busy on the CPU"), "{said}");
    // The kernel's own sums: nobody is said to run for longer than the threads of that process did.
    let db = open(&place.db());
    for link in causes.iter().flat_map(|finding| finding["chain"].as_array().unwrap()) {
        if link["state"] == "running" && link["who"].as_str().unwrap().starts_with("pt_data_worker") {
            let ran = number(
                &db,
                "SELECT SUM(on_cpu_ns) FROM thread_time WHERE pid IN (SELECT pid FROM thread_time \
                 WHERE tid = pid AND name LIKE 'pt_data_worker%')",
            );
            assert!(link["ns"].as_i64().unwrap() <= ran, "{ran}: {link:#}");
        }
    }
}

#[test]
fn a_busy_gpu_raises_nothing() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let report = json(&busy().place.db(), &[]);
    assert_eq!(serious(&report), [] as [Value; 0], "{report:#}");
    assert!(!report["healthy"].as_array().unwrap().is_empty());
}

// ---- how it is asked ----

#[test]
fn fail_on_tells_by_the_exit_code() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for (run, severity, code) in
        [(starving(), "low", 3), (starving(), "medium", 3), (starving(), "critical", 0), (busy(), "medium", 0)]
    {
        for format in [&["--fail-on", severity][..], &["--fail-on", severity, "--json"]] {
            let output = explain(&run.place.db(), format).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{format:?}: {}", text(&output));
            assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{format:?}: {}", text(&output));
        }
    }
    let output = explain(&starving().place.db(), &["--fail-on", "some"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn parts_of_a_run_are_explained_and_leave_no_findings() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let db = starving().place.db();
    let kept = || number(&open(&db), "SELECT COUNT(*) FROM causal_chains");
    let before = kept();
    let whole = json(&db, &[])["wall_ns"].as_u64().unwrap();
    let part = json(&db, &["--since", "2s"]);
    assert_eq!((part["wall_ns"].as_u64(), part["to_ns"].as_u64()), (Some(2_000_000_000), Some(whole)));
    let part = json(&db, &["--from", "1s", "--to", "3500ms"]);
    assert_eq!((part["from_ns"].as_u64(), part["to_ns"].as_u64()), (Some(1_000_000_000), Some(3_500_000_000)));
    assert!(part["threads"][0]["wall_ns"].as_u64() <= part["wall_ns"].as_u64());
    // A worker's job is the whole job.
    let all = json(&db, &[]);
    let processes = all["processes"].as_array().unwrap();
    assert!(processes.len() > 1, "{all:#}");
    let part = json(&db, &["--pid", &processes[processes.len() - 1]["pid"].to_string()]);
    assert_eq!((&part["threads"], &part["findings"]), (&all["threads"], &all["findings"]));
    assert_eq!(kept(), before, "only a whole run's findings are stored");
}

#[test]
fn what_cannot_be_answered_is_one_sentence() {
    let place = Place::new();
    let said = refusal(&mut explain(&place.db(), &[]), 1);
    assert!(said.contains("no run file") && said.contains("gpuwhy trace"), "{said}");
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let db = busy().place.db();
    let said = refusal(&mut explain(&db, &["--pid", "4294967295"]), 1);
    assert!(said.contains("4294967295") && said.contains("processes"), "{said}");
    let said = refusal(&mut explain(&db, &["--from", "2h"]), 1);
    assert!(said.contains("invalid range") && said.contains("end of the run ("), "{said}");
    assert!(refusal(&mut explain(&db, &["--from", "2s", "--to", "1s"]), 1).contains("invalid range"));
}

#[test]
fn each_processs_calls_are_told() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let db = starving().place.db();
    let report = json(&db, &["--per-process"]);
    let process = &report["per_process"][0];
    let ops = process["ops"].as_array().unwrap();
    let of = |name: &str| ops.iter().find(|op| op["op"] == name).unwrap_or_else(|| panic!("{process:#}"));
    let pid = process["pid"].as_i64().unwrap();
    let count = |sql: &str| number(&open(&db), &format!("{sql} AND pid = {pid}"));
    let launches = count("SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'");
    assert_eq!(of("cudaLaunchKernel")["calls"].as_i64(), Some(launches));
    let allocated = count("SELECT SUM(bytes) FROM seconds WHERE op IN ('cudaMalloc', 'cudaMallocHost')");
    assert_eq!(process["allocated_bytes"].as_i64(), Some(allocated));
    let [allocated, freed, balance] =
        ["allocated_bytes", "freed_bytes", "balance_bytes"].map(|key| process[key].as_i64().unwrap());
    assert_eq!(allocated - freed, balance);
    assert!(json(&db, &[]).get("per_process").is_none());
    let shown = text(&succeed(&mut explain(&db, &["--per-process"])));
    let table = shown.split_once(&format!(" {pid}: ")).unwrap().1;
    assert!(table.contains("\n  op ") && table.contains("\n  cudaLaunchKernel "), "{shown}");
}

/// What it prints on a terminal of so many columns.
fn on_a_terminal(db: &Path, columns: u32, environment: &str) -> String {
    let line = format!("stty rows 40 cols {columns}; {environment} exec {GPUWHY} explain --db {}", db.display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    String::from_utf8(succeed(&mut command).stdout).unwrap()
}

#[test]
fn on_a_terminal_it_has_colours_and_fits() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let db = starving().place.db();
    let shown = on_a_terminal(&db, 60, "");
    assert!(shown.contains("\x1b[31mHIGH\x1b[0m"), "{shown:?}");
    let plain = on_a_terminal(&db, 60, "NO_COLOR=1");
    assert!(plain.contains("HIGH ") && !plain.contains('\x1b'), "{plain:?}");
    assert!(!plain.contains("explaining"), "it took no second");
    let after_header = plain.lines().skip_while(|line| !line.starts_with("The GPU"));
    let verdict: Vec<&str> = after_header.take_while(|line| !line.trim().is_empty()).collect();
    assert!(verdict.len() > 1 && verdict.iter().all(|line| line.trim_end().chars().count() <= 60), "{verdict:?}");
}

// ---- the JSON is what its description says ----

/// Keys of an object and of everything in it; of a map by names it does not know, only that it is there.
fn keys_in(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                keys.insert(key.clone());
                if !["ledger", "cuda"].contains(&key.as_str()) {
                    keys_in(inner, keys);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| keys_in(inner, keys)),
        _ => {}
    }
}

/// What stands in backquotes in the tables of the description, values of keys (in the second column, after a colon
/// or in brackets) left out by being no keys of anything.
fn documented() -> (BTreeSet<String>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explain-json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let first_column = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let words = first_column.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    (words.map(|word| word.trim_end_matches("[]").to_owned()).collect(), text)
}

#[test]
fn every_key_of_the_json_is_documented_and_there() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let report = json(&starving().place.db(), &["--per-process"]);
    assert_eq!(report["schema"], "gpuwhy.explain/1");
    let mut real = BTreeSet::new();
    keys_in(&report, &mut real);
    let jobs = Place::new();
    common::made::two_jobs(&jobs.db(), 1);
    keys_in(&json(&jobs.db(), &[]), &mut real);
    let (documented, text) = documented();
    let missing: Vec<&String> = documented.iter().filter(|key| !real.contains(*key)).collect();
    assert!(missing.is_empty(), "described but not there: {missing:?}");
    let silent = |key: &&String| !text.contains(&format!("`{key}`")) && !text.contains(&format!("`{key}[]`"));
    let undocumented: Vec<&String> = real.iter().filter(silent).collect();
    assert!(undocumented.is_empty(), "there but not described: {undocumented:?}");
    let states = report["threads"].as_array().unwrap().iter().flat_map(|thread| thread["ledger"].as_object().unwrap());
    for (state, _) in states {
        assert!(text.contains(&format!("`{state}`")), "{state}");
    }
    for finding in findings(&report) {
        assert!(text.contains(&format!("`{}`", finding["kind"].as_str().unwrap())), "{finding:#}");
    }
}

// ---- what is kept in the run ----

/// Nanoseconds by state, of each thread.
type Ledgers = BTreeMap<(i64, i64), BTreeMap<String, i64>>;

fn stored_ledger(db: &rusqlite::Connection) -> Ledgers {
    let mut ledgers = Ledgers::new();
    let mut statement = db.prepare("SELECT pid, tid, state, SUM(ns) FROM ledger GROUP BY pid, tid, state").unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let thread = ledgers.entry((row.get(0).unwrap(), row.get(1).unwrap())).or_default();
        thread.insert(row.get(2).unwrap(), row.get(3).unwrap());
    }
    ledgers
}

#[test]
fn the_ledger_adds_up_and_is_the_explanations() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for run in [starving(), busy()] {
        let db = open(&run.place.db());
        let stored = stored_ledger(&db);
        let told: Ledgers = json(&run.place.db(), &[])["threads"]
            .as_array()
            .unwrap()
            .iter()
            .map(|thread| {
                let ledger = thread["ledger"].as_object().unwrap().iter();
                let key = (thread["pid"].as_i64().unwrap(), thread["tid"].as_i64().unwrap());
                (key, ledger.map(|(state, ns)| (state.clone(), ns.as_i64().unwrap())).collect())
            })
            .collect();
        assert!(!stored.is_empty());
        assert_eq!(stored, told, "every thread ended before the run did");
        for ((pid, tid), states) in &stored {
            let sql = "SELECT lifetime_ns FROM thread_time";
            let watched = number(&db, &format!("{sql} WHERE pid = {pid} AND tid = {tid}"));
            let total: i64 = states.values().sum();
            assert!((total - watched).abs() * 1000 <= watched, "{pid}/{tid}: {total} of {watched}, {states:?}");
        }
        let sql = "SELECT COUNT(*) FROM ledger WHERE state = 'running_cuda' AND op = 'cudaStreamSync' AND ns > 0";
        assert!(number(&db, sql) > 0, "time inside CUDA is told by op");
    }
}

#[test]
fn findings_are_stored_once() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let db = starving().place.db();
    let report = json(&db, &[]);
    let kept = || number(&open(&db), "SELECT COUNT(*) FROM causal_chains");
    assert_eq!(kept(), findings(&report).len() as i64, "the demo stored them");
    succeed(&mut explain(&db, &[]));
    assert_eq!(kept(), findings(&report).len() as i64);
    let sql = "SELECT finding FROM causal_chains WHERE kind = 'input_starved' LIMIT 1";
    let stored: String = open(&db).query_row(sql, [], |row| row.get(0)).unwrap();
    let stored: Value = serde_json::from_str(&stored).unwrap();
    assert!(findings(&report).contains(&stored), "{stored:#}");
}

#[test]
fn a_file_that_may_not_be_written_is_explained_all_the_same() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::copy(starving().place.db(), place.db()).unwrap();
    let db = rusqlite::Connection::open(place.db()).unwrap();
    db.execute_batch("DELETE FROM causal_chain_").unwrap();
    drop(db);
    let gpuwhy = place.dir.path().join("gpuwhy");
    std::fs::copy(GPUWHY, &gpuwhy).unwrap();
    std::fs::set_permissions(place.db(), mode(0o444)).unwrap();
    std::fs::set_permissions(place.dir.path(), mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(gpuwhy);
    let output = succeed(command.args(["explain", "--db"]).arg(place.db()));
    assert!(text(&output).contains("Data loading is too slow") && output.stderr.is_empty(), "{}", text(&output));
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM causal_chains"), 0);
}

// ---- how a trace ends ----

#[test]
fn a_traces_summary_has_the_verdict_and_the_findings() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = busy();
    let stdout = run.stdout();
    let summary: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let report = json(&run.place.db(), &[]);
    assert_eq!(summary["type"], "summary");
    assert_eq!((&summary["verdict"], &summary["findings"]), (&report["verdict"], &report["findings"]));
    let kept = number(&run.place.run_file(), "SELECT COUNT(*) FROM causal_chains");
    assert_eq!(kept, findings(&report).len() as i64);
}

#[test]
fn without_the_host_it_says_what_it_cannot_know() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut command = place.trace();
    command.args(["--no-host", "--quiet", "--"]).arg(&sim().simjob).arg("--cudart").arg(&sim().cudart);
    let said = String::from_utf8(succeed(command.args(["--calls", "2000"])).stderr).unwrap();
    let (answer, accounting) = said.split_once("gpuwhy: recorded ").unwrap_or_else(|| panic!("{said}"));
    assert!(answer.contains("The GPU was idle at least ") && answer.contains("More: gpuwhy explain --full "), "{said}");
    assert!(accounting.contains(&place.db().display().to_string()), "{said}");
    let shown = text(&succeed(&mut explain(&place.db(), &[])));
    let (_, unknown) = shown.split_once("What cannot be known").unwrap_or_else(|| panic!("{shown}"));
    assert!(unknown.contains("the scheduler was not recorded"), "{shown}");
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM ledger"), 0, "no scheduler, no ledger");
}

#[test]
fn a_job_without_gpu_work_keeps_its_exit_code_and_gets_no_verdict() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let output = place.trace().args(["--quiet", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert!(!text(&output).contains("explain"), "{}", text(&output));
    let report = json(&place.db(), &[]);
    assert!(report["gpu_idle_min_ns"].is_null() && report["verdict"].as_str().unwrap().contains("No GPU work"));
    assert_eq!(explain(&place.db(), &["--fail-on", "low"]).output().unwrap().status.code(), Some(0));
}

#[test]
fn a_run_cut_short_is_explained_with_a_note_and_stays_as_it_is() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "60000", "--rate", "30000"]));
    let pid = job.parent().to_string();
    let tracing = Tracing::start(place.trace().args(["--pid", &pid]), &place, 2);
    job.go();
    let launches = || number(&open(&place.db()), "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'");
    common::until("the job is on its way", || launches() > 8000);
    tracing.signal("KILL");
    assert_eq!(tracing.end().status.code(), None);
    assert!(job.end().0.success());
    let report = json(&place.db(), &[]);
    let notes = report["loss"]["notes"].to_string();
    assert!(notes.contains("the run has no end"), "{notes}");
    assert!(report["gpu_idle_min_ns"].is_number(), "{report:#}");
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM causal_chains"), 0, "it may still be written");
}
