// SPDX-License-Identifier: Apache-2.0
//! The interpreters at hand: `python3.*` on PATH, pyenv's, and those in `GPUWHY_PYTHONS` (a list with colons).

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// An interpreter: what it says it is, and how to start it.
#[derive(Debug, Clone)]
pub(crate) struct Interpreter {
    pub(crate) version: String,
    pub(crate) minor: u8,
    pub(crate) program: PathBuf,
}

/// Each distinct build once: by its version and the file it is, so that a distribution's 3.11 and pyenv's both count.
pub(crate) fn interpreters() -> Vec<Interpreter> {
    let mut found = BTreeMap::new();
    for program in programs() {
        let question =
            "import sys; print(sys.version_info[1], sys.version.replace(chr(10), ' ')); print(sys.executable)";
        let Ok(output) = Command::new(&program).args(["-I", "-c", question]).output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((minor, version)) = text.lines().next().and_then(|line| line.split_once(' ')) else { continue };
        let Ok(minor) = minor.parse() else { continue };
        if minor >= 8 {
            let key = (minor, version.to_owned());
            found.entry(key).or_insert(Interpreter { version: version.to_owned(), minor, program });
        }
    }
    assert!(!found.is_empty(), "no Python 3.8 or later: put one on PATH, or name it in GPUWHY_PYTHONS");
    found.into_values().collect()
}

fn programs() -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    if let Some(list) = std::env::var_os("GPUWHY_PYTHONS") {
        programs.extend(std::env::split_paths(&list));
    }
    let names = || (8..=15).map(|minor| format!("python3.{minor}")).chain(["python3".into()]);
    for folder in std::env::var_os("PATH").iter().flat_map(std::env::split_paths) {
        programs.extend(names().map(|name| folder.join(name)).filter(|path| path.exists()));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home.map(|home| home.join(".pyenv")));
    for version in pyenv.iter().filter_map(|root| root.join("versions").read_dir().ok()).flatten().flatten() {
        programs.push(version.path().join("bin/python3"));
    }
    // pyenv's shims are shell scripts that start some interpreter or complain.
    programs.retain(|path| path.exists() && !path.parent().is_some_and(|folder| folder.ends_with("shims")));
    programs
}
