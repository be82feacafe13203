//! Equal refusals of a second as one event: a program that tries again and again must not fill the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::events::{EgressEvent, Protocol};
use crate::policy::Reason;

/// Different refusals of a sandbox in a second. Further ones are counted without their names.
const MOST: usize = 256;

/// What makes refusals equal.
type Key = (String, Protocol, Option<String>, Option<IpAddr>, u16, Reason, Option<String>, Option<String>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    First,
    Counted,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    seen: HashMap<Key, Repeated>,
    of_sandbox: HashMap<String, usize>,
}

#[derive(Debug)]
struct Repeated {
    last: EgressEvent,
    /// Whether the event that was sent stands for one that counts.
    is_counted: bool,
    count: u64,
}

impl Refusals {
    pub(crate) const WINDOW: Duration = Duration::from_secs(1);

    /// Whether the event is the first of its kind in this window, and whether it is the first of all, so that the window has to be
    /// ended by [`Self::take`]. One that does not count leaves the others' count as it is.
    pub(crate) fn note(&self, event: &EgressEvent, counts: bool) -> (Repetition, bool) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = window.seen.is_empty();
        let of_sandbox = window.of_sandbox.get(&event.sandbox).copied().unwrap_or_default();
        let mut event = event.clone();
        if of_sandbox >= MOST && !window.seen.contains_key(&key(&event)) {
            (event.name, event.address, event.port, event.method, event.path) = (None, None, 0, None, None);
        }
        match window.seen.entry(key(&event)) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                let earlier = if known.is_counted { event.count } else { event.count - 1 };
                known.count += if counts { earlier } else { 0 };
                known.is_counted |= counts;
                known.last.time = Timestamp::now();
                if event.process.is_some() && known.last.process != event.process {
                    known.last.process = None;
                }
                (Repetition::Counted, false)
            }
            Entry::Vacant(new) => {
                let sandbox = event.sandbox.clone();
                new.insert(Repeated { last: event, is_counted: counts, count: 0 });
                *window.of_sandbox.entry(sandbox).or_default() += 1;
                (Repetition::First, opens)
            }
        }
    }

    /// Ends the window: the events that were counted since their first one.
    pub(crate) fn take(&self) -> Vec<EgressEvent> {
        let window = std::mem::take(&mut *self.window.lock().unwrap_or_else(PoisonError::into_inner));
        let repeated = window.seen.into_values().filter(|repeated| repeated.count > 0);
        repeated.map(|Repeated { last, count, .. }| EgressEvent { count, ..last }).collect()
    }
}

fn key(event: &EgressEvent) -> Key {
    let EgressEvent { sandbox, protocol, name, address, port, reason, method, path, .. } = event;
    (sandbox.clone(), *protocol, name.clone(), *address, *port, *reason, method.clone(), path.clone())
}
