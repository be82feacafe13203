//! `RUN --mount`: what only one step sees.
//!
//! Files of a bind are copied for the step, so that neither a link in them nor a write of the step leads to the context or to
//! another layer. Caches are directories of the store. Secrets go to the runner as they are, and nowhere else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::steps::{check_path, copy_error, lexical};
use super::{Building, MountContent, StepMount, StepSecret, blocking, refused};
use crate::copy::{CopyPlan, PlannedSource, Sources, set_owner_and_mode};
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::ignore::IgnoreFile;
use crate::imagefile::{Mount, MountKind, Source};
use crate::root::Entry;
use crate::store::OpenLayer;

/// Size of a tmpfs without `size=`, in bytes.
const TMPFS_BYTES: u64 = 1 << 30;

/// The mounts of a step, before it is known whether the step runs.
pub(super) struct Mounts {
    planned: Vec<Planned>,
    secrets: Vec<StepSecret>,
    env: BTreeMap<String, String>,
    /// Describes the mounts, without the content of caches and secrets.
    description: Vec<String>,
}

enum Planned {
    Bind { target: String, sources: Sources, plan: Box<CopyPlan>, is_writable: bool },
    Cache { target: String, id: String, mode: u32, owner: (u32, u32), is_writable: bool },
    Tmpfs { target: String, bytes: u64 },
}

impl Mounts {
    pub(super) fn add_to(&self, digest: &mut FieldDigest) {
        for text in &self.description {
            digest.add("mount", text);
        }
    }
}

/// The mounts of a step that runs.
pub(super) struct Mounted {
    pub(super) mounts: Vec<StepMount>,
    pub(super) secrets: Vec<StepSecret>,
    pub(super) env: BTreeMap<String, String>,
    /// Directories with copied files, which go with the step.
    copies: Vec<OpenLayer>,
    caches: Vec<String>,
    /// Paths that are missing in the image, where the runner creates mount points.
    points: Vec<MountPoint>,
}

struct MountPoint {
    components: Vec<OsString>,
    /// The number of first components that are there.
    existing: usize,
}

impl Building<'_> {
    /// Opens the sources of mounts and describes them for the step's digest.
    pub(super) async fn mounts(&mut self, mounts: &[Mount], source: &Source) -> Result<Mounts, ImageError> {
        let mut all = Mounts { planned: Vec::new(), secrets: Vec::new(), env: BTreeMap::new(), description: Vec::new() };
        for mount in mounts {
            let target = match &mount.target {
                Some(text) => Some(self.target(text, source)?),
                None => None,
            };
            match (&mount.kind, target) {
                (MountKind::Secret { id, variable, is_required, mode, owner }, target) => {
                    let usual = target.as_deref().and_then(|target| target.rsplit('/').next());
                    let id = id.as_deref().or(usual).unwrap_or_default().to_owned();
                    let place = target.clone().unwrap_or_else(|| lexical(Path::new(&format!("/run/secrets/{id}"))));
                    all.description.push(format!("secret {id} {place} {variable:?} {mode:o} {owner:?}"));
                    let Some(content) = self.request.options.secrets.get(&id) else {
                        if *is_required {
                            let hint = format!("give it with --secret id={id},src=FILE");
                            return Err(refused(source, format!("the secret {id:?} is required and not given"), Some(hint)));
                        }
                        continue;
                    };
                    if let Some(variable) = variable {
                        let text = String::from_utf8(content.clone()).ok().filter(|text| !text.contains('\0'));
                        let reason = || format!("the secret {id:?} can't be a variable: it is not text");
                        all.env.insert(variable.clone(), text.ok_or_else(|| refused(source, reason(), None))?);
                    }
                    if variable.is_none() || target.is_some() {
                        let content = content.clone();
                        all.secrets.push(StepSecret { target: place, content, mode: *mode, owner: *owner });
                    }
                }
                (_, None) => return Err(refused(source, "--mount has no target".to_owned(), None)),
                (MountKind::Bind { from, source: text, is_writable }, Some(target)) => {
                    let given = self.expand(text, source)?;
                    check_path(&given, source)?;
                    let origin = self.origin(from.as_deref(), source).await?;
                    let plan = Box::new(CopyPlan {
                        sources: vec![PlannedSource::Path(given.into())],
                        destination: PathBuf::from("/"),
                        into_directory: false,
                        owner: from.is_none().then_some((0, 0)),
                        created_owner: (0, 0),
                        chmod: None,
                        exclude: IgnoreFile::default(),
                        unpacks: false,
                        max_unpacked_bytes: None,
                    });
                    let line = source.line;
                    let (sources, plan) = blocking(move || {
                        let sources = Sources::read(&origin, &plan).map_err(|e| copy_error(line, e))?;
                        Ok((sources, plan))
                    })
                    .await?;
                    all.description.push(format!("bind {target} {is_writable} {}", sources.content_digest()));
                    all.planned.push(Planned::Bind { target, sources, plan, is_writable: *is_writable });
                }
                (MountKind::Cache { id, mode, owner, is_writable }, Some(target)) => {
                    let id = match id {
                        Some(text) => self.expand(text, source)?,
                        None => target.clone(),
                    };
                    all.description.push(format!("cache {target} {id} {mode:o} {owner:?} {is_writable}"));
                    all.planned.push(Planned::Cache { target, id, mode: *mode, owner: *owner, is_writable: *is_writable });
                }
                (MountKind::Tmpfs { bytes }, Some(target)) => {
                    all.description.push(format!("tmpfs {target} {bytes:?}"));
                    all.planned.push(Planned::Tmpfs { target, bytes: bytes.unwrap_or(TMPFS_BYTES) });
                }
            }
        }
        Ok(all)
    }

    fn target(&mut self, text: &crate::imagefile::Text, source: &Source) -> Result<String, ImageError> {
        let given = self.expand(text, source)?;
        check_path(&given, source)?;
        let base = self.config.workdir.as_deref().unwrap_or("/");
        let target = lexical(&Path::new(base).join(given));
        let is_own = ["/proc", "/sys", "/dev", "/run/arenite"].iter().any(|own| Path::new(&target).starts_with(own));
        // Images with browsers often ask for a larger one.
        if target == "/" || is_own && target != "/dev/shm" {
            return Err(refused(source, format!("a mount's target can't be {target:?}"), None));
        }
        Ok(target)
    }

    /// Copies files for binds, opens caches and finds out which mount points are missing.
    pub(super) async fn prepare(&self, mounts: Mounts, layer: &OpenLayer, source: &Source) -> Result<Mounted, ImageError> {
        let (store, lock, line) = (self.store.clone(), self.lock.clone(), source.line);
        let (lower, upper) = (self.lower(), layer.files());
        blocking(move || {
            let mut done = Mounted {
                mounts: Vec::new(),
                secrets: mounts.secrets,
                env: mounts.env,
                copies: Vec::new(),
                caches: Vec::new(),
                points: Vec::new(),
            };
            let fill = || -> Result<(), ImageError> {
                for planned in mounts.planned {
                    let (target, content) = match planned {
                        Planned::Bind { target, sources, mut plan, is_writable } => {
                            let copy = store.new_layer()?;
                            let files = copy.files();
                            done.copies.push(copy);
                            let is_directory = !sources.is_file();
                            if !is_directory {
                                plan.destination = PathBuf::from("/file");
                            }
                            sources.copy(&plan, &[], &files).map_err(|e| copy_error(line, e))?;
                            let path = if is_directory { files } else { files.join("file") };
                            (target, MountContent::Bind { path, is_directory, is_read_only: !is_writable })
                        }
                        Planned::Cache { target, id, mode, owner, is_writable } => {
                            let path = match &lock {
                                Some(lock) => {
                                    let path = store.cache(lock, &id, mode, owner)?;
                                    done.caches.push(id);
                                    path
                                }
                                None => {
                                    let empty = store.new_layer()?;
                                    let files = empty.files();
                                    done.copies.push(empty);
                                    let failed = || ImageError::io("could not make", &files);
                                    let opened = std::fs::File::open(&files).map_err(failed())?;
                                    set_owner_and_mode(&opened.into(), owner, mode).map_err(failed())?;
                                    files
                                }
                            };
                            (target, MountContent::Bind { path, is_directory: true, is_read_only: !is_writable })
                        }
                        Planned::Tmpfs { target, bytes } => (target, MountContent::Tmpfs { bytes }),
                    };
                    done.mounts.push(StepMount { target, content });
                }
                let view = crate::root::RootView::open(lower.iter().map(PathBuf::as_path).chain([upper.as_path()]))
                    .map_err(ImageError::io("could not read the image below", "/"))?;
                let targets =
                    done.mounts.iter().map(|mount| &mount.target).chain(done.secrets.iter().map(|secret| &secret.target));
                for target in targets {
                    let failed = |e| ImageError::Step { line, reason: format!("can't mount at {target:?}: {e}"), hint: None };
                    let components = view.resolve(Path::new(target), true).map_err(failed)?.components;
                    let is_there =
                        |length: &usize| view.entry(&components[..*length]).is_ok_and(|entry| !matches!(entry, Entry::Missing));
                    let existing = (0..=components.len()).rev().find(is_there).unwrap_or(0);
                    done.points.push(MountPoint { components, existing });
                }
                Ok(())
            };
            match fill() {
                Ok(()) => Ok(done),
                Err(error) => {
                    done.copies.iter().for_each(|copy| store.abandon(copy));
                    Err(error)
                }
            }
        })
        .await
    }

    /// Removes what was mounted, and the empty mount points from the layer.
    pub(super) async fn release(&self, mounted: Mounted, layer: &OpenLayer) -> Result<(), ImageError> {
        let (store, lock, files) = (self.store.clone(), self.lock.clone(), layer.files());
        blocking(move || {
            for copy in &mounted.copies {
                store.abandon(copy);
            }
            for (id, lock) in mounted.caches.iter().zip(lock.iter().cycle()) {
                store.close_cache(lock, id);
            }
            for point in &mounted.points {
                remove_point(&files, point).map_err(ImageError::io("could not remove a mount point in", &files))?;
            }
            Ok(())
        })
        .await
    }

    /// Keeps caches of earlier builds below their bound.
    pub(super) async fn remove_old_caches(&self) -> Result<(), ImageError> {
        let (store, Some(lock)) = (self.store.clone(), self.lock.clone()) else { return Ok(()) };
        blocking(move || {
            store.limit_caches(&lock);
            Ok(())
        })
        .await
    }
}

/// Removes an empty file or directory, and the directories around it that were created for it, unless the step filled them.
fn remove_point(files: &Path, point: &MountPoint) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for length in (point.existing + 1..=point.components.len()).rev() {
        let (name, parents) = point.components[..length].split_last().expect("it has at least one component");
        let top = rustix::fs::open(files, flags, Mode::empty())?;
        let parent = parents.iter().try_fold(top, |dir, name| rustix::fs::openat(&dir, name, flags, Mode::empty()));
        let Ok(parent) = parent else { continue };
        let removed = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
            }
            Ok(stat) if stat.st_size == 0 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                rustix::fs::unlinkat(&parent, name, AtFlags::empty())
            }
            _ => return Ok(()),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
