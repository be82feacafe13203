//! Runs a sandbox again after its processes ended, on the disk that it left.
//!
//! The sandbox controlled the disk: any of its files may be a link that leads anywhere. So this module follows no link on it,
//! and leaves out what can't be written without following one.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use arenite_image::Image;
use arenite_model::{SandboxId, SandboxSpec};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, open, openat, openat2, renameat, unlinkat};

use super::engine::{END_LIMIT, EngineShared, Live, NamespaceEngine, blocking};
use super::record::Record;
use super::slot::{Kept, kill, wait_end};
use super::{at, ca, command, kvm, volumes};
use crate::{Created, EngineError, Row, Stages};

impl NamespaceEngine {
    pub(super) async fn start_again(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let shared = self.shared.clone();
        let mut stages = Stages::begin();
        let image = shared.image(spec)?;
        volumes::find_all(&shared.host.config.volumes, Some(&shared.host.storage), spec)?;
        let kvm = kvm::is_for(&image, &shared.host.config.data_dir);
        let (owner, id) = (shared.clone(), row.id.clone());
        let record = blocking(move || owner.end_rest(&id)).await?;
        let kept = Kept {
            uid_index: record.as_ref().map(|record| record.uid_index),
            revision: record.as_ref().map_or(0, |record| record.revision),
            source: record.as_ref().and_then(|record| record.source.clone()),
            head: record.as_ref().and_then(|record| record.head.clone()),
            last_checkpoint: record.as_ref().map_or(0, |record| record.last_checkpoint),
            stopped: record.as_ref().is_some_and(|record| record.stopped),
            processes: None,
            after: None,
            layers: layers(&shared, &image, record)?,
        };
        let slot = shared.host.prepare_again(row.id.clone(), spec.network, kvm, kept).await?;
        stages.done("slot");
        let (row, spec, owner) = (row.clone(), spec.clone(), shared.clone());
        let (id, pidfd, tier, stages) =
            blocking(move || match owner.begin(&slot, &row.name, Some(row.memo), &spec, &image, &mut stages) {
                Ok(live) => {
                    let (pidfd, tier) = (live.pidfd.clone(), live.tier());
                    let mut state = owner.state();
                    state.stopped.remove(&row.id);
                    state.live.insert(row.id.clone(), live);
                    drop(state);
                    Ok((row.id, pidfd, tier, stages.done))
                }
                Err(error) => {
                    kill(&slot.first.pidfd);
                    wait_end(&slot.first.pidfd, END_LIMIT);
                    owner.host.end_again(&slot.id, slot.net_index);
                    Err(error)
                }
            })
            .await?;
        shared.watch(id, pidfd);
        Ok(Created { tier, isolation: shared.isolation(tier), stages })
    }
}

impl EngineShared {
    /// Ends what is left of the sandbox's processes and releases its address. Its record and its disk stay.
    fn end_rest(&self, id: &SandboxId) -> Result<Option<Record>, EngineError> {
        let live = self.state().live.remove(id);
        let record = match live {
            Some(Live { record, pidfd, .. }) => {
                kill(&pidfd);
                let _ = self.host.cgroups.set_frozen(record.slot_id(), false);
                if !wait_end(&pidfd, END_LIMIT) {
                    self.state().live.insert(id.clone(), Live::new(record, pidfd));
                    return Err(EngineError::Timeout { what: "ending the sandbox's processes", limit: END_LIMIT });
                }
                // Only a sandbox that this server has seen running holds its address: lost ones released it at the start.
                self.host.end_again(record.slot_id(), record.net_index);
                Some(record)
            }
            None => {
                let record = self.host.records.read(id).map_err(|e| at("record", e))?.record;
                self.host.end_again(record.as_ref().map_or(id, Record::slot_id), None);
                record
            }
        };
        self.host.records.remove_sockets(id).map_err(|e| at("guest socket", e))?;
        Ok(record)
    }
}

/// The layers below the disk: those that it was created on, even if the image has been rebuilt since.
pub(super) fn layers(shared: &EngineShared, image: &Image, record: Option<Record>) -> Result<Vec<PathBuf>, EngineError> {
    let mut layers = match record {
        Some(record) => record.layers,
        None => image.layers.iter().map(|layer| layer.dir.clone()).collect(),
    };
    if let Some(missing) = layers.iter().find(|layer| !layer.is_dir()) {
        return Err(EngineError::Stage {
            stage: "layers".to_owned(),
            source: io::Error::new(io::ErrorKind::NotFound, format!("{} is gone", missing.display())),
            hint: Some("the image was removed or built again; create the sandbox again".to_owned()),
        });
    }
    if let Some(file) = &shared.host.config.extra_ca {
        let certificates = ca::layer(&shared.host, image, file)?;
        if !layers.contains(&certificates) {
            layers.push(certificates);
        }
    }
    Ok(layers)
}

/// Writes files of `/etc` onto a sandbox's used disk. Writes nothing if `/etc` is no longer a directory.
pub(super) fn write_etc(upper: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = open(upper, directory | OFlags::NOFOLLOW, Mode::empty())?;
    let Ok(etc) = beneath(&upper, "etc", directory) else { return Ok(()) };
    // A new file replaces any existing one: that may be a link, or have other names.
    let temporary = format!(".arenite-{name}");
    match unlinkat(&etc, &temporary, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&etc, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    std::fs::File::from(file).write_all(content)?;
    match renameat(&etc, &temporary, &etc, name) {
        // The sandbox created a directory there.
        Err(rustix::io::Errno::ISDIR) => Ok(unlinkat(&etc, &temporary, AtFlags::empty())?),
        other => Ok(other?),
    }
}

/// Where the program is mounted as a command, if its path still exists.
pub(super) fn command_place(upper: &Path) -> Option<String> {
    let upper = open(upper, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = beneath(&upper, command::PLACE, OFlags::PATH | OFlags::CLOEXEC).ok()?;
    let about = rustix::fs::fstat(&file).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(about.st_mode);
    // An image with a program of that name keeps it.
    (kind.is_file() && about.st_size == 0).then(|| format!("/{}", command::PLACE))
}

fn beneath(top: &OwnedFd, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat2(top.as_fd(), path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?)
}
