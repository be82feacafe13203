//! Every route, with every credential, on every host: no credential gives more than its rights.

use std::time::Duration;

use arenite_model::{SandboxId, SandboxState, TenantId};
use arenite_trajectory::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

use crate::auth::{KEY, NAVIGATION, auth, in_seconds, signed};
use crate::harness::{Running, TestResponse, read_head, respond};

/// The sandboxes' own API, from its description.
const OPENAPI: &str = include_str!("../../golden/openapi.json");

/// Routes that this server answers itself or passes on, beyond that description. None of them changes what later ones find.
const OTHERS: &[(&str, &str)] = &[
    ("GET", "/"),
    ("GET", "/trajectories"),
    ("GET", "/trajectory/sb-1"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/healthz"),
    ("GET", "/ready"),
    ("GET", "/static/sandbox/xterm@5.3.0/lib/xterm.js"),
    ("GET", "/auth"),
    ("POST", "/login"),
    ("POST", "/tickets"),
    ("GET", "/v1/docs"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/llms.txt"),
    ("GET", "/index.html"),
    ("GET", "/terminal"),
    ("GET", "/vnc/index.html"),
    ("GET", "/state"),
    ("GET", "/sandbox/b/state"),
    ("GET", "/steps"),
    ("GET", "/steps?follow=true"),
    ("GET", "/steps/1/observation"),
    ("GET", "/sandbox/a/"),
    ("GET", "/sandbox/a/index.html"),
    ("GET", "/sandbox/b/steps"),
    ("GET", "/sandbox/b/steps?follow=true"),
    ("POST", "/sandbox/b/tickets"),
    ("POST", "/mcp"),
    ("POST", "/v1/mcp"),
    ("GET", "/mcp/sse"),
    ("POST", "/mcp/messages"),
    ("GET", "/sse"),
    ("POST", "/sandbox/b/mcp"),
    ("GET", "/cdp/json/version"),
    ("GET", "/json/list"),
    ("PUT", "/json/new"),
    ("GET", "/websockify"),
    ("GET", "/code-server/"),
    ("GET", "/jupyter/lab"),
    ("GET", "/opencode"),
    ("GET", "/codex"),
    ("GET", "/proxy/3000/x"),
    ("POST", "/absproxy/3000/x"),
    ("GET", "/sandbox/b/proxy/3000/x"),
    ("GET", "/sandbox/b/json/list"),
    ("GET", "/api/v2/info"),
    ("GET", "/api/v2/workers"),
    ("GET", "/api/v2/corpora"),
    ("GET", "/api/v2/templates"),
    ("GET", "/api/v2/templates/aio"),
    ("GET", "/api/v2/images"),
    ("GET", "/api/v2/sandboxes"),
    ("GET", "/api/v2/sandboxes?follow=true"),
    ("POST", "/api/v2/sandboxes"),
    ("GET", "/api/v2/sandboxes/b"),
    ("DELETE", "/api/v2/sandboxes/ghost"),
    ("POST", "/api/v2/sandboxes/ghost/pause"),
    ("POST", "/api/v2/sandboxes/ghost/resume"),
    ("POST", "/api/v2/sandboxes/ghost/start"),
    ("GET", "/api/v2/sandboxes/b/usage"),
    ("GET", "/api/v2/sandboxes/b/steps"),
    ("GET", "/api/v2/sandboxes/b/logs"),
    ("GET", "/api/v2/quarantine"),
    ("DELETE", "/api/v2/quarantine/s00000000001"),
    ("POST", "/api/v2/quarantine/s00000000001/adopt"),
    ("GET", "/api/v1/sandbox"),
    ("POST", "/api/v1/sandbox"),
    ("GET", "/api/v1/sandbox/b"),
    ("DELETE", "/api/v1/sandbox/ghost"),
    ("GET", "/api/v1/trajectories"),
    ("GET", "/api/v1/trajectories/x/steps"),
    ("GET", "/api/v1/trajectories/x/annotations"),
    ("POST", "/api/v1/trajectories/x/annotations"),
    ("POST", "/api/v1/session/create"),
    ("POST", "/execute"),
    ("GET", "/tools"),
    ("POST", "/shutdown"),
    ("GET", "/sandboxes"),
    ("GET", "/internal/hello"),
    ("GET", "/sandbox/b/internal/hello"),
    ("GET", "/nothing"),
];

/// Names the sandbox of this guest, also behind port 3000.
pub(crate) async fn guest(id: SandboxId, mut stream: DuplexStream) {
    while let Some(head) = read_head(&mut stream).await {
        if head.starts_with("GET /internal/ports/3000 ") {
            let _ = stream.write_all(b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: arenite-port\r\n\r\n").await;
        } else if head.contains(" /internal/") && !head.contains("x-request-id") {
            respond(&mut stream, "404 Not Found", "").await;
        } else {
            respond(&mut stream, "200 OK", &json!({ "reached": id.as_str() }).to_string()).await;
        }
    }
}

#[derive(Debug, Clone)]
struct Credential {
    name: String,
    /// Header lines, or a part of the query.
    header: String,
    query: String,
    /// Hosts on which it is valid, with the rights of each.
    hosts: Vec<String>,
    makes_tickets: bool,
}

impl Credential {
    fn header(name: &str, header: String, hosts: &[&str]) -> Self {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Self { name: name.to_owned(), header, query: String::new(), hosts, makes_tickets: true }
    }

    fn ticket(name: &str, word: &str, hosts: &[&str]) -> Self {
        Self { query: format!("ticket={word}"), makes_tickets: false, ..Self::header(name, String::new(), hosts) }
    }

    fn path(&self, path: &str) -> String {
        match (self.query.is_empty(), path.contains('?')) {
            (true, _) => path.to_owned(),
            (false, true) => format!("{path}&{}", self.query),
            (false, false) => format!("{path}?{}", self.query),
        }
    }
}

/// The hosts of one server with the sandboxes `a` and `b`.
struct Hosts {
    own: String,
    preview: String,
    others: Vec<String>,
    foreign: Vec<String>,
}

const SERVER: [&str; 2] = ["localhost", "127.0.0.1"];

impl Hosts {
    fn new(a: &SandboxId, b: &SandboxId) -> Self {
        Self {
            own: format!("{a}.localhost"),
            preview: format!("3000-{a}.localhost"),
            others: vec![format!("{b}.localhost"), format!("3000-{b}.localhost"), format!("3001-{a}.localhost")],
            foreign: vec!["evil.example".to_owned(), "localhost.evil.example".to_owned()],
        }
    }

    fn all(&self) -> Vec<String> {
        let named = SERVER.into_iter().chain([self.own.as_str(), self.preview.as_str()]);
        named.map(str::to_owned).chain(self.others.clone()).chain(self.foreign.clone()).collect()
    }
}

/// One connection for many calls.
pub(crate) struct Client<'a> {
    running: &'a Running,
    stream: Option<TcpStream>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(running: &'a Running) -> Self {
        Self { running, stream: None }
    }
}

impl Client<'_> {
    pub(crate) async fn call(&mut self, method: &str, path: &str, host: &str, headers: &str) -> TestResponse {
        let length = if method == "GET" { "" } else { "content-length: 0\r\n" };
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}{length}\r\n");
        for _ in 0..2 {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => self.running.connect().await,
            };
            if stream.write_all(request.as_bytes()).await.is_err() {
                continue;
            }
            let Some(answer) = TestResponse::try_read_whole(&mut stream).await else { continue };
            if answer.whole && answer.header("connection") != Some("close") {
                self.stream = Some(stream);
            }
            return answer;
        }
        panic!("{method} {path} on {host} was not answered")
    }

    async fn ticket(&mut self, host: &str, headers: &str) -> String {
        let made = self.call("POST", "/tickets", host, headers).await;
        made.json()["ticket"].as_str().unwrap().to_owned()
    }

    /// Opens an address as a browser, and returns the redirect and the cookie as it is sent.
    async fn open(&mut self, path: &str, host: &str, headers: &str) -> (String, String) {
        let answer = self.call("GET", path, host, &format!("{NAVIGATION}{headers}")).await;
        let cookie = answer.header("set-cookie").unwrap_or_default().split(';').next().unwrap().to_owned();
        (answer.header("location").unwrap_or_default().to_owned(), format!("cookie: {cookie}\r\n"))
    }

    /// All credentials that can be derived from a key or a token, by every route.
    async fn made_from(&mut self, name: &str, header: &str, hosts: &Hosts) -> Vec<Credential> {
        let (own, preview) = (hosts.own.as_str(), hosts.preview.as_str());
        let named = |what: &str| format!("{what} of {name}");
        let everywhere: Vec<String> = hosts.all().into_iter().filter(|host| !hosts.foreign.contains(host)).collect();
        let everywhere: Vec<&str> = everywhere.iter().map(String::as_str).collect();
        let mut made = vec![Credential::header(name, header.to_owned(), &everywhere)];
        let ticket = self.ticket("localhost", header).await;
        made.push(Credential::ticket(&named("ticket"), &ticket, &SERVER));
        let (_, session) = self.open(&format!("/terminal?ticket={ticket}"), "localhost", "").await;
        made.push(Credential::header(&named("session"), session.clone(), &["localhost"]));
        let ticket = self.ticket("localhost", &session).await;
        made.push(Credential::ticket(&named("session's ticket"), &ticket, &SERVER));
        let (led, _) = self.open("/sandbox/a/", "localhost", &session).await;
        let word = led.split_once("ticket=").unwrap().1.to_owned();
        made.push(Credential::ticket(&named("word that leads to the own host"), &word, &[]));
        let (_, cookie) = self.open(&format!("/?ticket={word}"), own, "").await;
        made.push(Credential::header(&named("own-host cookie"), cookie.clone(), &[own]));
        let ticket = self.ticket(own, &cookie).await;
        made.push(Credential::ticket(&named("own-host ticket"), &ticket, &[own]));
        let (_, again) = self.open(&format!("/terminal?ticket={ticket}"), own, "").await;
        made.push(Credential::header(&named("own-host ticket's cookie"), again, &[own]));
        let (led, _) = self.open("/proxy/3000/", own, &cookie).await;
        let word = led.split_once("ticket=").unwrap().1.to_owned();
        let (_, cookie) = self.open(&format!("/?ticket={word}"), preview, "").await;
        made.push(Credential::header(&named("preview cookie"), cookie, &[preview]));
        made
    }
}

fn routes() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut routes: Vec<(String, String)> =
        OTHERS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    for (at, (path, operations)) in document["paths"].as_object().unwrap().iter().enumerate() {
        // Each by one of its routes.
        let prefix = if path.starts_with("/v1/") { ["", "/sandbox/a", "/sandbox/b"][at % 3] } else { "" };
        let path = path.replace(['{', '}'], "");
        for method in operations.as_object().unwrap().keys() {
            routes.push((method.to_ascii_uppercase(), format!("{prefix}{path}")));
        }
    }
    assert!(routes.len() > 180, "the description has lost its routes");
    routes
}

/// Public routes on the server's hosts; two of these are public everywhere.
fn is_public(method: &str, path: &str, host: &str) -> bool {
    match path {
        _ if path.starts_with("/static/") => !host.starts_with("3000-") && !host.starts_with("3001-"),
        "/health" | "/healthz" | "/ready" | "/login" => SERVER.contains(&host),
        "/v1/ping" => method == "GET" && SERVER.contains(&host),
        _ => false,
    }
}

/// Calls every route, and returns the number of authorized calls.
async fn walk(client: &mut Client<'_>, credential: &Credential, hosts: &Hosts, (a, b): (&SandboxId, &SandboxId)) -> usize {
    let mut let_in = 0;
    for host in hosts.all() {
        let is_server = SERVER.contains(&host.as_str());
        let is_good = credential.hosts.contains(&host);
        // A page of a sandbox could send these.
        let aside = if is_server { "" } else { "x-arenite-sandbox: b\r\nx-forwarded-host: localhost\r\n" };
        for (method, path) in routes() {
            let headers = format!("{}{aside}", credential.header);
            let answer = client.call(&method, &credential.path(&path), &host, &headers).await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            let what = format!("{} on {host}: {method} {path}: {} {said}", credential.name, answer.status);
            if hosts.foreign.contains(&host) {
                assert_eq!(answer.status, 403, "{what}");
            } else if is_public(&method, &path, &host) {
                assert!(answer.status != 403 && (answer.status != 401 || path == "/login"), "{what}");
            } else if !is_good {
                assert_eq!(answer.status, 401, "{what}");
                assert!(answer.header("set-cookie").is_none() && answer.header("location").is_none(), "{what}");
            } else if path.ends_with("/tickets") && !credential.makes_tickets && answer.status != 404 {
                let is_program = said.contains("reached");
                assert!(answer.status == 403 || is_program, "{what}");
            } else if path.starts_with("/api/v2/quarantine") && !credential.makes_tickets && is_server {
                assert_eq!(answer.status, 403, "{what}");
            } else {
                let_in += 1;
                assert!(answer.status != 401 && answer.status != 403, "{what}");
            }
            let reached = serde_json::from_slice::<Value>(&answer.body).ok();
            let reached = reached.as_ref().and_then(|body| body["reached"].as_str());
            if host == hosts.own || host == hosts.preview {
                // It reaches only its sandbox, and no route of the server.
                assert!(reached.is_none_or(|id| id == a.as_str()) && !said.contains(b.as_str()), "{what}");
                let is_control = path.starts_with("/api/") || path.starts_with("/sandbox/") || path == "/metrics";
                assert!(host != hosts.own || !is_control || [401, 404].contains(&answer.status), "{what}");
            }
            if !is_good {
                assert!(reached.is_none() && !said.contains(a.as_str()) && !said.contains(b.as_str()), "{what}");
            }
        }
    }
    let_in
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_credential_has_a_right_that_is_not_its_own() {
    let running = Running::with(auth(Duration::from_secs(3600)), Limits::default(), guest).await;
    let (a, b) = (running.create("a").await, running.create("b").await);
    let tenant = TenantId::default_tenant();
    let hosts = Hosts::new(&a, &b);
    let mut client = Client::new(&running);
    let nobody = [
        Credential::header("nothing", String::new(), &[]),
        Credential::header("a wrong key", "x-api-key: wrong\r\n".to_owned(), &[]),
        Credential::header(
            "an expired token",
            format!("authorization: Bearer {}\r\n", signed(&json!({ "exp": in_seconds(-1) }))),
            &[],
        ),
        Credential::ticket("a ticket of nobody", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &[]),
    ];
    for credential in &nobody {
        assert_eq!(walk(&mut client, credential, &hosts, (&a, &b)).await, 0);
    }
    // Created now, and presented again when the token has expired.
    let end = in_seconds(4);
    let token = format!("authorization: Bearer {}\r\n", signed(&json!({ "exp": end })));
    let of_token = client.made_from("token about to expire", &token, &hosts).await;
    let names = async |state: &[SandboxState]| {
        let all = running.control.list(&tenant).await.unwrap();
        all.into_iter()
            .filter(|sandbox| state.contains(&sandbox.state))
            .map(|sandbox| sandbox.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[SandboxState::Running]).await, ["a", "b"], "somebody without rights changed something");
    for credential in client.made_from("key", &format!("x-api-key: {KEY}\r\n"), &hosts).await {
        let let_in = walk(&mut client, &credential, &hosts, (&a, &b)).await;
        assert_eq!(let_in == 0, credential.hosts.is_empty(), "{}", credential.name);
        assert!(names(&[SandboxState::Running]).await.starts_with(&["a".to_owned(), "b".to_owned()]), "{}", credential.name);
    }
    while in_seconds(0) <= end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for credential in of_token {
        let ended = Credential { name: format!("{}, ended", credential.name), hosts: Vec::new(), ..credential };
        assert_eq!(walk(&mut client, &ended, &hosts, (&a, &b)).await, 0);
    }
    running.stop().await;
}
