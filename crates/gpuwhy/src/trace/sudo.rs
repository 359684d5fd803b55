// SPDX-License-Identifier: Apache-2.0
//! The user who called sudo: the job runs as they would run it, and they own the run file.

use crate::trace::privileges;
use gpuwhy_store::Owner;
use gpuwhy_strangers::{ProcFile, read_proc};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

/// The user who called sudo.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Caller {
    /// From SUDO_UID and SUDO_GID, if gpuwhy runs as root for another user.
    pub(crate) fn from_env() -> Option<Self> {
        // SAFETY: reads a number.
        if unsafe { libc::geteuid() } != 0 {
            return None;
        }
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let caller = Self { uid: number("SUDO_UID")?, gid: number("SUDO_GID")? };
        (caller.uid != 0).then_some(caller)
    }

    /// Why gpuwhy cannot write to a path that root could write to.
    pub(crate) fn rights(&self) -> String {
        format!(
            "gpuwhy writes run files with the rights of user {}, who called sudo; unset SUDO_UID to write them as root",
            self.uid
        )
    }

    /// The same, as the store's type.
    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }
}

/// The job's environment. Without sudo, it is ours. With sudo, it is the caller's, because sudo replaces PATH and HOME
/// and would lose the virtual environment with the intended python3. Variables given to sudo (`sudo A=1 gpuwhy …`)
/// stay.
pub(crate) fn job_environment(caller: Option<&Caller>) -> Vec<(OsString, OsString)> {
    let ours = own_environment();
    let theirs = caller.and_then(|_| environment_of_sudo());
    match theirs {
        None => ours,
        Some(theirs) => merge(ours, theirs),
    }
}

/// The environment gpuwhy was started with. If gpuwhy's file has capabilities, the dynamic linker hides LD_LIBRARY_PATH
/// and similar variables from it, so that no user can load code into it. The job has no capabilities, so it gets them.
fn own_environment() -> Vec<(OsString, OsString)> {
    let whole = privileges::is_trusted_with_more().then(|| std::fs::read("/proc/self/environ").ok()).flatten();
    whole.map_or_else(|| std::env::vars_os().collect(), |bytes| parse_environment(&bytes))
}

/// Parses the format of `/proc/PID/environ`.
fn parse_environment(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pairs = bytes.split(|b| *b == 0).filter_map(|entry| {
        let at = entry.iter().position(|b| *b == b'=')?;
        Some((OsString::from_vec(entry[..at].to_vec()), OsString::from_vec(entry[at + 1..].to_vec())))
    });
    pairs.collect()
}

/// Variables that sudo sets itself instead of passing on.
const SUDOS_OWN: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "MAIL", "TERM", "_"];

fn merge(ours: Vec<(OsString, OsString)>, theirs: Vec<(OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let mut merged = theirs;
    for (name, value) in ours {
        let sudos = SUDOS_OWN.iter().any(|own| name == *own) || name.as_encoded_bytes().starts_with(b"SUDO_");
        if sudos {
            continue;
        }
        match merged.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value,
            None => merged.push((name, value)),
        }
    }
    merged
}

/// sudo, our parent, was started with its caller's environment.
fn environment_of_sudo() -> Option<Vec<(OsString, OsString)>> {
    // SAFETY: reads a number.
    let parent = unsafe { libc::getppid() };
    let parent = u32::try_from(parent).ok()?;
    let name = read_proc(parent, ProcFile::Comm).ok()?;
    if name.trim_ascii() != b"sudo" {
        return None;
    }
    read_proc(parent, ProcFile::Environ).ok().map(|bytes| parse_environment(&bytes))
}

/// A variable of an environment.
pub(crate) fn variable<'a>(env: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
}

/// The name of a user, from wherever the system keeps users; needed to give the job its groups.
pub(crate) fn user_name(uid: u32) -> Option<CString> {
    // SAFETY: a struct of numbers and pointers, for which zeroes are valid.
    let mut user: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    let mut text = vec![0; 64 * 1024];
    // SAFETY: everything pointed to is ours and outlives the call, and the buffer's length is given.
    unsafe { libc::getpwuid_r(uid, &raw mut user, text.as_mut_ptr(), text.len(), &raw mut found) };
    if found.is_null() || user.pw_name.is_null() {
        return None;
    }
    // SAFETY: the name lies in `text`, ended by a zero.
    Some(unsafe { CStr::from_ptr(user.pw_name) }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))).collect()
    }

    #[test]
    fn the_callers_path_wins_and_what_was_given_to_sudo_stays() {
        let merged = merge(
            env(&[("PATH", "/usr/sbin"), ("A", "given"), ("SUDO_UID", "1000"), ("LANG", "C")]),
            env(&[("PATH", "/home/me/venv/bin"), ("A", "old"), ("VIRTUAL_ENV", "/home/me/venv")]),
        );
        assert_eq!(variable(&merged, "PATH").unwrap(), "/home/me/venv/bin");
        assert_eq!(variable(&merged, "A").unwrap(), "given");
        assert_eq!(variable(&merged, "VIRTUAL_ENV").unwrap(), "/home/me/venv");
        assert_eq!(variable(&merged, "LANG").unwrap(), "C");
        assert_eq!(variable(&merged, "SUDO_UID"), None);
    }

    #[test]
    fn root_has_a_name() {
        assert_eq!(user_name(0).unwrap().to_str().unwrap(), "root");
        assert_eq!(user_name(u32::MAX - 1), None);
    }
}
