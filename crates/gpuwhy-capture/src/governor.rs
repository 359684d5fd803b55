// SPDX-License-Identifier: Apache-2.0
//! Keeps the cost of tracing a process within a budget: decides which of its functions to record less closely, and when
//! to record them closely again. Pure: fed with counts, it answers with actions. Each process has a governor of its own;
//! [`Agreement`] knows when every process has given up a function.
//!
//! - In the first ten seconds the cost may be three times the budget: most is learnt then.
//! - Over the budget, the busiest functions are sampled at once, until the estimate is at nine tenths of it. If the next
//!   period shows that this was not enough, the busiest are paused. Waits, memory calls, the allocator's reports,
//!   collectives and device choices are paused last: only when nothing else is left, the cost has been too high for a
//!   second, and only as many as needed. Calls missed of these cannot be made up for.
//! - Well below the budget, what was given up longest ago is resumed, one function at a time. If it has to be given up
//!   again, the next wait is twice as long.
//! - Estimates use smoothed rates; a jump counts in full at once.

mod agreement;
mod budget;
mod load;
mod op;
#[cfg(test)]
mod tests;

pub use agreement::Agreement;
pub use budget::{Budget, BudgetError};
pub use load::{Cost, Counted, Load, OpHits, Prices, ProbePrice};
pub use op::Following;

use gpuwhy_model::{OpId, units};
use op::{OpState, Patience};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the estimate is to be after acting, as a part of the budget: noise must not bring it over again.
const AIM: f64 = 0.9;
/// Below this part of the budget, with what would be added, there is room to take something back.
const CALM: f64 = 0.7;
/// The same for what was paused: how often it is called now is unknown.
const CALM_BLIND: f64 = 0.5;
/// How long it must have been calm, seconds.
const CALM_FOR: f64 = 5.0;
/// A function that costs less than this part of the budget is not worth touching.
const WORTH: f64 = 0.05;
/// The same for letting it go, which loses more; unless what must not be missed would have to go instead.
const WORTH_LETTING_GO: f64 = 0.2;
/// What must not be missed goes when it has cost too much for so long, seconds; at once if it costs this many times the
/// budget.
const OVER_FOR: f64 = 1.0;
const FAR_OVER: f64 = 2.0;
/// Costs that no action lowers may fill the budget. Even then functions may cost this part of it: what is lost by letting
/// them go would gain nothing.
const LEAST_ROOM: f64 = 0.25;
/// Rates are smoothed over about this long, seconds.
const SMOOTH: f64 = 1.0;
/// A period this many times over the budget, and over what was known, is a jump.
const JUMP: f64 = 1.5;
/// What was taken back this many seconds ago is the first to go again.
const BLAMED_FOR: f64 = 5.0;
/// How often to be fed: usually, and at the beginning, after a jump and after acting (for [`ALERT_FOR`] seconds).
pub const PERIOD: Duration = Duration::from_secs(1);
/// See [`PERIOD`].
pub const ALERT_PERIOD: Duration = Duration::from_millis(100);
/// See [`PERIOD`].
pub const ALERT_FOR: f64 = 3.0;

/// How long a run begins with more than the budget, seconds, and how many times it.
const LEARNING: f64 = 10.0;
const TOLERATED: f64 = 3.0;

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Follow the returns of some calls only: those that differ from the call before.
    Sample(OpId),
    /// Follow every return again.
    Unsample(OpId),
    /// Follow none of its calls. Its probe is removed, unless another process wants it: then a call still pays for the trap.
    Detach(OpId),
    /// Follow its calls again; `sampled` as with [`Action::Sample`].
    Attach {
        /// Which.
        op: OpId,
        /// Whether its returns are sampled.
        sampled: bool,
    },
    /// Read no Python stacks at switches.
    StacksOff,
    /// Read them again.
    StacksOn,
}

/// An action, and what to tell people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Why, in a sentence.
    pub words: String,
}

/// The answer to a load.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// What tracing cost in this period.
    pub cost: Cost,
    /// What to do now, in this order.
    pub decisions: Vec<Decision>,
    /// When to be asked again.
    pub next_in: Duration,
}

/// The policy and what it remembers.
#[derive(Debug)]
pub struct Governor {
    budget: Budget,
    prices: Prices,
    ops: BTreeMap<OpId, OpState>,
    /// Switches and stacks read at them, a second, smoothed.
    switches: f64,
    switch_stacks: f64,
    stacks_off: bool,
    stacks: Patience,
    /// What is known of the load is in terms of a second of a thread: ns of it that a record costs in gpuwhy's own time.
    own_ns: f64,
    /// Seconds since the beginning.
    now: f64,
    alert_until: f64,
    calm_since: Option<f64>,
    over_since: Option<f64>,
    /// What was taken back last, and when.
    last_back: Option<(Action, f64)>,
    /// Whether anything has been smoothed yet.
    begun: bool,
}

/// What the present load costs, as fractions.
struct Estimate {
    /// What can be lowered.
    ops: f64,
    /// What cannot.
    fixed: f64,
}

impl Governor {
    /// Begins with everything followed.
    pub fn new(budget: Budget, prices: Prices) -> Self {
        Self {
            budget,
            prices,
            ops: BTreeMap::new(),
            switches: 0.0,
            switch_stacks: 0.0,
            stacks_off: false,
            stacks: Patience::new(30.0),
            own_ns: 0.0,
            now: 0.0,
            alert_until: ALERT_FOR,
            calm_since: None,
            over_since: None,
            last_back: None,
            begun: false,
        }
    }

    /// Of a process that is so old already: the first seconds, in which it may cost more, can be over.
    pub fn at_age(mut self, age: Duration) -> Self {
        self.now = age.as_secs_f64();
        self.alert_until = self.now + ALERT_FOR;
        self
    }

    /// Whether everything is followed, so that nothing is lost when the governor is forgotten.
    pub fn is_idle(&self) -> bool {
        !self.stacks_off && self.ops.values().all(|state| state.following == Following::Full)
    }

    /// What things cost, as is known now.
    pub fn set_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    /// How a function is followed.
    pub fn following(&self, op: OpId) -> Following {
        self.ops.get(&op).map_or(Following::Full, |state| state.following)
    }

    /// Takes a period into account and says what to do.
    pub fn feed(&mut self, load: &Load) -> Verdict {
        let cost = Cost::of(load, &self.prices);
        self.note(load, &cost);
        let mut decisions = Vec::new();
        if let Budget::Share(budget) = self.budget {
            self.give_up(budget, &mut decisions);
            if decisions.is_empty() {
                decisions.extend(self.take_back(budget));
            }
        }
        if !decisions.is_empty() {
            self.alert_until = self.now + ALERT_FOR;
        }
        let next_in = if self.now < self.alert_until { ALERT_PERIOD } else { PERIOD };
        Verdict { cost, decisions, next_in }
    }

    /// An action could not be done: things are as they were.
    pub fn failed(&mut self, action: Action) {
        let now = self.now;
        let mut with = |op: OpId, change: &dyn Fn(&mut OpState)| self.ops.get_mut(&op).into_iter().for_each(change);
        match action {
            Action::Sample(op) => with(op, &|state| state.refuse(Following::Sampled)),
            Action::Detach(op) => with(op, &|state| state.refuse(Following::Detached)),
            Action::Unsample(op) => with(op, &|state| state.stay(Following::Sampled, now)),
            Action::Attach { op, .. } => with(op, &|state| state.stay(Following::Detached, now)),
            Action::StacksOff => self.stacks_off = false,
            Action::StacksOn => self.stacks_off = true,
        }
    }

    fn note(&mut self, load: &Load, cost: &Cost) {
        let seconds = load.wall.as_secs_f64().max(1e-6);
        self.now += seconds;
        let limit = match self.budget {
            Budget::Share(share) => share,
            Budget::None => f64::INFINITY,
        };
        let before = self.estimate();
        let jumped = !self.begun || cost.total() > JUMP * limit.max(before.ops + before.fixed);
        if jumped {
            self.alert_until = self.alert_until.max(self.now + ALERT_FOR);
        }
        self.begun = true;
        let weight = if jumped { 1.0 } else { 1.0 - (-seconds / SMOOTH).exp() };
        let thread_seconds = load.thread_ns() / 1e9;
        for hits in &load.ops {
            self.ops.entry(hits.op).or_insert_with(|| OpState::new(hits.op));
        }
        for state in self.ops.values_mut() {
            let hits = load.ops.iter().find(|hits| hits.op == state.op);
            state.note(hits, thread_seconds, weight);
        }
        let mix = |old: &mut f64, new: f64| *old += (new - *old) * weight;
        mix(&mut self.switches, load.switches as f64 / thread_seconds);
        if !self.stacks_off {
            mix(&mut self.switch_stacks, load.switch_stacks as f64 / thread_seconds);
        }
        // A record costs gpuwhy at most `record_ns` of one CPU, which is a share of the machine; and all of them together no
        // more than it used. What they do not explain is there without them.
        let records = load.ops.iter().map(|op| op.full).sum::<u64>() as f64 / thread_seconds;
        let own = load.own_share() * 1e9;
        let priced = self.prices.record_ns * (thread_seconds / seconds) / f64::from(load.cpus.max(1));
        if records > 0.0 {
            mix(&mut self.own_ns, priced.min(own / records));
        }
    }

    /// From what is remembered, followed as it is now.
    fn estimate(&self) -> Estimate {
        let cost = |state: &OpState| state.cost(state.following, &self.prices, self.own_ns);
        let ops: f64 = self.ops.values().filter(|state| !state.is_stuck()).map(cost).sum();
        let stuck: f64 = self.ops.values().filter(|state| state.is_stuck()).map(cost).sum();
        let muted: f64 = self.ops.values().map(OpState::muted_cost).sum();
        Estimate {
            ops: (ops + self.stack_cost()) / 1e9,
            // gpuwhy's own time, but for what its records cost it, is on other CPUs, and no probe's to save. What is muted has
            // been given up already.
            fixed: (self.switches * self.prices.switch_ns + stuck + muted) / 1e9,
        }
    }

    /// Stacks at switches, ns a second.
    fn stack_cost(&self) -> f64 {
        if self.stacks_off { 0.0 } else { self.switch_stacks * self.prices.stack_ns }
    }

    fn give_up(&mut self, budget: f64, decisions: &mut Vec<Decision>) {
        let estimate = self.estimate();
        let room = |part: f64| (budget * part - estimate.fixed).max(budget * LEAST_ROOM * part);
        // At first a little more is taken: most is learnt then, and many jobs are over before it could matter.
        let limit = if self.now < LEARNING { TOLERATED } else { 1.0 };
        if estimate.ops <= room(limit) {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(self.now);
        let lasts = self.now - since >= OVER_FOR || estimate.ops > FAR_OVER * room(limit);
        let mut left = estimate.ops;
        while left > room(AIM) {
            let next = self.blamed(budget).or_else(|| self.next_to_give_up(budget));
            let next = next.or_else(|| self.last_resort(budget, lasts && left > room(limit)));
            let Some((action, saves)) = next else { return };
            let words = self.words(action);
            self.apply(action);
            left -= saves / 1e9;
            decisions.push(Decision { action, words });
        }
    }

    /// What was taken back a moment ago was too much, and goes before anything else does.
    fn blamed(&mut self, budget: f64) -> Option<(Action, f64)> {
        let (back, when) = self.last_back.take().filter(|(_, when)| self.now - when < BLAMED_FOR)?;
        let saving = |op, to| self.ops.get(&op).map_or(0.0, |state| self.saving(state, to));
        let undo = match back {
            Action::Attach { op, .. } => (Action::Detach(op), saving(op, Following::Detached)),
            Action::Unsample(op) => (Action::Sample(op), saving(op, Following::Sampled)),
            _ => (Action::StacksOff, self.stack_cost()),
        };
        let worth = undo.1 > budget * WORTH * 1e9;
        if !worth {
            self.last_back = Some((back, when));
        }
        worth.then_some(undo)
    }

    /// ns a second.
    fn saving(&self, state: &OpState, to: Following) -> f64 {
        let cost = |following| state.cost(following, &self.prices, self.own_ns);
        cost(state.following) - cost(to)
    }

    /// The function that saves most when followed like this, and how much, ns a second; if it saves this part of the budget.
    fn best(&self, budget: f64, protected: bool, to: Following, worth: f64) -> Option<(OpId, f64)> {
        let worth = budget * worth * 1e9;
        // One whose sampling would save nothing is paused without having been sampled, once the others' has shown what it
        // saves.
        let settled = self.ops.values().all(|state| state.is_settled(self.now));
        let vain = |state: &OpState| {
            to == Following::Detached
                && settled
                && state.may_become(Following::Sampled, self.now)
                && self.saving(state, Following::Sampled) <= worth
        };
        // Nothing is paused before it is known what sampling others saves.
        let now = |state: &OpState| (to != Following::Detached || settled) && state.may_become(to, self.now);
        let fits = |state: &&OpState| state.is_protected() == protected && (now(state) || vain(state));
        let savings = self.ops.values().filter(fits).map(|state| (state.op, self.saving(state, to)));
        savings.filter(|(_, saves)| *saves > worth).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What to give up next, and what that saves, ns a second; not yet what must not be missed.
    fn next_to_give_up(&self, budget: f64) -> Option<(Action, f64)> {
        let sample = |protected| self.best(budget, protected, Following::Sampled, WORTH);
        let detach = || self.best(budget, false, Following::Detached, WORTH_LETTING_GO);
        let ordinary = sample(false).map(|(op, saves)| (Action::Sample(op), saves));
        let stacks = Some((Action::StacksOff, self.stack_cost())).filter(|(_, saves)| *saves > budget * WORTH * 1e9);
        let cheap = ordinary.into_iter().chain(stacks).max_by(|a, b| a.1.total_cmp(&b.1));
        cheap
            .or_else(|| sample(true).map(|(op, saves)| (Action::Sample(op), saves)))
            .or_else(|| detach().map(|(op, saves)| (Action::Detach(op), saves)))
    }

    /// Something that must not be missed would have to go: before it, if that `is_due`, goes what else there is, however little
    /// it saves.
    fn last_resort(&self, budget: f64, is_due: bool) -> Option<(Action, f64)> {
        let protected = self.best(budget, true, Following::Detached, WORTH_LETTING_GO).filter(|_| is_due)?;
        let (op, saves) = self.best(budget, false, Following::Detached, WORTH).unwrap_or(protected);
        Some((Action::Detach(op), saves))
    }

    /// One thing at a time, so that it is known what was too much.
    fn take_back(&mut self, budget: f64) -> Option<Decision> {
        let estimate = self.estimate();
        let total = estimate.ops + estimate.fixed;
        if total > budget * CALM {
            self.calm_since = None;
            return None;
        }
        let since = *self.calm_since.get_or_insert(self.now);
        if self.now - since < CALM_FOR {
            return None;
        }
        let action = self.next_to_take_back(budget, total)?;
        let words = self.words(action);
        self.apply(action);
        self.calm_since = None;
        self.last_back = Some((action, self.now));
        Some(Decision { action, words })
    }

    fn next_to_take_back(&self, budget: f64, total: f64) -> Option<Action> {
        let now = self.now;
        let blind = total < budget * CALM_BLIND;
        // Where other processes kept the probe, it is known what following it would add.
        let affordable = |state: &&OpState| {
            let adds = (state.cost_if_followed(&self.prices, self.own_ns) - state.muted_cost()) / 1e9;
            total + adds < budget * CALM
        };
        // What is not counted at all is missed most.
        let detached =
            |state: &&OpState| state.following == Following::Detached && blind && state.detached.is_over(now);
        if let Some(state) = self.ops.values().filter(detached).find(affordable) {
            return Some(Action::Attach { op: state.op, sampled: state.can_be_sampled() });
        }
        let adds = |state: &OpState| {
            let full = state.cost_at_peak(Following::Full, &self.prices, self.own_ns);
            (full - state.cost(state.following, &self.prices, self.own_ns)) / 1e9
        };
        let sampled =
            self.ops.values().filter(|state| state.following == Following::Sampled && state.sampled.is_over(now));
        let sampled = sampled.map(|state| (state.op, adds(state))).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((op, _)) = sampled.filter(|(_, adds)| total + adds < budget * CALM) {
            return Some(Action::Unsample(op));
        }
        // Each switch might read one.
        let stacks = self.switches * self.prices.stack_ns / 1e9;
        (self.stacks_off && self.stacks.is_over(now) && total + stacks < budget * CALM).then_some(Action::StacksOn)
    }

    fn apply(&mut self, action: Action) {
        let now = self.now;
        let mut with = |op: OpId, change: &dyn Fn(&mut OpState)| self.ops.get_mut(&op).into_iter().for_each(change);
        match action {
            Action::Sample(op) => with(op, &|state| {
                state.following = Following::Sampled;
                state.sampled.give_up(now);
            }),
            Action::Unsample(op) => with(op, &|state| {
                state.following = Following::Full;
                state.sampled.take_back(now);
            }),
            Action::Detach(op) => with(op, &|state| {
                state.following = Following::Detached;
                state.detached.give_up(now);
            }),
            Action::Attach { op, sampled } => with(op, &|state| {
                state.following = if sampled { Following::Sampled } else { Following::Full };
                state.forget();
                state.detached.take_back(now);
                // It is not unsampled at once.
                state.sampled.give_up(now);
            }),
            Action::StacksOff => {
                self.stacks_off = true;
                self.stacks.give_up(now);
            }
            Action::StacksOn => {
                self.stacks_off = false;
                self.stacks.take_back(now);
            }
        }
    }

    /// To be asked before the action is applied.
    fn words(&self, action: Action) -> String {
        let state = |op: OpId| self.ops.get(&op);
        let name = |op: OpId| state(op).map_or("a function", OpState::name);
        let budget = self.budget;
        let why = |op: OpId| {
            let (rate, cost) = state(op)
                .map_or((0.0, 0.0), |state| (state.rate, state.cost(state.following, &self.prices, self.own_ns) / 1e9));
            let (rate, share) = (units::count(rounded(rate)), units::percent(cost, 1.0));
            format!("{rate} calls/s would cost {share}; budget {budget}")
        };
        match action {
            Action::Sample(op) => format!("sampling {} ({}); its counts stay exact", name(op), why(op)),
            Action::Detach(op) => format!("paused {} ({}); its counts stop here", name(op), why(op)),
            Action::Unsample(op) => format!("recording every call of {} again", name(op)),
            Action::Attach { op, .. } => format!("resumed {}; its calls while paused are unknown", name(op)),
            Action::StacksOff => format!(
                "paused Python stacks of waiting threads (they would cost {}; budget {budget})",
                units::percent(self.stack_cost() / 1e9, 1.0)
            ),
            Action::StacksOn => "resumed Python stacks of waiting threads".to_owned(),
        }
    }
}

/// Two digits are as much as an estimate knows.
fn rounded(rate: f64) -> u64 {
    let step = 10f64.powf(rate.max(1.0).log10().floor() - 1.0).max(1.0);
    ((rate / step).round() * step) as u64
}
