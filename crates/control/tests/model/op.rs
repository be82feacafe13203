//! The operations of the test, and their generator.

use arenite_control::fake_engine::Point;
use arenite_control::tenants::{Quota, Role};

pub(crate) const TENANTS: [&str; 5] = ["amber", "birch", "cedar", "dune", "ember"];
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];
pub(crate) const GROUPS: u8 = 2;
pub(crate) const QUOTAS: [Quota; 5] =
    [Quota::Sandboxes, Quota::ConcurrentCreates, Quota::CpuMillis, Quota::MemoryBytes, Quota::DiskBytes];

/// A sandbox of a tenant: one of [`NAMES`], or beyond them, one of those without a name, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tenant: u8,
    pub(crate) which: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Create {
    pub(crate) tenant: u8,
    /// Of [`NAMES`]; none: its id.
    pub(crate) name: Option<u8>,
    /// Of [`crate::state::SIZES`].
    pub(crate) size: u8,
    /// In seconds; 0: without end.
    pub(crate) life: u64,
    /// In seconds; 0: never idle.
    pub(crate) idle: u64,
    pub(crate) pauses_when_idle: bool,
    pub(crate) group: Option<u8>,
    /// The `which` of a [`Target`] of its tenant.
    pub(crate) parent: Option<u8>,
    /// Sandboxes and depth of the budget for its children.
    pub(crate) budget: Option<(u32, u32)>,
    pub(crate) key: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Create(Create),
    Batch {
        tenant: u8,
        count: usize,
        min: usize,
        size: u8,
        key: Option<u8>,
    },
    /// A call, which may last until [`Op::Release`].
    Call {
        target: Target,
        lasts: bool,
    },
    Release(u8),
    Pause(Target),
    Resume(Target),
    Start(Target),
    Delete(Target),
    /// Changes the end of its life: by this many seconds, or to this many seconds from now.
    Extend {
        target: Target,
        seconds: u64,
        from_now: bool,
    },
    /// Its guest ends by itself.
    End(Target),
    OpenGroup {
        tenant: u8,
        group: u8,
        ttl: u64,
    },
    RenewGroup {
        tenant: u8,
        group: u8,
        ttl: Option<u64>,
    },
    EndGroup {
        tenant: u8,
        group: u8,
    },
    Limit {
        tenant: u8,
        quota: Quota,
        limit: Option<u64>,
    },
    NewKey {
        tenant: u8,
        role: Role,
        life: Option<u64>,
    },
    RotateKey {
        tenant: u8,
        which: u8,
        overlap: u64,
    },
    RevokeKey {
        tenant: u8,
        which: u8,
    },
    Disable {
        tenant: u8,
        disabled: bool,
    },
    /// Time passes, in seconds.
    Wait(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    One(Op),
    /// The engine fails at this point, this many times.
    Faulty(Op, Point, usize),
    /// All at once.
    Together(Vec<Op>),
    /// The server is killed while these run, that many moments after they began.
    Crash {
        during: Vec<Op>,
        moments: u32,
        down: u64,
        reboot: bool,
    },
    /// A restart in order.
    Restart {
        down: u64,
    },
}

impl Op {
    pub(crate) fn tenant(&self) -> Option<u8> {
        Some(match self {
            Self::Create(Create { tenant, .. })
            | Self::Batch { tenant, .. }
            | Self::Release(tenant)
            | Self::OpenGroup { tenant, .. }
            | Self::RenewGroup { tenant, .. }
            | Self::EndGroup { tenant, .. }
            | Self::Limit { tenant, .. }
            | Self::NewKey { tenant, .. }
            | Self::RotateKey { tenant, .. }
            | Self::RevokeKey { tenant, .. }
            | Self::Disable { tenant, .. } => *tenant,
            Self::Call { target, .. } | Self::Extend { target, .. } => target.tenant,
            Self::Pause(target) | Self::Resume(target) | Self::Start(target) | Self::Delete(target) | Self::End(target) => {
                target.tenant
            }
            Self::Wait(_) => return None,
        })
    }

    /// The sandbox that it is about.
    pub(crate) fn target(&self) -> Option<Target> {
        match self {
            Self::Call { target, .. } | Self::Extend { target, .. } => Some(*target),
            Self::Pause(target) | Self::Resume(target) | Self::Start(target) | Self::Delete(target) | Self::End(target) => {
                Some(*target)
            }
            Self::Create(Create { tenant, name: Some(name), .. }) => Some(Target { tenant: *tenant, which: *name }),
            _ => None,
        }
    }
}

/// A seeded source of numbers (SplitMix64).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn small(&mut self, bound: u8) -> u8 {
        self.below(bound.into()) as u8
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    fn maybe<T>(&mut self, one_in: u64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.one_in(one_in) { Some(value(self)) } else { None }
    }

    fn tenant(&mut self) -> u8 {
        self.small(TENANTS.len() as u8)
    }

    fn target(&mut self, tenant: u8) -> Target {
        Target { tenant, which: self.small(NAMES.len() as u8 + 3) }
    }

    fn create(&mut self, tenant: u8) -> Create {
        let parent = self.maybe(4, |random| random.target(0).which);
        Create {
            tenant,
            name: if self.one_in(4) { None } else { Some(self.small(NAMES.len() as u8)) },
            size: self.pick(&[0, 0, 1, 2]),
            life: self.pick(&[0, 0, 20, 60]),
            idle: self.pick(&[0, 0, 15, 40]),
            pauses_when_idle: self.one_in(2),
            group: if parent.is_none() { self.maybe(4, |random| random.small(GROUPS)) } else { None },
            parent,
            budget: self.maybe(3, |random| (1 + random.below(4) as u32, 1 + random.below(3) as u32)),
            key: self.maybe(6, |random| random.small(3)),
        }
    }

    /// An operation on sandboxes or groups, for steps with several.
    fn change(&mut self, tenant: u8) -> Op {
        let (target, group) = (self.target(tenant), self.small(GROUPS));
        match self.below(22) {
            20..=21 => Op::Extend { target, seconds: self.pick(&[5, 20, 60]), from_now: self.one_in(2) },
            0..=5 => Op::Create(self.create(tenant)),
            6..=8 => Op::Delete(target),
            9..=10 => Op::Pause(target),
            11..=12 => Op::Resume(target),
            13..=14 => Op::Start(target),
            15..=16 => Op::Call { target, lasts: false },
            17 => Op::OpenGroup { tenant, group, ttl: self.pick(&[5, 30, 90]) },
            18 => Op::RenewGroup { tenant, group, ttl: self.maybe(2, |random| random.pick(&[5, 30, 90])) },
            _ => Op::EndGroup { tenant, group },
        }
    }

    fn op(&mut self) -> Op {
        let tenant = self.tenant();
        match self.below(40) {
            0..=20 => self.change(tenant),
            21..=22 => {
                let count = 1 + self.below(5) as usize;
                let min = 1 + self.below(count as u64) as usize;
                Op::Batch { tenant, count, min, size: self.small(3), key: self.maybe(2, |random| 10 + random.small(2)) }
            }
            23..=24 => Op::Call { target: self.target(tenant), lasts: true },
            25 => Op::Release(tenant),
            26..=27 => Op::End(self.target(tenant)),
            28..=29 => {
                let quota = self.pick(&QUOTAS);
                let unit = match quota {
                    Quota::Sandboxes | Quota::ConcurrentCreates => 1,
                    Quota::CpuMillis => 2000,
                    Quota::MemoryBytes => 2 << 30,
                    _ => 10 << 30,
                };
                let limit = self.below(7) * unit;
                Op::Limit { tenant, quota, limit: if self.one_in(3) { None } else { Some(limit) } }
            }
            30..=31 => Op::NewKey { tenant, role: self.pick(&Role::ALL), life: self.maybe(2, |random| 10 + random.below(50)) },
            32 => Op::RotateKey { tenant, which: self.small(8), overlap: self.pick(&[0, 10, 100]) },
            33 => Op::RevokeKey { tenant, which: self.small(8) },
            34 => Op::Disable { tenant, disabled: self.one_in(3) },
            _ => Op::Wait(1 + self.below(15)),
        }
    }

    /// Several operations that are likely to meet.
    fn several(&mut self) -> Vec<Op> {
        let tenant = self.tenant();
        let mut ops: Vec<Op> = (0..2 + self.below(2)).map(|_| self.change(tenant)).collect();
        if self.one_in(2)
            && let Some(met) = ops[0].target()
        {
            for op in &mut ops[1..] {
                match op {
                    Op::Call { target, .. } | Op::Extend { target, .. } => *target = met,
                    Op::Pause(target) | Op::Resume(target) | Op::Start(target) | Op::Delete(target) => *target = met,
                    Op::Create(create) if (met.which as usize) < NAMES.len() => create.name = Some(met.which),
                    _ => {}
                }
            }
        }
        ops
    }

    fn step(&mut self) -> Step {
        match self.below(100) {
            0..=68 => Step::One(self.op()),
            69..=75 => {
                let tenant = self.tenant();
                let target = self.target(tenant);
                let times = 1 + self.below(2) as usize;
                let (op, point) = match self.below(8) {
                    0..=2 => {
                        let points = [Point::Reserve, Point::Adopt, Point::BeforeCreate, Point::AfterCreate];
                        (Op::Create(self.create(tenant)), self.pick(&points))
                    }
                    3 => (Op::Pause(target), Point::Pause),
                    4 => (Op::Resume(target), Point::Resume),
                    5 => (Op::Start(target), Point::Restart),
                    6 => (Op::Delete(target), self.pick(&[Point::BeforeDestroy, Point::AfterDestroy])),
                    _ => (Op::EndGroup { tenant, group: self.small(GROUPS) }, Point::BeforeDestroy),
                };
                Step::Faulty(op, point, times)
            }
            76..=94 => Step::Together(self.several()),
            95..=98 => {
                let mut during = if self.one_in(4) { Vec::new() } else { self.several() };
                // The server may be ending what is due.
                during.extend(self.maybe(3, |random| Op::Wait(10 + random.below(30))));
                Step::Crash { during, moments: self.below(24) as u32, down: self.below(20), reboot: self.one_in(5) }
            }
            _ => Step::Restart { down: self.below(10) },
        }
    }
}

pub(crate) fn generate(seed: u64, number: usize) -> Vec<Step> {
    let mut random = Random::new(seed);
    (0..number).map(|_| random.step()).collect()
}
