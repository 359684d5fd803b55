// SPDX-License-Identifier: Apache-2.0
//! Ancestors of a process that belong to its job: launchers of ranks, and programs whose worker it is.

use super::{base, multiprocessing, name_from_words, parent, words_of};
use gpuwhy_strangers::{ProcFile, read_proc};

/// How many processes above one are looked at for its launcher.
const MOST_ABOVE: usize = 4;

/// Programs that start the ranks of one job, by base name.
const LAUNCHERS: [&str; 16] = [
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "hydra_pmi_proxy",
    "horovodrun",
    "deepspeed",
    "deepspeed.launcher.launch",
    "accelerate",
    "accelerate.commands.launch",
];

/// Programs that only start another one, by their base names.
const WRAPPERS: [&str; 9] = ["sh", "bash", "dash", "env", "numactl", "taskset", "nice", "stdbuf", "timeout"];

/// The ancestors of a process that belong to its job, nearest first: up to a launcher of ranks, or the program whose
/// worker it is. Empty if there is neither; a shell, for example, may start anything.
pub fn above_in_job(pid: u32) -> Vec<u32> {
    let mut above = Vec::new();
    let mut child = (pid, command_words(pid));
    for _ in 0..MOST_ABOVE {
        let Some(parent) = parent(child.0).filter(|parent| *parent > 1) else { break };
        let words = command_words(parent);
        above.push(parent);
        if is_launcher(&words) || is_worker(&child.1, &words) {
            return above;
        }
        if !words.first().is_some_and(|program| WRAPPERS.contains(&base(program))) {
            break;
        }
        child = (parent, words);
    }
    Vec::new()
}

fn command_words(pid: u32) -> Vec<String> {
    read_proc(pid, ProcFile::CommandLine).map(|line| words_of(&line)).unwrap_or_default()
}

/// Whether a command starts the ranks of one job. A batch script's step of Slurm is a shell like any other.
fn is_launcher(words: &[String]) -> bool {
    let Some(name) = name_from_words(words) else { return false };
    if let Some(step) = name.strip_prefix("slurmstepd: [") {
        return !["batch", "extern", "interactive"].iter().any(|kind| step.contains(kind));
    }
    LAUNCHERS.contains(&name.rsplit(' ').next().unwrap_or(&name))
}

/// Whether a process is a worker of its parent: made by Python's multiprocessing, or forked without becoming another
/// program.
fn is_worker(words: &[String], parent: &[String]) -> bool {
    let code = words.iter().find_map(|word| multiprocessing(word));
    let forked = words.len() > 1 && words == parent && !WRAPPERS.contains(&base(&words[0]));
    code.is_some() || forked
}

#[cfg(test)]
mod tests {
    use super::super::descendants;
    use super::*;

    #[test]
    fn launchers_and_workers_are_told_from_shells() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in [
            "/v/bin/python3 /v/bin/torchrun --nproc-per-node 2 train.py",
            "python3 -m torch.distributed.run train.py",
            "/usr/bin/mpirun -n 4 ./train",
            "python3 -u -m deepspeed.launcher.launch --world_info=x train.py",
        ] {
            assert!(is_launcher(&words(line)), "{line}");
        }
        assert!(is_launcher(&["slurmstepd: [812.0]".to_owned()]));
        for title in ["slurmstepd: [812.batch]", "sshd: me@pts/0", "-bash", "tmux: server"] {
            assert!(!is_launcher(&[title.to_owned()]), "{title}");
        }
        for line in ["python3 train.py --launcher torchrun", "bash run.sh", "python3 sweep.py", "sh -c torchrun"] {
            assert!(!is_launcher(&words(line)), "{line}");
        }
        let spawned =
            ["python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5)"].map(str::to_owned);
        assert!(is_worker(&spawned, &words("python3 train.py")));
        assert!(is_worker(&words("python3 train.py"), &words("python3 train.py")), "forked");
        assert!(!is_worker(&words("python3 a.py"), &words("python3 b.py")));
        assert!(!is_worker(&words("bash run.sh"), &words("bash run.sh")), "a shell's fork becomes something else");
    }

    #[test]
    fn a_shell_between_a_rank_and_its_launcher_is_passed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mpirun");
        std::fs::write(&path, "import subprocess,sys\nsubprocess.run(['sh', '-c', 'cat; true'])\n").unwrap();
        let start = |script: &std::path::Path| {
            let mut command = std::process::Command::new("python3");
            let mut child = command.arg(script).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let found = loop {
                let below = descendants(child.id());
                let is_cat = |pid: &&u32| command_words(**pid) == ["cat"];
                if let Some(cat) = below.iter().find(is_cat) {
                    break above_in_job(*cat);
                }
            };
            drop(child.stdin.take());
            child.wait().unwrap();
            (found, child.id())
        };
        let (above, launcher) = start(&path);
        assert_eq!((above.len(), above.last()), (2, Some(&launcher)));
        let other = folder.path().join("sweep.py");
        std::fs::rename(&path, &other).unwrap();
        assert_eq!(start(&other).0, [], "any program may start several jobs");
    }
}
