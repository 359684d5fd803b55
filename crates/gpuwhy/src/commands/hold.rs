// SPDX-License-Identifier: Apache-2.0
//! The internal command that every traced job starts as. It waits until gpuwhy has attached, becomes the user who
//! called sudo, and execs the job. The process id does not change, so even the first call is recorded.

use crate::cli::Hold;
use anyhow::Context;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

pub(crate) fn run(args: &Hold) -> anyhow::Result<ExitCode> {
    // SAFETY: the descriptor was made for this process alone by the gpuwhy that started it.
    let mut pipe = unsafe { std::fs::File::from_raw_fd(args.fd) };
    let mut packed = Vec::new();
    let Some((b'g', environment)) = pipe.read_to_end(&mut packed).ok().and_then(|_| packed.split_first()) else {
        // gpuwhy ended before it released this process: there is nothing to run.
        return Ok(ExitCode::from(125));
    };
    drop(pipe);
    if let Some(user) = &args.user {
        become_user(user)?;
    }
    crate::trace::privileges::leave_to_job()?;
    let Some((program, rest)) = args.cmd.split_first() else { return Ok(ExitCode::from(125)) };
    let error = Command::new(program).args(rest).env_clear().envs(unpack(environment)).exec();
    eprintln!("gpuwhy: cannot run {}: {error}", program.to_string_lossy());
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Ok(ExitCode::from(code))
}

/// The environment as `trace/job.rs` packs it.
fn unpack(environment: &[u8]) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    environment.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&entry[..at]), OsStr::from_bytes(&entry[at + 1..])))
    })
}

fn become_user(user: &str) -> anyhow::Result<()> {
    let (uid, gid) = user.split_once(':').context("invalid --user: expected UID:GID")?;
    let (uid, gid): (u32, u32) = (uid.parse()?, gid.parse()?);
    let name = crate::trace::sudo::user_name(uid);
    // SAFETY: plain system calls with numbers and a string that outlives them; this process has one thread.
    let failed = unsafe {
        let groups = match &name {
            Some(name) => libc::initgroups(name.as_ptr(), gid),
            None => libc::setgroups(0, std::ptr::null()),
        };
        groups != 0 || libc::setgid(gid) != 0 || libc::setuid(uid) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error()).context(format!("cannot become user {uid}"));
    }
    Ok(())
}
