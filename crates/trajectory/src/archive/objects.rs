//! What an archive needs of an object store.

use std::error::Error;
use std::fs::File;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use thiserror::Error;

/// Named byte sequences, as S3 and others store them. A name is a path with `/`; each part has letters, digits, `-`, `_` and `.`.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// Where they are, for messages: without credentials.
    fn place(&self) -> String;
    /// Stores an object whole, or not at all. Replaces an older one.
    async fn put(&self, name: &str, content: Content) -> Result<(), ObjectError>;
    /// The bytes of an object. None: there is none with this name.
    async fn get(&self, name: &str) -> Result<Option<Pieces>, ObjectError>;
    /// Up to `most` names in a folder and below, after the name `after`, in ascending order of their bytes.
    async fn list(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Object>, ObjectError>;
    /// Deletes an object if there is one.
    async fn delete(&self, name: &str) -> Result<(), ObjectError>;
}

/// The bytes of an object, piece by piece.
pub type Pieces = BoxStream<'static, Result<Bytes, ObjectError>>;

/// What an object consists of.
#[derive(Debug)]
pub enum Content {
    Bytes(Bytes),
    /// The first `bytes` of a file, which may be too large for memory.
    File {
        file: File,
        bytes: u64,
    },
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub name: String,
    pub bytes: u64,
}

/// A failed operation on objects.
#[derive(Debug, Error)]
#[error("could not {what} {name}: {source}")]
pub struct ObjectError {
    pub what: &'static str,
    pub name: String,
    pub source: Box<dyn Error + Send + Sync>,
}

impl ObjectError {
    pub fn new(what: &'static str, name: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what, name: name.to_owned(), source: source.into() }
    }
}
