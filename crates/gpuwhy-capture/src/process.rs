// SPDX-License-Identifier: Apache-2.0
//! Processes as people know them: `python3 train.py` instead of a number.

mod launcher;

use crate::secrets;
use gpuwhy_strangers::{ProcFile, read_proc};
use std::collections::HashMap;

pub use crate::secrets::command_line;
pub use launcher::above_in_job;

/// Some versions of PyTorch give this name to the main thread of every process that uses them, so it is ignored.
const PYTORCH_MAIN: &str = "pt_main_thread";

/// The most bytes of a name that the kernel keeps of a thread.
const COMM_BYTES: usize = 15;

/// The name of a running process, from its command line, or from itself if it gave itself one (`pt_data_worker`);
/// `None` once it is gone (or a kernel thread).
pub fn name(pid: u32) -> Option<String> {
    let line = read_proc(pid, ProcFile::CommandLine).ok()?;
    let words = words_of(&line);
    let from_line = name_from_words(&words)?;
    let comm = read_proc(pid, ProcFile::Comm).unwrap_or_default();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let exe = exe.as_deref().map(|path| path.to_string_lossy().into_owned());
    Some(given_name(&comm, &words, exe.as_deref()).map_or(from_line, |name| secrets::hide(&name)))
}

/// The zero-separated words of a command line.
fn words_of(line: &[u8]) -> Vec<String> {
    line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).filter(|w| !w.is_empty()).collect()
}

/// `python3 train.py` from the words of a command line.
fn name_from_words(words: &[String]) -> Option<String> {
    let first = words.first()?;
    // A title that a server wrote over its command line is not a path: `sshd: me@pts/0`.
    let program = if first.contains(": ") { first } else { base(first) };
    let interpreter = ["python", "bash", "sh", "perl", "ruby", "node", "julia"].iter().any(|name| {
        program.strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    });
    let script = if interpreter { script_of(program, &words[1..]) } else { None };
    let name = script.map_or_else(|| program.to_owned(), |script| format!("{program} {script}"));
    // A title may be a whole command line.
    Some(secrets::hide(&name))
}

/// The name that a process gave to its main thread. The kernel initialises it to the base name of the executed file:
/// the program, a link to it, or a script with `#!`; those do not count.
fn given_name(comm: &[u8], words: &[String], exe: Option<&str>) -> Option<String> {
    let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
    // A program started through a file descriptor is called by its number.
    if comm.is_empty() || comm == PYTORCH_MAIN.as_bytes() || comm.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let begins = |name: &str| comm == &name.as_bytes()[..name.len().min(COMM_BYTES)];
    let started = words.iter().map(String::as_str).chain(exe).any(|word| begins(base(word)));
    // A title written over the command line (`nginx: worker process`) has the name at its start.
    let title = words.first().is_some_and(|word| word.as_bytes().starts_with(comm));
    // A removed program is shown as `python3 (deleted)`.
    let removed = exe.and_then(|exe| exe.strip_suffix(" (deleted)")).is_some_and(|exe| begins(base(exe)));
    let printable = |text: &str| text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    (!(started || title || removed)).then(|| printable(&String::from_utf8_lossy(comm)))
}

/// The script or module an interpreter runs: the first word that is not an option. Code given as an option does not
/// count.
fn script_of(program: &str, words: &[String]) -> Option<String> {
    let python = program.starts_with("python");
    let shell = matches!(program, "sh" | "bash");
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-m" if python => return words.next().map(|module| format!("-m {module}")),
            "-c" if python => return Some(multiprocessing(words.next()?).unwrap_or("-c").to_owned()),
            "-W" | "-X" if python => {
                words.next();
            }
            "-o" | "-O" if shell => {
                words.next();
            }
            option if option.starts_with('-') => {
                if let Some(option) = code_option(option, python, shell) {
                    return Some(option.to_owned());
                }
            }
            script => return Some(base(script).to_owned()),
        }
    }
    None
}

/// The option that marks the next word, or the rest of this one, as code: `-c` of Python and shells, `-e` of others,
/// also combined with other letters (`sh -ec`).
fn code_option(option: &str, python: bool, shell: bool) -> Option<&'static str> {
    let letters = option.strip_prefix('-').filter(|letters| letters.bytes().all(|b| b.is_ascii_alphabetic()));
    let code = match () {
        () if python => {
            let takes_text = option.starts_with("-W") || option.starts_with("-X");
            option.starts_with("-c") || letters.is_some_and(|letters| !takes_text && letters.ends_with('c'))
        }
        () if shell => letters.is_some_and(|letters| letters.contains('c')),
        () => {
            let named = ["--eval", "--print", "-e", "-E", "-p"].iter().any(|start| option.starts_with(start));
            named || letters.is_some_and(|letters| letters.ends_with(['e', 'E']))
        }
    };
    code.then_some(if python || shell { "-c" } else { "-e" })
}

/// The role of a process that Python's multiprocessing started with a line of code.
fn multiprocessing(code: &str) -> Option<&'static str> {
    let module = code.strip_prefix("from multiprocessing.")?;
    [
        ("spawn import", "multiprocessing worker"),
        ("forkserver import", "multiprocessing forkserver"),
        ("resource_tracker import", "multiprocessing resource tracker"),
    ]
    .into_iter()
    .find_map(|(start, name)| module.starts_with(start).then_some(name))
}

/// The container a process runs in: `docker 0123456789ab`, `kubernetes pod UID container 0123456789ab`, `lxc NAME`;
/// `None` outside of one, and inside one that hides it from its processes.
pub fn container(pid: u32) -> Option<String> {
    let text = read_proc(pid, ProcFile::Cgroup).ok()?;
    container_from_cgroup(&String::from_utf8_lossy(&text))
}

fn container_from_cgroup(text: &str) -> Option<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(container_of_path).next()
}

/// The innermost path component with a container id names the container; a pod above it names its owner.
fn container_of_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let pod = parts.iter().rev().find_map(|part| pod_uid(part)).filter(|_| path.contains("kubepods"));
    let found =
        (0..parts.len()).rev().find_map(|at| container_of_part(at.checked_sub(1).map(|at| parts[at]), parts[at]));
    match (pod, found) {
        (Some(pod), Some((_, id))) => Some(format!("kubernetes pod {pod} container {id}")),
        (Some(pod), None) => Some(format!("kubernetes pod {pod}")),
        (None, Some((kind, id))) => Some(format!("{kind} {id}")),
        (None, None) => None,
    }
}

/// Kind and short id of a container, from a path component and its parent.
fn container_of_part<'a>(above: Option<&str>, part: &'a str) -> Option<(&'static str, &'a str)> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    for (start, kind) in [
        ("docker-", "docker"),
        ("libpod-payload-", "podman"),
        ("libpod-", "podman"),
        ("cri-containerd-", "containerd"),
        ("crio-", "cri-o"),
    ] {
        if let Some(id) = scope.strip_prefix(start).and_then(short_id) {
            return Some((kind, id));
        }
    }
    if let Some(name) = part.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
        return Some(("lxc", name));
    }
    match above? {
        "lxc" => Some(("lxc", part)),
        "docker" => Some(("docker", short_id(part)?)),
        // containerd's own layout, and that of Kubernetes without systemd: the id alone, or after a colon.
        _ => Some(("container", short_id(part.rsplit(':').next()?)?)),
    }
}

/// The first 12 of 64 hexadecimal digits, as container tools show an id.
fn short_id(id: &str) -> Option<&str> {
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| &id[..12])
}

/// A pod's uid, from `pod1234-…` or systemd's `kubepods-burstable-pod1234_….slice`.
fn pod_uid(part: &str) -> Option<String> {
    let part = part.split(".slice").next()?;
    let uid = part.strip_prefix("pod").or_else(|| part.split_once("-pod").map(|(_, uid)| uid))?;
    let plain = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-' || b == b'_');
    plain.then(|| uid.replace('_', "-"))
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().filter(|b| !b.is_empty()).unwrap_or(path)
}

/// A running process's command line as written by [`secrets::command_line`], at most about 4,000 bytes.
pub fn command_of(pid: u32) -> Option<String> {
    command_from(&read_proc(pid, ProcFile::CommandLine).ok()?)
}

/// The bytes of a command line that are kept. Secrets are hidden before anything is cut off: half a secret may not look
/// like one.
const KEPT_BYTES: usize = 4000;

fn command_from(line: &[u8]) -> Option<String> {
    let words: Vec<_> = line.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    // After the last zero there is nothing or a partly read word. A title has no zero at all.
    let words = if words.len() > 1 { &words[..words.len() - 1] } else { &words[..] };
    let mut command = command_line(words);
    let end = (0..=KEPT_BYTES.min(command.len())).rev().find(|at| command.is_char_boundary(*at));
    command.truncate(end.unwrap_or(0));
    (!line.is_empty()).then_some(command)
}

/// Every process below `pid`, children first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for other in crate::libraries::all_processes() {
        if let Some(parent) = parent(other) {
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

/// The process with this id, or the process of the thread with this id (tools list threads as if they were processes).
/// `None` if there is neither.
pub fn of_thread(id: u32) -> Option<u32> {
    let status = read_proc(id, ProcFile::Status).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Whether a process still runs. One that ended and waits for its parent to notice (a zombie) does not.
pub fn is_running(pid: u32) -> bool {
    let ended = stat_field(pid, 0).is_none_or(|state| matches!(state.as_str(), "Z" | "X"));
    // A main thread may end before the others; then the process goes on.
    !ended || std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

/// The process that a process belongs to; `None` once it is gone, and for the first of a machine or container.
pub fn parent(pid: u32) -> Option<u32> {
    stat_field(pid, 1)?.parse().ok().filter(|parent| *parent != 0)
}

/// The user a process runs as; `None` once it is gone.
pub(crate) fn user(pid: u32) -> Option<u32> {
    let status = read_proc(pid, ProcFile::Status).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

/// When a process began, `CLOCK_MONOTONIC` ns (to a clock tick); `None` once it is gone.
pub fn started_ns(pid: u32) -> Option<u64> {
    crate::sample::started_ns(pid)
}

/// A field of /proc/PID/stat, counted from the one after the name: state, parent, …
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = read_proc(pid, ProcFile::Stat).ok()?;
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
            (b"sshd: me@pts/0\0", "sshd: me@pts/0"),
            (b"bash\0-o\0pipefail\0run.sh\0", "bash run.sh"),
            (b"python3\0-Wonce\0a.py\0", "python3 a.py"),
        ] {
            assert_eq!(name_from_words(&words_of(line)).as_deref(), Some(name));
        }
        assert_eq!(name_from_words(&words_of(b"")), None);
    }

    #[test]
    fn code_and_secrets_are_no_names() {
        for (line, name) in [
            (&b"sh\0-ec\0TOKEN=hunter2 x\0"[..], "sh -c"),
            (b"bash\0-lc\0curl hunter2\0", "bash -c"),
            (b"python3\0-uc\0login('hunter2')\0", "python3 -c"),
            (b"python3\0-clogin('hunter2')\0", "python3 -c"),
            (b"perl\0-ne\0print 'hunter2'\0", "perl -e"),
            (b"node\0--eval\0hunter2\0", "node -e"),
            (b"worker --token hunter2 --lr 1\0", "worker --token *** --lr 1"),
        ] {
            assert_eq!(name_from_words(&words_of(line)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_long_command_line_is_cut_after_its_secrets_are_hidden() {
        let mut line = b"x\0--token\0hunter2\0".to_vec();
        line.extend(std::iter::repeat_n(b'a', 5000));
        assert_eq!(command_from(&line).as_deref(), Some("x --token ***"), "a word that was cut off is left out");
        line.push(0);
        assert_eq!(command_from(&line).unwrap().len(), KEPT_BYTES);
        assert_eq!(command_from(b"a title hunter2").as_deref(), Some("'a title hunter2'"));
        assert_eq!(command_from(b"x\0\0"), Some("x ''".into()));
        assert_eq!(command_from(b""), None);
    }

    #[test]
    fn python_multiprocessing_is_known() {
        for (line, name) in [
            (
                &b"/bin/python3.11\0-E\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)\0\
                  --multiprocessing-fork\0"[..],
                "python3.11 multiprocessing worker",
            ),
            (
                b"python3\0-c\0from multiprocessing.resource_tracker import main;main(5)\0",
                "python3 multiprocessing resource tracker",
            ),
            (b"python3\0-c\0print(1)\0", "python3 -c"),
            (b"python3\0-O\0a.py\0", "python3 a.py"),
            (b"/v/bin/python3\0/v/bin/torchrun\0--nproc\0", "python3 torchrun"),
        ] {
            assert_eq!(name_from_words(&words_of(line)).as_deref(), Some(name));
        }
    }

    #[test]
    fn only_names_that_a_process_gave_itself_count() {
        let given = |comm: &str, line: &[u8], exe: &str| given_name(comm.as_bytes(), &words_of(line), Some(exe));
        let train: &[u8] = b"python3\0train.py\0";
        let python = "/usr/bin/python3.11";
        assert_eq!(given("pt_data_worker\n", train, python).as_deref(), Some("pt_data_worker"));
        assert_eq!(given("a\tb) \n\n", train, python).as_deref(), Some("a?b) ?"));
        // The program by its link, by its file, removed; the script of `#!`; cut off after 15 bytes.
        for (comm, line, exe) in [
            ("python3\n", train, python),
            ("python3.11\n", train, python),
            ("python3.11\n", train, "/usr/bin/python3.11 (deleted)"),
            ("python\n", b"python\0x.py\0", python),
            ("torchrun\n", b"/v/bin/python3\0/v/bin/torchrun\0--nproc\0", python),
            ("train_a_long_na\n", b"/usr/bin/python3\0./train_a_long_name.py\0", python),
            ("bash\n", b"-bash\0", "/usr/bin/bash"),
            ("sh\n", b"sh\0-c\0x\0", "/bin/busybox"),
            ("nginx\n", b"nginx: worker process\0", "/usr/sbin/nginx"),
            ("VLLM::EngineCor\n", b"VLLM::EngineCore\0", python),
            ("pt_main_thread\n", train, python),
            ("3\n", train, python),
            ("\n", train, python),
        ] {
            assert_eq!(given(comm, line, exe), None, "{comm}");
        }
    }

    #[test]
    fn a_child_that_renames_itself_has_that_name() {
        let mut child = std::process::Command::new("sh");
        let mut child = child.args(["-c", "printf pt_data_worker > /proc/$$/comm; echo; read x"]);
        child = child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        assert_eq!(parent(child.id()), Some(std::process::id()));
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let found = name(child.id());
        let started = started_ns(child.id()).unwrap();
        let now = crate::capture::now_ns();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found.as_deref(), Some("pt_data_worker"));
        assert!(started <= now && now - started < 20_000_000_000, "{started} {now}");
    }

    #[test]
    fn containers_are_known_by_their_cgroup() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let uid = "7a1b2c3d-0000-1111-2222-333344445555";
        let systemd_uid = uid.replace('-', "_");
        for (text, expected) in [
            (format!("12:memory:/docker/{id}\n0::/\n"), "docker 0123456789ab".to_owned()),
            (format!("0::/system.slice/docker-{id}.scope\n"), "docker 0123456789ab".into()),
            (format!("0::/machine.slice/libpod-{id}.scope/container\n"), "podman 0123456789ab".into()),
            (format!("0::/system.slice/cri-containerd-{id}.scope\n"), "containerd 0123456789ab".into()),
            (format!("0::/default/{id}\n"), "container 0123456789ab".into()),
            (
                format!("4:cpu:/kubepods/burstable/pod{uid}/{id}\n"),
                format!("kubernetes pod {uid} container 0123456789ab"),
            ),
            (
                format!("0::/kubepods.slice/kubepods-x.slice/kubepods-x-pod{systemd_uid}.slice/crio-{id}.scope\n"),
                format!("kubernetes pod {uid} container 0123456789ab"),
            ),
            (
                format!("0::/kubepods.slice/kubepods-pod{systemd_uid}.slice:cri-containerd:{id}\n"),
                format!("kubernetes pod {uid} container 0123456789ab"),
            ),
            ("0::/lxc/web\n".into(), "lxc web".into()),
            ("0::/lxc.payload.web/init.scope\n".into(), "lxc web".into()),
        ] {
            assert_eq!(container_from_cgroup(&text).as_deref(), Some(expected.as_str()), "{text}");
        }
        for text in ["0::/\n", "0::/user.slice/user-1000.slice\n", "0::/docker/short\n", "", "x", "0::/../../x\n"] {
            assert_eq!(container_from_cgroup(text), None, "{text}");
        }
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
