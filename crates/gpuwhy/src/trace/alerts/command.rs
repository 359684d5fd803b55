// SPDX-License-Identifier: Apache-2.0
//! The command of `--on-alert`: run by the shell, one at a time, on its own thread, so that tracing never waits for it.
//! Alerts reach it only as environment variables and never become part of the shell's text.
//!
//! Under sudo it runs as the user who called sudo, as a job does. It has none of the capabilities that gpuwhy keeps for
//! tracing and cannot gain any.

use crate::trace::{limits, privileges};
use gpuwhy_memory::alerts::Alert;
use gpuwhy_model::units;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Alerts that wait for their turn.
const QUEUE: usize = 16;
/// A command that runs longer is killed.
const LONGEST: Duration = Duration::from_secs(30);
/// How long gpuwhy waits for it after tracing has ended.
const AT_THE_END: Duration = Duration::from_secs(5);
/// Time between checks whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest variable, characters: names in it come from the traced processes.
const MOST_TEXT: usize = 500;

/// How to run the command.
pub(crate) struct Shell {
    pub(crate) command: OsString,
    /// The environment a job would have.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Its limit of open files: gpuwhy has raised its own.
    pub(crate) open_files: u64,
}

type Variables = Vec<(&'static str, OsString)>;

/// The thread, from outside.
pub(super) struct Commands {
    queue: SyncSender<Variables>,
    warnings: Receiver<String>,
    /// Set when tracing has ended; until then only [`LONGEST`] limits the command.
    deadline: Arc<OnceLock<Instant>>,
    thread: JoinHandle<()>,
    run_file: PathBuf,
    left_out: u64,
}

impl Commands {
    /// Starts the thread.
    pub(super) fn start(shell: Shell, run_file: &Path) -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUE);
        let (warn, warnings) = channel();
        let deadline = Arc::new(OnceLock::new());
        let theirs = Arc::clone(&deadline);
        let thread = std::thread::Builder::new().name("on-alert".into()).spawn(move || {
            let mut runner = Runner { shell, deadline: theirs, warn, has_failed: false };
            let mut not_run = 0;
            for variables in waiting {
                if runner.is_over() {
                    not_run += 1;
                } else {
                    runner.run(variables);
                }
            }
            runner.warn_left_out(not_run);
        })?;
        Ok(Self { queue, warnings, deadline, thread, run_file: run_file.to_owned(), left_out: 0 })
    }

    /// Queues the command for an alert.
    pub(super) fn run(&mut self, alert: &Alert) {
        self.left_out += u64::from(self.queue.try_send(variables(alert, &self.run_file)).is_err());
    }

    /// New warnings for the user.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        self.warnings.try_iter().chain(left_out(std::mem::take(&mut self.left_out))).collect()
    }

    /// Waits up to [`AT_THE_END`] for the command; returns the last warnings.
    pub(super) fn finish(mut self) -> Vec<String> {
        let mut warnings = self.warnings();
        let Self { queue, warnings: last, deadline, thread, .. } = self;
        // Set once, here.
        let _ = deadline.set(Instant::now() + AT_THE_END);
        drop(queue);
        let _ = thread.join();
        warnings.extend(last.try_iter());
        warnings
    }
}

fn left_out(alerts: u64) -> Option<String> {
    (alerts > 0).then(|| {
        let noun = if alerts == 1 { "alert" } else { "alerts" };
        format!("the --on-alert command was not run for {} {noun}: earlier runs took too long", units::count(alerts))
    })
}

/// The command's environment variables.
fn variables(alert: &Alert, run_file: &Path) -> Variables {
    let text = |text: &str| OsString::from(units::safe(text, MOST_TEXT));
    let number = |number: Option<u32>| OsString::from(number.map(|n| n.to_string()).unwrap_or_default());
    vec![
        ("GPUWHY_ALERT_KIND", alert.kind.name().into()),
        ("GPUWHY_ALERT_LEVEL", alert.level.name().into()),
        ("GPUWHY_ALERT_TEXT", text(&alert.text)),
        ("GPUWHY_ALERT_RULE", text(&alert.rule)),
        ("GPUWHY_ALERT_PID", number(alert.pid)),
        ("GPUWHY_ALERT_DEVICE", number(alert.device)),
        ("GPUWHY_ALERT_GPU", number(alert.gpu)),
        ("GPUWHY_ALERT_VALUE", alert.value.to_string().into()),
        ("GPUWHY_ALERT_THRESHOLD", alert.threshold.map(|limit| limit.to_string()).unwrap_or_default().into()),
        ("GPUWHY_ALERT_RUN", run_file.as_os_str().to_owned()),
    ]
}

/// The thread, from inside.
struct Runner {
    shell: Shell,
    deadline: Arc<OnceLock<Instant>>,
    warn: std::sync::mpsc::Sender<String>,
    /// A failure is reported once.
    has_failed: bool,
}

impl Runner {
    fn is_over(&self) -> bool {
        self.deadline.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }

    fn run(&mut self, variables: Variables) {
        let failed = match self.spawn(variables) {
            Err(error) => Some(format!("could not be started: {error}")),
            Ok(child) => match self.wait(child) {
                Ok(status) if status.success() => None,
                Ok(status) => Some(format!("failed ({status})")),
                Err(why) => Some(why),
            },
        };
        if let Some(why) = failed.filter(|_| !self.has_failed) {
            self.has_failed = true;
            self.warn(format!("the --on-alert command {why}; further failures are not reported"));
        }
    }

    fn spawn(&self, variables: Variables) -> std::io::Result<Child> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&self.shell.command).env_clear();
        command.envs(self.shell.environment.iter().map(|(name, value)| (name, value))).envs(variables);
        // gpuwhy's stdout may carry JSON. Its own process group: Ctrl-C does not reach it, and it can be killed as a whole.
        let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
        command.stdin(Stdio::null()).stdout(Stdio::from(stderr)).process_group(0);
        let open_files = self.shell.open_files;
        // SAFETY: runs between fork and exec and makes only async-signal-safe calls.
        unsafe {
            command.pre_exec(move || {
                limits::restore_open_files(open_files);
                privileges::take_all_from_this_process()
            });
        }
        command.spawn()
    }

    /// Waits for the command; kills it if it takes too long.
    fn wait(&self, mut child: Child) -> Result<ExitStatus, String> {
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(format!("could not be waited for: {error}")),
            }
            let too_long = began.elapsed() >= LONGEST;
            if too_long || self.is_over() {
                let group = -child.id().cast_signed();
                // SAFETY: the child has not been reaped, so the group id is still its own.
                unsafe { libc::kill(group, libc::SIGKILL) };
                let _ = child.wait();
                let limit = if too_long { LONGEST } else { AT_THE_END };
                let when = if too_long { "for more than" } else { "after tracing ended, for" };
                return Err(format!("was killed: it ran {when} {} s", limit.as_secs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn warn_left_out(&self, alerts: u64) {
        left_out(alerts).into_iter().for_each(|warning| self.warn(warning));
    }

    fn warn(&self, warning: String) {
        // Without a receiver there is no one to warn.
        let _ = self.warn.send(warning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_memory::alerts::{AlertKind, Level};

    fn alert(text: &str) -> Alert {
        Alert {
            id: 1,
            at_ns: 5,
            cleared_ns: None,
            level: Level::Critical,
            kind: AlertKind::Leak,
            rule: "leak".into(),
            pid: Some(7),
            device: None,
            gpu: None,
            value: 2.5e6,
            threshold: None,
            text: text.into(),
        }
    }

    fn commands(command: &str) -> Commands {
        let shell = Shell {
            command: command.into(),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            open_files: 512,
        };
        Commands::start(shell, Path::new("/x/run.db")).unwrap()
    }

    #[test]
    fn an_alert_never_becomes_part_of_the_shells_text() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let command = format!(
            "printf '%s|' \"$GPUWHY_ALERT_KIND\" \"$GPUWHY_ALERT_LEVEL\" \"$GPUWHY_ALERT_TEXT\" \"$GPUWHY_ALERT_RULE\" \
             \"$GPUWHY_ALERT_PID\" \"$GPUWHY_ALERT_VALUE\" \"$GPUWHY_ALERT_THRESHOLD\" \"$GPUWHY_ALERT_RUN\" \
             \"$(ulimit -n)\" \"$(cat)\" > {}",
            out.display()
        );
        let mut commands = commands(&command);
        commands.run(&alert("$(touch /nowhere); `id` '\"\x1b[2J\n\0"));
        assert_eq!(commands.finish(), [""; 0]);
        let said = std::fs::read_to_string(out).unwrap();
        let text = "$(touch /nowhere); `id` '\"\u{fffd}[2J\u{fffd}\u{fffd}";
        assert_eq!(said, format!("leak|critical|{text}|leak|7|2500000||/x/run.db|512||"));
    }

    #[test]
    fn it_has_no_rights_beyond_those_of_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        // Otherwise a program of root's would get back every capability in the bounding set.
        let mut commands =
            commands(&format!("grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status > {}", out.display()));
        commands.run(&alert("a"));
        assert_eq!(commands.finish(), [""; 0]);
        let said = std::fs::read_to_string(out).unwrap();
        let fields: Vec<_> = said.lines().filter_map(|line| line.split_once(":\t")).collect();
        assert_eq!(fields.len(), 5, "{said}");
        for (name, value) in fields {
            let expected = if name == "NoNewPrivs" { "1" } else { "0000000000000000" };
            assert_eq!(value, expected, "{name}");
        }
    }

    #[test]
    fn a_failure_is_reported_once() {
        let mut commands = commands("exit 3");
        (0..3).for_each(|_| commands.run(&alert("a")));
        let warnings = commands.finish();
        assert!(warnings.len() == 1 && warnings[0].contains("exit status: 3"), "{warnings:?}");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_with_its_children_after_the_trace() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let mut commands = commands(&format!("sleep 1000 & echo $! > {}; wait", pid_file.display()));
        commands.run(&alert("a"));
        commands.run(&alert("b"));
        let warnings = commands.finish();
        assert!(warnings[0].contains("killed") && warnings[1].contains("not run for 1 alert:"), "{warnings:?}");
        let pid = std::fs::read_to_string(pid_file).unwrap();
        // SIGKILL was sent; the kernel decides when the process is gone.
        let is_there = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        let began = Instant::now();
        while is_there() {
            assert!(began.elapsed() < Duration::from_secs(60), "its child is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn alerts_that_come_too_fast_are_skipped() {
        let mut commands = commands("sleep 1000");
        (0..40).for_each(|_| commands.run(&alert("a")));
        assert!(commands.warnings().iter().any(|warning| warning.contains("not run for")));
        drop(commands.finish());
    }
}
