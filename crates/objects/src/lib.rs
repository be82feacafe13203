//! Object storage for the archive of trajectories: S3, Google Cloud Storage, Azure, or a directory.
//!
//! Owns the connection to the store: its URL, credentials, timeouts and retries. Never knows what is stored.
//!
//! Credentials come from the environment, under the names of each cloud's own tools: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
//! `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so on. Without them, the store asks the machine's own service for them,
//! or a web identity.

#![forbid(unsafe_code)]

mod address;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::with_sources;
use arenite_trajectory::{Content, Object, ObjectError, Objects, Pieces};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart};
use tokio::io::AsyncReadExt;

use address::ObjectLocation;
pub use address::{Address, AddressError};

/// Size of the parts of a large object, and how many are sent at once.
const PART_BYTES: usize = 8 << 20;
const PARTS: usize = 2;
/// Timeouts of requests. That of a whole one is long, since a log may be large; one that stalls ends earlier.
const TIMEOUTS: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "5 seconds"),
    (ClientConfigKey::ReadTimeout, "30 seconds"),
    (ClientConfigKey::Timeout, "1 hour"),
];

/// The store at an address.
#[derive(Debug)]
pub struct Store {
    address: Address,
    /// None: the directory of a local one, which may come later.
    cloud: Option<Arc<dyn ObjectStore>>,
}

impl Store {
    /// Reads credentials from the environment. Does not connect.
    ///
    /// # Errors
    /// [`AddressError::Credentials`] if they are incomplete.
    pub fn open(address: Address) -> Result<Self, AddressError> {
        let url = address.bucket_url();
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(2), base: 2.0 },
            max_retries: 2,
            retry_timeout: Duration::from_secs(20),
        };
        let built = match &address.location {
            ObjectLocation::Directory(_) => return Ok(Self { address, cloud: None }),
            ObjectLocation::S3(_) => {
                let builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
                let set = |b: AmazonS3Builder, (key, value)| b.with_config(AmazonS3ConfigKey::Client(key), value);
                TIMEOUTS.into_iter().fold(builder, set).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            ObjectLocation::Google(_) => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry);
                let set = |b: GoogleCloudStorageBuilder, (key, value)| b.with_config(GoogleConfigKey::Client(key), value);
                TIMEOUTS.into_iter().fold(builder, set).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            ObjectLocation::Azure(_) => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry);
                let set = |b: MicrosoftAzureBuilder, (key, value)| b.with_config(AzureConfigKey::Client(key), value);
                TIMEOUTS.into_iter().fold(builder, set).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
        };
        match built {
            Ok(cloud) => Ok(Self { cloud: Some(cloud), address }),
            Err(error) => Err(AddressError::Credentials { given: address.to_string(), reason: explain(&error) }),
        }
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        match (&self.cloud, &self.address.location) {
            (Some(cloud), _) => Ok(Arc::clone(cloud)),
            (None, ObjectLocation::Directory(dir)) => Ok(Arc::new(LocalFileSystem::new_with_prefix(dir)?.with_fsync(true))),
            (None, _) => Err(object_store::Error::NotImplemented { operation: "open".into(), implementer: "arenite".into() }),
        }
    }

    fn path(&self, name: &str) -> Path {
        Path::from_iter(self.address.prefix.split('/').chain(name.split('/')).filter(|part| !part.is_empty()))
    }

    /// A name from a path, without the prefix.
    fn name(&self, path: &Path) -> String {
        let prefix = self.path("");
        path.as_ref().strip_prefix(prefix.as_ref()).unwrap_or(path.as_ref()).trim_start_matches('/').to_owned()
    }

    async fn put_file(&self, name: &str, file: std::fs::File, bytes: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut file = tokio::fs::File::from_std(file);
        tokio::io::AsyncSeekExt::rewind(&mut file).await?;
        let mut rest = file.take(bytes);
        let mut left = bytes;
        let store = self.store()?;
        if bytes <= PART_BYTES as u64 {
            let mut content = Vec::with_capacity(bytes as usize);
            rest.read_to_end(&mut content).await?;
            if content.len() as u64 != bytes {
                return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            store.put(&self.path(name), content.into()).await?;
            return Ok(());
        }
        let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&self.path(name)).await?, PART_BYTES);
        while left > 0 {
            let mut part = vec![0; PART_BYTES.min(usize::try_from(left).unwrap_or(PART_BYTES))];
            let sent = async {
                rest.read_exact(&mut part).await?;
                upload.wait_for_capacity(PARTS).await.map_err(std::io::Error::other)
            };
            if let Err(error) = sent.await {
                // What was sent is of no use.
                upload.abort().await?;
                return Err(error.into());
            }
            left -= part.len() as u64;
            upload.put(part.into());
        }
        upload.finish().await?;
        Ok(())
    }
}

#[async_trait]
impl Objects for Store {
    fn place(&self) -> String {
        self.address.to_string()
    }

    async fn put(&self, name: &str, content: Content) -> Result<(), ObjectError> {
        let stored = match content {
            Content::Bytes(bytes) => match self.store() {
                Ok(store) => store.put(&self.path(name), bytes.into()).await.map(drop).map_err(|error| explain(&error)),
                Err(error) => Err(explain(&error)),
            },
            Content::File { file, bytes } => self.put_file(name, file, bytes).await.map_err(|error| explain(&*error)),
        };
        stored.map_err(|why| ObjectError::new("store", name, why))
    }

    async fn get(&self, name: &str) -> Result<Option<Pieces>, ObjectError> {
        let failed = |error: object_store::Error, name: &str| ObjectError::new("read", name, explain(&error));
        let got = match self.store() {
            Ok(store) => store.get(&self.path(name)).await,
            Err(error) => Err(error),
        };
        match got {
            Ok(got) => {
                let name = name.to_owned();
                Ok(Some(got.into_stream().map_err(move |error| failed(error, &name)).boxed()))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error, name)),
        }
    }

    async fn list(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Object>, ObjectError> {
        let failed = |error: object_store::Error| ObjectError::new("list", folder, explain(&error));
        let store = self.store().map_err(failed)?;
        let path = self.path(folder);
        let mut listed = match after {
            Some(after) => store.list_with_offset(Some(&path), &self.path(after)),
            None => store.list(Some(&path)),
        };
        // A directory is read in any order.
        let is_ordered = self.cloud.is_some();
        let mut first: BTreeSet<(String, u64)> = BTreeSet::new();
        while let Some(object) = listed.next().await {
            let object = object.map_err(failed)?;
            first.insert((self.name(&object.location), object.size));
            if first.len() == most && is_ordered {
                break;
            }
            if first.len() > most {
                first.pop_last();
            }
        }
        Ok(first.into_iter().map(|(name, bytes)| Object { name, bytes }).collect())
    }

    async fn delete(&self, name: &str) -> Result<(), ObjectError> {
        let deleted = match self.store() {
            Ok(store) => store.delete(&self.path(name)).await,
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(ObjectError::new("delete", name, explain(&error))),
        }
    }
}

/// An error with its causes. Queries of URLs are left out: they may hold signatures.
fn explain(error: &(dyn Error + 'static)) -> String {
    without_queries(&with_sources(error))
}

fn without_queries(text: &str) -> String {
    let mut parts = text.split('?');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || matches!(c, ')' | '"' | '\'' | ',')).unwrap_or(part.len());
        kept.push('?');
        kept.push_str(if end == 0 { "" } else { "…" });
        kept.push_str(&part[end..]);
    }
    kept
}

#[cfg(test)]
mod tests;
