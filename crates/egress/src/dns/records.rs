//! Records of an answer: which addresses a name leads to, and copies of answers that hold nothing else.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use super::message::{CLASS_IN, HEADER, Query, TYPE_A, number, read_name};

const TYPE_CNAME: u16 = 5;
const TYPE_RRSIG: u16 = 46;
/// Lifetimes that clients see, in seconds. Short, so that a changed policy takes effect; not zero, so that what was resolved can
/// be used.
const TTL: RangeInclusive<u32> = 5..=300;
const MAX_HOPS: usize = 16;
const MAX_ADDRESSES: usize = 32;
/// Maximum number of records that are read.
const MAX_RECORDS: usize = 1_000;

/// Where a name leads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddressChain {
    pub(super) addresses: Vec<Ipv4Addr>,
    /// The names on the way, after the one of the question.
    pub(super) aliases: Vec<String>,
    /// The shortest lifetime on the way, within the bounds.
    pub(super) ttl: u32,
}

/// The addresses of the name of the question. None if the answer is malformed.
pub(super) fn read_addresses(query: &Query, answer: &[u8]) -> Option<AddressChain> {
    let mut aliases = HashMap::new();
    let mut addresses: HashMap<String, Vec<(Ipv4Addr, u32)>> = HashMap::new();
    for record in Records::new(query, answer)? {
        let record = record?;
        if record.class != CLASS_IN {
            continue;
        }
        let data = answer.get(record.data..record.end)?;
        match record.kind {
            TYPE_A => {
                let octets: [u8; 4] = data.try_into().ok()?;
                addresses.entry(record.name).or_default().push((octets.into(), record.ttl));
            }
            TYPE_CNAME => {
                let (target, end) = read_name(answer, record.data)?;
                if end != record.end {
                    return None;
                }
                aliases.insert(record.name, (target.to_ascii_lowercase(), record.ttl));
            }
            _ => {}
        }
    }
    let (mut name, _) = read_name(answer, HEADER)?;
    name.make_ascii_lowercase();
    let mut chain = AddressChain { ttl: *TTL.end(), ..AddressChain::default() };
    for _ in 0..MAX_HOPS {
        if let Some(found) = addresses.get(&name) {
            for (address, ttl) in found.iter().take(MAX_ADDRESSES) {
                chain.addresses.push(*address);
                chain.ttl = chain.ttl.min(*ttl);
            }
            break;
        }
        let Some((target, ttl)) = aliases.get(&name) else { break };
        chain.ttl = chain.ttl.min(*ttl);
        chain.aliases.push(target.clone());
        name.clone_from(target);
    }
    chain.ttl = chain.ttl.clamp(*TTL.start(), *TTL.end());
    Some(chain)
}

/// The answer with only its records for the question, with bounded lifetimes. None if it is malformed or has records of other
/// types, in which addresses could be.
pub(super) fn only_answers(query: &Query, mut answer: Vec<u8>) -> Option<Vec<u8>> {
    let mut end = query.question_end();
    let mut lifetimes = Vec::new();
    for record in Records::new(query, &answer)? {
        let record = record?;
        if record.kind != query.kind() && ![TYPE_CNAME, TYPE_RRSIG].contains(&record.kind) {
            return None;
        }
        end = record.end;
        lifetimes.push((record.ttl_at, record.ttl.clamp(*TTL.start(), *TTL.end())));
    }
    for (at, ttl) in lifetimes {
        answer[at..at + 4].copy_from_slice(&ttl.to_be_bytes());
    }
    // Names of other records and addresses of other names are in the sections behind.
    answer.truncate(end);
    answer[8..HEADER].fill(0);
    Some(answer)
}

struct Record {
    name: String,
    kind: u16,
    class: u16,
    ttl: u32,
    ttl_at: usize,
    data: usize,
    end: usize,
}

/// The records of the answer section. After one that is malformed, there is no other.
struct Records<'a> {
    answer: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> Records<'a> {
    fn new(query: &Query, answer: &'a [u8]) -> Option<Self> {
        // An error may come without its question, and then has no records either.
        let has_question = number(answer, 4)? == 1;
        let left = usize::from(number(answer, 6)?);
        (has_question && left <= MAX_RECORDS).then_some(Self { answer, at: query.question_end(), left })
    }

    fn read(&self) -> Option<Record> {
        let (mut name, at) = read_name(self.answer, self.at)?;
        name.make_ascii_lowercase();
        let fields = self.answer.get(at..at + 10)?;
        let ttl = u32::from_be_bytes([fields[4], fields[5], fields[6], fields[7]]);
        let data = at + 10;
        let end = data + usize::from(u16::from_be_bytes([fields[8], fields[9]]));
        (end <= self.answer.len()).then_some(())?;
        let kind = u16::from_be_bytes([fields[0], fields[1]]);
        let class = u16::from_be_bytes([fields[2], fields[3]]);
        Some(Record { name, kind, class, ttl, ttl_at: at + 4, data, end })
    }
}

impl Iterator for Records<'_> {
    type Item = Option<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = self.read();
        match &record {
            Some(record) => self.at = record.end,
            None => self.left = 0,
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            text.split('.').flat_map(|l| [&[u8::try_from(l.len()).unwrap()], l.as_bytes()].concat()).collect();
        bytes.push(0);
        bytes
    }

    fn record(owner: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).unwrap().to_be_bytes();
        [&name(owner)[..], &kind.to_be_bytes(), &[0, 1], &ttl.to_be_bytes(), &length, data].concat()
    }

    /// An answer with records for the answer section and one behind it.
    fn answer(query: &Query, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = query.failure(super::super::Rcode::NoError);
        bytes[7] = u8::try_from(records.len()).unwrap();
        bytes[11] = 1;
        bytes.extend(records.concat());
        bytes.extend(record("glue.example", TYPE_A, 9, &[10, 0, 0, 1]));
        bytes
    }

    #[test]
    fn aliases_are_followed_in_any_order() {
        let query = Query::for_name("a.example", TYPE_A).unwrap();
        let records = [
            record("C.example", TYPE_A, 50, &[192, 0, 2, 1]),
            record("other.example", TYPE_A, 1, &[192, 0, 2, 9]),
            record("b.example", TYPE_CNAME, 40, &name("c.Example")),
            record("a.example", TYPE_CNAME, 9000, &name("b.example")),
            record("c.example", TYPE_A, 50, &[192, 0, 2, 2]),
        ];
        let chain = read_addresses(&query, &answer(&query, &records)).unwrap();
        assert_eq!(chain.addresses, [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!((chain.aliases, chain.ttl), (vec!["b.example".to_owned(), "c.example".to_owned()], 40));
        for (ttl, seen) in [(0, 5), (5, 5), (301, 300), (u32::MAX, 300)] {
            let records = [record("a.example", TYPE_A, ttl, &[192, 0, 2, 1])];
            assert_eq!(read_addresses(&query, &answer(&query, &records)).unwrap().ttl, seen);
        }
    }

    #[test]
    fn malformed_answers_have_no_addresses() {
        let query = Query::for_name("a.example", TYPE_A).unwrap();
        let looped =
            [record("a.example", TYPE_CNAME, 9, &name("b.example")), record("b.example", TYPE_CNAME, 9, &name("a.example"))];
        assert_eq!(read_addresses(&query, &answer(&query, &looped)).unwrap().addresses, [] as [Ipv4Addr; 0]);
        let mut pointer_to_itself = record("x", TYPE_A, 9, &[192, 0, 2, 1]);
        let at = u16::try_from(query.question_end()).unwrap() | 0xc000;
        pointer_to_itself.splice(..3, at.to_be_bytes());
        let cases = [
            vec![record("a.example", TYPE_A, 9, &[192, 0, 2])],
            vec![record("a.example", TYPE_CNAME, 9, &[0xff, 1])],
            vec![record("a.example", TYPE_CNAME, 9, &[&name("b.example")[..], b"x"].concat())],
            vec![pointer_to_itself],
        ];
        for records in cases {
            assert_eq!(read_addresses(&query, &answer(&query, &records)), None, "{records:x?}");
        }
        let good = answer(&query, &[record("a.example", TYPE_A, 9, &[192, 0, 2, 1])]);
        for length in 0..query.question_end() + 20 {
            assert!(read_addresses(&query, &good[..length]).is_none_or(|chain| chain.addresses.is_empty()), "{length}");
        }
    }

    #[test]
    fn other_answers_keep_only_their_records() {
        const TXT: u16 = 16;
        let query = Query::for_name("a.example", TXT).unwrap();
        let bytes = answer(&query, &[record("a.example", TXT, 86_400, b"\x02hi")]);
        let kept = only_answers(&query, bytes).unwrap();
        assert!(kept.ends_with(&record("a.example", TXT, 300, b"\x02hi")));
        assert_eq!(kept[6..HEADER], [0, 1, 0, 0, 0, 0]);
        let with_address = answer(&query, &[record("a.example", TYPE_A, 9, &[10, 0, 0, 1])]);
        assert_eq!(only_answers(&query, with_address), None);
    }
}
