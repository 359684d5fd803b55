// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy share`: a copy of a run without what others should not see.

use crate::cli::Share;
use crate::output;
use crate::trace::privileges;
use crate::trace::sudo::Caller;
use anyhow::Context;
use gpuwhy_model::units;
use gpuwhy_store::{ShareRequest, Shared};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Names listed; the rest is counted.
const LISTED: usize = 20;

pub(crate) fn run(args: &Share) -> anyhow::Result<ExitCode> {
    let caller = Caller::from_env();
    let made = args.output.clone().unwrap_or_else(|| beside(&args.run));
    let hide: Vec<String> = args.hide.iter().cloned().chain(own_names()).collect();
    let request = ShareRequest {
        path: &args.run,
        output: &made,
        hide: &hide,
        keep_source: args.source,
        owner: caller.as_ref().map(Caller::owner),
    };
    let stopped = super::stop_flag().context("cannot install signal handlers")?;
    let go_on = || !stopped.load(Ordering::Relaxed);
    // With the rights of the user who called sudo, as a trace makes its file.
    let share = || {
        output::say_which_lack_wal([args.run.as_path()]);
        output::patiently("copying", || gpuwhy_store::share(&request, go_on))
    };
    let shared = privileges::with_rights_of(caller.as_ref(), share)??;
    output::show(lines(&made, &shared, args.source).iter().map(|line| units::safe(line, 2_000)))?;
    Ok(ExitCode::SUCCESS)
}

/// `run.db` → `run-shared.db`.
fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_stem().unwrap_or_default().to_owned();
    name.push("-shared.db");
    run.with_file_name(name)
}

/// Names of this machine and its user.
fn own_names() -> impl Iterator<Item = String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| std::env::var(name).ok());
    users.chain(host.map(|host| host.trim().to_owned()))
}

fn lines(made: &Path, shared: &Shared, source: bool) -> Vec<String> {
    let (events, size) = (units::count(shared.stored), units::bytes(shared.size_bytes));
    let source = if source { "" } else { ", source lines" };
    vec![
        format!("{}: {events} events, {size}", made.display()),
        format!(
            "  removed: arguments of {} commands, gpuwhy's flags, folders, user names, ids of containers, cgroups and GPUs{source}",
            units::count(shared.commands)
        ),
        "  kept: times, sizes, counts, process ids, versions, CPU and GPU models, names of functions, GPU kernels and"
            .into(),
        format!("    programs: {}", list(&shared.programs)),
        format!("    files of your code: {}", list(&shared.files)),
        format!(
            "  Check these names; --hide WORD hides more. gpuwhy explain {} shows what others will see.",
            made.display()
        ),
    ]
}

fn list(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| units::safe(name, 60)).collect();
    let more = names.len().saturating_sub(LISTED);
    match (shown.is_empty(), more) {
        (true, _) => "none".into(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {} more", shown.join(", "), units::count(more as u64)),
    }
}
