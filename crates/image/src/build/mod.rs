//! Builds an image from an Imagefile or Dockerfile, one layer at a time.
//!
//! A step's digest covers the digest of the layer below and everything that determines the step's outcome, as far as it is
//! known in advance: for RUN the command, environment, user and directory; for COPY the content of its sources; for a fresh
//! Debian its suite and our recipe. A layer with that digest is reused. What a RUN fetches from the network is not known in
//! advance: without [`BuildRequest::use_cache`], every layer is built, even one that exists.

mod accounts;
mod config;
mod downloads;
mod mounts;
mod options;
mod steps;
mod tenant;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_model::ImageName;
use async_trait::async_trait;
use jiff::Timestamp;

use crate::build_env::BuildEnv;
use crate::copy::LayerWriter;
use crate::digest::FieldDigest;
use crate::error::ImageError;
use crate::image::{Image, ImageConfig};
use crate::imagefile::{Base, Imagefile, Instruction, Plan, Source};
use crate::root::RootView;
use crate::store::{HeldLayer, ImageStore, LayerRecord, MAX_LAYERS, OpenLayer, Origin, StoreLock};

pub use self::options::{BuildOptions, Downloads};
pub use self::tenant::TenantBuild;

/// Timeout of one step.
pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Why a runner could not run a step.
pub type RunnerError = Box<dyn std::error::Error + Send + Sync>;

/// A receiver of a step's output. An alias, since `async_trait` would tie the bytes' lifetime to the call's.
pub type StepOutput<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// Runs the steps of a build in sandboxes.
#[async_trait]
pub trait BuildRunner: Send + Sync {
    /// Runs one command and returns its exit code (128 plus the signal's number if it was killed). Merged
    /// output goes to `output` as it arrives, as one stream. When this returns, nothing of the step runs and nothing is mounted
    /// any more. Dropping the future ends the step's processes.
    async fn run(&self, step: RunStep, output: &mut StepOutput<'_>) -> Result<i32, RunnerError>;
}

/// One RUN.
#[derive(Debug, Clone)]
pub struct RunStep {
    /// The layers below, lowest first, as an overlay's lower directories.
    pub lower: Vec<PathBuf>,
    /// The new layer's directory, which contains `upper` and `work`: an id map applied to it covers both.
    pub layer: PathBuf,
    /// The overlay's upper directory: empty, owners are the sandbox's own ids.
    pub upper: PathBuf,
    /// The overlay's work directory: empty.
    pub work: PathBuf,
    pub argv: Vec<String>,
    /// The build's environment, overridden by the image's.
    pub env: BTreeMap<String, String>,
    /// An absolute path that is a directory in the image.
    pub workdir: String,
    /// A name of the image's `/etc/passwd`, or `root`.
    pub user: String,
    /// Mounted read-only at [`BuildEnv::CA_PATH`], on a separate file system of the step.
    pub ca_file: Option<PathBuf>,
    /// Mounted read-only at their paths, likewise.
    pub files: Vec<(String, Vec<u8>)>,
    /// Mounted for this step, in their order.
    pub mounts: Vec<StepMount>,
    /// Mounted read-only for this step. They are never in the layers' directories.
    pub secrets: Vec<StepSecret>,
    /// The step has only its own loopback.
    pub is_offline: bool,
}

/// A directory or file that only one step sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepMount {
    /// An absolute path in the image.
    pub target: String,
    pub content: MountContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountContent {
    /// A path on the host, on the layers' file system. Owners are the sandbox's own ids.
    Bind { path: PathBuf, is_directory: bool, is_read_only: bool },
    /// An empty file system in memory with this maximum size.
    Tmpfs { bytes: u64 },
}

/// A file with a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct StepSecret {
    /// An absolute path in the image.
    pub target: String,
    pub content: Vec<u8>,
    pub mode: u32,
    /// The sandbox's own ids.
    pub owner: (u32, u32),
}

impl std::fmt::Debug for StepSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepSecret").field("target", &self.target).finish_non_exhaustive()
    }
}

/// An image to build.
#[derive(Debug, Clone)]
pub struct BuildRequest<'a> {
    pub imagefile: &'a Imagefile,
    /// The directory of COPY's sources.
    pub context_dir: &'a Path,
    pub name: &'a ImageName,
    pub env: &'a BuildEnv,
    /// If false, no layer is reused, not even a base's own.
    pub use_cache: bool,
    pub options: &'a BuildOptions,
    /// None: a build of the operator, which has the store for itself.
    pub tenant: Option<TenantBuild<'a>>,
}

/// Progress of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildEvent<'a> {
    /// Another build or removal has the store; this one starts when it has ended.
    Waiting,
    StepStarted {
        /// From 1.
        number: usize,
        /// Including FROM.
        of: usize,
        text: &'a str,
    },
    /// The step's layer existed already.
    Cached {
        bytes: u64,
    },
    /// A line of the step's output, without control characters, 4 KiB at most.
    Output {
        line: &'a str,
    },
    /// Something in the file that is probably a mistake.
    Warning {
        line: usize,
        text: &'a str,
    },
    StepDone {
        took: Duration,
        bytes: u64,
    },
    Done {
        digest: &'a str,
        took: Duration,
        size_bytes: u64,
        /// The number of steps that built a layer instead of reusing one.
        built: usize,
    },
}

type Progress<'a> = &'a mut (dyn FnMut(BuildEvent<'_>) + Send);

/// Builds an image and gives it its name, replacing an older image of that name. A failed or dropped build leaves the older
/// image unchanged, and the layers of completed steps for the next build.
pub async fn build(
    store: &ImageStore,
    request: BuildRequest<'_>,
    runner: &dyn BuildRunner,
    progress: Progress<'_>,
) -> Result<Image, ImageError> {
    let started = Instant::now();
    let options = request.options;
    options.check()?;
    let plan = request.imagefile.plan(options.target.as_deref(), &options.build_args)?;
    let lock = match request.tenant {
        Some(_) => None,
        None => Some(Arc::new(acquire(store, progress).await?)),
    };
    let mut building = Building {
        lock,
        store: store.clone(),
        request,
        runner,
        layers: Vec::new(),
        config: ImageConfig::default(),
        arguments: BTreeMap::new(),
        has_own_cmd: false,
        done: BTreeMap::new(),
        stage: 0,
        globals: plan.globals.clone(),
        warnings: Vec::new(),
        built: 0,
        held: Vec::new(),
        bytes: 0,
    };
    building.remove_old_caches().await?;
    building.stages(&plan, progress).await?;
    building.config.labels.extend(options.labels.clone());
    let built = building.built;
    let image = building.publish().await?;
    progress(BuildEvent::Done { digest: &image.digest, took: started.elapsed(), size_bytes: image.size_bytes, built });
    Ok(image)
}

/// Waits for the lock and removes what an earlier build left.
async fn acquire(store: &ImageStore, progress: Progress<'_>) -> Result<StoreLock, ImageError> {
    let at_once = store.try_lock()?;
    if at_once.is_none() {
        progress(BuildEvent::Waiting);
    }
    let store = store.clone();
    blocking(move || {
        let lock = match at_once {
            Some(lock) => lock,
            None => store.lock()?,
        };
        store.sweep(&lock);
        Ok(lock)
    })
    .await
}

/// Runs disk work outside the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ImageError> + Send + 'static) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

struct Building<'a> {
    store: ImageStore,
    request: BuildRequest<'a>,
    runner: &'a dyn BuildRunner,
    /// Held for the whole build; none: only while the store changes.
    lock: Option<Arc<StoreLock>>,
    /// Digests, lowest first.
    layers: Vec<String>,
    config: ImageConfig,
    /// The values of this stage's ARGs.
    arguments: BTreeMap<String, String>,
    /// This stage has a CMD, and not only its base.
    has_own_cmd: bool,
    /// Finished stages, by their index.
    done: BTreeMap<usize, FinishedStage>,
    /// The current stage's index.
    stage: usize,
    /// The values of ARGs before the first FROM.
    globals: BTreeMap<String, String>,
    /// Lines and texts that were not reported yet.
    warnings: Vec<(usize, String)>,
    built: usize,
    /// Layers that must not be removed, if the lock is not held.
    held: Vec<HeldLayer>,
    /// Size of the layers that were built.
    bytes: u64,
}

/// What a stage leaves for later ones.
#[derive(Clone)]
struct FinishedStage {
    layers: Vec<String>,
    config: ImageConfig,
    arguments: BTreeMap<String, String>,
}

impl Building<'_> {
    /// Builds the stages of a plan. The last one's result is the image.
    async fn stages(&mut self, plan: &Plan, progress: Progress<'_>) -> Result<(), ImageError> {
        let file = self.request.imagefile;
        let of = plan.stages.iter().map(|(index, _)| file.stages[*index].steps.len() + 1).sum();
        let mut number = 0;
        self.warn_of_unused_arguments();
        for (index, base) in &plan.stages {
            self.stage = *index;
            self.layers.clear();
            self.config = ImageConfig::default();
            self.arguments.clear();
            self.has_own_cmd = false;
            self.steps(base, (&mut number, of), progress).await?;
            let arguments = self.arguments.clone();
            self.done.insert(*index, FinishedStage { layers: self.layers.clone(), config: self.config.clone(), arguments });
        }
        Ok(())
    }

    async fn steps(&mut self, base: &Base, (number, of): (&mut usize, usize), progress: Progress<'_>) -> Result<(), ImageError> {
        let stage = &self.request.imagefile.stages[self.stage];
        let mut begin = |progress: Progress<'_>, text: &str| {
            *number += 1;
            progress(BuildEvent::StepStarted { number: *number, of, text });
            Instant::now()
        };
        self.check_cancelled()?;
        let started = begin(progress, &stage.source.text);
        let bytes = self.from(base, &stage.source, progress).await?;
        self.report_warnings(progress);
        progress(BuildEvent::StepDone { took: started.elapsed(), bytes });
        for step in &stage.steps {
            self.check_cancelled()?;
            let started = begin(progress, &step.source.text);
            let source = &step.source;
            let bytes = match &step.instruction {
                Instruction::Run(run) => self.run(run, source, progress).await?,
                Instruction::Copy(copy) => self.copy(copy, source, progress).await?,
                Instruction::Workdir(path) => self.workdir(path, source, progress).await?,
                Instruction::User(user) => self.user(user, source).await?,
                Instruction::Env(pairs) => self.env(pairs, source)?,
                Instruction::Arg(arguments) => self.arg(arguments, source)?,
                Instruction::Label(pairs) => self.label(pairs, source)?,
                Instruction::Shell(shell) => self.shell(shell),
                Instruction::Entrypoint(command) => self.entrypoint(command, source)?,
                Instruction::Cmd(command) => self.cmd(command, source)?,
                Instruction::Expose(ports) => self.expose(ports, source)?,
                Instruction::Volume(paths) => self.volume(paths, source)?,
                Instruction::StopSignal(signal) => self.stop_signal(signal, source)?,
                Instruction::Healthcheck(check) => self.healthcheck(check.as_ref(), source)?,
                Instruction::Maintainer => {
                    self.warnings.push((source.line, "MAINTAINER has no effect: use LABEL maintainer=\"…\"".to_owned()));
                    0
                }
            };
            self.report_warnings(progress);
            progress(BuildEvent::StepDone { took: started.elapsed(), bytes });
        }
        Ok(())
    }

    fn report_warnings(&mut self, progress: Progress<'_>) {
        for (line, text) in self.warnings.drain(..) {
            progress(BuildEvent::Warning { line, text: &text });
        }
    }

    /// Reads from the current state of the image.
    async fn view<T: Send + 'static>(
        &self,
        look: impl FnOnce(&RootView) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, ImageError> {
        let lower = self.lower();
        blocking(move || {
            RootView::open(lower.iter().map(PathBuf::as_path))
                .and_then(|view| look(&view))
                .map_err(ImageError::io("could not read the image below", "/"))
        })
        .await
    }

    fn top(&self) -> &str {
        self.layers.last().expect("FROM comes first and has a layer")
    }

    fn lower(&self) -> Vec<PathBuf> {
        self.layers.iter().map(|d| self.store.layer_files(d)).collect()
    }

    fn digest(&self, kind: &str) -> FieldDigest {
        FieldDigest::step(Some(self.top()), kind)
    }

    async fn reuse(&mut self, digest: FieldDigest, progress: Progress<'_>) -> Result<Found, ImageError> {
        self.reuse_digest(digest.hex(), progress).await
    }

    /// Reuses the layer of this digest if it exists; otherwise returns the digest for a new one.
    async fn reuse_digest(&mut self, digest: String, progress: Progress<'_>) -> Result<Found, ImageError> {
        let digest = self.own_digest(digest);
        if !self.request.use_cache {
            // A separate digest: the existing layer may be in use.
            let now = Timestamp::now().as_nanosecond().to_le_bytes();
            let fresh = FieldDigest::new("fresh").field("step", digest).field("time", now);
            return Ok(Found::Nothing(fresh.hex()));
        }
        let (store, wanted) = (self.store.clone(), digest.clone());
        let hold = self.lock.is_none();
        let found = move || {
            let held = if hold { Some(store.hold(&wanted)) } else { None };
            // Without its layer, it is as if there was none.
            Ok(store.layer_record(&wanted).filter(|_| held.as_ref().is_none_or(Option::is_some)).map(|record| (record, held)))
        };
        match blocking(found).await? {
            Some((LayerRecord { bytes, .. }, held)) => {
                self.held.extend(held.flatten());
                self.touched(&digest);
                self.layers.push(digest);
                progress(BuildEvent::Cached { bytes });
                Ok(Found::Layer(bytes))
            }
            None => Ok(Found::Nothing(digest)),
        }
    }

    async fn new_layer(&self, source: &Source) -> Result<OpenLayer, ImageError> {
        if self.layers.len() >= MAX_LAYERS {
            return Err(refused(
                source,
                format!("the image has more than {MAX_LAYERS} layers"),
                Some("join RUN steps with && and COPY steps into one".to_owned()),
            ));
        }
        let (store, lower) = (self.store.clone(), self.lower());
        blocking(move || {
            let layer = store.new_layer()?;
            // The new root gets the owner and mode of the one below.
            let opened = LayerWriter::open(&lower, &layer.files());
            match opened {
                Ok(_) => Ok(layer),
                Err(error) => {
                    store.abandon(&layer);
                    Err(ImageError::io("could not open the layers below", &layer.dir)(error))
                }
            }
        })
        .await
    }

    /// Seals a layer that was built, or discards one that was not.
    async fn end(
        &mut self,
        made: Result<(), ImageError>,
        layer: OpenLayer,
        digest: String,
        source: &Source,
    ) -> Result<u64, ImageError> {
        let (store, lock) = (self.store.clone(), self.lock.clone());
        let (sealed, text) = (digest.clone(), source.text.clone());
        let (tenant, allowance) = (self.request.tenant.as_ref().map(|build| build.tenant.clone()), self.allowance(source));
        self.touched(&digest);
        let (record, held) = blocking(move || {
            let record = made.and_then(|()| allowance.check(&layer.files())).and_then(|()| {
                let lock = match lock {
                    Some(lock) => lock,
                    None => Arc::new(store.lock()?),
                };
                Ok((store.seal_of(&lock, &layer, &sealed, &text, tenant.as_ref())?, lock))
            });
            if record.is_err() {
                store.abandon(&layer);
            }
            let (record, lock) = record?;
            // It is locked itself until here.
            drop(layer);
            let held = store.hold(&sealed);
            drop(lock);
            Ok((record, held))
        })
        .await?;
        self.held.extend(held);
        self.bytes += record.bytes;
        self.layers.push(digest);
        self.built += 1;
        Ok(record.bytes)
    }

    async fn publish(self) -> Result<Image, ImageError> {
        let digest = self.config.image_digest(self.top());
        let (store, name) = (self.store, self.request.name.clone());
        let owner = self.request.tenant.as_ref().and_then(|build| build.owner.cloned());
        let (lock, layers, config) = (self.lock, self.layers, self.config);
        let published = blocking(move || {
            let lock = match lock {
                Some(lock) => lock,
                None => Arc::new(store.lock()?),
            };
            store.publish_from(&lock, &name, digest, layers, config, Origin { source: None, owner: owner.as_ref() })
        });
        published.await
    }
}

enum Found {
    Layer(u64),
    /// No layer exists; with the digest for a new one.
    Nothing(String),
}

fn refused(source: &Source, reason: String, hint: Option<String>) -> ImageError {
    ImageError::Step { line: source.line, reason, hint }
}

#[cfg(test)]
mod tests;
