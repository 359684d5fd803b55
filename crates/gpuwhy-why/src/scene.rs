// SPDX-License-Identifier: Apache-2.0
//! What rules and texts draw on: the run's facts, its threads, the text of its stacks, and sums of the steady state.

use crate::blame::{Slice, Votes};
use crate::facts::{Facts, FrameFact, StackFact};
use crate::story::most;
use crate::timeline::{Thread, ThreadIndex, Timeline};
use gpuwhy_model::host::task_name;
use gpuwhy_model::{Histogram, units};
use gpuwhy_stacks::{Owner, frame_owner};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A process that lived no longer than this, ns, was started for one task.
const SHORT_LIFE_NS: i64 = 1_500_000_000;
/// At least this many of them are a pattern.
const MANY_SHORT: usize = 5;
/// Share of the allowed memory in use from which memory is short.
const SHORT_MEMORY: f64 = 0.95;
/// A thread with less than one part in so many of the busiest thread's time is not named.
pub(crate) const LITTLE_PART: u64 = 10;
/// Rate of a copy from pinned memory, bytes per nanosecond. Copies cost at least their bytes at this rate.
const FAST_COPY: f64 = 12.0;

/// Facts and sums of one job.
pub(crate) struct Scene<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) timeline: &'a Timeline,
    pub(crate) words: HashMap<u64, StackFact>,
    /// Start and end of the steady state.
    pub(crate) steady_span: (u64, u64),
    pub(crate) steady_ns: u64,
    /// All GPUs together were idle in it for at most this long, ns.
    pub(crate) idle_most_ns: u64,
    /// Its sums.
    pub(crate) steady: &'a Slice,
    /// GPUs that had work.
    pub(crate) gpus: u64,
    /// Threads with at least a hundredth of the launches.
    pub(crate) launchers: BTreeSet<ThreadIndex>,
    pub(crate) short_lived: BTreeSet<u32>,
    pub(crate) memory_short: bool,
    pub(crate) copies_matter: bool,
    /// How long calls that wait for the GPU took.
    pub(crate) sync_times: &'a Histogram,
    /// Steady time over the time that NVML's samples cover: idle time they saw is scaled by this.
    pub(crate) nvml_factor: f64,
    /// Whether another job of the run used one of its GPUs: the GPU may have been busy with that.
    pub(crate) has_neighbours: bool,
    /// Processes that hardly ever wait for the GPU, where NVML is missing: the host sets their pace.
    pub(crate) paced: BTreeSet<u32>,
    /// Idle cores, mean.
    pub(crate) idle_cores: Option<f64>,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(
        facts: &'a Facts,
        timeline: &'a Timeline,
        steady: &'a Slice,
        steady_span: (u64, u64),
        gpus: u64,
        sync_times: &'a Histogram,
    ) -> Self {
        let copying = steady.copy_bytes as f64 / FAST_COPY;
        Self {
            words: HashMap::new(),
            launchers: BTreeSet::new(),
            steady_span,
            steady_ns: steady_span.1.saturating_sub(steady_span.0),
            idle_most_ns: u64::MAX,
            steady,
            gpus: gpus.max(1),
            paced: BTreeSet::new(),
            short_lived: short_lived(facts),
            memory_short: memory_short(facts),
            copies_matter: steady.idle_ns > 0 && copying >= 0.2 * steady.idle_ns as f64,
            sync_times,
            nvml_factor: 1.0,
            has_neighbours: false,
            idle_cores: idle_cores(facts),
            facts,
            timeline,
        }
    }

    pub(crate) fn thread(&self, index: ThreadIndex) -> &Thread {
        &self.timeline.threads[index as usize]
    }

    /// Whether a thread is in the code of a queue or a data loader: it waits for the next item.
    pub(crate) fn in_queue(&self, stack: u64) -> bool {
        const QUEUES: [&str; 8] = [
            "queue.py",
            "queues.py",
            "connection.py",
            "dataloader.py",
            "pool.py",
            "thread.py",
            "_base.py",
            "selectors.py",
        ];
        let Some(words) = self.words.get(&stack) else { return false };
        // Only the innermost frames: further out everything runs inside some loop over data.
        words.frames.iter().take(4).any(|frame| {
            let file = frame.file.rsplit('/').next().unwrap_or_default();
            QUEUES.contains(&file) || (file == "threading.py" && frame.function == "wait")
        })
    }

    /// The line with most time: `train.py:138`. A line of the job's own code if there is one: a line of Python's or
    /// PyTorch's library that the job did not call says nothing to its author.
    pub(crate) fn line(&self, votes: &Votes) -> Option<String> {
        let mut by_line: BTreeMap<(Owner, String), u64> = BTreeMap::new();
        for (stack, ns) in votes.ranked() {
            let Some(words) = self.words.get(&stack) else { continue };
            if let Some(line) = line_in_file(words) {
                *by_line.entry((words.owner(), line)).or_default() += ns;
            }
        }
        let of = |owner: Owner| {
            by_line.iter().filter(move |((its, _), _)| *its == owner).map(|((_, line), ns)| (line.as_str(), *ns))
        };
        most(of(Owner::You)).or_else(|| most(of(Owner::Package))).map(|(line, _)| line.to_owned())
    }

    /// A process's name; the new one if it was renamed while traced.
    pub(crate) fn name(&self, pid: u32) -> String {
        let known = self.facts.name(pid);
        let main = self.facts.threads.iter().rev().find(|sums| sums.pid == pid && sums.tid == pid);
        let now = main.map(|sums| task_name(&sums.name)).unwrap_or_default();
        if now.is_empty() || known.contains(&now) || now.starts_with("python") { known } else { now }
    }

    /// A thread in words: `python3 4821`, with its own name if it has one.
    pub(crate) fn who(&self, index: ThreadIndex) -> String {
        let thread = self.thread(index);
        let process = self.name(thread.pid);
        let own = self.facts.threads.iter().find(|sums| sums.pid == thread.pid && sums.tid == thread.tid);
        let own = own.map(|sums| task_name(&sums.name)).unwrap_or_default();
        if thread.tid == thread.pid || own.is_empty() || process.starts_with(&own) {
            let which = if thread.tid == thread.pid { String::new() } else { format!(" thread {}", thread.tid) };
            format!("{process} {}{which}", thread.pid)
        } else {
            format!("{process} {} thread {own}", thread.pid)
        }
    }

    /// The processes of threads that are worth a name: not those with little part in it.
    pub(crate) fn named_pids(&self, threads: &HashMap<ThreadIndex, u64>) -> BTreeSet<u32> {
        let most_ns = threads.values().max().copied().unwrap_or(0);
        let named = threads.iter().filter(|(_, ns)| **ns >= most_ns / LITTLE_PART);
        named.map(|(index, _)| self.thread(*index).pid).collect()
    }

    /// Several threads in words: `pt_data_worker:0–3`, `python3 4821 and 3 more`.
    pub(crate) fn all_of(&self, threads: &HashMap<ThreadIndex, u64>) -> String {
        let pids = self.named_pids(threads);
        let Some((first, _)) = most(threads.iter().map(|(index, ns)| (*index, *ns))) else { return String::new() };
        if pids.len() < 2 {
            return self.who(first);
        }
        let names: Vec<String> = pids.iter().map(|pid| self.name(*pid)).collect();
        let split = |name: &str| name.rsplit_once(':').map(|(base, n)| (base.to_owned(), n.parse::<u32>().ok()));
        let parts: Vec<_> = names.iter().filter_map(|name| split(name)).collect();
        let same = parts.len() == names.len() && parts.iter().all(|(base, _)| *base == parts[0].0);
        let mut numbers: Vec<u32> = parts.iter().filter_map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        match (numbers.first(), numbers.last()) {
            (Some(low), Some(high))
                if same && numbers.len() == names.len() && (high - low) as usize + 1 == names.len() =>
            {
                format!("{}:{low}–{high}", parts[0].0)
            }
            _ => format!("{} and {} more", self.who(first), pids.len() - 1),
        }
    }

    /// A time and its share of the steady state.
    pub(crate) fn of_steady(&self, ns: u64) -> String {
        let steady = self.steady_ns;
        let mean = if self.gpus > 1 { format!(", mean of {} GPUs", self.gpus) } else { String::new() };
        format!("{} of {} ({}{mean})", units::time(ns), units::time(steady), units::percent(ns as f64, steady as f64))
    }

    /// A time summed over all GPUs as a share of the steady state, which every share on the screen refers to: `31 %`.
    pub(crate) fn percent(&self, ns: u64) -> String {
        units::percent(self.share(ns / self.gpus), 1.0)
    }

    /// The GPU's busy share in the steady state by NVML, 0 to 1.
    pub(crate) fn busy_in_steady(&self, gpu: u32) -> Option<f64> {
        let (from, to) = self.steady_span;
        let inside =
            self.facts.busy.iter().filter(|sample| sample.gpu == gpu && sample.at_ns > from && sample.at_ns <= to);
        let (sum, count) =
            inside.fold((0.0, 0u32), |(sum, count), sample| (sum + f64::from(sample.percent), count + 1));
        (count > 0).then(|| sum / f64::from(count) / 100.0)
    }

    /// The rate nvidia-smi shows, mean over the steady state, percent.
    pub(crate) fn rate_in_steady(&self, gpu: u32) -> Option<f64> {
        let (from, to) = self.steady_span;
        let of_gpu = self.facts.gpu_seconds.iter().filter(|sample| sample.gpu == gpu);
        let inside = of_gpu.filter(|sample| sample.at_ns > from && sample.at_ns <= to);
        let rates: Vec<f64> = inside.filter_map(|sample| sample.rate_percent.map(f64::from)).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    }

    /// Idle cores in words: `2.1 idle`, `none idle`.
    pub(crate) fn idle_words(&self) -> Option<String> {
        self.idle_cores.map(|idle| if idle < 0.05 { "none idle".to_owned() } else { format!("{idle:.1} idle") })
    }

    /// How often a second in the steady state, in words.
    pub(crate) fn per_second(&self, count: u64) -> String {
        units::count((count as f64 * 1e9 / self.steady_ns.max(1) as f64).round() as u64)
    }

    /// A share of the steady state.
    pub(crate) fn share(&self, ns: u64) -> f64 {
        if self.steady_ns == 0 { 0.0 } else { ns as f64 / self.steady_ns as f64 }
    }
}

/// The line a stack stands for. Where that is in no file (`<string>:2`), the line that called it.
fn line_in_file(words: &StackFact) -> Option<String> {
    let line = words.top_line.as_deref()?;
    if !line.starts_with('<') {
        return Some(short_line(line).to_owned());
    }
    let is_callers = |frame: &&FrameFact| {
        !frame.file.starts_with('<') && frame_owner(&frame.file, &frame.function) == Owner::You && frame.line > 0
    };
    let caller = words.frames.iter().find(is_callers)?;
    Some(format!("{}:{}", short_line(&caller.file), caller.line))
}

/// `/home/me/train.py:138 main` shortened to `train.py:138`.
fn short_line(line: &str) -> &str {
    let file = line.rsplit('/').next().unwrap_or(line);
    let number = file.rfind(':').map_or(0, |colon| colon + 1);
    let digits = file[number..].bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 { &file[..number + digits] } else { file }
}

fn short_lived(facts: &Facts) -> BTreeSet<u32> {
    let short = |process: &&crate::facts::ProcessFact| matches!((process.started, process.ended), (Some(start), Some(end)) if end.saturating_sub(start) <= SHORT_LIFE_NS);
    // Those of the time range only.
    let before = |at: i64, limit: u64| i64::try_from(limit).is_ok_and(|limit| at < limit);
    let inside = |process: &&crate::facts::ProcessFact| {
        process.started.is_none_or(|start| before(start, facts.to_ns))
            && process.ended.is_none_or(|end| !before(end, facts.from_ns))
    };
    let found: BTreeSet<u32> =
        facts.processes.values().filter(short).filter(inside).map(|process| process.pid).collect();
    if found.len() >= MANY_SHORT { found } else { BTreeSet::new() }
}

fn memory_short(facts: &Facts) -> bool {
    let full = |used: Option<u64>, limit: Option<u64>| matches!((used, limit), (Some(used), Some(limit)) if limit > 0 && used as f64 >= limit as f64 * SHORT_MEMORY);
    let cgroup = facts.cgroups.iter().any(|sample| full(sample.memory_used, sample.memory_limit));
    let swapping = facts.system.iter().any(|sample| sample.swap_in.unwrap_or(0) > 1 << 20);
    let machine = facts.system.iter().any(|sample| {
        let used = sample.memory_total.zip(sample.memory_available).map(|(total, free)| total.saturating_sub(free));
        full(used, sample.memory_total)
    });
    cgroup || swapping || machine
}

fn idle_cores(facts: &Facts) -> Option<f64> {
    let span: u64 = facts.system.iter().map(|sample| sample.span_ns).sum();
    let idle: u64 = facts.system.iter().map(|sample| sample.idle_ns + sample.iowait_ns).sum();
    (span > 0).then(|| idle as f64 / span as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ProcessFact;

    #[test]
    fn processes_are_short_lived_in_the_time_range_they_lived_in() {
        const S: i64 = 1_000_000_000;
        let process = |pid: u32| {
            let at = i64::from(pid) * S;
            ProcessFact { pid, started: Some(at), ended: Some(at + S / 2), ..ProcessFact::default() }
        };
        let processes: BTreeMap<u32, ProcessFact> = (0..20).map(|pid| (pid, process(pid))).collect();
        let found = |from_ns: u64, to_ns: u64| {
            let facts = Facts { from_ns, to_ns, processes: processes.clone(), ..Facts::default() };
            short_lived(&facts).into_iter().collect::<Vec<u32>>()
        };
        let second = S.cast_unsigned();
        assert_eq!(found(0, 20 * second), (0..20).collect::<Vec<u32>>());
        assert_eq!(found(5 * second + second / 4, 10 * second), (5..10).collect::<Vec<u32>>());
        assert_eq!(found(30 * second, 40 * second), []);
        assert_eq!(found(0, 3 * second), [], "three are no pattern");
    }

    #[test]
    fn a_line_in_no_file_is_not_shown() {
        let frame = |file: &str, line| FrameFact { file: file.into(), line, function: "f".into() };
        let stack = |frames: Vec<FrameFact>| StackFact { top_line: Some("<string>:2 f".into()), frames };
        assert_eq!(line_in_file(&stack(vec![frame("<string>", 2)])), None);
        let called = stack(vec![frame("<string>", 2), frame("/home/me/a.py", 7)]);
        assert_eq!(line_in_file(&called).as_deref(), Some("a.py:7"));
    }

    #[test]
    fn lines_are_said_shortly() {
        assert_eq!(short_line("/home/me/train.py:138 main"), "train.py:138");
        assert_eq!(short_line("<frozen importlib._bootstrap>:241 _call"), "<frozen importlib._bootstrap>:241");
        assert_eq!(short_line("train.py"), "train.py");
    }
}
