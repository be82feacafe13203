//! Captchas: known kinds are detected and can be waited for. None is solved.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use super::navigate::patience;
use super::{PageError, Work};

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Captchas {
    detected: bool,
    /// The kind of the first one: `recaptcha`, `hcaptcha`, `turnstile`, ….
    r#type: Option<String>,
    captchas: Vec<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CaptchaWaitResult {
    /// Whether none is left.
    pub resolved: bool,
}

impl Work {
    /// Returns the captchas that require an interaction.
    pub(super) async fn captchas(&self) -> Result<Captchas, PageError> {
        let mut captchas: Vec<Map<String, Value>> = self.read("widgets", json!([])).await?;
        captchas.truncate(20);
        let kind = captchas.first().and_then(|first| first["type"].as_str()).map(str::to_owned);
        Ok(Captchas { detected: !captchas.is_empty(), r#type: kind, captchas: captchas.into_iter().map(Value::Object).collect() })
    }

    /// Waits until a person or a program has solved them.
    pub(super) async fn captchas_solved(&self, timeout: f64, poll: f64) -> Result<CaptchaWaitResult, PageError> {
        let deadline = Instant::now() + patience(timeout)?;
        let poll = match poll {
            poll if (0.05..=60.0).contains(&poll) => std::time::Duration::from_secs_f64(poll),
            _ => return Err(PageError::Bad("poll_interval is from 0.05 to 60 seconds".to_owned())),
        };
        loop {
            if !self.captchas().await?.detected {
                return Ok(CaptchaWaitResult { resolved: true });
            }
            if Instant::now() >= deadline {
                return Ok(CaptchaWaitResult { resolved: false });
            }
            sleep(poll.min(deadline - Instant::now())).await;
        }
    }
}
