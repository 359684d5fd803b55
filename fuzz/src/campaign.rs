// SPDX-License-Identifier: Apache-2.0
//! Tries inputs on a target, for a time or a number of inputs, and reports the first failure.

use crate::{Mutator, Target, memory};
use std::any::Any;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Panics in any thread, including caught ones.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Which inputs are tried, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// The number of the first input.
    pub start: u64,
    /// How many; `None`: the target's default.
    pub count: Option<u64>,
    /// For how long, instead of a number of inputs.
    pub time: Option<Duration>,
}

impl Effort {
    /// From FUZZ_START, FUZZ_COUNT and FUZZ_SECONDS. Anything but a number is an error rather than ignored.
    pub fn from_env() -> Result<Self, String> {
        let number = |name: &str| match std::env::var(name) {
            Err(_) => Ok(None),
            Ok(text) => text.trim().parse().map(Some).map_err(|_| format!("invalid {name}: {text:?} is not a number")),
        };
        let time = number("FUZZ_SECONDS")?.map(Duration::from_secs);
        Ok(Self { start: number("FUZZ_START")?.unwrap_or(0), count: number("FUZZ_COUNT")?, time })
    }
}

/// An input that makes a target fail.
#[derive(Debug)]
pub struct Failure {
    target: &'static str,
    number: u64,
    why: String,
    input: PathBuf,
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, number, why, input } = self;
        write!(
            f,
            "{target}: {why}\n  the input is in {}; to reproduce: FUZZ_TARGET={target} FUZZ_START={number} FUZZ_COUNT=1",
            input.display()
        )
    }
}

/// Tries inputs on a target and returns how many. The last input, and one that failed, are written to `folder`.
pub fn run(target: &Target, effort: Effort, folder: &Path) -> Result<u64, Box<Failure>> {
    count_panics();
    let seeds = (target.seeds)();
    let began = Instant::now();
    let count = effort.count.unwrap_or(target.count);
    let mut number = effort.start;
    loop {
        let tried = number - effort.start;
        let enough = effort.time.map_or(tried >= count, |time| began.elapsed() >= time);
        if enough {
            return Ok(tried);
        }
        // The unchanged seeds come first.
        let input = match seeds.get(number as usize) {
            Some(seed) => seed.clone(),
            None => Mutator::new(number).input(&seeds, target.words),
        };
        let last = folder.join(format!("{}.last", target.name));
        if effort.time.is_some() {
            // Kept in case the process dies. Writing takes far longer than most inputs, so short runs go without.
            let _ = std::fs::write(&last, &input);
        }
        if let Some(why) = fault(target, &input) {
            let kept = folder.join(format!("{}.{number}", target.name));
            // Without the file, the number still reproduces the input.
            let _ = std::fs::write(&kept, &input);
            return Err(Box::new(Failure { target: target.name, number, why, input: kept }));
        }
        number += 1;
    }
}

/// Runs the target on the input; the reason, if it fails.
fn fault(target: &Target, input: &[u8]) -> Option<String> {
    let panics = PANICS.load(Ordering::Relaxed);
    let before = memory::begin();
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let taken = memory::peak_above(before);
    match ended {
        Err(panic) => Some(format!("panicked: {}", words_of(&*panic))),
        Ok(()) if PANICS.load(Ordering::Relaxed) != panics => Some("one of its threads panicked".into()),
        Ok(()) if taken > target.memory => {
            Some(format!("used {taken} bytes of memory; the limit is {}", target.memory))
        }
        Ok(()) => None,
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied()).unwrap_or("?")
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            usual(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(run: fn(&[u8])) -> Target {
        let seeds = || vec![b"good".to_vec(), b"fine".to_vec()];
        Target { name: "test", seeds, words: &[b"bad"], run, memory: usize::MAX, count: 3_000 }
    }

    #[test]
    fn what_a_target_does_not_bear_is_found_kept_and_comes_again() {
        let folder = tempfile::tempdir().unwrap();
        let all = Effort { start: 0, count: None, time: None };
        assert_eq!(run(&target(|_| ()), all, folder.path()).unwrap(), 3_000);
        let picky = target(|data| assert!(!data.windows(3).any(|piece| piece == b"bad"), "a bad word"));
        let failure = run(&picky, all, folder.path()).unwrap_err();
        assert!(failure.why.contains("a bad word"), "{failure}");
        let input = std::fs::read(&failure.input).unwrap();
        assert!(input.windows(3).any(|piece| piece == b"bad"));
        let again = Effort { start: failure.number, count: Some(1), time: None };
        assert_eq!(run(&picky, again, folder.path()).unwrap_err().number, failure.number);
        let threaded = target(|data| {
            let bad = data.contains(&0xff);
            let _ = std::thread::spawn(move || assert!(!bad)).join();
        });
        assert!(run(&threaded, all, folder.path()).unwrap_err().why.contains("one of its threads"));
    }
}
