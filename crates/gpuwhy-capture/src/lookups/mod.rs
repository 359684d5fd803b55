// SPDX-License-Identifier: Apache-2.0
//! Looking into processes that are not trusted, without ever waiting for them for long.
//!
//! What a process says of itself (mappings, the files behind them, its memory, its command line) is read by processes
//! made for that, which can do nothing else ([`sandbox`]). Processes rather than threads, because a process chooses how
//! long its memory and files take to be read: a thread that waits for them cannot be ended, and would keep gpuwhy from
//! ending, too. A reader that does not answer in time is killed, another takes its place, and the process it was asked
//! about is given up.
//!
//! Two kinds of questions: those whose answer can come later ([`Lookups::ask_later`]), to which one of three readers
//! finds the answer, and small ones that are waited for ([`Lookups::ask_now`]), a quarter of the time at most.

mod question;
mod queue;
mod reader;
mod reader_process;
mod sandbox;
#[cfg(test)]
mod tests;
mod wire;

pub use question::ProcessNames;
pub(crate) use question::{Answer, Command, LeftBehind, LibraryPart, Mapped, PythonAnswer, Question, Refusal};

use question::Reply;
use queue::{Queue, Terms};
use reader_process::Starter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};
use wire::Wire;

/// The place of the reader that answers at once, and of those that answer later.
const AT_ONCE: u8 = 0;
const LATER: usize = 3;
/// The longest that one process is read for.
const LONGEST: Duration = Duration::from_secs(20);
/// A small question has its answer within a millisecond; on a busy machine later.
const SMALL: Duration = Duration::from_millis(500);
/// Another reader is started when the others have been at work for this long.
const PATIENCE: Duration = Duration::from_millis(20);
/// How much of the time gpuwhy may wait for small answers: one part in so many, and so much at once.
const SHARE: u32 = 4;
const AT_ONCE_MOST: Duration = Duration::from_secs(1);
/// Questions that wait for a reader; whoever starts more processes at once wants to wear gpuwhy out.
const MOST_QUEUED: usize = 1 << 14;
/// Processes that are remembered as given up.
const MOST_GIVEN_UP: usize = 1 << 12;
/// What was given up is said so often; then it is only counted.
const MOST_SAID: u64 = 10;

/// A library as a reader found it.
#[derive(Debug)]
pub(crate) struct ReadLibrary {
    pub(crate) part: LibraryPart,
    /// The file itself: whatever its path leads to later.
    pub(crate) file: Option<File>,
}

/// An answer that came later. `P` says what it was asked for.
#[derive(Debug)]
pub(crate) struct Answered<P> {
    pub(crate) question: Question,
    pub(crate) purpose: P,
    /// `None` if it was given up.
    pub(crate) answer: Option<Answer>,
    pub(crate) libraries: Vec<ReadLibrary>,
}

/// A question a reader is at.
#[derive(Debug)]
struct Asked<P> {
    question: Question,
    purpose: P,
    began: Instant,
    heard: Instant,
    terms: Terms,
    libraries: Vec<ReadLibrary>,
}

/// The place of a reader.
#[derive(Debug)]
struct Place<P> {
    number: u8,
    wire: Option<Wire>,
    asked: Option<Asked<P>>,
}

/// Whether an answer is waited for. A busy machine may take too long for a small one: that must not cost more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    AtOnce,
    Later,
}

/// What came of listening to a reader.
enum Heard {
    Nothing,
    Done(Answer, u64),
    /// It is gone, or says what makes no sense.
    Broken,
}

impl<P> Place<P> {
    fn new(number: u8) -> Self {
        Self { number, wire: None, asked: None }
    }

    /// Asks its reader, which has nothing to do; a new one if there is none.
    fn ask(&mut self, starter: &Starter, question: Question, purpose: P, terms: Terms) {
        let bytes = postcard::to_stdvec(&question).unwrap_or_default();
        let now = Instant::now();
        self.asked = Some(Asked { question, purpose, began: now, heard: now, terms, libraries: Vec::new() });
        if self.wire.is_none() {
            self.wire = starter.reader(self.number).ok();
        }
        if self.wire.as_ref().is_some_and(|wire| wire.send(&bytes, None, true).is_err()) {
            self.wire = None;
        }
    }

    /// Takes what the reader has said.
    fn hear(&mut self) -> Heard {
        let Some(asked) = &mut self.asked else { return Heard::Nothing };
        let Some(wire) = &mut self.wire else { return Heard::Broken };
        loop {
            let message = match wire.receive(false) {
                Ok(None) => return Heard::Nothing,
                Ok(Some(message)) => message,
                Err(_) => return Heard::Broken,
            };
            asked.heard = Instant::now();
            match postcard::from_bytes(&message.bytes) {
                Ok(Reply::Library(part)) => {
                    asked.libraries.push(ReadLibrary { part, file: message.file.map(File::from) });
                }
                Ok(Reply::Done(answer, cpu_ns)) => return Heard::Done(answer, cpu_ns),
                Err(_) => return Heard::Broken,
            }
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        let late = |asked: &Asked<P>| {
            let patience = if matches!(asked.question, Question::Likely(_)) { LONGEST } else { asked.terms.silence };
            now.duration_since(asked.heard) > patience || now.duration_since(asked.began) > LONGEST
        };
        self.asked.as_ref().is_some_and(late)
    }
}

/// Whoever looks things up.
#[derive(Debug)]
pub(crate) struct Lookups<P> {
    starter: Starter,
    at_once: Place<()>,
    later: [Place<P>; LATER],
    queue: Queue<(Question, P)>,
    /// Questions that nobody was asked.
    unasked: Vec<Answered<P>>,
    /// Processes that are not looked into any more: for answers at once, or for those that can come later.
    given_up: HashSet<(u32, Kind)>,
    times_given_up: u64,
    /// Processes whose libraries could not be read in time, since the last [`Lookups::take_unread`].
    unread: u64,
    allowance: Allowance,
    /// CPU time that readers took.
    spent_ns: u64,
    warnings: Vec<String>,
}

impl<P> Lookups<P> {
    /// Best called while there is one thread, before anything is opened.
    pub(crate) fn start() -> io::Result<Self> {
        let starter = Starter::start()?;
        // Whoever asks it cannot wait until it has started.
        let at_once = Place { wire: starter.reader(AT_ONCE).ok(), ..Place::new(AT_ONCE) };
        Ok(Self {
            starter,
            at_once,
            later: std::array::from_fn(|at| Place::new(AT_ONCE + 1 + at as u8)),
            queue: Queue::new(),
            unasked: Vec::new(),
            given_up: HashSet::new(),
            times_given_up: 0,
            unread: 0,
            allowance: Allowance::new(Instant::now()),
            spent_ns: 0,
            warnings: Vec::new(),
        })
    }

    /// Whether a process is one of those that read.
    pub(crate) fn is_own(&self, pid: u32) -> bool {
        let starter = self.starter.pid();
        pid == starter || crate::process::parent(pid) == Some(starter)
    }

    /// Has a question answered when a reader comes to it.
    pub(crate) fn ask_later(&mut self, question: Question, purpose: P) {
        let uid = question.pid().and_then(crate::process::user);
        self.queue.push(uid, (question, purpose));
        self.hand_out();
    }

    /// Whether answers are still to come.
    pub(crate) fn is_waiting(&self) -> bool {
        self.queue.len() > 0 || !self.unasked.is_empty() || self.later.iter().any(|place| place.asked.is_some())
    }

    /// What becomes readable when there is an answer.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let busy = self.later.iter().filter(|place| place.asked.is_some());
        busy.filter_map(|place| place.wire.as_ref()).map(|wire| wire.as_fd().as_raw_fd())
    }

    /// Answers that have come, and questions that were given up. Does not wait.
    pub(crate) fn answers(&mut self) -> Vec<Answered<P>> {
        let mut answers = std::mem::take(&mut self.unasked);
        for at in 0..LATER {
            let place = &mut self.later[at];
            let heard = place.hear();
            let late = place.is_late(Instant::now());
            let answer = match heard {
                Heard::Done(answer, cpu_ns) => {
                    self.spent_ns = self.spent_ns.saturating_add(cpu_ns);
                    Some(answer)
                }
                Heard::Nothing if !late => continue,
                Heard::Nothing | Heard::Broken => None,
            };
            let Some(asked) = place.asked.take() else { continue };
            let Asked { mut question, mut purpose, libraries, began, terms, .. } = asked;
            if answer.is_none() {
                place.wire = None;
                if late {
                    let Some(given_up) = self.queue.late((question, purpose), terms) else { continue };
                    (question, purpose) = given_up;
                }
                self.give_up(&question, Kind::Later, began.elapsed(), late);
            }
            answers.push(Answered { question, purpose, answer, libraries });
        }
        self.hand_out();
        answers.append(&mut self.unasked);
        answers
    }

    /// Gives waiting questions to readers that have nothing to do. What was read last is known best by the first, so
    /// that others are asked only when it takes its time.
    fn hand_out(&mut self) {
        while let Some(at) = self.free_place() {
            let at_work: Vec<Terms> =
                self.later.iter().filter_map(|place| place.asked.as_ref()).map(|asked| asked.terms).collect();
            let Some(((question, purpose), terms)) = self.queue.next(&at_work) else { break };
            if self.is_given_up(&question, Kind::Later) {
                self.unasked.push(Answered { question, purpose, answer: None, libraries: Vec::new() });
            } else {
                self.later[at].ask(&self.starter, question, purpose, terms);
            }
        }
        if self.queue.len() > MOST_QUEUED {
            self.warnings.push(format!("{} processes are not watched: too many began at once", self.queue.len()));
            let unasked = |(question, purpose)| Answered { question, purpose, answer: None, libraries: Vec::new() };
            self.unasked.extend(self.queue.take_all().into_iter().map(unasked));
        }
    }

    fn free_place(&self) -> Option<usize> {
        let is_at_work = |place: &Place<P>| place.asked.as_ref().is_some_and(|asked| asked.began.elapsed() > PATIENCE);
        let free = self.later.iter().position(|place| place.asked.is_none())?;
        self.later[..free].iter().all(is_at_work).then_some(free)
    }

    fn is_given_up(&self, question: &Question, kind: Kind) -> bool {
        question.pid().is_some_and(|pid| self.given_up.contains(&(pid, kind)))
    }

    /// Waits for answers, no longer than until a moment. Whoever asks takes them with [`Lookups::answers`].
    pub(crate) fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now()).min(PATIENCE);
        let busy = self.later.iter().filter(|place| place.asked.is_some());
        let wires: Vec<&Wire> = busy.filter_map(|place| place.wire.as_ref()).collect();
        wait_for(&wires, left);
    }

    /// Has a small question answered now; `None` if that takes too long, or has taken too much already.
    pub(crate) fn ask_now(&mut self, question: Question) -> Option<Answer> {
        let began = Instant::now();
        if self.is_given_up(&question, Kind::AtOnce) || !self.allowance.is_there(began) {
            return None;
        }
        self.at_once.ask(&self.starter, question, (), Terms::AT_ONCE);
        let answer = loop {
            match self.at_once.hear() {
                Heard::Done(answer, cpu_ns) => {
                    self.spent_ns = self.spent_ns.saturating_add(cpu_ns);
                    break Some(answer);
                }
                Heard::Broken => break None,
                Heard::Nothing if began.elapsed() >= SMALL => break None,
                Heard::Nothing => {
                    let wires: Vec<&Wire> = self.at_once.wire.iter().collect();
                    wait_for(&wires, SMALL.saturating_sub(began.elapsed()));
                }
            }
        };
        self.allowance.take(began.elapsed());
        let asked = self.at_once.asked.take();
        if let (None, Some(asked)) = (&answer, asked) {
            self.at_once.wire = None;
            self.give_up(&asked.question, Kind::AtOnce, asked.began.elapsed(), true);
        }
        answer
    }

    fn give_up(&mut self, question: &Question, kind: Kind, took: Duration, late: bool) {
        self.times_given_up += 1;
        self.unread += u64::from(matches!(question, Question::Libraries { .. }));
        if let Some(pid) = question.pid() {
            if self.given_up.len() >= MOST_GIVEN_UP {
                self.given_up.clear();
            }
            self.given_up.insert((pid, kind));
        }
        if self.times_given_up > MOST_SAID {
            return;
        }
        let who = question.pid().map_or_else(|| "the job".to_owned(), |pid| format!("process {pid}"));
        let what = question.what();
        let outcome = match kind {
            Kind::AtOnce => "is traced without it",
            Kind::Later => "is not watched further",
        };
        self.warnings.push(if late {
            format!("{who} {outcome}: reading {what} took more than {:.1} s", took.as_secs_f64())
        } else {
            format!("{who} {outcome}: the process that read {what} ended")
        });
    }

    /// Forgets a process that ended: its number may be another's next.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.given_up.remove(&(pid, Kind::AtOnce));
        self.given_up.remove(&(pid, Kind::Later));
    }

    /// Processes whose libraries could not be read in time, since the last time.
    pub(crate) fn take_unread(&mut self) -> u64 {
        std::mem::take(&mut self.unread)
    }

    /// Ends it: what still waits for a reader is not read any more.
    pub(crate) fn give_up_the_rest(&mut self) {
        let at_work = self.later.iter().filter_map(|place| place.asked.as_ref()).map(|asked| &asked.question);
        let rest = self.queue.questions().map(|(question, _)| question).chain(at_work);
        let pids: HashSet<u32> = rest
            .filter(|question| matches!(question, Question::Libraries { .. }))
            .filter_map(Question::pid)
            .filter(|pid| !self.given_up.contains(&(*pid, Kind::Later)))
            .collect();
        self.unread += pids.len() as u64;
    }

    /// CPU time that readers took so far.
    pub(crate) fn spent_ns(&self) -> u64 {
        self.spent_ns
    }

    /// What could not be read, since the last time.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// At the end: how much was given up beyond what was said.
    pub(crate) fn unsaid(&self) -> Option<String> {
        let more = self.times_given_up.checked_sub(MOST_SAID).filter(|more| *more > 0)?;
        Some(format!("{more} more times reading what belongs to a process took too long and was given up"))
    }
}

/// Waits until one of them has something to say.
fn wait_for(wires: &[&Wire], most: Duration) {
    let mut fds: Vec<PollFd<'_>> = wires.iter().map(|wire| PollFd::new(*wire, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: i64::from(most.subsec_nanos()) };
    // A signal or an error ends the wait early: whoever waits looks again.
    let _ = poll(&mut fds, Some(&most));
}

/// How much longer gpuwhy may wait for small answers: time that passes gives a part of itself.
#[derive(Debug)]
struct Allowance {
    left: Duration,
    at: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: AT_ONCE_MOST, at: now }
    }

    fn is_there(&mut self, now: Instant) -> bool {
        self.left = (self.left + now.saturating_duration_since(self.at) / SHARE).min(AT_ONCE_MOST);
        self.at = now;
        !self.left.is_zero()
    }

    fn take(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }
}
