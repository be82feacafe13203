//! Patterns for URLs.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};
use thiserror::Error;

/// Maximum bytes of a pattern.
const MAX_BYTES: usize = 4096;
/// Maximum bytes of a compiled pattern.
const MAX_COMPILED: usize = 1 << 20;

#[derive(Debug, Error)]
pub(crate) enum PatternError {
    #[error("the URL pattern is empty; ** means every URL")]
    Empty,
    #[error("a URL pattern can have {MAX_BYTES} bytes")]
    TooLong,
    #[error("the URL pattern {0:?} opens a {{ that nothing closes; \\{{ is the character itself")]
    Unclosed(String),
    #[error("the URL pattern {0:?} ends with a \\ that nothing follows")]
    Dangling(String),
    #[error("{0:?} is no regular expression: {1}")]
    Regex(String, regex::Error),
}

/// A glob over the whole URL, as in Playwright, or a `/regular expression/` that matches anywhere in it.
///
/// In a glob, `*` is anything without a `/`, `**` anything, `?` one character except `/`, `{a,b}` one of these, and `\` makes the
/// next character literal. JavaScript's flags may follow a regular expression.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    text: String,
    regex: Regex,
    wildcards: String,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(PatternError::TooLong);
        }
        let (mut builder, wildcards) = match expression(text) {
            Some((expression, flags)) => {
                let mut builder = RegexBuilder::new(expression);
                builder.case_insensitive(flags.contains('i')).multi_line(flags.contains('m'));
                builder.dot_matches_new_line(flags.contains('s'));
                (builder, "*".to_owned())
            }
            None => {
                let Glob { mut regex, mut wildcards } = Glob::read(text)?;
                // Every URL has a path, even if it is not written.
                if text.split_once("://").is_some_and(|(_, rest)| !rest.contains('/')) {
                    regex.push_str("/?");
                    wildcards.push('?');
                }
                let mut builder = RegexBuilder::new(&format!(r"\A(?:{regex})\z"));
                builder.dot_matches_new_line(true);
                (builder, wildcards)
            }
        };
        let regex = builder.size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
        let regex = regex.map_err(|error| PatternError::Regex(text.to_owned(), error))?;
        Ok(Self { text: text.to_owned(), regex, wildcards })
    }

    pub(crate) fn matches(&self, url: &str) -> bool {
        self.regex.is_match(url)
    }

    /// The pattern's source text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Wildcards of the DevTools protocol, which match at least what the pattern matches.
    pub(super) fn wildcards(&self) -> &str {
        &self.wildcards
    }

    /// Whether it could match a page's whole URL.
    pub(super) fn is_whole(&self) -> bool {
        let glob = &self.text;
        expression(glob).is_some() || glob.starts_with("**") || glob.starts_with('{') || glob.contains(':')
    }
}

/// The body and the flags of `/…/flags`.
fn expression(text: &str) -> Option<(&str, &str)> {
    let (inner, flags) = text.strip_prefix('/')?.rsplit_once('/')?;
    (!inner.is_empty() && flags.chars().all(|flag| "dgimsuy".contains(flag))).then_some((inner, flags))
}

#[derive(Default)]
struct Glob {
    regex: String,
    wildcards: String,
}

impl Glob {
    fn read(text: &str) -> Result<Self, PatternError> {
        let mut glob = Self::default();
        let mut rest = text.chars().peekable();
        // The number of open groups. Only the regular expression describes their content.
        let mut depth = 0_usize;
        let mut before = None;
        while let Some(mut character) = rest.next() {
            match character {
                '*' => character = glob.stars(&mut rest, before, depth > 0),
                '?' => glob.push("[^/]", "?", depth > 0),
                '{' => {
                    glob.push("(?:", "*", depth > 0);
                    depth += 1;
                }
                ',' if depth > 0 => glob.push("|", "", true),
                '}' if depth > 0 => {
                    glob.push(")", "", true);
                    depth -= 1;
                }
                '\\' => match rest.next() {
                    Some(escaped) => glob.literal(escaped, depth > 0),
                    None => return Err(PatternError::Dangling(text.to_owned())),
                },
                _ => glob.literal(character, depth > 0),
            }
            before = Some(character);
        }
        if depth > 0 { Err(PatternError::Unclosed(text.to_owned())) } else { Ok(glob) }
    }

    fn push(&mut self, regex: &str, wildcard: &str, is_inner: bool) {
        self.regex.push_str(regex);
        if !is_inner {
            self.wildcards.push_str(wildcard);
        }
    }

    fn literal(&mut self, character: char, is_inner: bool) {
        let mut bytes = [0; 4];
        let text: &str = character.encode_utf8(&mut bytes);
        let escaped = format!("\\{text}");
        self.push(&regex::escape(text), if matches!(character, '*' | '?' | '\\') { &escaped } else { text }, is_inner);
    }

    /// Reads the rest of a star and returns the last character that it consumed.
    fn stars(&mut self, rest: &mut Peekable<Chars<'_>>, before: Option<char>, is_inner: bool) -> char {
        let mut count = 1;
        while rest.next_if_eq(&'*').is_some() {
            count += 1;
        }
        if count == 1 {
            self.push("[^/]*", "*", is_inner);
        } else if before == Some('/') && rest.next_if_eq(&'/').is_some() {
            // Also matches no directory.
            self.push("(?:.*/)?", "*", is_inner);
            return '/';
        } else {
            self.push(".*", "*", is_inner);
        }
        '*'
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, url: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(url)
    }

    #[test]
    fn globs_are_over_the_whole_url() {
        for (pattern, url, wanted) in [
            ("http://a.example/x", "http://a.example/x", true),
            ("http://a.example/x", "http://a.example/xy", false),
            ("http://a.example/x", "xhttp://a.example/x", false),
            ("http://a.example", "http://a.example/", true),
            ("http://*", "http://a.example/x", false),
            ("http://a.example/*", "http://a.example/x", true),
            ("http://a.example/*", "http://a.example/", true),
            ("http://a.example/*", "http://a.example/x/y", false),
            ("http://a.example/**", "http://a.example/x/y?z", true),
            ("http://a.example/**/y", "http://a.example/y", true),
            ("http://a.example/**/y", "http://a.example/x/z/y", true),
            ("http://a.example/**/y", "http://a.example/xy", false),
            ("http://a.example/**/**/y", "http://a.example/y", true),
            ("**/y", "http://a.example/x/y", true),
            ("**/y", "http://a.example/xy", false),
            ("**", "about:blank", true),
            ("**example**", "http://a.example/x", true),
            ("**/*.{png,jp*g}", "http://a.example/x.jpeg", true),
            ("**/*.{png,jpg}", "http://a.example/x.gif", false),
            ("**/{a,{b,c}}", "http://a.example/c", true),
            ("**/x?y=1", "http://a.example/x?y=1", true),
            ("**/x?", "http://a.example/x/", false),
            (r"**/x\?", "http://a.example/x?", true),
            (r"**/x\?", "http://a.example/xy", false),
            (r"**/\*", "http://a.example/*", true),
            (r"**/\{a\}", "http://a.example/{a}", true),
            ("**/a,b}", "http://a.example/a,b}", true),
            ("**/a.b", "http://a.example/axb", false),
            ("**/[a]", "http://a.example/[a]", true),
        ] {
            assert_eq!(matches(pattern, url), wanted, "{pattern} {url}");
        }
    }

    #[test]
    fn expressions_are_found_anywhere() {
        assert!(matches("/x/", "http://a.example/x"));
        assert!(matches(r"/a\.example\/x$/", "http://a.example/x"));
        assert!(matches("/EXAMPLE/i", "http://a.example/x"));
        assert!(!matches("/EXAMPLE/", "http://a.example/x"));
        // No flags, so this is not an expression.
        assert!(!matches("/x/path", "http://a.example/x/path"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for pattern in ["", "**/{a", "**/\\", "/(/", &"a".repeat(MAX_BYTES + 1), "/(a{1000}){1000}/"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    /// The semantics of the browser's own wildcards.
    fn wild(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|at| wild(rest, &text[at..])),
            ['?', rest @ ..] => wild(rest, text) || !text.is_empty() && wild(rest, &text[1..]),
            ['\\', wanted, rest @ ..] | [wanted, rest @ ..] => text.first() == Some(wanted) && wild(rest, &text[1..]),
        }
    }

    #[test]
    fn wildcards_match_at_least_as_much() {
        let urls =
            ["http://a.example/", "http://a.example/x", "http://a.example/x/y", "http://a.example/x?y=1", "http://a.example/*"];
        let patterns = [
            "http://a.example",
            "http://a.example/*",
            "http://a.example/**/x",
            "**/x",
            "**/{x,*/y}",
            "**/x?y=1",
            r"**/\*",
            r"**/x\?*",
            "**/?",
            "/x/",
            "/a.*x/",
            "http://{a,b}.example/**",
        ];
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        for pattern in patterns {
            let parsed = Pattern::parse(pattern).unwrap();
            let matched = urls.iter().filter(|url| parsed.matches(url)).count();
            assert!(matched > 0, "{pattern}");
            for url in urls.iter().filter(|url| parsed.matches(url)) {
                assert!(wild(&chars(parsed.wildcards()), &chars(url)), "{pattern} {} {url}", parsed.wildcards());
            }
        }
        let wildcards = |pattern| Pattern::parse(pattern).unwrap().wildcards().to_owned();
        assert_eq!(wildcards("http://a.example/**/x"), "http://a.example/*x");
        assert_eq!(wildcards(r"**/x\?y={1,2}"), r"*/x\?y=*");
    }

    #[test]
    fn patterns_that_match_no_page_are_known() {
        for (pattern, wanted) in [
            ("**/x", true),
            ("http://a/x", true),
            ("/x/", true),
            ("{http,https}://a/", true),
            ("*.png", false),
            ("/x/path", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().is_whole(), wanted, "{pattern}");
        }
    }
}
