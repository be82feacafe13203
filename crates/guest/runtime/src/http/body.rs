//! Reads request bodies and queries like FastAPI, since AIO's clients were written against it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body as Incoming, BodyDataStream, Bytes};
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, FromRequestParts, Multipart, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ApiError, Lax};

/// The most bytes of a JSON body. The gateway has the same bound.
const MAX_JSON_BYTES: usize = 32 << 20;
/// The most bytes after the end of a form.
const MAX_BYTES_AFTER_FORM: usize = 64 << 10;

/// A JSON body. An empty one reads as `{}`, which AIO's clients send for calls with optional fields only.
#[derive(Debug)]
pub struct Body<T>(pub T);

/// The query. For repeated keys, the last one counts.
#[derive(Debug)]
pub struct QueryArgs<T>(pub T);

/// One error in a request.
#[derive(Debug, Clone, Serialize)]
struct Problem {
    location: Vec<Value>,
    message: String,
    kind: &'static str,
}

/// 422 with both bodies that clients know: FastAPI's `detail` and AIO's envelope with `errors`.
fn unprocessable(problem: &Problem) -> Response {
    let Problem { location, message, kind } = problem;
    let body = json!({
        "success": false,
        "message": "Request data validation failed",
        "data": null,
        "detail": [{"loc": location, "msg": message, "type": kind}],
        "errors": [{"location": location, "message": message, "type": kind}],
    });
    (StatusCode::UNPROCESSABLE_ENTITY, axum::Json(body)).into_response()
}

/// 422 for a missing part or field, with FastAPI's message.
pub fn missing(root: &str, field: &str) -> Response {
    unprocessable(&Problem { location: vec![root.into(), field.into()], message: "Field required".to_owned(), kind: "missing" })
}

/// A form. Its parts are read one after the other.
#[derive(Debug)]
pub struct Form {
    parts: Multipart,
    /// The stream that `parts` reads from.
    body: Arc<Mutex<BodyDataStream>>,
}

impl Form {
    /// Parses a form. Answers 422 if the body is no form.
    pub async fn from_request(request: Request) -> Result<Self, Response> {
        let (head, body) = request.into_parts();
        let body = Arc::new(Mutex::new(body.into_data_stream()));
        let read = futures_util::stream::poll_fn({
            let body = body.clone();
            move |context| next_chunk(&body, context)
        });
        let request = Request::from_parts(head, Incoming::from_stream(read));
        let parts = Multipart::from_request(request, &()).await.map_err(|rejection| {
            let message = rejection.body_text();
            unprocessable(&Problem { location: vec!["body".into()], message, kind: "multipart_invalid" })
        })?;
        Ok(Self { parts, body })
    }

    /// The next part. None only after the end of the body: the form's own end may have arrived from a client that disconnected
    /// before it had sent everything. The error says what is wrong with the body.
    pub async fn next_field(&mut self) -> Result<Option<Field<'_>>, String> {
        let Self { parts, body } = self;
        if let Some(field) = parts.next_field().await.map_err(|error| error.body_text())? {
            return Ok(Some(field));
        }
        let mut after = 0;
        while let Some(chunk) = poll_fn(|context| next_chunk(body, context)).await {
            after += chunk.map_err(|error| error.to_string())?.len();
            if after > MAX_BYTES_AFTER_FORM {
                return Err("the form has ended and the body goes on".to_owned());
            }
        }
        Ok(None)
    }
}

fn next_chunk(body: &Mutex<BodyDataStream>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
    body.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(context)
}

/// Where serde stopped and why, in FastAPI's form.
fn problem(root: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let mut location = vec![Value::from(root)];
    for segment in error.path() {
        match segment {
            serde_path_to_error::Segment::Map { key } => location.push(key.as_str().into()),
            serde_path_to_error::Segment::Seq { index } => location.push((*index).into()),
            serde_path_to_error::Segment::Enum { variant } => location.push(variant.as_str().into()),
            serde_path_to_error::Segment::Unknown => {}
        }
    }
    let text = error.inner().to_string();
    // serde appends " at line 1 column 17", which means nothing to a client that sent a value.
    let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
    if error.inner().is_syntax() || error.inner().is_eof() {
        return Problem { location, message: format!("JSON decode error: {message}"), kind: "json_invalid" };
    }
    if let Some(field) = message.strip_prefix("missing field `").and_then(|m| m.split('`').next()) {
        location.push(field.into());
        return Problem { location, message: "Field required".to_owned(), kind: "missing" };
    }
    let kind = if message.starts_with("unknown variant") {
        "enum"
    } else if message.starts_with("invalid type") {
        "type_error"
    } else {
        "value_error"
    };
    Problem { location, message, kind }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_JSON_BYTES).await.map_err(|_| {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is cut off or larger than {MAX_JSON_BYTES} bytes"))
                .hint("upload large files with /v1/file/upload")
                .into_response()
        })?;
        let bytes: &[u8] = if bytes.trim_ascii().is_empty() { b"{}" } else { &bytes };
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let value: Value = serde_path_to_error::deserialize(&mut reader).map_err(|e| unprocessable(&problem("body", &e)))?;
        reader.end().map_err(|e| {
            unprocessable(&Problem {
                location: vec!["body".into()],
                message: format!("JSON decode error: {e}"),
                kind: "json_invalid",
            })
        })?;
        let read = serde_path_to_error::deserialize(Lax(value)).map_err(|e| unprocessable(&problem("body", &e)))?;
        Ok(Self(read))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryArgs<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(|e| {
            unprocessable(&Problem { location: vec!["query".into()], message: e.body_text(), kind: "value_error" })
        })?;
        let fields = pairs.0.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        let read = serde_path_to_error::deserialize(Lax(Value::Object(fields)));
        Ok(Self(read.map_err(|e| unprocessable(&problem("query", &e)))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Sample {
        command: String,
        #[serde(default)]
        timeout: Option<f64>,
    }

    async fn read(body: &'static str) -> Result<Sample, (StatusCode, Value)> {
        let request = Request::builder().body(axum::body::Body::from(body)).unwrap();
        match Body::<Sample>::from_request(request, &()).await {
            Ok(Body(sample)) => Ok(sample),
            Err(response) => {
                let status = response.status();
                let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
                Err((status, serde_json::from_slice(&bytes).unwrap()))
            }
        }
    }

    #[tokio::test]
    async fn problems_name_their_place_in_both_bodies() {
        for (body, location, kind) in [
            ("", json!(["body", "command"]), "missing"),
            ("{}", json!(["body", "command"]), "missing"),
            (r#"{"command": 3}"#, json!(["body", "command"]), "type_error"),
            (r#"{"command": "x", "timeout": "y"}"#, json!(["body", "timeout"]), "type_error"),
            (r#"{"command": "#, json!(["body", "command"]), "json_invalid"),
            (r#"{"command": "x"} trailing"#, json!(["body"]), "json_invalid"),
        ] {
            let (status, answer) = read(body).await.unwrap_err();
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
            assert_eq!(answer["detail"][0]["loc"], location, "{body}: {answer}");
            assert_eq!(answer["detail"][0]["type"], kind, "{body}");
            assert_eq!(answer["errors"][0]["location"], location);
            assert_eq!(answer["success"], false);
        }
        assert_eq!(read(r#"{"command": "x", "unknown": 1}"#).await.unwrap().command, "x");
    }
}
