// SPDX-License-Identifier: Apache-2.0
//! Alerts while tracing: figures on their way to the engine of `gpuwhy-memory`, and what it raises on its way to the
//! terminal, the run file and a command.

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

/// What to be alerted of, and how.
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
    /// The shell that runs the command, with the environment a job would have. With sudo only root can tell what that
    /// is: to be asked before rights are given up.
    pub(crate) fn shell(&self, caller: Option<&Caller>, open_files: u64) -> Option<Shell> {
        let command = self.command.clone()?;
        Some(Shell { command, environment: sudo::job_environment(caller), open_files })
    }

    /// A rule that was asked for and cannot be followed.
    fn blind_rule(&self, samples: bool) -> Option<&Rule> {
        let usual = Rule::defaults();
        let percent = |rule: &&Rule| matches!(rule.condition, Condition::MemoryPercent(_)) && !usual.contains(rule);
        self.rules.iter().find(percent).filter(|_| !samples)
    }
}

/// The alerts of the run that is recorded.
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
    /// Begins, after rights were given up: threads inherit what is left.
    pub(crate) fn start(
        settings: &Settings,
        shell: Option<Shell>,
        path: &Path,
        start_ns: u64,
        progress: &Progress,
    ) -> Self {
        if let Some(rule) = settings.alerts.blind_rule(settings.samples) {
            progress.warn(&format!("{} cannot be followed: it needs --host samples, which asks NVML", rule.text));
        }
        let commands = shell.and_then(|shell| {
            let started = Commands::start(shell, path);
            if let Err(error) = &started {
                progress.warn(&format!("the command of --on-alert cannot be run: {error}"));
            }
            started.ok()
        });
        let engine = Engine::new(settings.alerts.rules.clone());
        Self { engine, schedule: Schedule::default(), watch: None, commands, path: path.to_owned(), start_ns }
    }

    /// Takes note of what the allocator reported. Called for every batch: see [`Engine::tensor`].
    pub(crate) fn note(&mut self, batch: &Batch) {
        if !self.engine.is_idle() {
            batch.tensors.iter().for_each(|event| self.engine.tensor(event));
        }
    }

    /// The allocator's reports of a process are given up, to stay within the budget.
    pub(crate) fn lose_reports(&mut self, pid: u32, now_ns: u64) {
        self.engine.lose_reports(pid, now_ns);
    }

    /// Takes note of what NVML said.
    pub(crate) fn samples(&mut self, samples: &Samples, processes: &BTreeSet<u32>) {
        if !self.engine.is_idle() {
            self.engine.look(&samples.gpus, &samples.gpu_processes, |pid| processes.contains(&pid));
        }
    }

    /// Four times a second: looks at the figures, and tells what has changed.
    pub(crate) fn tick(&mut self, now_ns: u64, processes: &BTreeSet<u32>, writer: &WriterThread, progress: &Progress) {
        if self.engine.is_idle() {
            return;
        }
        self.engine.tick(now_ns);
        self.engine.keep_processes(|pid| processes.contains(&pid), now_ns);
        self.watch_for_leaks(now_ns);
        self.tell(writer, progress);
    }

    /// CPU time that looking for leaks has taken so far, ns. It gives way to everybody and keeps to its own schedule.
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
            self.engine.cannot_look_closer(now_ns);
        }
        if self.watch.as_ref().is_some_and(LeakWatch::is_asked) {
            return;
        }
        if let Some(look) = self.schedule.due(elapsed) {
            if self.watch.is_none() {
                self.watch = LeakWatch::start(&self.path).ok();
            }
            if let Some(watch) = &mut self.watch {
                watch.ask(look);
            }
        }
    }

    fn tell(&mut self, writer: &WriterThread, progress: &Progress) {
        for alert in self.engine.take_changes() {
            writer.alert(row(&alert));
            if let Some(commands) = self.commands.as_mut().filter(|_| alert.cleared_ns.is_none()) {
                commands.run(&alert);
            }
            let since = |ns: u64| ns.saturating_sub(self.start_ns);
            progress.alert(&Alert { at_ns: since(alert.at_ns), cleared_ns: alert.cleared_ns.map(since), ..alert });
        }
        let words = self.commands.as_mut().map(Commands::words).unwrap_or_default();
        words.iter().for_each(|words| progress.warn(words));
    }

    /// The last figures are in: tells what they come to, and stops reading the run file, which is about to be closed.
    pub(crate) fn end(&mut self, now_ns: u64, writer: &WriterThread, progress: &Progress) {
        if let Some(leaks) = self.watch.take().and_then(LeakWatch::end).and_then(|answer| answer.leaks) {
            self.engine.leaks(&leaks, now_ns);
        }
        self.tell(writer, progress);
    }

    /// Waits for the command, a little.
    pub(crate) fn finish(self, progress: &Progress) {
        let words = self.commands.map(Commands::finish).unwrap_or_default();
        words.iter().for_each(|words| progress.warn(words));
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
