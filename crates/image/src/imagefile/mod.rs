//! `Imagefile`: a subset of Dockerfile syntax.
//!
//! | instruction | forms |
//! | --- | --- |
//! | `FROM` | `debootstrap:bullseye`, `debootstrap:bookworm`, `debootstrap:trixie` or a local image's name; exactly one, first |
//! | `RUN` | `RUN command line` (given to `/bin/sh -c`) or `RUN ["program", "argument"]` |
//! | `COPY` | `COPY [--chown=user[:group]] [--chmod=octal] source… destination` or the same as a JSON array |
//! | `ENV`, `LABEL` | `K=V K2="a b"` or `K the rest of the line` |
//! | `WORKDIR`, `USER` | one path; one name or number of the image's `/etc/passwd` |
//!
//! Instruction words may be in any case. A line that ends in `\` continues in the next. Lines that start with `#` are comments,
//! also between continued lines. In ENV, LABEL, WORKDIR and COPY, `$NAME` and `${NAME}` stand for a variable that an earlier
//! ENV of this file or of the image below has set; an unknown name is an error. RUN's text is left to its shell.
//!
//! Everything else is refused with its line, never skipped.

mod lines;
mod words;

use std::path::Path;
use std::str::FromStr;

use arenite_model::ImageName;
use thiserror::Error;

use self::lines::{Logical, logical_lines};
pub use self::words::Text;
use self::words::{pairs, rest_of_line, split_words};

/// Maximum size of a file, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Maximum size of one instruction with its continued lines, in bytes.
pub const MAX_INSTRUCTION_BYTES: usize = 64 << 10;
/// Maximum number of instructions in a file.
pub const MAX_STEPS: usize = 500;

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imagefile {
    pub from: Base,
    /// FROM's text and line.
    pub from_source: Source,
    pub steps: Vec<Step>,
}

/// The base of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A fresh Debian.
    Debootstrap(Suite),
    /// A local image.
    Image(ImageName),
}

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    Bullseye,
    Bookworm,
    Trixie,
}

impl Suite {
    pub const ALL: [Self; 3] = [Self::Bullseye, Self::Bookworm, Self::Trixie];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// The position of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The line it starts on, from 1.
    pub line: usize,
    /// The instruction on one line, for progress.
    pub text: String,
}

/// One instruction after FROM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub source: Source,
    pub instruction: Instruction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// The argument vector: the shell form is already `/bin/sh -c …`.
    Run(Vec<String>),
    Copy(CopyStep),
    Env(Vec<(String, Text)>),
    Label(Vec<(Text, Text)>),
    Workdir(Text),
    User(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStep {
    /// At least one.
    pub sources: Vec<Text>,
    pub destination: Text,
    pub chown: Option<Chown>,
    /// Permission bits, set-id and sticky bits included.
    pub chmod: Option<u32>,
}

/// Names or numbers, resolved in the image when the step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chown {
    pub user: String,
    pub group: Option<String>,
}

/// Why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// From 1.
    pub line: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl ParseError {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Imagefile {
    /// Reads a file from disk, at most [`MAX_FILE_BYTES`] of it.
    pub fn read(path: &Path) -> Result<Self, crate::ImageError> {
        use std::io::Read;
        let failed = || crate::ImageError::io("could not read", path);
        let file = std::fs::File::open(path).map_err(failed())?;
        let mut bytes = Vec::new();
        // One byte past the limit distinguishes a file at the limit from a longer one.
        file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed())?;
        Ok(Self::parse(&bytes)?)
    }

    /// Parses a file's bytes; an error names the line.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(ParseError::new(1, format!("the file is longer than {MAX_FILE_BYTES} bytes")));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = 1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
            ParseError::new(line, "this is not UTF-8 text")
        })?;
        let mut lines = logical_lines(text)?.into_iter();
        let first =
            lines.next().ok_or_else(|| ParseError::new(1, "there is no FROM").hint("start with: FROM debootstrap:bookworm"))?;
        if !first.word.eq_ignore_ascii_case("FROM") {
            return Err(
                ParseError::new(first.line, "the first instruction must be FROM").hint("start with: FROM debootstrap:bookworm")
            );
        }
        let from = base(&first)?;
        let mut steps = Vec::new();
        for logical in lines {
            if steps.len() + 1 >= MAX_STEPS {
                return Err(ParseError::new(logical.line, format!("there are more than {MAX_STEPS} instructions")));
            }
            let instruction = instruction(&logical)?;
            steps.push(Step { source: logical.source(), instruction });
        }
        Ok(Self { from, from_source: first.source(), steps })
    }
}

impl FromStr for Imagefile {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text.as_bytes())
    }
}

fn base(logical: &Logical) -> Result<Base, ParseError> {
    let line = logical.line;
    let words: Vec<&str> = logical.rest.split_whitespace().collect();
    let name = match words[..] {
        [name] if !name.starts_with("--") => name,
        [] => {
            return Err(ParseError::new(line, "FROM names no base").hint("use debootstrap:bookworm or a local image's name"));
        }
        [flag, ..] if flag.starts_with("--") => {
            return Err(ParseError::new(line, format!("not supported: FROM's flag {flag:?}")));
        }
        [_, "as" | "AS" | "As", ..] => {
            return Err(ParseError::new(line, "not supported: several build stages (FROM … AS …)")
                .hint("build the other stage as an image of its own"));
        }
        _ => return Err(ParseError::new(line, "FROM takes one base")),
    };
    if let Some(suite) = name.strip_prefix("debootstrap:") {
        return Suite::ALL.into_iter().find(|s| s.as_str() == suite).map(Base::Debootstrap).ok_or_else(|| {
            let known: Vec<_> = Suite::ALL.iter().map(|s| s.as_str()).collect();
            ParseError::new(line, format!("no Debian suite {suite:?} is supported"))
                .hint(format!("use one of: {}", known.join(", ")))
        });
    }
    if name.contains('$') {
        return Err(ParseError::new(line, "not supported: variables in FROM"));
    }
    name.parse().map(Base::Image).map_err(|e: arenite_model::IdError| {
        ParseError::new(line, e.to_string()).hint("FROM takes debootstrap:SUITE or a local image; registries are not supported")
    })
}

fn instruction(logical: &Logical) -> Result<Instruction, ParseError> {
    let line = logical.line;
    let rest = logical.rest.as_str();
    let word = logical.word.to_ascii_uppercase();
    if rest.is_empty() && matches!(&*word, "RUN" | "COPY" | "ENV" | "LABEL" | "WORKDIR" | "USER") {
        return Err(ParseError::new(line, format!("{word} is empty")));
    }
    match &*word {
        "RUN" => run(line, rest),
        "COPY" => copy(line, rest),
        "ENV" => {
            let pairs = pairs(line, "ENV", rest)?;
            let mut env = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                let key = key.literal().filter(|k| is_variable_name(k)).ok_or_else(|| {
                    ParseError::new(line, "ENV's name is not valid")
                        .hint("a variable's name is a letter or _ and then letters, digits or _")
                })?;
                env.push((key, value));
            }
            Ok(Instruction::Env(env))
        }
        "LABEL" => Ok(Instruction::Label(pairs(line, "LABEL", rest)?)),
        "WORKDIR" => Ok(Instruction::Workdir(rest_of_line(line, rest)?)),
        "USER" => user(line, rest),
        "FROM" => Err(ParseError::new(line, "not supported: a second FROM").hint("build the other stage as an image of its own")),
        "ADD" => Err(unsupported(line, "ADD", "use COPY; unpack and download with RUN")),
        "ARG" => Err(unsupported(line, "ARG", "use ENV, or write the value where it is used")),
        "ENTRYPOINT" | "CMD" => {
            Err(unsupported(line, &word, "a sandbox runs its guest; give its main command when you create it"))
        }
        "EXPOSE" => Err(unsupported(line, "EXPOSE", "give a sandbox's ports when you create it")),
        "VOLUME" => Err(unsupported(line, "VOLUME", "a sandbox has one disk; make the directory with RUN mkdir")),
        "SHELL" => Err(unsupported(line, "SHELL", "write RUN [\"/bin/bash\", \"-c\", \"…\"]")),
        "MAINTAINER" => Err(unsupported(line, "MAINTAINER", "use LABEL maintainer=\"…\"")),
        "HEALTHCHECK" | "ONBUILD" | "STOPSIGNAL" => Err(unsupported(line, &word, "leave it out")),
        _ => Err(ParseError::new(line, format!("unknown instruction {:?}", cut(&logical.word)))
            .hint("known are: FROM, RUN, COPY, ENV, WORKDIR, USER, LABEL")),
    }
}

fn unsupported(line: usize, word: &str, hint: &str) -> ParseError {
    ParseError::new(line, format!("not supported: {word}")).hint(hint)
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

fn is_variable_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn run(line: usize, rest: &str) -> Result<Instruction, ParseError> {
    if rest.starts_with("--") {
        return Err(ParseError::new(
            line,
            format!("not supported: RUN's flag {:?}", cut(rest.split_whitespace().next().unwrap_or(rest))),
        ));
    }
    if let Some(argv) = json_array(line, "RUN", rest)? {
        if argv[0].is_empty() {
            return Err(ParseError::new(line, "RUN's program is empty"));
        }
        return Ok(Instruction::Run(argv));
    }
    if opens_here_document(rest) {
        return Err(ParseError::new(line, "not supported: here-documents").hint("COPY a script and run it, or use printf"));
    }
    Ok(Instruction::Run(vec!["/bin/sh".to_owned(), "-c".to_owned(), rest.to_owned()]))
}

/// Whether a word of the shell's text starts with `<<` and a delimiter. Its lines would be read as instructions.
fn opens_here_document(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        word.trim_start_matches(|c: char| c.is_ascii_digit())
            .strip_prefix("<<")
            .map(|d| d.strip_prefix('-').unwrap_or(d))
            .map(|d| d.trim_start_matches(['"', '\'']))
            .is_some_and(|d| d.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
    })
}

/// Parses the JSON form, if the text is one. A text that only starts like one is the shell's, such as `[ -e x ]`.
fn json_array(line: usize, word: &str, rest: &str) -> Result<Option<Vec<String>>, ParseError> {
    if !rest.starts_with('[') {
        return Ok(None);
    }
    match serde_json::from_str::<Vec<String>>(rest) {
        Ok(words) if words.is_empty() => Err(ParseError::new(line, format!("{word}'s array is empty"))),
        Ok(words) if words.iter().any(|w| w.contains('\0')) => {
            Err(ParseError::new(line, format!("{word}'s array holds a NUL byte")))
        }
        Ok(words) => Ok(Some(words)),
        // `["` can't start a useful command, so this is an array with a mistake in it.
        Err(e) if rest[1..].trim_start().starts_with('"') => {
            Err(ParseError::new(line, format!("{word}'s array is not valid JSON: {e}"))
                .hint("it takes strings in double quotes, with commas between them"))
        }
        Err(_) => Ok(None),
    }
}

fn copy(line: usize, rest: &str) -> Result<Instruction, ParseError> {
    let mut rest = rest;
    let (mut chown, mut chmod) = (None, None);
    while rest.starts_with("--") {
        let (flag, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        match flag.split_once('=') {
            Some(("--chown", owner)) if chown.is_none() => chown = Some(parse_chown(line, owner)?),
            Some(("--chmod", mode)) if chmod.is_none() => {
                let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o7777 && mode.len() <= 5);
                chmod = Some(bits.ok_or_else(|| {
                    ParseError::new(line, format!("--chmod={} is not valid", cut(mode)))
                        .hint("give octal permissions, such as --chmod=755")
                })?);
            }
            Some(("--chown" | "--chmod", _)) => {
                return Err(ParseError::new(line, format!("{:?} is given twice", cut(flag))));
            }
            _ => {
                return Err(ParseError::new(line, format!("not supported: COPY's flag {:?}", cut(flag)))
                    .hint("known are: --chown=user[:group] and --chmod=octal"));
            }
        }
    }
    let mut words = match json_array(line, "COPY", rest)? {
        Some(words) => words.into_iter().map(Text::from_literal).collect(),
        None => split_words(line, rest)?,
    };
    if words.len() < 2 {
        return Err(ParseError::new(line, "COPY takes at least one source and a destination"));
    }
    let destination = words.pop().expect("two words were counted");
    if words.iter().any(|w| w.starts_with("<<")) {
        return Err(ParseError::new(line, "not supported: here-documents").hint("put the text into a file of the context"));
    }
    Ok(Instruction::Copy(CopyStep { sources: words, destination, chown, chmod }))
}

fn parse_chown(line: usize, owner: &str) -> Result<Chown, ParseError> {
    let (user, group) = match owner.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (owner, None),
    };
    if is_account(user) && group.is_none_or(is_account) {
        return Ok(Chown { user: user.to_owned(), group: group.map(str::to_owned) });
    }
    Err(ParseError::new(line, format!("--chown={} is not valid", cut(owner)))
        .hint("give user or user:group, each a name or a number"))
}

fn is_account(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn user(line: usize, rest: &str) -> Result<Instruction, ParseError> {
    if is_account(rest) {
        return Ok(Instruction::User(rest.to_owned()));
    }
    let error = ParseError::new(line, format!("USER {:?} is not valid", cut(rest)));
    Err(if rest.contains(':') {
        error.hint("give the user alone; its groups are those of the image's /etc/group")
    } else {
        error.hint("give one name or number of the image's /etc/passwd")
    })
}

#[cfg(test)]
mod tests;
