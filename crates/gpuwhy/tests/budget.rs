// SPDX-License-Identifier: Apache-2.0
//! The budget: under overload the job gets its time back, what is not seen any more is said, and what is counted is right.
//!
//! No times are asserted; how fast the job was before and after is a ratio within one run.
#![allow(clippy::unwrap_used)]

mod common;

use common::{HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, sim, succeed, text, until};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Rounds that `simjob windows` did in each of its windows, and what it says in the end.
struct Windows {
    rounds: Vec<u64>,
    end: Value,
}

fn windows(output: &str) -> Windows {
    let rounds =
        output.lines().filter_map(|line| line.strip_prefix("window ")?.split(' ').nth(1)?.parse().ok()).collect();
    let end = output.lines().rev().find(|line| line.starts_with('{')).unwrap();
    Windows { rounds, end: serde_json::from_str(end).unwrap() }
}

impl Windows {
    /// The best of some windows: whatever else the machine does only makes them worse.
    fn best(&self, from: usize) -> u64 {
        *self.rounds[from..].iter().max().unwrap()
    }
}

/// Tries to see a job undisturbed by anything but gpuwhy.
const PAIRS: usize = 8;

/// A loop of nothing but launches; traced if there are flags.
fn overload(place: &Place, flags: Option<&[&str]>) -> (Windows, String) {
    let job = ["windows", "--window-ms", "100", "--for-ms", "3000"];
    let mut command = match flags {
        Some(flags) => {
            let mut command = place.trace();
            command.args(flags).arg("--").arg(&sim().simjob);
            command
        }
        None => Command::new(&sim().simjob),
    };
    let output = succeed(command.args(job).arg("--cudart").arg(&sim().cudart).env("SIMGPU_LOG_LEVEL", "counts"));
    (windows(&String::from_utf8_lossy(&output.stdout)), text(&output))
}

#[test]
fn an_overloaded_job_gets_its_time_back_and_is_told_of() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let (followed, _) = overload(&place, Some(&["--budget", "none"]));
    // How fast a loop of nothing but calls runs changes with what else the machine does, from one second to the next: a few pairs of
    // runs, one of which must be undisturbed.
    let mut pairs = Vec::new();
    let (place, kept, said) = loop {
        let place = Place::new();
        let untraced = overload(&place, None).0;
        let (kept, said) = overload(&place, Some(&["--budget", "2%"]));
        // A second is more than the governor needs.
        let (before, settled) = (untraced.best(0) as f64, kept.best(10) as f64);
        assert!((followed.best(0) as f64) < before / 4.0, "following every launch costs most of such a loop's time");
        pairs.push((settled, before));
        if settled > before * 0.9 {
            break (place, kept, said);
        }
        assert!(pairs.len() < PAIRS, "rounds with the budget and untraced: {pairs:?}");
    };
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM governor WHERE action = 'detach' AND op = 'cuLaunchKernel'"), 1);
    assert!(said.contains("paused at times to stay within --budget: cuLaunchKernel"), "{said}");
    assert!(said.contains("overhead about "), "{said}");
    let stored = number(&db, "SELECT SUM(weight) FROM events WHERE op = 'cudaLaunchKernel'");
    assert!(stored > 0 && stored < kept.end["calls"].as_i64().unwrap(), "{stored}");
    assert_eq!(number(&db, "SELECT events_lost FROM sessions"), 0, "what was let go is not lost but unknown");
}

#[test]
fn a_job_within_the_budget_is_followed_whole() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    command.args(["--budget", "2%", "--quiet", "--"]).arg(&sim().simjob);
    succeed(command.args(["--calls", "3000", "--rate", "1000", "--mix", "mixed"]).arg("--cudart").arg(&sim().cudart));
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM governor"), 0);
    assert_eq!(common::compare::recorded_sums(&db, &place.truth()), common::compare::true_sums(&place.truth()));
}

/// Between two waits, launches in a row: about what can be counted instead of followed and costs too much to follow.
#[test]
fn calls_that_are_only_counted_are_all_counted() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    // What a launch costs is a microsecond or two: followed, 40,000 a second are over what is borne at first; counted, they
    // are not.
    command.args(["--budget", "2%", "--no-host", "--"]).arg(&sim().simjob);
    let job = ["windows", "--window-ms", "100", "--for-ms", "4000", "--rate", "40000"];
    let output = succeed(command.args(job).arg("--cudart").arg(&sim().cudart));
    // Of what the job called, the making of its stream and its event is not followed.
    let made = common::compare::true_sums(&place.truth())["cudaLaunchKernel"].calls as i64;
    let db = place.run_file();
    let detached = number(&db, "SELECT COUNT(*) FROM governor WHERE action = 'detach'");
    let counted = number(&db, "SELECT SUM(weight) FROM events WHERE op = 'cudaLaunchKernel'");
    let summed = number(&db, "SELECT SUM(calls) FROM seconds WHERE op = 'cudaLaunchKernel'");
    assert_eq!(counted, summed);
    // On a machine where even counting is too dear it is let go, and says so.
    assert!(counted == made || detached > 0, "{counted} of {made} calls: {}", text(&output));
    let sampled = number(&db, "SELECT COUNT(*) FROM governor WHERE action = 'sample'");
    let rows = number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'");
    assert!(sampled == 0 || rows < counted, "sampled, calls are told together: {rows} rows for {counted} calls");
}

/// A loop of nothing but launches, by another user.
struct Noisy(Child);

impl Noisy {
    fn start(milliseconds: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&sim().simjob);
        command.args(["windows", "--window-ms", "100", "--for-ms", milliseconds, "--cudart"]).arg(&sim().cudart);
        Self(command.env("SIMGPU_LOG_LEVEL", "counts").stdout(Stdio::null()).spawn().unwrap())
    }

    /// Waits until its launches have been given up.
    fn wait_until_given_up(&self, place: &Place) {
        let sql = self.given_up();
        until("the launches are given up", || number(&place.run_file(), &sql) > 0);
    }

    fn given_up(&self) -> String {
        let pid = self.0.id();
        format!("SELECT COUNT(*) FROM governor WHERE action = 'detach' AND op = 'cuLaunchKernel' AND pid = {pid}")
    }
}

impl Drop for Noisy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const MODEST: [&str; 6] = ["--mix", "mixed", "--calls", "4000", "--rate", "1000"];

/// What one user's process costs itself must not hide another one.
#[test]
fn a_process_over_its_budget_blinds_no_other() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut modest = HeldSimjob::start(&mut place.simjob(&MODEST));
    let tracing = Tracing::start(place.trace().args(["--budget", "2%"]), &place, 2);
    tracing.wait_for_process(modest.parent());
    modest.go();
    let noisy = Noisy::start("60000");
    let (ended, said) = modest.end();
    assert!(ended.success(), "{said}");
    noisy.wait_until_given_up(&place);
    let output = tracing.interrupt();
    assert!(output.status.success(), "{}", text(&output));
    let (db, truth) = (place.run_file(), place.truth());
    assert_eq!(common::compare::recorded_sums(&db, &truth), common::compare::true_sums(&truth));
    let own = format!("SELECT COUNT(*) FROM governor WHERE pid IN ({})", common::compare::list(&truth.pids()));
    assert_eq!(number(&db, &own), 0, "it is not limited");
    assert!(number(&db, &noisy.given_up()) > 0);
    assert!(text(&output).contains("paused at times to stay within --budget: cuLaunchKernel"), "{}", text(&output));
}

/// While one process makes calls its probes can be removed. A process that starts later needs them.
#[test]
fn probes_that_one_process_gave_up_come_back_for_the_next() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let tracing = Tracing::start(place.trace().args(["--budget", "2%"]), &place, 0);
    let noisy = Noisy::start("60000");
    noisy.wait_until_given_up(&place);
    let modest = place.simjob(&MODEST).output().unwrap();
    assert!(modest.status.success(), "{}", text(&modest));
    let output = tracing.interrupt();
    assert!(output.status.success(), "{}", text(&output));
    let (db, truth) = (place.run_file(), place.truth());
    let (recorded, made) = (common::compare::recorded_sums(&db, &truth), common::compare::true_sums(&truth));
    let pids = common::compare::list(&truth.pids());
    let missed = |action: &str| {
        number(&db, &format!("SELECT COUNT(*) FROM governor WHERE pid IN ({pids}) AND action = '{action}'"))
    };
    assert_eq!(missed("detach"), missed("attach"), "what was missed is over: {}", text(&output));
    for (function, made) in made {
        let seen = recorded.get(&function).map_or(0, |sums| sums.calls);
        let is_launch = function.ends_with("LaunchKernel");
        assert!(
            seen == made.calls || is_launch && missed("detach") > 0 && seen > made.calls / 2,
            "{function}: {seen} of {made:?}"
        );
    }
    assert!(number(&db, &noisy.given_up()) > 0);
}

#[test]
fn a_budget_is_a_part_of_the_jobs_time() {
    for (value, right) in [("2%", true), ("0.5%", true), ("none", true), ("2", false), ("0%", false), ("101%", false)] {
        let output = Command::new(common::GPUWHY).args(["trace", "--budget", value, "--pid", "4294967295"]).output();
        let output = output.unwrap();
        let refused = output.status.code() == Some(2);
        assert_eq!(refused, !right, "{value}: {}", text(&output));
        assert!(right || text(&output).contains("such as 2% or 0.5%, or none"), "{}", text(&output));
    }
}
