//! The deliveries that wait, by webhook, with limits on concurrent attempts. A webhook that hangs delays no other.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_model::{TenantId, WebhookId};
use jiff::Timestamp;
use tokio::sync::Notify;

use super::Webhook;
use crate::clock::Clock;

/// The most concurrent attempts: of all tenants, of a tenant, and of a webhook.
pub const MAX_ATTEMPTS: usize = 256;
const OF_TENANT: usize = 8;
const OF_WEBHOOK: usize = 2;

#[derive(Default)]
pub(super) struct Queue {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    webhooks: HashMap<WebhookId, Waiting>,
    of_tenant: HashMap<TenantId, usize>,
    attempts: usize,
}

struct Waiting {
    tenant: TenantId,
    due: BTreeSet<(Timestamp, u64)>,
    /// The same by number, so that a delivery waits only once.
    times: HashMap<u64, Timestamp>,
    attempts: HashSet<u64>,
    /// Deliveries that ended since the last trim.
    ended: u32,
    /// Increases with each attempt of any webhook: the smallest is served first.
    served: u64,
}

/// A permit to make one attempt, until it is dropped.
pub struct Attempt {
    pub(super) webhook: WebhookId,
    pub(super) number: u64,
    tenant: TenantId,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.attempts -= 1;
        if let Some(count) = state.of_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.of_tenant.remove(&self.tenant);
            }
        }
        if let Some(waiting) = state.webhooks.get_mut(&self.webhook) {
            waiting.attempts.remove(&self.number);
        }
        drop(state);
        self.changed.notify_one();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(super) fn push(&self, hook: &Webhook, number: u64, at: Timestamp) {
        let mut state = lock(&self.state);
        let waiting = state.webhooks.entry(hook.id.clone()).or_insert_with(|| Waiting {
            tenant: hook.tenant.clone(),
            due: BTreeSet::new(),
            times: HashMap::new(),
            attempts: HashSet::new(),
            ended: 0,
            served: 0,
        });
        if let Some(before) = waiting.times.insert(number, at) {
            waiting.due.remove(&(before, number));
        }
        waiting.due.insert((at, number));
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn forget(&self, webhook: &WebhookId) {
        lock(&self.state).webhooks.remove(webhook);
    }

    pub(super) fn waiting(&self, webhook: &WebhookId) -> usize {
        lock(&self.state).webhooks.get(webhook).map_or(0, |waiting| waiting.due.len())
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.state).webhooks.values().map(|waiting| waiting.due.len()).sum()
    }

    /// Counts an ended delivery. True for every one of `every`.
    pub(super) fn is_trim_due(&self, webhook: &WebhookId, every: u32) -> bool {
        let mut state = lock(&self.state);
        let Some(waiting) = state.webhooks.get_mut(webhook) else { return false };
        waiting.ended += 1;
        let is_due = waiting.ended >= every;
        if is_due {
            waiting.ended = 0;
        }
        is_due
    }

    pub(super) async fn next(&self, clock: &Clock) -> Attempt {
        loop {
            let next = match self.take(clock.now()) {
                Ok(attempt) => return attempt,
                Err(next) => next,
            };
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Takes a due delivery, or returns when the next one is due that only waits for its time.
    fn take(&self, now: Timestamp) -> Result<Attempt, Option<Timestamp>> {
        let mut state = lock(&self.state);
        let State { webhooks, of_tenant, attempts } = &mut *state;
        if *attempts >= MAX_ATTEMPTS {
            return Err(None);
        }
        let is_free = |waiting: &Waiting| {
            waiting.attempts.len() < OF_WEBHOOK && of_tenant.get(&waiting.tenant).is_none_or(|count| *count < OF_TENANT)
        };
        let mut next: Option<Timestamp> = None;
        let mut found: Option<(u64, &WebhookId)> = None;
        for (id, waiting) in webhooks.iter().filter(|(_, waiting)| is_free(waiting)) {
            // Not one that is being attempted: a redelivery by hand may have enqueued it again.
            let first = waiting.due.iter().find(|(_, number)| !waiting.attempts.contains(number));
            match first {
                Some((at, _)) if *at > now => next = Some(next.map_or(*at, |next| next.min(*at))),
                Some(_) if found.is_none_or(|(served, _)| waiting.served < served) => found = Some((waiting.served, id)),
                _ => {}
            }
        }
        let Some(webhook) = found.map(|(_, id)| id.clone()) else { return Err(next) };
        let served = webhooks.values().map(|waiting| waiting.served).max().unwrap_or_default() + 1;
        let Some(waiting) = webhooks.get_mut(&webhook) else { return Err(next) };
        let Some((at, number)) = waiting.due.iter().find(|(_, number)| !waiting.attempts.contains(number)).copied() else {
            return Err(next);
        };
        waiting.due.remove(&(at, number));
        waiting.times.remove(&number);
        waiting.attempts.insert(number);
        waiting.served = served;
        let tenant = waiting.tenant.clone();
        *of_tenant.entry(tenant.clone()).or_default() += 1;
        *attempts += 1;
        Ok(Attempt { webhook, number, tenant, state: Arc::clone(&self.state), changed: Arc::clone(&self.changed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(tenant: &str) -> Webhook {
        let (url, secret, kinds) = (String::new(), Vec::new(), Vec::new());
        Webhook { id: WebhookId::random(), tenant: tenant.parse().unwrap(), url, secret, kinds, created_at: Timestamp::now() }
    }

    #[test]
    fn a_webhook_that_hangs_leaves_attempts_to_others() {
        let queue = Queue::default();
        let (slow, other, of_other_tenant) = (hook("a"), hook("a"), hook("b"));
        for number in 0..100 {
            queue.push(&slow, number, Timestamp::UNIX_EPOCH);
        }
        queue.push(&other, 100, Timestamp::UNIX_EPOCH);
        queue.push(&of_other_tenant, 101, Timestamp::UNIX_EPOCH);
        let mut taken = Vec::new();
        while let Ok(attempt) = queue.take(Timestamp::now()) {
            taken.push(attempt);
        }
        let mut webhooks: Vec<_> = taken.iter().map(|attempt| &attempt.webhook).collect();
        webhooks.sort();
        let mut wanted = vec![&slow.id, &slow.id, &other.id, &of_other_tenant.id];
        wanted.sort();
        assert_eq!(webhooks, wanted);
        assert_eq!(queue.waiting(&slow.id), 98);
        drop(taken);
        assert_eq!(queue.take(Timestamp::now()).unwrap().webhook, slow.id);
        queue.forget(&slow.id);
        assert!(queue.take(Timestamp::now()).is_err());
    }

    #[test]
    fn a_tenant_has_a_limited_number_of_attempts() {
        let queue = Queue::default();
        for number in 0..20 {
            queue.push(&hook("a"), number, Timestamp::UNIX_EPOCH);
        }
        let taken: Vec<_> = std::iter::from_fn(|| queue.take(Timestamp::now()).ok()).collect();
        assert_eq!(taken.len(), OF_TENANT);
    }

    #[test]
    fn a_delivery_waits_once_and_for_its_time() {
        let queue = Queue::default();
        let hook = hook("a");
        let later = Timestamp::MAX;
        queue.push(&hook, 1, Timestamp::UNIX_EPOCH);
        queue.push(&hook, 1, later);
        assert_eq!(queue.waiting(&hook.id), 1);
        assert_eq!(queue.take(Timestamp::now()).err(), Some(Some(later)));
        queue.push(&hook, 1, Timestamp::UNIX_EPOCH);
        let attempt = queue.take(Timestamp::now()).unwrap();
        // Redelivered during the attempt: it is not attempted twice at once.
        queue.push(&hook, 1, Timestamp::UNIX_EPOCH);
        assert_eq!(queue.take(Timestamp::now()).err(), Some(None));
        drop(attempt);
        assert!(queue.take(Timestamp::now()).is_ok());
    }
}
