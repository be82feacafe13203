//! Joins physical lines into instructions.

use super::{MAX_INSTRUCTION_BYTES, ParseError, Source};

/// One instruction: its first word and the rest, with continued lines joined.
#[derive(Debug)]
pub(super) struct Logical {
    /// The line it starts on, from 1.
    pub(super) line: usize,
    pub(super) word: String,
    /// Without white space at either end.
    pub(super) rest: String,
}

impl Logical {
    pub(super) fn source(&self) -> Source {
        Source { line: self.line, text: format!("{} {}", self.word.to_ascii_uppercase(), self.rest) }
    }
}

/// Splits a file into instructions, without a byte order mark, CR before LF, comments and empty lines.
pub(super) fn logical_lines(text: &str) -> Result<Vec<Logical>, ParseError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut in_directives = true;
    for (index, raw) in text.split('\n').enumerate() {
        let number = index + 1;
        let line = raw.strip_suffix('\r').unwrap_or(raw);
        if let Some(bad) = line.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(ParseError::new(number, format!("the line holds the control character {bad:?}")));
        }
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix('#') {
            if in_directives {
                in_directives = check_directive(number, comment)?;
            }
            continue;
        }
        in_directives = false;
        if trimmed.is_empty() {
            continue;
        }
        let (part, goes_on) = match line.trim_end().strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        let (start, mut joined) = open.take().unwrap_or((number, String::new()));
        joined.push_str(part);
        if joined.len() > MAX_INSTRUCTION_BYTES {
            return Err(ParseError::new(start, format!("the instruction is longer than {MAX_INSTRUCTION_BYTES} bytes")));
        }
        if goes_on {
            open = Some((start, joined));
        } else {
            found.push(logical(start, &joined));
        }
    }
    if let Some((start, _)) = open {
        return Err(ParseError::new(start, "the instruction ends in \\ and nothing follows"));
    }
    Ok(found)
}

fn logical(line: usize, joined: &str) -> Logical {
    let joined = joined.trim();
    let (word, rest) = joined.split_once(char::is_whitespace).unwrap_or((joined, ""));
    Logical { line, word: word.to_owned(), rest: rest.trim().to_owned() }
}

/// Dockerfiles may start with comments that change how the file is read. Returns whether this was one of those.
fn check_directive(line: usize, comment: &str) -> Result<bool, ParseError> {
    let Some((key, value)) = comment.split_once('=') else {
        return Ok(false);
    };
    match key.trim().to_ascii_lowercase().as_str() {
        "escape" if value.trim() != "\\" => Err(ParseError::new(line, "not supported: an escape character other than \\")),
        "escape" | "syntax" | "check" => Ok(true),
        _ => Ok(false),
    }
}
