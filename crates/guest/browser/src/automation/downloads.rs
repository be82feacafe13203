//! Files that the browser downloads for pages.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Deserialize;
use tokio::sync::watch;

use super::lock;

/// Maximum downloads that are kept.
const MAX_DOWNLOADS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    pub guid: String,
    pub url: String,
    /// The suggested name; the file's name may have a number appended.
    pub filename: String,
    /// The file's path, once the download is complete.
    pub path: Option<String>,
    pub progress: Progress,
    /// Whether a waiting call has received this download.
    pub told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Progress {
    #[serde(rename = "inProgress")]
    Running,
    #[serde(rename = "completed")]
    Whole,
    #[serde(rename = "canceled")]
    Broken,
}

#[derive(Debug, Default)]
pub(crate) struct Downloads {
    all: Mutex<VecDeque<Download>>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WillBegin {
    guid: String,
    url: String,
    suggested_filename: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Progressed {
    guid: String,
    state: Progress,
    file_path: Option<String>,
}

impl Downloads {
    pub(super) fn begun(&self, begun: WillBegin) {
        let mut all = lock(&self.all);
        if all.len() == MAX_DOWNLOADS {
            all.pop_front();
        }
        let WillBegin { guid, url, suggested_filename: filename } = begun;
        all.push_back(Download { guid, url, filename, path: None, progress: Progress::Running, told: false });
        drop(all);
        self.changed.send_replace(());
    }

    pub(super) fn progressed(&self, told: Progressed) {
        let mut all = lock(&self.all);
        if let Some(download) = all.iter_mut().find(|download| download.guid == told.guid) {
            download.progress = told.state;
            if told.file_path.as_ref().is_some_and(|path| !path.is_empty()) {
                download.path = told.file_path;
            }
        }
        drop(all);
        self.changed.send_replace(());
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the kept downloads, the oldest first.
    pub(crate) fn list(&self) -> Vec<Download> {
        lock(&self.all).iter().cloned().collect()
    }

    /// The first finished download that was not reported yet. Marks it as reported.
    pub(crate) fn ended(&self) -> Option<Download> {
        let mut all = lock(&self.all);
        let ended = all.iter_mut().find(|download| !download.told && download.progress != Progress::Running)?;
        ended.told = true;
        Some(ended.clone())
    }
}
