// SPDX-License-Identifier: Apache-2.0
//! The explanation shown when a trace ends.

use crate::output;
use crate::trace::job::RunningJob;
use crate::trace::{Summary, recorder};
use anyhow::bail;
use gpuwhy_ask::{Part, explain};
use gpuwhy_model::units;
use gpuwhy_store::Reader;
use gpuwhy_view::finding_view::{self, Detail};
use gpuwhy_view::{Style, explain_view};
use gpuwhy_why::Report;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often to check whether the explaining thread has finished.
const PAUSE: Duration = Duration::from_millis(5);

/// The outcome.
pub(crate) enum Answer {
    /// There is nothing to explain; the summary says why.
    None,
    /// The explanation.
    Found(Box<Report>),
    /// The run could not be explained, and why.
    Failed(String),
}

/// Explains the recorded run and stores its findings. A failure does not fail the trace. A signal ends it, unless the signal
/// is for a job that still runs.
pub(crate) fn find(
    summary: &Summary,
    mut job: Option<&mut RunningJob>,
    signals: &mut SignalsInfo<WithOrigin>,
) -> Answer {
    if summary.cuda_calls == 0 || summary.path.as_os_str().is_empty() {
        return Answer::None;
    }
    let path = summary.path.clone();
    // On its own thread, so that Ctrl-C is handled meanwhile.
    let spawned = std::thread::Builder::new().name("explain".into()).spawn(move || explain_whole(&path));
    let Ok(thread) = spawned else { return Answer::Failed("cannot start a thread".into()) };
    let began = Instant::now();
    let mut announced = !std::io::stderr().is_terminal();
    while !thread.is_finished() {
        for origin in signals.pending() {
            let goes_on = job.as_mut().is_some_and(|job| job.ended().is_none());
            match job.as_ref().filter(|_| goes_on) {
                Some(job) => recorder::pass_on(job, &origin),
                None => return Answer::Failed("interrupted".into()),
            }
        }
        if !announced && began.elapsed() >= output::PATIENCE {
            announced = true;
            output::say_aside("gpuwhy: explaining …");
        }
        std::thread::sleep(PAUSE);
    }
    match thread.join() {
        Ok(Ok(report)) => Answer::Found(Box::new(report)),
        Ok(Err(error)) => Answer::Failed(output::one_sentence(&error)),
        Err(_) => Answer::Failed("internal error in gpuwhy, please report it".into()),
    }
}

fn explain_whole(path: &Path) -> anyhow::Result<Report> {
    let explained = {
        let reader = Reader::open(path)?;
        explain::explain(&reader, &Part::default())?
    };
    if explained.report.verdict.is_empty() {
        bail!("the run has nothing to explain");
    }
    explain::keep(path, &explained);
    Ok(explained.report)
}

impl Answer {
    /// For people: the verdict, up to three findings, and the command that shows more.
    pub(crate) fn lines(&self, path: &Path, width: usize, style: Style) -> Vec<String> {
        let report = match self {
            Self::None => return Vec::new(),
            Self::Failed(why) => {
                return vec![format!("gpuwhy: cannot explain this run: {}", units::safe(why, 500))];
            }
            Self::Found(report) => report,
        };
        let mut lines = vec![String::new()];
        if !report.jobs.is_empty() {
            lines.extend(explain_view::job_lines(report, &path.display().to_string(), width, style));
            return lines;
        }
        lines.extend(explain_view::verdict(&report.verdict, width, style));
        lines.extend(finding_view::lines(&report.findings, Detail::Short, width, style));
        lines.push(String::new());
        lines.extend(explain_view::outlook(report, &path.display().to_string(), width, style));
        lines
    }

    /// For programs: `verdict` and `findings` of the summary; null and empty without an explanation.
    pub(crate) fn add_to(&self, summary: &mut serde_json::Value) {
        let (verdict, findings, note) = match self {
            Self::None => (None, Vec::new(), None),
            Self::Failed(why) => (None, Vec::new(), Some(why)),
            Self::Found(report) => (Some(&report.verdict), report.findings.clone(), None),
        };
        summary["verdict"] = serde_json::json!(verdict);
        summary["findings"] = serde_json::json!(findings);
        summary["not_explained"] = serde_json::json!(note);
    }
}
