//! The parts of DNS messages that forwarding needs: whether a message is a question, which one, and whether another is its
//! answer.

use std::net::Ipv4Addr;

use crate::name::{NameError, normalize_name};

pub(crate) const HEADER: usize = 12;
/// Maximum size of a query; a query with its options is far smaller.
pub(crate) const MAX_QUERY: usize = 4096;
/// The size that a client accepts over UDP without an OPT record.
const PLAIN_UDP: usize = 512;
const MAX_UDP: usize = 4096;
const MAX_NAME: usize = 255;

const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
const RCODE: u8 = 0x0f;

pub(crate) const TYPE_A: u16 = 1;
pub(crate) const CLASS_IN: u16 = 1;
/// How long clients may keep an answer of the forwarder itself, in seconds.
const OWN_TTL: u32 = 60;
const TYPE_OPT: u16 = 41;
/// Zone transfers consist of many messages.
const TYPES_OF_TRANSFER: [u16; 2] = [251, 252];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rcode {
    NoError = 0,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A well-formed query with one question.
#[derive(Debug, Clone)]
pub struct Query {
    bytes: Vec<u8>,
    question_end: usize,
    udp_limit: usize,
}

/// What is wrong with a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// To be dropped: any answer would be a guess.
    Malformed,
    /// To be answered with this message.
    Declined(Vec<u8>),
}

impl Query {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.len() > MAX_QUERY || bytes.len() < HEADER || bytes[2] & RESPONSE != 0 {
            return Err(Fault::Malformed);
        }
        if bytes[2] & OPCODE != 0 {
            return Err(Fault::Declined(empty_answer(&bytes[..HEADER], Rcode::NotImplemented)));
        }
        if [number(bytes, 4), number(bytes, 6), number(bytes, 8)] != [Some(1), Some(0), Some(0)] {
            return Err(Fault::Malformed);
        }
        let question_end = question_end(bytes).ok_or(Fault::Malformed)?;
        let query = Self { udp_limit: udp_limit(bytes, question_end), bytes: bytes.to_vec(), question_end };
        let kind = number(bytes, question_end - 4);
        if kind.is_some_and(|k| TYPES_OF_TRANSFER.contains(&k)) {
            return Err(Fault::Declined(query.failure(Rcode::Refused)));
        }
        Ok(query)
    }

    /// A query of the proxy itself. None if the text is no name.
    pub(crate) fn for_name(name: &str, kind: u16) -> Option<Self> {
        let mut bytes = vec![0, 0, RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).ok()?);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(CLASS_IN.to_be_bytes());
        Self::parse(&bytes).ok()
    }

    /// The name, as far as it is one of a host or service.
    pub(crate) fn name(&self) -> Result<String, NameError> {
        let (name, _) = read_name(&self.bytes, HEADER).ok_or(NameError::Characters)?;
        normalize_name(&name)
    }

    pub(crate) fn kind(&self) -> u16 {
        number(&self.bytes, self.question_end - 4).unwrap_or_default()
    }

    pub(crate) fn is_internet(&self) -> bool {
        number(&self.bytes, self.question_end - 2) == Some(CLASS_IN)
    }

    /// The end of the question, which is at the same position in an answer.
    pub(crate) fn question_end(&self) -> usize {
        self.question_end
    }

    /// The query under another id.
    pub(crate) fn with_id(&self, id: [u8; 2]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[..2].copy_from_slice(&id);
        bytes
    }

    /// Whether this is the answer to the query sent under `id`.
    pub(crate) fn is_answered_by(&self, answer: &[u8], id: [u8; 2]) -> bool {
        if answer.len() < HEADER || answer[..2] != id || answer[2] & RESPONSE == 0 || answer[2] & OPCODE != 0 {
            return false;
        }
        match number(answer, 4) {
            Some(1) => answer
                .get(HEADER..self.question_end)
                .is_some_and(|q| q.eq_ignore_ascii_case(&self.bytes[HEADER..self.question_end])),
            // Some servers leave the question out of an error.
            Some(0) => answer[3] & RCODE != 0,
            _ => false,
        }
    }

    /// The answer with the client's id and spelling of the name.
    pub(crate) fn restore(&self, mut answer: Vec<u8>) -> Vec<u8> {
        answer[..2].copy_from_slice(&self.bytes[..2]);
        if number(&answer, 4) == Some(1)
            && let Some(question) = answer.get_mut(HEADER..self.question_end)
        {
            question.copy_from_slice(&self.bytes[HEADER..self.question_end]);
        }
        answer
    }

    /// Whether the question is about this name, in any spelling.
    pub fn asks_for(&self, name: &str) -> bool {
        let mut rest = &self.bytes[HEADER..self.question_end - 4];
        let mut labels = name.split('.');
        while let [length, tail @ ..] = rest {
            let Some((label, after)) = tail.split_at_checked(usize::from(*length)) else { return false };
            if *length == 0 {
                return labels.next().is_none();
            }
            if !labels.next().is_some_and(|wanted| wanted.as_bytes().eq_ignore_ascii_case(label)) {
                return false;
            }
            rest = after;
        }
        false
    }

    /// An answer of the forwarder itself: the address, or no record for other record types.
    pub fn answer(&self, address: Ipv4Addr) -> Vec<u8> {
        self.answer_addresses(&[address], OWN_TTL)
    }

    /// The addresses, or no record for other record types. The lifetime is in seconds.
    pub(crate) fn answer_addresses(&self, addresses: &[Ipv4Addr], ttl: u32) -> Vec<u8> {
        let mut bytes = self.failure(Rcode::NoError);
        if self.kind() != TYPE_A {
            return bytes;
        }
        let count = u16::try_from(addresses.len()).unwrap_or(u16::MAX);
        bytes[6..8].copy_from_slice(&count.to_be_bytes());
        for address in addresses.iter().take(usize::from(count)) {
            // A pointer to the name of the question.
            bytes.extend([0xc0, HEADER as u8]);
            bytes.extend(TYPE_A.to_be_bytes());
            bytes.extend(CLASS_IN.to_be_bytes());
            bytes.extend(ttl.to_be_bytes());
            bytes.extend([0, 4]);
            bytes.extend(address.octets());
        }
        bytes
    }

    /// An answer without records.
    pub fn failure(&self, rcode: Rcode) -> Vec<u8> {
        empty_answer(&self.bytes[..self.question_end], rcode)
    }

    /// The answer for UDP: one that is too long becomes a truncated answer, so that the client retries over TCP.
    pub(crate) fn fit_udp(&self, answer: Vec<u8>) -> Vec<u8> {
        if answer.len() <= self.udp_limit {
            return answer;
        }
        let mut short = empty_answer(&self.bytes[..self.question_end], Rcode::ServerFailure);
        short[2] |= TRUNCATED;
        short[3] = answer[3];
        short
    }
}

/// Whether a resolver reports that it can't or won't answer, so that another one may be asked.
pub(crate) fn is_refusal(answer: &[u8]) -> bool {
    answer.get(3).is_some_and(|b| matches!(b & RCODE, 2 | 4 | 5))
}

/// `start` is a query's header, with or without its question.
fn empty_answer(start: &[u8], rcode: Rcode) -> Vec<u8> {
    let mut bytes = start.to_vec();
    bytes[2] = RESPONSE | (bytes[2] & (OPCODE | RECURSION_DESIRED));
    bytes[3] = RECURSION_AVAILABLE | rcode as u8;
    bytes[4..HEADER].fill(0);
    bytes[5] = u8::from(start.len() > HEADER);
    bytes
}

/// Whether the answer says that the client should ask again over TCP.
pub(crate) fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|b| b & TRUNCATED != 0)
}

/// The lower four bits of the answer's code.
pub(crate) fn rcode(answer: &[u8]) -> u8 {
    answer.get(3).map_or(0, |b| b & RCODE)
}

/// A name as text and the position behind it. Pointers lead back only, so that they end.
pub(crate) fn read_name(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let (mut at, mut end, mut barrier) = (start, None, start);
    let mut name = String::new();
    loop {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                // A dot inside of a label would look like two labels.
                let label = std::str::from_utf8(label).ok().filter(|label| !label.contains('.'))?;
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(label);
                if name.len() > MAX_NAME {
                    return None;
                }
                at += 1 + usize::from(length);
            }
            0xc0.. => {
                end = end.or(Some(at + 2));
                at = usize::from(number(bytes, at)? & 0x3fff);
                if at >= barrier {
                    return None;
                }
                barrier = at;
            }
            _ => return None,
        }
    }
}

pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The end of the question after the header.
fn question_end(bytes: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1 + length;
        // No label is longer than 63, and a pointer would have nothing to point to.
        if length > 63 || at - HEADER > MAX_NAME {
            return None;
        }
        if length == 0 {
            break;
        }
    }
    let end = at + 4;
    (end <= bytes.len()).then_some(end)
}

/// The size that the client's OPT record offers, if the first record after the question is one.
fn udp_limit(bytes: &[u8], question_end: usize) -> usize {
    let is_opt =
        number(bytes, 10) > Some(0) && bytes.get(question_end) == Some(&0) && number(bytes, question_end + 1) == Some(TYPE_OPT);
    number(bytes, question_end + 3).filter(|_| is_opt).map_or(PLAIN_UDP, |size| usize::from(size).clamp(PLAIN_UDP, MAX_UDP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPT: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        bytes
    }

    fn answer(to: &[u8], id: [u8; 2]) -> Vec<u8> {
        let mut bytes = to.to_vec();
        bytes[..2].copy_from_slice(&id);
        bytes[2] |= RESPONSE;
        bytes
    }

    #[test]
    fn names_of_our_own_are_answered_with_an_address() {
        let asked = Query::parse(&query("Host.Docker.internal", 1)).unwrap();
        assert!(asked.asks_for("host.docker.internal"));
        for other in ["docker.internal", "host.docker.internal.com", "host.docker", "ghost.docker.internal", ""] {
            assert!(!asked.asks_for(other), "{other}");
        }
        let answer = asked.answer(Ipv4Addr::new(10, 209, 0, 1));
        assert!(asked.is_answered_by(&answer, [0xab, 0xcd]));
        assert_eq!((answer[3] & RCODE, number(&answer, 6)), (0, Some(1)));
        assert!(answer.ends_with(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 209, 0, 1]));
        let other_kind = Query::parse(&query("host.docker.internal", 28)).unwrap().answer(Ipv4Addr::LOCALHOST);
        assert_eq!((other_kind[3] & RCODE, number(&other_kind, 6)), (0, Some(0)), "the name is there, without an IPv6 address");
    }

    #[test]
    fn only_the_answer_to_the_question_is_one() {
        let query = Query::parse(&query("Example.org", 1)).unwrap();
        let id = [7, 9];
        let sent = query.with_id(id);
        let good = answer(&sent.to_ascii_lowercase(), id);
        assert!(query.is_answered_by(&good, id));
        assert!(!query.is_answered_by(&good, [7, 8]), "another id");
        assert!(!query.is_answered_by(&sent, id), "no answer at all");
        let other = answer(&super::tests::query("example.com", 1), id);
        assert!(!query.is_answered_by(&other, id), "another question");
        let kind = answer(&super::tests::query("example.org", 28), id);
        assert!(!query.is_answered_by(&kind, id), "another type");
        assert!(!query.is_answered_by(&good[..20], id), "cut off");
        let restored = query.restore(good);
        assert_eq!(restored[..2], [0xab, 0xcd]);
        assert_eq!(restored[HEADER..], query.bytes[HEADER..]);
    }

    #[test]
    fn what_is_malformed_is_dropped() {
        let good = query("a.example", 1);
        let mut cases = vec![
            good[..11].to_vec(),
            good[..good.len() - 1].to_vec(),
            vec![0; MAX_QUERY + 1],
            answer(&good, [1, 2]),
            query(&"x".repeat(63), 1)[..30].to_vec(),
            query(&[&"x".repeat(63)[..]; 4].join("."), 1),
        ];
        let mut pointer = good.clone();
        pointer[HEADER] = 0xc0;
        cases.push(pointer);
        for (field, value) in [(5, 0), (5, 2), (7, 1), (9, 1)] {
            let mut counts = good.clone();
            counts[field] = value;
            cases.push(counts);
        }
        for case in cases {
            assert_eq!(Query::parse(&case).unwrap_err(), Fault::Malformed, "{case:x?}");
        }
    }

    #[test]
    fn what_is_not_forwarded_is_answered() {
        for (bytes, rcode) in [
            (query("a.example", 252), Rcode::Refused),
            (
                {
                    let mut update = query("a.example", 6);
                    update[2] = 5 << 3;
                    update
                },
                Rcode::NotImplemented,
            ),
        ] {
            let Err(Fault::Declined(answer)) = Query::parse(&bytes) else {
                panic!("{bytes:x?} was not declined");
            };
            assert_eq!(answer[..2], bytes[..2]);
            assert_eq!(answer[3] & RCODE, rcode as u8);
            assert!(is_refusal(&answer));
        }
    }

    #[test]
    fn a_long_answer_asks_for_tcp() {
        let plain = query("a.example", 1);
        let mut with_opt = plain.clone();
        with_opt[11] = 1;
        with_opt.extend(OPT);
        for (bytes, limit) in [(&plain, 512), (&with_opt, 1232)] {
            let query = Query::parse(bytes).unwrap();
            let mut long = answer(&plain, [0xab, 0xcd]);
            long.resize(limit, 0);
            assert_eq!(query.fit_udp(long.clone()), long);
            long.push(0);
            let short = query.fit_udp(long);
            assert!(short.len() < 100 && short[2] & TRUNCATED != 0);
            assert_eq!(short[3] & RCODE, 0);
            assert_eq!(short[HEADER..], plain[HEADER..]);
        }
    }
}
