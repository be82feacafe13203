//! What the server reads of a request before it passes it on. The rest passes unread.

use arenite_control::models::{ModelDialect, ModelUse};
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::usage::estimate;
use crate::refusal::Refusal;

/// Tokens that a call reserves for its answer, if it names no limit.
const USUAL_ANSWER: u64 = 4096;

/// An endpoint of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    ChatCompletions,
    Completions,
    Responses,
    Embeddings,
    Messages,
    /// Passed on without a step and without use: lists of models, and counts of tokens.
    Plain,
}

impl Endpoint {
    pub(super) fn find(dialect: ModelDialect, method: &Method, endpoint: &str) -> Result<Self, Refusal> {
        let found = match (dialect, endpoint) {
            (ModelDialect::Openai, "chat/completions") => Self::ChatCompletions,
            (ModelDialect::Openai, "completions") => Self::Completions,
            (ModelDialect::Openai, "responses") => Self::Responses,
            (ModelDialect::Openai, "embeddings") => Self::Embeddings,
            (ModelDialect::Anthropic, "messages") => Self::Messages,
            (ModelDialect::Anthropic, "messages/count_tokens") => Self::Plain,
            (_, "models") if *method == Method::GET => return Ok(Self::Plain),
            _ => {
                let shown: String = endpoint.chars().take(100).collect();
                let message = format!("a route with the dialect {} has no /v1/{shown}", dialect.name());
                return Err(Refusal::not_found(message).hint("docs/MODELS.md lists the endpoints"));
            }
        };
        if *method == Method::POST { Ok(found) } else { Err(Refusal::method_not_allowed(&[Method::POST])) }
    }
}

/// A field that is named twice is refused: the upstream could read the other one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<IgnoredAny>,
    // Some upstreams take -1 for no limit.
    max_tokens: Option<f64>,
    max_completion_tokens: Option<f64>,
    max_output_tokens: Option<f64>,
    n: Option<f64>,
}

impl Asked {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        if body.trim_ascii().first() != Some(&b'{') {
            return Err(Refusal::bad_request("the body is not a JSON object"));
        }
        serde_json::from_slice(body).map_err(|error| Refusal::bad_request(format!("the body can't be read: {error}")))
    }

    pub(super) fn model(&self) -> Result<&str, Refusal> {
        self.model.as_deref().ok_or_else(|| Refusal::bad_request("model is missing"))
    }

    pub(super) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// What the call may use.
    pub(super) fn expected(&self, endpoint: Endpoint, body: &[u8]) -> ModelUse {
        let most = self.max_completion_tokens.or(self.max_output_tokens).or(self.max_tokens);
        let most = most.filter(|most| *most >= 0.0).map_or(USUAL_ANSWER, |most| most as u64);
        let completion_tokens = match endpoint {
            Endpoint::Embeddings | Endpoint::Plain => 0,
            _ => most.saturating_mul(self.n.map_or(1, |n| n.max(1.0) as u64)),
        };
        ModelUse { prompt_tokens: estimate(body.len() as u64), completion_tokens, ..ModelUse::default() }
    }

    /// The body with a request for counts of tokens, if the client streams and says nothing of them.
    pub(super) fn asking_for_usage(&self, endpoint: Endpoint, body: &Bytes) -> Option<Bytes> {
        let is_silent = matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions)
            && self.is_stream()
            && self.stream_options.is_none();
        let at = body.iter().position(|byte| *byte == b'{').filter(|_| is_silent)?;
        // The object has fields: one says that it streams.
        Some([&body[..=at], br#""stream_options":{"include_usage":true},"#, &body[at + 1..]].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_can_not_be_read_in_two_ways() {
        for bad in [r#"{"model":"a","model":"b"}"#, r#"{"model":1}"#, "[]", "", "null", "{", r#"{"stream":"yes"}"#] {
            assert!(Asked::read(bad.as_bytes()).is_err(), "{bad}");
        }
        let asked = Asked::read(br#" {"model":"a","unknown":{"model":"b"},"temperature":0.10}"#).unwrap();
        assert_eq!((asked.model().unwrap(), asked.is_stream()), ("a", false));
        assert!(Asked::read(b"{}").unwrap().model().is_err());
    }

    #[test]
    fn usage_is_asked_for_once_and_nothing_else_changes() {
        let body = Bytes::from_static(br#" {"stream":true,"temperature":0.10}"#);
        let asking = Asked::read(&body).unwrap().asking_for_usage(Endpoint::ChatCompletions, &body).unwrap();
        assert_eq!(&asking[..], br#" {"stream_options":{"include_usage":true},"stream":true,"temperature":0.10}"#);
        for (silent, endpoint) in [
            (r#"{"stream":true,"stream_options":{}}"#, Endpoint::ChatCompletions),
            (r#"{"stream":false}"#, Endpoint::ChatCompletions),
            (r#"{"stream":true}"#, Endpoint::Responses),
        ] {
            let body = Bytes::from_static(silent.as_bytes());
            assert_eq!(Asked::read(&body).unwrap().asking_for_usage(endpoint, &body), None, "{silent}");
        }
    }

    #[test]
    fn the_answers_limit_is_reserved() {
        let expected = |body: &str| Asked::read(body.as_bytes()).unwrap().expected(Endpoint::ChatCompletions, body.as_bytes());
        assert_eq!(expected(r#"{"max_tokens":7,"n":2}"#).completion_tokens, 14);
        assert_eq!(expected(r#"{"max_completion_tokens":9}"#).completion_tokens, 9);
        assert_eq!(expected("{}").completion_tokens, USUAL_ANSWER);
        assert_eq!(expected(r#"{"max_tokens":-1}"#).completion_tokens, USUAL_ANSWER);
        assert_eq!(expected(r#"{"max_tokens":18446744073709551615,"n":2}"#).completion_tokens, u64::MAX);
    }

    #[test]
    fn a_dialect_has_its_endpoints_alone() {
        let find =
            |dialect, method, endpoint| Endpoint::find(dialect, &method, endpoint).map_err(|refusal| refusal.status.as_u16());
        assert_eq!(find(ModelDialect::Openai, Method::POST, "chat/completions"), Ok(Endpoint::ChatCompletions));
        assert_eq!(find(ModelDialect::Anthropic, Method::GET, "models"), Ok(Endpoint::Plain));
        assert_eq!(find(ModelDialect::Anthropic, Method::POST, "chat/completions"), Err(404));
        assert_eq!(find(ModelDialect::Openai, Method::GET, "responses"), Err(405));
        assert_eq!(find(ModelDialect::Openai, Method::POST, "files"), Err(404));
    }
}
