//! Images for creates: which one a tenant's sandbox gets, and pulls of those that are not here.
//!
//! ```text
//!  create ──► is it here? ──yes──────────────────────────────────────► admission, engine
//!                  │no                                                    ▲
//!                  └──► may it be pulled? ──► join the pull of it ──done──┘
//!                              │no                  │ no create waits any more
//!                              ▼                    ▼
//!                  the engine's error           cancelled
//! ```
//!
//! A create waits before its admission, so it holds its name and its place in the quotas, and nothing of the host.
//!
//! An image belongs to the tenant that pulled it, or to all if that was the tenant `default`. A tenant's own images come before
//! those of all.

mod builds;
mod keep;
mod logins;
mod policy;
mod pulls;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arenite_image::{ImageError, ImageStore, PullEvent, PullRequest, Reference, RegistryOptions};
use arenite_model::{ErrorCode, ImageName, TenantId};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::registry::Claim;
use crate::{Control, ControlError};

pub use arenite_image::{BuildContext, BuildEnv, BuildOptions, BuildRunner, Image, Layer, Removed};
pub(crate) use builds::Builds;
pub use builds::{BuildError, BuildFailure, BuildImage, BuildPermit, BuildUpdate, StepSandboxes};
pub use keep::configured_images;
pub use logins::RegistryLogin;
pub(crate) use logins::{Logins, WHAT as LOGINS};
pub use policy::{PullMode, PullPolicy, RegistryRule};
pub(crate) use pulls::{Change, PullKey, Pulls, Waiter};

/// Images, and what may be pulled.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    pub store: ImageStore,
    pub policy: PullPolicy,
    pub puller: Arc<dyn Puller>,
    /// None: the engine can't run steps of builds.
    pub steps: Option<Arc<dyn StepSandboxes>>,
    /// How long pulled images stay that nothing uses; none: until someone removes them.
    pub keep_unused: Option<Duration>,
}

/// Images that nodes of a cluster pull: the ones that creates may name.
#[derive(Debug, Clone)]
pub struct ClusterImages {
    /// Names that the operator gave to images.
    pub names: HashSet<String>,
    /// Its rules permit others.
    pub policy: PullPolicy,
}

impl ClusterImages {
    fn check(&self, tenant: &TenantId, name: &ImageName) -> Result<(), ControlError> {
        if self.names.contains(name.as_str()) {
            return Ok(());
        }
        let reference: Reference = name.as_str().parse().map_err(|reason: String| refused(name, reason, None))?;
        if self.policy.rule(tenant, &reference.to_string()).is_some() {
            return Ok(());
        }
        let hint = "an operator permits it with the settings image_pull and image_registry, or names it with kubernetes_image";
        let reason = format!("sandboxes may not use images of {}", reference.registry);
        Err(refused(name, reason, Some(hint.to_owned())))
    }
}

/// Gets images from registries. A fake one replaces it in tests.
pub trait Puller: Send + Sync + fmt::Debug {
    /// Blocks on network and disk.
    fn pull(
        &self,
        store: &ImageStore,
        request: &PullRequest<'_>,
        progress: &mut dyn FnMut(PullEvent),
    ) -> Result<Image, ImageError>;
}

/// Calls registries.
#[derive(Debug)]
pub struct Registries;

impl Puller for Registries {
    fn pull(
        &self,
        store: &ImageStore,
        request: &PullRequest<'_>,
        progress: &mut dyn FnMut(PullEvent),
    ) -> Result<Image, ImageError> {
        arenite_image::pull(store, request, progress)
    }
}

/// What a pull is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullState {
    /// It waits until other pulls end.
    #[default]
    Queued,
    /// The registry is asked what the image is.
    Resolving,
    Downloading,
    Unpacking,
}

/// How far a pull is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PullProgress {
    /// The whole reference, such as `docker.io/library/python:3.12`.
    pub image: String,
    pub state: PullState,
    /// 0 until the image is known.
    pub layers: usize,
    /// Layers that are here.
    pub layers_done: usize,
    /// Compressed size of the layers to download.
    pub bytes: u64,
    pub bytes_done: u64,
}

impl PullProgress {
    fn apply(&mut self, event: &PullEvent) {
        match event {
            PullEvent::Resolved { layers, missing, bytes, .. } => {
                self.state = PullState::Downloading;
                (self.layers, self.layers_done) = (*layers, layers.saturating_sub(*missing));
                (self.bytes, self.bytes_done) = (*bytes, 0);
            }
            PullEvent::Downloaded { bytes } => self.bytes_done = self.bytes_done.saturating_add(*bytes).min(self.bytes),
            PullEvent::Unpacking => (self.state, self.layers_done) = (PullState::Unpacking, 0),
            PullEvent::Unpacked => self.layers_done = (self.layers_done + 1).min(self.layers),
        }
    }
}

/// The client of a create: sees the progress of a pull. When its receivers are dropped, the client is gone, and the create does not
/// wait for a pull any longer.
#[derive(Debug, Clone)]
pub struct CreateClient(Arc<watch::Sender<Option<PullProgress>>>);

impl CreateClient {
    pub fn new() -> (Self, watch::Receiver<Option<PullProgress>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(Arc::new(sender)), receiver)
    }

    fn show(&self, progress: PullProgress) {
        self.0.send_replace(Some(progress));
    }

    async fn gone(&self) {
        self.0.closed().await;
    }
}

/// The images of a server.
pub(crate) struct Images {
    config: ImagesConfig,
    pulls: Arc<Pulls>,
    pub(crate) builds: Builds,
}

/// The owner of a tenant's pulls.
pub(crate) fn owner_of(tenant: &TenantId) -> Option<TenantId> {
    (*tenant != TenantId::default_tenant()).then(|| tenant.clone())
}

impl Images {
    pub(crate) fn new(config: ImagesConfig) -> Self {
        Self { config, pulls: Arc::default(), builds: Builds::default() }
    }

    pub(crate) fn store(&self) -> &ImageStore {
        &self.config.store
    }

    /// Whether a tenant's create may pull an image.
    pub(crate) fn may_pull(&self, tenant: &TenantId, name: &ImageName) -> bool {
        self.config.policy.may_pull(tenant, name)
    }

    pub(crate) fn close(&self) {
        self.pulls.close();
        self.builds.close();
    }

    /// The owner of the image that a tenant's sandboxes get. None: it is not here.
    fn find(&self, tenant: &TenantId, name: &ImageName) -> Option<Option<TenantId>> {
        let own = owner_of(tenant);
        [own, None].into_iter().find(|owner| self.config.store.has(owner.as_ref(), name))
    }

    /// Begins or joins the pull of an image.
    fn join(&self, logins: &Logins, tenant: &TenantId, name: &ImageName) -> Result<Waiter, ControlError> {
        let reference: Reference = name.as_str().parse().map_err(|reason: String| refused(name, reason, None))?;
        let full = reference.to_string();
        let Some(rule) = self.config.policy.rule(tenant, &full) else {
            let reason = match self.config.policy.mode {
                PullMode::Never => "this server pulls no images".to_owned(),
                PullMode::Missing => format!("this server may not pull from {}", reference.registry),
            };
            let hint = "an operator permits it with the settings image_pull and image_registry, or pulls it: arenite image pull";
            return Err(refused(name, reason, Some(hint.to_owned())));
        };
        let credentials = logins.credentials(tenant, &reference.registry);
        let public_only = rule.is_public_only();
        let options = RegistryOptions { credentials, public_only, ..self.config.policy.options.clone() };
        let key = PullKey { owner: owner_of(tenant), image: full };
        let (store, puller) = (self.config.store.clone(), Arc::clone(&self.config.puller));
        self.pulls.join(key.clone(), move |cancel: &AtomicBool, progress: &mut dyn FnMut(Change<'_>)| {
            progress(&|progress| progress.state = PullState::Resolving);
            let request = PullRequest { reference: &reference, name: None, owner: key.owner.as_ref(), options: &options, cancel };
            puller.pull(&store, &request, &mut |event| progress(&|progress| progress.apply(&event))).map(drop)
        })
    }
}

fn refused(name: &ImageName, reason: String, hint: Option<String>) -> ControlError {
    let code = ErrorCode::Forbidden;
    ControlError::from(ImageError::Registry { reference: name.to_string(), reason, hint, code })
}

impl Control {
    pub(crate) fn images(&self) -> Result<&Images, ControlError> {
        self.images.as_ref().ok_or(ControlError::NoImages)
    }

    /// Finds the image of a create, and its owner. Pulls it if it is not here and may be pulled. Returns whether it waited.
    pub(crate) async fn find_image(
        &self,
        tenant: &TenantId,
        spec: &mut arenite_model::SandboxSpec,
        client: Option<&CreateClient>,
        claim: &Claim,
    ) -> Result<bool, ControlError> {
        let Some(images) = &self.images else {
            return self
                .config
                .cluster_images
                .as_ref()
                .map_or(Ok(()), |images| images.check(tenant, &spec.image))
                .map(|()| false);
        };
        if let Some(owner) = images.find(tenant, &spec.image) {
            images.config.store.mark_used(owner.as_ref(), &spec.image);
            spec.image_owner = owner;
            return Ok(false);
        }
        if !images.config.policy.may_pull(tenant, &spec.image) {
            // The engine's error says more.
            return Ok(false);
        }
        let waiter = images.join(&self.registry_logins, tenant, &spec.image)?;
        tokio::select! {
            biased;
            () = claim.cancelled() => return Err(ControlError::PullAbandoned { image: spec.image.clone() }),
            waited = self.wait_for_pull(waiter, &spec.image, client) => waited?,
        }
        spec.image_owner = owner_of(tenant);
        Ok(true)
    }

    /// Waits for a pull, up to the configured time, and as long as its client does.
    async fn wait_for_pull(
        &self,
        mut waiter: Waiter,
        image: &ImageName,
        client: Option<&CreateClient>,
    ) -> Result<(), ControlError> {
        let limit = self.images()?.config.policy.wait;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(client) = client {
                client.show(waiter.progress());
            }
            let gone = async {
                match client {
                    Some(client) => client.gone().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                next = waiter.next() => {
                    if let Some(done) = next {
                        return done;
                    }
                }
                () = gone => return Err(ControlError::PullAbandoned { image: image.clone() }),
                () = tokio::time::sleep_until(deadline) => return Err(ControlError::PullTimeout { image: image.clone(), limit }),
            }
        }
    }

    /// Pulls an image for a tenant, also if there is one of this name. Joins a pull that is under way.
    pub async fn pull_image(
        &self,
        tenant: &TenantId,
        name: &ImageName,
        client: Option<&CreateClient>,
    ) -> Result<Image, ControlError> {
        let _operation = self.operation()?;
        let waiter = self.images()?.join(&self.registry_logins, tenant, name)?;
        self.wait_for_pull(waiter, name, client).await?;
        self.image(tenant, name).await
    }

    /// The images that a tenant may use, by name: its own, and those of all.
    pub async fn list_images(&self, tenant: &TenantId) -> Result<Vec<Image>, ControlError> {
        let (store, own) = (self.images()?.config.store.clone(), owner_of(tenant));
        let images = blocking(move || store.list()).await?;
        let is_visible = |image: &Image| image.owner.is_none() || image.owner == own;
        let mut images: Vec<Image> = images.into_iter().filter(is_visible).collect();
        // A tenant's own comes in place of the one of all.
        let hidden: HashSet<ImageName> =
            images.iter().filter(|image| image.owner.is_some()).map(|image| image.name.clone()).collect();
        images.retain(|image| image.owner.is_some() || !hidden.contains(&image.name));
        Ok(images)
    }

    /// The image of this name that a tenant's sandboxes get.
    pub async fn image(&self, tenant: &TenantId, name: &ImageName) -> Result<Image, ControlError> {
        let Some(images) = &self.images else { return Err(ImageError::NotFound { name: name.clone() }.into()) };
        let owner = images.find(tenant, name).flatten();
        let (store, name) = (images.config.store.clone(), name.clone());
        blocking(move || store.get_of(owner.as_ref(), &name)).await
    }

    /// Removes a tenant's own image, or for the tenant `default` one of all. Layers that sandboxes use stay.
    pub async fn remove_image(&self, tenant: &TenantId, name: &ImageName) -> Result<Removed, ControlError> {
        let Some(images) = &self.images else { return Err(ImageError::NotFound { name: name.clone() }.into()) };
        let (store, owner, name) = (images.config.store.clone(), owner_of(tenant), name.clone());
        let data_dir = self.config.data_dir.clone();
        let remove = move || {
            let used = builds::used_layers(&data_dir)?;
            Ok(store.remove_of(owner.as_ref(), &name, &|digest| used.contains(digest))?)
        };
        tokio::task::spawn_blocking(remove).await.unwrap_or(Err(ControlError::Stopping))
    }

    /// The pulls that are under way for a tenant.
    pub fn pulls(&self, tenant: &TenantId) -> Vec<PullProgress> {
        self.images.as_ref().map_or_else(Vec::new, |images| images.pulls.list(owner_of(tenant).as_ref()))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ImageError> + Send + 'static) -> Result<T, ControlError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(ControlError::Stopping),
    }
}
