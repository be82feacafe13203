//! Files: one tool with an action for each operation.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{SHOWN_CHARS, cut_list};
use super::tool::{Caller, Effect, Tool, ToolResult, structured};
use arenite_guest_files::files::Files;
use arenite_guest_files::files::{
    self, Failure, FileContentEncoding, FileError, FileFindRequest, FileGlobRequest, FileGrepRequest, FileListRequest, FilePart,
    FileReadRequest, FileReplaceRequest, FileSearchRequest, FileWriteRequest,
};
use arenite_guest_runtime::http::ApiError;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_file_operations", "Work with files", Effect::Anything, operate)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Read,
    Write,
    Replace,
    Search,
    Find,
    List,
    Grep,
    Glob,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Replace => "replace",
            Self::Search => "search",
            Self::Find => "find",
            Self::List => "list",
            Self::Grep => "grep",
            Self::Glob => "glob",
        }
    }

    fn may_be_root(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Replace | Self::Search)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8", alias = "utf8", alias = "UTF-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// Reads, writes, changes, lists and searches files.
///
/// - `read`: the text of a file, or its lines from `start_line` to before `end_line`, counted from 0
/// - `write`: writes `content` to a file (`append`: at its end), and creates missing directories
/// - `replace`: replaces every `content` in a file by `target`; both are plain text
/// - `search`: the lines of one file that match the regular expression `content`, with their numbers from 0
/// - `list`: the content of a directory
/// - `find`: paths below the directory `path` that match the name or glob `pattern`
/// - `glob`: the same with sizes and times
/// - `grep`: the lines of all files below `path` that match the regular expression `pattern`, with their numbers from 1;
///   skips what `.gitignore` names
#[derive(Debug, Deserialize, JsonSchema)]
struct FileOperations {
    /// What to do.
    action: Action,
    /// The file, or for list, find, glob and grep the directory. Relative ones start at the sandbox's working directory.
    #[schemars(example = "/home/gem/notes.txt", example = ".")]
    path: String,
    /// write: the content. replace: the text to replace. search: the regular expression.
    content: Option<String>,
    /// replace: the new text; empty deletes the old.
    target: Option<String>,
    /// find, glob: a file's name or a glob relative to `path`, such as `*.py` or `src/**/*.rs`. grep: the regular expression.
    pattern: Option<String>,
    /// write: the encoding of `content`.
    #[serde(default)]
    encoding: Encoding,
    /// read: the first line, from 0.
    start_line: Option<u64>,
    /// read: the line before which to end.
    end_line: Option<u64>,
    /// write: append to the existing content.
    #[serde(default)]
    append: bool,
    /// list, find, glob: also in directories below. grep does that unless this is false.
    recursive: Option<bool>,
    /// list, glob: also names that start with a dot.
    #[serde(default)]
    show_hidden: bool,
    /// list, grep: only files with these extensions.
    #[schemars(example = [".py", ".md"])]
    file_types: Option<Vec<String>>,
    /// read, write, replace, search: as root.
    #[serde(default)]
    sudo: bool,
}

/// A service's result with a hint.
#[derive(Debug, Serialize)]
struct Hinted<T> {
    #[serde(flatten)]
    result: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

fn told(result: impl Serialize, hint: Option<String>) -> ToolResult {
    structured(&Hinted { result, hint })
}

/// Converts an error of a file call for agents.
pub(super) fn failed(error: &FileError) -> ApiError {
    let answer = ApiError::bad_request(error.to_string());
    let hint = match &error.failure {
        Failure::Decode { .. } => Some(
            "it is no text: sandbox_convert_to_markdown reads documents and pictures, and sandbox_execute_bash can inspect it \
             (file, xxd)"
                .to_owned(),
        ),
        failure if failure.error_type() == "not_found" => Some(
            "look with action list or find of sandbox_file_operations; relative paths start at the working directory".to_owned(),
        ),
        _ => error.hint(),
    };
    match hint {
        Some(hint) => answer.hint(hint),
        None => answer,
    }
}

async fn operate(caller: Caller, args: FileOperations) -> ToolResult {
    let files = &caller.guest.files;
    if args.sudo && !args.action.may_be_root() {
        let why = format!("the action {} can't be done as root", args.action.name());
        return Err(ApiError::bad_request(why).hint("leave sudo out, or run a command with sudo by sandbox_execute_bash"));
    }
    match args.action {
        Action::Read => read(files, args).await,
        Action::Write => write(files, args).await,
        Action::Replace => replace(files, args).await,
        Action::Search => search(files, args).await,
        Action::Find => find(files, args).await,
        Action::List => list(files, args).await,
        Action::Grep => grep(files, args).await,
        Action::Glob => glob(files, args).await,
    }
}

/// Returns an argument that an action requires.
fn required(value: Option<String>, action: Action, name: &str, what: &str) -> Result<String, ApiError> {
    value.ok_or_else(|| {
        ApiError::bad_request(format!("the action {} needs the argument {name}", action.name())).hint(format!("give {what}"))
    })
}

async fn read(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let (start_line, end_line) = (args.start_line, args.end_line);
    let request = FileReadRequest { file: args.path, start_line, end_line, sudo: Some(args.sudo) };
    let part = files::read_part(files, request, SHOWN_CHARS).await.map_err(|error| failed(&error))?;
    let hint = part_hint(&part, start_line.unwrap_or(0));
    told(part, hint)
}

fn part_hint(part: &FilePart, start: u64) -> Option<String> {
    let FilePart { end_line: end, total_lines: total, .. } = part;
    if part.is_line_cut {
        return Some(format!(
            "line {} of {total} is longer than the {SHOWN_CHARS} characters that are shown: see more of it with \
             sandbox_execute_bash (cut -c, tr, jq)",
            part.start_line
        ));
    }
    if part.truncated {
        return Some(format!("lines {start} to {} of {total} are shown, counted from 0: read on with start_line {end}", end - 1));
    }
    (start > 0 && part.line_count == 0 && start >= *total).then(|| format!("the file has only {total} lines"))
}

async fn write(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let content = required(args.content, args.action, "content", "the text to write; empty makes an empty file")?;
    let encoding = match args.encoding {
        Encoding::Utf8 => FileContentEncoding::Utf8,
        Encoding::Base64 => FileContentEncoding::Base64,
    };
    let request = FileWriteRequest {
        file: args.path,
        content,
        encoding: Some(encoding),
        append: Some(args.append),
        leading_newline: None,
        trailing_newline: None,
        sudo: Some(args.sudo),
    };
    told(files::write(files, request).await.map_err(|error| failed(&error))?, None)
}

async fn replace(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let old_str = required(args.content, args.action, "content", "the text to replace")?;
    let new_str = required(args.target, args.action, "target", "the text to put there; empty deletes it")?;
    let request = FileReplaceRequest { file: args.path, old_str, new_str, sudo: Some(args.sudo) };
    let result = files::replace(files, request).await.map_err(|error| failed(&error))?;
    let hint = (result.replaced_count == 0).then(|| {
        "content did not appear verbatim in the file: nothing was replaced; read the file and copy it exactly".to_owned()
    });
    told(result, hint)
}

async fn search(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let regex = required(args.content.or(args.pattern), args.action, "content", "a regular expression")?;
    let request = FileSearchRequest { file: args.path, regex, sudo: Some(args.sudo) };
    let mut result = files::search(files, request).await.map_err(|error| failed(&error))?;
    let shown = cut(&mut result.matches, &mut result.truncated, "matches", "use a narrower expression");
    result.line_numbers.truncate(result.matches.len());
    told(result, shown)
}

async fn find(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let pattern = required(args.pattern.or(args.content), args.action, "pattern", "a file's name, or a glob such as *.py")?;
    let (glob, is_shallow) = deepened(pattern, args.recursive);
    let request = FileFindRequest { path: args.path, glob };
    let mut result = files::find(files, request).await.map_err(|error| failed(&error))?;
    let hint = cut(&mut result.files, &mut result.truncated, "files", NARROWER);
    let hint = hint.or_else(|| (is_shallow && result.files.is_empty()).then(|| SHALLOW.to_owned()));
    told(result, hint)
}

async fn glob(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let pattern = required(args.pattern.or(args.content), args.action, "pattern", "a glob such as **/*.py")?;
    let (pattern, is_shallow) = deepened(pattern, args.recursive);
    let include_hidden = Some(args.show_hidden);
    let request = FileGlobRequest { path: args.path, pattern, include_hidden, ..Default::default() };
    let mut result = files::glob(files, request).await.map_err(|error| failed(&error))?;
    let hint = cut(&mut result.files, &mut result.truncated, "files", NARROWER);
    let hint = hint.or_else(|| (is_shallow && result.files.is_empty()).then(|| SHALLOW.to_owned()));
    told(result, hint)
}

async fn list(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let request = FileListRequest {
        path: args.path,
        recursive: args.recursive,
        show_hidden: Some(args.show_hidden),
        file_types: args.file_types,
        ..Default::default()
    };
    let mut result = files::list(files, request).await.map_err(|error| failed(&error))?;
    let hint = cut(&mut result.files, &mut result.truncated, "entries", "list a deeper directory, or give file_types");
    told(result, hint)
}

async fn grep(files: &Arc<Files>, args: FileOperations) -> ToolResult {
    let pattern = required(args.pattern.or(args.content), args.action, "pattern", "a regular expression")?;
    let types = args.file_types.unwrap_or_default();
    let include = types.iter().map(|kind| format!("*.{}", extension(kind))).collect();
    let request = FileGrepRequest {
        path: args.path,
        pattern,
        include: Some(include).filter(|globs: &Vec<String>| !globs.is_empty()),
        recursive: args.recursive,
        ..Default::default()
    };
    let mut result = files::grep(files, request).await.map_err(|error| failed(&error))?;
    let note = result.note.take();
    let hint = cut(&mut result.matches, &mut result.truncated, "matches", "search a deeper directory or use a narrower pattern");
    told(result, hint.or(note))
}

const NARROWER: &str = "use a deeper path or a narrower pattern";
const SHALLOW: &str = "only the directory itself was searched: give recursive: true to search below it too";

/// Extends the pattern to subdirectories if `recursive` is set. Also returns whether it stays in the directory itself.
fn deepened(pattern: String, recursive: Option<bool>) -> (String, bool) {
    let is_shallow = !pattern.contains("**") && !pattern.contains('/');
    match is_shallow && recursive == Some(true) {
        true => (format!("**/{pattern}"), false),
        false => (pattern, is_shallow),
    }
}

/// Strips `*.` and `.` from an extension.
fn extension(text: &str) -> &str {
    text.trim_start_matches("*.").trim_start_matches('.')
}

/// Cuts a list to what fits into an answer, and returns a note about it.
fn cut<T: Serialize>(list: &mut Vec<T>, truncated: &mut bool, what: &str, advice: &str) -> Option<String> {
    let whole = cut_list(list);
    let shown = list.len();
    match whole {
        Some(whole) => {
            let more = if *truncated { "or more " } else { "" };
            *truncated = true;
            Some(format!("the first {shown} of {whole} {more}{what} are shown: {advice}"))
        }
        None => truncated.then(|| format!("the first {shown} {what} are shown: {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_go_deeper_when_asked() {
        let deepened = |text: &str, recursive| deepened(text.to_owned(), recursive);
        assert_eq!(deepened("*.py", None), ("*.py".to_owned(), true));
        assert_eq!(deepened("*.py", Some(true)), ("**/*.py".to_owned(), false));
        assert_eq!(deepened("src/*.py", Some(true)), ("src/*.py".to_owned(), false));
        assert_eq!([extension("*.py"), extension(".py"), extension("py")], ["py"; 3]);
    }

    #[test]
    fn lists_are_cut_to_what_fits() {
        let mut list = vec!["x".repeat(997); 100];
        let mut truncated = false;
        let hint = cut(&mut list, &mut truncated, "lines", "look elsewhere").unwrap();
        assert_eq!(hint, "the first 30 of 100 lines are shown: look elsewhere");
        assert!(truncated && list.len() == 30);
        let mut short = vec![1, 2];
        assert_eq!(cut(&mut short, &mut false, "lines", "look elsewhere"), None);
    }

    #[test]
    fn parts_say_how_to_read_on() {
        let part = |start_line, end_line, total_lines, truncated| FilePart {
            content: String::new(),
            file: "/f".to_owned(),
            line_count: end_line - start_line,
            start_line,
            end_line,
            total_lines,
            truncated,
            is_line_cut: false,
        };
        assert_eq!(part_hint(&part(0, 3, 3, false), 0), None);
        let more = part_hint(&part(2, 5, 9, true), 2).unwrap();
        assert_eq!(more, "lines 2 to 4 of 9 are shown, counted from 0: read on with start_line 5");
        assert_eq!(part_hint(&part(3, 3, 3, false), 7).as_deref(), Some("the file has only 3 lines"));
    }
}
