// SPDX-License-Identifier: Apache-2.0
//! Alerts while tracing: feeds figures to the engine of `gpuwhy-memory`, and passes its alerts to the terminal, the run
//! file and the command of `--on-alert`.

mod command;
mod leak_watch;

use crate::trace::Settings;
use crate::trace::display::Progress;
use crate::trace::sudo::{self, Caller};
use crate::trace::writer::WriterThread;
use command::{Commands, Shell};
use gpuwhy_capture::batch::Batch;
use gpuwhy_memory::alerts::rule::Condition;
use gpuwhy_memory::alerts::{Alert, Engine, Rule, Schedule};
use gpuwhy_model::Samples;
use gpuwhy_store::AlertRow;
use leak_watch::LeakWatch;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The rules, and the command to run.
#[derive(Debug, Clone)]
pub(crate) struct AlertSettings {
    pub(crate) rules: Vec<Rule>,
    /// A command for the shell, run for each alert.
    pub(crate) command: Option<OsString>,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self { rules: Rule::defaults(), command: None }
    }
}

impl AlertSettings {
    /// The shell for the command, with the environment a job would have. Call it before giving up rights: with sudo, only
    /// root can find that environment.
    pub(crate) fn shell(&self, caller: Option<&Caller>, open_files: u64) -> Option<Shell> {
        let command = self.command.clone()?;
        Some(Shell { command, environment: sudo::job_environment(caller), open_files })
    }

    /// A rule that was given but cannot work.
    fn blind_rule(&self, samples: bool) -> Option<&Rule> {
        let usual = Rule::defaults();
        let percent = |rule: &&Rule| matches!(rule.condition, Condition::MemoryPercent(_)) && !usual.contains(rule);
        self.rules.iter().find(percent).filter(|_| !samples)
    }
}

/// The alerts of the run that is being recorded.
pub(crate) struct Alerting {
    engine: Engine,
    schedule: Schedule,
    watch: Option<LeakWatch>,
    commands: Option<Commands>,
    /// The run file.
    path: PathBuf,
    start_ns: u64,
}

impl Alerting {
    /// Call it after giving up rights: threads inherit those that are left.
    pub(crate) fn start(
        settings: &Settings,
        shell: Option<Shell>,
        path: &Path,
        start_ns: u64,
        progress: &Progress,
    ) -> Self {
        if let Some(rule) = settings.alerts.blind_rule(settings.samples) {
            progress.warn(&format!("alert {} cannot work without NVML: add --host samples", rule.text));
        }
        let commands = shell.and_then(|shell| {
            let started = Commands::start(shell, path);
            if let Err(error) = &started {
                progress.warn(&format!("cannot run the --on-alert command: {error}"));
            }
            started.ok()
        });
        let engine = Engine::new(settings.alerts.rules.clone());
        Self { engine, schedule: Schedule::default(), watch: None, commands, path: path.to_owned(), start_ns }
    }

    /// Takes the allocator's reports of a batch: see [`Engine::tensor`].
    pub(crate) fn note(&mut self, batch: &Batch) {
        if !self.engine.is_idle() {
            batch.tensors.iter().for_each(|event| self.engine.tensor(event));
        }
    }

    /// gpuwhy paused the allocator's reports of a process to stay within the budget.
    pub(crate) fn pause_reports(&mut self, pid: u32, now_ns: u64) {
        self.engine.pause_reports(pid, now_ns);
    }

    /// Takes NVML's samples.
    pub(crate) fn samples(&mut self, samples: &Samples, processes: &BTreeSet<u32>) {
        if !self.engine.is_idle() {
            self.engine.sample(&samples.gpus, &samples.gpu_processes, |pid| processes.contains(&pid));
        }
    }

    /// Checks the figures and passes on what has changed. Call it four times a second.
    pub(crate) fn tick(&mut self, now_ns: u64, processes: &BTreeSet<u32>, writer: &WriterThread, progress: &Progress) {
        if self.engine.is_idle() {
            return;
        }
        self.engine.tick(now_ns);
        self.engine.keep_processes(|pid| processes.contains(&pid), now_ns);
        self.watch_for_leaks(now_ns);
        self.pass_on(writer, progress);
    }

    /// CPU time spent on the search for leaks so far, ns. It has the lowest priority and its own limit.
    pub(crate) fn aside_ns(&self) -> u64 {
        self.watch.as_ref().map_or(0, LeakWatch::spent_ns)
    }

    fn watch_for_leaks(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.start_ns);
        if let Some(answer) = self.watch.as_mut().and_then(LeakWatch::answer) {
            self.schedule.done(elapsed, answer.cpu_ns, answer.finished);
            if let Some(leaks) = answer.leaks {
                self.engine.leaks(&leaks, now_ns);
            }
        }
        if !self.engine.suspects() {
            return;
        }
        if self.schedule.is_partial() {
            self.engine.cannot_examine(now_ns);
        }
        if self.watch.as_ref().is_some_and(LeakWatch::is_busy) {
            return;
        }
        if let Some(examination) = self.schedule.due(elapsed) {
            if self.watch.is_none() {
                self.watch = LeakWatch::start(&self.path).ok();
            }
            if let Some(watch) = &mut self.watch {
                watch.ask(examination);
            }
        }
    }

    fn pass_on(&mut self, writer: &WriterThread, progress: &Progress) {
        for alert in self.engine.take_changes() {
            writer.alert(row(&alert));
            if let Some(commands) = self.commands.as_mut().filter(|_| alert.cleared_ns.is_none()) {
                commands.run(&alert);
            }
            let since = |ns: u64| ns.saturating_sub(self.start_ns);
            progress.alert(&Alert { at_ns: since(alert.at_ns), cleared_ns: alert.cleared_ns.map(since), ..alert });
        }
        let warnings = self.commands.as_mut().map(Commands::warnings).unwrap_or_default();
        warnings.iter().for_each(|warning| progress.warn(warning));
    }

    /// The last figures are in: passes on the last alerts and stops reading the run file, which is about to be closed.
    pub(crate) fn end(&mut self, now_ns: u64, writer: &WriterThread, progress: &Progress) {
        if let Some(leaks) = self.watch.take().and_then(LeakWatch::end).and_then(|answer| answer.leaks) {
            self.engine.leaks(&leaks, now_ns);
        }
        self.pass_on(writer, progress);
    }

    /// Waits a short time for the command.
    pub(crate) fn finish(self, progress: &Progress) {
        let warnings = self.commands.map(Commands::finish).unwrap_or_default();
        warnings.iter().for_each(|warning| progress.warn(warning));
    }
}

fn row(alert: &Alert) -> AlertRow {
    AlertRow {
        id: alert.id,
        at_ns: alert.at_ns,
        cleared_ns: alert.cleared_ns,
        level: alert.level.name().to_owned(),
        kind: alert.kind.name().to_owned(),
        rule: alert.rule.clone(),
        pid: alert.pid,
        device: alert.device,
        gpu: alert.gpu,
        value: alert.value,
        threshold: alert.threshold,
        text: alert.text.clone(),
    }
}
