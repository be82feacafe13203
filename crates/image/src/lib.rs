//! Images: read-only layers plus metadata, the store that keeps them, and the builds that make them.
//!
//! Owns the layers on disk, their manifests, Imagefiles, the layered view of an image's root and what is copied into it.
//! Never starts a sandbox: a build's RUN steps go to the [`BuildRunner`] that the engine gives it. Never lets an image's
//! content lead it elsewhere on the host: an image's links are resolved inside its own root, component by component.
//!
//! ```text
//!                 new_layer            seal: syncfs, rename
//! (nothing) ────────────────► building/<n> ───────────► layers/<digest> ◄── images/<name>.json
//!                                  │                          │ remove, prune: rename
//!                        failure or sweep                     ▼
//!                                  └──────► (nothing) ◄── trash/<n>
//! ```
//!
//! Only a sealed layer has a digest for a name, and a manifest is written after the layers it names. So a build that dies
//! leaves nothing but what is under `building/` and `trash/`, which the next open or build sweeps.

#![forbid(unsafe_code)]

mod build;
mod build_env;
mod copy;
mod debian;
mod digest;
mod error;
mod image;
pub mod imagefile;
mod output;
mod removal;
mod root;
mod store;
mod tree;

pub use build::{BuildEvent, BuildRequest, BuildRunner, RunStep, RunnerError, StepOutput, build};
pub use build_env::BuildEnv;
pub use error::ImageError;
pub use image::{Image, ImageConfig, Layer};
pub use imagefile::{Imagefile, ParseError};
pub use removal::remove_tree;
pub use root::{Entry, Resolved, RootView};
pub use store::{ImageStore, LayerStorage, PlainDirectories, Removed};
pub use tree::sha256_tree;
