//! Addresses of object stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// An object store: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///DIRECTORY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) location: ObjectLocation,
    /// Without slashes at its ends; empty: none.
    pub(crate) prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectLocation {
    S3(String),
    Google(String),
    Azure(String),
    Directory(PathBuf),
}

/// Why an object store can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    #[error(
        "{given:?} is no object store: it is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY"
    )]
    Scheme { given: String },
    #[error("{given:?} is no object store: {reason}")]
    Invalid { given: String, reason: &'static str },
    #[error("{given} can't be opened: {reason}")]
    Credentials { given: String, reason: String },
}

impl Address {
    /// The URL without the prefix.
    pub(crate) fn bucket_url(&self) -> String {
        match &self.location {
            ObjectLocation::S3(bucket) => format!("s3://{bucket}"),
            ObjectLocation::Google(bucket) => format!("gs://{bucket}"),
            ObjectLocation::Azure(container) => format!("az://{container}"),
            ObjectLocation::Directory(dir) => format!("file://{}", dir.display()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.bucket_url())?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(given: &str) -> Result<Self, AddressError> {
        // It may hold a password, which must not be repeated.
        let shown = || if given.contains('@') { "an address with @".to_owned() } else { given.to_owned() };
        let invalid = |reason| AddressError::Invalid { given: shown(), reason };
        let (scheme, rest) = given.split_once("://").ok_or_else(|| AddressError::Scheme { given: shown() })?;
        if scheme == "file" {
            let dir = PathBuf::from(rest);
            let is_plain = dir.is_absolute() && dir.components().all(|part| part.as_os_str() != "..");
            return match is_plain {
                true => Ok(Self { location: ObjectLocation::Directory(dir), prefix: String::new() }),
                false => Err(invalid("it names a directory by its whole path: file:///var/lib/trajectories")),
            };
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let location = match scheme {
            "s3" => ObjectLocation::S3(bucket.to_owned()),
            "gs" => ObjectLocation::Google(bucket.to_owned()),
            "az" => ObjectLocation::Azure(bucket.to_owned()),
            _ => return Err(AddressError::Scheme { given: shown() }),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(invalid("a bucket's name comes first, and credentials are in the environment"));
        }
        let prefix = prefix.trim_matches('/');
        let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(is_name);
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(invalid("a prefix has letters, digits, -, _ and ., with / in between"));
        }
        Ok(Self { location, prefix: prefix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_and_others_are_refused() {
        for (given, wanted) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("gs://my.bucket/a/b/", "gs://my.bucket/a/b"),
            ("az://container/a", "az://container/a"),
            ("file:///srv/trajectories", "file:///srv/trajectories"),
        ] {
            assert_eq!(given.parse::<Address>().unwrap().to_string(), wanted);
        }
        for given in [
            "",
            "bucket",
            "s3:bucket",
            "s3://",
            "s3:///a",
            "http://bucket",
            "ftp://bucket",
            "file://relative",
            "file://",
            "file:///a/../b",
            "s3://bucket/a//b",
            "s3://bucket/../b",
            "s3://bucket/a?b",
            "s3://key:secret@bucket",
            "s3://bu cket",
            "S3://bucket",
        ] {
            let error = given.parse::<Address>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
