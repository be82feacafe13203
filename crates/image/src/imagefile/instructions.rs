//! The instructions after their line was found.

use std::time::Duration;

use super::flags::{Flag, split_flags};
use super::heredoc::is_only_marker;
use super::lines::Logical;
use super::words::{Text, declarations, document, pairs, rest_of_line, split_words};
use super::{
    Argument, Chown, Command, CopySource, CopyStep, Healthcheck, Instruction, ParseError, Run, Stage, cut, is_account,
    is_variable_name, mounts, parse_checksum, parse_mode,
};

/// All instructions, for the hint of an unknown one.
const KNOWN: &str = "FROM, ARG, RUN, COPY, ADD, ENV, WORKDIR, USER, LABEL, SHELL, ENTRYPOINT, CMD, HEALTHCHECK, EXPOSE, VOLUME, \
                     STOPSIGNAL";
/// Instructions that take at least a word.
const NOT_EMPTY: [&str; 16] = [
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "LABEL",
    "WORKDIR",
    "USER",
    "ARG",
    "SHELL",
    "ENTRYPOINT",
    "CMD",
    "HEALTHCHECK",
    "EXPOSE",
    "VOLUME",
    "STOPSIGNAL",
    "MAINTAINER",
];

/// Parses FROM.
pub(super) fn from(logical: &Logical) -> Result<Stage, ParseError> {
    let line = logical.line;
    let (flags, rest) = split_flags(&logical.rest);
    let mut platform = None;
    for flag in &flags {
        match flag.name {
            "platform" if platform.is_none() => platform = Some(flag.text(line, logical.escape)?),
            other => return Err(ParseError::new(line, format!("not supported: FROM's flag {:?}", cut(&format!("--{other}"))))),
        }
    }
    let mut words = split_words(line, logical.escape, rest)?.into_iter();
    let name = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(from), None, ..) => (from, None),
        (Some(from), Some(word), Some(name), None) if word.literal().is_some_and(|word| word.eq_ignore_ascii_case("as")) => {
            (from, Some(name))
        }
        (None, ..) => {
            return Err(ParseError::new(line, "FROM names no base").hint("use debootstrap:bookworm or a local image's name"));
        }
        _ => return Err(ParseError::new(line, "FROM takes one base, and optionally AS and a name")),
    };
    let stage_name = match name.1 {
        None => None,
        Some(text) => {
            let shown = text.literal().unwrap_or_default().to_ascii_lowercase();
            let is_valid = shown.starts_with(|c: char| c.is_ascii_lowercase())
                && shown.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b))
                && shown != "scratch"
                && shown.len() <= 128;
            if !is_valid {
                return Err(ParseError::new(line, format!("the stage's name {:?} is not valid", cut(&shown)))
                    .hint("use letters, digits and . _ -, with a letter first"));
            }
            Some(shown)
        }
    };
    Ok(Stage { name: stage_name, from: name.0, platform, source: logical.source(), steps: Vec::new() })
}

/// Parses ARG.
pub(super) fn arguments(logical: &Logical) -> Result<Vec<Argument>, ParseError> {
    let line = logical.line;
    let mut found = Vec::new();
    for (name, default) in declarations(line, logical.escape, &logical.rest)? {
        found.push(Argument { line, name: variable_name(line, "ARG", &name)?, default });
    }
    if found.is_empty() {
        return Err(ParseError::new(line, "ARG is empty"));
    }
    Ok(found)
}

fn variable_name(line: usize, word: &str, name: &Text) -> Result<String, ParseError> {
    name.literal().filter(|name| is_variable_name(name)).ok_or_else(|| {
        ParseError::new(line, format!("{word}'s name is not valid"))
            .hint("a variable's name is a letter or _ and then letters, digits or _")
    })
}

/// Parses an instruction after FROM.
pub(super) fn instruction(logical: &Logical) -> Result<Instruction, ParseError> {
    let (line, escape) = (logical.line, logical.escape);
    let rest = logical.rest.as_str();
    let word = logical.word.to_ascii_uppercase();
    if rest.is_empty() && NOT_EMPTY.contains(&&*word) {
        return Err(ParseError::new(line, format!("{word} is empty")));
    }
    match &*word {
        "RUN" => run(logical),
        "COPY" => copy(logical, false),
        "ADD" => copy(logical, true),
        "ENV" => {
            let pairs = pairs(line, escape, "ENV", rest)?;
            let env = pairs.into_iter().map(|(key, value)| Ok((variable_name(line, "ENV", &key)?, value)));
            Ok(Instruction::Env(env.collect::<Result<_, ParseError>>()?))
        }
        "ARG" => Ok(Instruction::Arg(arguments(logical)?)),
        "LABEL" => Ok(Instruction::Label(pairs(line, escape, "LABEL", rest)?)),
        "WORKDIR" => Ok(Instruction::Workdir(rest_of_line(line, escape, rest)?)),
        "USER" => user(line, escape, rest),
        "SHELL" => match json_array(line, "SHELL", rest)? {
            Some(shell) if !shell[0].is_empty() => Ok(Instruction::Shell(shell)),
            _ => Err(ParseError::new(line, "SHELL takes a JSON array").hint("write SHELL [\"/bin/bash\", \"-c\"]")),
        },
        "ENTRYPOINT" => Ok(Instruction::Entrypoint(command(line, "ENTRYPOINT", rest)?)),
        "CMD" => Ok(Instruction::Cmd(command(line, "CMD", rest)?)),
        "EXPOSE" => Ok(Instruction::Expose(split_words(line, escape, rest)?)),
        "VOLUME" => Ok(Instruction::Volume(match json_array(line, "VOLUME", rest)? {
            Some(words) => words.iter().map(|word| rest_of_line(line, escape, word)).collect::<Result<_, _>>()?,
            None => split_words(line, escape, rest)?,
        })),
        "STOPSIGNAL" => match &split_words(line, escape, rest)?[..] {
            [signal] => Ok(Instruction::StopSignal(signal.clone())),
            _ => Err(ParseError::new(line, "STOPSIGNAL takes one signal").hint("write STOPSIGNAL SIGTERM")),
        },
        "HEALTHCHECK" => healthcheck(line, rest),
        "MAINTAINER" => Ok(Instruction::Maintainer),
        "ONBUILD" => Err(ParseError::new(line, "not supported: ONBUILD")
            .hint("write its instruction into the files that start FROM this image")),
        _ => {
            Err(ParseError::new(line, format!("unknown instruction {:?}", cut(&logical.word)))
                .hint(format!("known are: {KNOWN}")))
        }
    }
}

fn run(logical: &Logical) -> Result<Instruction, ParseError> {
    let (line, escape) = (logical.line, logical.escape);
    let (flags, rest) = split_flags(&logical.rest);
    let mut run = Run { command: Command::Exec(Vec::new()), script: None, mounts: Vec::new(), is_offline: false };
    for flag in &flags {
        match (flag.name, flag.value) {
            ("mount", Some(value)) if run.mounts.len() < mounts::MAX_MOUNTS => {
                run.mounts.push(mounts::parse(line, escape, value)?)
            }
            ("mount", Some(_)) => {
                return Err(ParseError::new(line, format!("RUN has more than {} mounts", mounts::MAX_MOUNTS)));
            }
            ("network", Some("none")) => run.is_offline = true,
            ("network", Some("default" | "host")) => run.is_offline = false,
            ("security", Some("sandbox")) => {}
            _ => return Err(unsupported_flag(line, "RUN", flag, "--mount=type=…, --network=none and --network=default")),
        }
    }
    if rest.is_empty() {
        return Err(ParseError::new(line, "RUN is empty"));
    }
    if let Some(argv) = json_array(line, "RUN", rest)? {
        if argv[0].is_empty() {
            return Err(ParseError::new(line, "RUN's program is empty"));
        }
        run.command = Command::Exec(argv);
        return Ok(Instruction::Run(run));
    }
    match &logical.heredocs[..] {
        [script] if is_only_marker(rest) => {
            let text = script.text();
            match interpreter(&text) {
                Some(argv) => {
                    run.command = Command::Exec(argv);
                    run.script = Some(text);
                }
                None => run.command = Command::Shell(text),
            }
        }
        heredocs => {
            // The shell reads the here-documents itself.
            let mut text = rest.to_owned();
            for heredoc in heredocs {
                text.push('\n');
                text.push_str(&heredoc.content);
                text.push_str(&heredoc.name);
            }
            run.command = Command::Shell(text);
        }
    }
    Ok(Instruction::Run(run))
}

/// The program of a script's first line with at most one argument, as the kernel reads it.
fn interpreter(script: &str) -> Option<Vec<String>> {
    let line = script.lines().next()?.strip_prefix("#!")?.trim();
    let (program, argument) = line.split_once(char::is_whitespace).map_or((line, ""), |(p, a)| (p, a.trim()));
    let argv: Vec<String> = [program, argument].into_iter().filter(|word| !word.is_empty()).map(str::to_owned).collect();
    (!argv.is_empty()).then_some(argv)
}

fn unsupported_flag(line: usize, word: &str, flag: &Flag<'_>, known: &str) -> ParseError {
    let shown = match flag.value {
        Some(value) => format!("--{}={value}", flag.name),
        None => format!("--{}", flag.name),
    };
    ParseError::new(line, format!("not supported: {word}'s flag {:?}", cut(&shown))).hint(format!("known are: {known}"))
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

/// Either form of a command that the build does not run. An empty array resets it.
fn command(line: usize, word: &str, rest: &str) -> Result<Command, ParseError> {
    if rest.starts_with('[') && rest[1..].trim_start() == "]" {
        return Ok(Command::Exec(Vec::new()));
    }
    Ok(match json_array(line, word, rest)? {
        Some(argv) => Command::Exec(argv),
        None => Command::Shell(rest.to_owned()),
    })
}

fn copy(logical: &Logical, is_add: bool) -> Result<Instruction, ParseError> {
    let (line, escape) = (logical.line, logical.escape);
    let word = if is_add { "ADD" } else { "COPY" };
    let (flags, rest) = split_flags(&logical.rest);
    let (mut from, mut chown, mut chmod, mut exclude, mut checksum) = (None, None, None, Vec::new(), None);
    for flag in &flags {
        let twice = |is_given: bool| match is_given {
            true => Err(ParseError::new(line, format!("{:?} is given twice", cut(&format!("--{}", flag.name))))),
            false => Ok(()),
        };
        match flag.name {
            "chown" => {
                twice(chown.is_some())?;
                let owner = flag.text(line, escape)?;
                owner.literal().map(|owner| Chown::parse(line, &owner)).transpose()?;
                chown = Some(owner);
            }
            "chmod" => {
                twice(chmod.is_some())?;
                let mode = flag.text(line, escape)?;
                mode.literal().map(|mode| parse_mode(line, &mode)).transpose()?;
                chmod = Some(mode);
            }
            "from" if !is_add => {
                twice(from.is_some())?;
                from = Some(flag.plain(line, escape)?);
            }
            "checksum" if is_add => {
                twice(checksum.is_some())?;
                let digest = flag.text(line, escape)?;
                digest.literal().map(|digest| parse_checksum(line, &digest)).transpose()?;
                checksum = Some(digest);
            }
            "exclude" => exclude.push(flag.text(line, escape)?),
            // Each COPY is a layer here in any case.
            "link" => drop(flag.is_set(line)?),
            _ => {
                let known = match is_add {
                    false => "--from=stage, --chown=user[:group], --chmod=octal, --exclude=pattern and --link",
                    true => "--checksum=sha256:…, --chown=user[:group], --chmod=octal, --exclude=pattern and --link",
                };
                return Err(unsupported_flag(line, word, flag, known));
            }
        }
    }
    let is_json = rest.starts_with('[');
    let mut words = match json_array(line, word, rest)? {
        Some(words) => words.iter().map(|word| rest_of_line(line, escape, word)).collect::<Result<_, _>>()?,
        None => split_words(line, escape, rest)?,
    };
    if words.len() < 2 {
        return Err(ParseError::new(line, format!("{word} takes at least one source and a destination")));
    }
    let destination = words.pop().expect("two words were counted");
    // The markers of here-documents are words of the line, in the same order.
    let mut heredocs = logical.heredocs.iter().filter(|_| !is_json);
    let mut sources = Vec::with_capacity(words.len());
    for source in words {
        if !source.literal().is_some_and(|source| source.starts_with("<<")) {
            sources.push(CopySource::Path(source));
            continue;
        }
        let heredoc = heredocs
            .next()
            .ok_or_else(|| ParseError::new(line, format!("{word}'s here-document has no valid delimiter")).hint("write <<EOF"))?;
        let text = heredoc.text();
        let content = if heredoc.expands { document(line, &text)? } else { Text::from_literal(text) };
        sources.push(CopySource::Inline { name: heredoc.name.clone(), content });
    }
    if heredocs.next().is_some() || from.is_some() && sources.iter().any(|s| matches!(s, CopySource::Inline { .. })) {
        return Err(ParseError::new(line, format!("a here-document is a source of {word} from the file itself"))
            .hint("put it before the destination, without --from"));
    }
    if checksum.is_some() && !matches!(sources[..], [CopySource::Path(_)]) {
        return Err(ParseError::new(line, "--checksum takes one source, which is an address"));
    }
    Ok(Instruction::Copy(CopyStep { sources, destination, from, chown, chmod, exclude, is_add, checksum }))
}

fn user(line: usize, escape: char, rest: &str) -> Result<Instruction, ParseError> {
    let words = split_words(line, escape, rest)?;
    match &words[..] {
        [user] => {
            if let Some(user) = user.literal() {
                check_user(line, &user)?;
            }
            Ok(Instruction::User(user.clone()))
        }
        _ => Err(check_user(line, rest).err().unwrap_or_else(|| ParseError::new(line, "USER takes one user"))),
    }
}

/// Checks `user` or `user:group`.
pub(super) fn check_user(line: usize, text: &str) -> Result<(), ParseError> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    if is_account(user) && group.is_none_or(is_account) {
        return Ok(());
    }
    Err(ParseError::new(line, format!("USER {:?} is not valid", cut(text)))
        .hint("give one user, optionally with :group, each a name or a number"))
}

fn healthcheck(line: usize, rest: &str) -> Result<Instruction, ParseError> {
    let (flags, rest) = split_flags(rest);
    if rest.eq_ignore_ascii_case("NONE") && flags.is_empty() {
        return Ok(Instruction::Healthcheck(None));
    }
    let (word, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !word.eq_ignore_ascii_case("CMD") || text.trim().is_empty() {
        return Err(ParseError::new(line, "HEALTHCHECK takes CMD and a command, or NONE")
            .hint("write HEALTHCHECK --interval=30s CMD curl -f http://127.0.0.1/"));
    }
    let command = command(line, "HEALTHCHECK", text.trim())?;
    let mut check =
        Healthcheck { command, interval: None, timeout: None, start_period: None, start_interval: None, retries: None };
    for flag in &flags {
        let duration = || {
            let value = flag.value.unwrap_or_default();
            parse_duration(value).ok_or_else(|| {
                ParseError::new(line, format!("--{}={} is not valid", cut(flag.name), cut(value)))
                    .hint("give a time such as 30s or 1m30s")
            })
        };
        match flag.name {
            "interval" => check.interval = Some(duration()?),
            "timeout" => check.timeout = Some(duration()?),
            "start-period" => check.start_period = Some(duration()?),
            "start-interval" => check.start_interval = Some(duration()?),
            "retries" => {
                let retries = flag.value.and_then(|value| value.parse().ok()).filter(|retries| *retries <= 1_000_000);
                check.retries = Some(retries.ok_or_else(|| ParseError::new(line, "--retries is not a number"))?);
            }
            _ => {
                let known = "--interval, --timeout, --start-period, --start-interval and --retries";
                return Err(unsupported_flag(line, "HEALTHCHECK", flag, known));
            }
        }
    }
    Ok(Instruction::Healthcheck(Some(check)))
}

/// Parses `1h2m3.5s`, `300ms`: the durations of Go.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        // The longer unit first: `ms` starts with `m`.
        let units = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (unit, factor) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds += number * factor;
    }
    (!text.is_empty())
        .then(|| Duration::try_from_secs_f64(seconds).ok())
        .flatten()
        .filter(|time| *time <= Duration::from_secs(31_536_000))
}
