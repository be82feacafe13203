//! A gateway for tests of what comes before the proxy: `control` is real, the engine below it is not.

use std::sync::Arc;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::tenants::Principal;
use arenite_control::{Control, ControlConfig};
use arenite_engine::Storage;
use arenite_engine::namespace::storage::{PoolMode, StorageConfig};
use arenite_trajectory::{Limits, Origin, Recorder};
use axum::body::Body;
use http::header::HOST;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::Value;

use crate::GatewayConfig;
use crate::exchange::{self, Peer};
use crate::gateway::{Context, Gateway};

pub(crate) struct Harness {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) engine: Arc<FakeEngine>,
    dir: tempfile::TempDir,
}

pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null if the body is not JSON.
    pub(crate) json: Value,
}

impl Harness {
    pub(crate) async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    pub(crate) async fn with(set: impl FnOnce(&mut ControlConfig, &mut GatewayConfig)) -> Self {
        Self::recording(Limits::default(), set).await
    }

    pub(crate) async fn recording(limits: Limits, set: impl FnOnce(&mut ControlConfig, &mut GatewayConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut control = ControlConfig::new(dir.path().join("control"), "base".parse().unwrap());
        let mut config = GatewayConfig::default();
        set(&mut control, &mut config);
        std::fs::create_dir_all(&control.data_dir).unwrap();
        let engine = FakeEngine::new();
        let control = Control::start(control, Arc::clone(&engine) as _).await.unwrap();
        let recorder = Recorder::open(dir.path().join("trajectories"), limits).unwrap();
        Self { gateway: Arc::new(Gateway::new(config, control, recorder)), engine, dir }
    }

    /// Gives the engine a storage for volumes: plain directories.
    pub(crate) fn keep_volumes(&self) {
        let config = StorageConfig { mode: PoolMode::Off, ..StorageConfig::default() };
        self.engine.keep_volumes(Arc::new(Storage::open(&self.dir.path().join("storage"), &config).unwrap()));
    }

    /// Of a call by the operator.
    pub(crate) fn context() -> Context {
        Context {
            principal: Arc::new(Principal::operator()),
            dialect: "aio",
            request_id: String::new(),
            client: None,
            origin: Origin::Agent,
            base_url: None,
            trace: None,
        }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> TestResponse {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.bytes(method, path, bytes).await
    }

    pub(crate) async fn bytes(&self, method: &str, path: &str, body: Vec<u8>) -> TestResponse {
        let request = Request::builder().method(method).uri(path).header(HOST, "127.0.0.1:8080").body(Body::from(body)).unwrap();
        self.send(request).await
    }

    /// A call with further headers.
    pub(crate) async fn call_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> TestResponse {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != HOST.as_str()) {
            request = request.header(HOST, "127.0.0.1:8080");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> TestResponse {
        let peer = Peer { address: [127, 0, 0, 1].into(), scheme: "http" };
        let answer = exchange::answer(Arc::clone(&self.gateway), peer, request).await;
        let (parts, body) = answer.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            json: serde_json::from_str(&text).unwrap_or_default(),
            text,
        }
    }
}
