//! Secrets: what programs send, what servers get, and what programs get back.

mod answers;
mod misuse;
mod postgres;
mod requests;
mod termination;

use arenite_egress::{AuthorityKeys, BoundSecret, EgressEvent, FromServer, SetPolicy};
use http::Response;
use tokio_rustls::TlsConnector;

use crate::harness::{Proxy, SANDBOX, SERVER};
use crate::tls::{
    ClientStream, Received, ServerAuthority, ServerBody, WebServer, certificate_of, read_exactly, read_head, read_to_end,
    shake_hands, trust, whole, write,
};

/// It changes in each encoding.
pub(super) const VALUE: &str = r#"sk+Live/42 "q"~z9"#;
pub(super) const PLACEHOLDER: &str = "arenite_secret_1_KEY";
const ALL: &[&str] = &["header", "query", "body"];

pub(super) fn secret(value: &str, hosts: &[&str], places: &[&str]) -> BoundSecret {
    serde_json::from_value(serde_json::json!({
        "name": "KEY", "placeholders": [PLACEHOLDER, "inherited_placeholder"], "value": value, "hosts": hosts, "places": places,
    }))
    .unwrap()
}

/// A proxy, a server at `a.test` and `b.test`, and a sandbox that may reach both, with a secret for `a.test`.
pub(super) struct Setting {
    pub(super) proxy: Proxy,
    pub(super) server: WebServer,
    pub(super) servers: ServerAuthority,
    pub(super) keys: AuthorityKeys,
    /// Trusts the sandbox's authority alone.
    pub(super) client: TlsConnector,
}

impl Setting {
    pub(super) async fn start(places: &[&str]) -> Self {
        Self::with_answer(places, |_| Response::new(whole("fine"))).await
    }

    pub(super) async fn with_answer(
        places: &[&str],
        answer: impl Fn(&Received) -> Response<ServerBody> + Clone + Send + Sync + 'static,
    ) -> Self {
        let servers = ServerAuthority::new("trusted");
        let mut proxy = Proxy::start_trusting(vec![servers.certificate()]).await;
        let server = WebServer::start(&mut proxy, servers.acceptor(&["a.test", "b.test"]), answer).await;
        for name in ["a.test", "b.test"] {
            proxy.resolver.name(name, &[SERVER]);
        }
        let keys = AuthorityKeys::generate("box").unwrap();
        let client = trust(certificate_of(&keys));
        let mut setting = Self { proxy, server, servers, keys, client };
        let host = setting.host("a.test");
        setting.set(vec![secret(VALUE, &[&host], places)]).await;
        setting
    }

    pub(super) fn port(&self) -> u16 {
        self.server.address.port()
    }

    /// The name with the server's port.
    pub(super) fn host(&self, name: &str) -> String {
        format!("{name}:{}", self.port())
    }

    pub(super) async fn set(&mut self, secrets: Vec<BoundSecret>) {
        self.set_with(r#"{"allow": ["*:*"]}"#, secrets).await;
    }

    pub(super) async fn set_with(&mut self, policy: &str, secrets: Vec<BoundSecret>) {
        let set = SetPolicy {
            address: SANDBOX.into(),
            sandbox: "box".into(),
            policy: serde_json::from_str(policy).unwrap(),
            floor: None,
            close_open: false,
            secrets,
            authority: Some(self.keys.clone()),
        };
        self.proxy.send(&serde_json::to_string(&FromServer::Set(Box::new(set))).unwrap()).await;
        self.proxy.barrier().await;
    }

    /// A connection on which the sandbox's authority answers for the host.
    pub(super) async fn connect(&self, name: &str) -> ClientStream {
        let stream = self.proxy.connect(self.server.address).await;
        shake_hands(&self.client, name, stream).await.unwrap()
    }

    /// Sends a request with `head` as its start line and further headers, and returns the whole answer.
    pub(super) async fn request(&self, head: &str, body: &str) -> String {
        let mut client = self.connect("a.test").await;
        write(&mut client, &format!("{}{body}", with_host(head, "a.test", "Connection: close\r\n"))).await;
        read_to_end(&mut client).await
    }

    /// The event of a refusal, after a check that no event of before has the value.
    pub(super) async fn refusal(&mut self) -> EgressEvent {
        let refusal = self.proxy.refusal().await;
        let text = serde_json::to_string(&refusal).unwrap();
        assert!(!text.contains("sk+Live"), "{text}");
        refusal
    }
}

/// The start line and the headers in `head`, with a host and further headers.
pub(super) fn with_host(head: &str, host: &str, more: &str) -> String {
    let (line, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    format!("{line} HTTP/1.1\r\nHost: {host}\r\n{headers}{more}\r\n")
}

/// Reads an answer with a known length or in chunks: its head and its body.
pub(super) async fn read_answer(client: &mut ClientStream) -> (String, String) {
    let head = read_head(client).await;
    let lower = head.to_lowercase();
    if let Some((_, rest)) = lower.split_once("content-length: ") {
        let length = rest.split("\r\n").next().unwrap().parse().unwrap();
        return (head, read_exactly(client, length).await);
    }
    assert!(lower.contains("transfer-encoding: chunked"), "{head}");
    let mut body = String::new();
    loop {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push_str(&read_exactly(client, 1).await);
        }
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let chunk = read_exactly(client, length + 2).await;
        if length == 0 {
            return (head, body);
        }
        body.push_str(chunk.strip_suffix("\r\n").unwrap());
    }
}
