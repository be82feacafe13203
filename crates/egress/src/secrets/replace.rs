//! Finds and replaces many texts at once in a stream, however it is cut into pieces.
//!
//! Of texts that start at the same place, the longest counts. What can't be the start of a text is passed on at once, so that
//! streams such as server-sent events are not held back. At most the longest text but one byte is kept.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Input, Match, MatchKind};
use bytes::Bytes;

/// Bytes that are compared at most to find out what has to be held of a piece.
const MAX_COMPARED: usize = 16 << 10;

/// Texts to look for.
pub(crate) struct Patterns {
    finder: AhoCorasick,
    /// In lexicographic order, to look for those that start with a text.
    sorted: Box<[Box<[u8]>]>,
    is_first_byte: Box<[bool; 256]>,
    longest: usize,
}

impl Patterns {
    /// The texts are not empty. They are known by their positions.
    pub(crate) fn new(texts: &[Vec<u8>]) -> Result<Self, BuildError> {
        debug_assert!(texts.iter().all(|text| !text.is_empty()));
        // Other kinds take much more memory, or time.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).kind(kind).build(texts)?;
        let mut sorted: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_slice().into()).collect();
        sorted.sort_unstable();
        let mut is_first_byte = Box::new([false; 256]);
        texts.iter().filter_map(|text| text.first()).for_each(|first| is_first_byte[usize::from(*first)] = true);
        let longest = texts.iter().map(Vec::len).max().unwrap_or_default();
        Ok(Self { finder, sorted: sorted.into(), is_first_byte, longest })
    }

    /// All matches, from left to right and without overlaps.
    pub(crate) fn find_all(&self, text: &[u8]) -> impl Iterator<Item = Match> {
        self.finder.find_iter(text)
    }

    pub(crate) fn is_in(&self, text: &[u8]) -> bool {
        self.finder.is_match(text)
    }

    /// In bytes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.finder.memory_usage() + self.sorted.iter().map(|text| text.len()).sum::<usize>()
    }

    fn next(&self, text: &[u8], from: usize) -> Option<Match> {
        self.finder.find(Input::new(text).range(from..))
    }

    /// Where a match may start that ends after the text, or the text's end.
    fn unfinished(&self, text: &[u8], from: usize) -> usize {
        let first = (text.len() + 1).saturating_sub(self.longest).max(from);
        let mut compared = 0;
        for at in (first..text.len()).filter(|at| self.is_first_byte[usize::from(text[*at])]) {
            let (is_start, common) = self.compare(&text[at..]);
            if is_start {
                return at;
            }
            // Texts that repeat themselves would take the square of their length. To hold more is never wrong.
            compared += common;
            if compared > MAX_COMPARED {
                return at + 1;
            }
        }
        text.len()
    }

    /// Whether one of the texts starts with this one and goes on, and with how many bytes one starts that are the same.
    fn compare(&self, start: &[u8]) -> (bool, usize) {
        let next = self.sorted.partition_point(|text| **text <= *start);
        if self.sorted.get(next).is_some_and(|text| text.starts_with(start)) {
            return (true, start.len());
        }
        let common = |text: &[u8]| text.iter().zip(start).take_while(|(one, other)| one == other).count();
        let neighbours = &self.sorted[next.saturating_sub(1)..self.sorted.len().min(next + 1)];
        (false, neighbours.iter().map(|text| common(text)).max().unwrap_or_default())
    }
}

/// What happens to a text that is found.
#[derive(Clone)]
pub(crate) enum Action {
    Replace(Bytes),
    /// Ends the stream.
    Refuse,
}

/// A text was found that ends the stream: its position among the patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) usize);

/// Replaces in one stream.
pub(crate) struct Replacer {
    patterns: Arc<Patterns>,
    /// For each pattern.
    actions: Arc<[Action]>,
    /// The end of what came, as it may be the start of a match.
    held: Vec<u8>,
}

impl Replacer {
    pub(crate) fn new(patterns: Arc<Patterns>, actions: Arc<[Action]>) -> Self {
        Self { patterns, actions, held: Vec::new() }
    }

    /// Whether what passes is as long as what came.
    pub(crate) fn only_refuses(&self) -> bool {
        self.actions.iter().all(|action| matches!(action, Action::Refuse))
    }

    /// How many bytes are held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next piece, and returns what is certain now, which may be nothing.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<Bytes, Refused> {
        self.replace(piece, false)
    }

    /// What was held, when nothing more comes.
    pub(crate) fn finish(&mut self) -> Result<Bytes, Refused> {
        self.replace(Bytes::new(), true)
    }

    fn replace(&mut self, piece: Bytes, is_end: bool) -> Result<Bytes, Refused> {
        let text = if self.held.is_empty() {
            piece
        } else {
            let mut text = std::mem::take(&mut self.held);
            text.extend_from_slice(&piece);
            text.into()
        };
        let unfinished = |from| if is_end { text.len() } else { self.patterns.unfinished(&text, from) };
        let (mut from, mut until) = (0, unfinished(0));
        let mut replaced = Vec::new();
        while let Some(found) = self.patterns.next(&text, from).filter(|found| found.start() < until) {
            let Action::Replace(with) = &self.actions[found.pattern().as_usize()] else {
                return Err(Refused(found.pattern().as_usize()));
            };
            replaced.extend_from_slice(&text[from..found.start()]);
            replaced.extend_from_slice(with);
            from = found.end();
            if from > until {
                until = unfinished(from);
            }
        }
        self.held = text[until..].to_vec();
        if from == 0 {
            return Ok(text.slice(..until));
        }
        replaced.extend_from_slice(&text[from..until]);
        Ok(replaced.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn replacer(pairs: &[(&str, &str)]) -> Replacer {
        let texts: Vec<Vec<u8>> = pairs.iter().map(|(text, _)| text.as_bytes().to_vec()).collect();
        let actions = pairs.iter().map(|(_, with)| Action::Replace(Bytes::copy_from_slice(with.as_bytes()))).collect();
        Replacer::new(Arc::new(Patterns::new(&texts).unwrap()), actions)
    }

    fn replace_pieces<'a>(pairs: &[(&str, &str)], pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut replacer = replacer(pairs);
        let longest = pairs.iter().map(|(text, _)| text.len()).max().unwrap();
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(replacer.push(Bytes::copy_from_slice(piece)).unwrap());
            assert!(replacer.held.len() < longest, "more is held than can be a start");
        }
        all.extend(replacer.finish().unwrap());
        all
    }

    /// At each position, the longest text that is there.
    fn replace_naively(pairs: &[(&str, &str)], mut text: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        while let [first, rest @ ..] = text {
            let here = pairs.iter().filter(|(from, _)| text.starts_with(from.as_bytes()));
            match here.max_by_key(|(from, _)| from.len()) {
                Some((from, with)) => {
                    all.extend(with.as_bytes());
                    text = &text[from.len()..];
                }
                None => {
                    all.push(*first);
                    text = rest;
                }
            }
        }
        all
    }

    #[test]
    fn a_text_is_found_wherever_it_is_split() {
        let pairs = [("secret", "S"), ("secretary", "A"), ("cre", "C")];
        let text = b"a secret, a secretary, secre, sesecretsecretar";
        let expected = b"a S, a A, seC, seSSar".to_vec();
        assert_eq!(replace_naively(&pairs, text), expected);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(replace_pieces(&pairs, pieces), expected, "{first} {second}");
            }
        }
        assert_eq!(replace_pieces(&pairs, text.chunks(1)), expected);
    }

    #[test]
    fn nothing_is_held_that_can_not_be_a_start() {
        let mut replacer = replacer(&[("secret", "***")]);
        for (piece, expected) in
            [("data: 1\n\n", "data: 1\n\n"), ("s", ""), ("ecr", ""), ("y secre", "secry "), ("t", "***"), ("sec", "")]
        {
            assert_eq!(replacer.push(Bytes::from(piece)).unwrap(), expected, "{piece:?}");
        }
        assert_eq!(replacer.finish().unwrap(), "sec");
        assert_eq!(replacer.finish().unwrap(), "");
    }

    #[test]
    fn texts_that_repeat_themselves_take_no_square_of_time() {
        let long = format!("{}b", "a".repeat(8_000));
        let pairs = [(long.as_str(), "LONG"), ("aaaaaaaa!", "SHORT")];
        let start = Instant::now();
        let almost = format!("{}c", "a".repeat(8_190)).repeat(100);
        assert_eq!(replace_pieces(&pairs, almost.as_bytes().chunks(16 << 10)), almost.as_bytes());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let text = format!("{almost}{long}{}!{}", "a".repeat(20), &long[1..]);
        let expected = format!("{almost}LONG{}SHORT{}", "a".repeat(12), &long[1..]);
        for size in [500, 8_191, 16 << 10] {
            assert_eq!(replace_pieces(&pairs, text.as_bytes().chunks(size)), expected.as_bytes(), "{size}");
        }
    }

    #[test]
    fn a_refused_text_ends_the_stream() {
        let patterns = Arc::new(Patterns::new(&[b"good".to_vec(), b"bad".to_vec()]).unwrap());
        let actions = [Action::Replace(Bytes::from_static(b"G")), Action::Refuse];
        let mut replacer = Replacer::new(patterns, actions.into());
        assert_eq!(replacer.push(Bytes::from_static(b"good b")).unwrap(), "G ");
        assert_eq!(replacer.push(Bytes::from_static(b"ad")), Err(Refused(1)));
    }

    /// Random texts of few letters, in which matches overlap often, cut at random.
    #[test]
    fn pieces_are_replaced_like_the_whole() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        for round in 0..20_000 {
            let letters = 1 + random(3);
            let mut word = |least: usize, most: usize| -> String {
                (0..least + random(most)).map(|_| char::from(b'a' + u8::try_from(random(letters)).unwrap())).collect()
            };
            let mut words: Vec<String> = (0..4).map(|_| word(1, 6)).collect();
            let text = word(0, 60);
            words.sort();
            words.dedup();
            let pairs: Vec<(&str, &str)> = words.iter().map(String::as_str).zip(["1", "22", "", "4444"]).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random(rest.len().min(9) + 1));
                pieces.push(piece);
                rest = after;
            }
            let naive = replace_naively(&pairs, text.as_bytes());
            assert_eq!(replace_pieces(&pairs, pieces.iter().copied()), naive, "round {round}: {pairs:?} {pieces:?}");
        }
    }
}
