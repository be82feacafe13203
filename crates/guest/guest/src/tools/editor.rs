//! The editor that agents are trained on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{SHOWN_CHARS, bounded};
use super::files::failed;
use super::tool::{Caller, Effect, Tool, ToolResult, structured};
use arenite_guest_files::files::{EditorCommand, FileError, Manner, ReplaceMode, StrReplaceEditorRequest, edit_so};
use arenite_guest_runtime::http::ApiError;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_str_replace_editor", "Edit a file", Effect::Anything, edit)]
}

/// Views, creates and edits text files; edits can be undone, one after the other.
///
/// - `view`: a file with line numbers (`view_range` for a part), a directory's entries, or the text of a PDF or Office document
/// - `create`: a new file with `file_text`. A file that exists is refused, unless `overwrite` is true
/// - `str_replace`: replaces `old_str`, which must stand there exactly once, verbatim with its whitespace, by `new_str`
/// - `insert`: puts `new_str` after the line `insert_line`
/// - `undo_edit`: undoes the last edit of `path` by this tool; for a `create`, the file is deleted
#[derive(Debug, Deserialize, JsonSchema)]
struct StrReplaceEditor {
    /// What to do.
    command: EditorCommand,
    /// The file, or for `view` also a directory. Relative ones start at the sandbox's working directory.
    #[schemars(example = "/home/gem/project/main.py")]
    path: String,
    /// For `create`: the whole content.
    #[serde(alias = "content")]
    file_text: Option<String>,
    /// For `str_replace`: the text to replace; with enough lines around it to be unique.
    old_str: Option<String>,
    /// For `str_replace`: what stands there instead (absent: nothing). For `insert`: the new lines.
    #[serde(alias = "insert_text")]
    new_str: Option<String>,
    /// For `insert`: the line, from 1, after which to insert; 0 is the start of the file.
    insert_line: Option<i64>,
    /// For `view` of a file: first and last line, from 1; -1 as last is the end.
    #[schemars(example = [1, 50])]
    view_range: Option<Vec<i64>>,
    /// For `create`: replace a file that exists; undo_edit restores it.
    #[serde(default)]
    overwrite: bool,
    /// For `str_replace`: which to replace when there are several.
    replace_mode: Option<ReplaceMode>,
}

#[derive(Debug, Serialize)]
struct Edited {
    output: String,
    path: String,
    /// Whether the file existed before.
    prev_exist: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

async fn edit(caller: Caller, args: StrReplaceEditor) -> ToolResult {
    let guest = &caller.guest;
    let StrReplaceEditor { command, path, file_text, old_str, new_str, insert_line, view_range, overwrite, replace_mode } = args;
    let request = StrReplaceEditorRequest {
        command,
        path,
        file_text,
        old_str,
        new_str,
        insert_line,
        view_range,
        replace_mode,
        page_range: None,
        sheet_name: None,
        row_range: None,
        slide_range: None,
        enable_metadata: None,
    };
    // Leaves room for line numbers and messages.
    let manner = Manner { overwrite, view_bytes: SHOWN_CHARS - SHOWN_CHARS / 10 };
    let done = edit_so(&guest.files, request, manner).await.map_err(|error| match command {
        EditorCommand::Create => not_created(&error),
        _ => failed(&error),
    })?;
    let output = bounded(&guest.runtime, done.output).await;
    structured(&Edited { output: output.text, path: done.path, prev_exist: done.prev_exist, hint: output.hint })
}

fn not_created(error: &FileError) -> ApiError {
    if error.failure.error_type() != "already_exists" {
        return failed(error);
    }
    ApiError::bad_request(format!("{:?} exists already, and create makes new files only: nothing was changed", error.path)).hint(
        "change a part of it with str_replace or insert, or give overwrite: true to replace all of it (undo_edit restores it)",
    )
}
