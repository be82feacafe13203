//! VMs that are prepared before they are needed.
//!
//! ```text
//!  missing ──► a sandbox is created ──► its desktop starts, its setup runs ──► ready ──► belongs to a session ──► removed
//! ```
//!
//! A session never gets a VM that another had: a VM that is taken is replaced in the background. A VM that fails during its
//! preparation is removed; the next take, or warmup, tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::begin;
use super::settings::{Settings, pool_size};
use super::setup::{self, Setting};
use crate::error::{SynthesisError, invalid};
use crate::keep::Keep;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest};

/// VMs that are prepared concurrently: each start uses a core or more for about a second.
const AT_ONCE: usize = 2;

pub(super) struct Pool {
    config: Map<String, Value>,
    setting: Setting,
    keep: Keep,
    state: Mutex<State>,
    slots: Semaphore,
}

#[derive(Default)]
struct State {
    /// By name; the one that has been ready for the longest time is first.
    ready: Vec<String>,
    /// In preparation.
    making: usize,
    /// Taken, and their completed steps not yet queried.
    taken: HashMap<String, Vec<Value>>,
    closed: bool,
}

impl Pool {
    pub(super) fn new(config: Map<String, Value>, setting: Setting, keep: Keep) -> Self {
        Self { config, setting, keep, state: Mutex::default(), slots: Semaphore::new(AT_ONCE) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings of its VMs.
    fn kind(&self) -> Result<(Settings, SandboxRequest), SynthesisError> {
        let settings = Settings::from_config(&self.config)?;
        let sandbox_request = settings.sandbox_request().ok_or_else(|| invalid("VMs of this provider are not kept ready"))?;
        let sandbox_request = SandboxRequest::from_config(&self.config)?.over(&sandbox_request);
        Ok((settings, sandbox_request))
    }

    /// Prepares the missing VMs.
    ///
    /// # Errors
    /// Why one could not be prepared.
    pub(super) async fn fill(self: &Arc<Self>) -> Result<(), SynthesisError> {
        let wanted = pool_size(&self.config)?;
        if wanted == 0 {
            return Ok(());
        }
        let (settings, sandbox_request) = self.kind()?;
        let missing = {
            let mut state = self.state();
            let missing = if state.closed { 0 } else { wanted.saturating_sub(state.ready.len() + state.making) };
            state.making += missing;
            missing
        };
        // Separate tasks: the caller may leave, and the pool must still know about the VMs that it started.
        let making = (0..missing).map(|_| {
            let (pool, settings, sandbox_request) = (Arc::clone(self), settings.clone(), sandbox_request.clone());
            tokio::spawn(async move { pool.one(&settings, &sandbox_request).await })
        });
        let made = futures_util::future::join_all(making.collect::<Vec<_>>()).await;
        made.into_iter().try_for_each(|one| one.unwrap_or_else(|error| Err(error.into())))
    }

    async fn one(&self, settings: &Settings, sandbox_request: &SandboxRequest) -> Result<(), SynthesisError> {
        let made = self.made(settings, sandbox_request).await;
        let (unwanted, done) = {
            let mut state = self.state();
            state.making -= 1;
            match made {
                Ok(handle) if state.closed => (Some(handle.name), Ok(())),
                Ok(handle) => {
                    state.ready.push(handle.name);
                    (None, Ok(()))
                }
                Err(error) => (None, Err(error)),
            }
        };
        if let Some(name) = unwanted {
            self.keep.remove(&name).await;
        }
        done
    }

    async fn made(&self, settings: &Settings, sandbox_request: &SandboxRequest) -> Result<SandboxHandle, SynthesisError> {
        let _slot = self.slots.acquire().await?;
        let handle = self.keep.make(sandbox_request).await?;
        let ready = async {
            let vm = settings.vm(Some(&handle), &self.config, "").await?;
            begin(&*vm).await?;
            setup::run(&*vm, &settings.setup, &self.setting).await
        };
        if let Err(error) = ready.await {
            self.keep.remove(&handle.name).await;
            return Err(error);
        }
        Ok(handle)
    }

    /// Takes a VM for such a session, if one is ready, and prepares a replacement.
    pub(super) async fn take(
        self: &Arc<Self>,
        caller: &Caller,
        config: &Map<String, Value>,
        sandbox_request: &SandboxRequest,
    ) -> Option<String> {
        let (ours, own) = self.kind().ok()?;
        let theirs = Settings::from_config(config).ok()?;
        let is_such = caller.tenant == *self.keep.tenant()
            && theirs.provider == ours.provider
            && self.keep.whole(&own) == *sandbox_request
            // A setup can't be undone; without one, the session's own steps may follow.
            && (ours.setup.is_empty() || ours.setup == theirs.setup);
        if !is_such {
            return None;
        }
        let taken = loop {
            let name = {
                let mut state = self.state();
                if state.ready.is_empty() {
                    break None;
                }
                state.ready.remove(0)
            };
            if self.keep.is_there(&name).await {
                self.state().taken.insert(name.clone(), ours.setup.clone());
                break Some(name);
            }
        };
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = pool.fill().await {
                tracing::warn!("a VM could not be made ready: {error}");
            }
        });
        taken
    }

    /// The steps that ran on a VM of the pool before its session got it. None: it is no VM of the pool.
    pub(super) fn done(&self, name: &str) -> Option<Vec<Value>> {
        self.state().taken.remove(name)
    }

    /// Removes all VMs that were not taken.
    pub(super) async fn close(&self) {
        let ready = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        for name in ready {
            self.keep.remove(&name).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arenite_model::TenantId;
    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::sandboxes::{GuestAnswer, Sandboxes};

    /// Sandboxes that consist only of names.
    #[derive(Default)]
    struct FakeSandboxes {
        made: Mutex<Vec<String>>,
        removed: Mutex<Vec<String>>,
        broken: bool,
    }

    #[async_trait]
    impl Sandboxes for FakeSandboxes {
        async fn make(
            &self,
            _: &Caller,
            sandbox_request: &SandboxRequest,
            labels: BTreeMap<String, String>,
        ) -> Result<String, SynthesisError> {
            assert!(labels.keys().any(|label| label.starts_with("agentflow.kept.")));
            assert_eq!(sandbox_request.cpus, Some(3.0), "what the server's sandboxes are is under it");
            let mut made = self.made.lock().unwrap();
            let name = format!("s{}", made.len());
            made.push(name.clone());
            Ok(name)
        }

        async fn remove(&self, _: &Caller, name: &str) {
            self.removed.lock().unwrap().push(name.to_owned());
        }

        async fn is_there(&self, _: &Caller, name: &str) -> bool {
            !self.removed.lock().unwrap().contains(&name.to_owned())
        }

        async fn tenants(&self) -> Vec<TenantId> {
            Vec::new()
        }

        async fn labelled(&self, _: &TenantId, _: &str) -> Vec<String> {
            Vec::new()
        }

        async fn call(&self, _: &Caller, _: &str, _: &str, _: Option<&Value>) -> Result<GuestAnswer, SynthesisError> {
            let (status, message) = if self.broken { (424, "no screen") } else { (200, "shown") };
            let json = json!({"success": !self.broken, "message": message, "data": {"exit_code": 0}});
            Ok(GuestAnswer { status, json, bytes: Vec::new() })
        }
    }

    fn pool(sandboxes: &Arc<FakeSandboxes>, config: Value) -> Arc<Pool> {
        let under = SandboxRequest { cpus: Some(3.0), ..SandboxRequest::default() };
        let keep = Keep::new(Arc::clone(sandboxes) as Arc<dyn Sandboxes>, under);
        Arc::new(Pool::new(config.as_object().cloned().unwrap(), Setting::default(), keep))
    }

    async fn take(pool: &Arc<Pool>, config: Value, tenant: TenantId) -> Option<String> {
        let config = config.as_object().cloned().unwrap();
        let caller = Caller { tenant, request_id: String::new(), origin: None };
        let sandbox_request = SandboxRequest::from_config(&config)
            .unwrap()
            .over(&Settings::from_config(&config).unwrap().sandbox_request().unwrap());
        pool.take(&caller, &config, &pool.keep.whole(&sandbox_request)).await
    }

    #[tokio::test]
    async fn only_what_is_such_a_machine_is_given_away_and_only_once() {
        let sandboxes = Arc::new(FakeSandboxes::default());
        let pool = pool(&sandboxes, json!({"pool_size": 2, "screen_size": [800, 600]}));
        pool.fill().await.unwrap();
        let own = TenantId::default_tenant;
        let such = json!({"screen_size": "800x600", "recording": true});
        for other in [
            json!({}),
            json!({"screen_size": [800, 600], "memory_mb": 512}),
            json!({"screen_size": [800, 600], "env": {"A": "b"}}),
        ] {
            assert_eq!(take(&pool, other, own()).await, None);
        }
        assert_eq!(take(&pool, such.clone(), "another".parse().unwrap()).await, None);
        assert_eq!(take(&pool, such.clone(), own()).await.as_deref(), Some("s0"));
        assert_eq!((pool.done("s0"), pool.done("s0")), (Some(Vec::new()), None));
        // A VM that was removed externally is skipped.
        sandboxes.removed.lock().unwrap().push("s1".to_owned());
        pool.fill().await.unwrap();
        assert!(!["s0", "s1"].contains(&take(&pool, such, own()).await.unwrap().as_str()));
        pool.close().await;
        pool.fill().await.unwrap();
        assert!(pool.state().ready.is_empty());
    }

    #[tokio::test]
    async fn a_machine_that_does_not_begin_is_removed_and_said() {
        let sandboxes = Arc::new(FakeSandboxes { broken: true, ..FakeSandboxes::default() });
        let broken = pool(&sandboxes, json!({"pool_size": 1}));
        assert_eq!(broken.fill().await.unwrap_err().to_string(), "no screen");
        assert_eq!(*sandboxes.removed.lock().unwrap(), ["s0"]);
        assert_eq!(take(&broken, json!({}), TenantId::default_tenant()).await, None);
        let docker = pool(&sandboxes, json!({"pool_size": 1, "provider": "aliyun"}));
        assert!(docker.fill().await.unwrap_err().to_string().contains("aliyun"));
    }
}
