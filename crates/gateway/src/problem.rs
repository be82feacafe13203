//! Refusals in the format of Arenite's own interfaces: problem details, as RFC 9457 specifies them.

use arenite_control::images::BuildFailure;
use arenite_control::tenants::QuotaExceeded;
use arenite_model::ErrorCode;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use crate::refusal::{Refusal, json_response};

pub(crate) const PROBLEM_JSON: &str = "application/problem+json";
/// The page with all codes. With a code as its fragment, it is the type of a problem.
pub(crate) const ERRORS_PAGE: &str = "/api/v2/docs/errors";
/// Longest path that a problem repeats, in bytes.
const MAX_INSTANCE: usize = 1024;

/// A refused request, or a part of one: problem details as RFC 9457 specifies them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Identifies the kind of error. It is a reference to the page that lists the codes.
    r#type: String,
    /// The kind of error, for people.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The error itself, for people.
    detail: String,
    /// The path of the request, or what its step recorded. Absent in a part of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    /// The kind of error, for programs.
    code: ErrorCode,
    /// The same as `detail`, for older clients.
    #[schema(deprecated)]
    message: String,
    /// How to go on.
    hint: Option<String>,
    /// The quota of the tenant that was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaExceeded>,
    /// The step that failed, if the request was to build an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<BuildFailure>,
}

/// The URI reference that identifies the kind of an error.
fn type_of(code: ErrorCode) -> String {
    format!("{ERRORS_PAGE}#{}", code.as_str())
}

impl Refusal {
    pub(crate) fn problem(&self) -> Problem {
        Problem {
            r#type: type_of(self.code),
            title: self.code.title().to_owned(),
            status: self.status.as_u16(),
            detail: self.message.clone(),
            instance: self.instance.as_deref().map(str::to_owned),
            code: self.code,
            message: self.message.clone(),
            hint: self.hint.clone(),
            quota: self.quota.as_deref().copied(),
            build: self.build.as_deref().cloned(),
        }
    }

    /// The refusal of a request to one of Arenite's own interfaces.
    pub(crate) fn api(&self) -> Response<Body> {
        let mut answer = json_response(self.status, &self.problem());
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        self.finish(answer)
    }

    /// Names the request that was refused, unless its step is known, which says more.
    #[must_use]
    pub(crate) fn of_request(mut self, path: &str) -> Self {
        if self.instance.is_none() && path.len() <= MAX_INSTANCE {
            // Two slashes would start a host's name.
            self.instance = Some(format!("/{}", path.trim_start_matches('/')).into());
        }
        self
    }

    /// Names the step that recorded the request.
    #[must_use]
    pub(crate) fn of_step(self, trajectory: &str, step: u64) -> Self {
        let recorded = format!("/api/v1/trajectories/{trajectory}/steps/{step}/observation");
        Self { instance: Some(recorded.into()), ..self }
    }
}

/// The rows of a table of all codes.
pub(crate) fn rows() -> String {
    let row = |code: ErrorCode| {
        let (name, title, status) = (code.as_str(), code.title(), code.http_status());
        let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
        format!("<tr id=\"{name}\"><td><code>{name}</code><td>{status} {reason}<td>{title}\n")
    };
    ErrorCode::ALL.map(row).concat()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::harness::Harness;

    #[tokio::test]
    async fn a_refusal_is_a_problem_with_our_members() {
        let server = Harness::new().await;
        let answer = server.call("GET", "/api/v2/sandboxes/nobody?", Value::Null).await;
        assert_eq!((answer.status, answer.headers[CONTENT_TYPE].to_str().unwrap()), (404, PROBLEM_JSON));
        let hint = answer.json["hint"].clone();
        assert!(hint.is_string());
        let detail = "there is no sandbox nobody";
        let problem = json!({
            "type": "/api/v2/docs/errors#not_found", "title": "Not found", "status": 404, "detail": detail,
            "instance": "/api/v2/sandboxes/nobody", "code": "not_found", "message": detail, "hint": hint,
        });
        assert_eq!(answer.json, problem);
        // Also if the request never reaches its handler.
        for (method, path, status) in [
            ("GET", "/api/v2/nothing", 404),
            ("PUT", "/api/v2/sandboxes", 405),
            ("GET", "/api/v2/sandboxes/%2e%2e", 400),
            ("GET", "/api/v1/trajectories/a%2fb", 400),
            ("GET", "/api/v1/trajectories/nothing", 404),
            ("GET", "/sandbox/nobody/steps", 404),
        ] {
            let answer = server.call(method, path, Value::Null).await;
            let kind = answer.headers[CONTENT_TYPE].to_str().unwrap();
            assert_eq!((answer.status, kind), (status, PROBLEM_JSON), "{path}: {}", answer.text);
            assert_eq!((&answer.json["status"], &answer.json["instance"]), (&json!(status), &json!(path)));
            assert_eq!(answer.json["detail"], answer.json["message"]);
        }
        let aio = server.call("GET", "/sandbox/nobody/v1/ping", Value::Null).await;
        assert_eq!(aio.headers[CONTENT_TYPE], "application/json");
        assert_eq!(aio.json["success"], false);
    }

    #[tokio::test]
    async fn a_recorded_failure_names_its_step() {
        let server = Harness::new().await;
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "x" })).await.json;
        server.engine.fail(arenite_control::fake_engine::Point::Pause, 1);
        let refused = server.call("POST", "/api/v2/sandboxes/x/pause", Value::Null).await;
        let instance = refused.json["instance"].as_str().unwrap();
        assert_eq!(instance, format!("/api/v1/trajectories/{}/steps/2/observation", made["id"].as_str().unwrap()));
        let recorded = server.call("GET", instance, Value::Null).await;
        assert_eq!((recorded.status, &recorded.json["message"]), (200, &refused.json["detail"]));
    }

    #[test]
    fn a_path_is_no_reference_to_another_host() {
        let instance = |path: &str| Refusal::bad_request("x").of_request(path).instance;
        assert_eq!(instance("//evil.example/x").as_deref(), Some("/evil.example/x"));
        assert_eq!(instance(&"/x".repeat(MAX_INSTANCE)), None);
    }

    #[tokio::test]
    async fn the_type_of_a_problem_leads_to_its_page() {
        let server = Harness::new().await;
        let page = server.call("GET", ERRORS_PAGE, Value::Null).await;
        assert_eq!(page.status, 200);
        assert_eq!(page.headers[CONTENT_TYPE], "text/html; charset=utf-8");
        for code in ErrorCode::ALL {
            let fragment = type_of(code).replace(&format!("{ERRORS_PAGE}#"), "");
            assert!(page.text.contains(&format!("id=\"{fragment}\"")), "{fragment}");
        }
    }

    #[test]
    fn the_document_has_every_code() {
        let document = include_str!("../../../docs/API.md");
        let is_code = |line: &&str| line.split(" | ").nth(1).is_some_and(|status| status.parse::<u16>().is_ok());
        let listed: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).filter(is_code).collect();
        let expected = ErrorCode::ALL.map(|code| format!("| `{}` | {} |", code.as_str(), code.http_status()));
        assert_eq!(listed.len(), expected.len(), "{listed:#?}");
        for (line, expected) in listed.iter().zip(&expected) {
            assert!(line.starts_with(expected.as_str()), "{line} is not {expected}");
        }
    }
}
