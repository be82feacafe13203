//! The `str_replace_editor` tool: view, create, str_replace, insert and undo_edit, as agents were trained on it.
//!
//! This module is pure text processing; [`super::service`] reads, locks and stores.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::Failure;

/// Lines shown before and after an edit.
const CONTEXT_LINES: usize = 4;
/// The most bytes of a file in one view, cut at a line's end.
pub(super) const MAX_VIEW_BYTES: usize = 1 << 20;
/// The most line numbers in an error.
const MAX_NAMED_LINES: usize = 20;
/// The largest content, in bytes, that an edit's answer includes.
pub(super) const MAX_ECHO_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EditorCommand {
    View,
    Create,
    StrReplace,
    Insert,
    UndoEdit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReplaceMode {
    All,
    First,
    Last,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct StrReplaceEditorRequest {
    pub command: EditorCommand,
    pub path: String,
    /// For `create`: the content.
    #[serde(default)]
    pub file_text: Option<String>,
    /// For `str_replace`: what to replace, verbatim.
    #[serde(default)]
    pub old_str: Option<String>,
    /// For `str_replace` (default: nothing) and `insert`: the new text.
    #[serde(default)]
    pub new_str: Option<String>,
    /// For `insert`: the line after which; 0 is the beginning.
    #[serde(default)]
    pub insert_line: Option<i64>,
    /// For `view` of a file: first and last line, from 1; -1 is the end.
    #[serde(default)]
    #[schema(default = json!([]))]
    pub view_range: Option<Vec<i64>>,
    /// For `str_replace`: what to do with several occurrences; unset, there must be one.
    #[serde(default)]
    pub replace_mode: Option<ReplaceMode>,
    /// For `view` of a PDF: first and last page, from 1; of a notebook its cells.
    #[serde(default)]
    pub page_range: Option<Vec<i64>>,
    /// For `view` of a spreadsheet: the sheet; unset, all of them.
    #[serde(default)]
    pub sheet_name: Option<String>,
    /// For `view` of a spreadsheet or table: first and last row, from 1.
    #[serde(default)]
    pub row_range: Option<Vec<i64>>,
    /// For `view` of a presentation: first and last slide, from 1.
    #[serde(default)]
    pub slide_range: Option<Vec<i64>>,
    /// For `view` of a document: include its metadata in the answer.
    #[serde(default)]
    #[schema(default = false)]
    pub enable_metadata: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StrReplaceEditorResult {
    pub output: String,
    pub error: Option<String>,
    pub path: String,
    pub prev_exist: bool,
    /// Unset above 1 MiB.
    pub old_content: Option<String>,
    /// Unset above 1 MiB.
    pub new_content: Option<String>,
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Requires a parameter of a command.
pub(super) fn required<T>(value: Option<T>, name: &str, command: &str) -> Result<T, Failure> {
    value.ok_or_else(|| Failure::invalid(format!("the command {command} needs the parameter {name}")))
}

fn numbered(out: &mut String, number: usize, line: &str) {
    let _ = writeln!(out, "{number:6}\t{line}");
}

/// The lines of a text. A line end at the very end starts no further line, but an empty file has one line.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.len() > 1 && lines.last() == Some(&"") {
        lines.pop();
    }
    lines
}

/// Formats a file's lines with their numbers, up to `most` bytes.
pub(super) fn view(path: &str, text: &str, range: &[i64], most: usize) -> Result<String, Failure> {
    let lines = lines(text);
    let total = lines.len();
    let wrong = |what: &str| Failure::Invalid {
        message: format!("view_range {range:?} {what}; '{path}' has {total} lines"),
        hint: Some("give [first, last], from 1; -1 as last is the end".to_owned()),
    };
    let (first, last) = match range {
        [] => (1, total),
        [first, last] => {
            let first = usize::try_from(*first).ok().filter(|f| (1..=total).contains(f));
            let first = first.ok_or_else(|| wrong("begins outside of the file"))?;
            match *last {
                -1 => (first, total),
                last => {
                    let last = usize::try_from(last).ok().filter(|l| *l >= first);
                    (first, last.ok_or_else(|| wrong("ends before it begins"))?.min(total))
                }
            }
        }
        _ => return Err(wrong("is not two numbers")),
    };
    let mut out = format!("Here's the result of running `cat -n` on {path}:\n");
    for number in first..=last {
        let line = lines[number - 1];
        if number > first && out.len() + line.len() > most {
            let _ = writeln!(out, "[cut: lines {number} to {last} of {total} are not shown; ask for them with view_range]");
            break;
        }
        match line.char_indices().nth(most) {
            Some((at, _)) => numbered(&mut out, number, &format!("{}[cut]", &line[..at])),
            None => numbered(&mut out, number, line),
        }
    }
    Ok(out)
}

/// The lines around an edit, `first` (from 1) to `last`.
fn snippet(path: &str, text: &str, first: usize, last: usize) -> String {
    let all = lines(text);
    let from = first.saturating_sub(CONTEXT_LINES).max(1);
    let to = (last + CONTEXT_LINES).min(all.len());
    let mut out = format!("The file {path} has been edited. Here's the result of running `cat -n` on a snippet of {path}:\n");
    for number in from..=to {
        if out.len() > MAX_VIEW_BYTES {
            out.push_str("[cut]\n");
            break;
        }
        numbered(&mut out, number, all[number - 1]);
    }
    out.push_str("Check that it is as it should be, and edit again if it is not.");
    out
}

/// The number of the line, from 1, with the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() + 1
}

/// An edited text and the message about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub text: String,
    pub output: String,
}

/// Replaces `old` by `new`. Fails if `old` does not occur, or occurs more than once and no mode is given.
pub(super) fn str_replace(path: &str, text: &str, old: &str, new: &str, mode: Option<ReplaceMode>) -> Result<Edited, Failure> {
    if old.is_empty() {
        return Err(Failure::invalid("old_str is empty; give the text to replace, or use insert"));
    }
    if old == new {
        return Err(Failure::invalid("old_str and new_str are the same: there is nothing to replace"));
    }
    let Some(first) = text.find(old) else {
        let crlf = text.contains("\r\n") && old.contains('\n') && text.contains(&old.replace('\n', "\r\n"));
        let hint = crlf.then(|| "the file's lines end with \\r\\n: write old_str and new_str so".to_owned());
        return Err(Failure::NoMatch { path: path.to_owned(), hint });
    };
    let count = text.matches(old).count();
    let (edited, at) = match mode {
        None if count > 1 => {
            let mut named: Vec<String> =
                text.match_indices(old).take(MAX_NAMED_LINES).map(|(at, _)| line_of(text, at).to_string()).collect();
            if count > MAX_NAMED_LINES {
                named.push("…".to_owned());
            }
            return Err(Failure::NotUnique { path: path.to_owned(), lines: named.join(", ") });
        }
        Some(ReplaceMode::All) => (text.replace(old, new), first),
        Some(ReplaceMode::Last) => {
            let at = text.rfind(old).unwrap_or(first);
            ([&text[..at], new, &text[at + old.len()..]].concat(), at)
        }
        None | Some(ReplaceMode::First) => (text.replacen(old, new, 1), first),
    };
    let line = line_of(text, at);
    let mut output = snippet(path, &edited, line, line + new.matches('\n').count());
    if mode == Some(ReplaceMode::All) && count > 1 {
        let _ = write!(output, " {count} occurrences were replaced; the snippet shows the first.");
    }
    Ok(Edited { text: edited, output })
}

/// Inserts `new` as separate lines after line `after`.
pub(super) fn insert(path: &str, text: &str, after: i64, new: &str) -> Result<Edited, Failure> {
    let total = if text.is_empty() { 0 } else { lines(text).len() };
    let at = usize::try_from(after).ok().filter(|at| *at <= total).ok_or_else(|| {
        Failure::invalid(format!("insert_line is {after}; '{path}' has {total} lines, so it may be 0 to {total}"))
    })?;
    let offset = match at {
        0 => 0,
        _ => text.match_indices('\n').nth(at - 1).map_or(text.len(), |(end, _)| end + 1),
    };
    let (head, tail) = text.split_at(offset);
    let separator = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let edited = [head, separator, new, "\n", tail].concat();
    let output = snippet(path, &edited, at + 1, at + 1 + new.matches('\n').count());
    Ok(Edited { text: edited, output })
}

/// Lists a directory's entries, two levels deep.
pub(super) fn view_directory(path: &str, mut shown: Vec<String>, hidden: usize, truncated: bool) -> String {
    shown.sort_unstable();
    let mut out = format!("Files and directories up to 2 levels deep in {path}, without hidden ones:\n{path}\n");
    for entry in shown {
        out.push_str(&entry);
        out.push('\n');
    }
    if hidden > 0 {
        let _ = writeln!(out, "\n{hidden} hidden entries are left out; `ls -la {path}` shows them.");
    }
    if truncated {
        out.push_str("\nThere is more than fits here.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(output: &str) -> Vec<&str> {
        output.lines().filter_map(|l| l.split_once('\t')).map(|(n, _)| n.trim()).collect()
    }

    #[test]
    fn views_number_from_one_and_check_their_range() {
        let text = "a\nb\nc\n";
        let out = view("/f", text, &[], MAX_VIEW_BYTES).unwrap();
        assert_eq!(out, "Here's the result of running `cat -n` on /f:\n     1\ta\n     2\tb\n     3\tc\n");
        assert_eq!(numbers(&view("/f", text, &[2, 3], MAX_VIEW_BYTES).unwrap()), ["2", "3"]);
        assert_eq!(numbers(&view("/f", text, &[2, -1], MAX_VIEW_BYTES).unwrap()), ["2", "3"]);
        assert_eq!(numbers(&view("/f", text, &[3, 99], MAX_VIEW_BYTES).unwrap()), ["3"]);
        assert_eq!(numbers(&view("/f", "", &[], MAX_VIEW_BYTES).unwrap()), ["1"]);
        for range in [&[0, 1][..], &[4, 5], &[3, 2], &[1], &[1, 2, 3], &[-1, -1], &[1, -2]] {
            assert_eq!(view("/f", text, range, MAX_VIEW_BYTES).unwrap_err().error_type(), "invalid_argument", "{range:?}");
        }
        let huge = "x\n".repeat(MAX_VIEW_BYTES);
        let out = view("/f", &huge, &[], MAX_VIEW_BYTES).unwrap();
        assert!(out.len() < MAX_VIEW_BYTES + 1000 && out.contains("are not shown"));
    }

    #[test]
    fn a_replacement_must_be_unique_unless_a_mode_says_which() {
        let text = "one\ntwo\none\n";
        let replace = |old, new, mode| str_replace("/f", text, old, new, mode);
        assert_eq!(replace("two", "2", None).unwrap().text, "one\n2\none\n");
        assert_eq!(replace("two\n", "", None).unwrap().text, "one\none\n");
        assert_eq!(replace("one", "1", Some(ReplaceMode::All)).unwrap().text, "1\ntwo\n1\n");
        assert_eq!(replace("one", "1", Some(ReplaceMode::First)).unwrap().text, "1\ntwo\none\n");
        assert_eq!(replace("one", "1", Some(ReplaceMode::Last)).unwrap().text, "one\ntwo\n1\n");
        assert_eq!(replace("one", "1", None).unwrap_err(), Failure::NotUnique { path: "/f".into(), lines: "1, 3".into() });
        assert_eq!(replace("three", "3", Some(ReplaceMode::All)).unwrap_err().error_type(), "no_match");
        assert_eq!(replace("", "3", None).unwrap_err().error_type(), "invalid_argument");
        assert_eq!(replace("one", "one", None).unwrap_err().error_type(), "invalid_argument");
        let crlf = str_replace("/f", "a\r\nb\r\n", "a\nb", "c", None).unwrap_err();
        assert!(matches!(crlf, Failure::NoMatch { hint: Some(_), .. }));
    }

    #[test]
    fn insertions_are_lines_of_their_own() {
        let insert = |text, after, new| insert("/f", text, after, new).map(|e| e.text);
        assert_eq!(insert("a\nb\n", 0, "x").unwrap(), "x\na\nb\n");
        assert_eq!(insert("a\nb\n", 1, "x\ny").unwrap(), "a\nx\ny\nb\n");
        assert_eq!(insert("a\nb\n", 2, "x").unwrap(), "a\nb\nx\n");
        assert_eq!(insert("a\nb", 2, "x").unwrap(), "a\nb\nx\n");
        assert_eq!(insert("", 0, "x").unwrap(), "x\n");
        for (text, after) in [("a\n", 2), ("a\n", -1), ("", 1)] {
            assert!(insert(text, after, "x").is_err(), "{text:?} {after}");
        }
    }

    #[test]
    fn snippets_show_the_edit_and_four_lines_around() {
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let edited = str_replace("/f", &text, "line 15\n", "a\nb\n", None).unwrap();
        let shown = numbers(&edited.output);
        assert_eq!((shown.first(), shown.last()), (Some(&"11"), Some(&"21")));
        let edited = insert("/f", &text, 30, "end").unwrap();
        assert_eq!(numbers(&edited.output).last(), Some(&"31"));
    }
}
