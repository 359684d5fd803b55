// SPDX-License-Identifier: Apache-2.0
//! PyTorch's own files on the screen. The first screen has the verdict on each file, the findings that matter and one
//! small table; the full one has everything.

use crate::explain_view::{PROSE, verdict};
use crate::finding_view::{self, Detail};
use crate::style::Style;
use crate::wrap::wrap;
use crate::{profile_memory, profile_trace};
use gpuwhy_model::{Finding, units};
use gpuwhy_torch::snapshot::MemoryReport;
use gpuwhy_torch::trace::TraceReport;

/// Several files and what was found in them.
#[derive(Debug, Clone)]
pub struct ProfileView<'a> {
    /// The files, in order.
    pub files: Vec<ProfileFile<'a>>,
    /// The findings of all files, worst first.
    pub findings: &'a [Finding],
    /// Whether figures of traces cover warm-up.
    pub include_warmup: bool,
    /// The first screen, or everything.
    pub detail: Detail,
    /// The command that shows everything.
    pub full_command: String,
}

/// A file.
#[derive(Debug, Clone)]
pub struct ProfileFile<'a> {
    /// Its path.
    pub path: String,
    /// Its name among several of a kind: `rank 3`.
    pub label: Option<&'a str>,
    /// What is in it; `None` if it could not be read.
    pub report: Option<ProfileReport<'a>>,
    /// What could not be read, or is not certain.
    pub warnings: Vec<String>,
}

/// What is in a file.
#[derive(Debug, Clone, Copy)]
pub enum ProfileReport<'a> {
    /// A profiler trace.
    Trace(&'a TraceReport),
    /// A memory snapshot.
    Memory(&'a MemoryReport),
}

impl ProfileView<'_> {
    /// Everything, for a terminal of `width` columns.
    pub fn lines(&self, width: usize, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        for file in &self.files {
            separate(&mut lines);
            lines.push(file.header(style));
            lines.extend(file.verdict(self.include_warmup, width, style));
        }
        lines.extend(finding_view::lines(self.findings, self.detail, width, style));
        for section in self.tables(width, style).into_iter().filter(|section| !section.is_empty()) {
            separate(&mut lines);
            lines.extend(section);
        }
        let warnings: Vec<String> = self.files.iter().flat_map(|file| file.warning_lines(width, style)).collect();
        if !warnings.is_empty() {
            separate(&mut lines);
            lines.extend(warnings);
        }
        if self.detail == Detail::Short {
            separate(&mut lines);
            lines.extend(self.more(width, style));
        }
        lines
    }

    /// The tables of each file; on the first screen, one of the first trace and one of the first snapshot.
    fn tables(&self, width: usize, style: Style) -> Vec<Vec<String>> {
        if self.detail == Detail::Full {
            return self.files.iter().map(|file| self.all_tables(file, width, style)).collect();
        }
        let trace = self.files.iter().find_map(|file| match file.report {
            Some(ProfileReport::Trace(report)) => Some((file, report)),
            _ => None,
        });
        let memory = self.files.iter().find_map(|file| match file.report {
            Some(ProfileReport::Memory(report)) => Some((file, report)),
            _ => None,
        });
        let named = |file: &ProfileFile<'_>, mut lines: Vec<String>| {
            if let (Some(label), Some(heading)) = (file.label, lines.first_mut()) {
                *heading = format!("{heading} ({})", units::safe(label, 80));
            }
            lines
        };
        let trace = trace
            .map(|(file, report)| named(file, profile_trace::short_lines(report, self.include_warmup, width, style)));
        let memory = memory.map(|(file, report)| named(file, profile_memory::short_lines(report, width, style)));
        trace.into_iter().chain(memory).collect()
    }

    fn all_tables(&self, file: &ProfileFile<'_>, width: usize, style: Style) -> Vec<String> {
        let tables = match file.report {
            Some(ProfileReport::Trace(report)) => profile_trace::lines(report, self.include_warmup, width, style),
            Some(ProfileReport::Memory(report)) => profile_memory::lines(report, width, style),
            None => return Vec::new(),
        };
        if self.files.len() < 2 {
            return tables;
        }
        // Several files: each set of tables names its own.
        let mut lines = vec![file.header(style), String::new()];
        lines.extend(tables);
        lines
    }

    /// The command for everything, and what it adds.
    fn more(&self, width: usize, style: Style) -> Vec<String> {
        let mut names: Vec<String> = match finding_view::hidden(self.findings, self.detail) as u64 {
            0 => Vec::new(),
            1 => vec!["1 smaller finding".to_owned()],
            n => vec![format!("{} smaller findings", units::count(n))],
        };
        for file in &self.files {
            let sections = match file.report {
                Some(ProfileReport::Trace(report)) => profile_trace::section_names(report),
                Some(ProfileReport::Memory(report)) => profile_memory::section_names(report),
                None => Vec::new(),
            };
            for name in sections {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
        }
        let list = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let text = format!("More: {}{list}", units::safe(&self.full_command, 1000));
        wrap(&text, width.min(PROSE), 6).iter().map(|line| style.dim(line)).collect()
    }
}

impl ProfileFile<'_> {
    /// `trace.json · profiler trace · NVIDIA H200 · 6 steps · 22,817 events`
    fn header(&self, style: Style) -> String {
        let label = self.label.map(|label| format!(" ({})", units::safe(label, 80))).unwrap_or_default();
        let mut parts = vec![format!("{}{label}", style.bold(&units::safe(&self.path, 500)))];
        match self.report {
            Some(ProfileReport::Trace(report)) => {
                parts.push("profiler trace".to_owned());
                parts.extend(profile_trace::facts(report));
            }
            Some(ProfileReport::Memory(report)) => {
                parts.push("memory snapshot".to_owned());
                parts.extend(report.devices.iter().map(|device| format!("cuda:{}", device.index)));
            }
            None => parts.push("not readable".to_owned()),
        }
        parts.join(" · ")
    }

    fn verdict(&self, include_warmup: bool, width: usize, style: Style) -> Vec<String> {
        let text = match self.report {
            Some(ProfileReport::Trace(report)) => profile_trace::verdict(report, include_warmup),
            Some(ProfileReport::Memory(report)) => profile_memory::verdict(report),
            None => return Vec::new(),
        };
        verdict(&text, width, style)
    }

    fn warning_lines(&self, width: usize, style: Style) -> Vec<String> {
        let lines = |warning: &String| {
            let text = format!("warning: {}", units::safe(warning, 500));
            let mut lines = wrap(&text, width.min(PROSE), "warning: ".len());
            if let Some(first) = lines.first_mut() {
                *first = first.replacen("warning:", &style.yellow("warning:"), 1);
            }
            lines
        };
        self.warnings.iter().flat_map(lines).collect()
    }
}

/// An empty line, unless at the top.
fn separate(lines: &mut Vec<String>) {
    if !lines.is_empty() {
        lines.push(String::new());
    }
}
