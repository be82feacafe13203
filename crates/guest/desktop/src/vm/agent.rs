//! HTTP to the agent in the VM, by OSWorld's protocol.

use std::io;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::service::VmError;
use arenite_guest_runtime::http::client;

/// Maximum bytes of an answer: a tree of many elements is the largest.
const MAX_ANSWER: usize = 32 << 20;
/// Timeout for an answer, unless the caller has less time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address of the agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agent {
    pub(super) port: u16,
}

/// The result of a command in the VM.
#[derive(Debug, Deserialize)]
struct Ran {
    #[serde(default)]
    output: String,
    #[serde(default)]
    error: String,
    returncode: i64,
}

impl Agent {
    /// Whether the VM's screen is up: the agent can take a screenshot.
    pub(super) async fn is_ready(self, patience: Duration) -> bool {
        self.send(Method::GET, "/screenshot", None, patience).await.is_ok()
    }

    /// Returns the accessibility tree as XML.
    pub(super) async fn tree(self) -> Result<String, VmError> {
        #[derive(Deserialize)]
        struct Tree {
            #[serde(rename = "AT")]
            tree: String,
        }
        let answer = self.send(Method::GET, "/accessibility", None, PATIENCE).await?;
        let tree: Tree = serde_json::from_slice(&answer).map_err(|error| VmError::Agent(error.to_string()))?;
        Ok(tree.tree)
    }

    /// Runs a shell command in the VM to its end, and returns its output.
    pub(super) async fn run(self, command: &str) -> Result<String, VmError> {
        let answer = self.send(Method::POST, "/execute", Some(json!({"command": command, "shell": true})), PATIENCE).await?;
        let ran: Ran = serde_json::from_slice(&answer).map_err(|error| VmError::Agent(error.to_string()))?;
        if ran.returncode != 0 {
            let said: String = ran.error.trim().chars().take(300).collect();
            return Err(VmError::Agent(format!("a command ended with exit code {}: {said}", ran.returncode)));
        }
        Ok(ran.output)
    }

    async fn send(self, method: Method, path: &str, body: Option<Value>, patience: Duration) -> Result<Bytes, VmError> {
        let exchange = async {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let text = body.map(|body| body.to_string()).unwrap_or_default();
            let request =
                Request::builder().method(method).uri(path).header(HOST, "127.0.0.1").header(CONTENT_TYPE, "application/json");
            client::exchange(stream, request.body(text.into()).map_err(io::Error::other)?, MAX_ANSWER).await
        };
        let answer = timeout(patience, exchange)
            .await
            .map_err(|_| VmError::Agent(format!("it did not answer {path} within {} s", patience.as_secs())))?
            .map_err(|error| VmError::Agent(error.to_string()))?;
        let (status, body) = (answer.status(), answer.into_body());
        if !status.is_success() {
            let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(VmError::Agent(format!("it answered {path} with {status}: {said}")));
        }
        Ok(body)
    }
}
