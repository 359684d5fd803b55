// SPDX-License-Identifier: Apache-2.0
//! Dropping privileges. Loading programs, creating the run file and starting the job need root; attaching to libraries
//! that are loaded later needs four capabilities. gpuwhy drops everything else in between, and with sudo it becomes its
//! caller (`docs/privileges.md`).
//!
//! Capabilities belong to threads: this must happen while there is only one, so that later threads inherit the reduced
//! set.

use crate::trace::capabilities::{self, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CapSets, KEPT};
use crate::trace::sudo::{self, Caller};
use anyhow::{Context, bail};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The result of dropping privileges.
#[derive(Debug, Default)]
pub(crate) struct Reduced {
    /// What could not be dropped, and why.
    pub(crate) warnings: Vec<String>,
    /// What was kept on purpose, beyond the usual set.
    pub(crate) notes: Vec<String>,
}

/// Runs `act` with the rights of the user who called sudo, so that a path of theirs cannot lead gpuwhy where they could
/// not go. Without a caller, runs it with our own rights, minus capabilities if we are not root.
pub(crate) fn with_rights_of<T>(caller: Option<&Caller>, act: impl FnOnce() -> T) -> anyhow::Result<T> {
    let Some(caller) = caller else { return without_capabilities(act) };
    let before = groups().context("cannot read this process's groups")?;
    // SAFETY: reads a number.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    take_effective(caller).with_context(|| format!("cannot act as user {}, who called sudo", caller.uid))?;
    let outcome = act();
    // SAFETY: plain system calls; the list of groups is ours and its length is given.
    let failed = unsafe {
        libc::seteuid(uid) != 0 || libc::setegid(gid) != 0 || libc::setgroups(before.len(), before.as_ptr()) != 0
    };
    if failed {
        return Err(io::Error::last_os_error()).context("cannot regain root's rights");
    }
    Ok(outcome)
}

fn without_capabilities<T>(act: impl FnOnce() -> T) -> anyhow::Result<T> {
    if is_root() {
        return Ok(act());
    }
    let full = CapSets::current()?;
    CapSets { effective: 0, ..full }.apply()?;
    let outcome = act();
    full.apply()?;
    Ok(outcome)
}

/// Commands that only read files do not need the capabilities that gpuwhy's file or service has for tracing; with them,
/// every user could read every file. Root's own commands keep root's rights.
pub(crate) fn renounce() -> anyhow::Result<()> {
    if is_root() {
        return Ok(());
    }
    CapSets::default().apply().context("cannot drop capabilities")
}

/// A server answers every client that reaches it, so it must not have more rights than the user who started it: with
/// sudo it becomes its caller for good, groups included. A server of root keeps only the right to read other users' run
/// files.
pub(crate) fn renounce_to_serve(caller: Option<&Caller>) -> anyhow::Result<()> {
    if !is_root() {
        return renounce();
    }
    let keep = if caller.is_some() { 0 } else { 1 << CAP_DAC_READ_SEARCH };
    // While we still have the right to do it. A container may lack it; no_new_privs below then prevents regaining
    // anything.
    let _ = capabilities::drop_bounding(keep);
    let _ = capabilities::clear_ambient();
    no_new_rights().context("cannot set no_new_privs")?;
    if let Some(caller) = caller {
        let become_caller = set_groups(caller).and_then(|()| set_ids(caller));
        become_caller.with_context(|| format!("cannot become user {}, who called sudo", caller.uid))?;
    }
    keep_only(keep).context("cannot drop capabilities")
}

/// The same for a process between fork and exec: only system calls. A program of root's would have all capabilities of
/// the bounding set again; without the right to gain any it has none.
pub(crate) fn take_all_from_this_process() -> io::Result<()> {
    no_new_rights()?;
    CapSets::default().apply()
}

fn no_new_rights() -> io::Result<()> {
    // SAFETY: plain system call with numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// Leaving user 0 also takes the effective capabilities away; coming back brings them back.
fn take_effective(caller: &Caller) -> io::Result<()> {
    set_groups(caller)?;
    // SAFETY: plain system calls with numbers.
    check(unsafe { libc::setegid(caller.gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::seteuid(caller.uid) })
}

fn set_groups(caller: &Caller) -> io::Result<()> {
    // SAFETY: the name is a string that outlives the call; an empty list needs no address.
    check(unsafe {
        match sudo::user_name(caller.uid) {
            Some(name) => libc::initgroups(name.as_ptr(), caller.gid),
            None => libc::setgroups(0, std::ptr::null()),
        }
    })
}

fn groups() -> io::Result<Vec<libc::gid_t>> {
    // SAFETY: asks how many there are.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut list = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: the list has room for as many as are said.
    let got = unsafe { libc::getgroups(count, list.as_mut_ptr()) };
    list.truncate(usize::try_from(got).map_err(|_| io::Error::last_os_error())?);
    Ok(list)
}

/// What decides whether more than the usual set must be kept.
pub(crate) struct Circumstances<'a> {
    /// The folder of the run file: SQLite creates and removes files there.
    pub(crate) folder: &'a Path,
    /// Whether probes are attached one by one through perf, as on old kernels.
    pub(crate) plain_probes: bool,
}

/// Permanently drops everything but what late attaching needs. A failure is a warning and not fatal: gpuwhy had the
/// right all along.
pub(crate) fn reduce(caller: Option<&Caller>, circumstances: &Circumstances<'_>) -> Reduced {
    let mut reduced = Reduced::default();
    let mut keep = KEPT;
    let folder = circumstances.folder;
    if caller.is_none() && lacks_with_usual(CAP_DAC_OVERRIDE, || refuses_write(folder)) {
        keep |= 1 << CAP_DAC_OVERRIDE;
        let folder = folder.display();
        reduced.notes.push(format!("{folder} belongs to another user: gpuwhy keeps CAP_DAC_OVERRIDE to write there"));
    }
    if circumstances.plain_probes && lacks_with_usual(CAP_SYS_ADMIN, refuses_plain_probes) {
        keep |= 1 << CAP_SYS_ADMIN;
        reduced.notes.push("this kernel requires CAP_SYS_ADMIN for plain probes: gpuwhy keeps it".to_owned());
    }
    let mut attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            reduced.warnings.push(format!("cannot drop {what}: {error}"));
        }
    };
    // While we still have the right to do it. Without root we never had it and do not need it.
    let bounding = capabilities::drop_bounding(keep);
    attempt("the bounding set of capabilities", if is_root() { bounding } else { Ok(()) });
    attempt("ambient capabilities", capabilities::clear_ambient());
    if let Some(caller) = caller {
        attempt("root's user id", become_for_good(caller));
    }
    attempt("capabilities", keep_only(keep));
    attempt("the right to gain privileges by starting programs", no_new_rights());
    reduced.warnings.extend(unlike_us(keep));
    reduced
}

fn keep_only(keep: u64) -> io::Result<()> {
    let kept = CapSets::current()?.permitted & keep;
    CapSets { permitted: kept, effective: kept, inheritable: 0 }.apply()
}

/// With the permitted capabilities still there, to be reduced next.
fn become_for_good(caller: &Caller) -> io::Result<()> {
    set_groups(caller)?;
    // SAFETY: plain system call with numbers.
    check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
    set_ids(caller)?;
    // SAFETY: as above.
    check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0) })
}

/// Sets the real, effective and saved ids: this cannot be undone.
fn set_ids(caller: &Caller) -> io::Result<()> {
    let Caller { uid, gid } = *caller;
    // SAFETY: plain system calls with numbers.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: as above; the C library does it for every thread.
    check(unsafe { libc::setresuid(uid, uid, uid) })
}

/// Whether the action is refused with the usual capabilities, and `capability` is available to keep.
fn lacks_with_usual(capability: u32, refused: impl FnOnce() -> bool) -> bool {
    let try_it = || -> io::Result<bool> {
        let full = CapSets::current()?;
        if full.permitted & 1 << capability == 0 {
            return Ok(false);
        }
        CapSets { effective: full.permitted & KEPT, ..full }.apply()?;
        let refused = refused();
        full.apply()?;
        Ok(refused)
    };
    try_it().unwrap_or(false)
}

/// Checks with the effective user and capabilities, for root with a run file in another user's home. A read-only or
/// full disk does not count as refused.
fn refuses_write(folder: &Path) -> bool {
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: the string ends with a zero and outlives the call.
    let done = unsafe { libc::faccessat(libc::AT_FDCWD, folder.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    done != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES)
}

/// Some kernels allow plain probes with CAP_PERFMON, others do not. The kernel checks the right before the file, so a
/// probe on a file that does not exist shows it without creating a probe.
fn refuses_plain_probes() -> bool {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").unwrap_or_default();
    let Ok(kind) = kind.trim().parse::<u32>() else { return false };
    let path = c"/nowhere/at/all";
    // struct perf_event_attr (version 5, 112 bytes): kind and size first, the file's name at byte 56.
    let mut attr = [0u64; 14];
    attr[0] = u64::from(kind) | (size_of_val(&attr) as u64) << 32;
    attr[7] = path.as_ptr().addr() as u64;
    // SAFETY: the attribute and the name it points to outlive the call, and it says its own size.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1, 0, -1, 0) };
    if fd >= 0 {
        // SAFETY: the kernel just gave us this descriptor, and nothing else owns it.
        unsafe { libc::close(fd as libc::c_int) };
    }
    fd < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// A driver library may have started its own threads, which gpuwhy cannot make drop anything.
fn unlike_us(keep: u64) -> Option<String> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let has_more = |path: &Path| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        capabilities::permitted_of(&status).is_some_and(|caps| caps & !keep != 0)
    };
    let more = threads.filter(|thread| has_more(&thread.path())).count();
    (more > 0).then(|| format!("{more} threads of a library keep capabilities that gpuwhy dropped"))
}

/// Ambient capabilities are meant for gpuwhy, and a job must not inherit them. A job started by root keeps root's
/// rights.
pub(crate) fn leave_to_job() -> anyhow::Result<()> {
    if is_root() {
        return Ok(());
    }
    if let Err(error) = capabilities::clear_ambient() {
        bail!("not starting the job, because it would inherit gpuwhy's capabilities: {error}");
    }
    Ok(())
}

/// Whether gpuwhy can do more than the user who started it: its file has capabilities. Then nothing that this user may
/// change must be loaded into it.
pub(crate) fn is_trusted_with_more() -> bool {
    // SAFETY: reads a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn is_root() -> bool {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() == 0 }
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
