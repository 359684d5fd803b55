// SPDX-License-Identifier: Apache-2.0
//! Time range and processes of a question, and their match in a run file.

use crate::{Error, Result};
use gpuwhy_model::job::{Job, Jobs, Member};
use gpuwhy_store::{Process, Reader, Session, Span};
use std::time::Duration;

/// Time range and processes of a question. [`Asked`] is its match in a run file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Start, since the run began.
    pub from: Option<Duration>,
    /// End, since the run began.
    pub to: Option<Duration>,
    /// Only the last this long, up to `to`.
    pub since: Option<Duration>,
    /// Only these processes, or their jobs; empty for all.
    pub pids: Vec<u32>,
}

/// A [`Part`] matched to a run: its time range and its jobs.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The run.
    pub session: Session,
    /// Start, nanoseconds since the run began.
    pub from_ns: u64,
    /// End, nanoseconds since the run began.
    pub to_ns: u64,
    /// Every process of the run.
    pub processes: Vec<Process>,
    /// The jobs concerned, whole, whichever of their processes were named.
    pub jobs: Vec<Job>,
    /// Whether these are all jobs of the run.
    pub all: bool,
}

impl Asked {
    /// Matches a question to a run.
    pub fn find(reader: &Reader, part: &Part) -> Result<Self> {
        let session = reader.session()?;
        let (from_ns, to_ns) = part.span(session.duration_ns)?;
        let processes = reader.processes()?;
        let jobs = jobs(reader, &session, &processes)?;
        let unknown = part.pids.iter().find(|pid| jobs.of(**pid).is_none());
        if let Some(pid) = unknown {
            return Err(Error::UnknownProcess { pid: *pid });
        }
        let all = jobs.len();
        let is_asked = |job: &&Job| part.pids.is_empty() || part.pids.iter().any(|pid| job.pids.contains(pid));
        let jobs: Vec<Job> = jobs.iter().filter(is_asked).cloned().collect();
        Ok(Self { session, from_ns, to_ns, processes, all: jobs.len() == all, jobs })
    }

    /// The processes of the jobs.
    pub fn pids(&self) -> Vec<u32> {
        self.jobs.iter().flat_map(|job| &job.pids).copied().collect()
    }

    /// Whether a process belongs to one of the jobs.
    pub fn has(&self, pid: u32) -> bool {
        self.all || self.jobs.iter().any(|job| job.pids.contains(&pid))
    }
}

/// The jobs of a run. A command that gpuwhy started is one job; so are merged runs of commands, as ranks.
fn jobs(reader: &Reader, session: &Session, processes: &[Process]) -> Result<Jobs> {
    if session.command.is_some() {
        return Ok(Jobs::one(processes.iter().map(|process| process.pid)));
    }
    let members: Vec<Member<'_>> = processes
        .iter()
        .map(|one| Member { pid: one.pid, name: &one.name, parent: one.parent, started: one.started })
        .collect();
    Ok(Jobs::of_trees(&members, &reader.ranks()?))
}

impl Part {
    /// Whether it is the whole run.
    pub fn is_whole(&self) -> bool {
        *self == Self::default()
    }

    /// Start and end, nanoseconds since the run began, in a run of length `run_ns`.
    pub fn span(&self, run_ns: u64) -> Result<(u64, u64)> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let to = self.to.map_or(run_ns, |to| ns(to).min(run_ns));
        let from = match self.since {
            Some(since) => to.saturating_sub(ns(since)),
            None => self.from.map_or(0, ns),
        };
        if from >= to && run_ns > 0 {
            return Err(Error::EmptyPart { run_ns });
        }
        Ok((from, to))
    }

    /// The same for a question about stacks; an end that was not given is open.
    pub fn stack_span(&self, run_ns: u64) -> Result<Span> {
        if self.from.is_none() && self.to.is_none() && self.since.is_none() {
            return Ok(Span::All);
        }
        let (from, to) = self.span(run_ns)?;
        Ok(Span::Between(from, self.to.map(|_| to)))
    }
}

/// `500ms`, `60s`, `5m`, `2h`; a bare number is seconds.
pub fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let help = || "expected a time such as 500ms, 60s, 5m or 2h".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(help()),
    };
    let number: f64 = number.parse().map_err(|_| help())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| "too long: expected a time such as 60s or 2h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_within_the_run() {
        let seconds = |n| Some(Duration::from_secs(n));
        let span =
            |part: Part| part.span(10_000_000_000).ok().map(|(from, to)| (from / 1_000_000_000, to / 1_000_000_000));
        assert_eq!(span(Part::default()), Some((0, 10)));
        assert_eq!(span(Part { from: seconds(2), to: seconds(99), ..Part::default() }), Some((2, 10)));
        assert_eq!(span(Part { since: seconds(3), ..Part::default() }), Some((7, 10)));
        assert_eq!(span(Part { since: seconds(300), ..Part::default() }), Some((0, 10)));
        assert_eq!(span(Part { from: seconds(10), ..Part::default() }), None);
        assert_eq!(Part::default().span(0).ok(), Some((0, 0)), "a run that has just begun");
    }
}
