// SPDX-License-Identifier: Apache-2.0
//! Which part of a run is asked about.

use crate::{Error, Result};
use gpuwhy_model::job::{Job, Jobs, Member};
use gpuwhy_store::{Process, Reader, Session, Span};
use std::time::Duration;

/// A part of a run: of its time, and of its processes. [`Asked`] is what that means in a run file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// From when on, since the run began.
    pub from: Option<Duration>,
    /// Until when.
    pub to: Option<Duration>,
    /// Only the last so much.
    pub since: Option<Duration>,
    /// Only these processes, or their jobs; empty for all.
    pub pids: Vec<u32>,
}

/// A part as it was found in a run: its time and its jobs.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The run.
    pub session: Session,
    /// From when, nanoseconds since the run began.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// Every process of the run.
    pub processes: Vec<Process>,
    /// The jobs that are asked about, whole, whichever of their processes were named.
    pub jobs: Vec<Job>,
    /// Whether these are all the run has.
    pub all: bool,
}

impl Asked {
    /// Finds a part in a run.
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

    /// The processes of its jobs.
    pub fn pids(&self) -> Vec<u32> {
        self.jobs.iter().flat_map(|job| &job.pids).copied().collect()
    }

    /// Whether a process is of one of its jobs.
    pub fn has(&self, pid: u32) -> bool {
        self.all || self.jobs.iter().any(|job| job.pids.contains(&pid))
    }
}

/// The jobs of a run: what gpuwhy started is one, and so are merged runs of commands, which are ranks of one.
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

    /// Its beginning and end, nanoseconds since the run began, of a run that is `run_ns` long.
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

    /// The same for a question about stacks; an end that was not asked for is open.
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
