//! Pages of lists.
//!
//! A list is in the order of its entries' positions, which never change. A cursor is the position of a page's last entry, so a page
//! is the same whatever is added or removed before it. A cursor has a checksum over itself, its list and the list's order: a damaged
//! one, and one of another list, is refused. It gives no rights: each page is checked like the first.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::exchange::Exchange;
use crate::refusal::Refusal;

/// The most entries of a page.
pub(crate) const MAX_PAGE: usize = 1000;
/// Longest cursor, in bytes.
const MAX_CURSOR: usize = 1024;
/// Bytes of a cursor's checksum.
const CHECK_BYTES: usize = 6;

/// The most entries that a page may have, or the usual number.
pub(crate) fn limit(exchange: &Exchange, usual: usize) -> Result<usize, Refusal> {
    let limit = exchange.query("limit").map_or(Ok(usual), |text| text.parse()).unwrap_or(usize::MAX);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Refusal::bad_request(format!("limit is not from 1 to {MAX_PAGE}")));
    }
    Ok(limit)
}

/// The page that a request asks for.
#[derive(Debug)]
pub(crate) struct PageQuery {
    pub(crate) limit: usize,
    /// Names the list and its order.
    list: String,
    cursor: Option<String>,
}

impl PageQuery {
    pub(crate) fn read(exchange: &Exchange) -> Result<Self, Refusal> {
        Self::in_order(exchange, "")
    }

    /// Of a list that has several orders.
    pub(crate) fn in_order(exchange: &Exchange, order: &str) -> Result<Self, Refusal> {
        let limit = limit(exchange, exchange.route.page_size())?;
        let list = format!("{} {order}", exchange.path.decoded.trim_end_matches('/'));
        Ok(Self { limit, list, cursor: exchange.query("cursor") })
    }

    /// The position after which the page starts. None: it is the first page.
    pub(crate) fn after<P: DeserializeOwned>(&self) -> Result<Option<P>, Refusal> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok().filter(|_| text.len() <= MAX_CURSOR)?;
            let (check, position) = bytes.split_at_checked(CHECK_BYTES)?;
            let position = (check == self.check(position)).then_some(position)?;
            serde_json::from_slice(position).ok()
        };
        read().map(Some).ok_or_else(|| {
            Refusal::bad_request("cursor is no cursor of this list in this order")
                .hint("use the next_cursor of the page before as it is, or start again without one")
        })
    }

    /// The cursor of the page after an entry.
    pub(crate) fn cursor<P: Serialize>(&self, last: &P) -> String {
        // Positions are numbers and texts: always JSON.
        let position = serde_json::to_vec(last).unwrap_or_default();
        URL_SAFE_NO_PAD.encode([self.check(&position).as_slice(), &position].concat())
    }

    fn check(&self, position: &[u8]) -> [u8; CHECK_BYTES] {
        let digest = Sha256::new().chain_update(&self.list).chain_update([0u8]).chain_update(position).finalize();
        std::array::from_fn(|at| digest[at])
    }

    /// Ends a page that was read with one entry more than it may have. Returns the cursor of the next one.
    pub(crate) fn end<T, P: Serialize>(&self, entries: &mut Vec<T>, position: impl Fn(&T) -> P) -> Option<String> {
        if entries.len() <= self.limit {
            return None;
        }
        entries.truncate(self.limit);
        entries.last().map(|last| self.cursor(&position(last)))
    }

    /// Takes the page from all entries of a list, which are in any order.
    pub(crate) fn take<T, P>(&self, all: Vec<T>, position: impl Fn(&T) -> P) -> Result<(Vec<T>, Option<String>), Refusal>
    where
        P: Ord + Serialize + DeserializeOwned,
    {
        self.take_from(all, position, false)
    }

    /// The same from the starts of several lists. `has_more`: one of them goes on after at least a page of entries.
    pub(crate) fn take_from<T, P>(
        &self,
        all: Vec<T>,
        position: impl Fn(&T) -> P,
        has_more: bool,
    ) -> Result<(Vec<T>, Option<String>), Refusal>
    where
        P: Ord + Serialize + DeserializeOwned,
    {
        let after: Option<P> = self.after()?;
        let mut placed: Vec<(P, T)> = all.into_iter().map(|entry| (position(&entry), entry)).collect();
        placed.retain(|(at, _)| after.as_ref().is_none_or(|after| at > after));
        placed.sort_by(|(a, _), (b, _)| a.cmp(b));
        let has_more = has_more || placed.len() > self.limit;
        placed.truncate(self.limit);
        let next = placed.last().filter(|_| has_more).map(|(at, _)| self.cursor(at));
        Ok((placed.into_iter().map(|(_, entry)| entry).collect(), next))
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use serde_json::{Value, json};

    use super::*;
    use crate::harness::Harness;

    fn page(list: &str, limit: usize, cursor: Option<String>) -> PageQuery {
        PageQuery { limit, list: list.to_owned(), cursor }
    }

    #[test]
    fn pages_have_each_entry_once_while_others_come_and_go() {
        let mut list: Vec<u32> = (0..20).map(|n| n * 10).collect();
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let (found, next) = page("/l ", 3, cursor).take(list.clone(), |n| *n).unwrap();
            seen.extend(found);
            let Some(next) = next else { break };
            cursor = Some(next);
            // The last entry of the page goes, one comes before it, and one of a later page goes.
            let last = *seen.last().unwrap();
            list.retain(|n| *n != last && *n != 170);
            list.insert(0, last - 5);
        }
        let expected: Vec<u32> = (0..20).map(|n| n * 10).filter(|n| *n != 170).collect();
        assert_eq!(seen, expected);
        let (newest, next) = page("/l ", 2, None).take(vec![1, 3, 2], |n| Reverse(*n)).unwrap();
        let (oldest, end) = page("/l ", 2, next).take(vec![1, 3, 2], |n| Reverse(*n)).unwrap();
        assert_eq!((newest, oldest, end), (vec![3, 2], vec![1], None));
    }

    #[tokio::test]
    async fn a_limit_is_refused_in_the_same_way_everywhere() {
        let server = Harness::new().await;
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "x" })).await.json;
        let trajectory = format!("/api/v1/trajectories/{}", made["id"].as_str().unwrap());
        for path in ["/api/v2/sandboxes", "/api/v2/sandboxes/x/steps", "/api/v1/trajectories", &trajectory] {
            for limit in ["0", "1001"] {
                let answer = server.call("GET", &format!("{path}?limit={limit}"), Value::Null).await;
                assert_eq!(answer.status, 400, "{path} {limit}: {}", answer.text);
                assert!(answer.text.contains("limit is not from 1 to 1000"), "{path} {limit}: {}", answer.text);
            }
            assert_eq!(server.call("GET", &format!("{path}?limit=1000"), Value::Null).await.status, 200, "{path}");
        }
    }

    #[test]
    fn a_page_without_a_successor_has_no_cursor() {
        let query = page("/l ", 2, None);
        assert_eq!(query.take(vec![1, 2], |n| *n).unwrap(), (vec![1, 2], None));
        assert_eq!(query.take(Vec::<u32>::new(), |n| *n).unwrap(), (vec![], None));
        let mut read = vec![1, 2];
        assert_eq!(query.end(&mut read, |n| *n), None);
        let mut read = vec![1, 2, 3];
        assert_eq!((query.end(&mut read, |n| *n), read), (Some(query.cursor(&2)), vec![1, 2]));
    }

    #[test]
    fn only_a_lists_own_cursors_are_read() {
        let cursor = page("/l ", 1, None).cursor(&("a", 7));
        let read = |list: &str, cursor: &str| page(list, 1, Some(cursor.to_owned())).after::<(String, u32)>();
        assert_eq!(read("/l ", &cursor).unwrap(), Some(("a".to_owned(), 7)));
        let mut bad = vec![String::new(), "x".to_owned(), "5".to_owned(), "=".to_owned(), "a".repeat(5000)];
        for at in 0..cursor.len() {
            let letter = if &cursor[at..=at] == "A" { "B" } else { "A" };
            bad.push(format!("{}{letter}{}", &cursor[..at], &cursor[at + 1..]));
            bad.push(cursor[..at].to_owned());
        }
        for bad in bad {
            assert!(read("/l ", &bad).is_err(), "{bad}");
        }
        assert!(read("/l newest", &cursor).is_err() && read("/m ", &cursor).is_err());
        assert!(page("/l ", 1, Some(cursor)).after::<u32>().is_err());
    }
}
