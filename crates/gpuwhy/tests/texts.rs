// SPDX-License-Identifier: Apache-2.0
//! The whole text of commands, on recorded runs, so that a change of words shows in review. `GPUWHY_BLESS=1` rewrites the
//! files in `screens/`. The runs in `runs/` are those of `gpuwhy demo`; names of the machine's other programs were replaced.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::GPUWHY;
use common::terminal::on_terminal;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
const RUNS: [&str; 4] = ["dataloader", "healthy", "leak", "oom"];

/// Name of the text, and the arguments.
const SCREENS: [(&str, &[&str]); 19] = [
    ("explain", &["explain", "dataloader.db"]),
    ("explain-full", &["explain", "--full", "dataloader.db"]),
    ("explain-per-process", &["explain", "--per-process", "leak.db"]),
    ("explain-range", &["explain", "--from", "2s", "--to", "4s", "dataloader.db"]),
    ("explain-healthy", &["explain", "healthy.db"]),
    ("explain-healthy-full", &["explain", "--full", "healthy.db"]),
    ("explain-oom", &["explain", "oom.db"]),
    ("memory", &["memory", "leak.db"]),
    ("memory-full", &["memory", "--full", "leak.db"]),
    ("memory-leaks", &["memory", "--leaks", "leak.db"]),
    ("memory-oom", &["memory", "--oom", "oom.db"]),
    ("memory-no-oom", &["memory", "--oom", "healthy.db"]),
    ("memory-compare", &["memory", "--compare", "healthy.db", "leak.db"]),
    ("stacks", &["stacks", "--op", "cudaLaunchKernel", "--limit", "3", "dataloader.db"]),
    ("stacks-by-line", &["stacks", "--op", "sched_switch", "--by", "line", "dataloader.db"]),
    (
        "query",
        &["query", "--db", "dataloader.db", "SELECT op, COUNT(*) AS calls FROM events GROUP BY op ORDER BY 2 DESC"],
    ),
    (
        "query-findings",
        &["query", "--db", "oom.db", "SELECT severity, kind, summary, recommendations FROM causal_chains"],
    ),
    ("merge", &["merge", "-o", "merged.db", "leak.db", "oom.db"]),
    ("share", &["share", "leak.db"]),
];

const COMMANDS: [&str; 12] =
    ["check", "demo", "explain", "mcp", "memory", "merge", "profile", "query", "repair", "share", "stacks", "trace"];

fn unpack(folder: &Path) {
    for run in RUNS {
        let file = fs::File::create(folder.join(format!("{run}.db"))).unwrap();
        let mut gzip = Command::new("gzip");
        gzip.arg("-dc").arg(format!("{HERE}/runs/{run}.db.gz")).stdout(Stdio::from(file));
        assert!(gzip.status().unwrap().success());
    }
}

/// Compares with what is written down; returns how they differ.
fn difference(name: &str, text: &str) -> Option<String> {
    let path = format!("{HERE}/screens/{name}.txt");
    if std::env::var_os("GPUWHY_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    (text != expected).then(|| format!("{path} differs; GPUWHY_BLESS=1 rewrites it. It is now:\n{text}"))
}

#[test]
fn what_people_read_is_as_written_down() {
    let mut wrong = Vec::new();
    for columns in [80, 120] {
        let folder = tempfile::tempdir().unwrap();
        unpack(folder.path());
        for (name, args) in SCREENS {
            let mut command = Command::new(GPUWHY);
            let text = on_terminal(command.args(args).current_dir(folder.path()), columns);
            wrong.extend(difference(&format!("{name}.{columns}"), &text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn help_is_as_written_down() {
    let mut wrong = Vec::new();
    let help = |args: &[&str]| on_terminal(Command::new(GPUWHY).args(args), 100);
    wrong.extend(difference("help", &help(&["--help"])));
    for command in COMMANDS {
        let text = help(&[command, "--help"]);
        assert!(text.contains("Examples:"), "{command} --help has no examples");
        wrong.extend(difference(&format!("help-{command}"), &text));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_screen_has_a_command() {
    let known = |name: &str| {
        let stem = name.trim_end_matches(".txt");
        let screen =
            |width: &str| stem.strip_suffix(width).is_some_and(|name| SCREENS.iter().any(|(known, _)| *known == name));
        let help = stem == "help" || stem.strip_prefix("help-").is_some_and(|command| COMMANDS.contains(&command));
        screen(".80") || screen(".120") || help
    };
    for file in fs::read_dir(format!("{HERE}/screens")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(known(&name), "{name} is of no command");
    }
}
