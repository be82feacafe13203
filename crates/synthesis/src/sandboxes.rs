//! The interface to workers' sandboxes, which the gateway implements.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_model::{ImageName, NetworkMode, TenantId};
use async_trait::async_trait;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use crate::error::SynthesisError;

/// The caller, as steps record it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub tenant: TenantId,
    pub request_id: String,
    pub origin: Option<String>,
}

/// Requested properties of a worker's sandbox. Unset: the server's default.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SandboxRequest {
    pub image: Option<ImageName>,
    #[serde(deserialize_with = "network")]
    pub network: Option<NetworkMode>,
    pub env: BTreeMap<String, String>,
    pub memory_mb: Option<u64>,
    /// Number of cores; may be a fraction.
    pub cpus: Option<f64>,
    pub disk_mb: Option<u64>,
    pub pids: Option<u32>,
    /// The worker with the sandbox that it starts as; in [`Sandboxes::make`], that sandbox. The other fields have no effect then, apart
    /// from `env`.
    pub fork_of: Option<String>,
}

impl SandboxRequest {
    /// Reads the fields of a session's configuration that are about its sandbox.
    ///
    /// # Errors
    /// The field with a wrong type.
    pub fn from_config(config: &Map<String, Value>) -> Result<Self, SynthesisError> {
        const FIELDS: [&str; 8] = ["image", "network", "env", "memory_mb", "cpus", "disk_mb", "pids", "fork_of"];
        let mut own = Map::new();
        for field in FIELDS {
            if let Some(value) = config.get(field).filter(|value| !value.is_null()) {
                own.insert(field.to_owned(), value.clone());
            }
        }
        // Another name for it in AgentFlow's documents.
        if let Some(limit) = config.get("memory_limit_mb").filter(|limit| limit.is_u64()) {
            own.entry("memory_mb").or_insert_with(|| limit.clone());
        }
        // Checked first, because these messages already name the field.
        let text = |field: &str| own.get(field).and_then(Value::as_str);
        text("image").map(str::parse::<ImageName>).transpose()?;
        text("network").map(parse_network).transpose()?;
        Self::deserialize(Value::Object(own)).map_err(|error| SynthesisError::SessionConfiguration { reason: error.to_string() })
    }

    /// Combines two requests; values of `self` take precedence.
    #[must_use]
    pub fn over(mut self, under: &Self) -> Self {
        self.image = self.image.or_else(|| under.image.clone());
        self.network = self.network.or(under.network);
        for (name, value) in &under.env {
            self.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self.memory_mb = self.memory_mb.or(under.memory_mb);
        self.cpus = self.cpus.or(under.cpus);
        self.disk_mb = self.disk_mb.or(under.disk_mb);
        self.pids = self.pids.or(under.pids);
        self
    }
}

fn parse_network(given: &str) -> Result<NetworkMode, SynthesisError> {
    match given {
        "none" => Ok(NetworkMode::None),
        "open" => Ok(NetworkMode::Open),
        _ => Err(SynthesisError::Network { given: given.to_owned() }),
    }
}

fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NetworkMode>, D::Error> {
    let given = Option::<String>::deserialize(deserializer)?;
    given.as_deref().map(parse_network).transpose().map_err(de::Error::custom)
}

/// An answer of a sandbox.
#[derive(Debug, Clone)]
pub struct GuestAnswer {
    pub status: u16,
    /// Null if the body is not JSON.
    pub json: Value,
    /// The unchanged body: a picture, a file.
    pub bytes: Vec<u8>,
}

impl GuestAnswer {
    /// The unchanged file or picture, or the error.
    pub fn file(self) -> Result<Vec<u8>, SynthesisError> {
        if self.status < 400 {
            return Ok(self.bytes);
        }
        let status = self.status;
        let message = format!("the sandbox answered with status {status}");
        Err(self.data().err().unwrap_or(SynthesisError::Refused { status, message, code: None }))
    }

    /// The `data` of AIO's envelope, or the sandbox's error message.
    pub fn data(self) -> Result<Value, SynthesisError> {
        let status = self.status;
        let Value::Object(mut answer) = self.json else {
            let message = format!("the sandbox answered with status {status} and no JSON");
            return Err(SynthesisError::Refused { status, message, code: None });
        };
        if status < 400 && answer.get("success").is_none_or(|success| success != &Value::Bool(false)) {
            return Ok(answer.remove("data").unwrap_or_default());
        }
        let said = answer.get("message").and_then(Value::as_str).unwrap_or("the sandbox refused the call");
        let message = match answer.get("hint").and_then(Value::as_str) {
            Some(hint) if !hint.is_empty() => format!("{said}; {hint}"),
            _ => said.to_owned(),
        };
        let code = answer.get("code").and_then(Value::as_str).map(str::to_owned);
        Err(SynthesisError::Refused { status, message, code })
    }
}

/// A request to a program on a port of a sandbox, with a body of any type.
#[derive(Debug)]
pub struct GuestRequest<'a> {
    pub port: u16,
    pub method: &'a str,
    pub path: &'a str,
    pub content_type: Option<&'a str>,
    pub body: Vec<u8>,
}

/// Creates, calls and removes sandboxes. Implemented by the gateway.
#[async_trait]
pub trait Sandboxes: Send + Sync {
    /// Creates a sandbox with the labels, and returns its name.
    ///
    /// # Errors
    /// Why it failed, for the client.
    async fn make(
        &self,
        caller: &Caller,
        sandbox_request: &SandboxRequest,
        labels: BTreeMap<String, String>,
    ) -> Result<String, SynthesisError>;
    /// Removes it. Succeeds if it does not exist.
    async fn remove(&self, caller: &Caller, name: &str);
    /// Whether it exists, and could answer.
    async fn is_there(&self, caller: &Caller, name: &str) -> bool;
    /// The tenants that have sandboxes.
    async fn tenants(&self) -> Vec<TenantId>;
    /// Names of all sandboxes with the label.
    async fn labelled(&self, tenant: &TenantId, label: &str) -> Vec<String>;
    /// Calls a path of a sandbox's own API. GET without a body.
    ///
    /// # Errors
    /// Why it could not be reached.
    async fn call(&self, caller: &Caller, name: &str, path: &str, body: Option<&Value>) -> Result<GuestAnswer, SynthesisError>;
    /// The same with bytes in both directions: the status and the body.
    ///
    /// # Errors
    /// Why it could not be reached.
    async fn send(&self, _caller: &Caller, _name: &str, _request: GuestRequest<'_>) -> Result<(u16, Vec<u8>), SynthesisError> {
        Err(SynthesisError::Unreachable { reason: "these sandboxes take JSON alone".to_owned() })
    }
}

/// A sandbox, for one call.
#[derive(Clone)]
pub struct SandboxHandle {
    pub sandboxes: Arc<dyn Sandboxes>,
    pub caller: Caller,
    /// The sandbox's name.
    pub name: String,
}

impl SandboxHandle {
    /// Posts to a path of the sandbox, and returns the `data` of its answer.
    ///
    /// # Errors
    /// The sandbox's error, or why it could not be reached.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, SynthesisError> {
        self.sandboxes.call(&self.caller, &self.name, path, Some(body)).await?.data()
    }

    /// The same with GET.
    ///
    /// # Errors
    /// As [`SandboxHandle::post`].
    pub async fn get(&self, path: &str) -> Result<Value, SynthesisError> {
        self.sandboxes.call(&self.caller, &self.name, path, None).await?.data()
    }

    /// Gets a file or a picture.
    ///
    /// # Errors
    /// As [`SandboxHandle::post`].
    pub async fn file(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        self.sandboxes.call(&self.caller, &self.name, path, None).await?.file()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn image_and_network_are_parsed_and_refused_with_their_messages() {
        let read = |config: Value| SandboxRequest::from_config(config.as_object().unwrap());
        let request = read(json!({ "image": "base", "network": "none", "memory_limit_mb": 512, "other": 1 })).unwrap();
        assert_eq!(request.image.map(String::from).as_deref(), Some("base"));
        assert_eq!((request.network, request.memory_mb), (Some(NetworkMode::None), Some(512)));
        for (config, message) in [
            (json!({ "network": "everything" }), "network is \"everything\", and has to be none or open"),
            (json!({ "network": "host" }), "network is \"host\", and has to be none or open"),
            (json!({ "network": 1 }), "the session's configuration: invalid type: integer `1`, expected a string"),
            (json!({ "image": 1 }), "the session's configuration: invalid type: integer `1`, expected a string"),
        ] {
            assert_eq!(read(config).unwrap_err().to_string(), message);
        }
        assert!(matches!(read(json!({ "image": "No such/image!" })), Err(SynthesisError::Name(_))));
    }
}
