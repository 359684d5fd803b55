// SPDX-License-Identifier: Apache-2.0
//! Python stacks: every planted call's stack in the run file is the one that the program itself wrote down, line by
//! line, on every interpreter at hand; so are the lines of threads that sleep, wait and work.
#![allow(clippy::unwrap_used)]

mod common;

use common::host::close;
use common::python::{Moment, PythonRun, Scripts, Told, in_words, interpreters};
use common::{can_trace, number, one_at_a_time};
use std::collections::HashSet;

/// What plants.py does, by the name each situation gives to its calls, and how many stacks it has.
fn assert_situations(run: &PythonRun, place: &str) {
    let stacks_of = |name: &str| {
        let calls = run.planted().filter(|call| call.situation == name);
        calls.map(|call| call.frames()).collect::<HashSet<_>>().len()
    };
    assert_eq!(stacks_of("callers"), 3, "{place}: two callers, and one who called both");
    assert_eq!(stacks_of("lines"), 3, "{place}: three lines, one of them twice");
    assert_eq!((stacks_of("again"), stacks_of("cells")), (30, 9), "{place}: code at the addresses of other code");
    for far in ["far_3", "far_9", "far_30"] {
        assert_eq!(stacks_of(far), 2, "{place}: two callers, however far");
    }
    assert_eq!(stacks_of("threads"), 2, "{place}");
    let depth_of = |name: &str| run.planted().find(|call| call.situation == name).unwrap().depth();
    assert!(depth_of("recursion") > 100 && depth_of("recursion") < 128, "{place}: deep, but all of it is there");
    assert!(depth_of("too_deep") > 200, "{place}: more than is walked");
    let processes: HashSet<u32> = run.planted().map(|call| call.pid).collect();
    assert_eq!(processes.len(), 4, "{place}: the main one, one forked, one spawned, one that ran exec");
}

/// A call in a thread without Python has no stack, and it is the only one of the program's.
fn assert_bare_thread(run: &PythonRun, place: &str) {
    let bare = run.told.iter().find_map(|told| if let Told::Bare { pid, op } = told { Some((pid, op)) } else { None });
    let (pid, op) = bare.unwrap();
    let without: Vec<_> = run.calls.iter().filter(|call| call.stack_id.is_none()).collect();
    let [call] = without[..] else { panic!("{place}: calls without a stack: {without:#?}") };
    assert_eq!((&call.pid, &call.op), (pid, op), "{place}");
    assert!(run.planted().all(|planted| planted.tid != call.tid), "{place}: its thread runs no Python");
}

#[test]
fn every_planted_call_has_its_true_stack_and_the_same_id_in_every_run() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for interpreter in interpreters() {
        let scripts = Scripts::new();
        let run = scripts.trace(&interpreter.program, "plants.py", &[]);
        let (calls, frames, ids) = run.compare(&interpreter.version);
        assert_situations(&run, &interpreter.version);
        assert_bare_thread(&run, &interpreter.version);
        let like = "SELECT COUNT(*) FROM events JOIN stack_traces USING (stack_id) \
                    WHERE op = 'cudaMalloc' AND frames LIKE '%plants.py%'";
        let mallocs = run.planted().filter(|call| call.op == "cudaMalloc");
        let through_file = mallocs.filter(|call| call.frames().contains("plants.py")).count();
        assert_eq!(number(&run.db, like), through_file as i64, "found by their file");
        let in_venv = format!("{} in a virtual environment", interpreter.version);
        let again = scripts.trace(&scripts.venv(&interpreter), "plants.py", &[]);
        let (calls_again, _, ids_again) = again.compare(&in_venv);
        assert_eq!((calls, &ids), (calls_again, &ids_again), "{in_venv}: the same stacks by the same ids");
        println!("{}: twice {calls} calls, {} stacks, {frames} frames equal", interpreter.version, ids.len());
    }
}

/// Times off the CPU of a thread in a moment it told of: how long, with which stack, which line of it is the program's.
fn off_in(run: &PythonRun, moment: &Moment) -> Vec<(i64, String, String)> {
    let origin = number(&run.db, "SELECT start_monotonic_ns FROM sessions");
    let sql = "SELECT duration_ns, COALESCE(frames, 'no stack'), COALESCE(top_line, '') \
               FROM off_cpu LEFT JOIN stack_traces USING (stack_id) \
               WHERE pid = ?1 AND tid = ?2 AND timestamp BETWEEN ?3 AND ?4";
    let mut statement = run.db.prepare(sql).unwrap();
    let window = (moment.pid, moment.tid, moment.begin - origin, moment.end - origin);
    let rows = statement.query_map(window, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

/// All the time that a thread was off the CPU at its line is told, and of that line.
fn assert_off_at_line(run: &PythonRun, moment: &Moment, exact: bool, place: &str) -> usize {
    let (truth, rows) = (in_words(&moment.frames), off_in(run, moment));
    let line = truth.lines().next().unwrap();
    // Seen once: a time off the CPU without a stack, probably a switch that the machine did not tell. It must stay rare.
    let bare = |row: &&(i64, String, String)| row.1 == "no stack";
    let without: i64 = rows.iter().filter(bare).map(|row| row.0).sum();
    assert!(without * 20 <= moment.end - moment.begin, "{place}: {without} ns off the CPU have no stack");
    for (_, frames, top) in rows.iter().filter(|row| !bare(row)) {
        let right = if exact { *frames == truth } else { frames.ends_with(&truth) };
        assert!(right && top == line, "{place}: off at\n{frames}\ntop line {top}, not\n{truth}");
    }
    let (off, true_off) = (rows.iter().map(|row| row.0).sum(), moment.end - moment.begin - moment.cpu_ns);
    assert!(close(off, true_off, 0.02, 5_000_000), "{place}: {off} ns off the CPU, not {true_off}");
    let (_, longest, _) = rows.iter().max_by_key(|row| row.0).unwrap();
    let library = longest.contains("queue.py:") && longest.contains("threading.py:");
    assert!(exact || library, "{place}: Python's library is part of the stack:\n{longest}");
    rows.len()
}

/// Samples of the busy thread name the function, and come at their rate.
fn assert_samples(run: &PythonRun, moment: &Moment, place: &str) -> usize {
    let origin = number(&run.db, "SELECT start_monotonic_ns FROM sessions");
    let sql = "SELECT COALESCE(frames, 'no stack') FROM events LEFT JOIN stack_traces USING (stack_id) \
               WHERE op = 'cpu_sample' AND pid = ?1 AND tid = ?2 AND timestamp BETWEEN ?3 AND ?4";
    let mut statement = run.db.prepare(sql).unwrap();
    let window = (moment.pid, moment.tid, moment.begin - origin, moment.end - origin);
    let samples: Vec<String> = statement.query_map(window, |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let ((file, function, first), callers) = (&moment.frames[0], in_words(&moment.frames[1..]));
    // From the line where the clocks are read first to where they are read last.
    let lines: Vec<String> = (*first..first + 5).map(|line| format!("{file}:{line} {function}\n{callers}")).collect();
    for frames in &samples {
        assert!(lines.contains(frames), "{place}: a sample in\n{frames}\nnot in\n{}", lines[0]);
    }
    let work = samples.iter().filter(|frames| lines[2..4].contains(frames)).count();
    assert!(work * 2 > samples.len(), "{place}: most of the time in the loop: {work} of {}", samples.len());
    let rate = samples.len() as f64 / (moment.cpu_ns as f64 / 1e9);
    assert!((30.0..=70.0).contains(&rate), "{place}: {rate} samples a second of CPU");
    samples.len()
}

/// Attached to while it waits, so that gpuwhy knows the program before anything that counts happens in it.
#[test]
fn calls_waits_and_work_of_a_process_attached_to_name_their_lines() {
    if !can_trace() {
        return;
    }
    let (_lock, scripts) = (one_at_a_time(), Scripts::new());
    for interpreter in interpreters() {
        let (run, place) = (scripts.attach(&interpreter.program, "moments.py"), &interpreter.version);
        let (calls, frames, _) = run.compare(place);
        let (mut waits, mut samples) = (0, 0);
        for told in &run.told {
            match told {
                Told::Sleep(moment) | Told::Lock(moment) => waits += assert_off_at_line(&run, moment, true, place),
                Told::Queue(moment) => waits += assert_off_at_line(&run, moment, false, place),
                Told::Busy(moment) => samples = assert_samples(&run, moment, place),
                Told::Call(_) => {}
                Told::Bare { .. } => panic!("{told:?}"),
            }
        }
        assert_eq!((calls, run.told.len() - calls), (5, 5), "{place}");
        println!("{place}: {calls} calls, {frames} frames equal; {waits} waits and {samples} samples at their lines");
    }
}

#[test]
fn without_stacks_there_are_none() {
    if !can_trace() {
        return;
    }
    let (_lock, scripts) = (one_at_a_time(), Scripts::new());
    let run = scripts.trace(&interpreters().pop().unwrap().program, "plants.py", &["--no-stack"]);
    assert!(run.planted().all(|call| run.recorded(call).is_ok()), "the calls are there");
    for table in ["events WHERE stack_id NOT NULL", "off_cpu WHERE stack_id NOT NULL", "stack_traces"] {
        assert_eq!(number(&run.db, &format!("SELECT COUNT(*) FROM {table}")), 0, "{table}");
    }
}
