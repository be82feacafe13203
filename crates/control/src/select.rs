//! Pages of a tenant's sandboxes. Only the sandboxes of a page are copied, however many there are.

use std::cmp::Ordering;
use std::sync::Arc;

use arenite_model::{SandboxId, TenantId};
use jiff::Timestamp;

use crate::registry::Entry;
use crate::{Control, Sandbox};

/// The order of a list of sandboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListOrder {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// A place in a list of sandboxes, which stays the same while a sandbox exists: its creation in microseconds since 1970, which is
/// what a store keeps, and its id.
pub type ListPosition = (i64, SandboxId);

fn position(sandbox: &Sandbox) -> (i64, &SandboxId) {
    (sandbox.created_at.as_microsecond(), &sandbox.id)
}

impl Sandbox {
    /// Its place in lists.
    pub fn position(&self) -> ListPosition {
        (self.created_at.as_microsecond(), self.id.clone())
    }

    /// Whether it was created between two times, neither of them included.
    pub fn is_created_between(&self, after: Option<Timestamp>, before: Option<Timestamp>) -> bool {
        after.is_none_or(|after| self.created_at > after) && before.is_none_or(|before| self.created_at < before)
    }
}

impl ListOrder {
    fn compare(self, a: (i64, &SandboxId), b: (i64, &SandboxId)) -> Ordering {
        match self {
            Self::OldestFirst => a.cmp(&b),
            Self::NewestFirst => b.cmp(&a),
        }
    }
}

impl Control {
    /// Up to `limit` of the sandboxes that `selects` selects, from the one after `after` on, and whether there are more. `others`
    /// are sandboxes of other nodes.
    pub fn select(
        &self,
        tenant: &TenantId,
        others: Vec<Sandbox>,
        order: ListOrder,
        after: Option<&ListPosition>,
        limit: usize,
        selects: impl Fn(&Sandbox) -> bool,
    ) -> (Vec<Sandbox>, bool) {
        let entries: Vec<Arc<Entry>> = {
            let registry = self.registry();
            registry.tenant(tenant).into_iter().flat_map(|tenant| tenant.entries.values().cloned()).collect()
        };
        let is_after =
            |sandbox: &Sandbox| after.is_none_or(|(at, id)| order.compare(position(sandbox), (*at, id)) == Ordering::Greater);
        let here = entries.into_iter().map(|entry| (entry.sandbox(), Some(entry)));
        let elsewhere = others.into_iter().map(|sandbox| (Arc::new(sandbox), None));
        let mut found: Vec<(Arc<Sandbox>, Option<Arc<Entry>>)> =
            here.chain(elsewhere).filter(|(sandbox, _)| is_after(sandbox) && selects(sandbox)).collect();
        let compare = |(a, _): &(Arc<Sandbox>, _), (b, _): &(Arc<Sandbox>, _)| order.compare(position(a), position(b));
        let has_more = found.len() > limit;
        if has_more {
            found.select_nth_unstable_by(limit, compare);
            found.truncate(limit);
        }
        found.sort_unstable_by(compare);
        let current = |(sandbox, entry): (Arc<Sandbox>, Option<Arc<Entry>>)| Sandbox {
            last_used_at: entry.map_or(sandbox.last_used_at, |entry| entry.last_used()),
            ..Sandbox::clone(&sandbox)
        };
        (found.into_iter().map(current).collect(), has_more)
    }
}
