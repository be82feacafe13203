//! Views of documents in the editor: pages, sheets, rows, slides and cells as text.

use std::fs::File;
use std::sync::Arc;

use arenite_documents::{Content, Format, Range, Selection};

use super::editor::{EditorCommand, StrReplaceEditorRequest, StrReplaceEditorResult};
use super::error::{Failure, FileError, Operation};
use super::resolve::is_dir;
use super::service::run;
use crate::confined::{ConfinedError, Fault, Input, Job, JobOutput};
use crate::files::Files;
use arenite_guest_runtime::workers::Kind;

/// Whether the request asks for a view of a document. Notebooks and tables are text too and shown as text, which is what the
/// editor changes. Only their own ranges select a view of cells or rows.
fn is_wanted(request: &StrReplaceEditorRequest) -> bool {
    let ranges = [&request.page_range, &request.row_range, &request.slide_range];
    let asks = ranges.iter().any(|r| r.as_ref().is_some_and(|r| !r.is_empty())) || request.sheet_name.is_some();
    asks || Format::of_name(&request.path).is_some_and(Format::is_binary)
}

/// Refuses to edit anything but text.
pub(super) fn require_text(request: &StrReplaceEditorRequest) -> Result<(), Failure> {
    let changes = matches!(request.command, EditorCommand::Create | EditorCommand::StrReplace | EditorCommand::Insert);
    match Format::of_name(&request.path).filter(|format| changes && format.is_binary()) {
        None => Ok(()),
        Some(format) => Err(Failure::Invalid {
            message: format!(
                "'{}' is a binary file ({}): the editor views it, and changes only text",
                request.path,
                format.noun()
            ),
            hint: Some("make or change it with a program, or upload it with /v1/file/upload".to_owned()),
        }),
    }
}

fn range(name: &str, given: Option<&[i64]>) -> Result<Option<Range>, Failure> {
    match given {
        None | Some([]) => Ok(None),
        Some([first, last]) => Ok(Some(Range { first: *first, last: *last })),
        Some(other) => Err(Failure::Invalid {
            message: format!("{name} {other:?} is not two numbers"),
            hint: Some("give [first, last], from 1; -1 as last is the end".to_owned()),
        }),
    }
}

fn selection(request: &StrReplaceEditorRequest) -> Result<Selection, Failure> {
    if request.view_range.as_ref().is_some_and(|r| !r.is_empty()) {
        return Err(Failure::invalid("view_range counts lines of text; of a document give page_range, row_range or slide_range"));
    }
    Ok(Selection {
        pages: range("page_range", request.page_range.as_deref())?,
        sheet: request.sheet_name.clone(),
        rows: range("row_range", request.row_range.as_deref())?,
        slides: range("slide_range", request.slide_range.as_deref())?,
    })
}

/// Opens a file with the user's rights, for a reader in another process.
pub async fn open_document(files: &Arc<Files>, path: &str) -> Result<File, FileError> {
    run(files, Operation::Read, Kind::Brief, &files.runtime.user, path, |_, root, target, _| Ok(root.open_file(&target.path)?.0))
        .await
}

/// Views a document. `None` if the path is a directory or the request is about text.
pub(super) async fn view(
    files: &Arc<Files>,
    request: &StrReplaceEditorRequest,
) -> Result<Option<StrReplaceEditorResult>, FileError> {
    if request.command != EditorCommand::View || !is_wanted(request) {
        return Ok(None);
    }
    let open = run(files, Operation::View, Kind::Brief, &files.runtime.user, &request.path, |_, root, target, _| {
        let directory = is_dir(&root.inspect(&target.path)?.1);
        Ok(if directory { None } else { Some((root.open_file(&target.path)?.0, target.shown)) })
    });
    let Some((file, shown)) = open.await? else { return Ok(None) };
    let fail = |failure| FileError { operation: Operation::View, path: request.path.clone(), failure };
    let job = Job::View { name: shown.clone(), selection: selection(request).map_err(fail)? };
    let content = match files.confined.run(&job, Input::File(file)).await {
        Ok(JobOutput::Content(content)) => content,
        Ok(JobOutput::Skills(_)) => return Err(fail(Failure::invalid("the reader answered something else"))),
        Err(error) => return Err(fail(failure(&shown, &error))),
    };
    Ok(Some(result(shown, content, request.enable_metadata.unwrap_or(false))))
}

fn failure(path: &str, error: &ConfinedError) -> Failure {
    match error {
        ConfinedError::Fault(Fault::Document(arenite_documents::DocumentError::Selection { message })) => {
            Failure::Invalid { message: format!("'{path}': {message}"), hint: None }
        }
        ConfinedError::TimedOut(limit) => Failure::TimedOut { seconds: limit.as_secs() },
        other => Failure::Document { path: path.to_owned(), message: other.to_string(), hint: other.hint() },
    }
}

fn result(path: String, content: Content, with_metadata: bool) -> StrReplaceEditorResult {
    let mut output = format!("Here's the content of {path}:\n{}", content.text);
    if content.truncated {
        output.push_str("[cut: there is more than one view shows; ask for a smaller range]\n");
    }
    StrReplaceEditorResult {
        output,
        error: None,
        path,
        prev_exist: true,
        old_content: None,
        new_content: None,
        metadata: with_metadata.then_some(content.metadata),
    }
}
