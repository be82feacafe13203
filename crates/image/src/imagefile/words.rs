//! Words of an instruction: quotes, escapes and variables.

use std::collections::BTreeMap;

use super::{ParseError, is_variable_name};

/// Maximum size of a text after its variables were replaced, in bytes.
pub(super) const MAX_EXPANDED_BYTES: usize = 1 << 20;
/// Maximum depth of variables in the defaults of variables: `${a:-${b:-${c}}}` has 3.
const MAX_DEPTH: usize = 16;

/// A word with resolved quotes and unresolved variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable { name: String, otherwise: Option<Otherwise> },
}

/// The part after a variable's name in braces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Otherwise {
    kind: OtherwiseKind,
    /// `:`: an empty value counts as unset.
    empty_is_unset: bool,
    word: Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherwiseKind {
    /// `-`: the word stands for an unset variable.
    Default,
    /// `+`: the word stands for a set variable.
    Alternative,
    /// `?`: an unset variable is an error with the word as its message.
    Required,
}

impl Text {
    /// Text without variables, even if it has a `$`.
    pub fn from_literal(text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Literal(text.into())] }
    }

    /// Inserts the variables' values; an unset variable is empty. The error says why it can't.
    pub fn expand(&self, env: &BTreeMap<String, String>) -> Result<String, String> {
        let mut out = String::new();
        self.expand_into(env, &mut out)?;
        Ok(out)
    }

    fn expand_into(&self, env: &BTreeMap<String, String>, out: &mut String) -> Result<(), String> {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Variable { name, otherwise: None } => out.push_str(env.get(name).map_or("", String::as_str)),
                Part::Variable { name, otherwise: Some(Otherwise { kind, empty_is_unset, word }) } => {
                    let value = env.get(name).filter(|value| !(*empty_is_unset && value.is_empty()));
                    match (kind, value) {
                        (OtherwiseKind::Default | OtherwiseKind::Required, Some(value)) => out.push_str(value),
                        (OtherwiseKind::Default, None) | (OtherwiseKind::Alternative, Some(_)) => word.expand_into(env, out)?,
                        (OtherwiseKind::Alternative, None) => {}
                        (OtherwiseKind::Required, None) => {
                            let message = word.expand(env)?;
                            let message = if message.is_empty() { "it must be set" } else { &message };
                            return Err(format!("the variable {name}: {message}"));
                        }
                    }
                }
            }
            if out.len() > MAX_EXPANDED_BYTES {
                return Err(format!("the text has more than {MAX_EXPANDED_BYTES} bytes with its variables"));
            }
        }
        Ok(())
    }

    /// The text, if it has no variable.
    pub fn literal(&self) -> Option<String> {
        match &self.parts[..] {
            [] => Some(String::new()),
            [Part::Literal(text)] => Some(text.clone()),
            _ => None,
        }
    }

    /// Names of variables without a default.
    pub fn plain_variables(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable { name, otherwise: None } => Some(name.as_str()),
            _ => None,
        })
    }

    fn push(&mut self, c: char) {
        match self.parts.last_mut() {
            Some(Part::Literal(text)) => text.push(c),
            _ => self.parts.push(Part::Literal(c.to_string())),
        }
    }
}

/// Splits a line into words.
pub(super) struct Scanner<'a> {
    line: usize,
    escape: char,
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    /// In a here-document, quotes are part of the text.
    quotes: bool,
    depth: usize,
}

/// The end of a word outside quotes.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    Space,
    SpaceOrEquals,
    Brace,
    EndOfLine,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(line: usize, escape: char, text: &'a str) -> Self {
        Self { line, escape, rest: text.chars().peekable(), quotes: true, depth: 0 }
    }

    /// Skips white space; false at the end of the line.
    fn more(&mut self) -> bool {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
        self.rest.peek().is_some()
    }

    fn word(&mut self, until: Until) -> Result<Text, ParseError> {
        let mut text = Text::default();
        let mut quote = None;
        while let Some(&c) = self.rest.peek() {
            let ends = match until {
                Until::Space => c.is_whitespace(),
                Until::SpaceOrEquals => c.is_whitespace() || c == '=',
                Until::Brace => c == '}',
                Until::EndOfLine => false,
            };
            if quote.is_none() && ends {
                break;
            }
            self.rest.next();
            match (quote, c) {
                (Some(q), _) if c == q => quote = None,
                (Some('\''), _) => text.push(c),
                (None, '\'' | '"') if self.quotes => {
                    quote = Some(c);
                    // An empty pair of quotes is a word too.
                    if text.parts.is_empty() {
                        text.parts.push(Part::Literal(String::new()));
                    }
                }
                (_, '$') => self.variable(&mut text)?,
                (Some(_), _) if c == self.escape => {
                    let escape = self.escape;
                    text.push(self.rest.next_if(|n| matches!(n, '"' | '$') || *n == escape).unwrap_or(escape));
                }
                (None, _) if c == self.escape => text.push(self.rest.next().unwrap_or(c)),
                _ => text.push(c),
            }
        }
        match quote {
            Some(q) => Err(ParseError::new(self.line, format!("the quote {q} is not closed"))),
            None => Ok(text),
        }
    }

    fn variable(&mut self, text: &mut Text) -> Result<(), ParseError> {
        let in_braces = self.rest.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            // `$1` is one character: its text goes on after it.
            if !in_braces && name.is_empty() && c.is_ascii_digit() {
                text.push('$');
                text.push(c);
                return Ok(());
            }
            name.push(c);
        }
        if !in_braces {
            if name.is_empty() {
                text.push('$');
            } else {
                text.parts.push(Part::Variable { name, otherwise: None });
            }
            return Ok(());
        }
        let otherwise = self.otherwise(&name)?;
        text.parts.push(Part::Variable { name, otherwise });
        Ok(())
    }

    /// The rest of `${name…}`.
    fn otherwise(&mut self, name: &str) -> Result<Option<Otherwise>, ParseError> {
        let open = || ParseError::new(self.line, "the brace of ${ is not closed");
        let next = self.rest.peek().copied().ok_or_else(open)?;
        if next == '}' && is_variable_name(name) {
            self.rest.next();
            return Ok(None);
        }
        let empty_is_unset = self.rest.next_if_eq(&':').is_some();
        let kind = match self.rest.next() {
            Some('-') => OtherwiseKind::Default,
            Some('+') => OtherwiseKind::Alternative,
            Some('?') => OtherwiseKind::Required,
            other => return Err(self.unsupported(name, next, other)),
        };
        if !is_variable_name(name) {
            return Err(self.unsupported(name, next, None));
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ParseError::new(self.line, format!("variables are nested more than {MAX_DEPTH} deep")));
        }
        let word = self.word(Until::Brace)?;
        self.depth -= 1;
        if self.rest.next().is_none() {
            return Err(ParseError::new(self.line, "the brace of ${ is not closed"));
        }
        Ok(Some(Otherwise { kind, empty_is_unset, word }))
    }

    fn unsupported(&mut self, name: &str, first: char, second: Option<char>) -> ParseError {
        let mut shown: String = name.chars().take(40).collect();
        shown.push(first);
        shown.extend(second.filter(|_| first == ':'));
        shown.extend(self.rest.by_ref().take_while(|c| *c != '}').take(40));
        ParseError::new(self.line, format!("not supported: ${{{shown}}}"))
            .hint("write $NAME, ${NAME}, ${NAME:-default} or ${NAME:+text}, or \\$ for a dollar sign")
    }
}

/// All words of a line.
pub(super) fn split_words(line: usize, escape: char, text: &str) -> Result<Vec<Text>, ParseError> {
    let mut scanner = Scanner::new(line, escape, text);
    let mut words = Vec::new();
    while scanner.more() {
        words.push(scanner.word(Until::Space)?);
    }
    Ok(words)
}

/// The whole line as one word: spaces stay.
pub(super) fn rest_of_line(line: usize, escape: char, text: &str) -> Result<Text, ParseError> {
    Scanner::new(line, escape, text).word(Until::EndOfLine)
}

/// The text of a here-document, in which quotes mean nothing.
pub(super) fn document(line: usize, text: &str) -> Result<Text, ParseError> {
    Scanner { quotes: false, ..Scanner::new(line, '\\', text) }.word(Until::EndOfLine)
}

/// `K=V K2="a b"`, or `K the rest of the line`.
pub(super) fn pairs(line: usize, escape: char, instruction: &str, text: &str) -> Result<Vec<(Text, Text)>, ParseError> {
    let mut scanner = Scanner::new(line, escape, text);
    let mut pairs = Vec::new();
    while scanner.more() {
        let key = scanner.word(Until::SpaceOrEquals)?;
        if scanner.rest.next_if_eq(&'=').is_some() {
            if key.literal().as_deref() == Some("") {
                return Err(ParseError::new(line, format!("{instruction} has an empty name")));
            }
            pairs.push((key, scanner.word(Until::Space)?));
        } else if pairs.is_empty() && scanner.more() {
            let value = scanner.word(Until::EndOfLine)?;
            return Ok(vec![(key, value)]);
        } else {
            return Err(ParseError::new(line, format!("{instruction} has a name without a value"))
                .hint(format!("write {instruction} NAME=value, with quotes around spaces")));
        }
    }
    Ok(pairs)
}

/// `K`, `K=V`: the declarations of ARG.
pub(super) fn declarations(line: usize, escape: char, text: &str) -> Result<Vec<(Text, Option<Text>)>, ParseError> {
    let mut scanner = Scanner::new(line, escape, text);
    let mut found = Vec::new();
    while scanner.more() {
        let key = scanner.word(Until::SpaceOrEquals)?;
        let value = match scanner.rest.next_if_eq(&'=') {
            Some(_) => Some(scanner.word(Until::Space)?),
            None => None,
        };
        found.push((key, value));
    }
    Ok(found)
}
