//! Requests to external services: search engines, page readers, models. They run off the async threads.

use std::time::Duration;

use arenite_retrieval::service::agent;
use serde_json::{Value, json};

use crate::error::{SynthesisError, timeout};

/// Largest answer that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Default timeout of a model.
const MODEL_TIMEOUT: Duration = Duration::from_secs(300);

/// Sends one request. Returns its answer's status and text, or why there is none.
pub(super) async fn ask(
    url: String,
    headers: Vec<(String, String)>,
    body: Option<Value>,
    timeout: Duration,
) -> Result<(u16, String), ureq::Error> {
    let asked = tokio::task::spawn_blocking(move || {
        let agent = agent(timeout).build().new_agent();
        let mut head = ureq::http::Request::builder().uri(&url).method(if body.is_some() { "POST" } else { "GET" });
        for (name, value) in &headers {
            head = head.header(name, value);
        }
        let mut answer = match &body {
            Some(body) => agent.run(head.header("content-type", "application/json").body(body.to_string())?)?,
            None => agent.run(head.body(())?)?,
        };
        let text = answer.body_mut().with_config().limit(MAX_BYTES).lossy_utf8(true).read_to_string()?;
        Ok((answer.status().as_u16(), text))
    });
    asked.await.unwrap_or(Err(ureq::Error::ConnectionFailed))
}

/// A model behind an OpenAI-compatible API.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) key: String,
    /// The address up to `/v1`.
    pub(super) url: String,
    pub(super) timeout: Duration,
}

impl Model {
    pub(super) fn new(name: String, key: String, url: String) -> Self {
        Self { name, key, url, timeout: MODEL_TIMEOUT }
    }

    /// Returns the text of its answer. `more`: fields beside the model's name and the messages.
    pub(super) async fn complete(&self, messages: Value, more: Value) -> Result<String, SynthesisError> {
        let mut body = json!({ "model": self.name, "messages": messages });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let url = format!("{}/chat/completions", self.url.trim_end_matches('/'));
        let key = ("authorization".to_owned(), format!("Bearer {}", self.key));
        // In the format of OpenAI's own library.
        let asked = ask(url, vec![key], Some(body), self.timeout).await;
        let failed = |reason: String| SynthesisError::Service { reason };
        let (status, text) = asked.map_err(|error| match error {
            ureq::Error::Timeout(_) => timeout("Request timed out."),
            _ => failed("Connection error.".to_owned()),
        })?;
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        if !(200..300).contains(&status) {
            let shown: String = said["error"]["message"].as_str().unwrap_or(&text).chars().take(500).collect();
            return Err(failed(format!("Error code: {status} - {shown}")));
        }
        let content = said["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        Ok(content.to_owned())
    }
}

/// A setting of the configuration, otherwise the first of the variables that is set. An unexpanded variable counts as unset.
pub(super) fn setting(config: &serde_json::Map<String, Value>, name: &str, variables: &[&str]) -> Option<String> {
    let is_set = |text: &String| !text.is_empty() && !text.starts_with("${");
    let own = config.get(name).and_then(Value::as_str).map(str::to_owned).filter(is_set);
    own.or_else(|| variables.iter().find_map(|name| std::env::var(name).ok().filter(is_set)))
}
