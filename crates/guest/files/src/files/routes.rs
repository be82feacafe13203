//! The file service in AIO's wire format.
//!
//! A failed operation answers 200 with `success: false`: see [`Outcome`].

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};

use super::editor::{StrReplaceEditorRequest, StrReplaceEditorResult};
use super::edits;
use super::error::{FileError, FileOperationError, Operation};
use super::glob::{FileGlobRequest, FileGlobResult};
use super::grep::{FileGrepRequest, FileGrepResult};
use super::listing::{FileFindRequest, FileFindResult, FileInfo, FileListRequest, FileListResult};
use super::service::{
    self, FileReadRequest, FileReadResult, FileReplaceRequest, FileReplaceResult, FileSearchRequest, FileSearchResult,
    FileWriteRequest, FileWriteResult,
};
use super::{transfer, watch};
use crate::files::Files;
use arenite_guest_runtime::http::{Body, Envelope};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<Files>) -> Router {
    Router::new()
        .route("/v1/file/read", post(read))
        .route("/v1/file/write", post(write))
        .route("/v1/file/replace", post(replace))
        .route("/v1/file/search", post(search))
        .route("/v1/file/find", post(find))
        .route("/v1/file/grep", post(grep))
        .route("/v1/file/glob", post(glob))
        .route("/v1/file/list", post(list))
        .route("/v1/file/str_replace_editor", post(str_replace_editor))
        .route("/v1/file/download", get(transfer::download))
        // The body streams to disk and is bounded only there.
        .route("/v1/file/upload", post(transfer::upload).layer(DefaultBodyLimit::disable()))
        .merge(watch::router())
        .with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    paths(read, write, replace, search, find, grep, glob, list, str_replace_editor, transfer::download, transfer::upload),
    components(schemas(FileOperationError, FileInfo))
)]
#[derive(Debug)]
pub struct FilesApi;

/// A result, or why there is none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Outcome<T> {
    Done(T),
    Failed(FailedOperation),
}

/// The error, and beside it neutral values for what the result requires: version 0.0.30 of AIO's client insists on them,
/// 0.0.31 wants the error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FailedOperation {
    #[serde(flatten)]
    error: FileOperationError,
    #[serde(flatten)]
    #[schema(ignore)]
    neutral: Map<String, Value>,
}

fn neutral(error: &FileError) -> Map<String, Value> {
    let path = &error.path;
    let fields = match error.operation {
        Operation::Read => json!({"content": "", "file": path}),
        Operation::Write | Operation::Replace | Operation::Search => json!({"file": path}),
        Operation::Upload => json!({"file_path": path, "file_size": 0, "success": false}),
        Operation::Edit | Operation::View => {
            json!({"output": "", "prev_exist": false, "error": error.to_string()})
        }
        Operation::Grep | Operation::Glob => json!({"pattern": ""}),
        Operation::Find | Operation::Watch | Operation::List | Operation::Download => json!({}),
    };
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn failed<T>(error: &FileError) -> Envelope<Outcome<T>> {
    Envelope {
        success: false,
        message: Some(error.to_string()),
        hint: error.hint(),
        data: Some(Outcome::Failed(FailedOperation { error: error.into(), neutral: neutral(error) })),
    }
}

/// Builds a call's answer with its message and hint.
pub(super) fn answer<T>(
    result: Result<T, FileError>,
    message: impl FnOnce(&T) -> (String, Option<String>),
) -> Envelope<Outcome<T>> {
    match result {
        Ok(data) => {
            let (message, hint) = message(&data);
            Envelope { success: true, message: Some(message), hint, data: Some(Outcome::Done(data)) }
        }
        Err(error) => failed(&error),
    }
}

/// The answer to a failed call on a route that uses HTTP statuses.
pub(super) fn http_failure(error: &FileError) -> Response {
    let status = match error.failure.error_type() {
        "not_found" => StatusCode::NOT_FOUND,
        "permission_denied" => StatusCode::FORBIDDEN,
        "io_error" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, failed::<()>(error)).into_response()
}

const SHALLOW: &str = "only the directory itself was searched; put **/ before the pattern to search below it too";

fn is_shallow(pattern: &str) -> bool {
    !pattern.contains("**") && !pattern.contains('/')
}

fn cut(truncated: bool, advice: &str) -> Option<String> {
    truncated.then(|| format!("there is more than fits into one answer: {advice}"))
}

/// The text of a file, or some lines of it: from `start_line` on, counted from 0, and before `end_line`.
#[utoipa::path(post, path = "/v1/file/read", tag = "file", operation_id = "read_file", request_body = FileReadRequest,
    responses((status = 200, body = Envelope<Outcome<FileReadResult>>)))]
async fn read(State(files): State<Arc<Files>>, Body(request): Body<FileReadRequest>) -> Envelope<Outcome<FileReadResult>> {
    answer(service::read(&files, request).await, |_| ("File read successfully".to_owned(), None))
}

/// Writes a file, and makes the directories that it needs.
#[utoipa::path(post, path = "/v1/file/write", tag = "file", operation_id = "write_file", request_body = FileWriteRequest,
    responses((status = 200, body = Envelope<Outcome<FileWriteResult>>)))]
async fn write(State(files): State<Arc<Files>>, Body(request): Body<FileWriteRequest>) -> Envelope<Outcome<FileWriteResult>> {
    answer(service::write(&files, request).await, |_| ("File written successfully".to_owned(), None))
}

/// Replaces every occurrence of a text in a file.
#[utoipa::path(post, path = "/v1/file/replace", tag = "file", operation_id = "replace_in_file", request_body = FileReplaceRequest,
    responses((status = 200, body = Envelope<Outcome<FileReplaceResult>>)))]
async fn replace(
    State(files): State<Arc<Files>>,
    Body(request): Body<FileReplaceRequest>,
) -> Envelope<Outcome<FileReplaceResult>> {
    answer(service::replace(&files, request).await, |result| match result.replaced_count {
        0 => ("old_str did not appear in the file: nothing was replaced".to_owned(), None),
        count => (format!("Replaced {count} occurrences"), None),
    })
}

/// Matches of a regular expression in a file, with the lines in which they begin.
#[utoipa::path(post, path = "/v1/file/search", tag = "file", operation_id = "search_in_file", request_body = FileSearchRequest,
    responses((status = 200, body = Envelope<Outcome<FileSearchResult>>)))]
async fn search(State(files): State<Arc<Files>>, Body(request): Body<FileSearchRequest>) -> Envelope<Outcome<FileSearchResult>> {
    answer(service::search(&files, request).await, |result| {
        (format!("Found {} matches", result.matches.len()), cut(result.truncated, "use a narrower pattern"))
    })
}

/// Files below a directory with a path that matches a glob.
#[utoipa::path(post, path = "/v1/file/find", tag = "file", operation_id = "find_files_v1_file_find_post",
    request_body = FileFindRequest, responses((status = 200, body = Envelope<Outcome<FileFindResult>>)))]
async fn find(State(files): State<Arc<Files>>, Body(request): Body<FileFindRequest>) -> Envelope<Outcome<FileFindResult>> {
    let shallow = is_shallow(&request.glob);
    answer(service::find(&files, request).await, |result| {
        let hint = if result.files.is_empty() && shallow {
            Some(SHALLOW.to_owned())
        } else {
            cut(result.truncated, "use a deeper path or a narrower pattern")
        };
        (format!("Found {} files", result.files.len()), hint)
    })
}

/// Search the content of files.
///
/// As ripgrep does it: hidden and binary files and those that `.gitignore`, `.ignore` and `.rgignore` name are passed over,
/// unless `include` names them; a file given as `path` is searched whatever it is.
#[utoipa::path(post, path = "/v1/file/grep", tag = "file", operation_id = "grep_files", request_body = FileGrepRequest,
    responses((status = 200, body = Envelope<Outcome<FileGrepResult>>)))]
async fn grep(State(files): State<Arc<Files>>, Body(request): Body<FileGrepRequest>) -> Envelope<Outcome<FileGrepResult>> {
    answer(service::grep(&files, request).await, |result| {
        let files = result.files_matched.unwrap_or(0);
        (format!("Found {} matches in {files} files", result.match_count), result.note.clone())
    })
}

/// Adds fields that AIO's README has and AIO's schemas lack.
fn with_readmes_names<T: Serialize>(answer: Envelope<Outcome<T>>, add: impl FnOnce(&mut Value)) -> Envelope<Outcome<Value>> {
    let Envelope { success, message, hint, data } = answer;
    let data = data.map(|data| match data {
        Outcome::Done(result) => {
            let mut result = json!(result);
            add(&mut result);
            Outcome::Done(result)
        }
        Outcome::Failed(failed) => Outcome::Failed(failed),
    });
    Envelope { success, message, hint, data }
}

/// Find files by their names.
///
/// As in Python: `*` stays in its directory, and `**/` stands for any number of directories.
#[utoipa::path(post, path = "/v1/file/glob", tag = "file", operation_id = "glob_files", request_body = FileGlobRequest,
    responses((status = 200, body = Envelope<Outcome<FileGlobResult>>)))]
async fn glob(State(files): State<Arc<Files>>, Body(request): Body<FileGlobRequest>) -> Envelope<Outcome<FileGlobResult>> {
    let shallow = is_shallow(&request.pattern);
    answer(service::glob(&files, request).await, |result| {
        let hint = match result.files.is_empty() && shallow {
            true => Some(SHALLOW.to_owned()),
            false => cut(result.truncated, "use a deeper path, a narrower pattern or a larger max_results"),
        };
        (format!("Found {} files", result.total_count), hint)
    })
}

/// What is in a directory.
#[utoipa::path(post, path = "/v1/file/list", tag = "file", operation_id = "list_path_v1_file_list_post",
    request_body = FileListRequest, responses((status = 200, body = Envelope<Outcome<FileListResult>>)))]
async fn list(State(files): State<Arc<Files>>, Body(request): Body<FileListRequest>) -> Envelope<Outcome<FileListResult>> {
    answer(service::list(&files, request).await, |result| {
        (format!("Listed {} entries", result.total_count), cut(result.truncated, "list a deeper directory or set max_depth"))
    })
}

/// Views, creates and edits files, with the commands that agents are trained on; edits can be undone.
///
/// Documents can be viewed too: PDF, Word, spreadsheets, presentations, notebooks.
#[utoipa::path(post, path = "/v1/file/str_replace_editor", tag = "file",
    operation_id = "str_replace_editor_v1_file_str_replace_editor_post", request_body = StrReplaceEditorRequest,
    responses((status = 200, body = Envelope<Outcome<StrReplaceEditorResult>>)))]
async fn str_replace_editor(
    State(files): State<Arc<Files>>,
    Body(request): Body<StrReplaceEditorRequest>,
) -> Envelope<Outcome<Value>> {
    let edited = answer(edits::edit(&files, request).await, |_| ("Operation successful".to_owned(), None));
    with_readmes_names(edited, |result| result["content"] = result["output"].clone())
}
