//! The effects of each instruction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::accounts::{accounts, number};
use super::downloads::fetched_of;
use super::{BuildEvent, Building, Found, Progress, RunStep, STEP_LIMIT, blocking, refused};
use crate::copy::{CopyError, CopyPlan, LayerWriter, Origin, PlannedSource, Sources};
use crate::debian::{AptSources, BootstrapError, RECIPE, bootstrap};
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::fetch::{file_name, is_address};
use crate::ignore::IgnoreFile;
use crate::imagefile::{
    Base, Chown, Command, CopySource, CopyStep, Run, Source, StageSource, Suite, Text, is_account, parse_mode,
};
use crate::output::OutputLines;
use crate::removal::remove_tree;
use crate::root::Entry;
use crate::store::OpenLayer;

/// Maximum number of bytes that are read of an image's `/etc/passwd` or `/etc/group`.
const MAX_ACCOUNTS_BYTES: u64 = 1 << 20;
/// Maximum size of an image's environment, or of its labels, in bytes.
const MAX_CONFIG_BYTES: usize = 128 << 10;
/// The path in a step's sandbox of a here-document with its own interpreter.
const SCRIPT_PATH: &str = "/run/arenite/script";
/// The default `PATH` of a fresh Debian, and of an empty image.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Building<'_> {
    pub(super) async fn from(&mut self, base: &Base, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        match base {
            Base::Image(name) => {
                let image = self.image(name).await?;
                self.layers = image.layers.into_iter().map(|l| l.digest).collect();
                self.config = image.config;
                Ok(image.size_bytes)
            }
            Base::Stage(index) => {
                let stage = self.done.get(index).expect("a plan has a stage's base before it").clone();
                self.layers = stage.layers;
                self.config = stage.config;
                self.arguments = stage.arguments;
                Ok(0)
            }
            Base::Scratch => {
                self.config.env.insert("PATH".to_owned(), DEFAULT_PATH.to_owned());
                match self.reuse(FieldDigest::step(None, "scratch"), progress).await? {
                    Found::Layer(bytes) => Ok(bytes),
                    Found::Nothing(digest) => {
                        let layer = self.new_layer(source).await?;
                        self.end(Ok(()), layer, digest, source).await
                    }
                }
            }
            Base::Debootstrap(suite) => {
                self.check_bootstrap(*suite, source)?;
                let path = DEFAULT_PATH.to_owned();
                self.config.env.insert("PATH".to_owned(), path);
                let digest = FieldDigest::step(None, "debootstrap")
                    .field("suite", suite.as_str())
                    .field("recipe", RECIPE)
                    .field("architecture", std::env::consts::ARCH);
                match self.reuse(digest, progress).await? {
                    Found::Layer(bytes) => Ok(bytes),
                    Found::Nothing(digest) => {
                        let layer = self.new_layer(source).await?;
                        let made = self.debootstrap(*suite, &layer, source, progress).await;
                        self.end(made, layer, digest, source).await
                    }
                }
            }
        }
    }

    async fn debootstrap(
        &self,
        suite: Suite,
        layer: &OpenLayer,
        source: &Source,
        progress: Progress<'_>,
    ) -> Result<(), ImageError> {
        let sources = blocking(|| Ok(AptSources::read(Path::new("/etc/apt")))).await?;
        let mut show = |line: &str| progress(BuildEvent::Output { line });
        let mut output = OutputLines::new(&mut show);
        let target = layer.files();
        let result = tokio::time::timeout(STEP_LIMIT, bootstrap(suite, &sources, &target, &mut output)).await;
        let tail = output.finish();
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(BootstrapError::Missing(tool))) => Err(ImageError::MissingTool { tool }),
            Ok(Err(BootstrapError::Failed(code))) => {
                Err(ImageError::Failed { line: source.line, what: format!("creating Debian {}", suite.as_str()), code, tail })
            }
            Ok(Err(BootstrapError::Io(what, path, error))) => Err(ImageError::io(what, path)(error)),
            Err(_) => Err(timeout("mmdebstrap", source)),
        }
    }

    pub(super) async fn run(&mut self, run: &Run, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        let user = self.config.user.clone().unwrap_or_else(|| "root".to_owned());
        let workdir = self.config.workdir.clone().unwrap_or_else(|| "/".to_owned());
        let mut argv = self.argv(&run.command);
        if run.script.is_some() {
            argv.push(SCRIPT_PATH.to_owned());
        }
        let mut digest = self.digest("run").field("user", &user).field("workdir", &workdir);
        for arg in &argv {
            digest.add("argument", arg);
        }
        for (name, value) in &self.config.env {
            digest.add("variable", name);
            digest.add("value", value);
        }
        // Only if they are used: a layer's digest stays what it was before there were ARGs, mounts, and the like.
        for (name, value) in self.arguments.iter().filter(|(name, _)| !self.config.env.contains_key(*name)) {
            digest.add("build argument", name);
            digest.add("value", value);
        }
        if let Some(script) = &run.script {
            digest.add("script", script);
        }
        let is_offline = run.is_offline || self.is_offline();
        if is_offline {
            digest.add("network", "none");
        }
        let mounts = self.mounts(&run.mounts, source).await?;
        mounts.add_to(&mut digest);
        let digest = match self.reuse(digest, progress).await? {
            Found::Layer(bytes) => return Ok(bytes),
            Found::Nothing(digest) => digest,
        };
        let layer = self.new_layer(source).await?;
        let mounted = match self.prepare(mounts, &layer, source).await {
            Ok(mounted) => mounted,
            Err(error) => return self.end(Err(error), layer, digest, source).await,
        };
        let host = self.request.env;
        let mut env = host.env.clone();
        env.extend(self.request.options.proxies());
        env.extend(self.arguments.clone());
        env.extend(self.config.env.clone());
        env.extend(mounted.env.clone());
        let mut files = host.files.clone();
        files.extend(run.script.as_ref().map(|script| (SCRIPT_PATH.to_owned(), script.clone().into_bytes())));
        let step = RunStep {
            lower: self.lower(),
            layer: layer.dir.clone(),
            upper: layer.files(),
            work: layer.work(),
            argv,
            env,
            workdir,
            user,
            ca_file: host.ca_file.clone(),
            files,
            mounts: mounted.mounts.clone(),
            secrets: mounted.secrets.clone(),
            is_offline,
        };
        let result = {
            let mut show = |line: &str| progress(BuildEvent::Output { line });
            let mut output = OutputLines::new(&mut show);
            let (cancelled, exceeded) = (self.cancelled(), self.allowance(source).exceeded(layer.files()));
            let mut feed = |bytes: &[u8]| output.feed(bytes);
            let result = tokio::select! {
                biased;
                // Its processes end when it is dropped.
                () = cancelled => Err(ImageError::Cancelled),
                error = exceeded => Err(error),
                result = tokio::time::timeout(STEP_LIMIT, self.runner.run(step, &mut feed)) => Ok(result),
            };
            let tail = output.finish();
            match result {
                Err(error) => Err(error),
                Ok(Ok(Ok(0))) => Ok(()),
                Ok(Ok(Ok(code))) => Err(ImageError::Failed { line: source.line, what: "the command".to_owned(), code, tail }),
                Ok(Ok(Err(error))) => Err(ImageError::Runner { line: source.line, source: error }),
                Ok(Err(_)) => Err(timeout("the command", source)),
            }
        };
        let removed = self.release(mounted, &layer).await;
        // The mount points of the build's own files are not part of the command's result.
        let files = layer.files();
        let result = match result.and(removed) {
            Ok(()) => blocking(move || drop_mount_points(&files)).await,
            Err(error) => Err(error),
        };
        self.end(result, layer, digest, source).await
    }

    pub(super) async fn copy(&mut self, step: &CopyStep, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        let destination = self.expand(&step.destination, source)?;
        check_path(&destination, source)?;
        let into_directory =
            step.sources.len() > 1 || destination.ends_with('/') || matches!(destination.rsplit('/').next(), Some("." | ".."));
        let mut sources = Vec::new();
        for given in &step.sources {
            sources.push(match given {
                CopySource::Path(text) => {
                    let path = self.expand(text, source)?;
                    check_path(&path, source)?;
                    if step.is_add && is_address(&path) {
                        check_name(&path, into_directory, source)?;
                        PlannedSource::Fetched(self.fetched(path, step.checksum.as_ref(), source, progress).await?)
                    } else {
                        if step.is_add {
                            check_local(&path, step, source)?;
                        }
                        PlannedSource::Path(PathBuf::from(path))
                    }
                }
                CopySource::Inline { name, content } => {
                    PlannedSource::Inline(name.clone(), self.expand(content, source)?.into_bytes())
                }
            });
        }
        let given_owner = match &step.chown {
            Some(chown) => {
                let owner = self.expand(chown, source)?;
                Some(self.owner(&Chown::parse(source.line, &owner)?, source).await?)
            }
            None => None,
        };
        let chmod = match &step.chmod {
            Some(mode) => Some(parse_mode(source.line, &self.expand(mode, source)?)?),
            None => None,
        };
        let mut exclude = Vec::new();
        for pattern in &step.exclude {
            exclude.push(self.expand(pattern, source)?);
        }
        let base = self.config.workdir.as_deref().unwrap_or("/");
        let mut plan = CopyPlan {
            sources,
            destination: Path::new(base).join(destination),
            into_directory,
            // Files of a stage keep their owners; those of the context are the host's, and become root's.
            owner: given_owner.or(step.from.is_none().then_some((0, 0))),
            created_owner: given_owner.unwrap_or((0, 0)),
            chmod,
            exclude: IgnoreFile::of_patterns(&exclude)
                .map_err(|reason| refused(source, format!("--exclude is not valid: {reason}"), None))?,
            unpacks: step.is_add,
            max_unpacked_bytes: self.bytes_left(),
        };
        let origin = self.origin(step.from.as_deref(), source).await?;
        let below = self.top().to_owned();
        let line = source.line;
        let (plan, sources, digest) = blocking(move || {
            let sources = Sources::read(&origin, &plan).map_err(|e| copy_error(line, e))?;
            plan.into_directory |= sources.are_several();
            let digest = sources.digest(&below, &plan);
            Ok((plan, sources, digest))
        })
        .await?;
        let digest = match self.reuse_digest(digest, progress).await? {
            Found::Layer(bytes) => return Ok(bytes),
            Found::Nothing(digest) => digest,
        };
        for fetched in fetched_of(&plan.sources).filter(|fetched| fetched.file.get().is_none()) {
            self.download(fetched, source, progress).await?;
        }
        let layer = self.new_layer(source).await?;
        let (lower, files) = (self.lower(), layer.files());
        let copied = blocking(move || sources.copy(&plan, &lower, &files).map_err(|e| copy_error(line, e))).await;
        self.end(copied, layer, digest, source).await
    }

    /// The place of a COPY's sources: a stage, an image, or the context.
    pub(super) async fn origin(&mut self, from: Option<&str>, source: &Source) -> Result<Origin, ImageError> {
        let Some(name) = from else {
            let ignore = self.request.options.ignore.clone();
            return Ok(Origin::Context { dir: self.request.context_dir.to_owned(), ignore });
        };
        let layers = match self.request.imagefile.source_of(source.line, name, self.stage)? {
            StageSource::Stage(index) => {
                let stage = self.done.get(&index).expect("a plan has the stages that are copied from before");
                stage.layers.iter().map(|digest| self.store.layer_files(digest)).collect()
            }
            StageSource::Image(image) => {
                let image = self.image(&image).await?;
                image.layers.into_iter().map(|layer| layer.dir).collect()
            }
        };
        Ok(Origin::Layers { layers, name: format!("{name:?}") })
    }

    pub(super) async fn workdir(&mut self, path: &Text, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        let given = self.expand(path, source)?;
        check_path(&given, source)?;
        let base = self.config.workdir.as_deref().unwrap_or("/");
        let dir = lexical(&Path::new(base).join(given));
        let lower = self.lower();
        let wanted = dir.clone();
        let looked_up = self.view(move |view| Ok(view.resolve(Path::new(&wanted), true)));
        let resolved =
            looked_up.await?.map_err(|e| refused(source, format!("{dir:?} can't be a directory in the image: {e}"), None))?;
        let bytes = match resolved.entry {
            Entry::Directory(_) => 0,
            Entry::Missing => {
                // As in Docker, it belongs to USER.
                let owner = self.own_ids().await?;
                let mut digest = self.digest("workdir").field("path", &dir);
                if owner != (0, 0) {
                    digest.add("uid", owner.0.to_le_bytes());
                    digest.add("gid", owner.1.to_le_bytes());
                }
                match self.reuse(digest, progress).await? {
                    Found::Layer(bytes) => bytes,
                    Found::Nothing(digest) => {
                        let layer = self.new_layer(source).await?;
                        let files = layer.files();
                        let made = blocking(move || {
                            LayerWriter::open(&lower, &files)
                                .and_then(|w| w.directory(&resolved.components, 0o755, owner))
                                .map(drop)
                                .map_err(ImageError::io("could not make", resolved.path()))
                        })
                        .await;
                        self.end(made, layer, digest, source).await?
                    }
                }
            }
            _ => {
                let reason = format!("{dir:?} is not a directory in the image");
                return Err(refused(source, reason, None));
            }
        };
        self.config.workdir = Some(dir);
        Ok(bytes)
    }

    /// `user` or `user:group`.
    pub(super) async fn user(&mut self, user: &Text, source: &Source) -> Result<u64, ImageError> {
        let given = self.expand(user, source)?;
        let (user, group) = given.split_once(':').map_or((given.as_str(), None), |(user, group)| (user, Some(group)));
        if !is_account(user) || !group.is_none_or(is_account) {
            let hint = "give one user, optionally with :group, each a name or a number";
            return Err(refused(source, format!("USER {given:?} is not valid"), Some(hint.to_owned())));
        }
        let passwd = self.accounts("/etc/passwd").await?;
        let known = accounts(&passwd).find(|a| a.name == user || a.id.to_string() == user);
        let (name, own_group) = match known {
            Some(account) => (account.name.to_owned(), account.group),
            None if user == "root" || user == "0" => ("root".to_owned(), Some(0)),
            // A number needs no line there.
            None if number(user).is_some() => (user.to_owned(), Some(0)),
            None => {
                return Err(refused(
                    source,
                    format!("there is no user {user:?} in the image's /etc/passwd"),
                    Some(format!("add it before: RUN useradd --create-home {user}")),
                ));
            }
        };
        let mut configured = name;
        if let Some(group) = group {
            let groups = self.accounts("/etc/group").await?;
            let found = accounts(&groups).find(|a| a.name == group).map(|a| a.id).or_else(|| number(group));
            match found {
                None => {
                    let hint = format!("add it before: RUN groupadd {group}");
                    let reason = format!("there is no group {group:?} in the image's /etc/group");
                    return Err(refused(source, reason, Some(hint)));
                }
                Some(id) if Some(id) == own_group => {}
                Some(id) => configured = format!("{configured}:{id}"),
            }
        }
        self.config.user = Some(configured);
        Ok(0)
    }

    /// The ids of USER.
    async fn own_ids(&self) -> Result<(u32, u32), ImageError> {
        let Some(text) = self.config.user.as_deref().filter(|user| *user != "root") else {
            return Ok((0, 0));
        };
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let passwd = self.accounts("/etc/passwd").await?;
        let known = accounts(&passwd).find(|a| a.name == user || a.id.to_string() == user);
        let (uid, own_group) = known.map_or((number(user).unwrap_or(0), 0), |a| (a.id, a.group.unwrap_or(a.id)));
        let gid = match group {
            None => own_group,
            Some(name) => {
                let groups = self.accounts("/etc/group").await?;
                let found = accounts(&groups).find(|a| a.name == name).map(|a| a.id);
                found.or_else(|| number(name)).unwrap_or(own_group)
            }
        };
        Ok((uid, gid))
    }

    pub(super) async fn owner(&self, chown: &Chown, source: &Source) -> Result<(u32, u32), ImageError> {
        let passwd = self.accounts("/etc/passwd").await?;
        let user = accounts(&passwd).find(|a| a.name == chown.user);
        let unknown = |kind, name: &str| {
            refused(
                source,
                format!("there is no {kind} {name:?} in the image"),
                Some("give a number, or add it before with RUN".to_owned()),
            )
        };
        let (uid, own_group) = match user {
            Some(account) => (account.id, account.group),
            None => {
                let uid = number(&chown.user).ok_or_else(|| unknown("user", &chown.user))?;
                (uid, Some(uid))
            }
        };
        let gid = match &chown.group {
            None => own_group.unwrap_or(uid),
            Some(name) => {
                let group = self.accounts("/etc/group").await?;
                let found = accounts(&group).find(|a| a.name == name).map(|a| a.id);
                found.or_else(|| number(name)).ok_or_else(|| unknown("group", name))?
            }
        };
        Ok((uid, gid))
    }

    async fn accounts(&self, path: &'static str) -> Result<String, ImageError> {
        let bytes = self.view(move |view| view.read(Path::new(path), MAX_ACCOUNTS_BYTES)).await?;
        Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
    }

    /// Replaces variables of ENV and ARG. ENV goes before ARG.
    pub(super) fn expand(&mut self, text: &Text, source: &Source) -> Result<String, ImageError> {
        let mut variables = self.arguments.clone();
        variables.extend(self.config.env.clone());
        for name in text.plain_variables().filter(|name| !variables.contains_key(*name)) {
            let warning = format!("the variable {name} is not set, and so empty; write \\$ for a dollar sign");
            if !self.warnings.iter().any(|(line, text)| *line == source.line && *text == warning) {
                self.warnings.push((source.line, warning));
            }
        }
        text.expand(&variables).map_err(|message| refused(source, message, None))
    }

    /// The argument vector of a command: the shell form is the shell's argument.
    pub(super) fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(argv) => argv.clone(),
            Command::Shell(text) if self.config.shell.is_empty() => ["/bin/sh", "-c", text].map(str::to_owned).into(),
            Command::Shell(text) => self.config.shell.iter().cloned().chain([text.clone()]).collect(),
        }
    }
}

/// Refuses sources of ADD that are neither files of the context nor of the web.
fn check_local(path: &str, step: &CopyStep, source: &Source) -> Result<(), ImageError> {
    let lower = path.to_ascii_lowercase();
    if ["git@", "git://", "ssh://", "http://", "https://"].iter().any(|start| lower.starts_with(start)) {
        let hint = format!("clone it with RUN git clone {path}");
        return Err(refused(source, format!("not supported: ADD of the repository {path:?}"), Some(hint)));
    }
    match step.checksum {
        Some(_) => Err(refused(source, format!("--checksum is for addresses, and {path:?} is none"), None)),
        None => Ok(()),
    }
}

/// A directory needs a name for what is downloaded into it.
fn check_name(address: &str, into_directory: bool, source: &Source) -> Result<(), ImageError> {
    if !into_directory || file_name(address).is_some() {
        return Ok(());
    }
    let hint = "write the file's name at the end of the destination";
    Err(refused(source, format!("the address {address:?} names no file"), Some(hint.to_owned())))
}

fn timeout(what: &str, source: &Source) -> ImageError {
    ImageError::Timeout { line: source.line, what: what.to_owned(), limit: STEP_LIMIT }
}

pub(super) fn copy_error(line: usize, error: CopyError) -> ImageError {
    match error.source {
        // The kind of the host's error distinguishes a full disk from a mistake.
        Some(source) if matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
            ImageError::io("could not copy into", "the new layer")(source)
        }
        _ => ImageError::Step { line, reason: error.reason, hint: error.hint },
    }
}

pub(super) fn check_path(path: &str, source: &Source) -> Result<(), ImageError> {
    if path.is_empty() || path.len() > 4096 || path.contains('\0') {
        let reason = "a path is empty, longer than 4096 bytes or holds a NUL byte";
        return Err(refused(source, reason.to_owned(), None));
    }
    Ok(())
}

pub(super) fn check_size(map: &BTreeMap<String, String>, what: &str, source: &Source) -> Result<u64, ImageError> {
    let bytes: usize = map.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    if bytes > MAX_CONFIG_BYTES || map.values().any(|v| v.contains('\0')) {
        let reason = format!("the {what} is longer than {MAX_CONFIG_BYTES} bytes or holds a NUL byte");
        return Err(refused(source, reason, None));
    }
    Ok(0)
}

/// Resolves `.` and `..` by text alone, like a shell's `cd`.
pub(super) fn lexical(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.to_string_lossy().split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part.to_owned()),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Removes the mount points below `/run/arenite` from a layer, through directories only.
fn drop_mount_points(files: &Path) -> Result<(), ImageError> {
    let run = files.join("run");
    match std::fs::symlink_metadata(&run) {
        Ok(kind) if kind.is_dir() => {
            let own = run.join("arenite");
            match std::fs::symlink_metadata(&own) {
                Ok(kind) if kind.is_dir() => remove_tree(&own).map_err(ImageError::io("could not remove", own)),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
