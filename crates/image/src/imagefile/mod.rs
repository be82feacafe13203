//! `Imagefile` and `Dockerfile`: the same syntax, Docker's.
//!
//! | instruction | forms |
//! | --- | --- |
//! | `FROM` | `[--platform=…] base [AS name]`: `debootstrap:bookworm` and other suites, `scratch`, a local image's name, or an earlier stage |
//! | `ARG` | `NAME` or `NAME=default`, several; before the first FROM for all FROMs |
//! | `RUN` | `[--mount=…] [--network=…]` and a command line for the SHELL, `["program", "argument"]`, or here-documents |
//! | `COPY`, `ADD` | `[--from=…] [--chown=…] [--chmod=octal] [--exclude=…] source… destination`, a JSON array, or here-documents |
//! | `ENV`, `LABEL` | `K=V K2="a b"` or `K the rest of the line` |
//! | `ADD` | also addresses of the web as sources, and `--checksum=sha256:…` |
//! | `WORKDIR`, `USER`, `STOPSIGNAL` | one path; one user; one signal |
//! | `ENTRYPOINT`, `CMD`, `SHELL`, `HEALTHCHECK` | as in Docker |
//! | `EXPOSE`, `VOLUME` | one or several |
//!
//! Instruction words may be in any case. A line that ends in `\` continues in the next. Lines that start with `#` are comments,
//! also between continued lines. `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+text}` stand for variables of ENV and ARG; an
//! unset one is empty. RUN's text is left to its shell.
//!
//! Everything else is refused with its line, never skipped.

mod flags;
mod heredoc;
mod instructions;
mod lines;
mod mounts;
mod stages;
mod words;

use std::path::Path;
use std::str::FromStr;

use arenite_model::ImageName;
use thiserror::Error;

use self::lines::{Logical, logical_lines};
pub use self::mounts::{Mount, MountKind};
pub use self::stages::{Plan, StageSource};
pub use self::words::Text;

/// Maximum size of a file, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Maximum size of one instruction with its continued lines and without here-documents, in bytes.
pub const MAX_INSTRUCTION_BYTES: usize = 64 << 10;
/// Maximum number of instructions in a file.
pub const MAX_STEPS: usize = 500;
/// Maximum number of stages in a file.
pub const MAX_STAGES: usize = 100;

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imagefile {
    /// ARGs before the first FROM.
    pub arguments: Vec<Argument>,
    /// At least one.
    pub stages: Vec<Stage>,
}

/// A FROM and the instructions after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// In lower case.
    pub name: Option<String>,
    pub from: Text,
    pub platform: Option<Text>,
    /// FROM's text and line.
    pub source: Source,
    pub steps: Vec<Step>,
}

/// A declaration of ARG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub line: usize,
    pub name: String,
    pub default: Option<Text>,
}

/// The base of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A fresh Debian.
    Debootstrap(Suite),
    /// A local image.
    Image(ImageName),
    /// No files.
    Scratch,
    /// An earlier stage's index.
    Stage(usize),
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
    Run(Run),
    Copy(CopyStep),
    Env(Vec<(String, Text)>),
    Arg(Vec<Argument>),
    Label(Vec<(Text, Text)>),
    Workdir(Text),
    User(Text),
    Shell(Vec<String>),
    Entrypoint(Command),
    Cmd(Command),
    Expose(Vec<Text>),
    Volume(Vec<Text>),
    StopSignal(Text),
    /// None for `HEALTHCHECK NONE`.
    Healthcheck(Option<Healthcheck>),
    /// MAINTAINER, which has no effect.
    Maintainer,
}

/// A command in one of its two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The argument vector.
    Exec(Vec<String>),
    /// An argument of the stage's SHELL.
    Shell(String),
}

/// A RUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub command: Command,
    /// A here-document that starts with `#!`: the command is this file.
    pub script: Option<String>,
    pub mounts: Vec<Mount>,
    /// `--network=none`.
    pub is_offline: bool,
}

/// A HEALTHCHECK with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healthcheck {
    pub command: Command,
    pub interval: Option<std::time::Duration>,
    pub timeout: Option<std::time::Duration>,
    pub start_period: Option<std::time::Duration>,
    pub start_interval: Option<std::time::Duration>,
    pub retries: Option<u32>,
}

/// A COPY or ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStep {
    /// At least one.
    pub sources: Vec<CopySource>,
    pub destination: Text,
    /// A stage's name or index, or an image; the context if it is missing.
    pub from: Option<String>,
    /// `user` or `user:group`.
    pub chown: Option<Text>,
    /// Octal permission bits, set-id and sticky bits included.
    pub chmod: Option<Text>,
    /// Patterns of paths below the sources that are not copied.
    pub exclude: Vec<Text>,
    /// ADD: archives are unpacked.
    pub is_add: bool,
    /// Of the only source, which is an address: `sha256:…`.
    pub checksum: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySource {
    Path(Text),
    /// A here-document.
    Inline {
        name: String,
        content: Text,
    },
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
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
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
        let mut file = Self { arguments: Vec::new(), stages: Vec::new() };
        for (index, logical) in logical_lines(text)?.into_iter().enumerate() {
            if index >= MAX_STEPS {
                return Err(ParseError::new(logical.line, format!("there are more than {MAX_STEPS} instructions")));
            }
            file.add(&logical)?;
        }
        if file.stages.is_empty() {
            return Err(ParseError::new(1, "there is no FROM").hint("start with: FROM debootstrap:bookworm"));
        }
        Ok(file)
    }

    fn add(&mut self, logical: &Logical) -> Result<(), ParseError> {
        let line = logical.line;
        if logical.word.eq_ignore_ascii_case("FROM") {
            let stage = instructions::from(logical)?;
            if self.stages.len() == MAX_STAGES {
                return Err(ParseError::new(line, format!("there are more than {MAX_STAGES} stages")));
            }
            if let Some(name) = stage.name.as_deref().filter(|name| self.stage_named(name).is_some()) {
                return Err(ParseError::new(line, format!("there is a stage {name:?} already")));
            }
            if let Some(name) = stage.from.literal() {
                self.base(line, &name, self.stages.len())?;
            }
            self.stages.push(stage);
            return Ok(());
        }
        let Some(stage) = self.stages.last_mut() else {
            if logical.word.eq_ignore_ascii_case("ARG") {
                self.arguments.extend(instructions::arguments(logical)?);
                return Ok(());
            }
            return Err(
                ParseError::new(line, "the first instruction must be FROM or ARG").hint("start with: FROM debootstrap:bookworm")
            );
        };
        let instruction = instructions::instruction(logical)?;
        stage.steps.push(Step { source: logical.source(), instruction });
        Ok(())
    }

    /// The stage of a name in any case.
    fn stage_named(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|stage| stage.name.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name)))
    }

    /// The base that FROM names in the stage `index`.
    fn base(&self, line: usize, name: &str, index: usize) -> Result<Base, ParseError> {
        if let Some(stage) = self.stage_named(name).filter(|stage| *stage < index) {
            return Ok(Base::Stage(stage));
        }
        if name == "scratch" {
            return Ok(Base::Scratch);
        }
        if let Some(suite) = name.strip_prefix("debootstrap:") {
            return Suite::ALL.into_iter().find(|s| s.as_str() == suite).map(Base::Debootstrap).ok_or_else(|| {
                let known: Vec<_> = Suite::ALL.iter().map(|s| s.as_str()).collect();
                ParseError::new(line, format!("no Debian suite {suite:?} is supported"))
                    .hint(format!("use one of: {}", known.join(", ")))
            });
        }
        if name.is_empty() {
            return Err(
                ParseError::new(line, "FROM names no base").hint("set its variable with ARG before FROM, or with --build-arg")
            );
        }
        image_name(line, name).map(Base::Image)
    }
}

fn image_name(line: usize, name: &str) -> Result<ImageName, ParseError> {
    name.parse().map_err(|e: arenite_model::IdError| {
        ParseError::new(line, e.to_string()).hint("name debootstrap:SUITE, scratch, an earlier stage or a local image")
    })
}

impl FromStr for Imagefile {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text.as_bytes())
    }
}

impl Chown {
    /// Parses `user` or `user:group`.
    pub fn parse(line: usize, owner: &str) -> Result<Self, ParseError> {
        let (user, group) = match owner.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (owner, None),
        };
        if is_account(user) && group.is_none_or(is_account) {
            return Ok(Self { user: user.to_owned(), group: group.map(str::to_owned) });
        }
        Err(ParseError::new(line, format!("--chown={} is not valid", cut(owner)))
            .hint("give user or user:group, each a name or a number"))
    }
}

/// Parses the octal permissions of `--chmod`.
pub fn parse_mode(line: usize, mode: &str) -> Result<u32, ParseError> {
    let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o7777 && mode.len() <= 5 && !mode.starts_with('+'));
    bits.ok_or_else(|| {
        ParseError::new(line, format!("--chmod={} is not valid", cut(mode))).hint("give octal permissions, such as --chmod=755")
    })
}

/// Parses the digest of `--checksum`; returns its hexadecimal digits.
pub fn parse_checksum(line: usize, checksum: &str) -> Result<String, ParseError> {
    let hex = checksum.strip_prefix("sha256:").filter(|hex| crate::digest::is_digest(hex));
    hex.map(str::to_owned).ok_or_else(|| {
        ParseError::new(line, format!("--checksum={} is not valid", cut(checksum))).hint("give sha256: and 64 hexadecimal digits")
    })
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

fn is_variable_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a text can be a user's or a group's name or number.
pub fn is_account(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests;
