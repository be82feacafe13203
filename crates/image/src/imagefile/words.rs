//! Words of an instruction: quotes, escapes and variables.

use std::collections::BTreeMap;

use super::{ParseError, is_variable_name};

/// A word with resolved quotes and unresolved variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable(String),
}

impl Text {
    /// Text without variables, even if it has a `$`.
    pub fn from_literal(text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Literal(text.into())] }
    }

    /// Inserts the variables' values; an unset variable's name is the error.
    pub fn expand(&self, env: &BTreeMap<String, String>) -> Result<String, String> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Variable(name) => out.push_str(env.get(name).ok_or_else(|| name.clone())?),
            }
        }
        Ok(out)
    }

    /// The text, if it has no variable.
    pub fn literal(&self) -> Option<String> {
        match &self.parts[..] {
            [] => Some(String::new()),
            [Part::Literal(text)] => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn starts_with(&self, prefix: &str) -> bool {
        matches!(self.parts.first(), Some(Part::Literal(text)) if text.starts_with(prefix))
    }

    fn push(&mut self, c: char) {
        match self.parts.last_mut() {
            Some(Part::Literal(text)) => text.push(c),
            _ => self.parts.push(Part::Literal(c.to_string())),
        }
    }
}

/// Splits a line into words.
struct Scanner<'a> {
    line: usize,
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

/// The end of a word outside quotes.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    Space,
    SpaceOrEquals,
    EndOfLine,
}

impl<'a> Scanner<'a> {
    fn new(line: usize, text: &'a str) -> Self {
        Self { line, rest: text.chars().peekable() }
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
                Until::EndOfLine => false,
            };
            if quote.is_none() && ends {
                break;
            }
            self.rest.next();
            match (quote, c) {
                (Some(q), _) if c == q => quote = None,
                (Some('\''), _) => text.push(c),
                (None, '\'' | '"') => {
                    quote = Some(c);
                    // An empty pair of quotes is a word too.
                    if text.parts.is_empty() {
                        text.parts.push(Part::Literal(String::new()));
                    }
                }
                (_, '$') => self.variable(&mut text)?,
                (Some(_), '\\') => match self.rest.next_if(|n| matches!(n, '"' | '\\' | '$')) {
                    Some(escaped) => text.push(escaped),
                    None => text.push('\\'),
                },
                (None, '\\') => match self.rest.next() {
                    Some(escaped) => text.push(escaped),
                    None => text.push('\\'),
                },
                _ => text.push(c),
            }
        }
        match quote {
            Some(q) => Err(ParseError::new(self.line, format!("the quote {q} is not closed"))),
            None => Ok(text),
        }
    }

    fn variable(&mut self, text: &mut Text) -> Result<(), ParseError> {
        let in_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let mut name = String::new();
        if self.rest.next_if_eq(&'{').is_some() {
            loop {
                match self.rest.next() {
                    Some('}') => break,
                    Some(c) => name.push(c),
                    None => {
                        return Err(ParseError::new(self.line, "the brace of ${ is not closed"));
                    }
                }
            }
            if !is_variable_name(&name) {
                return Err(ParseError::new(
                    self.line,
                    format!("not supported: ${{{}}}", name.chars().take(40).collect::<String>()),
                )
                .hint("write $NAME or ${NAME}, or \\$ for a dollar sign"));
            }
        } else if self.rest.peek().is_some_and(|c| c.is_ascii_alphabetic() || *c == '_') {
            while let Some(c) = self.rest.next_if(in_name) {
                name.push(c);
            }
        } else {
            text.push('$');
            return Ok(());
        }
        text.parts.push(Part::Variable(name));
        Ok(())
    }
}

/// All words of a line.
pub(super) fn split_words(line: usize, text: &str) -> Result<Vec<Text>, ParseError> {
    let mut scanner = Scanner::new(line, text);
    let mut words = Vec::new();
    while scanner.more() {
        words.push(scanner.word(Until::Space)?);
    }
    Ok(words)
}

/// The whole line as one word: spaces stay.
pub(super) fn rest_of_line(line: usize, text: &str) -> Result<Text, ParseError> {
    Scanner::new(line, text).word(Until::EndOfLine)
}

/// `K=V K2="a b"`, or `K the rest of the line`.
pub(super) fn pairs(line: usize, instruction: &str, text: &str) -> Result<Vec<(Text, Text)>, ParseError> {
    let mut scanner = Scanner::new(line, text);
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
