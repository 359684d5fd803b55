// SPDX-License-Identifier: Apache-2.0
//! Why the job was slow, said when its trace ends.

use crate::output;
use crate::trace::job::RunningJob;
use crate::trace::{Summary, recorder};
use anyhow::bail;
use gpuwhy_ask::{Part, explain};
use gpuwhy_model::{Severity, units};
use gpuwhy_store::Reader;
use gpuwhy_view::{Style, explain_view};
use gpuwhy_why::Report;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait between looks at the thread that explains.
const PAUSE: Duration = Duration::from_millis(5);
/// Findings named.
const NAMED: usize = 5;

/// What came out.
pub(crate) enum Answer {
    /// There is nothing to explain; why has been said with the summary.
    None,
    /// The explanation.
    Found(Box<Report>),
    /// There is none, and why.
    Failed(String),
}

/// Explains a run just recorded, and stores its findings. However that goes, it is no reason to fail: a signal ends it,
/// unless it is for a job that goes on.
pub(crate) fn find(
    summary: &Summary,
    mut job: Option<&mut RunningJob>,
    signals: &mut SignalsInfo<WithOrigin>,
) -> Answer {
    if summary.cuda_calls == 0 || summary.path.as_os_str().is_empty() {
        return Answer::None;
    }
    let path = summary.path.clone();
    // On a thread of its own, so that Ctrl-C is heard meanwhile.
    let spawned = std::thread::Builder::new().name("explain".into()).spawn(move || explain_whole(&path));
    let Ok(thread) = spawned else { return Answer::Failed("no thread could be started".into()) };
    let began = Instant::now();
    let mut told = !std::io::stderr().is_terminal();
    while !thread.is_finished() {
        for origin in signals.pending() {
            let goes_on = job.as_mut().is_some_and(|job| job.ended().is_none());
            match job.as_ref().filter(|_| goes_on) {
                Some(job) => recorder::pass_on(job, &origin),
                None => return Answer::Failed("interrupted".into()),
            }
        }
        if !told && began.elapsed() >= output::PATIENCE {
            told = true;
            output::say_aside("gpuwhy: explaining …");
        }
        std::thread::sleep(PAUSE);
    }
    match thread.join() {
        Ok(Ok(report)) => Answer::Found(Box::new(report)),
        Ok(Err(error)) => Answer::Failed(output::one_sentence(&error)),
        Err(_) => Answer::Failed("a fault in gpuwhy, please report it".into()),
    }
}

fn explain_whole(path: &Path) -> anyhow::Result<Report> {
    let explained = {
        let reader = Reader::open(path)?;
        explain::explain(&reader, &Part::default())?
    };
    if explained.report.verdict.is_empty() {
        bail!("there is nothing to say about this run");
    }
    explain::keep(path, &explained);
    Ok(explained.report)
}

impl Answer {
    /// For people: the verdict, and what each finding is about.
    pub(crate) fn lines(&self, path: &Path, width: usize, style: Style) -> Vec<String> {
        let report = match self {
            Self::None => return Vec::new(),
            Self::Failed(why) => {
                return vec![format!("gpuwhy: this run was not explained: {}", units::safe(why, 500))];
            }
            Self::Found(report) => report,
        };
        let mut lines = vec![String::new()];
        if !report.jobs.is_empty() {
            lines.extend(explain_view::job_lines(report, &path.display().to_string(), width, style));
            return lines;
        }
        lines.extend(explain_view::verdict(&report.verdict, width, style));
        let worth = |severity: Severity| severity > Severity::Info;
        let named = report.findings.iter().filter(|finding| worth(finding.severity)).take(NAMED);
        lines.extend(named.map(|finding| format!("  {}", explain_view::title_line(finding, style))));
        let path = units::safe(&path.display().to_string(), 500);
        lines.push(style.dim(&format!("  gpuwhy explain --db {path} shows more")));
        lines
    }

    /// For programs: `verdict` and `findings` of the summary, null and none where there is no explanation.
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
