// SPDX-License-Identifier: Apache-2.0
//! What the policy knows of one function.

use super::load::{OpHits, Prices, ProbePrice};
use gpuwhy_model::{Class, Decode, Op, OpId};

/// How a function is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Following {
    /// Every call, entry and return.
    Full,
    /// The returns of some calls only. Counts stay exact.
    Sampled,
    /// Not at all. How often it is called from now on is unknown, unless another process keeps the probe.
    Detached,
}

/// How long to wait before something given up is tried again, seconds: at first, and at most.
const WAIT_SAMPLED: f64 = 10.0;
const WAIT_DETACHED: f64 = 30.0;
const WAIT_MOST: f64 = 3_600.0;
/// What was taken back and lasted this long was no mistake: the next wait is a short one again.
const LASTED: f64 = 600.0;
/// The part of calls whose return a sampled function is expected to skip, before it is known.
const BORING: f64 = 0.9;
/// Hits from which the part that was skipped can be told.
const ENOUGH: u64 = 100;
/// Half of the peak is forgotten after this long, seconds.
const PEAK_HALVES: f64 = 30.0;

/// Waiting before something given up is taken back: twice as long each time that had to be undone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    first: f64,
    wait: f64,
    given_up: f64,
    taken_back: Option<f64>,
}

impl Patience {
    pub(super) fn new(first: f64) -> Self {
        Self { first, wait: first, given_up: 0.0, taken_back: None }
    }

    pub(super) fn give_up(&mut self, now: f64) {
        if let Some(back) = self.taken_back.take() {
            self.wait = if now - back > LASTED { self.first } else { (self.wait * 2.0).min(WAIT_MOST) };
        }
        self.given_up = now;
    }

    pub(super) fn take_back(&mut self, now: f64) {
        self.taken_back = Some(now);
    }

    /// Whether it was given up before this moment.
    fn is_older(&self, now: f64) -> bool {
        self.given_up < now
    }

    pub(super) fn is_over(&self, now: f64) -> bool {
        now - self.given_up >= self.wait
    }
}

/// One function.
#[derive(Debug, Clone)]
pub(super) struct OpState {
    pub(super) op: OpId,
    pub(super) following: Following,
    /// What its probe costs.
    probe: ProbePrice,
    /// Hits a second on the threads counted, smoothed.
    pub(super) rate: f64,
    /// The most it was lately.
    peak: f64,
    /// Of calls that are not followed and hit a probe that is there for other processes, smoothed.
    muted: f64,
    /// The part of full calls for which a stack is read.
    stacks: f64,
    /// The same of the allocator's reports while few have one.
    sampled_stacks: f64,
    /// The part of hits that is followed to the return when all that can be is: calls inside others are not.
    followed: f64,
    /// The part of calls whose return is skipped when it is sampled.
    boring: Option<f64>,
    /// Nothing is known of its present rate yet.
    fresh: bool,
    /// What the kernel would not do is not tried again.
    cannot_sample: bool,
    cannot_detach: bool,
    pub(super) sampled: Patience,
    pub(super) detached: Patience,
}

impl OpState {
    pub(super) fn new(op: OpId) -> Self {
        Self {
            op,
            following: Following::Full,
            probe: ProbePrice::default(),
            rate: 0.0,
            peak: 0.0,
            muted: 0.0,
            stacks: 0.0,
            sampled_stacks: 0.0,
            followed: 1.0,
            boring: None,
            fresh: true,
            cannot_sample: false,
            cannot_detach: false,
            sampled: Patience::new(WAIT_SAMPLED),
            detached: Patience::new(WAIT_DETACHED),
        }
    }

    /// Takes note of a period of `seconds`; `weight` of the new is mixed into the old.
    pub(super) fn note(&mut self, hits: Option<&OpHits>, seconds: f64, weight: f64) {
        if self.following == Following::Detached {
            let muted = hits.map_or(0.0, |hits| hits.muted as f64 / seconds);
            self.muted += (muted - self.muted) * weight;
            return;
        }
        self.muted = 0.0;
        let (count, full, stacks) = hits.map_or((0, 0, 0), |h| (h.hits, h.full.min(h.hits), h.stacks));
        self.probe = hits.map_or(self.probe, |hits| hits.price);
        let now = count as f64 / seconds;
        let weight = if std::mem::take(&mut self.fresh) { 1.0 } else { weight };
        self.rate += (now - self.rate) * weight;
        self.peak = (self.peak * 0.5f64.powf(seconds / PEAK_HALVES)).max(self.rate);
        if full > 0 {
            let few = self.following == Following::Sampled && self.class() == Some(Class::Tensor);
            let known = if few { &mut self.sampled_stacks } else { &mut self.stacks };
            *known += (stacks as f64 / full as f64 - *known) * weight;
        }
        if self.following == Following::Full && count > 0 {
            self.followed += (full as f64 / count as f64 - self.followed) * weight;
        }
        if self.following == Following::Sampled && count >= ENOUGH {
            let skipped = 1.0 - full as f64 / count as f64;
            self.boring = Some(self.boring.map_or(skipped, |known| known + (skipped - known) * weight));
        }
    }

    /// What was known of its rate is long ago.
    pub(super) fn forget(&mut self) {
        (self.rate, self.fresh) = (0.0, true);
    }

    /// Whether it can be followed like this, which is less than now. One that can be sampled is paused only when a period has
    /// shown that sampling does not do: a burst must not cost its counts.
    pub(super) fn may_become(&self, to: Following, now: f64) -> bool {
        match to {
            Following::Full => false,
            Following::Sampled => self.following == Following::Full && self.can_be_sampled(),
            Following::Detached if self.cannot_detach => false,
            Following::Detached => match self.following {
                Following::Full => !self.can_be_sampled(),
                Following::Sampled => self.sampled.is_older(now),
                Following::Detached => false,
            },
        }
    }

    /// Whether it was not sampled just now: then nothing is known of what that saves.
    pub(super) fn is_settled(&self, now: f64) -> bool {
        self.following != Following::Sampled || self.sampled.is_older(now)
    }

    /// What it costs at its present rate if it is followed like this, ns a second. `own_ns`: gpuwhy's for each record, in
    /// the same terms.
    pub(super) fn cost(&self, following: Following, prices: &Prices, own_ns: f64) -> f64 {
        self.rate * self.price(following, prices, own_ns)
    }

    /// The same at the highest rate it had lately.
    pub(super) fn cost_at_peak(&self, following: Following, prices: &Prices, own_ns: f64) -> f64 {
        self.peak * self.price(following, prices, own_ns)
    }

    /// What calls cost that are not followed and hit a probe all the same, ns a second.
    pub(super) fn muted_cost(&self) -> f64 {
        self.muted * self.probe.entry_ns
    }

    /// What they would cost if they were followed again, as it would be at first, ns a second.
    pub(super) fn cost_if_followed(&self, prices: &Prices, own_ns: f64) -> f64 {
        let following = if self.can_be_sampled() { Following::Sampled } else { Following::Full };
        self.muted * self.price(following, prices, own_ns)
    }

    fn price(&self, following: Following, prices: &Prices, own_ns: f64) -> f64 {
        let entry_ns = self.probe.entry_ns;
        let whole = self.probe.followed_ns(self.op) + self.stacks * prices.stack_ns + own_ns;
        let part = |followed: f64| entry_ns + followed * (whole - entry_ns).max(0.0);
        match following {
            // Every report is told of, but few with their stack.
            Following::Sampled if self.class() == Some(Class::Tensor) => {
                entry_ns + self.sampled_stacks * prices.stack_ns + own_ns
            }
            Following::Full => part(self.followed),
            Following::Sampled => {
                let kept = self.boring.map_or(self.followed * (1.0 - BORING), |boring| 1.0 - boring);
                part(kept.min(self.followed))
            }
            Following::Detached => 0.0,
        }
    }

    pub(super) fn class(&self) -> Option<Class> {
        self.op.get().map(|op| op.class)
    }

    /// What must not be missed: waits, what memory accounts are made of, and what says where things happen.
    pub(super) fn is_protected(&self) -> bool {
        use Class::{Alloc, Collective, Communicator, Device, Free, Graph, Map, Module, Sync, Tensor};
        let protected = self.class();
        matches!(
            protected,
            Some(Sync | Alloc | Free | Map | Collective | Communicator | Device | Graph | Module | Tensor)
        )
    }

    /// Launches of kernels are told by their first and last; everything else differs from call to call in what matters. The
    /// allocator's reports can do without their stacks.
    pub(super) fn can_be_sampled(&self) -> bool {
        let launches = |op: &Op| {
            op.class == Class::Launch && matches!(op.decode, Decode::Launch | Decode::LaunchDim3 | Decode::LaunchConfig)
        };
        let fits = self.op.get().is_some_and(|op| launches(op) || op.class == Class::Tensor);
        !self.cannot_sample && fits
    }

    /// Whether nothing can be done about what it costs.
    pub(super) fn is_stuck(&self) -> bool {
        self.cannot_detach && !self.can_be_sampled()
    }

    /// It could not be followed less closely, and still is as it was.
    pub(super) fn refuse(&mut self, to: Following) {
        match to {
            Following::Detached => {
                self.cannot_detach = true;
                // One that was not sampled before was not worth it.
                let was_sampled =
                    self.can_be_sampled() && self.sampled.given_up > 0.0 && self.sampled.taken_back.is_none();
                self.following = if was_sampled { Following::Sampled } else { Following::Full };
            }
            Following::Full | Following::Sampled => {
                self.cannot_sample = true;
                self.following = Following::Full;
            }
        }
    }

    /// It could not be followed more closely; that is tried again, later each time.
    pub(super) fn stay(&mut self, following: Following, now: f64) {
        self.following = following;
        self.sampled.give_up(now);
        self.detached.give_up(now);
    }

    pub(super) fn name(&self) -> &'static str {
        self.op.get().map_or("a function", |op| op.name.as_str())
    }
}
