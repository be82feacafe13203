//! A fake of the server: the few routes that the runner uses, and their misbehaviour on demand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) disconnected: Vec<String>,
    pub(crate) asked_for: Vec<String>,
    /// Number of 429 answers before the good ones.
    pub(crate) busy: usize,
    pub(crate) has_records: bool,
}

pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Seen>>,
    serving: Option<JoinHandle<()>>,
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        let mut server = Self { address: ([127, 0, 0, 1], 0).into(), seen: Arc::default(), serving: None };
        server.seen.lock().unwrap().has_records = true;
        server.come_back().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Dies: the port and its connections are closed.
    pub(crate) async fn die(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            drop(serving.await);
        }
    }

    pub(crate) async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let routes = Router::new()
            .route("/health", get(async || Json(json!({"status": "healthy", "timestamp": "now"}))))
            .route("/api/v1/worker/disconnect", post(disconnect))
            .route("/api/v1/trajectories", get(list))
            .route("/api/v1/trajectories/{id}/export", get(export))
            .with_state(Arc::clone(&self.seen));
        self.serving = Some(tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() }));
    }

    pub(crate) fn disconnected(&self) -> Vec<String> {
        self.seen.lock().unwrap().disconnected.clone()
    }
}

async fn disconnect(State(seen): State<Arc<Mutex<Seen>>>, Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut seen = seen.lock().unwrap();
    if seen.busy > 0 {
        seen.busy -= 1;
        return (StatusCode::TOO_MANY_REQUESTS, Json(json!({"error": "too much"})));
    }
    seen.disconnected.push(body["worker_id"].as_str().unwrap().to_owned());
    (StatusCode::OK, Json(json!({"code": 0, "message": "success", "data": {"sessions_cleaned": 0}, "meta": {}})))
}

async fn list(
    State(seen): State<Arc<Mutex<Seen>>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Json<Value>, StatusCode> {
    let mut seen = seen.lock().unwrap();
    if !seen.has_records {
        return Err(StatusCode::NOT_FOUND);
    }
    seen.asked_for.push(query["worker"].clone());
    Ok(Json(json!({"trajectories": [{"trajectory": format!("of-{}", query["worker"])}]})))
}

async fn export(Path(id): Path<String>, Query(query): Query<BTreeMap<String, String>>) -> String {
    assert_eq!(query["format"], "agentflow-rollout");
    let call = json!({"tool_name": "bash:run", "parameters": {"command": id}, "result": {"stdout": "x"}, "success": true,
        "error": null, "execution_time_ms": 1.5});
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": []}, {"role": "tool", "content": "x"}]);
    let branch =
        |calls: Value| json!({"task_id": "?", "trajectory": {"tool_calls": calls, "messages": messages}, "success": true});
    // One line per branch.
    format!("{}\n{}\n", branch(json!([])), branch(json!([call])))
}
