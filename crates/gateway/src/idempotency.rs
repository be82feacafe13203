//! `Idempotency-Key` on creates of `/api/v2`: a client that got no answer repeats its create, and nothing is made twice.

use arenite_control::{Answered, HeldKey, KeyHold};
use arenite_model::{ErrorCode, IdempotencyKey};
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::exchange::Exchange;
use crate::lifecycle::LifecycleAnswer;
use crate::refusal::Refusal;

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// On the answer to a repeat.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Largest product of a body's size and the number of its sandboxes, in bytes: the answer is stored.
const MAX_ANSWER: usize = 1 << 20;

/// How a create goes on.
pub(crate) enum Begun {
    Create(Option<HeldKey>),
    /// It was done before.
    Replay(Answered),
}

/// Holds the key of a request, if it has one, once no other request with the same key is in progress.
pub(crate) async fn begin(exchange: &Exchange, arguments: &Value, count: usize) -> Result<Begun, Refusal> {
    let mut given = exchange.parts.headers.get_all(HEADER).iter();
    let Some(value) = given.next() else { return Ok(Begun::Create(None)) };
    if given.next().is_some() {
        return Err(Refusal::bad_request("there are several Idempotency-Key headers"));
    }
    let key: IdempotencyKey = value.to_str().unwrap_or_default().parse()?;
    let key = match &exchange.context.principal.inside {
        // An agent has its own keys.
        Some(id) => format!("{id}.{:x}", Sha256::digest(key.as_str())).parse()?,
        None => key,
    };
    let arguments = arguments.to_string();
    if arguments.len().saturating_mul(count) > MAX_ANSWER {
        return Err(Refusal::new(ErrorCode::TooLarge, format!("the answer would be larger than {MAX_ANSWER} bytes"))
            .hint("create fewer sandboxes with one key, or give them less environment"));
    }
    let fingerprint = Sha256::digest(format!("{} {}\n{arguments}", exchange.parts.method, exchange.path.decoded));
    let held = exchange.gateway.control.hold_key(exchange.context.tenant(), key, format!("{fingerprint:x}")).await?;
    Ok(match held {
        KeyHold::Answered(answer) => Begun::Replay(answer),
        KeyHold::Held(key) => Begun::Create(Some(key)),
    })
}

/// Stores a key before something that is no sandbox is created. Returns since when an earlier create with it may have succeeded.
pub(crate) async fn note(key: Option<&HeldKey>) -> Result<Option<Timestamp>, Refusal> {
    let Some(key) = key else { return Ok(None) };
    key.note().await?;
    Ok(key.resumes())
}

/// Stores the answer of a create for its repeats. A failed one has left nothing, so its key is free again.
pub(crate) async fn settle(key: Option<HeldKey>, created: Result<LifecycleAnswer, Refusal>) -> Result<LifecycleAnswer, Refusal> {
    match (key, &created) {
        (Some(key), Ok((status, body))) => key.finish(status.as_u16(), body).await,
        (Some(key), Err(_)) => key.free().await,
        (None, _) => {}
    }
    created
}

/// The same answer again.
pub(crate) fn replay(answer: Answered) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::CREATED);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arenite_control::fake_engine::Point;
    use arenite_model::TenantId;
    use http::Request;
    use http::header::{HOST, LOCATION};
    use serde_json::json;

    use super::*;
    use crate::harness::{Harness, TestResponse};

    async fn post(server: &Harness, path: &str, key: &str, body: Value) -> TestResponse {
        let request = Request::post(path).header(HOST, "127.0.0.1:8080").header(HEADER, key);
        server.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    async fn create(server: &Harness, key: &str, body: Value) -> TestResponse {
        post(server, "/api/v2/sandboxes", key, body).await
    }

    async fn names(server: &Harness, query: &str) -> Vec<String> {
        let list = server.call("GET", &format!("/api/v2/sandboxes{query}"), Value::Null).await.json;
        list["sandboxes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn a_repeat_gets_the_same_answer_and_creates_nothing() {
        let server = Harness::new().await;
        let body = json!({ "env": { "A": "b" }, "client_tag": "mine" });
        let first = create(&server, "k1", body.clone()).await;
        assert_eq!((first.status, first.headers.get(REPLAYED)), (201, None), "{}", first.text);
        // The order of fields does not matter.
        let again = create(&server, "k1", json!({ "client_tag": "mine", "env": { "A": "b" } })).await;
        assert_eq!((again.status, &again.text), (201, &first.text));
        assert_eq!((&again.headers[REPLAYED] == "true", &again.headers[LOCATION]), (true, &first.headers[LOCATION]));
        let other = create(&server, "k1", json!({})).await;
        assert_eq!((other.status, &other.json["code"]), (422, &json!("idempotency_key_reused")));
        let name = first.json["name"].as_str().unwrap();
        assert_eq!(names(&server, "?client_tag=mine").await, [name]);
        assert!(names(&server, "?client_tag=other").await.is_empty());
        assert_eq!(server.call("DELETE", &format!("/api/v2/sandboxes/{name}"), Value::Null).await.status, 200);
        assert_eq!(create(&server, "k1", body.clone()).await.json, first.json);
        assert!(names(&server, "").await.is_empty());
        assert_eq!(create(&server, "k2", body).await.status, 201);
        for (key, body) in
            [("", json!({})), ("a b", json!({})), (&"x".repeat(256), json!({})), ("k3", json!({ "client_tag": "" }))]
        {
            let refused = create(&server, key, body).await;
            assert_eq!((refused.status, &refused.json["code"]), (400, &json!("invalid_request")), "{key:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_was_cut_off_waits_for_its_first_create() {
        let server = Harness::new().await;
        server.engine.delay(Point::BeforeCreate, Duration::from_millis(200));
        let cut = create(&server, "k", json!({ "name": "x" }));
        assert!(tokio::time::timeout(Duration::from_millis(20), cut).await.is_err());
        let (first, second) =
            tokio::join!(create(&server, "k", json!({ "name": "x" })), create(&server, "k", json!({ "name": "x" })));
        assert_eq!((first.status, second.status), (201, 201), "{} {}", first.text, second.text);
        assert_eq!(first.json, second.json);
        assert_eq!(names(&server, "").await, ["x"]);
    }

    #[tokio::test]
    async fn a_failed_create_may_be_repeated() {
        let server = Harness::new().await;
        server.engine.fail(Point::BeforeCreate, 1);
        assert!(create(&server, "k", json!({})).await.status >= 500);
        let refused = create(&server, "k", json!({ "template": "nothing" })).await;
        assert_eq!(refused.status, 404);
        let created = create(&server, "k", json!({})).await;
        assert_eq!((created.status, created.headers.get(REPLAYED)), (201, None));
    }

    #[tokio::test]
    async fn several_are_created_all_or_at_least_a_minimum() {
        let server = Harness::new().await;
        let body = json!({ "name": "w", "count": 3 });
        let all = create(&server, "all", body.clone()).await;
        assert_eq!((all.status, all.json["sandboxes"].as_array().unwrap().len()), (201, 3), "{}", all.text);
        assert_eq!(create(&server, "all", body).await.json, all.json);
        let mut found = names(&server, "").await;
        found.sort();
        assert_eq!(found, ["w-0", "w-1", "w-2"]);

        // One name is taken.
        let partial = create(&server, "some", json!({ "name": "w", "count": 4, "min": 1 })).await;
        assert_eq!(partial.status, 207, "{}", partial.text);
        assert_eq!((&partial.json["requested"], &partial.json["sandboxes"][0]["name"]), (&json!(4), &json!("w-3")));
        let errors = partial.json["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 3);
        assert_eq!((&errors[2]["index"], &errors[2]["code"]), (&json!(2), &json!("already_exists")));

        server.engine.fail(Point::BeforeCreate, 2);
        let none = create(&server, "none", json!({ "name": "v", "count": 3, "min": 2 })).await;
        assert!(none.status >= 500 && none.text.contains("only 1 of 3"), "{}", none.text);
        assert_eq!(names(&server, "").await.len(), 4);
        assert_eq!(create(&server, "none", json!({ "name": "v", "count": 3, "min": 2 })).await.status, 201);
        for bad in [json!({ "count": 0 }), json!({ "count": 101 }), json!({ "min": 1 }), json!({ "count": 2, "min": 3 })] {
            assert_eq!(create(&server, "bad", bad.clone()).await.status, 400, "{bad}");
        }
        let large = json!({ "count": 100, "env": { "A": "x".repeat(20_000) } });
        assert_eq!(create(&server, "large", large).await.status, 413);
    }

    #[tokio::test]
    async fn tenants_keys_groups_and_webhooks_are_created_once() {
        let server = Harness::with(|control, _| control.tenants = true).await;
        let (_, operator) = server.gateway.control.tenants().unwrap().first_operator_key().await.unwrap().unwrap();
        let post = async |path: &str, body: Value| {
            let request = Request::post(path).header(HOST, "127.0.0.1:8080").header(HEADER, path);
            let request = request.header("x-api-key", operator.as_str()).body(Body::from(body.to_string()));
            server.send(request.unwrap()).await
        };
        for (path, body, other) in [
            ("/api/v2/tenants", json!({ "name": "acme" }), json!({ "name": "other" })),
            ("/api/v2/groups", json!({ "name": "g", "ttl_seconds": 60 }), json!({ "name": "g", "ttl_seconds": 61 })),
            // Its secret too.
            ("/api/v2/webhooks", json!({ "url": "https://example.com/a" }), json!({ "url": "https://example.com/b" })),
        ] {
            let first = post(path, body.clone()).await;
            assert_eq!(first.status, 201, "{}", first.text);
            let again = post(path, body).await;
            assert_eq!((again.status, &again.json), (201, &first.json));
            assert_eq!(post(path, other).await.status, 422);
        }
        let body = json!({ "name": "of a test", "role": "use" });
        let first = post("/api/v2/keys", body.clone()).await;
        let again = post("/api/v2/keys", body).await;
        assert_eq!((first.status, again.status, &again.json["id"]), (201, 201, &first.json["id"]), "{}", again.text);
        // Its text is shown once.
        assert!(first.json["key"].is_string() && again.json["key"].is_null());
        let keys = server.gateway.control.tenants().unwrap().keys(None);
        assert_eq!(keys.iter().filter(|key| key.name == "of a test").count(), 1);
        let webhooks = server.gateway.control.webhooks().expect("the store keeps webhooks");
        assert_eq!(webhooks.list(&TenantId::default_tenant()).len(), 1);
    }
}
