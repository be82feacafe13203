//! Errors of file calls, with the messages that AIO's clients match on.

use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use arenite_guest_runtime::workers::WorkError;

/// The attempted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Replace,
    Search,
    Find,
    Grep,
    Glob,
    Watch,
    List,
    Upload,
    Download,
    Edit,
    View,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Replace => "replace",
            Self::Search => "search",
            Self::Find => "find",
            Self::Grep => "grep",
            Self::Glob => "glob",
            Self::Watch => "watch",
            Self::List => "list",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Edit | Self::View => "str_replace_editor",
        }
    }

    fn attempt(self) -> &'static str {
        match self {
            Self::Read => "read file",
            Self::Write => "write file",
            Self::Replace => "replace in file",
            Self::Search => "search in file",
            Self::Find => "find files",
            Self::Grep => "grep files",
            Self::Glob => "glob files",
            Self::Watch => "watch path",
            Self::List => "list path",
            Self::Upload => "upload file",
            Self::Download => "download file",
            Self::Edit => "edit file",
            Self::View => "view path",
        }
    }
}

/// The cause alone. [`FileError`] adds the attempted operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    #[error("[Errno {}] {}: '{path}'{}", .errno.raw_os_error(), describe(*.errno), annotate(*.errno, .note))]
    Os { errno: Errno, path: String, note: String },
    #[error("'{path}' is {what}, not a regular file")]
    Special { path: String, what: &'static str },
    #[error("'utf-8' codec can't decode byte 0x{byte:02x} in position {position}: the file is not utf-8 text")]
    Decode { byte: u8, position: u64 },
    #[error("{message}")]
    Invalid { message: String, hint: Option<String> },
    #[error("old_str did not appear verbatim in '{path}': nothing was replaced")]
    NoMatch { path: String, hint: Option<String> },
    #[error("old_str is not unique in '{path}', multiple occurrences start in lines {lines}: nothing was replaced")]
    NotUnique { path: String, lines: String },
    #[error("'{path}' has no edit left to undo")]
    NoHistory { path: String },
    /// A document that its reader could not parse.
    #[error("'{path}' can't be read: {message}")]
    Document { path: String, message: String, hint: Option<String> },
    #[error("it took longer than {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("the caller has gone")]
    Cancelled,
}

impl From<WorkError> for Failure {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::NotStarted { user, source } => Self::os(Errno::from_io_error(&source).unwrap_or(Errno::PERM), user),
            WorkError::TimedOut { seconds } => Self::TimedOut { seconds },
            WorkError::Cancelled => Self::Cancelled,
            WorkError::Panicked => Self::invalid("the file service failed in itself; please report it"),
        }
    }
}

/// The kernel's message for the error.
fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn annotate(errno: Errno, note: &str) -> String {
    match (errno, note) {
        // AIO's clients recognise a missing file by this text.
        (Errno::NOENT, "") => " (it does not exist)".to_owned(),
        (Errno::LOOP, "") => " (its links form a loop, or lead through another process)".to_owned(),
        (_, "") => String::new(),
        (_, note) => format!(": {note}"),
    }
}

impl Failure {
    pub fn os(errno: Errno, path: impl Into<String>) -> Self {
        Self::Os { errno, path: path.into(), note: String::new() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), hint: None }
    }

    /// Converts an error of std's I/O, and unwraps a failure that [`arenite_guest_runtime::workers::Watched`] put into it.
    pub fn io(error: std::io::Error, path: &str) -> Self {
        let errno = Errno::from_io_error(&error);
        match error.into_inner().map(|inner| inner.downcast::<WorkError>()) {
            Some(Ok(stopped)) => (*stopped).into(),
            Some(Err(inner)) => match inner.downcast::<Self>() {
                Ok(failure) => *failure,
                Err(_) => Self::os(errno.unwrap_or(Errno::IO), path),
            },
            None => Self::os(errno.unwrap_or(Errno::IO), path),
        }
    }

    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os { errno, .. } => Some(*errno),
            Self::TimedOut { .. } => Some(Errno::TIMEDOUT),
            _ => None,
        }
    }

    /// AIO's error types, and our own for failures without one there.
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Os { errno, .. } => match *errno {
                Errno::NOENT => "not_found",
                Errno::ACCESS | Errno::PERM => "permission_denied",
                Errno::ISDIR | Errno::NOTDIR | Errno::NXIO | Errno::TXTBSY => "invalid_target",
                Errno::EXIST | Errno::NOTEMPTY => "already_exists",
                Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::ILSEQ => "invalid_path",
                Errno::ROFS => "read_only_filesystem",
                Errno::NOSPC | Errno::DQUOT => "no_space_left",
                _ => "io_error",
            },
            Self::Special { .. } => "invalid_target",
            Self::Decode { .. } | Self::Document { .. } => "decode_error",
            Self::Invalid { .. } => "invalid_argument",
            Self::NoMatch { .. } => "no_match",
            Self::NotUnique { .. } => "not_unique",
            Self::NoHistory { .. } => "no_history",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled => "cancelled",
        }
    }

    /// The exception that AIO's Python server would raise.
    fn exception_type(&self) -> &'static str {
        match self {
            Self::Os { errno, .. } => match *errno {
                Errno::NOENT => "FileNotFoundError",
                Errno::ACCESS | Errno::PERM => "PermissionError",
                Errno::ISDIR => "IsADirectoryError",
                Errno::NOTDIR => "NotADirectoryError",
                Errno::EXIST => "FileExistsError",
                _ => "OSError",
            },
            Self::Special { .. } => "OSError",
            Self::Decode { .. } => "UnicodeDecodeError",
            Self::TimedOut { .. } | Self::Cancelled => "TimeoutError",
            _ => "ValueError",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { hint, .. } | Self::NoMatch { hint, .. } | Self::Document { hint, .. } => hint.clone(),
            Self::Decode { .. } => Some("get binary files with /v1/file/download".to_owned()),
            Self::NotUnique { .. } => {
                Some("give more of the lines around it, or set replace_mode to ALL, FIRST or LAST".to_owned())
            }
            Self::TimedOut { .. } => Some("narrow it: a deeper directory, fewer lines".to_owned()),
            Self::Os { errno, .. } => match *errno {
                Errno::ACCESS | Errno::PERM => Some("read, write, replace and search act as root with sudo: true".to_owned()),
                Errno::NOSPC | Errno::DQUOT => Some("delete files to make room".to_owned()),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A file call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("Failed to {}: {failure}", .operation.attempt())]
pub struct FileError {
    pub operation: Operation,
    /// The path as the caller gave it.
    pub path: String,
    #[source]
    pub failure: Failure,
}

impl FileError {
    pub fn hint(&self) -> Option<String> {
        self.failure.hint()
    }
}

/// The body of a failed file call.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileOperationError {
    pub path: String,
    pub operation: String,
    pub message: String,
    /// `not_found`, `permission_denied`, `invalid_target`, `already_exists`, `invalid_path`, `read_only_filesystem`,
    /// `no_space_left`, `decode_error`, `io_error`, `invalid_argument`, `no_match`, `not_unique`, `no_history`, `timed_out`.
    pub error_type: String,
    pub retryable: bool,
    pub errno: Option<i32>,
    pub errno_name: Option<String>,
    pub exception_type: Option<String>,
}

impl From<&FileError> for FileOperationError {
    fn from(error: &FileError) -> Self {
        let errno = error.failure.errno();
        Self {
            path: error.path.clone(),
            operation: error.operation.as_str().to_owned(),
            message: error.to_string(),
            error_type: error.failure.error_type().to_owned(),
            retryable: errno.is_some_and(|e| [Errno::AGAIN, Errno::INTR, Errno::TIMEDOUT, Errno::MFILE].contains(&e)),
            errno: errno.map(Errno::raw_os_error),
            errno_name: errno.and_then(name).map(str::to_owned),
            exception_type: Some(error.failure.exception_type().to_owned()),
        }
    }
}

fn name(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::INTR => "EINTR",
        Errno::IO => "EIO",
        Errno::NXIO => "ENXIO",
        Errno::BADF => "EBADF",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::XDEV => "EXDEV",
        Errno::NODEV => "ENODEV",
        Errno::NOTDIR => "ENOTDIR",
        Errno::ISDIR => "EISDIR",
        Errno::INVAL => "EINVAL",
        Errno::NFILE => "ENFILE",
        Errno::MFILE => "EMFILE",
        Errno::TXTBSY => "ETXTBSY",
        Errno::FBIG => "EFBIG",
        Errno::NOSPC => "ENOSPC",
        Errno::ROFS => "EROFS",
        Errno::MLINK => "EMLINK",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::LOOP => "ELOOP",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::ILSEQ => "EILSEQ",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::STALE => "ESTALE",
        Errno::DQUOT => "EDQUOT",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_what_clients_match_on() {
        let error = |failure| FileError { operation: Operation::Read, path: "/x".to_owned(), failure };
        let missing = FileOperationError::from(&error(Failure::os(Errno::NOENT, "/x")));
        assert_eq!(missing.message, "Failed to read file: [Errno 2] No such file or directory: '/x' (it does not exist)");
        assert_eq!((missing.errno, missing.errno_name.as_deref()), (Some(2), Some("ENOENT")));
        assert_eq!((missing.error_type.as_str(), missing.exception_type.as_deref()), ("not_found", Some("FileNotFoundError")));
        let full = FileOperationError::from(&error(Failure::os(Errno::DQUOT, "/x")));
        assert_eq!((full.error_type.as_str(), full.errno_name.as_deref()), ("no_space_left", Some("EDQUOT")));
        let text = |failure| error(failure).to_string();
        assert!(text(Failure::NoMatch { path: "/x".into(), hint: None }).contains("did not appear"));
        let twice = text(Failure::NotUnique { path: "/x".into(), lines: "1, 2".into() });
        assert!(twice.contains("not unique") && twice.contains("multiple"));
    }
}
