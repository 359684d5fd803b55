// SPDX-License-Identifier: Apache-2.0
//! The command line as its user meets it: help, usage, `check`, and what happens without sudo.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, can_trace, one_at_a_time, refusal, succeed, text};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn gpuwhy(args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(args);
    command
}

/// gpuwhy as a user without any privilege, in a folder of that user's.
fn as_nobody(folder: &Path, args: &[&str]) -> Command {
    let binary = folder.join("gpuwhy");
    if !binary.exists() {
        std::fs::copy(GPUWHY, &binary).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary).args(args);
    command.current_dir(folder);
    command
}

#[test]
fn every_command_explains_itself() {
    for command in [&["--help"][..], &["check", "--help"], &["demo", "--help"], &["--version"]] {
        assert!(!succeed(&mut gpuwhy(command)).stdout.is_empty());
    }
    for command in [&["--help"][..], &["trace", "--help"], &["explain", "--help"], &["query", "--help"]] {
        let help = text(&succeed(&mut gpuwhy(command)));
        let (_, examples) = help.split_once("Examples:").unwrap();
        assert!(examples.contains("gpuwhy "), "{help}");
        assert!(!help.contains("__hold"), "internal commands stay internal");
    }
}

#[test]
fn wrong_usage_exits_2_and_names_what_is_wrong() {
    for (args, offending) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["trace", "--nope"], "--nope"),
        (&["trace", "--duration", "5x"], "5x"),
        (&["trace", "--pid", "python"], "python"),
        (&["trace", "--pid", "1", "--", "true"], "--pid"),
        (&["query"], "SQL"),
        (&["query", "--json", "--csv", "SELECT 1"], "--csv"),
        (&["demo", "nonsense"], "nonsense"),
    ] {
        let output = gpuwhy(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && text(&output).contains(offending), "{args:?}: {}", text(&output));
    }
}

fn check(output: &std::process::Output) -> Vec<(String, String, Option<String>)> {
    let needs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |need: &Value, key: &str| need[key].as_str().map(str::to_owned);
    needs
        .iter()
        .map(|need| {
            assert!(text(need, "found").is_some_and(|found| !found.is_empty()), "{need}");
            (text(need, "name").unwrap(), text(need, "status").unwrap(), text(need, "fix"))
        })
        .collect()
}

#[test]
fn check_finds_this_machine_ready() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    assert!(text(&succeed(&mut gpuwhy(&["check"]))).contains("Ready to trace."));
    for (name, status, fix) in check(&succeed(&mut gpuwhy(&["check", "--json"]))) {
        assert!(["ok", "absent"].contains(&status.as_str()), "{name} is {status}");
        assert_eq!(fix.is_some(), status != "ok", "{name}: a fix goes with what is absent");
    }
}

#[test]
fn check_without_root_says_sudo() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let output = as_nobody(place.dir.path(), &["check"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("run with sudo") && !text(&output).contains("Ready"));

    let output = as_nobody(place.dir.path(), &["check", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let needs = check(&output);
    let (_, status, fix) = needs.iter().find(|(name, ..)| name == "privilege").unwrap();
    assert_eq!(status, "missing");
    assert!(fix.as_ref().is_some_and(|fix| fix.starts_with("run with sudo, or ")), "{fix:?}");
}

#[test]
fn tracing_without_root_says_sudo_and_leaves_nothing() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    for (args, code) in [
        (&["trace", "--", "true"][..], 125),
        (&["trace", "--duration", "1s"], 125),
        (&["trace", "--pid", "1"], 125),
        (&["demo"], 1),
    ] {
        let said = refusal(&mut as_nobody(place.dir.path(), args), code);
        assert!(said.contains("sudo"), "{args:?}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["gpuwhy"], "no run file was begun");
}
