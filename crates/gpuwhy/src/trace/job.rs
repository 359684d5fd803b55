// SPDX-License-Identifier: Apache-2.0
//! The job that gpuwhy starts: find the program, hold the process until everything is attached, release it, wait for
//! it.

use crate::output;
use crate::trace::limits;
use crate::trace::sudo::{self, Caller};
use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A command that can be started.
pub(crate) struct Job {
    /// The program, looked up in the job's own PATH.
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// The job's environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    caller: Option<Caller>,
}

/// A job whose process exists but has not been released. Dropping it ends the process without running the job.
pub(crate) struct HeldJob {
    child: Child,
    gate: std::io::PipeWriter,
    environment: Vec<u8>,
}

/// A job that was released.
pub(crate) struct RunningJob {
    child: Child,
}

impl Job {
    /// Finds the program, so that a missing one is an error before anything is traced.
    pub(crate) fn find(command: &[OsString], extra: &[(OsString, OsString)]) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("no command to run")?;
        let caller = Caller::from_env();
        let mut env = sudo::job_environment(caller.as_ref());
        env.retain(|(name, _)| !extra.iter().any(|(n, _)| n == name));
        env.extend(extra.iter().cloned());
        let path = sudo::variable(&env, "PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
        let Some(found) = find_program(Path::new(program), path) else {
            bail!("no program {} in PATH: check the spelling, or give the full path", program.to_string_lossy());
        };
        Ok(Self { program: found, arguments: arguments.to_vec(), env, caller })
    }

    /// Starts the process and holds it. `stdout_to_stderr`: gpuwhy's own stdout carries JSON. `open_files`: the job's
    /// limit of open files.
    pub(crate) fn start_held(&self, stdout_to_stderr: bool, open_files: u64) -> anyhow::Result<HeldJob> {
        let (read, gate) = std::io::pipe().context("cannot create a pipe")?;
        let fd = read.as_raw_fd();
        let mut command = Command::new("/proc/self/exe");
        command.arg("__hold").arg("--fd").arg(fd.to_string());
        if let Some(caller) = &self.caller {
            command.arg("--user").arg(format!("{}:{}", caller.uid, caller.gid));
        }
        command.arg("--").arg(&self.program).args(&self.arguments);
        // The user controls the job's environment, so it must not reach the dynamic loader of this process, which still
        // runs as root. It is sent through the gate instead.
        command.env_clear();
        if stdout_to_stderr {
            let stderr = std::io::stderr();
            command.stdout(Stdio::from(std::os::fd::AsFd::as_fd(&stderr).try_clone_to_owned()?));
        }
        // SAFETY: runs between fork and exec and makes async-signal-safe calls only: the descriptor stays
        // open across exec.
        unsafe {
            command.pre_exec(move || {
                limits::restore_open_files(open_files);
                match libc::fcntl(fd, libc::F_SETFD, 0) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let child = command.spawn().context("cannot start the job")?;
        drop(read);
        Ok(HeldJob { child, gate, environment: self.packed_environment() })
    }

    /// In the format that `commands/hold.rs` reads: the byte that releases the job, then zero-terminated `NAME=value`.
    fn packed_environment(&self) -> Vec<u8> {
        let mut packed = vec![b'g'];
        for (name, value) in &self.env {
            packed.extend_from_slice(name.as_bytes());
            packed.push(b'=');
            packed.extend_from_slice(value.as_bytes());
            packed.push(0);
        }
        packed
    }
}

impl HeldJob {
    /// The process id, which does not change on release.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the job run.
    pub(crate) fn release(self) -> anyhow::Result<RunningJob> {
        let Self { child, mut gate, environment } = self;
        gate.write_all(&environment).context("the job was killed before it started")?;
        Ok(RunningJob { child })
    }
}

impl RunningJob {
    /// The exit code if the job has ended.
    pub(crate) fn ended(&mut self) -> Option<u8> {
        self.child.try_wait().ok().flatten().map(exit_code)
    }

    /// Passes a signal on.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for yet, so the number is still its own.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) } == 0;
        if !sent && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) {
            let pid = self.child.id();
            output::say_aside(&format!(
                "gpuwhy: the job now runs as another user, so gpuwhy cannot signal it: stop it with `kill {pid}`"
            ));
        }
    }
}

/// As in a shell: 128 + N for a job ended by signal N.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.map_or(125, |code| code as u8)
}

fn find_program(program: &Path, path: &OsStr) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return runnable(program).then(|| std::path::absolute(program).ok()).flatten();
    }
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|candidate| runnable(candidate))
}

fn runnable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert_eq!(find_program(Path::new("sh"), OsStr::new("/nowhere:/bin")), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("/bin/sh"), OsStr::new("")), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("sh"), OsStr::new("/nowhere")), None);
        assert_eq!(find_program(Path::new("/etc/passwd"), OsStr::new("/bin")), None);
    }
}
