// SPDX-License-Identifier: Apache-2.0
//! Fixes for a line that leaks. Its stack and words in its source show how it keeps memory.

use super::{HINTS, fix};
use crate::facts::SiteFact;
use crate::lines::Lines;
use crate::report::Leak;
use gpuwhy_model::Fix;

/// PyTorch's smallest allocation: a scalar tensor takes this much.
const SCALAR: u64 = 512;
/// Leaks that start within this many steps of each other may have one cause,
const TOGETHER_STEPS: u64 = 2;
/// if both keep something from nearly every step.
const EVERY_STEP: f64 = 0.9;

/// How a line keeps its allocations alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// The graph of the previous step is retained.
    RetainedGraph,
    /// State of optimizers.
    Optimizer,
    /// A copy on the GPU.
    Clone,
    /// A number kept as a tensor.
    Number,
    /// A tensor without its graph.
    Detached,
    /// In a list, a dict, or a sum.
    Kept,
    /// Memory taken directly from the driver.
    Malloc,
    /// Outputs of a module's `forward`.
    Forward,
    /// Neither the stack nor the source shows it.
    Unknown,
}

impl Pattern {
    fn of(leak: &Leak, fact: Option<&SiteFact>) -> Self {
        let source = source(fact);
        let has = |words: &[&str]| {
            debug_assert!(words.iter().all(|word| HINTS.contains(word)), "a hint that is not listed");
            words.iter().any(|word| source.contains(word))
        };
        let in_optimizer = || fact.is_some_and(|fact| fact.frames.iter().any(|at| at.contains("/torch/optim/")));
        let is_forward = || leak.function.as_deref().is_some_and(|name| name.rsplit('.').next() == Some("forward"));
        if has(&["retain_graph=True", "create_graph=True"]) {
            Self::RetainedGraph
        } else if in_optimizer() {
            Self::Optimizer
        } else if has(&[".clone("]) {
            Self::Clone
        } else if leak.piece_bytes <= SCALAR || has(&["loss"]) {
            Self::Number
        } else if has(&["detach("]) {
            Self::Detached
        } else if has(&[".append(", ".extend(", "+=", "] ="]) {
            Self::Kept
        } else if has(&["cudaMalloc", "malloc("]) {
            Self::Malloc
        } else if is_forward() {
            Self::Forward
        } else {
            Self::Unknown
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::RetainedGraph => {
                "do not retain the graph between steps (retain_graph, create_graph), or drop whatever holds its result"
            }
            Self::Optimizer => {
                "an optimizer has state for each of its parameters: create it once, before the loop, and drop old ones \
                 (schedulers and lists keep them alive, too)"
            }
            Self::Clone => {
                "a detached clone is still a tensor on the GPU; keep numbers with .item(), or copies on the host with \
                 .detach().cpu()"
            }
            Self::Number => {
                "keep loss.item() instead of the tensor, which holds GPU memory and, unless it was detached, the whole graph \
                 it comes from"
            }
            Self::Detached => {
                "a detached tensor is still on the GPU; keep numbers with .item(), or copies on the host with \
                 .detach().cpu()"
            }
            Self::Kept => {
                "a tensor kept in a list or dict stays on the GPU, with the graph it comes from, if any; keep .item() \
                 scalars or .detach().cpu(), or clear the list"
            }
            Self::Malloc => "free its allocations before the next step",
            Self::Forward => {
                "something keeps outputs of forward: look for a hook, list or attribute that stores them or their graph; \
                 store .item() scalars or .detach().cpu() instead"
            }
            Self::Unknown => {
                "find what keeps its tensors (a list, dict, closure or attribute) and drop them each step; if you need only \
                 values, keep .item() scalars or .detach().cpu()"
            }
        }
    }

    /// Whether the line shows how its allocations are kept; otherwise it shows only where they are made.
    fn shows_keeper(self) -> bool {
        !matches!(self, Self::Unknown | Self::Forward)
    }
}

/// The source of a leak's line.
fn source(fact: Option<&SiteFact>) -> &str {
    fact.and_then(|fact| fact.source.as_deref()).unwrap_or_default()
}

/// Whether a kept tensor may have a graph, which keeps tensors of other lines alive.
fn keeps_graph(leak: &Leak, fact: Option<&SiteFact>) -> bool {
    match Pattern::of(leak, fact) {
        Pattern::RetainedGraph | Pattern::Kept => true,
        // A detached number has no graph. With a graph, more than the number is kept.
        Pattern::Number => leak.piece_bytes > SCALAR || !source(fact).contains("detach("),
        _ => false,
    }
}

/// An autocast block around the loop may keep memory: it caches its casts, also those of tensors made anew in each step.
fn autocast(leak: &Leak, fact: Option<&SiteFact>) -> Option<Fix> {
    let is_around = source(fact).contains("autocast(");
    let may_keep =
        matches!(Pattern::of(leak, fact), Pattern::Unknown | Pattern::Forward | Pattern::Clone | Pattern::Detached);
    let text = "or autocast around the loop keeps it: until its outermost block ends, it caches its casts of tensors that are \
                made anew in each step; open it inside the loop, or pass cache_enabled=False";
    (is_around && may_keep).then(|| fix(text.to_owned(), leak.grown_bytes))
}

/// Fixes for a leak; `all` are the run's leaks.
pub(crate) fn leak(leak: &Leak, all: &[Leak], lines: &Lines) -> Vec<Fix> {
    let fact = |leak: &Leak| lines.fact(leak.stack_id.map(i64::cast_unsigned));
    let pattern = |leak: &Leak| Pattern::of(leak, fact(leak));
    let line = leak.line.as_deref().unwrap_or("that line");
    let mut fixes = Vec::new();
    if leak.line.is_none() {
        let text = "trace again with --budget none and without --no-stack to see which line it is";
        fixes.push(fix(text.to_owned(), 0));
    }
    let own = pattern(leak);
    let may_keep = |other: &&Leak| goes_with(leak, other) && keeps_graph(other, fact(other));
    let keeper = all.iter().filter(|_| !own.shows_keeper()).find(may_keep);
    let text = match keeper.and_then(|keeper| Some((keeper.line.as_deref()?, pattern(keeper)))) {
        Some((by, keeper)) => {
            format!(
                "{line}: most likely kept alive by {by}, which leaks in the same steps. At {by}: {}",
                keeper.advice()
            )
        }
        None => format!("{line}: {}", own.advice()),
    };
    fixes.push(fix(text, leak.grown_bytes));
    fixes.extend(autocast(leak, fact(leak)));
    if leak.piece_bytes > SCALAR && own != Pattern::Optimizer {
        fixes.push(fix("if it is meant to be a cache, give it a limit".to_owned(), 0));
    }
    fixes
}

/// Whether two leaks start and grow together: then one object may keep both.
fn goes_with(leak: &Leak, other: &Leak) -> bool {
    let each_step = |leak: &Leak| leak.looks_with_growth as f64 >= EVERY_STEP * leak.looks as f64;
    let together = match (leak.onset_step, other.onset_step) {
        (Some(one), Some(two)) => one.abs_diff(two) <= TOGETHER_STEPS,
        _ => false,
    };
    let elsewhere = other.stack_id != leak.stack_id;
    (leak.pid, leak.device) == (other.pid, other.device) && elsewhere && together && each_step(leak) && each_step(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn kept(stack: u64, onset: u64, pieces: u64) -> Leak {
        Leak {
            pid: 1,
            line: Some(format!("train.py:{stack}")),
            stack_id: Some(stack.cast_signed()),
            onset_step: Some(onset),
            piece_bytes: pieces,
            looks: 100,
            looks_with_growth: 100,
            ..Leak::default()
        }
    }

    fn lines(sources: &[(u64, &str, &str)]) -> Lines {
        let fact = |(stack, source, frame): &(u64, &str, &str)| {
            let fact = SiteFact {
                source: Some((*source).to_owned()),
                frames: vec![(*frame).to_owned()],
                ..SiteFact::default()
            };
            (*stack, fact)
        };
        Lines::new(sources.iter().map(fact).collect::<HashMap<_, _>>())
    }

    fn first(one: &Leak, all: &[Leak], lines: &Lines) -> String {
        leak(one, all, lines)[0].text.clone()
    }

    #[test]
    fn source_and_stack_show_how_a_line_keeps_memory() {
        let advice = |source: &str, frame: &str| {
            let one = kept(1, 1, 4096);
            first(&one, std::slice::from_ref(&one), &lines(&[(1, source, frame)]))
        };
        assert!(advice("kept.append(output.detach().clone())", "").contains("a detached clone"));
        assert!(advice("losses.append(probe(output.detach()).mean())", "").contains("the whole graph"));
        assert!(advice("outputs.append(model(x))", "").contains("in a list or dict"));
        assert!(advice("optimizer.step()", "/v/torch/optim/adam.py:180 Adam._init_group").contains("create it once"));
        assert!(advice("x = make()", "").contains("find what keeps"));
        let forward = Leak { function: Some("Net.forward".to_owned()), ..kept(1, 1, 4096) };
        let words = first(&forward, &[], &lines(&[(1, "x = self.second(x)", "")]));
        assert!(words.contains("a hook"), "{words}");
    }

    #[test]
    fn a_leak_that_grows_with_another_is_most_likely_kept_by_it() {
        let all = [kept(41, 1, 4096), kept(80, 2, 4096)];
        let lines = lines(&[(41, "return torch.randn(1)", ""), (80, "total = total + mse_loss(x, y)", "")]);
        assert!(first(&all[0], &all, &lines).contains("kept alive by train.py:80"));
        assert!(first(&all[1], &all, &lines).starts_with("train.py:80: keep loss.item()"));
        let later = [kept(41, 1, 4096), kept(80, 50, 4096)];
        assert!(!first(&later[0], &later, &lines).contains("train.py:80"));
        // A detached tensor keeps nothing but itself.
        let all = [kept(41, 1, 4096), kept(80, 2, 512)];
        let detached = self::lines(&[(41, "x = make()", ""), (80, "losses.append(loss.detach())", "")]);
        assert!(!first(&all[0], &all, &detached).contains("train.py:80"));
    }

    #[test]
    fn autocast_around_a_loop_may_keep_memory() {
        let fixes = |source: &str| {
            let one = kept(1, 1, 4096);
            let fixes = leak(&one, std::slice::from_ref(&one), &lines(&[(1, source, "")]));
            fixes.iter().filter(|fix| fix.text.contains("cache_enabled")).count()
        };
        assert_eq!(fixes("y = linear(x)\nautocast("), 1);
        assert_eq!(fixes("y = linear(x)"), 0);
        assert_eq!(fixes("outs.append(linear(x))\nautocast("), 0, "the list is nearer");
    }
}
