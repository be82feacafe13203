//! Joins physical lines into instructions.

use super::heredoc::{self, Heredoc};
use super::{MAX_INSTRUCTION_BYTES, ParseError, Source};

/// One instruction: its first word and the rest, with continued lines joined.
#[derive(Debug)]
pub(super) struct Logical {
    /// The line it starts on, from 1.
    pub(super) line: usize,
    pub(super) word: String,
    /// Without white space at either end.
    pub(super) rest: String,
    pub(super) heredocs: Vec<Heredoc>,
    /// The file's escape character.
    pub(super) escape: char,
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
    let mut directives = Directives { escape: '\\', are_open: true };
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).enumerate();
    while let Some((index, line)) = lines.next() {
        let number = index + 1;
        if let Some(bad) = line.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(ParseError::new(number, format!("the line holds the control character {bad:?}")));
        }
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix('#') {
            directives.read(number, comment)?;
            continue;
        }
        directives.are_open = false;
        if trimmed.is_empty() {
            continue;
        }
        let (part, goes_on) = match line.trim_end().strip_suffix(directives.escape) {
            // An escaped escape character ends no line.
            Some(part) if !part.ends_with(directives.escape) => (part, true),
            _ => (line, false),
        };
        let (start, mut joined) = open.take().unwrap_or((number, String::new()));
        joined.push_str(part);
        if joined.len() > MAX_INSTRUCTION_BYTES {
            return Err(ParseError::new(start, format!("the instruction is longer than {MAX_INSTRUCTION_BYTES} bytes")));
        }
        if goes_on {
            open = Some((start, joined));
            continue;
        }
        let mut logical = logical(start, &joined, directives.escape);
        if matches!(&*logical.word.to_ascii_uppercase(), "RUN" | "COPY" | "ADD") {
            logical.heredocs = heredoc::opened(start, &logical.rest)?;
        }
        for heredoc in &mut logical.heredocs {
            read_heredoc(start, heredoc, &mut lines)?;
        }
        found.push(logical);
    }
    if let Some((start, _)) = open {
        return Err(ParseError::new(start, format!("the instruction ends in {} and nothing follows", directives.escape)));
    }
    Ok(found)
}

fn read_heredoc<'a>(
    start: usize,
    heredoc: &mut Heredoc,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<(), ParseError> {
    for (index, line) in lines {
        if heredoc.ends_at(line) {
            return Ok(());
        }
        if line.contains('\0') {
            return Err(ParseError::new(index + 1, "the here-document holds a NUL byte"));
        }
        heredoc.content.push_str(line);
        heredoc.content.push('\n');
    }
    let name: String = heredoc.name.chars().take(40).collect();
    Err(ParseError::new(start, format!("the here-document {name:?} does not end"))
        .hint(format!("its last line is {name} alone, without spaces around it")))
}

fn logical(line: usize, joined: &str, escape: char) -> Logical {
    let joined = joined.trim();
    let (word, rest) = joined.split_once(char::is_whitespace).unwrap_or((joined, ""));
    Logical { line, word: word.to_owned(), rest: rest.trim().to_owned(), heredocs: Vec::new(), escape }
}

/// Comments at the start of the file that change how it is read.
struct Directives {
    escape: char,
    /// Only such comments came until now.
    are_open: bool,
}

impl Directives {
    fn read(&mut self, line: usize, comment: &str) -> Result<(), ParseError> {
        let pair = comment.split_once('=').filter(|_| self.are_open);
        let Some((key, value)) = pair.map(|(key, value)| (key.trim().to_ascii_lowercase(), value.trim())) else {
            self.are_open = false;
            return Ok(());
        };
        match (key.as_str(), value) {
            ("escape", "\\" | "`") => self.escape = value.chars().next().unwrap_or('\\'),
            ("escape", _) => {
                return Err(ParseError::new(line, "the escape character is neither \\ nor `")
                    .hint("write # escape=` or leave the line out"));
            }
            ("syntax" | "check", _) => {}
            _ => self.are_open = false,
        }
        Ok(())
    }
}
