//! `FROM debootstrap:SUITE`: a fresh Debian from the host's own mirror.

mod bootstrap;
mod sources;

pub(crate) use bootstrap::{BootstrapError, RECIPE, bootstrap};
pub(crate) use sources::AptSources;
