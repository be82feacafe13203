//! Images: read-only layers plus metadata, the store of images, and their builds.
//!
//! Owns the layers on disk, their manifests, Imagefiles, archives, registries, the layered view of an image's root and what is
//! copied into it. Never starts a sandbox: the engine provides a [`BuildRunner`] for a build's RUN steps. An image's content never leads it elsewhere
//! on the host: an image's links are resolved inside its own root, component by component.
//!
//! ```text
//!                 new_layer            seal: syncfs, rename
//! (nothing) ────────────────► building/<n> ───────────► layers/<digest> ◄── images/<name>.json
//!                                  │                          │ remove, prune: rename
//!                        failure or sweep                     ▼
//!                                  └──────► (nothing) ◄── trash/<n>
//! ```
//!
//! Only a sealed layer is named by a digest, and a manifest is written after its layers. So an interrupted build leaves only
//! what is under `building/` and `trash/`, which the next open or build removes.

#![forbid(unsafe_code)]

mod add;
mod age;
mod archive;
mod build;
mod build_env;
mod cache;
mod copy;
mod debian;
mod digest;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzz;
mod glob;
mod ignore;
mod image;
pub mod imagefile;
mod output;
mod registry;
mod removal;
mod root;
mod store;
mod tar_entry;
mod tree;

pub use age::{AgeLimit, RemovedImages, UnusedImage};
pub use archive::{BuildContext, ContextLimits, SNAPSHOT_IMAGE, SnapshotArchive, SnapshotReader, export_layers, load, save};
pub use build::{
    BuildEvent, BuildOptions, BuildRequest, BuildRunner, Downloads, MountContent, RunStep, RunnerError, StepMount, StepOutput,
    StepSecret, TenantBuild, build,
};
pub use build_env::BuildEnv;
pub use error::ImageError;
pub use ignore::IgnoreFile;
pub use image::{HealthConfig, Image, ImageConfig, Layer};
pub use imagefile::{Imagefile, ParseError};
pub use registry::{
    Mirror, PullEvent, PullRequest, PushEvent, Reference, RegistryCredentials, RegistryOptions, docker_config_file, pull, push,
};
pub use removal::remove_tree;
pub use root::{Entry, Resolved, RootView, is_opaque, is_whiteout};
pub use store::{ImageStore, LayerStorage, NamedImage, PlainDirectories, Removed};
pub use tree::sha256_tree;
