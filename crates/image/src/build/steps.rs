//! The effects of each instruction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::accounts::{accounts, number};
use super::{BuildEvent, Building, Found, Progress, RunStep, STEP_LIMIT, blocking, refused};
use crate::copy::{CopyError, CopyPlan, LayerWriter, Sources};
use crate::debian::{AptSources, BootstrapError, RECIPE, bootstrap};
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::imagefile::{Base, Chown, CopyStep, Source, Suite, Text};
use crate::output::OutputLines;
use crate::removal::remove_tree;
use crate::root::Entry;
use crate::store::OpenLayer;

/// Maximum number of bytes that are read of an image's `/etc/passwd` or `/etc/group`.
const MAX_ACCOUNTS_BYTES: u64 = 1 << 20;
/// Maximum size of an image's environment, or of its labels, in bytes.
const MAX_CONFIG_BYTES: usize = 128 << 10;
/// The default `PATH` of a fresh Debian.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Building<'_> {
    pub(super) async fn from(&mut self, base: &Base, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        match base {
            Base::Image(name) => {
                let (store, name) = (self.store.clone(), name.clone());
                let image = blocking(move || store.get(&name)).await?;
                self.layers = image.layers.into_iter().map(|l| l.digest).collect();
                self.config = image.config;
                Ok(image.size_bytes)
            }
            Base::Debootstrap(suite) => {
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

    pub(super) async fn run(&mut self, argv: &[String], source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        let user = self.config.user.clone().unwrap_or_else(|| "root".to_owned());
        let workdir = self.config.workdir.clone().unwrap_or_else(|| "/".to_owned());
        let mut digest = self.digest("run").field("user", &user).field("workdir", &workdir);
        for arg in argv {
            digest.add("argument", arg);
        }
        for (name, value) in &self.config.env {
            digest.add("variable", name);
            digest.add("value", value);
        }
        let digest = match self.reuse(digest, progress).await? {
            Found::Layer(bytes) => return Ok(bytes),
            Found::Nothing(digest) => digest,
        };
        let layer = self.new_layer(source).await?;
        let host = self.request.env;
        let mut env = host.env.clone();
        env.extend(self.config.env.clone());
        let step = RunStep {
            lower: self.lower(),
            layer: layer.dir.clone(),
            upper: layer.files(),
            work: layer.work(),
            argv: argv.to_vec(),
            env,
            workdir,
            user,
            ca_file: host.ca_file.clone(),
            files: host.files.clone(),
        };
        let result = {
            let mut show = |line: &str| progress(BuildEvent::Output { line });
            let mut output = OutputLines::new(&mut show);
            let result = tokio::time::timeout(STEP_LIMIT, self.runner.run(step, &mut |bytes| output.feed(bytes))).await;
            let tail = output.finish();
            match result {
                Ok(Ok(0)) => Ok(()),
                Ok(Ok(code)) => Err(ImageError::Failed { line: source.line, what: "the command".to_owned(), code, tail }),
                Ok(Err(error)) => Err(ImageError::Runner { line: source.line, source: error }),
                Err(_) => Err(timeout("the command", source)),
            }
        };
        // The mount points of the build's own files are not part of the command's result.
        let files = layer.files();
        let result = match result {
            Ok(()) => blocking(move || drop_mount_points(&files)).await,
            Err(error) => Err(error),
        };
        self.end(result, layer, digest, source).await
    }

    pub(super) async fn copy(&mut self, step: &CopyStep, source: &Source, progress: Progress<'_>) -> Result<u64, ImageError> {
        let mut paths = Vec::new();
        for text in &step.sources {
            let given = self.expand(text, source)?;
            if given.contains(['*', '?', '[']) {
                return Err(refused(
                    source,
                    format!("not supported: wildcards, as in {given:?}"),
                    Some("name the files, or copy the directory".to_owned()),
                ));
            }
            check_path(&given, source)?;
            paths.push(PathBuf::from(given));
        }
        let destination = self.expand(&step.destination, source)?;
        check_path(&destination, source)?;
        let into_directory =
            paths.len() > 1 || destination.ends_with('/') || matches!(destination.rsplit('/').next(), Some("." | ".."));
        let owner = match &step.chown {
            Some(chown) => self.owner(chown, source).await?,
            None => (0, 0),
        };
        let base = self.config.workdir.as_deref().unwrap_or("/");
        let plan =
            CopyPlan { sources: paths, destination: Path::new(base).join(destination), into_directory, owner, chmod: step.chmod };
        let context = self.request.context_dir.to_owned();
        let below = self.top().to_owned();
        let line = source.line;
        let (plan, sources, digest) = blocking(move || {
            let sources = Sources::read(&context, &plan).map_err(|e| copy_error(line, e))?;
            let digest = sources.digest(&below, &plan);
            Ok((plan, sources, digest))
        })
        .await?;
        let digest = match self.reuse_digest(digest, progress).await? {
            Found::Layer(bytes) => return Ok(bytes),
            Found::Nothing(digest) => digest,
        };
        let layer = self.new_layer(source).await?;
        let (lower, files) = (self.lower(), layer.files());
        let copied = blocking(move || sources.copy(&plan, &lower, &files).map_err(|e| copy_error(line, e))).await;
        self.end(copied, layer, digest, source).await
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
                let digest = self.digest("workdir").field("path", &dir);
                match self.reuse(digest, progress).await? {
                    Found::Layer(bytes) => bytes,
                    Found::Nothing(digest) => {
                        let layer = self.new_layer(source).await?;
                        let files = layer.files();
                        let made = blocking(move || {
                            LayerWriter::open(&lower, &files)
                                .and_then(|w| w.directory(&resolved.components, 0o755, (0, 0)))
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

    pub(super) fn env(&mut self, pairs: &[(String, Text)], source: &Source) -> Result<u64, ImageError> {
        // All values of one ENV see the environment before it.
        let mut values = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            values.push((name.clone(), self.expand(value, source)?));
        }
        self.config.env.extend(values);
        check_size(&self.config.env, "environment", source)
    }

    pub(super) fn label(&mut self, pairs: &[(Text, Text)], source: &Source) -> Result<u64, ImageError> {
        for (name, value) in pairs {
            let pair = (self.expand(name, source)?, self.expand(value, source)?);
            self.config.labels.extend([pair]);
        }
        check_size(&self.config.labels, "labels", source)
    }

    pub(super) async fn user(&mut self, user: &str, source: &Source) -> Result<u64, ImageError> {
        let passwd = self.accounts("/etc/passwd").await?;
        let known = accounts(&passwd).find(|a| a.name == user || a.id.to_string() == user);
        self.config.user = Some(match known {
            Some(account) => account.name.to_owned(),
            None if user == "root" || user == "0" => "root".to_owned(),
            None => {
                return Err(refused(
                    source,
                    format!("there is no user {user:?} in the image's /etc/passwd"),
                    Some(format!("add it before: RUN useradd --create-home {user}")),
                ));
            }
        });
        Ok(0)
    }

    async fn owner(&self, chown: &Chown, source: &Source) -> Result<(u32, u32), ImageError> {
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

    fn expand(&self, text: &Text, source: &Source) -> Result<String, ImageError> {
        text.expand(&self.config.env).map_err(|name| {
            refused(
                source,
                format!("the variable {name} is not set by an earlier ENV"),
                Some("write \\$ for a dollar sign".to_owned()),
            )
        })
    }
}

fn timeout(what: &str, source: &Source) -> ImageError {
    ImageError::Timeout { line: source.line, what: what.to_owned(), limit: STEP_LIMIT }
}

fn copy_error(line: usize, error: CopyError) -> ImageError {
    match error.source {
        // The kind of the host's error distinguishes a full disk from a mistake.
        Some(source) if matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
            ImageError::io("could not copy into", "the new layer")(source)
        }
        _ => ImageError::Step { line, reason: error.reason, hint: error.hint },
    }
}

fn check_path(path: &str, source: &Source) -> Result<(), ImageError> {
    if path.is_empty() || path.len() > 4096 || path.contains('\0') {
        let reason = "a path is empty, longer than 4096 bytes or holds a NUL byte";
        return Err(refused(source, reason.to_owned(), None));
    }
    Ok(())
}

fn check_size(map: &BTreeMap<String, String>, what: &str, source: &Source) -> Result<u64, ImageError> {
    let bytes: usize = map.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    if bytes > MAX_CONFIG_BYTES || map.values().any(|v| v.contains('\0')) {
        let reason = format!("the {what} is longer than {MAX_CONFIG_BYTES} bytes or holds a NUL byte");
        return Err(refused(source, reason, None));
    }
    Ok(0)
}

/// Resolves `.` and `..` by text alone, like a shell's `cd`.
fn lexical(path: &Path) -> String {
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
