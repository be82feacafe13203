//! A server's data directory and store, to run one test on every store.

use std::path::Path;
use std::sync::Arc;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{self, PostgresAddress, Store};
use arenite_control::{Control, ControlConfig};

use super::cluster::Cluster;

pub(crate) struct Home {
    dir: tempfile::TempDir,
    pub(crate) cluster: Option<Cluster>,
}

impl Home {
    pub(crate) fn sqlite() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), cluster: None }
    }

    pub(crate) fn postgres() -> Self {
        Self { cluster: Some(Cluster::start()), ..Self::sqlite() }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn database(&self) -> Option<PostgresAddress> {
        self.cluster.as_ref().map(Cluster::address)
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        store::open(self.dir(), self.database().as_ref()).await.unwrap()
    }

    /// The configuration of a server that keeps tenants.
    pub(crate) fn config(&self) -> ControlConfig {
        let mut config = ControlConfig::new(self.dir().to_owned(), "base".parse().unwrap());
        config.tenants = true;
        config
    }

    pub(crate) async fn start_with(&self, config: ControlConfig, engine: &Arc<FakeEngine>) -> Arc<Control> {
        let engine: Arc<FakeEngine> = Arc::clone(engine);
        Control::start_with(config, engine, self.open().await).await.unwrap()
    }

    pub(crate) async fn start(&self) -> Arc<Control> {
        self.start_with(self.config(), &FakeEngine::new()).await
    }
}

/// Runs each function as a test on SQLite, and as one on Postgres.
#[allow(unused_macros, reason = "no test uses all of it")]
macro_rules! on_both_stores {
    ($($name:ident,)*) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Home::sqlite()).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Home::postgres()).await;
            })*
        }
    };
}
#[allow(unused_imports, reason = "likewise")]
pub(crate) use on_both_stores;
