//! Waits for one path, for example a file that a program is about to create.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::fs::inotify::ReadFlags;
use rustix::io::Errno;
use tokio::time::{Instant, timeout_at};

use super::super::error::{Failure, FileError, Operation};
use super::super::resolve::{Root, is_dir};
use super::super::service::run;
use super::changes::Change;
use super::feed::{FileEvent, FileEventType};
use super::service::{WaitRequest, WatchError};
use super::tree;
use super::watcher::{async_fd, event, next};
use crate::files::Files;
use arenite_guest_runtime::workers::Kind;

/// A watch on the directory where a path's next event occurs.
struct Outlook {
    /// The path's current state.
    stat: Option<Stat>,
    /// Watches the nearest directory above the path.
    inotify: Arc<OwnedFd>,
    /// Whether that directory is the path's parent.
    is_parent: bool,
    path: PathBuf,
}

fn look(root: &Root, path: &Path) -> Result<Outlook, Failure> {
    let inotify = tree::instance(path)?;
    for dir in path.ancestors().skip(1) {
        let opened = match root.open_dir(dir) {
            Err(failure) if failure.errno() == Some(Errno::NOENT) => continue,
            other => other?,
        };
        tree::watch(&inotify, &opened).map_err(|e| Failure::os(e, dir.to_string_lossy()))?;
        // Checked after the watch starts, so that one of the two sees every change.
        let stat = match root.inspect(path) {
            Ok((_, stat)) => Some(stat),
            Err(failure) if failure.errno() == Some(Errno::NOENT) => None,
            Err(failure) => return Err(failure),
        };
        return Ok(Outlook { stat, inotify: Arc::new(inotify), is_parent: path.parent() == Some(dir), path: path.to_owned() });
    }
    Err(Failure::os(Errno::INVAL, path.to_string_lossy()))
}

fn kinds(events: ReadFlags) -> &'static [FileEventType] {
    use FileEventType::{Chmod, Create, Remove, Rename, Write};
    // A file that is moved here was created, and one that is moved away was removed.
    let table: [(ReadFlags, &[FileEventType]); 6] = [
        (ReadFlags::CREATE, &[Create]),
        (ReadFlags::MOVED_TO, &[Create, Rename]),
        (ReadFlags::DELETE, &[Remove]),
        (ReadFlags::MOVED_FROM, &[Remove, Rename]),
        (ReadFlags::MODIFY, &[Write]),
        (ReadFlags::ATTRIB, &[Chmod]),
    ];
    table.into_iter().find(|(flag, _)| events.intersects(*flag)).map_or(&[], |(_, kinds)| kinds)
}

/// Waits for the first event of the requested kinds; `None` after the timeout. An existing file counts as created.
pub(super) async fn wait(files: &Arc<Files>, request: WaitRequest) -> Result<Option<FileEvent>, WatchError> {
    let _permit = files.watches.waits.try_acquire().map_err(|_| WatchError::TooMany)?;
    let until = Instant::now() + Duration::from_secs(request.timeout.unsigned_abs());
    let WaitRequest { path, event_types, .. } = request;
    let fail = |failure| WatchError::File(FileError { operation: Operation::Watch, path: path.clone(), failure });
    loop {
        let looked = run(files, Operation::Watch, Kind::Brief, &files.runtime.user, &path, |_, root, target, _| {
            look(root, Path::new(&target.shown))
        });
        let Outlook { stat, inotify, is_parent, path: full } = looked.await?;
        let told = |kind, stat: Option<Stat>, is_dir| {
            let name = PathBuf::from(full.file_name().unwrap_or(OsStr::new("")));
            let change = Change { kind, path: name, old_path: None, is_dir };
            Some(event(full.parent().unwrap_or(Path::new("/")), change, stat))
        };
        if let (Some(stat), true) = (&stat, event_types.contains(&FileEventType::Create)) {
            return Ok(told(FileEventType::Create, Some(*stat), is_dir(stat)));
        }
        let queue = async_fd(inotify).map_err(|e| fail(Failure::io(e, &path)))?;
        // Until another directory may be the one to watch.
        'same: loop {
            let Ok(raw) = timeout_at(until, next(&queue)).await else { return Ok(None) };
            for raw in raw.map_err(|e| fail(Failure::io(e, &path)))? {
                if !is_parent || raw.name.is_none() || raw.events.intersects(ReadFlags::QUEUE_OVERFLOW) {
                    break 'same;
                }
                if raw.name.as_deref() != full.file_name() {
                    continue;
                }
                if let Some(kind) = kinds(raw.events).iter().find(|kind| event_types.contains(kind)) {
                    let stat = match kind {
                        FileEventType::Remove => None,
                        _ => run(files, Operation::Watch, Kind::Brief, &files.runtime.user, &path, |_, root, target, _| {
                            root.inspect(&target.path).map(|(_, stat)| stat)
                        })
                        .await
                        .ok(),
                    };
                    return Ok(told(*kind, stat, raw.events.intersects(ReadFlags::ISDIR)));
                }
            }
        }
        if Instant::now() >= until {
            return Ok(None);
        }
    }
}
