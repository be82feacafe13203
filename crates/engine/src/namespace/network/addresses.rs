//! Allocation of the subnet's addresses.

use std::collections::{HashSet, VecDeque};

/// 0 is the network, 1 the gateway.
const FIRST: u32 = 2;
/// 65535 would be the broadcast address.
const LAST: u32 = 65534;
pub(super) const MOST: u32 = LAST - FIRST + 1;

/// Allocates addresses, the most recently released one last: packets on their way to an earlier sandbox should not reach a new
/// one at its address.
pub(super) struct Addresses {
    fresh: u32,
    freed: VecDeque<u32>,
    used: HashSet<u32>,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { fresh: FIRST, freed: VecDeque::new(), used: HashSet::new() }
    }

    pub(super) fn next(&mut self) -> Option<u32> {
        while self.fresh <= LAST {
            let index = self.fresh;
            self.fresh += 1;
            if self.used.insert(index) {
                return Some(index);
            }
        }
        let index = self.freed.pop_front()?;
        self.used.insert(index);
        Some(index)
    }

    /// Releases an address. Idempotent.
    pub(super) fn release(&mut self, index: u32) {
        if self.used.remove(&index) {
            self.freed.push_back(index);
        }
    }

    /// Marks addresses as used that were found in use.
    pub(super) fn take(&mut self, indexes: &[u32]) {
        self.used.extend(indexes.iter().filter(|i| (FIRST..=LAST).contains(*i)));
        self.freed.retain(|i| !self.used.contains(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_handed_out_once_and_freed_ones_in_order() {
        let mut addresses = Addresses::new();
        addresses.take(&[3, 1, 70_000]);
        let mut seen = HashSet::new();
        while let Some(index) = addresses.next() {
            assert!((FIRST..=LAST).contains(&index) && seen.insert(index));
        }
        assert_eq!(u32::try_from(seen.len()).unwrap(), MOST - 1);
        assert!(!seen.contains(&3));
        for index in [9, 5, 3, 5] {
            addresses.release(index);
        }
        let again: Vec<_> = std::iter::from_fn(|| addresses.next()).collect();
        assert_eq!(again, [9, 5, 3]);
    }
}
