//! The floor of a batch in `cargo xtask bench --only agentflow`: the same calls of the same tool inside one process, recorded as
//! usual. Prints calls per second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_model::TenantId;
use arenite_synthesis::backends::{SearchDirs, Text2Sql};
use arenite_synthesis::{
    Action, Caller, Create, Execute, GuestAnswer, SandboxRequest, Sandboxes, Setup, Synthesis, SynthesisError,
};
use arenite_trajectory::{Limits, Recorder};
use async_trait::async_trait;
use serde_json::{Map, Value};

const CALLS: usize = 20_000;

/// The tool needs none.
struct NoSandboxes;

#[async_trait]
impl Sandboxes for NoSandboxes {
    async fn make(&self, _: &Caller, _: &SandboxRequest, _: BTreeMap<String, String>) -> Result<String, SynthesisError> {
        Err(SynthesisError::Unreachable { reason: "there are none here".to_owned() })
    }
    async fn remove(&self, _: &Caller, _: &str) {}
    async fn is_there(&self, _: &Caller, _: &str) -> bool {
        false
    }
    async fn tenants(&self) -> Vec<TenantId> {
        Vec::new()
    }

    async fn labelled(&self, _: &TenantId, _: &str) -> Vec<String> {
        Vec::new()
    }
    async fn call(&self, _: &Caller, _: &str, _: &str, _: Option<&Value>) -> Result<GuestAnswer, SynthesisError> {
        Err(SynthesisError::Unreachable { reason: "there are none here".to_owned() })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // SQLite treats an empty file as a database without tables.
    let database = dir.path().join("empty.sqlite");
    std::fs::write(&database, "")?;
    let configuration = serde_json::json!({ "databases": { "empty": database } });
    let configuration = configuration.as_object().cloned().unwrap_or_default();
    let setup = Setup {
        dir: dir.path().join("workers"),
        recorder: Recorder::open(dir.path().join("trajectories"), Limits::default())?,
        sandboxes: Arc::new(NoSandboxes),
        backends: vec![Arc::new(Text2Sql::new(&configuration, &[], SearchDirs::default()))],
        session_ttl: Duration::from_secs(300),
        sandbox_request: SandboxRequest::default(),
    };
    let synthesis = Synthesis::start(setup)?;
    let caller = Caller { tenant: TenantId::default_tenant(), request_id: "bench".to_owned(), origin: None };
    let create = Create { worker: "bench".to_owned(), resource_type: "text2sql".to_owned(), ..Create::default() };
    synthesis.create(&caller, create).await?;
    let begun = Instant::now();
    for _ in 0..CALLS {
        let action = Action { name: "text2sql:list_databases".to_owned(), params: Some(Map::new()), timeout: None };
        let done =
            synthesis.execute(&caller, Execute { worker: "bench".to_owned(), action, ..Execute::default() }, || [0; 32]).await;
        assert_eq!(done.code, 0, "{}", done.json);
    }
    println!("{:.0}", CALLS as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
