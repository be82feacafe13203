//! What a sandbox resolved: the addresses of names, and the names of addresses.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names, and pairs of an address and a name.
const MOST: usize = 4_096;
/// How many are forgotten at that limit.
const FORGOTTEN: usize = MOST / 8;
/// How long a name is known beyond the lifetime of its record: programs connect some time after they resolved.
const GRACE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Names {
    addresses: HashMap<Arc<str>, (Vec<Ipv4Addr>, Instant)>,
    /// Outlive a later answer with other addresses, which a program may not have seen.
    pins: HashMap<(Ipv4Addr, Arc<str>), Instant>,
    by_address: HashMap<Ipv4Addr, Vec<Arc<str>>>,
}

impl Names {
    pub(crate) fn insert(&mut self, name: &str, addresses: &[Ipv4Addr], ttl: u32, now: Instant) {
        let expires = now + Duration::from_secs(ttl.into()) + GRACE;
        let name: Arc<str> = match self.addresses.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None => name.into(),
        };
        if !self.addresses.contains_key(&name) && self.addresses.len() >= MOST {
            let limit = first_to_expire(self.addresses.values().map(|(_, expires)| *expires), now);
            self.addresses.retain(|_, (_, expires)| *expires > limit);
        }
        self.addresses.insert(name.clone(), (addresses.to_vec(), expires));
        for address in addresses {
            let pin = (*address, name.clone());
            if !self.pins.contains_key(&pin) {
                self.make_space(now);
                self.by_address.entry(*address).or_default().push(name.clone());
            }
            self.pins.insert(pin, expires);
        }
    }

    fn make_space(&mut self, now: Instant) {
        if self.pins.len() < MOST {
            return;
        }
        let limit = first_to_expire(self.pins.values().copied(), now);
        let ended: Vec<_> = self.pins.iter().filter(|(_, expires)| **expires <= limit).map(|(pin, _)| pin.clone()).collect();
        for pin in ended {
            self.pins.remove(&pin);
            let (address, name) = pin;
            if let Some(names) = self.by_address.get_mut(&address) {
                names.retain(|other| *other != name);
                if names.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    pub(crate) fn addresses_of(&self, name: &str, now: Instant) -> Option<Vec<Ipv4Addr>> {
        let (addresses, expires) = self.addresses.get(name)?;
        (*expires > now).then(|| addresses.clone())
    }

    /// Also those that are past their time, until others need their space.
    pub(crate) fn earlier_names_of(&self, address: Ipv4Addr) -> &[Arc<str>] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn names_of(&self, address: Ipv4Addr, now: Instant) -> Vec<Arc<str>> {
        let names = self.by_address.get(&address).into_iter().flatten();
        names.filter(|name| self.pins.get(&(address, (*name).clone())).is_some_and(|expires| *expires > now)).cloned().collect()
    }
}

/// What expires until then is forgotten: all that has, and some more, so that not each further name has to look for the next one.
fn first_to_expire(expires: impl Iterator<Item = Instant>, now: Instant) -> Instant {
    let mut expires: Vec<Instant> = expires.collect();
    let (_, limit, _) = expires.select_nth_unstable(FORGOTTEN);
    now.max(*limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    #[test]
    fn pins_end_a_minute_after_their_record() {
        let mut names = Names::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        names.insert("a.example", &[A], 10, start);
        names.insert("b.example", &[A, B], 100, start);
        assert_eq!(names.names_of(A, after(69)), ["a.example".into(), "b.example".into()] as [Arc<str>; 2]);
        assert_eq!(names.names_of(A, after(71)), ["b.example".into()] as [Arc<str>; 1]);
        assert_eq!(
            (names.addresses_of("a.example", after(69)), names.addresses_of("a.example", after(71))),
            (Some(vec![A]), None)
        );
        // The next answer has another address; programs may still use the first one.
        names.insert("a.example", &[B], 10, after(5));
        assert_eq!(names.addresses_of("a.example", after(6)), Some(vec![B]));
        assert!(names.names_of(A, after(6)).contains(&"a.example".into()));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut names = Names::default();
        let start = Instant::now();
        for n in 0..u32::try_from(MOST).unwrap() + 500 {
            names.insert(&format!("{n}.example"), &[Ipv4Addr::from_bits(n), A], 10 + n, start);
        }
        assert!(names.pins.len() <= MOST && names.addresses.len() <= MOST && names.by_address.len() <= MOST);
        assert_eq!(names.by_address.values().map(Vec::len).sum::<usize>(), names.pins.len());
        assert!(names.addresses_of("4500.example", start).is_some(), "the newest is known");
        assert!(names.addresses_of("0.example", start).is_none());
    }
}
