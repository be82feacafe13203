//! One attempt: resolves the name, checks every address, and sends the signed event to one of them. Redirects are not followed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_control::webhooks::{AttemptResult, Webhook};
use arenite_model::TenantId;
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use ipnet::IpNet;
use jiff::Timestamp;
use tokio_rustls::TlsConnector;

use crate::outgoing::{Reach, Target};

/// Time for an attempt, from the look-up of the name to the head of the answer.
const TIME: Duration = Duration::from_secs(10);

/// Sends events to webhooks.
pub(crate) struct WebhookSender {
    reach: Reach,
    tls: Option<TlsConnector>,
    /// Tenants with a test in progress.
    tests: Arc<Mutex<HashSet<TenantId>>>,
}

/// What is sent.
pub(crate) struct Message<'a> {
    /// The event's id.
    pub(crate) id: &'a str,
    /// JSON.
    pub(crate) body: String,
}

/// A test in progress, until it is dropped.
pub(crate) struct TestPermit {
    tenant: TenantId,
    tests: Arc<Mutex<HashSet<TenantId>>>,
}

impl Drop for TestPermit {
    fn drop(&mut self) {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tenant);
    }
}

/// The value of `webhook-signature`.
fn signature(secret: &[u8], id: &str, timestamp: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag))
}

impl WebhookSender {
    pub(crate) fn new(ranges: Vec<IpNet>, tls: Option<TlsConnector>) -> Self {
        Self { reach: Reach::new(ranges, "webhook_allow"), tls, tests: Arc::default() }
    }

    /// A permit to test one of a tenant's webhooks; none while there is another test.
    pub(super) fn test_permit(&self, tenant: &TenantId) -> Option<TestPermit> {
        let is_new = self.tests.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant.clone());
        is_new.then(|| TestPermit { tenant: tenant.clone(), tests: Arc::clone(&self.tests) })
    }

    /// Makes an attempt.
    pub(super) async fn send(&self, hook: &Webhook, message: Message<'_>) -> AttemptResult {
        let status = match tokio::time::timeout(TIME, self.try_to_send(hook, message)).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return AttemptResult { status: None, error: Some(error) },
            Err(_) => return AttemptResult { status: None, error: Some(format!("there was no answer within {TIME:?}")) },
        };
        let error = match status {
            status if status.is_success() => None,
            status if status.is_redirection() => Some(format!("the answer was {status}; redirects are not followed")),
            status => Some(format!("the answer was {status}")),
        };
        AttemptResult { status: Some(status.as_u16()), error }
    }

    async fn try_to_send(&self, hook: &Webhook, message: Message<'_>) -> Result<StatusCode, String> {
        let target = Target::parse(&hook.url).map_err(|reason| format!("the URL can't be used: {reason}"))?;
        let tcp = self.reach.dial(&target).await?;
        let timestamp = Timestamp::now().as_second();
        let Message { id, body } = message;
        let signature = signature(&hook.secret, id, timestamp, &body);
        let request = target
            .post()
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| format!("the URL can't be used: {error}"))?;
        target.send(tcp, self.tls.as_ref(), request).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use arenite_model::WebhookId;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn hook(url: &str) -> Webhook {
        Webhook {
            id: WebhookId::random(),
            tenant: TenantId::default_tenant(),
            url: url.to_owned(),
            secret: b"secret".to_vec(),
            kinds: Vec::new(),
            created_at: Timestamp::now(),
        }
    }

    fn message() -> Message<'static> {
        Message { id: "1-1", body: "{}".to_owned() }
    }

    fn open() -> WebhookSender {
        WebhookSender::new(vec!["127.0.0.0/8".parse().unwrap()], None)
    }

    /// A server that answers with these bytes, and what it received.
    async fn answering(answer: &'static [u8]) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?a=1", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\n{}") {
                assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            }
            // A client that has its answer may be gone.
            let _ = stream.write_all(answer).await;
            String::from_utf8(received).unwrap()
        });
        (url, served)
    }

    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        // The example of the specification's reference implementation.
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = "{\"test\": 2432232314}";
        let signed = signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[tokio::test]
    async fn only_public_addresses_and_opened_ranges_are_dialled() {
        let sender = WebhookSender::new(Vec::new(), None);
        for private in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://2130706433:1/",
            "http://0x7f.1:1/",
            "http://0:1/",
            "http://0.0.0.0:1/",
            "http://10.1.2.3/",
            "http://172.16.0.1/",
            "http://192.168.0.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://100.64.0.1/",
            "http://[::1]:1/",
            "http://[::]:1/",
            "http://[::ffff:127.0.0.1]:1/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[fe80::1]/",
            "http://[fd00::1]/",
            "http://[64:ff9b::7f00:1]/",
        ] {
            let result = sender.send(&hook(private), message()).await;
            let error = result.error.unwrap();
            assert!(error.contains("not public") || error.contains("can't be"), "{private}: {error}");
        }
        // An opened range opens no other one.
        assert!(open().send(&hook("http://10.1.2.3/"), message()).await.error.unwrap().contains("not public"));
    }

    #[tokio::test]
    async fn an_event_is_posted_with_its_signature() {
        let (url, served) = answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        let result = open().send(&hook(&url), message()).await;
        assert_eq!(result, AttemptResult { status: Some(204), error: None });
        let received = served.await.unwrap();
        let head: Vec<&str> = received.lines().collect();
        assert_eq!(head[0], "POST /hook?a=1 HTTP/1.1");
        let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap();
        assert_eq!((header("webhook-id"), header("content-type")), ("1-1", "application/json"));
        let timestamp = header("webhook-timestamp").parse().unwrap();
        assert_eq!(header("webhook-signature"), signature(b"secret", "1-1", timestamp, "{}"));
        assert!(!received.contains("secret"));
    }

    #[tokio::test]
    async fn other_answers_are_failures_and_redirects_lead_nowhere() {
        let (inner, target) = answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
        let redirect = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {inner}\r\n\r\n");
        for (answer, status, words) in [
            (redirect.leak().as_bytes(), Some(307), "redirects are not followed"),
            (b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 99999999999\r\n\r\n", Some(500), "500"),
            (b"not HTTP", None, "broke off"),
            (b"", None, "broke off"),
        ] {
            let (url, _served) = answering(answer).await;
            let result = open().send(&hook(&url), message()).await;
            assert_eq!(result.status, status);
            let error = result.error.unwrap();
            assert!(error.contains(words), "{error}");
        }
        assert!(!target.is_finished());
        let without_tls = open().send(&hook(&inner.replace("http:", "https:")), message()).await;
        assert!(without_tls.error.unwrap().contains("certificate authorities"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_hangs_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let begun = Instant::now();
        let result = open().send(&hook(&url), message()).await;
        assert!(result.error.unwrap().contains("no answer within 10s"));
        assert!(begun.elapsed() < TIME, "the time of the test is paused");
    }
}
