//! COPY: copies files of the build's context, of a stage, or of an image into a new layer.
//!
//! Both sides are hostile: the context may have links that lead out of it, and the layers below links that lead out of the
//! image. Sources are opened below the context's root by the kernel's own check. The destination is resolved in the layered
//! view. The layer is written component by component, through descriptors that follow no link.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::add::{self, FoundPacking, Packing};
use crate::digest::FieldDigest;
use crate::glob::{Glob, is_pattern};
use crate::ignore::IgnoreFile;
use crate::root::{Entry, Opened, Resolved, RootView};
use crate::tree::{NoSink, Selection, Top, TreeSink, WalkError, WalkRules, open_source, walk};

/// A COPY with resolved variables and names.
#[derive(Debug, Clone)]
pub(crate) struct CopyPlan {
    pub(crate) sources: Vec<PlannedSource>,
    /// Absolute in the image.
    pub(crate) destination: PathBuf,
    /// The destination is written as a directory, whether it exists or not.
    pub(crate) into_directory: bool,
    /// Of all copied files; those of their source if it is missing.
    pub(crate) owner: Option<(u32, u32)>,
    /// Of directories that are created for the destination.
    pub(crate) created_owner: (u32, u32),
    pub(crate) chmod: Option<u32>,
    /// What is left out of directories.
    pub(crate) exclude: IgnoreFile,
    /// Archives are unpacked, as ADD does.
    pub(crate) unpacks: bool,
    /// Maximum size of what an archive unpacks to, in bytes, below that of all.
    pub(crate) max_unpacked_bytes: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) enum PlannedSource {
    /// A path or a pattern of paths.
    Path(PathBuf),
    /// A file with this name and content.
    Inline(String, Vec<u8>),
    /// A file of the web.
    Fetched(Fetched),
}

/// A file of the web, known by its content before it is here: with a checksum, a layer is reused without a download.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    pub(crate) address: String,
    /// Empty if the address has none.
    pub(crate) name: String,
    pub(crate) sha256: String,
    pub(crate) file: Arc<OnceLock<OwnedFd>>,
}

/// Where the sources of a COPY are.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Context {
        dir: PathBuf,
        ignore: IgnoreFile,
    },
    /// The layers of a stage or an image, lowest first, and its name for messages.
    Layers {
        layers: Vec<PathBuf>,
        name: String,
    },
}

/// Maximum number of files that the patterns of a COPY match.
const MAX_MATCHES: usize = 10_000;

/// An opened origin.
enum OpenOrigin<'a> {
    Context(OwnedFd, &'a IgnoreFile),
    Layers(RootView, &'a str),
}

impl OpenOrigin<'_> {
    fn open(origin: &Origin) -> Result<OpenOrigin<'_>, CopyError> {
        match origin {
            Origin::Context { dir, ignore } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = rustix::fs::open(dir, flags, Mode::empty())
                    .map_err(|e| CopyError::host(format!("could not open the context {dir:?}"), e.into()))?;
                Ok(OpenOrigin::Context(root, ignore))
            }
            Origin::Layers { layers, name } => {
                let view = RootView::open(layers.iter().map(PathBuf::as_path))
                    .map_err(|e| CopyError::host(format!("could not open {name}"), e))?;
                Ok(OpenOrigin::Layers(view, name))
            }
        }
    }

    fn top(&self, given: &Path) -> Result<Top, CopyError> {
        match self {
            Self::Context(root, _) => {
                let node = open_source(root.as_fd(), given).map_err(|e| source_error(given, e))?;
                Top::from_fd(node).map_err(|e| CopyError::host(format!("could not copy {given:?}"), e))
            }
            Self::Layers(view, name) => match view.open_node(given) {
                Ok(Some(Opened::Directory(directory))) => Ok(Top::Directory(directory)),
                Ok(Some(Opened::File(file))) => Ok(Top::File(file)),
                Ok(None) => Err(CopyError::new(format!("{given:?} is not a file or directory of {name}"))),
                Err(e) => Err(CopyError::host(format!("could not open {given:?} of {name}"), e)),
            },
        }
    }

    fn ignore(&self) -> Option<&IgnoreFile> {
        match self {
            Self::Context(_, ignore) => Some(*ignore).filter(|ignore| !ignore.is_empty()),
            Self::Layers(..) => None,
        }
    }

    /// The paths that a pattern matches, in the order of their names; a path without a pattern is itself.
    fn matches(&self, given: &Path) -> Result<Vec<PathBuf>, CopyError> {
        if !given.to_str().is_some_and(is_pattern) {
            return Ok(vec![given.to_owned()]);
        }
        let mut found = vec![PathBuf::new()];
        for part in given.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::ParentDir => OsStr::new(".."),
                _ => continue,
            };
            let text = name.to_str().unwrap_or_default();
            if !is_pattern(text) {
                found.iter_mut().for_each(|path| path.push(name));
                continue;
            }
            let glob = Glob::parse(text).ok_or_else(|| CopyError::new(format!("the pattern {given:?} is not valid")))?;
            let mut next = Vec::new();
            for path in found {
                let top = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
                // What is not a directory has nothing in it.
                let Ok(Top::Directory(directory)) = self.top(top) else { continue };
                let names = directory.names().map_err(|e| CopyError::host(format!("could not read {top:?}"), e))?;
                next.extend(names.iter().filter(|name| glob.matches(&name.to_string_lossy())).map(|name| path.join(name)));
                if next.len() > MAX_MATCHES {
                    return Err(CopyError::new(format!("{given:?} matches more than {MAX_MATCHES} files")));
                }
            }
            found = next;
        }
        let is_there = |path: &PathBuf| {
            let is_ignored = self.ignore().is_some_and(|ignore| ignore.select(path) == Selection::Excluded);
            !is_ignored && self.top(path).is_ok()
        };
        found.retain(is_there);
        if found.is_empty() {
            let mut error = CopyError::new(format!("{given:?} matches no file"));
            error.hint = Some("patterns are relative to the context's directory, and .dockerignore hides files".to_owned());
            return Err(error);
        }
        Ok(found)
    }
}

/// Why a COPY failed.
#[derive(Debug)]
pub(crate) struct CopyError {
    pub(crate) reason: String,
    pub(crate) hint: Option<String>,
    /// The host's error, if there is one.
    pub(crate) source: Option<io::Error>,
}

impl CopyError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: None, source: None }
    }

    fn host(what: String, source: io::Error) -> Self {
        Self { reason: format!("{what}: {source}"), hint: None, source: Some(source) }
    }
}

/// One opened source, with the digest of its content.
#[derive(Debug)]
struct SourceTree {
    given: PathBuf,
    content: Content,
    digest: String,
    /// Paths of the context that the build does not see; none for other origins.
    ignore: Option<IgnoreFile>,
    exclude: IgnoreFile,
    with_owners: bool,
}

#[derive(Debug)]
enum Content {
    Tree(Top),
    Archive(OwnedFd, Packing),
    Inline(Vec<u8>),
    Fetched(Arc<OnceLock<OwnedFd>>),
}

/// The sources of a COPY, read once for their digests.
#[derive(Debug)]
pub(crate) struct Sources(Vec<SourceTree>);

impl Sources {
    /// Opens and digests all sources of a plan.
    pub(crate) fn read(origin: &Origin, plan: &CopyPlan) -> Result<Self, CopyError> {
        let opened = OpenOrigin::open(origin)?;
        let mut trees = Vec::new();
        for source in &plan.sources {
            match source {
                PlannedSource::Path(given) => {
                    for path in opened.matches(given)? {
                        trees.push(SourceTree::read(&opened, path, plan)?);
                    }
                }
                PlannedSource::Fetched(fetched) => trees.push(SourceTree {
                    given: PathBuf::from(&fetched.name),
                    digest: FieldDigest::new("fetched").field("sha256", &fetched.sha256).hex(),
                    content: Content::Fetched(fetched.file.clone()),
                    ignore: None,
                    exclude: IgnoreFile::default(),
                    with_owners: false,
                }),
                PlannedSource::Inline(name, content) => trees.push(SourceTree {
                    given: name.into(),
                    digest: FieldDigest::new("inline").field("content", content).hex(),
                    content: Content::Inline(content.clone()),
                    ignore: None,
                    exclude: IgnoreFile::default(),
                    with_owners: false,
                }),
            }
        }
        Ok(Self(trees))
    }

    /// Whether the patterns matched several files, which need a directory.
    pub(crate) fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// The digest of the content alone.
    pub(crate) fn content_digest(&self) -> String {
        let mut digest = FieldDigest::new("sources");
        for tree in &self.0 {
            digest.add("tree", &tree.digest);
        }
        digest.hex()
    }

    /// Whether the only source is a file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(&self.0[..], [tree] if !tree.is_directory())
    }

    /// The digest of the step on the layer `below`.
    pub(crate) fn digest(&self, below: &str, plan: &CopyPlan) -> String {
        let mut digest = FieldDigest::step(Some(below), "copy")
            .field("destination", plan.destination.as_os_str().as_bytes())
            .field("into directory", [u8::from(plan.into_directory)])
            .field("created uid", plan.created_owner.0.to_le_bytes())
            .field("created gid", plan.created_owner.1.to_le_bytes());
        match plan.owner {
            Some((uid, gid)) => {
                digest.add("uid", uid.to_le_bytes());
                digest.add("gid", gid.to_le_bytes());
            }
            None => digest.add("owners", "kept"),
        }
        if let Some(mode) = plan.chmod {
            digest.add("chmod", mode.to_le_bytes());
        }
        for tree in &self.0 {
            // A directory's own name is not copied, a file's is.
            let name = (!tree.is_directory()).then(|| tree.given.file_name()).flatten();
            digest.add("name", name.unwrap_or_default().as_bytes());
            if let Content::Archive(..) = tree.content {
                digest.add("is", "unpacked");
            }
            digest.add("tree", &tree.digest);
        }
        digest.hex()
    }

    /// Copies all sources into the new layer `files`, on top of the layers `lower` (lowest first).
    pub(crate) fn copy(&self, plan: &CopyPlan, lower: &[PathBuf], files: &Path) -> Result<(), CopyError> {
        let mut target =
            LayerWriter::open(lower, files).map_err(|e| CopyError::host("could not open the image's layers".to_owned(), e))?;
        let destination = |target: &LayerWriter| {
            target.view.resolve(&plan.destination, true).map_err(|e| destination_error(&plan.destination, e))
        };
        if plan.into_directory {
            // As in Docker, a directory that is named as one is not like its source.
            let at = destination(&target)?;
            if let Entry::Missing = at.entry {
                let failed = |e| CopyError::host(format!("could not make {:?}", plan.destination), e);
                target.directory(&at.components, 0o755, plan.created_owner).map_err(failed)?;
            }
        }
        for tree in &self.0 {
            let at = destination(&target)?;
            if let Content::Archive(file, packing) = &tree.content {
                if !matches!(at.entry, Entry::Directory(_) | Entry::Missing) {
                    return Err(not_a_directory(&plan.destination));
                }
                let failed = |e| CopyError::host(format!("could not unpack {:?}", tree.given), e);
                add::unpack(&mut target, &at.components, file, *packing, (plan.created_owner, plan.max_unpacked_bytes))
                    .map_err(failed)?;
                continue;
            }
            let place = tree.place(plan, at)?;
            let mut sink = CopySink { target: &mut target, place, plan, directories: Vec::new(), open: None };
            let digest = match &tree.content {
                Content::Tree(top) => tree.walk(top, &mut sink)?,
                Content::Inline(content) => {
                    sink.inline(content).map_err(|e| CopyError::host(format!("could not write {:?}", tree.given), e))?;
                    continue;
                }
                Content::Fetched(file) => {
                    let missing = || CopyError::new(format!("{:?} was not downloaded", tree.given));
                    let failed = |e| CopyError::host(format!("could not read {:?}", tree.given), e);
                    let top = Top::File(file.get().ok_or_else(missing)?.try_clone().map_err(failed)?);
                    // Its SHA-256 was compared when it arrived, and no one else has it.
                    tree.walk(&top, &mut sink)?;
                    continue;
                }
                Content::Archive(..) => continue,
            };
            if digest != tree.digest {
                let mut error = CopyError::new(format!("{:?} changed while it was copied", tree.given));
                error.hint = Some("build again when nothing writes to the context".to_owned());
                return Err(error);
            }
        }
        Ok(())
    }
}

impl SourceTree {
    fn read(origin: &OpenOrigin<'_>, given: PathBuf, plan: &CopyPlan) -> Result<Self, CopyError> {
        let top = origin.top(&given)?;
        let is_ignored = |ignore: &IgnoreFile| match ignore.select(&given) {
            Selection::Included => false,
            Selection::Descend => !top.is_directory(),
            Selection::Excluded => true,
        };
        if origin.ignore().is_some_and(is_ignored) {
            let mut error = CopyError::new(format!("{given:?} is excluded by .dockerignore"));
            error.hint = Some(format!("add a line to it: !{}", given.display()));
            return Err(error);
        }
        let packing = match &top {
            Top::File(file) if plan.unpacks => {
                add::packing(file).map_err(|e| CopyError::host(format!("could not read {given:?}"), e))?
            }
            _ => FoundPacking::None,
        };
        if let FoundPacking::Unsupported(kind) = packing {
            let mut error = CopyError::new(format!("not supported: ADD of {given:?}, which is compressed by {kind}"));
            error.hint = Some(format!("COPY it and unpack it with RUN tar, or compress it with gzip instead of {kind}"));
            return Err(error);
        }
        let mut tree = Self {
            given,
            content: Content::Inline(Vec::new()),
            digest: String::new(),
            ignore: origin.ignore().cloned(),
            exclude: plan.exclude.clone(),
            with_owners: plan.owner.is_none(),
        };
        tree.digest = tree.walk(&top, &mut NoSink)?;
        tree.content = match (top, packing) {
            (Top::File(file), FoundPacking::Some(packing)) => Content::Archive(file, packing),
            (top, _) => Content::Tree(top),
        };
        Ok(tree)
    }

    fn is_directory(&self) -> bool {
        matches!(&self.content, Content::Tree(top) if top.is_directory())
    }

    fn walk(&self, top: &Top, sink: &mut dyn TreeSink) -> Result<String, CopyError> {
        let select = |path: &Path| self.select(path, top.is_directory());
        let has_rules = self.ignore.is_some() || !self.exclude.is_empty();
        let rules = WalkRules { select: if has_rules { Some(&select) } else { None }, with_owners: self.with_owners };
        walk(top, rules, sink).map_err(|e| walk_error(&self.given, e))
    }

    fn select(&self, path: &Path, is_below_directory: bool) -> Selection {
        let ignored = self.ignore.as_ref().map_or(Selection::Included, |ignore| ignore.select(&self.given.join(path)));
        let name = self.given.file_name().map(Path::new).filter(|_| !is_below_directory);
        let excluded = self.exclude.select(name.unwrap_or(path));
        match (ignored, excluded) {
            (Selection::Included, other) | (other, Selection::Included) => other,
            (Selection::Descend, Selection::Descend) => Selection::Descend,
            _ => Selection::Excluded,
        }
    }

    /// The path in the image of this source's top.
    fn place(&self, plan: &CopyPlan, at: Resolved) -> Result<Vec<OsString>, CopyError> {
        let exists_as_directory = matches!(at.entry, Entry::Directory(_));
        let is_missing = matches!(at.entry, Entry::Missing);
        let mut place = at.components;
        if self.is_directory() || plan.into_directory {
            if !exists_as_directory && !is_missing {
                return Err(not_a_directory(&plan.destination));
            }
            if self.is_directory() {
                return Ok(place);
            }
        }
        if exists_as_directory || plan.into_directory {
            let name = self.given.file_name().ok_or_else(|| {
                CopyError::new(format!("the source {:?} has no name, and the destination is a directory", self.given))
            })?;
            place.push(name.to_owned());
        }
        Ok(place)
    }
}

fn not_a_directory(destination: &Path) -> CopyError {
    CopyError::new(format!("the destination {destination:?} is not a directory in the image"))
}

fn source_error(given: &Path, errno: Errno) -> CopyError {
    match errno {
        Errno::NOENT | Errno::NOTDIR => {
            let mut error = CopyError::new(format!("{given:?} is not in the context"));
            error.hint = Some("sources are relative to the context's directory".to_owned());
            error
        }
        Errno::XDEV => {
            let mut error = CopyError::new(format!("{given:?} leads out of the context"));
            error.hint = Some("copy it into the context's directory".to_owned());
            error
        }
        Errno::NXIO => CopyError::new(format!("{given:?} is a socket; only files, directories and links can be copied")),
        other => CopyError::host(format!("could not open {given:?}"), other.into()),
    }
}

fn walk_error(given: &Path, error: WalkError) -> CopyError {
    CopyError::host(format!("could not copy {:?}", given.join(error.path)), error.source)
}

fn destination_error(destination: &Path, error: io::Error) -> CopyError {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => CopyError::new(format!("the destination {destination:?} goes through too many links in the image")),
        Some(Errno::NOTDIR) => {
            CopyError::new(format!("the destination {destination:?} goes through something in the image that is not a directory"))
        }
        _ => CopyError::host(format!("could not look up {destination:?}"), error),
    }
}

/// Writes into a layer that is being built.
pub(crate) struct LayerWriter {
    files: OwnedFd,
    /// The layers below, with this one on top.
    pub(crate) view: RootView,
    /// A directory was created as the layers below have it.
    follows_lower: Cell<bool>,
}

impl LayerWriter {
    pub(crate) fn open(lower: &[PathBuf], files: &Path) -> io::Result<Self> {
        let layers = lower.iter().map(PathBuf::as_path).chain([files]);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let view = RootView::open(layers)?;
        let files = rustix::fs::open(files, flags, Mode::empty())?;
        let writer = Self { files, view, follows_lower: Cell::new(false) };
        // The top layer's root is the image's root: it gets the attributes of the layers below.
        if let Some(top) = lower.last() {
            writer.take_over(&writer.files, &rustix::fs::stat(top)?)?;
        }
        Ok(writer)
    }

    /// Opens a directory of the layer. Creates it and its missing parents: like those of the layers below, else with `mode` and
    /// `owner`.
    pub(crate) fn directory(&self, components: &[OsString], mode: u32, owner: (u32, u32)) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut here = self.files.try_clone()?;
        for (index, name) in components.iter().enumerate() {
            let below = match rustix::fs::openat(&here, name, flags, Mode::empty()) {
                Ok(dir) => {
                    here = dir;
                    continue;
                }
                Err(Errno::NOENT) => {
                    self.follows_lower.set(true);
                    self.view.entry(&components[..=index])?
                }
                // Removed from the layers below, and created again by this layer.
                Err(Errno::NOTDIR) if remove_whiteout(&here, name)? => {
                    rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o700))?;
                    here = rustix::fs::openat(&here, name, flags, Mode::empty())?;
                    set_opaque(&here)?;
                    set_owner_and_mode(&here, owner, mode)?;
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            if !matches!(below, Entry::Directory(_) | Entry::Missing) {
                return Err(Errno::NOTDIR.into());
            }
            rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o700))?;
            here = rustix::fs::openat(&here, name, flags, Mode::empty())?;
            match below {
                Entry::Directory(stat) => self.take_over(&here, &stat)?,
                _ => set_owner_and_mode(&here, owner, mode)?,
            }
        }
        Ok(here)
    }

    /// Whether the layer would be another one on other layers.
    pub(crate) fn follows_lower(&self) -> bool {
        self.follows_lower.get()
    }

    fn take_over(&self, dir: &OwnedFd, stat: &Stat) -> io::Result<()> {
        set_owner_and_mode(dir, (stat.st_uid, stat.st_gid), stat.st_mode & 0o7777)?;
        set_times(dir, stat)
    }
}

/// Hides what the layers below have in a directory.
pub(crate) fn set_opaque(dir: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fsetxattr(dir, "user.overlay.opaque", b"y", XattrFlags::empty())?)
}

/// Removes a whiteout; returns whether there was one.
pub(crate) fn remove_whiteout(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_whiteout = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0;
    if is_whiteout {
        rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
    }
    Ok(is_whiteout)
}

pub(crate) fn set_owner_and_mode(node: &OwnedFd, owner: (u32, u32), mode: u32) -> io::Result<()> {
    // The owner first: a change of owner clears set-id bits.
    rustix::fs::fchown(node, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
    rustix::fs::fchmod(node, Mode::from_raw_mode(mode))?;
    Ok(())
}

fn set_times(node: &OwnedFd, stat: &Stat) -> io::Result<()> {
    let time = Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::futimens(node, &times)?;
    Ok(())
}

/// A directory that is being copied.
struct OpenDirectory {
    fd: OwnedFd,
    /// Its path in the image: below a link of the image, this differs from the source's path.
    components: Vec<OsString>,
    /// It was not in the image before, so it gets the source's time.
    is_new: bool,
}

/// Writes the entries of a walk.
struct CopySink<'a> {
    target: &'a mut LayerWriter,
    /// The target of the walk's top.
    place: Vec<OsString>,
    plan: &'a CopyPlan,
    directories: Vec<OpenDirectory>,
    open: Option<File>,
}

impl CopySink<'_> {
    /// The parent's descriptor and the name for a file or link at `path`, after removing what this layer had there.
    fn slot(&mut self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let (parent, name, components) = match (path.file_name(), self.directories.last()) {
            (Some(name), Some(dir)) => (dir.fd.try_clone()?, name.to_owned(), joined(&dir.components, name)),
            _ => {
                let (name, parents) = self.place.split_last().ok_or_else(|| io::Error::from(Errno::ISDIR))?;
                let parent = self.target.directory(parents, 0o755, self.plan.created_owner)?;
                (parent, name.clone(), self.place.clone())
            }
        };
        if let Entry::Directory(_) = self.target.view.entry(&components)? {
            return Err(io::Error::other("it is a directory in the image"));
        }
        match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, name)),
            Err(e) => Err(e.into()),
        }
    }

    fn owner(&self, stat: &Stat) -> (u32, u32) {
        self.plan.owner.unwrap_or((stat.st_uid, stat.st_gid))
    }

    /// Writes the top as a file.
    fn inline(&mut self, content: &[u8]) -> io::Result<()> {
        let (parent, name) = self.slot(Path::new(""))?;
        let mut file = new_file(&parent, &name)?;
        file.write_all(content)?;
        set_owner_and_mode(&OwnedFd::from(file), self.plan.owner.unwrap_or((0, 0)), self.plan.chmod.unwrap_or(0o644))
    }

    fn mode(&self, stat: &Stat, is_directory: bool) -> u32 {
        match self.plan.chmod {
            // A readable directory must be searchable to be useful.
            Some(mode) if is_directory => mode | ((mode & 0o444) >> 2),
            Some(mode) => mode,
            None => stat.st_mode & 0o7777,
        }
    }
}

/// Creates a file in a directory of the layer.
pub(crate) fn new_file(parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?))
}

fn joined(components: &[OsString], name: &OsStr) -> Vec<OsString> {
    let mut all = components.to_vec();
    all.push(name.to_owned());
    all
}

impl TreeSink for CopySink<'_> {
    fn enter(&mut self, path: &Path, stat: &Stat) -> io::Result<()> {
        let components = match (path.file_name(), self.directories.last()) {
            (Some(name), Some(dir)) => joined(&dir.components, name),
            _ => self.place.clone(),
        };
        // `lib/` copied onto an image with `lib` as a link to `usr/lib` goes there, as with cp.
        let mut at = PathBuf::from("/");
        at.extend(&components);
        let resolved = self.target.view.resolve(&at, true)?;
        let is_new = match resolved.entry {
            Entry::Missing => true,
            Entry::Directory(_) => false,
            _ => return Err(io::Error::other("it is not a directory in the image")),
        };
        let parents = resolved.components.len().saturating_sub(1);
        self.target.directory(&resolved.components[..parents], 0o755, self.plan.created_owner)?;
        let fd = self.target.directory(&resolved.components, self.mode(stat, true), self.owner(stat))?;
        self.directories.push(OpenDirectory { fd, components: resolved.components, is_new });
        Ok(())
    }

    fn leave(&mut self, _: &Path, stat: &Stat) -> io::Result<()> {
        match self.directories.pop() {
            Some(dir) if dir.is_new => set_times(&dir.fd, stat),
            _ => Ok(()),
        }
    }

    fn symlink(&mut self, path: &Path, stat: &Stat, target: &OsStr) -> io::Result<()> {
        let (parent, name) = self.slot(path)?;
        let owner = self.owner(stat);
        rustix::fs::symlinkat(target, &parent, &name)?;
        rustix::fs::chownat(
            &parent,
            &name,
            Some(Uid::from_raw(owner.0)),
            Some(Gid::from_raw(owner.1)),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(())
    }

    fn file(&mut self, path: &Path, _: &Stat) -> io::Result<()> {
        let (parent, name) = self.slot(path)?;
        self.open = Some(new_file(&parent, &name)?);
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.open {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }

    fn end_file(&mut self, _: &Path, stat: &Stat) -> io::Result<()> {
        match self.open.take() {
            Some(file) => {
                let file = OwnedFd::from(file);
                set_owner_and_mode(&file, self.owner(stat), self.mode(stat, false))?;
                set_times(&file, stat)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
