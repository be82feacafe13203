//! Tickets and sessions: random words that stand for someone for a while. They are in memory alone: a new server knows none.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arenite_model::{ErrorCode, TenantId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::digest;
use crate::refusal::Refusal;

/// The most of a kind at a time; then the one that would end first ends.
const MOST: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) tenant: TenantId,
    pub(crate) until: Instant,
    /// The host, with its port, that it is for; none: all.
    pub(crate) host: Option<String>,
}

/// Those of one kind, found by their digests.
#[derive(Default)]
pub(crate) struct Grants {
    held: Mutex<HashMap<[u8; 32], Grant>>,
}

impl Grants {
    fn held(&self) -> MutexGuard<'_, HashMap<[u8; 32], Grant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new word that stands for the grant.
    pub(crate) fn issue(&self, grant: Grant) -> Result<String, Refusal> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| Refusal::new(ErrorCode::Internal, format!("the host has no random bytes: {error}")))?;
        let word = URL_SAFE_NO_PAD.encode(random);
        let mut held = self.held();
        if held.len() >= MOST {
            let now = Instant::now();
            held.retain(|_, grant| grant.until > now);
        }
        if held.len() >= MOST {
            let first = held.iter().min_by_key(|(_, grant)| grant.until).map(|(word, _)| *word);
            first.and_then(|word| held.remove(&word));
        }
        held.insert(digest(&word), grant);
        Ok(word)
    }

    /// What the word stands for on this host. May be asked as often as wanted.
    pub(crate) fn find(&self, word: &str, host: &str) -> Option<Grant> {
        let held = self.held();
        let grant = held.get(&digest(word)).filter(|grant| grant.until > Instant::now())?;
        grant.host.as_deref().is_none_or(|of| of == host).then(|| grant.clone())
    }

    pub(crate) fn revoke(&self, word: &str) {
        self.held().remove(&digest(word));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant(seconds: u64, host: Option<&str>) -> Grant {
        let until = Instant::now() + Duration::from_secs(seconds);
        Grant { tenant: TenantId::default_tenant(), until, host: host.map(str::to_owned) }
    }

    #[test]
    fn a_word_is_good_for_its_time_and_its_host() {
        let grants = Grants::default();
        let word = grants.issue(grant(60, None)).unwrap();
        assert!(grants.find(&word, "a").is_some() && grants.find(&word, "b").is_some());
        assert!(grants.find(&word[1..], "a").is_none() && grants.find("", "a").is_none());
        let bound = grants.issue(grant(60, Some("a"))).unwrap();
        assert!(grants.find(&bound, "a").is_some() && grants.find(&bound, "b").is_none());
        let over = grants.issue(grant(0, None)).unwrap();
        assert!(grants.find(&over, "a").is_none());
        grants.revoke(&word);
        assert!(grants.find(&word, "a").is_none());
    }

    #[test]
    fn there_is_a_most() {
        let grants = Grants::default();
        let first = grants.issue(grant(10, None)).unwrap();
        for _ in 1..MOST {
            grants.issue(grant(100, None)).unwrap();
        }
        assert!(grants.find(&first, "a").is_some());
        let last = grants.issue(grant(100, None)).unwrap();
        assert!(grants.find(&first, "a").is_none() && grants.find(&last, "a").is_some());
        assert_eq!(grants.held().len(), MOST);
    }
}
