//! Flags of instructions: `--name` or `--name=value`.

use super::words::Text;
use super::{ParseError, cut};

/// One flag. The value may have quotes and variables.
#[derive(Debug)]
pub(super) struct Flag<'a> {
    pub(super) name: &'a str,
    pub(super) value: Option<&'a str>,
}

impl Flag<'_> {
    pub(super) fn text(&self, line: usize, escape: char) -> Result<Text, ParseError> {
        let value = self.value.filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| ParseError::new(line, format!("--{} has no value", cut(self.name))))?;
        super::words::rest_of_line(line, escape, value)
    }

    /// A value that takes no variables.
    pub(super) fn plain(&self, line: usize, escape: char) -> Result<String, ParseError> {
        self.text(line, escape)?.literal().filter(|text| !text.is_empty()).ok_or_else(|| {
            ParseError::new(line, format!("not supported: variables in --{}", cut(self.name))).hint("write the value itself")
        })
    }

    /// A flag without a value, or with `true` or `false`.
    pub(super) fn is_set(&self, line: usize) -> Result<bool, ParseError> {
        match self.value {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(ParseError::new(line, format!("--{}={} is not valid", cut(self.name), cut(other)))),
        }
    }
}

/// Splits the flags off the start of an instruction's text. White space ends a flag, unless it is quoted.
pub(super) fn split_flags(text: &str) -> (Vec<Flag<'_>>, &str) {
    let mut flags = Vec::new();
    let mut rest = text;
    while let Some(after) = rest.strip_prefix("--") {
        let end = end_of_word(after);
        let (flag, tail) = after.split_at(end);
        rest = tail.trim_start();
        if flag.is_empty() {
            // `--` alone ends the flags.
            break;
        }
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        flags.push(Flag { name, value });
    }
    (flags, rest)
}

fn end_of_word(text: &str) -> usize {
    let mut quote = None;
    for (index, c) in text.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => return index,
            None => {}
        }
    }
    text.len()
}
