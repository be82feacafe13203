//! Operations in progress, per sandbox and in total.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) of_one: usize,
    pub(crate) of_all: usize,
}

/// Counts operations in progress, per sandbox and in total.
#[derive(Debug)]
pub(crate) struct Load<C: Eq + Hash> {
    bound: Bound,
    now: Mutex<(usize, HashMap<C, usize>)>,
}

impl<C: Eq + Hash + Clone> Load<C> {
    pub(crate) fn new(bound: Bound) -> Arc<Self> {
        Arc::new(Self { bound, now: Mutex::new((0, HashMap::new())) })
    }

    /// None at the limit.
    pub(crate) fn enter(self: &Arc<Self>, client: C) -> Option<Slot<C>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, each) = &mut *now;
        let one = each.get(&client).copied().unwrap_or_default();
        if *all >= self.bound.of_all || one >= self.bound.of_one {
            return None;
        }
        *all += 1;
        each.insert(client.clone(), one + 1);
        Some(Slot { load: self.clone(), client })
    }
}

/// One operation in progress; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Slot<C: Eq + Hash> {
    load: Arc<Load<C>>,
    client: C,
}

impl<C: Eq + Hash> Drop for Slot<C> {
    fn drop(&mut self) {
        let mut now = self.load.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, each) = &mut *now;
        *all -= 1;
        if let Some(one) = each.get_mut(&self.client) {
            *one -= 1;
            if *one == 0 {
                each.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_does_not_take_what_others_need() {
        let load = Load::new(Bound { of_one: 2, of_all: 3 });
        let (a, b) = ("10.209.0.2", "10.209.0.3");
        let slots = [load.enter(a).unwrap(), load.enter(a).unwrap()];
        assert!(load.enter(a).is_none());
        let other = load.enter(b).unwrap();
        assert!(load.enter(b).is_none(), "all are taken");
        drop(slots);
        assert!(load.enter(b).is_some());
        drop(other);
        assert!(load.now.lock().unwrap().1.is_empty());
    }
}
