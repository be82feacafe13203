//! Builds of images for clients: each RUN in a sandbox with limits of the tenant, on the network of sandboxes or none.
//!
//! ```text
//!  place taken ──► context unpacked ──► images of FROM pulled ──► steps ──► image named
//!       │ quotas, host's capacity    └────────── the client leaves, the server stops, or the time is over ──► cancelled
//!       └── released with the build's end: nothing of a build stays but its image
//! ```

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_engine::EngineError;
use arenite_engine::namespace::recorded_sandboxes;
use arenite_image::{
    BuildContext, BuildEnv, BuildEvent, BuildOptions, BuildRequest, BuildRunner, ContextLimits, Downloads, Image, ImageError,
    Imagefile, TenantBuild,
};
use arenite_model::{ErrorCode, ImageName, NetworkMode, SandboxSpec, SpecError, TenantId, Tier};
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::{PullProgress, owner_of};
use crate::admission::refuse;
use crate::tenants::{Quota, QuotaExceeded, Reserved};
use crate::{Control, ControlError, ResourcesOverlay, SpecOverlay};

/// Builds that run or get their context, in all and of one tenant.
const AT_ONCE: usize = 4;
const AT_ONCE_OF_TENANT: usize = 2;
/// When a client may try again for one of these places.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The bounds of a context.
const CONTEXT: ContextLimits = ContextLimits { entries: 250_000, bytes: 4 << 30 };
/// The longest build, from its complete context.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// Updates that wait for the client. Further ones are left out.
const UPDATES: usize = 1024;
/// The last lines of a failed step.
const LOG_LINES: usize = 20;

/// Runs steps of builds in sandboxes of the server.
pub trait StepSandboxes: Send + Sync + fmt::Debug {
    /// With the limits and the network of a spec.
    fn runner(&self, spec: &SandboxSpec) -> Box<dyn BuildRunner>;
    /// What steps see of the host.
    fn env(&self) -> BuildEnv;
}

/// An image to build.
#[derive(Debug, Clone)]
pub struct BuildImage {
    pub name: ImageName,
    /// In the context; none: `Imagefile` or `Dockerfile`.
    pub dockerfile: Option<PathBuf>,
    /// Target, build arguments, and labels.
    pub options: BuildOptions,
    /// None: that of the tenant's sandboxes.
    pub network: Option<NetworkMode>,
    /// Limits of each step, in place of those of sandboxes without a template. The disk limit is the whole build's.
    pub resources: ResourcesOverlay,
    pub use_cache: bool,
}

/// What a build is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum BuildUpdate {
    /// An image of a FROM is being pulled.
    Pull(PullProgress),
    Step {
        /// From 1.
        step: usize,
        of: usize,
        /// The instruction on one line.
        text: String,
    },
    Log {
        step: usize,
        line: String,
        /// Lines before this one that the client was too slow for.
        #[serde(skip_serializing_if = "is_zero")]
        skipped: u64,
    },
    Warning {
        /// Of the Dockerfile.
        line: usize,
        text: String,
    },
    StepDone {
        step: usize,
        /// It was taken from an earlier build.
        cached: bool,
        seconds: f64,
        bytes: u64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl BuildUpdate {
    /// The name of its event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pull(_) => "pull",
            Self::Step { .. } => "step",
            Self::Log { .. } => "log",
            Self::Warning { .. } => "warning",
            Self::StepDone { .. } => "step_done",
        }
    }
}

/// Where a build failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct BuildFailure {
    /// The number of the step, from 1; null if none began.
    pub step: Option<usize>,
    /// The instruction on one line.
    pub instruction: Option<String>,
    /// The line of the Dockerfile.
    pub line: Option<usize>,
    pub exit_code: Option<i32>,
    /// The last lines of the step's output, at most 20.
    pub log: Vec<String>,
}

/// An error of a build, and where it was.
#[derive(Debug)]
pub struct BuildError {
    pub error: ControlError,
    pub failure: Option<Box<BuildFailure>>,
}

impl From<ControlError> for BuildError {
    fn from(error: ControlError) -> Self {
        Self { error, failure: None }
    }
}

/// The builds of a server.
pub(crate) struct Builds {
    running: Mutex<Vec<(TenantId, Reserved)>>,
    /// True when the server stops.
    closed: watch::Sender<bool>,
}

impl Default for Builds {
    fn default() -> Self {
        Self { running: Mutex::default(), closed: watch::Sender::new(false) }
    }
}

impl Builds {
    fn running(&self) -> MutexGuard<'_, Vec<(TenantId, Reserved)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all builds.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// What the builds of a tenant hold of its quotas.
    pub(crate) fn reserved(&self, tenant: &TenantId) -> Reserved {
        self.running().iter().filter(|(of, _)| of == tenant).map(|(_, reserved)| *reserved).sum()
    }
}

/// The right to build an image, from before its context is read. It counts as a create that is under way.
pub struct BuildPermit {
    control: Arc<Control>,
    tenant: TenantId,
    spec: SandboxSpec,
    reserved: Reserved,
}

impl fmt::Debug for BuildPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildPermit").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl Drop for BuildPermit {
    fn drop(&mut self) {
        if let Some(images) = &self.control.images {
            let mut running = images.builds.running();
            if let Some(at) = running.iter().position(|(of, reserved)| *of == self.tenant && *reserved == self.reserved) {
                running.swap_remove(at);
            }
        }
        let mut registry = self.control.registry_mut();
        registry.tenant_mut(&self.tenant).creating -= 1;
        registry.forget_if_empty(&self.tenant);
    }
}

impl BuildPermit {
    /// Unpacks the context from a tar, plain or compressed with gzip or zstd. Blocks on the tar and on the disk.
    pub fn unpack(&self, tar: impl Read) -> Result<BuildContext, ControlError> {
        Ok(BuildContext::unpack(&self.control.images()?.config.store, tar, CONTEXT)?)
    }
}

/// What a build's thread needs.
struct Work {
    name: ImageName,
    file: Imagefile,
    options: BuildOptions,
    use_cache: bool,
    context: BuildContext,
    cancel: watch::Receiver<bool>,
}

impl Control {
    /// Takes a place for a build, before anything of it is read.
    ///
    /// # Errors
    /// A quota of the tenant, missing capacity, or a server that can't build.
    pub async fn begin_build(&self, tenant: &TenantId, build: &BuildImage) -> Result<BuildPermit, ControlError> {
        let _operation = self.operation()?;
        let images = self.images()?;
        if images.config.steps.is_none() {
            return Err(ControlError::NoBuilds { reason: "its engine runs no steps of builds" });
        }
        if build.name.as_str().contains('@') {
            let reason = "an image that is built has a name and a tag, and no digest".to_owned();
            return Err(SpecError::Invalid { field: "image", reason }.into());
        }
        let template = self.templates.of_unnamed()?;
        let mut spec = template.spec;
        if !template.names_network {
            self.lay_default_network(tenant, &mut spec);
        }
        spec.network_floor = self.network_floor(tenant);
        let wanted = SpecOverlay { network: build.network, resources: build.resources.clone(), ..SpecOverlay::default() };
        wanted.lay_over(&mut spec);
        spec.check()?;
        // A step has no image of a VM, whatever the default one is.
        spec.image = "scratch".parse().map_err(|_| ControlError::NoImages)?;
        self.limit_tier(tenant, None, &mut spec)?;
        if self.engine.tier(&spec).await? != Tier::Namespace {
            return Err(ControlError::NoBuilds {
                reason: "steps run in the tier namespace alone, and these sandboxes need more",
            });
        }
        let place = self.take_build_permit(tenant, spec)?;
        // Memory and disk suffice for one more sandbox. A create's place is not kept: builds are long.
        self.admission.admit(&*self.engine).await?;
        Ok(place)
    }

    fn take_build_permit(&self, tenant: &TenantId, spec: SandboxSpec) -> Result<BuildPermit, ControlError> {
        let limits = self.tenant_limits(tenant);
        // It is no sandbox, and takes what one does.
        let reserved = Reserved { sandboxes: 0, ..Reserved::from_spec(&spec) };
        let used = self.reserved(tenant);
        let mut registry = self.registry_mut();
        let mut running = self.images()?.builds.running();
        used.check(&reserved, &limits)?;
        let creating = registry.tenant(tenant).map_or(0, |tenant| tenant.creating as u64);
        if let Some(limit) = limits.concurrent_creates.filter(|limit| creating >= *limit) {
            return Err(QuotaExceeded { quota: Quota::ConcurrentCreates, limit, used: creating, requested: 1 }.into());
        }
        let of_tenant = running.iter().filter(|(of, _)| of == tenant).count();
        if running.len() >= AT_ONCE || of_tenant >= AT_ONCE_OF_TENANT {
            return refuse("too many other images are being built".to_owned(), RETRY_AFTER);
        }
        running.push((tenant.clone(), reserved));
        registry.tenant_mut(tenant).creating += 1;
        Ok(BuildPermit { control: self.shared(), tenant: tenant.clone(), spec, reserved })
    }

    /// The channel for the updates of a build.
    pub fn build_updates() -> (mpsc::Sender<BuildUpdate>, mpsc::Receiver<BuildUpdate>) {
        mpsc::channel(UPDATES)
    }

    /// Builds an image for a tenant. Ends without one when the receiver of `updates` is dropped.
    pub async fn build_image(
        &self,
        place: BuildPermit,
        build: BuildImage,
        context: BuildContext,
        updates: mpsc::Sender<BuildUpdate>,
    ) -> Result<Image, BuildError> {
        let _operation = self.operation()?;
        let deadline = Instant::now() + LONGEST;
        let BuildImage { name, dockerfile, mut options, use_cache, .. } = build;
        let (context, found) = tokio::task::spawn_blocking(move || {
            let file = context.file(dockerfile.as_deref());
            (context, file)
        })
        .await
        .map_err(|_| ControlError::Stopping)?;
        let (file, ignore) = found.map_err(of_file)?;
        options.ignore = ignore;
        // ADD downloads for the server, which the network of sandboxes and its rules do not hold back.
        options.downloads = Downloads::Refused;
        let plan = file.plan(options.target.as_deref(), &options.build_args).map_err(|error| of_file(error.into()))?;
        for image in file.images(&plan).map_err(|error| of_file(error.into()))? {
            self.pull_base(&place.tenant, &image, &updates, deadline).await?;
        }
        let (cancel, cancelled) = watch::channel(false);
        let work = Work { name, file, options, use_cache, context, cancel: cancelled };
        let (control, tenant, sender) = (self.shared(), place.tenant.clone(), updates.clone());
        let spec = place.spec.clone();
        let span = tracing::Span::current();
        let mut running = tokio::task::spawn_blocking(move || {
            let _entered = span.enter();
            control.run_build(&tenant, work, &spec, sender)
        });
        let mut closed = self.images()?.builds.closed.subscribe();
        let ended = tokio::select! {
            biased;
            built = &mut running => return built.unwrap_or(Err(ControlError::Stopping.into())),
            () = updates.closed() => ControlError::BuildAbandoned,
            _ = closed.wait_for(|closed| *closed) => ControlError::Stopping,
            () = tokio::time::sleep_until(deadline) => ControlError::BuildTimeout { limit: LONGEST },
        };
        cancel.send_replace(true);
        // Its place is free when nothing of it is left.
        match running.await {
            // It was faster.
            Ok(Ok(image)) => Ok(image),
            Ok(Err(BuildError { failure, .. })) => Err(BuildError { error: ended, failure }),
            Err(_) => Err(ControlError::Stopping.into()),
        }
    }

    /// Pulls an image that a Dockerfile names, if it is not here and may be pulled. Otherwise, the step that needs it says more.
    async fn pull_base(
        &self,
        tenant: &TenantId,
        image: &ImageName,
        updates: &mpsc::Sender<BuildUpdate>,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        let images = self.images()?;
        if images.find(tenant, image).is_some() || !images.config.policy.may_pull(tenant, image) {
            return Ok(());
        }
        let mut waiter = images.join(&self.registry_logins, tenant, image)?;
        let limit = images.config.policy.wait;
        let deadline = deadline.min(Instant::now() + limit);
        loop {
            // The latest one counts.
            let _ = updates.try_send(BuildUpdate::Pull(waiter.progress()));
            tokio::select! {
                biased;
                next = waiter.next() => {
                    if let Some(done) = next {
                        return done;
                    }
                }
                () = updates.closed() => return Err(ControlError::BuildAbandoned),
                () = tokio::time::sleep_until(deadline) => return Err(ControlError::PullTimeout { image: image.clone(), limit }),
            }
        }
    }

    /// Runs the steps, on a thread that may block, and removes what they leave without an image.
    fn run_build(
        &self,
        tenant: &TenantId,
        work: Work,
        spec: &SandboxSpec,
        updates: mpsc::Sender<BuildUpdate>,
    ) -> Result<Image, BuildError> {
        let images = self.images()?;
        let Some(steps) = &images.config.steps else { return Err(ControlError::NoImages.into()) };
        let (owner, layers) = (owner_of(tenant), Mutex::new(BTreeSet::new()));
        // Those of an image with this name, which this one replaces.
        let before = images.config.store.get_of(owner.as_ref(), &work.name).ok();
        let (runner, env) = (steps.runner(spec), steps.env());
        let request = BuildRequest {
            imagefile: &work.file,
            context_dir: &work.context.dir(),
            name: &work.name,
            env: &env,
            use_cache: work.use_cache,
            options: &work.options,
            tenant: Some(TenantBuild {
                tenant,
                owner: owner.as_ref(),
                max_bytes: spec.resources.disk_bytes,
                is_offline: spec.network != NetworkMode::Open,
                cancel: work.cancel.clone(),
                layers: &layers,
            }),
        };
        let mut log = BuildLog { updates, step: 0, text: String::new(), cached: false, skipped: 0, tail: VecDeque::new() };
        let mut show = |event: BuildEvent<'_>| log.show(&event);
        let building = arenite_image::build(&images.config.store, request, &*runner, &mut show);
        let built = tokio::runtime::Handle::current().block_on(building);
        let mut touched = layers.into_inner().unwrap_or_else(PoisonError::into_inner);
        touched.extend(before.into_iter().flat_map(|image| image.layers).map(|layer| layer.digest));
        if let Err(error) = self.remove_unused_layers(touched) {
            tracing::warn!(%error, "layers of a build stay until they are pruned");
        }
        match &built {
            Ok(image) => tracing::info!(image = %image.name, "built an image"),
            Err(error) => tracing::warn!(image = %work.name, %error, "an image could not be built"),
        }
        built.map_err(|error| log.failed(error))
    }

    fn remove_unused_layers(&self, digests: BTreeSet<String>) -> Result<(), ControlError> {
        let used = used_layers(&self.config.data_dir)?;
        let removed =
            self.images()?.config.store.remove_unused(digests.into_iter().collect(), &|digest| used.contains(digest))?;
        tracing::debug!(layers = removed.layers.len(), "removed layers of builds without an image");
        Ok(())
    }

    /// Removes what builds of a killed server left.
    pub(crate) async fn remove_interrupted_builds(&self) {
        let Some(images) = &self.images else { return };
        let (store, data_dir) = (images.config.store.clone(), self.config.data_dir.clone());
        let removing = move || {
            let used = used_layers(&data_dir)?;
            Ok::<_, ControlError>(store.remove_interrupted(&|digest| used.contains(digest))?)
        };
        match tokio::task::spawn_blocking(removing).await {
            Ok(Ok(removed)) if !removed.layers.is_empty() => {
                tracing::info!(layers = removed.layers.len(), "removed what interrupted builds left");
            }
            Ok(Err(error)) => tracing::warn!(%error, "what interrupted builds left could not be removed"),
            _ => {}
        }
    }
}

/// The layers that sandboxes run on.
pub(super) fn used_layers(data_dir: &Path) -> Result<HashSet<String>, ControlError> {
    let what = "the layers that sandboxes use could not be found".to_owned();
    let records =
        recorded_sandboxes(data_dir).map_err(|error| EngineError::Host { what, source: std::io::Error::other(error) })?;
    let parts = records.iter().flat_map(|record| &record.layers).flat_map(|dir| dir.iter());
    Ok(parts.filter_map(|part| part.to_str()).map(str::to_owned).collect())
}

/// An error before the first step.
fn of_file(error: ImageError) -> BuildError {
    let failure = error.line().map(|line| Box::new(BuildFailure { line: Some(line), ..BuildFailure::default() }));
    BuildError { error: error.into(), failure }
}

/// Passes the events of a build on, without waiting for a slow client.
struct BuildLog {
    updates: mpsc::Sender<BuildUpdate>,
    step: usize,
    text: String,
    cached: bool,
    skipped: u64,
    tail: VecDeque<String>,
}

impl BuildLog {
    fn show(&mut self, event: &BuildEvent<'_>) {
        let step = self.step;
        let update = match event {
            BuildEvent::StepStarted { number, of, text } => {
                (self.step, self.text, self.cached) = (*number, (*text).to_owned(), false);
                self.tail.clear();
                BuildUpdate::Step { step: *number, of: *of, text: (*text).to_owned() }
            }
            BuildEvent::Cached { .. } => {
                self.cached = true;
                return;
            }
            BuildEvent::Output { line } => {
                if self.tail.len() == LOG_LINES {
                    self.tail.pop_front();
                }
                self.tail.push_back((*line).to_owned());
                let skipped = self.skipped;
                match self.updates.try_send(BuildUpdate::Log { step, line: (*line).to_owned(), skipped }) {
                    Ok(()) => self.skipped = 0,
                    Err(_) => self.skipped += 1,
                }
                return;
            }
            BuildEvent::Warning { line, text } => BuildUpdate::Warning { line: *line, text: (*text).to_owned() },
            BuildEvent::StepDone { took, bytes } => {
                BuildUpdate::StepDone { step, cached: self.cached, seconds: took.as_secs_f64(), bytes: *bytes }
            }
            BuildEvent::Waiting | BuildEvent::Done { .. } => return,
        };
        // A client that does not read gets the result, and the lines that it has room for.
        let _ = self.updates.try_send(update);
    }

    fn failed(self, error: ImageError) -> BuildError {
        let exit_code = if let ImageError::Failed { code, .. } = &error { Some(*code) } else { None };
        let failure = BuildFailure {
            step: Some(self.step).filter(|step| *step > 0),
            instruction: Some(self.text).filter(|text| !text.is_empty()),
            line: error.line(),
            exit_code,
            log: self.tail.into(),
        };
        BuildError { error: error.into(), failure: Some(Box::new(failure)) }
    }
}

impl BuildError {
    pub fn code(&self) -> ErrorCode {
        self.error.code()
    }
}
