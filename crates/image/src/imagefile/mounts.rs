//! `RUN --mount=type=…`.

use super::words::{Text, rest_of_line};
use super::{ParseError, cut, parse_mode};

/// Maximum number of mounts of one RUN.
pub(super) const MAX_MOUNTS: usize = 32;

/// A directory or file that only this RUN sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub kind: MountKind,
    /// Relative to WORKDIR; missing only for a secret, which then has its usual place.
    pub target: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// Files of the context, a stage, or an image. What the step writes there is discarded.
    Bind { from: Option<String>, source: Text, is_writable: bool },
    /// A directory that stays for later builds.
    Cache { id: Option<Text>, mode: u32, owner: (u32, u32), is_writable: bool },
    /// An empty directory in memory.
    Tmpfs { bytes: Option<u64> },
    /// A value of `--secret`, as a file or a variable.
    Secret { id: Option<String>, variable: Option<String>, is_required: bool, mode: u32, owner: (u32, u32) },
}

impl MountKind {
    /// The stage or image of a bind.
    pub(crate) fn from(&self) -> Option<&String> {
        match self {
            Self::Bind { from, .. } => from.as_ref(),
            _ => None,
        }
    }
}

/// The options of one mount, each with its value.
struct Options<'a> {
    line: usize,
    escape: char,
    pairs: Vec<(String, Option<&'a str>)>,
}

impl Options<'_> {
    /// Takes an option that has one of these names.
    fn take(&mut self, names: &[&str]) -> Option<(String, Option<&str>)> {
        let at = self.pairs.iter().position(|(name, _)| names.contains(&name.as_str()))?;
        let (name, value) = self.pairs.remove(at);
        Some((name, value))
    }

    fn value(&mut self, names: &[&str]) -> Result<Option<&str>, ParseError> {
        let line = self.line;
        match self.take(names) {
            None => Ok(None),
            Some((_, Some(value))) if !value.is_empty() => Ok(Some(value)),
            Some((name, _)) => Err(ParseError::new(line, format!("--mount: {name} has no value"))),
        }
    }

    fn text(&mut self, names: &[&str]) -> Result<Option<Text>, ParseError> {
        let (line, escape) = (self.line, self.escape);
        self.value(names)?.map(|value| rest_of_line(line, escape, value)).transpose()
    }

    fn number(&mut self, name: &str, default: u32) -> Result<u32, ParseError> {
        let line = self.line;
        let Some(value) = self.value(&[name])? else { return Ok(default) };
        let number = value.parse().ok().filter(|id| *id < 65_536);
        number.ok_or_else(|| ParseError::new(line, format!("--mount: {name}={} is not valid", cut(value))))
    }

    fn mode(&mut self, default: u32) -> Result<u32, ParseError> {
        let line = self.line;
        self.value(&["mode"])?.map_or(Ok(default), |value| parse_mode(line, value.strip_prefix("0o").unwrap_or(value)))
    }

    fn flag(&mut self, names: &[&str]) -> Result<Option<bool>, ParseError> {
        let line = self.line;
        match self.take(names) {
            None => Ok(None),
            Some((_, None | Some("true" | "1"))) => Ok(Some(true)),
            Some((_, Some("false" | "0"))) => Ok(Some(false)),
            Some((name, Some(value))) => Err(ParseError::new(line, format!("--mount: {name}={} is not valid", cut(value)))),
        }
    }

    /// Whether the step may write to the mount.
    fn is_writable(&mut self, default: bool) -> Result<bool, ParseError> {
        if let Some(writable) = self.flag(&["rw", "readwrite"])? {
            return Ok(writable);
        }
        Ok(self.flag(&["ro", "readonly"])?.map_or(default, |read_only| !read_only))
    }
}

/// Parses the value of `--mount`.
pub(super) fn parse(line: usize, escape: char, value: &str) -> Result<Mount, ParseError> {
    let mut pairs: Vec<(String, Option<&str>)> = Vec::new();
    for field in value.split(',') {
        let field = field.trim_matches('"');
        let (name, value) = field.split_once('=').map_or((field, None), |(name, value)| (name, Some(value)));
        let name = name.to_ascii_lowercase();
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(ParseError::new(line, format!("--mount: {:?} is given twice", cut(&name))));
        }
        pairs.push((name, value));
    }
    let mut options = Options { line, escape, pairs };
    let kind = options.value(&["type"])?.unwrap_or("bind").to_owned();
    let target = options.text(&["target", "dst", "destination"])?;
    let kind = match kind.as_str() {
        "bind" => MountKind::Bind {
            from: options.value(&["from"])?.map(str::to_owned),
            source: options.text(&["source", "src"])?.unwrap_or_else(|| Text::from_literal("/")),
            is_writable: options.is_writable(false)?,
        },
        "cache" => {
            if let Some(sharing) = options.value(&["sharing"])?
                && !matches!(sharing, "shared" | "private" | "locked")
            {
                return Err(ParseError::new(line, format!("--mount: sharing={} is not valid", cut(sharing))));
            }
            MountKind::Cache {
                id: options.text(&["id"])?,
                is_writable: options.is_writable(true)?,
                mode: options.mode(0o755)?,
                owner: (options.number("uid", 0)?, options.number("gid", 0)?),
            }
        }
        "tmpfs" => {
            let size = options.value(&["size"])?;
            let bytes = size.map(|size| {
                parse_size(size).ok_or_else(|| ParseError::new(line, format!("--mount: size={} is not valid", cut(size))))
            });
            MountKind::Tmpfs { bytes: bytes.transpose()? }
        }
        "secret" => MountKind::Secret {
            id: options.value(&["id"])?.map(str::to_owned),
            variable: options.value(&["env"])?.map(str::to_owned),
            is_required: options.flag(&["required"])?.unwrap_or(false),
            mode: options.mode(0o400)?,
            owner: (options.number("uid", 0)?, options.number("gid", 0)?),
        },
        other => {
            return Err(ParseError::new(line, format!("not supported: --mount=type={}", cut(other)))
                .hint("known are the types bind, cache, tmpfs and secret; pass keys of SSH as secrets"));
        }
    };
    if let Some((name, _)) = options.pairs.first() {
        return Err(ParseError::new(line, format!("not supported: --mount's option {:?} for this type", cut(name))));
    }
    if target.is_none() && !matches!(kind, MountKind::Secret { .. }) {
        return Err(ParseError::new(line, "--mount has no target").hint("name the directory in the image: target=/path"));
    }
    if let MountKind::Secret { id: None, .. } = kind
        && target.is_none()
    {
        return Err(ParseError::new(line, "--mount=type=secret has no id").hint("write id=NAME, as in --secret id=NAME,src=FILE"));
    }
    Ok(Mount { kind, target })
}

/// Parses `100`, `64k`, `10m`, `1g`, as Docker does: with or without a `b` at the end.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}
