//! Commands and families of commands, one file each.

mod annotations;
mod base;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod explore;
pub(crate) mod groups;
pub(crate) mod image;
pub(crate) mod logs;
pub(crate) mod mcp;
pub(crate) mod model;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod open;
mod pull_bar;
pub(crate) mod quarantine;
pub(crate) mod rag;
pub(crate) mod registry;
mod replay;
pub(crate) mod reset;
pub(crate) mod rollout;
pub(crate) mod sandbox;
pub(crate) mod secret;
pub(crate) mod service;
pub(crate) mod shell;
pub(crate) mod states;
pub(crate) mod storage;
pub(crate) mod store;
pub(crate) mod templates;
pub(crate) mod tenants;
pub(crate) mod terminal;
pub(crate) mod top;
pub(crate) mod trajectory;
mod transfer;
pub(crate) mod usage;
pub(crate) mod vm;
pub(crate) mod volumes;
pub(crate) mod webhook;

use std::collections::BTreeMap;

use crate::failure::Failure;

/// Parses `KEY=VALUE` arguments; a bare `KEY` takes its value from this process's environment.
fn environment(words: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let pair = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => match std::env::var(word) {
            Ok(value) => Ok((word.clone(), value)),
            Err(_) => {
                let failure = Failure::new(format!("the variable {word} is not set here"));
                Err(failure.hint(format!("write --env {word}=VALUE")).exit_code(2))
            }
        },
    };
    words.iter().map(pair).collect()
}

/// Quotes text as one word of a shell's command line.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Joins arguments to a command line.
fn command_line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_come_out_of_a_real_shell_as_they_went_in() {
        let words = ["", "plain", "two words", "it's", "$HOME `x` \\ \"q\"", "a\nb", "~", "*", "#c", "a=b", "'", "!x", "ä"]
            .map(str::to_owned);
        let script = format!("printf '%s\\0' {}", command_line(&words));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let expected: Vec<u8> = words.iter().flat_map(|w| w.bytes().chain([0])).collect();
        assert_eq!(output.stdout, expected);
    }
}
