//! Lists that are shown again when they change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use rustix::termios;
use serde_json::{Value, json};

use super::form::{Entries, Form, View};
use super::{bytes, harmless, line};
use crate::failure::{Failure, INTERRUPTED, Outcome};

/// Time between two readings of a list.
const REFRESH: Duration = Duration::from_secs(1);
/// Fields that change without a change of what they describe.
const RESTLESS: [&str; 9] = [
    "deadline",
    "disk_available_bytes",
    "last_at",
    "last_used_at",
    "memory_available_bytes",
    "renewed_at",
    "revision",
    "stages",
    "used_bytes",
];

/// How a list is shown.
#[derive(Debug, Clone)]
pub(crate) struct ListForm {
    pub(crate) form: Form,
    pub(crate) watch: bool,
}

impl ListForm {
    /// Prints a list once, or until Ctrl-C.
    pub(crate) async fn show(
        &self,
        entries: Entries,
        fetch: impl AsyncFn() -> Result<Value, Failure>,
        view: impl Fn(Value) -> Result<View, Failure>,
    ) -> Outcome {
        if !self.watch {
            return self.form.show(fetch().await?, entries, view);
        }
        tokio::select! {
            outcome = watch(&self.form, entries, fetch, view) => outcome,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
        }
    }
}

async fn watch(
    form: &Form,
    entries: Entries,
    fetch: impl AsyncFn() -> Result<Value, Failure>,
    view: impl Fn(Value) -> Result<View, Failure>,
) -> Outcome {
    let is_screen = io::stdout().is_terminal() && *form == Form::Table;
    let mut before: Option<BTreeMap<String, Value>> = None;
    loop {
        let answer = fetch().await?;
        let now: BTreeMap<String, Value> =
            entries.listed(&answer).iter().map(|entry| (entries.name(entry), entry.clone())).collect();
        if is_screen {
            redraw(&view(answer)?);
        } else {
            let empty = BTreeMap::new();
            for change in changes(before.as_ref().unwrap_or(&empty), &now) {
                change.print(form, before.is_none())?;
            }
        }
        before = Some(now);
        tokio::time::sleep(REFRESH).await;
    }
}

/// Draws a view at the top of the terminal. Lines that don't fit are left out.
pub(crate) fn redraw(view: &View) {
    let height = match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 2 => usize::from(size.ws_row) - 1,
        _ => usize::MAX,
    };
    let table = view.table.iter().flat_map(super::Table::lines);
    let lines: Vec<String> = table.chain(view.lines.iter().cloned()).chain(view.note.clone()).collect();
    let mut screen = Vec::from(b"\x1b[H");
    let (shown, hidden) = if lines.len() > height { (height - 1, lines.len() - height + 1) } else { (lines.len(), 0) };
    let more = (hidden > 0).then(|| format!("{hidden} more lines"));
    for text in lines[..shown].iter().chain(&more) {
        // Clearing only the rest of each line doesn't flicker. Writing to memory can't fail.
        let _ = write!(screen, "{text}\x1b[K\r\n");
    }
    screen.extend_from_slice(b"\x1b[J");
    bytes(&screen);
}

/// What happened to an entry.
struct Change<'a> {
    kind: &'static str,
    name: &'a str,
    entry: &'a Value,
    /// The changed fields, before and after.
    fields: Vec<(&'a str, &'a Value, &'a Value)>,
}

fn changes<'a>(before: &'a BTreeMap<String, Value>, now: &'a BTreeMap<String, Value>) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for (name, entry) in before.iter().filter(|(name, _)| !now.contains_key(*name)) {
        changes.push(Change { kind: "removed", name, entry, fields: Vec::new() });
    }
    for (name, entry) in now {
        let Some(earlier) = before.get(name) else {
            changes.push(Change { kind: "added", name, entry, fields: Vec::new() });
            continue;
        };
        let fields = entry.as_object().into_iter().flatten();
        let changed = |(field, value): (&'a String, &'a Value)| {
            let is_changed = !RESTLESS.contains(&field.as_str()) && earlier[field] != *value;
            is_changed.then_some((field.as_str(), &earlier[field], value))
        };
        let fields: Vec<_> = fields.filter_map(changed).collect();
        if !fields.is_empty() {
            changes.push(Change { kind: "changed", name, entry, fields });
        }
    }
    changes
}

impl Change<'_> {
    fn print(&self, form: &Form, is_first: bool) -> Result<(), Failure> {
        match form {
            Form::Json => {
                line(json!({ "change": if is_first { "listed" } else { self.kind }, "name": self.name, "entry": self.entry }))
            }
            Form::Name if self.kind == "removed" => {}
            Form::Name => line(harmless(self.name)),
            Form::Template(_) if self.kind == "removed" => {}
            Form::Template(template) => template.render(std::slice::from_ref(self.entry))?.iter().for_each(line),
            Form::Table => {
                let (at, name) = (Timestamp::now().strftime("%H:%M:%S"), harmless(self.name));
                let state =
                    self.entry["state"].as_str().filter(|_| self.kind == "added").map_or_else(String::new, |s| format!("  {s}"));
                let kind = if is_first { "listed" } else { self.kind };
                let fields: String =
                    self.fields.iter().map(|(field, old, new)| format!("  {field}: {} -> {}", short(old), short(new))).collect();
                line(format_args!("{at}  {kind:<7}  {name}{state}{fields}"));
            }
        }
        Ok(())
    }
}

/// A value in a line.
fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let start: String = harmless(&text).chars().take(MOST).collect();
    if text.chars().count() > MOST { format!("{start}…") } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_reported() {
        let list = |entries: &[(&str, &str, u64)]| -> BTreeMap<String, Value> {
            entries.iter().map(|(name, state, at)| ((*name).to_owned(), json!({ "state": state, "last_used_at": at }))).collect()
        };
        let before = list(&[("gone", "running", 1), ("same", "running", 1), ("slept", "running", 1)]);
        let now = list(&[("new", "creating", 2), ("same", "running", 2), ("slept", "paused", 2)]);
        let found: Vec<_> =
            changes(&before, &now).iter().map(|change| (change.kind, change.name.to_owned(), change.fields.len())).collect();
        assert_eq!(
            found,
            [("removed", "gone".to_owned(), 0), ("added", "new".to_owned(), 0), ("changed", "slept".to_owned(), 1)]
        );
    }
}
