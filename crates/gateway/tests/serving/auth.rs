//! Authentication, and what happens to credentials.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arenite_gateway::{Authentication, GatewayConfig};
use arenite_trajectory::Limits;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeyPair, KeySize, PublicKey};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::harness::{Running, TestResponse, echo, read_head};

pub(crate) const KEY: &str = "0123456789abcdef-the-key";
/// Valid and invalid signers.
static SIGNER: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate(KeySize::Rsa2048).unwrap());
static OTHER: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate(KeySize::Rsa2048).unwrap());

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn signing(pair: &KeyPair) -> EncodingKey {
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    EncodingKey::from_rsa_pem(pem("PRIVATE KEY", der.as_ref()).as_bytes()).unwrap()
}

fn public() -> String {
    let key: &PublicKey = SIGNER.public_key();
    let der: PublicKeyX509Der<'_> = key.as_der().unwrap();
    pem("PUBLIC KEY", der.as_ref())
}

pub(crate) fn auth(ttl: Duration) -> GatewayConfig {
    let public = STANDARD.encode(public());
    GatewayConfig { auth: Authentication::new(Some(KEY), Some(&public), ttl).unwrap(), ..GatewayConfig::default() }
}

async fn guarded() -> Running {
    Running::with(auth(Duration::from_secs(30)), Limits::default(), |_, stream| echo(stream)).await
}

fn token(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    encode(&Header::new(algorithm), claims, key).unwrap()
}

pub(crate) fn signed(claims: &Value) -> String {
    token(Algorithm::RS256, &signing(&SIGNER), claims)
}

/// A token signed with the right key, with the given header.
fn with_header(header: &Value, claims: &Value) -> String {
    let pack = |part: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", pack(header), pack(claims));
    let signature = jsonwebtoken::crypto::sign(signed.as_bytes(), &signing(&SIGNER), Algorithm::RS256).unwrap();
    format!("{signed}.{signature}")
}

pub(crate) fn in_seconds(seconds: i64) -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + seconds
}

async fn ticket(running: &Running) -> String {
    let answer = running
        .raw(format!("POST /tickets HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-length: 0\r\n\r\n").as_bytes())
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["expires_in"], 30);
    answer.json()["ticket"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_way_to_show_a_key_is_one() {
    let running = guarded().await;
    running.create("a").await;
    let valid = signed(&json!({ "exp": in_seconds(60), "sub": "somebody" }));
    let ticket = ticket(&running).await;
    for (path, header) in [
        ("/sandbox/a/v1/x", format!("X-AIO-API-Key: {KEY}\r\n")),
        ("/sandbox/a/v1/x", format!("x-api-key: {KEY}\r\n")),
        ("/sandbox/a/v1/x", format!("Authorization: Bearer {KEY}\r\n")),
        ("/sandbox/a/v1/x", format!("authorization: bearer {KEY}\r\n")),
        (&*format!("/sandbox/a/v1/x?api_key={KEY}"), String::new()),
        (&*format!("/sandbox/a/v1/x?y=1&%61pi_key={KEY}&z=2"), String::new()),
        ("/sandbox/a/v1/x", format!("authorization: Bearer {valid}\r\n")),
        // Any number of times.
        (&*format!("/sandbox/a/v1/x?ticket={ticket}"), String::new()),
        (&*format!("/sandbox/a/v1/x?ticket={ticket}"), String::new()),
        ("/api/v2/sandboxes", format!("x-api-key: {KEY}\r\n")),
        ("/api/v1/trajectories", format!("x-api-key: {KEY}\r\n")),
        ("/metrics", format!("x-api-key: {KEY}\r\n")),
    ] {
        let answer = running.get_with(path, &header).await;
        assert_eq!(answer.status, 200, "{path} {header}: {answer:?}");
        if path.starts_with("/sandbox") {
            let seen = answer.text();
            assert!(!seen.contains(KEY) && !seen.contains(&valid) && !seen.contains(&ticket), "{path}: {seen}");
        }
    }
    running.stop().await;
}

#[test]
fn a_private_key_is_refused_as_a_public_one() {
    let der: Pkcs8V1Der<'_> = SIGNER.as_der().unwrap();
    let private = STANDARD.encode(pem("PRIVATE KEY", der.as_ref()));
    let refused = Authentication::new(None, Some(&private), Duration::from_secs(30)).unwrap_err();
    assert!(refused.to_string().contains("private"), "{refused}");
}

#[tokio::test]
async fn nobody_else_gets_anything() {
    let running = guarded().await;
    let id = running.create("a").await;
    let private = signing(&SIGNER);
    let other = signing(&OTHER);
    let claims = json!({ "exp": in_seconds(60) });
    let good = signed(&claims);
    let (head, signature) = (good.split('.').next().unwrap(), good.rsplit('.').next().unwrap());
    let raised = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json!({ "exp": in_seconds(6000) }).to_string());
    let tokens = [
        token(Algorithm::RS256, &other, &claims),
        token(Algorithm::RS512, &private, &claims),
        token(Algorithm::HS256, &EncodingKey::from_secret(public().as_bytes()), &claims),
        signed(&json!({ "exp": in_seconds(-1) })),
        signed(&json!({ "sub": "no end" })),
        signed(&json!({ "exp": "soon" })),
        signed(&json!({ "exp": in_seconds(60), "nbf": in_seconds(30) })),
        format!("{head}.{raised}.{signature}"),
        format!("{}.{}.", "eyJhbGciOiJub25lIn0", good.split('.').nth(1).unwrap()),
        "a.b.c".to_owned(),
        "x".repeat(20_000),
        with_header(&json!({ "alg": "RS256", "crit": ["exp"], "exp": in_seconds(-1) }), &claims),
        with_header(&json!({ "alg": "RS256", "crit": ["b64"], "b64": false }), &claims),
        with_header(&json!({ "alg": "RS256", "crit": [] }), &claims),
    ];
    let mut headers = vec![
        String::new(),
        "x-api-key: wrong\r\n".to_owned(),
        "x-api-key: \r\n".to_owned(),
        format!("x-api-key: {KEY}x\r\n"),
        format!("authorization: Basic {KEY}\r\n"),
        format!("authorization: {KEY}\r\n"),
        format!("cookie: api_key={KEY}; arenite_session={KEY}\r\n"),
    ];
    headers.extend(tokens.iter().map(|token| format!("authorization: Bearer {token}\r\n")));
    for header in &headers {
        let answer = running.get_with("/sandbox/a/v1/x", header).await;
        assert_eq!(answer.status, 401, "{header}");
        assert_eq!(answer.json()["message"], "Unauthorized");
        assert_eq!(answer.json()["success"], false);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    // Routes match the meaning of a path, whatever its spelling.
    for path in [
        "/v1/bash/exec",
        "/v1/%70ing/../bash/exec",
        "/v1/bash/exec?x=/static/sandbox/a.css",
        "/sandbox/a/v1/ping",
        "/v1/ping/x",
        "/healthz/../api/v2/sandboxes",
        "/static/sandbox/../../api/v2/sandboxes",
        "/static%2fsandbox",
        "/api/v2/sandboxes",
        "/api/v1/sandbox",
        "/api/v1/trajectories",
        "/v1/openapi.json",
        "/v1/docs",
        "/metrics",
        "/llms.txt",
        "/index.html",
        "/state",
        "/sandbox/a/state",
        "/steps",
        "/steps?follow=true",
        "/sandbox/a/steps/1/observation",
        "/terminal",
        "/",
        "/nothing",
        "/internal/hello",
        "/proxy/3000/",
        "/absproxy/3000/",
        "/auth",
        "/sandbox/a/v1/x?ticket=wrong",
        "/sandbox/a/v1/x?ticket=",
        "/sandbox/a/v1/x?api_key=",
    ] {
        let answer = running.get(path).await;
        assert!([400, 401].contains(&answer.status), "{path}: {answer:?}");
    }
    for host in [format!("{id}.localhost"), format!("3000-{id}.localhost"), "3000-localhost".to_owned()] {
        assert_eq!(running.get_with("/v1/ping", &format!("host: {host}\r\n")).await.status, 401, "{host}");
    }
    assert_eq!(running.post("/tickets", "").await.status, 401);
    assert_eq!(running.post("/login", "{\"key\": \"wrong\"}").await.status, 401);
    assert!(running.steps(&id).is_empty());
    running.stop().await;
}

#[tokio::test]
async fn some_things_need_no_key() {
    let running = guarded().await;
    for path in ["/health", "/ready", "/healthz", "/v1/ping", "/v1/ping/", "/static/sandbox/xterm@5.3.0/lib/xterm.js"] {
        let answer = running.get(path).await;
        if path == "/v1/ping/" {
            assert_eq!(answer.status, 401);
            continue;
        }
        assert_eq!(answer.status, 200, "{path}");
    }
    // It shows that the server runs, and creates no sandbox.
    assert_eq!(running.get("/v1/ping").await.json()["data"], "pong");
    assert!(running.control.list(&arenite_model::TenantId::default_tenant()).await.unwrap().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_websocket_is_refused_at_the_handshake() {
    let running = guarded().await;
    running.create("a").await;
    let mut client = running.connect().await;
    client
        .write_all(b"GET /sandbox/a/v1/shell/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n")
        .await
        .unwrap();
    let head = read_head(&mut client).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    running.stop().await;
}

#[tokio::test]
async fn tickets_end_and_make_no_others() {
    let running = Running::with(auth(Duration::from_millis(1500)), Limits::default(), |_, stream| echo(stream)).await;
    let make = |credential: String| {
        let running = &running;
        async move {
            let request = format!("POST /tickets{credential}\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
            running.raw(request.as_bytes()).await
        }
    };
    let first = make(format!(" HTTP/1.1\r\nx-api-key: {KEY}")).await.json()["ticket"].as_str().unwrap().to_owned();
    let second = make(format!(" HTTP/1.1\r\nx-api-key: {KEY}")).await.json()["ticket"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(make(format!("?ticket={first} HTTP/1.1")).await.status, 403);
    assert_eq!(running.get(&format!("/metrics?ticket={first}")).await.status, 200);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while running.get(&format!("/metrics?ticket={first}")).await.status == 200 {
        assert!(tokio::time::Instant::now() < deadline, "the ticket never ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A token's ticket ends with the token.
    let soon = signed(&json!({ "exp": in_seconds(1) }));
    let short = make(format!(" HTTP/1.1\r\nauthorization: Bearer {soon}")).await;
    assert!(short.json()["expires_in"].as_u64().unwrap() <= 1, "{short:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_proxy_in_front_may_ask() {
    let running = guarded().await;
    let ticket = ticket(&running).await;
    for (header, wanted) in [
        (String::new(), 401),
        (format!("authorization: Bearer {KEY}\r\n"), 200),
        (format!("x-original-uri: /vnc/?a=1&ticket={ticket}\r\n"), 200),
        ("x-original-uri: /vnc/?ticket=wrong\r\n".to_owned(), 401),
        (format!("x-original-uri: /ticket={ticket}\r\n"), 401),
        (format!("x-original-uri: /v1/ping\r\nauthorization: Bearer {KEY}x\r\n"), 401),
    ] {
        let answer = running.get_with("/auth", &header).await;
        assert_eq!(answer.status, wanted, "{header}");
        if wanted == 200 {
            assert!(answer.json().as_object().unwrap().values().all(Value::is_string), "{answer:?}");
        }
    }
    running.stop().await;
    let open = Running::start(|_, stream| echo(stream)).await;
    assert_eq!(open.get("/auth").await.status, 200);
    let made = open.post("/tickets", "").await;
    assert!(made.json()["ticket"].is_string() && made.json()["expires_in"] == 30, "{made:?}");
    open.stop().await;
}

#[tokio::test]
async fn no_credential_is_recorded_or_passed_on() {
    let running = guarded().await;
    let id = running.create("a").await;
    let ticket = ticket(&running).await;
    let answer = running
        .get_with(
            &format!("/sandbox/a/v1/file/list?path=%2Ftmp&ticket={ticket}&api_key={KEY}&x=1"),
            &format!(
                "x-api-key: {KEY}\r\nx-aio-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\ncookie: arenite_session=x; a=b\r\n"
            ),
        )
        .await;
    assert_eq!(answer.json()["line"], "GET /v1/file/list?path=%2Ftmp&x=1");
    let headers = &answer.json()["headers"];
    for name in ["x-api-key", "x-aio-api-key", "authorization", "cookie"] {
        assert!(headers.get(name).is_none(), "{headers}");
    }
    let step = serde_json::to_string(&running.steps(&id)).unwrap();
    assert!(step.contains("GET /v1/file/list") && !step.contains(KEY) && !step.contains(&ticket), "{step}");
    let dir = running.stop().await;
    let mut folders = vec![dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let holds = |secret: &str| bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
                assert!(!holds(KEY) && !holds(&ticket), "{}", path.display());
            }
        }
    }
}

pub(crate) const NAVIGATION: &str =
    "sec-fetch-site: none\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\naccept: text/html\r\n";

#[tokio::test]
async fn a_browser_signs_in_once() {
    let running = guarded().await;
    running.create("a").await;
    for path in ["/", "/v1/docs", "/terminal", "/sandbox/a/terminal"] {
        let page = running.get_with(path, NAVIGATION).await;
        assert_eq!(page.status, 401, "{path}");
        assert!(page.text().contains("type=\"password\"") && page.header("cache-control") == Some("no-store"), "{path}");
    }
    let login = running.post("/login", &json!({ "key": KEY }).to_string()).await;
    assert_eq!(login.status, 204, "{login:?}");
    let cookie = login.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict;") && !cookie.contains("Domain") && !cookie.contains(KEY), "{cookie}");
    let session = cookie.split(';').next().unwrap();
    let with = format!("cookie: other=1; {session}\r\n");
    assert_eq!(running.get_with("/", &with).await.status, 200);
    assert_eq!(running.get_with("/api/v2/sandboxes", &with).await.status, 200);
    let seen = running.get_with("/sandbox/a/v1/x", &with).await;
    assert_eq!(seen.status, 200);
    assert!(seen.json()["headers"].get("cookie").is_none());
    // It is only valid on this host, and no other site's page can use it.
    assert_eq!(running.get_with("/v1/x", &format!("{with}host: other.localhost\r\n")).await.status, 401);
    for foreign in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        assert_eq!(running.get_with("/api/v2/sandboxes", &format!("{with}{foreign}")).await.status, 403);
    }
    let length = "content-length: 0\r\n";
    let out = running.raw(format!("POST /logout HTTP/1.1\r\nhost: localhost\r\n{with}{length}\r\n").as_bytes()).await;
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(running.get_with("/", &with).await.status, 401);
    running.stop().await;
}

#[tokio::test]
async fn a_ticket_in_an_opened_address_becomes_a_cookie() {
    let running = guarded().await;
    let ticket = ticket(&running).await;
    let answer = running.get_with(&format!("/terminal?session_id=s&ticket={ticket}"), NAVIGATION).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/terminal?session_id=s")));
    let session = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(running.get_with("/terminal", &format!("cookie: {session}\r\n")).await.status, 200);
    // It redirects to this host whatever the path.
    let answer = running.get_with(&format!("//index.html?ticket={ticket}"), NAVIGATION).await;
    assert_eq!(answer.header("location"), Some("/index.html"));
    // Programs get what they requested.
    let plain = running.get(&format!("/terminal?ticket={ticket}")).await;
    assert_eq!((plain.status, plain.header("set-cookie")), (200, None));
    running.stop().await;
}

impl Running {
    /// Opens an address as a browser does, and returns the redirect and the cookie.
    async fn open(&self, path: &str, headers: &str) -> (Option<String>, Option<String>) {
        let answer = self.get_with(path, &format!("{NAVIGATION}{headers}")).await;
        let cookie = answer.header("set-cookie").map(|cookie| cookie.split(';').next().unwrap().to_owned());
        (answer.header("location").map(str::to_owned), cookie)
    }

    async fn post_with(&self, path: &str, headers: &str, body: &str) -> TestResponse {
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}");
        self.raw(request.as_bytes()).await
    }
}

fn seconds_of(cookie: &str) -> u64 {
    let (_, rest) = cookie.split_once("Max-Age=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_sandboxs_host_gives_no_more_than_it_has() {
    let running = guarded().await;
    let id = running.create("a").await;
    let own = format!("host: {id}.localhost\r\n");
    let preview = format!("host: 3000-{id}.localhost\r\n");
    let (led, _) = running.open("/sandbox/a/", &format!("host: localhost\r\nx-api-key: {KEY}\r\n")).await;
    let (address, word) = led.as_deref().unwrap().split_once("?ticket=").unwrap();
    assert_eq!(address, format!("http://{id}.localhost/index.html"));
    // The secret in the address signs a browser in on that host, and does nothing else.
    for headers in ["host: localhost\r\n", &own, &preview, &format!("{NAVIGATION}host: localhost\r\n")] {
        let answer = running.get_with(&format!("/v1/x?ticket={word}"), headers).await;
        assert_eq!(answer.status, 401, "{headers}: {answer:?}");
    }
    assert_eq!(running.post("/login", &json!({ "key": word }).to_string()).await.status, 401);
    let (led, cookie) = running.open(&format!("/index.html?ticket={word}"), &own).await;
    assert_eq!(led.as_deref(), Some("/index.html"));
    let own_with = format!("{own}cookie: {}\r\n", cookie.unwrap());
    assert_eq!(running.get_with("/v1/x", &own_with).await.status, 200);

    let made = running.post_with("/tickets", &own_with, "").await;
    let ticket = made.json()["ticket"].as_str().unwrap().to_owned();
    assert_eq!(running.get_with(&format!("/v1/x?ticket={ticket}"), &own).await.status, 200);
    for headers in ["host: localhost\r\n", "host: 127.0.0.1\r\n", &preview] {
        for path in ["/v1/x", "/api/v2/sandboxes", "/sandbox/a/v1/x", "/tickets"] {
            let answer = running.get_with(&format!("{path}?ticket={ticket}"), headers).await;
            assert_eq!(answer.status, 401, "{headers} {path}");
        }
    }
    assert_eq!(running.post("/login", &json!({ "key": ticket }).to_string()).await.status, 401);
    running.stop().await;
}

#[tokio::test]
async fn nothing_outlives_what_it_was_made_from() {
    let running = guarded().await;
    let id = running.create("a").await;
    let end = in_seconds(4);
    let token = signed(&json!({ "exp": end }));
    let bearer = format!("host: localhost\r\nauthorization: Bearer {token}\r\n");
    let made = running.post_with("/tickets", &bearer, "").await;
    let ticket = made.json()["ticket"].as_str().unwrap().to_owned();
    let mut cookies = Vec::new();
    for shown in [&token, &ticket] {
        let answer = running.post("/login", &json!({ "key": shown }).to_string()).await;
        cookies.push(("localhost".to_owned(), answer.header("set-cookie").unwrap().to_owned()));
    }
    for query in [format!("ticket={ticket}"), format!("api_key={token}")] {
        let answer = running.get_with(&format!("/terminal?{query}"), NAVIGATION).await;
        cookies.push(("localhost".to_owned(), answer.header("set-cookie").unwrap().to_owned()));
    }
    for (_, session) in cookies.clone() {
        // Neither a ticket nor a session on another host circumvents it.
        let with = format!("host: localhost\r\ncookie: {}\r\n", session.split(';').next().unwrap());
        assert!(running.post_with("/tickets", &with, "").await.json()["expires_in"].as_u64().unwrap() <= 4);
        let (led, _) = running.open("/sandbox/a/", &with).await;
        let word = led.as_deref().unwrap().split_once("?ticket=").unwrap().1.to_owned();
        let own = format!("host: {id}.localhost\r\n");
        let answer = running.get_with(&format!("/index.html?ticket={word}"), &format!("{NAVIGATION}{own}")).await;
        cookies.push((format!("{id}.localhost"), answer.header("set-cookie").unwrap().to_owned()));
    }
    for (host, cookie) in &cookies {
        assert!(seconds_of(cookie) <= 4, "{host} {cookie}");
    }
    while in_seconds(0) <= end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (host, cookie) in &cookies {
        let with = format!("host: {host}\r\ncookie: {}\r\n", cookie.split(';').next().unwrap());
        assert_eq!(running.get_with("/v1/x", &with).await.status, 401, "{host} {cookie}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_key_is_not_led_to_another_server() {
    let running = Running::with(auth(Duration::from_secs(30)), Limits::default(), |_, mut stream| async move {
        while let Some(got) = crate::harness::request(&mut stream).await {
            let to = got.line.split("to=").nth(1).unwrap_or("/");
            let head = format!("HTTP/1.1 307 x\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
        }
    })
    .await;
    let id = running.create("a").await;
    let own = format!("{id}.localhost");
    for (path, host, to, wanted) in [
        ("/sandbox/a/v1/x", "localhost", "y", true),
        ("/sandbox/a/v1/x", "localhost", "/sandbox/a/v1/y", true),
        ("/sandbox/a/v1/x", "localhost", "/api/v2/sandboxes/b", false),
        ("/sandbox/a/v1/x", "localhost", "/sandbox/b/v1/bash/exec", false),
        ("/sandbox/a/v1/x", "localhost", "/sandbox/a/tickets", false),
        ("/sandbox/a/v1/x", "localhost", "http://evil.example/", false),
        ("/sandbox/a/v1/x", "localhost", "//evil.example/", false),
        ("/sandbox/a/json/x", "localhost", "http://evil.example/", false),
        ("/sandbox/a/cdp/x", "localhost", "/v1/y", false),
        ("/v1/x", &own, "/v1/y", true),
        ("/v1/x", &own, "http://evil.example/", false),
    ] {
        let answer = running.get_with(&format!("{path}?to={to}"), &format!("host: {host}\r\nx-api-key: {KEY}\r\n")).await;
        assert_eq!((answer.status, answer.header("location")), (307, wanted.then_some(to)), "{path} {host} {to}");
    }
    running.stop().await;
}

#[tokio::test]
async fn refusals_have_no_origin() {
    let running = Running::start(|_, stream| echo(stream)).await;
    for path in ["/sandbox/a/nothing", "/sandbox/No/v1/x", "/nothing", "/api/v2/nothing", "/sandbox/a/v1/%2F"] {
        let answer: TestResponse = running.get(path).await;
        assert!(answer.status >= 400, "{path}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("sandbox") && !policy.contains("allow-same-origin"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    running.stop().await;
}
