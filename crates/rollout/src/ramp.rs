//! The number of concurrent agents: few at first, more while all goes well, half when the infrastructure is overloaded.

/// The adaptive limit.
#[derive(Debug)]
pub(crate) struct Ramp {
    most: usize,
    limit: usize,
    /// Whether every success adds one, as long as nothing has failed; afterwards only a whole round of them does.
    is_first_rise: bool,
    good: usize,
    /// Counts the halvings. Attempts that started before the last one failed for the same cause, and don't halve again.
    era: u64,
    is_fixed: bool,
}

impl Ramp {
    pub(crate) fn new(first: usize, most: usize, is_fixed: bool) -> Self {
        let most = most.max(1);
        let limit = if is_fixed { most } else { first.clamp(1, most) };
        Self { most, limit, is_first_rise: true, good: 0, era: 0, is_fixed }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The era that a new attempt records.
    pub(crate) fn era(&self) -> u64 {
        self.era
    }

    /// Records an attempt that ended without a fault of the infrastructure, or has run for a while.
    pub(crate) fn went_well(&mut self) {
        self.good += 1;
        if self.limit < self.most && (self.is_first_rise || self.good >= self.limit) {
            self.limit += 1;
            self.good = 0;
        }
    }

    /// Records an infrastructure failure of an attempt of that era, or a busy server.
    pub(crate) fn was_too_much(&mut self, era: u64) {
        if era == self.era && !self.is_fixed {
            self.era += 1;
            self.limit = (self.limit / 2).max(1);
            self.is_first_rise = false;
            self.good = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_fast_halves_once_for_one_cause_and_rises_slowly_afterwards() {
        let mut ramp = Ramp::new(4, 32, false);
        for _ in 0..100 {
            ramp.went_well();
        }
        assert_eq!(ramp.limit(), 32);
        // All attempts that ran when the server died fail together.
        let era = ramp.era();
        for _ in 0..32 {
            ramp.was_too_much(era);
        }
        assert_eq!(ramp.limit(), 16);
        for _ in 0..16 {
            ramp.went_well();
        }
        assert_eq!(ramp.limit(), 17);
        for _ in 0..20 {
            ramp.was_too_much(ramp.era());
        }
        assert_eq!(ramp.limit(), 1);
    }

    #[test]
    fn it_is_never_above_the_most_and_fixed_where_that_is_wanted() {
        assert_eq!(Ramp::new(4, 2, false).limit(), 2);
        let mut fixed = Ramp::new(4, 8, true);
        fixed.was_too_much(0);
        fixed.went_well();
        assert_eq!(fixed.limit(), 8);
    }
}
