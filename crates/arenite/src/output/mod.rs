//! Output for people and programs: lines, JSON, tables.

mod form;
mod table;
mod template;
mod watch;

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};

use jiff::Timestamp;
use serde_json::Value;

use crate::failure::{FAILED, Failure, STDOUT_CLOSED};
pub(crate) use form::{Entries, Form, View};
use table::Colour;
pub(crate) use table::{Cell, Table};
pub(crate) use watch::{ListForm, redraw};

/// Prints a line to stdout. If the reader is gone, as in `arenite ls | head -1`, the process exits like after SIGPIPE.
pub(crate) fn line(text: impl fmt::Display) {
    or_end(writeln!(io::stdout().lock(), "{text}"));
}

/// Writes raw bytes to stdout at once.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    or_end(out.write_all(bytes).and_then(|()| out.flush()));
}

fn or_end(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(STDOUT_CLOSED.into()),
        Err(error) => {
            eprintln!("error: could not write to stdout: {error}");
            std::process::exit(FAILED.into());
        }
    }
}

/// Prints a JSON value.
pub(crate) fn json(value: &Value) {
    line(format_args!("{value:#}"));
}

/// A table without lines, which fits the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    Table::new(header)
}

/// Prints a table.
pub(crate) fn rows(table: &Table) {
    table.lines().iter().for_each(line);
}

/// A state or a status in its colour. Colours show on terminals only.
pub(crate) fn state(word: &str) -> Cell {
    let colour = match word {
        "running" | "ok" | "success" => Some(Colour::Green),
        "paused" | "paused (disk)" | "creating" | "deleting" | "degraded" | "aborted" | "timeout" => Some(Colour::Yellow),
        "failed" | "lost" | "error" | "missing" | "interrupted" | "agent" | "infrastructure" => Some(Colour::Red),
        _ => None,
    };
    Cell::coloured(word, colour)
}

/// The time between two moments, in its largest unit.
pub(crate) fn distance(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second()).max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Text from a sandbox, made safe for a terminal: its control characters can't act there.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Asks the user for confirmation. Without a terminal, `--force` is required instead.
///
/// # Errors
/// Without a terminal, and if the answer is not yes.
pub(crate) fn confirm(question: &str) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::new(message).hint("--force does it without asking"));
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return refused(format!("{question}: that is not done unasked"));
    }
    eprint!("{question}? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    refused("nothing was removed".to_owned())
}
