//! The `str_replace_editor` tool on files: stores the texts that [`super::editor`] produces, and undoes edits.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::document;
use super::editor::{self, EditorCommand, StrReplaceEditorRequest, StrReplaceEditorResult};
use super::error::{Failure, FileError, Operation};
use super::history::Before;
use super::resolve::{Root, is_dir};
use super::service::{Files, Target, run, with_resolved};
use super::store::{self, Existing};
use super::text;
use super::walk::{Next, Walked, walk};
use arenite_guest_runtime::workers::{Kind, Work};

/// The most entries in a view of a directory.
const MAX_VIEW_ENTRIES: usize = 2_000;

/// Settings of the tool for a caller.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Whether `create` may replace an existing file.
    pub overwrite: bool,
    /// The most bytes of a text in one view, cut at a line's end.
    pub view_bytes: usize,
}

/// Runs the `str_replace_editor` tool.
pub async fn edit(files: &Arc<Files>, request: StrReplaceEditorRequest) -> Result<StrReplaceEditorResult, FileError> {
    edit_so(files, request, Manner { overwrite: false, view_bytes: editor::MAX_VIEW_BYTES }).await
}

/// Runs the tool with other settings.
pub async fn edit_so(
    files: &Arc<Files>,
    request: StrReplaceEditorRequest,
    manner: Manner,
) -> Result<StrReplaceEditorResult, FileError> {
    let operation = if request.command == EditorCommand::View { Operation::View } else { Operation::Edit };
    let path = request.path.clone();
    if let Some(shown) = document::view(files, &request).await? {
        return Ok(shown);
    }
    document::require_text(&request).map_err(|failure| FileError { operation, path: path.clone(), failure })?;
    run(files, operation, Kind::Brief, &files.runtime.user, &path, move |files, root, target, work| match request.command {
        EditorCommand::View => view(root, &target, &request, manner, work),
        EditorCommand::Create if manner.overwrite => overwrite(files, root, &target, request),
        EditorCommand::Create => create(files, root, &target, request),
        EditorCommand::StrReplace => {
            let old = editor::required(request.old_str, "old_str", "str_replace")?;
            let new = request.new_str.unwrap_or_default();
            change(files, root, &target, |text| editor::str_replace(&target.shown, text, &old, &new, request.replace_mode))
        }
        EditorCommand::Insert => {
            let line = editor::required(request.insert_line, "insert_line", "insert")?;
            let new = editor::required(request.new_str, "new_str", "insert")?;
            change(files, root, &target, |text| editor::insert(&target.shown, text, line, &new))
        }
        EditorCommand::UndoEdit => undo(files, root, &target, manner),
    })
    .await
}

fn echo(text: &str) -> Option<String> {
    (text.len() <= editor::MAX_ECHO_BYTES).then(|| text.to_owned())
}

fn edited(target: &Target, output: String, old: Option<&str>, new: Option<&str>) -> StrReplaceEditorResult {
    StrReplaceEditorResult {
        output,
        error: None,
        path: target.shown.clone(),
        prev_exist: old.is_some(),
        old_content: old.and_then(echo),
        new_content: new.and_then(echo),
        metadata: None,
    }
}

fn view(
    root: &Root,
    target: &Target,
    request: &StrReplaceEditorRequest,
    manner: Manner,
    work: &Work,
) -> Result<StrReplaceEditorResult, Failure> {
    let range = request.view_range.as_deref().unwrap_or_default();
    let output = if is_dir(&root.inspect(&target.path)?.1) {
        if !range.is_empty() {
            return Err(Failure::invalid(format!("'{}' is a directory: view_range is for files", target.shown)));
        }
        let (mut shown, mut hidden) = (Vec::new(), 0);
        let start = Path::new(&target.shown);
        let walked = walk(root, start, work, |entry| {
            if entry.is_hidden() {
                hidden += 1;
                return Next::Skip;
            }
            if shown.len() >= MAX_VIEW_ENTRIES {
                return Next::Stop;
            }
            let slash = if entry.is_dir() { "/" } else { "" };
            shown.push(format!("{}{slash}", start.join(entry.path).display()));
            if entry.depth < 2 { Next::Enter } else { Next::Skip }
        })?;
        editor::view_directory(&target.shown, shown, hidden, walked == Walked::Cut)
    } else {
        let (file, _) = root.open_file(&target.path)?;
        editor::view(&target.shown, &text::read_all(&file, &target.shown)?, range, manner.view_bytes)?
    };
    Ok(StrReplaceEditorResult { prev_exist: true, ..edited(target, output, None, None) })
}

fn create(
    files: &Files,
    root: &Root,
    target: &Target,
    request: StrReplaceEditorRequest,
) -> Result<StrReplaceEditorResult, Failure> {
    let text = editor::required(request.file_text, "file_text", "create")?;
    with_resolved(files, root, target, |resolved| {
        let stored = store::store(resolved, text.as_bytes(), Existing::Refuse);
        stored.map_err(|failure| match failure.errno() {
            Some(Errno::EXIST) => Failure::Os {
                errno: Errno::EXIST,
                path: target.shown.clone(),
                note: "create makes new files only; change it with str_replace or insert, or overwrite it with /v1/file/write"
                    .to_owned(),
            },
            _ => failure,
        })?;
        files.history().push(resolved.canonical.clone(), Before::Nothing);
        Ok(())
    })?;
    Ok(edited(target, format!("The file {} has been created.", target.shown), None, Some(&text)))
}

/// A `create` that replaces an existing file, if that can be undone.
fn overwrite(
    files: &Files,
    root: &Root,
    target: &Target,
    request: StrReplaceEditorRequest,
) -> Result<StrReplaceEditorResult, Failure> {
    let text = editor::required(request.file_text, "file_text", "create")?;
    with_resolved(files, root, target, |resolved| {
        let old = match root.open_file(&target.path) {
            Ok((file, _)) => Some(text::read_all(&file, &target.shown)?),
            Err(failure) if failure.errno() == Some(Errno::NOENT) => None,
            Err(failure) => return Err(failure),
        };
        store::store(resolved, text.as_bytes(), Existing::Replace)?;
        let verb = if old.is_some() { "overwritten; undo_edit restores what it was" } else { "created" };
        let result = edited(target, format!("The file {} has been {verb}.", target.shown), old.as_deref(), Some(&text));
        files.history().push(resolved.canonical.clone(), old.map_or(Before::Nothing, Before::Content));
        Ok(result)
    })
}

fn change(
    files: &Files,
    root: &Root,
    target: &Target,
    apply: impl FnOnce(&str) -> Result<editor::Edited, Failure>,
) -> Result<StrReplaceEditorResult, Failure> {
    // Reports a missing file before any directory is created for it.
    root.open_file(&target.path)?;
    with_resolved(files, root, target, |resolved| {
        let (file, _) = root.open_file(&target.path)?;
        let old = text::read_all(&file, &target.shown)?;
        let new = apply(&old)?;
        store::store(resolved, new.text.as_bytes(), Existing::Replace)?;
        let result = edited(target, new.output, Some(&old), Some(&new.text));
        files.history().push(resolved.canonical.clone(), Before::Content(old));
        Ok(result)
    })
}

fn undo(files: &Files, root: &Root, target: &Target, manner: Manner) -> Result<StrReplaceEditorResult, Failure> {
    let no_history = || Failure::NoHistory { path: target.shown.clone() };
    with_resolved(files, root, target, |resolved| {
        let before = files.history().pop(&resolved.canonical).ok_or_else(no_history)?;
        let current = match root.open_file(&target.path) {
            Ok((file, _)) => text::read_all(&file, &target.shown).ok(),
            Err(_) => None,
        };
        let done = match &before {
            Before::Content(text) => store::store(resolved, text.as_bytes(), Existing::Replace),
            Before::Nothing => match rustix::fs::unlinkat(&resolved.dir, &resolved.name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(e) => Err(Failure::os(e, &*target.shown)),
            },
        };
        if let Err(failure) = done {
            files.history().push(resolved.canonical.clone(), before);
            return Err(failure);
        }
        let shown = &target.shown;
        Ok(match &before {
            Before::Content(text) => {
                let body = editor::view(shown, text, &[], manner.view_bytes)?;
                let output = format!("The last edit of {shown} has been undone. {body}");
                StrReplaceEditorResult { prev_exist: true, ..edited(target, output, current.as_deref(), Some(text)) }
            }
            Before::Nothing => {
                let output = format!("The creation of {shown} has been undone: the file is deleted.");
                StrReplaceEditorResult { prev_exist: true, ..edited(target, output, current.as_deref(), None) }
            }
        })
    })
}
