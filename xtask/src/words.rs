//! The words of the project: names and phrases that were replaced by the field's own, and must not come back.
//!
//! A reader searches for the words that they know. Invented names and quaint phrases cost each reader time, so code, comments,
//! messages, and documents use plain terms. Add a row when a word is replaced.

use std::path::Path;

use crate::command::{program, repository};
use crate::failure::{Attempt, Failure, Outcome};

/// Names of types and functions in Rust code, and what replaced them.
const NAMES: &[(&str, &str)] = &[
    ("Whom", "SandboxRef: it identifies a sandbox"),
    ("Told", "ToolResult: what a tool returns"),
    ("Wish", "SandboxRequest: what a backend requests"),
    ("Deed", "Op: what an interpreter runs"),
    ("Embryo", "InitArgs: arguments of the init process"),
    ("Desk", "Scheduler: it schedules"),
    ("Ground", "ReplayTarget: where a replay runs"),
    ("struct Place", "a name for what it is: a handle, a reservation, a path, a position"),
    ("enum Place", "a name for what it is: a location, an origin"),
    ("type Place", "a name for what it is"),
    ("struct Turn", "a permit, a message, a state"),
    ("enum Turn", "Transition: a change of state"),
    ("struct Room", "HostCapacity: the host's resources"),
    ("fn room", "capacity"),
    ("fn of", "new, parse, or from_…: a bare preposition says nothing at the call site"),
    ("farewell", "shutdown_hooks"),
    ("is_its", "owns_path"),
    ("found_again", "join_or_start"),
    ("let_go", "release"),
    ("is_nobodys", "a name that says what is checked"),
];

/// Phrases in documents and comments, and what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("whoever", "callers, clients, users"),
    ("whom", "a noun: the caller, the recipient"),
    ("whose", "with, of, that has"),
    ("anew", "again, or recreate, rebuild, restart"),
    ("thereof", "of it"),
    ("is told", "receives, reports, is notified"),
    ("are told", "receive, report"),
    ("made of", "consists of, contains"),
    ("so many", "the number, or up to N"),
    ("of its own", "its own, separate, dedicated"),
    ("of their own", "their own, separate, dedicated"),
    ("in the midst of", "during"),
];

/// Files that name the words to say what they replaced.
const EXEMPT: &[&str] = &["xtask/src/words.rs", "CHANGELOG.md"];

pub(crate) fn check() -> Outcome {
    let root = repository();
    let listed = program("git").current_dir(&root).args(["ls-files", "*.rs", "*.md"]).output();
    let listed = listed.attempt(|| "could not list the repository's files".into())?;
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| !EXEMPT.contains(name)) {
        // A file that was removed and is not committed yet.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        found.extend(check_file(name, &text));
    }
    if found.is_empty() {
        return Ok(());
    }
    found.iter().for_each(|line| eprintln!("{line}"));
    Err(Failure::new(format!("{} uses of words that the project replaced; see xtask/src/words.rs", found.len())))
}

fn check_file(name: &str, text: &str) -> Vec<String> {
    let is_rust = Path::new(name).extension().is_some_and(|extension| extension == "rs");
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        is_code ^= !is_rust && line.trim_start().starts_with("```");
        let is_comment = is_rust && line.trim_start().starts_with("//");
        let mut note = |word: &str, instead: &str| {
            found.push(format!("{name}:{}: {word:?}; write {instead}", number + 1));
        };
        for (word, instead) in NAMES.iter().filter(|(word, _)| is_rust && !is_comment && has(line, word)) {
            note(word, instead);
        }
        let is_prose = if is_rust { is_comment } else { !is_code };
        if is_prose {
            let line = line.to_lowercase();
            for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| has(&line, phrase)) {
                note(phrase, instead);
            }
        }
    }
    found
}

/// Whether the text has the word or phrase, with no letter, digit, or underscore around it.
fn has(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_part) && !text[at + word.len()..].chars().next().is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_words_are_found_with_their_line() {
        let of = |name, text| check_file(name, text).len();
        assert_eq!(of("a/src/x.rs", "struct Place;\nstruct Places;\nfn of(x: u8) {}\nfn office() {}\n"), 2);
        assert_eq!(of("a/src/x.rs", "// Made anew for Whom it is told.\nlet anew = 1;\n"), 3, "phrases count in comments");
        assert_eq!(of("README.md", "Whoever asks.\n```\nanew\n```\nA disk of its own.\n"), 2, "code blocks are exempt");
        assert_eq!(of("crates/x/src/x.rs", "let x = 1; // anew\nenum Turn {}\n"), 1, "names count everywhere");
        assert!(check_file("docs/x.md", "\nanew")[0].starts_with("docs/x.md:2: \"anew\"; write"));
    }
}
