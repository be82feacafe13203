//! Conversion by URI, in plain Rust.

use arenite_documents::Content;
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use thiserror::Error;

use crate::confined::{Confined, ConfinedError, Fault, Input, Job, JobOutput};
use crate::files::{self, FileError, Files};
use arenite_guest_runtime::Runtime;

/// Converts documents and pages.
#[derive(Debug)]
pub struct Converter {
    runtime: Arc<Runtime>,
    files: Arc<Files>,
    confined: Arc<Confined>,
}

impl Converter {
    pub fn new(runtime: Arc<Runtime>, files: Arc<Files>, confined: Arc<Confined>) -> Self {
        Self { runtime, files, confined }
    }
}

/// Why a conversion failed.
#[derive(Debug, Error)]
pub enum ConvertError {
    #[error("{0:?} is no address that can be converted")]
    Address(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("Failed to convert {uri}: {error}")]
    Confined { uri: String, error: ConfinedError },
}

impl ConvertError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Address(_) => Some("give one that begins with http:, https:, file: or data:, or an absolute path".to_owned()),
            Self::File(error) => error.hint(),
            Self::Confined { error, .. } => error.hint(),
        }
    }
}

/// A URI, shortened for messages.
fn shown(uri: &str) -> String {
    let short: String = uri.chars().filter(|c| !c.is_control()).take(100).collect();
    // A query may hold secrets, and data is no name.
    let short = short.split(['?', ',']).next().unwrap_or_default();
    if short.len() < uri.len() { format!("{short}…") } else { short.to_owned() }
}

/// The path of a `file:` URI.
fn path(rest: &str) -> Option<String> {
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let (host, _) = rest.split_once('/')?;
            if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
                return None;
            }
            &rest[host.len()..]
        }
        None => rest,
    };
    let path = percent_decode_str(path).decode_utf8().ok()?;
    path.starts_with('/').then(|| path.into_owned())
}

/// Converts the content of a URI to Markdown.
pub async fn convert(converter: &Arc<Converter>, uri: &str) -> Result<Content, ConvertError> {
    let uri = uri.trim();
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let unknown = || ConvertError::Address(shown(uri));
    let (job, input) = match scheme.as_deref() {
        _ if uri.starts_with('/') => from_file(converter, uri).await?,
        Some("file") => from_file(converter, &path(&uri["file:".len()..]).ok_or_else(unknown)?).await?,
        Some("http" | "https") => {
            let closed = converter.runtime.internal_ports().collect();
            (Job::Fetch { uri: uri.to_owned(), closed }, Input::Nothing)
        }
        Some("data") => (Job::DataUri, Input::Text(uri.to_owned())),
        _ => return Err(unknown()),
    };
    let failed = |error| ConvertError::Confined { uri: shown(uri), error };
    match converter.confined.run(&job, input).await.map_err(failed)? {
        JobOutput::Content(content) => Ok(content),
        JobOutput::Skills(_) => Err(failed(Fault::refused("the reader answered something else").into())),
    }
}

async fn from_file(converter: &Arc<Converter>, path: &str) -> Result<(Job, Input), ConvertError> {
    let file = files::open_document(&converter.files, path).await?;
    Ok((Job::Markdown { name: path.to_owned() }, Input::File(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_addresses_are_paths_of_this_machine() {
        for (rest, expected) in [
            ("///a/b%20c", Some("/a/b c")),
            ("//localhost/a", Some("/a")),
            ("/a", Some("/a")),
            ("//elsewhere/a", None),
            ("relative", None),
            ("//", None),
            ("///%ff", None),
        ] {
            assert_eq!(path(rest).as_deref(), expected, "{rest}");
        }
        assert_eq!(shown("http://x/y?token=1"), "http://x/y…");
        assert_eq!(shown("data:text/plain,secret"), "data:text/plain…");
    }
}
