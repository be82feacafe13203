//! The setting `trajectory_store`.

use std::sync::Arc;

use arenite_trajectory::Objects;

/// An object store for trajectories. It is opened with the credentials of the environment, and not connected to.
#[derive(Clone)]
pub(crate) struct TrajectoryStore(pub(crate) Arc<dyn Objects>);

impl std::fmt::Debug for TrajectoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.place())
    }
}

impl TrajectoryStore {
    #[cfg(feature = "object-storage")]
    pub(super) fn parse(given: &str) -> Result<Self, String> {
        let store = given.parse().and_then(arenite_objects::Store::open).map_err(|error| error.to_string())?;
        Ok(Self(Arc::new(store)))
    }

    #[cfg(not(feature = "object-storage"))]
    pub(super) fn parse(_: &str) -> Result<Self, String> {
        Err("this program was built without object storage".to_owned())
    }
}
