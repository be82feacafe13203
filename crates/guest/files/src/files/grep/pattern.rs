//! Regular expressions. ripgrep's engine matches in linear time; patterns that it can't express (look-around, back-references)
//! use a backtracking engine with a bound.

use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::{ByteSet, LineMatchKind, LineTerminator, Match, Matcher, NoCaptures};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use super::super::error::Failure;

/// The most memory of a compiled pattern, and of each thread's table for it, in bytes.
const MAX_REGEX_BYTES: usize = 4 << 20;
/// The same for multi-line patterns: these process a whole file before the time is checked.
const MAX_MULTILINE_REGEX_BYTES: usize = 1 << 20;
/// The longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// The most backtracking steps of one attempt: some tens of milliseconds.
const MAX_BACKTRACKS: usize = 200_000;

/// The options of a pattern.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::files) struct Meaning {
    pub(in crate::files) case_insensitive: bool,
    /// The pattern is literal text.
    pub(in crate::files) fixed_strings: bool,
    pub(in crate::files) multiline: bool,
}

#[derive(Debug)]
pub(in crate::files) enum Pattern {
    Plain(Box<RegexMatcher>),
    Backtracking(Backtracking),
}

/// Matches text only: invalid UTF-8 does not match.
#[derive(Debug)]
pub(in crate::files) struct Backtracking {
    regex: fancy_regex::Regex,
    gave_up: AtomicBool,
}

impl Pattern {
    /// Parses a pattern for lines without their ends, or for whole files with `multiline`.
    pub(in crate::files) fn parse(pattern: &str, meaning: Meaning) -> Result<Self, Failure> {
        let Meaning { case_insensitive, fixed_strings, multiline } = meaning;
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(Failure::invalid(format!("pattern is longer than {MAX_PATTERN_BYTES} bytes")));
        }
        let limit = if multiline { MAX_MULTILINE_REGEX_BYTES } else { MAX_REGEX_BYTES };
        let plain = RegexMatcherBuilder::new()
            .case_insensitive(case_insensitive)
            .fixed_strings(fixed_strings)
            .multi_line(true)
            .dot_matches_new_line(multiline)
            .line_terminator((!multiline).then_some(b'\n'))
            .size_limit(limit)
            .dfa_size_limit(limit)
            .build(pattern);
        let error = match plain {
            Ok(plain) => return Ok(Self::Plain(Box::new(plain))),
            Err(error) => error,
        };
        let backtracking = fancy_regex::RegexBuilder::new(pattern)
            .case_insensitive(case_insensitive)
            .multi_line(true)
            .dot_matches_new_line(multiline)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(limit)
            .delegate_dfa_size_limit(limit)
            .build();
        match backtracking {
            // A pattern that the first engine refuses for its size, or its line ends, is not passed to the second.
            Ok(regex) if needs_backtracking(pattern) => {
                Ok(Self::Backtracking(Backtracking { regex, gave_up: AtomicBool::new(false) }))
            }
            _ => Err(Failure::Invalid {
                message: format!("the pattern can't be used: {error}"),
                hint: Some(
                    "patterns are Rust regular expressions, with look-around and back-references; set fixed_strings for a literal \
                     text, and multiline to match line ends"
                        .to_owned(),
                ),
            }),
        }
    }

    pub(in crate::files) fn matches_line(&self, line: &[u8]) -> Result<bool, Failure> {
        self.is_match(line).map_err(|_| too_hard())
    }

    /// Whether an attempt was abandoned, so that the result is incomplete.
    pub(super) fn gave_up(&self) -> bool {
        matches!(self, Self::Backtracking(pattern) if pattern.gave_up.load(Ordering::Relaxed))
    }
}

/// Whether the pattern has a construct that needs backtracking.
fn needs_backtracking(pattern: &str) -> bool {
    let around = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "\\k<", "\\G", "\\K", "(?("];
    let reference = |pair: &[u8]| pair[0] == b'\\' && (b'1'..=b'9').contains(&pair[1]);
    around.iter().any(|part| pattern.contains(part)) || pattern.as_bytes().windows(2).any(reference)
}

pub(super) fn too_hard() -> Failure {
    Failure::Invalid {
        message: format!("the pattern backtracks more than {MAX_BACKTRACKS} times on a line"),
        hint: Some("patterns with look-around or back-references are tried out step by step: make it more specific".to_owned()),
    }
}

impl Matcher for Pattern {
    type Captures = NoCaptures;
    type Error = Box<fancy_regex::Error>;

    fn find_at(&self, haystack: &[u8], at: usize) -> Result<Option<Match>, Self::Error> {
        match self {
            Self::Plain(plain) => Ok(plain.find_at(haystack, at).unwrap_or_default()),
            Self::Backtracking(pattern) => {
                let Ok(text) = std::str::from_utf8(haystack) else { return Ok(None) };
                // An offset inside a character moves to the next one.
                let at = (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
                let found = pattern.regex.find_from_pos(text, at).map_err(|error| {
                    pattern.gave_up.store(true, Ordering::Relaxed);
                    Box::new(error)
                })?;
                Ok(found.map(|found| Match::new(found.start(), found.end())))
            }
        }
    }

    fn new_captures(&self) -> Result<NoCaptures, Self::Error> {
        Ok(NoCaptures::new())
    }

    fn shortest_match_at(&self, haystack: &[u8], at: usize) -> Result<Option<usize>, Self::Error> {
        match self {
            Self::Plain(plain) => Ok(plain.shortest_match_at(haystack, at).unwrap_or_default()),
            Self::Backtracking(_) => Ok(self.find_at(haystack, at)?.map(|found| found.end())),
        }
    }

    fn non_matching_bytes(&self) -> Option<&ByteSet> {
        match self {
            Self::Plain(plain) => plain.non_matching_bytes(),
            Self::Backtracking(_) => None,
        }
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        match self {
            Self::Plain(plain) => plain.line_terminator(),
            Self::Backtracking(_) => None,
        }
    }

    fn find_candidate_line(&self, haystack: &[u8]) -> Result<Option<LineMatchKind>, Self::Error> {
        match self {
            Self::Plain(plain) => Ok(plain.find_candidate_line(haystack).unwrap_or_default()),
            Self::Backtracking(_) => Ok(self.shortest_match(haystack)?.map(LineMatchKind::Confirmed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, line: &str) -> bool {
        Pattern::parse(pattern, Meaning::default()).unwrap().matches_line(line.as_bytes()).unwrap()
    }

    #[test]
    fn look_around_and_back_references_are_found() {
        assert!(matches(r"foo(?=bar)", "foobar") && !matches(r"foo(?=bar)", "foobaz"));
        assert!(matches(r"(?<!un)known", "known") && !matches(r"(?<!un)known", "unknown"));
        assert!(matches(r"(\w+) \1", "the the end") && !matches(r"(\w+) \1", "one two"));
        assert!(matches!(Pattern::parse(r"a+b", Meaning::default()), Ok(Pattern::Plain(_))));
        for wrong in ["(", "(?=", r"\1", "[z-a]", "(?<x"] {
            assert!(Pattern::parse(wrong, Meaning::default()).is_err(), "{wrong}");
        }
        let insensitive = Meaning { case_insensitive: true, ..Meaning::default() };
        assert!(Pattern::parse(r"FOO(?=bar)", insensitive).unwrap().matches_line(b"fooBAR").unwrap());
    }

    #[test]
    fn backtracking_has_an_end() {
        let pattern = Pattern::parse(r"^(a+)+(?=b)$", Meaning::default()).unwrap();
        let line = [b'a'; 4000];
        assert!(pattern.matches_line(&line).is_err() && pattern.gave_up());
        // Invalid UTF-8 does not match and is no error.
        assert!(!Pattern::parse(r"a(?=b)", Meaning::default()).unwrap().matches_line(b"\xffab").unwrap());
    }
}
