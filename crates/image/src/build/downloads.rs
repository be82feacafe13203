//! Sources of ADD that are addresses.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::steps::copy_error;
use super::{BuildEvent, Building, Progress, blocking};
use crate::copy::{CopyError, Fetched, PlannedSource};
use crate::error::ImageError;
use crate::fetch::{Download, Meter, fetch, file_name};
use crate::imagefile::{Source, Text, parse_checksum};

/// Between two lines about a download's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The files of the web among the sources.
pub(super) fn fetched_of(sources: &[PlannedSource]) -> impl Iterator<Item = &Fetched> {
    sources.iter().filter_map(|source| match source {
        PlannedSource::Fetched(fetched) => Some(fetched),
        _ => None,
    })
}

/// Ends the download when the build ends.
struct StopOnDrop(Arc<Meter>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Building<'_> {
    /// What an address stands for. Without a checksum, only a download finds it out.
    pub(super) async fn fetched(
        &mut self,
        address: String,
        checksum: Option<&Text>,
        source: &Source,
        progress: Progress<'_>,
    ) -> Result<Fetched, ImageError> {
        let name = file_name(&address).unwrap_or_default();
        let mut fetched = Fetched { address, name, sha256: String::new(), file: Arc::new(OnceLock::new()) };
        match checksum {
            Some(checksum) => fetched.sha256 = parse_checksum(source.line, &self.expand(checksum, source)?)?,
            None => fetched.sha256 = self.download(&fetched, source, progress).await?,
        }
        Ok(fetched)
    }

    /// Downloads a file, which exists as long as it is open, and returns its SHA-256.
    pub(super) async fn download(
        &self,
        fetched: &Fetched,
        source: &Source,
        progress: Progress<'_>,
    ) -> Result<String, ImageError> {
        let (store, line) = (self.store.clone(), source.line);
        let wanted = Download {
            address: fetched.address.clone(),
            sha256: Some(fetched.sha256.clone()).filter(|sha256| !sha256.is_empty()),
            permitted: self.request.options.downloads,
        };
        let meter = Arc::new(Meter::default());
        let stop = StopOnDrop(meter.clone());
        let work = blocking(move || {
            let scratch = store.new_layer()?;
            let done = fetch(&wanted, &scratch.files().join("file"), &meter);
            store.abandon(&scratch);
            done.map_err(|error| {
                let reason = format!("could not download {:?}: {}", wanted.address, error.reason);
                copy_error(line, CopyError { reason, ..error })
            })
        });
        let mut work = pin!(work);
        let mut ticks = tokio::time::interval_at(Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        let done = loop {
            tokio::select! {
                done = &mut work => break done?,
                _ = ticks.tick() => {
                    if let Some(text) = stop.0.text() {
                        progress(BuildEvent::Output { line: &format!("downloaded {text}") });
                    }
                }
            }
        };
        if let Some(text) = stop.0.text() {
            progress(BuildEvent::Output { line: &format!("downloaded {text}, sha256:{}", done.sha256) });
        }
        // Set only here, and once for each source.
        let _ = fetched.file.set(done.file);
        Ok(done.sha256)
    }
}
