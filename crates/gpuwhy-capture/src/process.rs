// SPDX-License-Identifier: Apache-2.0
//! Processes as people know them: `python3 train.py` instead of a number.

use std::collections::HashMap;

/// The name of a running process, from its command line; `None` once it is gone (or a kernel thread).
pub fn name(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    name_from_cmdline(&line)
}

/// `python3 train.py` from the zero-separated words of a command line.
fn name_from_cmdline(line: &[u8]) -> Option<String> {
    let words: Vec<String> =
        line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).filter(|w| !w.is_empty()).collect();
    let program = base(words.first()?);
    let interpreter = ["python", "bash", "sh", "perl", "ruby", "node", "julia"].iter().any(|name| {
        program.strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    });
    let script = if interpreter { script_of(&words[1..]) } else { None };
    Some(script.map_or_else(|| program.to_owned(), |script| format!("{program} {script}")))
}

/// The script or module an interpreter runs: the first word that is no option.
fn script_of(words: &[String]) -> Option<String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-m" => return words.next().map(|module| format!("-m {module}")),
            "-c" => return Some("-c".into()),
            "-W" | "-X" | "-O" => {
                words.next();
            }
            option if option.starts_with('-') => {}
            script => return Some(base(script).to_owned()),
        }
    }
    None
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().filter(|b| !b.is_empty()).unwrap_or(path)
}

/// A command as one line, for the run file: words quoted where a shell would need it, values that look
/// secret replaced.
pub fn command_line<S: AsRef<str>>(words: &[S]) -> String {
    let mut out = Vec::new();
    let mut hide_next = false;
    for word in words {
        let word = word.as_ref();
        if std::mem::take(&mut hide_next) {
            out.push("***".to_owned());
            continue;
        }
        match word.split_once('=') {
            Some((name, value)) if looks_secret(name) && !value.is_empty() => out.push(format!("{name}=***")),
            None if word.starts_with('-') && looks_secret(word) => {
                hide_next = true;
                out.push(word.to_owned());
            }
            _ => out.push(quote(word)),
        }
    }
    out.join(" ")
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    ["token", "secret", "password", "passwd", "api_key", "apikey", "access_key", "credential"]
        .iter()
        .any(|part| name.contains(part))
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Every process below `pid`, children first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for other in crate::libraries::all_processes() {
        if let Some(parent) = parent_of(other) {
            children.entry(parent).or_default().push(other);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            next.push(child);
        }
    }
    found
}

/// The process a number stands for: its own, or that of which it is a thread (tools list those as if they were
/// processes). `None` when there is neither.
pub fn of_thread(id: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{id}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Whether a process still runs. One that ended and waits for its parent to notice (a zombie) does not.
pub fn is_running(pid: u32) -> bool {
    let ended = stat_field(pid, 0).is_none_or(|state| matches!(state.as_str(), "Z" | "X"));
    // A main thread may end before the others; then the process goes on.
    !ended || std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_field(pid, 1)?.parse().ok()
}

/// A field of /proc/PID/stat, counted from the one after the name: state, parent, …
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses too: take what follows the last one.
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(')')?.1.split_whitespace().nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_as_people_know_them() {
        for (line, name) in [
            (&b"/usr/bin/python3.12\0-u\0/home/me/train.py\0--lr\0"[..], "python3.12 train.py"),
            (b"python3\0-m\0torch.distributed.run\0x\0", "python3 -m torch.distributed.run"),
            (b"/opt/bin/server\0--port\0", "server"),
            (b"python3\0-X\0dev\0a.py\0", "python3 a.py"),
            (b"pythonic\0a.py\0", "pythonic"),
        ] {
            assert_eq!(name_from_cmdline(line).as_deref(), Some(name));
        }
        assert_eq!(name_from_cmdline(b""), None);
    }

    #[test]
    fn secrets_do_not_reach_the_run_file() {
        let line = command_line(&["train.py", "--hf-token", "hf_abc", "--api-key=xyz", "WANDB_API_KEY=k", "a b"]);
        assert_eq!(line, "train.py --hf-token *** --api-key=*** WANDB_API_KEY=*** 'a b'");
    }

    #[test]
    fn a_threads_number_leads_to_its_process() {
        // SAFETY: reads a number.
        let thread = std::thread::spawn(|| of_thread(unsafe { libc::gettid() } as u32)).join().unwrap();
        assert_eq!(thread, Some(std::process::id()));
        assert_eq!(of_thread(u32::MAX), None);
    }

    #[test]
    fn a_child_is_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = descendants(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()));
    }

    #[test]
    fn a_zombie_does_not_run() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(is_running(child.id()));
        drop(child.stdin.take());
        while is_running(child.id()) {
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists());
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
