//! The kept part of a stream of unknown length: its head, its tail, and its total length.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The most bytes kept of one stream: half from the head, half from the tail.
const MAX_RETAINED: usize = 10 << 20;
/// The bytes that each stream may keep even when the budget is exhausted.
const ALWAYS_RETAINED: usize = 128 << 10;
/// The budget is taken and returned in pieces of this size.
const GRANT: usize = 64 << 10;

/// The most bytes that all streams of one service may keep together.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// Ended streams, oldest first. Their content is dropped first when the budget is exhausted.
    ended: Mutex<VecDeque<Weak<Mutex<Retained>>>>,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), ended: Mutex::default() })
    }

    /// Records that a stream has ended, so that its content may be dropped for others.
    pub fn ended(&self, stream: &Arc<Mutex<Retained>>) {
        let small = stream.lock().unwrap_or_else(PoisonError::into_inner).granted == 0;
        if small {
            return;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|s| s.strong_count() > 0);
        ended.push_back(Arc::downgrade(stream));
    }

    fn take(&self, bytes: usize) -> bool {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            if used + bytes <= self.limit {
                self.used.store(used + bytes, Ordering::Relaxed);
                return true;
            }
            let oldest = self.ended.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match oldest {
                Some(stream) => {
                    if let Some(stream) = stream.upgrade() {
                        stream.lock().unwrap_or_else(PoisonError::into_inner).give_up();
                    }
                }
                None => return false,
            }
        }
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The head and the tail of a stream. Offsets count all bytes of the stream, kept or not.
#[derive(Debug)]
pub struct Retained {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// The head takes no more bytes.
    head_full: bool,
    /// The most bytes of the tail, after the budget refused to let it grow.
    tail_limit: usize,
    granted: usize,
    budget: Arc<Budget>,
}

/// A part of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Bytes before the gap, if there is one.
    pub before: Vec<u8>,
    /// Requested bytes that are no longer kept, between `before` and `after`.
    pub gap: u64,
    pub after: Vec<u8>,
}

impl Retained {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
            head_full: false,
            tail_limit: MAX_RETAINED / 2,
            granted: 0,
            budget: Arc::clone(budget),
        }
    }

    /// The number of bytes so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of the middle that are no longer kept.
    pub fn dropped(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if !self.head_full {
            let room = (MAX_RETAINED / 2 - self.head.len()).min(bytes.len());
            if self.may_hold(self.head.len() + room) {
                self.head.extend_from_slice(&bytes[..room]);
                bytes = &bytes[room..];
                self.head_full = self.head.len() == MAX_RETAINED / 2;
            } else {
                self.head_full = true;
                self.tail_limit = self.head.len().max(ALWAYS_RETAINED / 2);
            }
        }
        if bytes.is_empty() {
            return;
        }
        let want = (self.tail.len() + bytes.len()).min(self.tail_limit);
        if want > self.tail.len() && !self.may_hold(self.head.len() + want) {
            self.tail_limit = self.tail.len().max(ALWAYS_RETAINED / 2);
        }
        let keep = bytes.len().min(self.tail_limit);
        let excess = (self.tail.len() + keep).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(&bytes[bytes.len() - keep..]);
    }

    /// The kept bytes from `offset` on.
    pub fn read(&self, offset: u64) -> Piece {
        self.read_range(offset..self.total)
    }

    /// The kept bytes of a range.
    pub fn read_range(&self, range: Range<u64>) -> Piece {
        let (start, end) = (range.start, range.end.min(self.total));
        if start >= end {
            return Piece::default();
        }
        let head_end = self.head.len() as u64;
        let tail_start = self.total - self.tail.len() as u64;
        let in_head = start.min(head_end) as usize..end.min(head_end) as usize;
        let in_tail = |at: u64| (at.clamp(tail_start, self.total) - tail_start) as usize;
        let gap = end.min(tail_start).saturating_sub(start.max(head_end)).min(tail_start - head_end);
        let mut piece = Piece {
            before: self.head[in_head].to_vec(),
            gap,
            after: self.tail.range(in_tail(start)..in_tail(end)).copied().collect(),
        };
        if piece.gap == 0 {
            piece.before.append(&mut piece.after);
        }
        piece
    }

    fn may_hold(&mut self, bytes: usize) -> bool {
        while bytes > ALWAYS_RETAINED + self.granted {
            if !self.budget.take(GRANT) {
                return false;
            }
            self.granted += GRANT;
        }
        true
    }

    fn give_up(&mut self) {
        self.head = Vec::new();
        self.tail = VecDeque::new();
        self.head_full = true;
        self.tail_limit = ALWAYS_RETAINED / 2;
        self.budget.give_back(std::mem::take(&mut self.granted));
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.budget.give_back(self.granted);
    }
}

impl Piece {
    /// The text, with invalid UTF-8 replaced; a line in its middle reports what is missing. With a `limit`, at most that number
    /// of characters: the first and the last half.
    pub fn text(&self, limit: Option<usize>) -> String {
        let (before, after) = if self.gap == 0 {
            (&self.before[..], &self.after[..])
        } else {
            (without_cut_end(&self.before), without_cut_start(&self.after))
        };
        let before = String::from_utf8_lossy(before);
        if self.gap == 0 {
            return match limit {
                Some(limit) => middle_cut(&before, limit),
                None => before.into_owned(),
            };
        }
        let after = String::from_utf8_lossy(after);
        let (head, tail) = match limit {
            Some(limit) => (first_chars(&before, limit / 2), last_chars(&after, limit - limit / 2)),
            None => (&before[..], &after[..]),
        };
        let dropped = self.gap + (before.len() - head.len()) as u64 + (after.len() - tail.len()) as u64;
        format!("{head}\n[... output truncated: {dropped} bytes dropped here ...]\n{tail}")
    }

    /// Appends its bytes to `to`, with a line where some are missing.
    pub fn append_to(self, to: &mut Vec<u8>) {
        if self.gap == 0 {
            to.extend_from_slice(&self.before);
            return;
        }
        to.extend_from_slice(without_cut_end(&self.before));
        let line = format!("\n[... output truncated: {} bytes dropped here ...]\n", self.gap);
        to.extend_from_slice(line.as_bytes());
        to.extend_from_slice(without_cut_start(&self.after));
    }
}

/// The number of bytes at the end that start an incomplete character.
pub fn incomplete_end(bytes: &[u8]) -> usize {
    bytes.len() - without_cut_end(bytes).len()
}

/// The first and the last half of `limit` characters, and between them a line with the number of dropped ones.
pub fn middle_cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let count = text.chars().count();
    if count <= limit {
        return text.to_owned();
    }
    let head = first_chars(text, limit / 2);
    let tail = last_chars(text, limit - limit / 2);
    let dropped = count - limit;
    format!("{head}\n[... output truncated: {dropped} characters dropped here ...]\n{tail}")
}

fn first_chars(text: &str, n: usize) -> &str {
    text.char_indices().nth(n).map_or(text, |(at, _)| &text[..at])
}

fn last_chars(text: &str, n: usize) -> &str {
    match n {
        0 => "",
        n => text.char_indices().nth_back(n - 1).map_or(text, |(at, _)| &text[at..]),
    }
}

/// The bytes without an incomplete character at the end.
fn without_cut_end(bytes: &[u8]) -> &[u8] {
    let start = bytes.len().saturating_sub(3);
    for at in (start..bytes.len()).rev() {
        let length = match bytes[at] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => break,
        };
        let is_cut = at + length > bytes.len();
        return if is_cut { &bytes[..at] } else { bytes };
    }
    bytes
}

/// The bytes without the rest of an incomplete character at the start.
fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let cut = bytes.iter().take(3).take_while(|b| (0x80..=0xBF).contains(*b)).count();
    &bytes[cut..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(budget: usize) -> Retained {
        Retained::new(&Budget::new(budget))
    }

    #[test]
    fn head_and_tail_stay_and_offsets_count_everything() {
        let mut kept = stream(1 << 30);
        let line: Vec<u8> = (0..=255).collect();
        let rounds = 3 * MAX_RETAINED / line.len();
        for _ in 0..rounds {
            kept.push(&line);
        }
        assert_eq!(kept.total(), (3 * MAX_RETAINED) as u64);
        assert_eq!(kept.dropped(), (2 * MAX_RETAINED) as u64);
        let all = kept.read(0);
        assert_eq!(all.gap, (2 * MAX_RETAINED) as u64);
        assert_eq!((all.before.len(), all.after.len()), (MAX_RETAINED / 2, MAX_RETAINED / 2));
        assert_eq!((all.before[255], all.after[0]), (255, 0));
        let end = kept.read(kept.total() - 3);
        assert_eq!((end.gap, end.before), (0, vec![253, 254, 255]));
        let inside = kept.read_range(MAX_RETAINED as u64..MAX_RETAINED as u64 + 10);
        assert_eq!((inside.gap, inside.before.len(), inside.after.len()), (10, 0, 0));
        assert_eq!(kept.read(u64::MAX), Piece::default());
    }

    #[test]
    fn one_push_larger_than_everything_keeps_both_ends() {
        let mut kept = stream(1 << 30);
        let mut big = vec![b'm'; 4 * MAX_RETAINED];
        big[0] = b'a';
        *big.last_mut().unwrap() = b'z';
        kept.push(&big);
        let all = kept.read(0);
        assert_eq!((all.before[0], all.after.last()), (b'a', Some(&b'z')));
        assert_eq!(all.before.len() + all.after.len(), MAX_RETAINED);
    }

    #[test]
    fn without_budget_a_stream_still_keeps_its_ends() {
        let budget = Budget::new(GRANT);
        let mut first = Retained::new(&budget);
        first.push(&vec![b'x'; ALWAYS_RETAINED + GRANT]);
        assert_eq!(first.dropped(), 0);
        let mut second = Retained::new(&budget);
        for _ in 0..100 {
            second.push(&[b'y'; 10_000]);
        }
        second.push(b"end");
        let all = second.read(0);
        assert!(all.gap > 0 && all.before.len() + all.after.len() <= 2 * ALWAYS_RETAINED);
        assert!(all.after.ends_with(b"end"));
    }

    #[test]
    fn ended_streams_make_room_oldest_first() {
        let budget = Budget::new(2 * GRANT);
        let full = || {
            let mut stream = Retained::new(&budget);
            stream.push(&vec![b'x'; ALWAYS_RETAINED + GRANT]);
            Arc::new(Mutex::new(stream))
        };
        let (first, second) = (full(), full());
        budget.ended(&first);
        budget.ended(&second);
        let third = full();
        assert_eq!(third.lock().unwrap().dropped(), 0);
        assert_eq!(second.lock().unwrap().dropped(), 0);
        let first = first.lock().unwrap();
        assert_eq!(first.dropped(), first.total());
        assert_eq!(first.read(0).gap, first.total());
    }

    #[test]
    fn cuts_count_characters_and_respect_their_borders() {
        assert_eq!(middle_cut("äöü", 3), "äöü");
        assert_eq!(middle_cut("äöüß€", 2), "ä\n[... output truncated: 3 characters dropped here ...]\n€");
        let euro = "€".as_bytes();
        let piece = Piece { before: [b"a", &euro[..2]].concat(), gap: 5, after: [&euro[1..], b"b"].concat() };
        assert!(piece.text(None).starts_with("a\n[") && piece.text(None).ends_with("]\nb"));
        let growing = Piece { before: [b"a", &euro[..2]].concat(), ..Piece::default() };
        assert_eq!(incomplete_end(&growing.before), 2);
        assert_eq!(without_cut_end(b"ok\xff"), b"ok\xff");
        assert_eq!(without_cut_end("né".as_bytes()), "né".as_bytes());
    }
}
