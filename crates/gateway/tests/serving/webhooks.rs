//! Webhooks: what a receiver gets, and what happens if it does not take it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arenite_control::tenants::Role;
use arenite_gateway::GatewayConfig;
use arenite_model::PauseKind;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::{Running, TestResponse, echo};

/// A receiver that answers with what `answer` returns, which it gets the number of the request for.
struct Receiver {
    url: String,
    received: mpsc::UnboundedReceiver<(Vec<String>, Value)>,
}

impl Receiver {
    async fn new(answer: impl Fn(usize) -> &'static str + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, received) = mpsc::unbounded_channel();
        let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (sender, answer, count) = (sender.clone(), Arc::clone(&answer), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    let (head, body) = loop {
                        if stream.read_buf(&mut bytes).await.unwrap_or_default() == 0 {
                            return;
                        }
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                        if let Ok(body) = serde_json::from_str(body) {
                            break (head.lines().map(str::to_owned).collect(), body);
                        }
                    };
                    let _ = sender.send((head, body));
                    let text = answer(count.fetch_add(1, Ordering::SeqCst));
                    if text.is_empty() {
                        // It hangs.
                        tokio::time::sleep(Duration::from_secs(60)).await;
                    }
                    let _ = stream.write_all(text.as_bytes()).await;
                });
            }
        });
        Self { url, received }
    }

    async fn next(&mut self) -> (Vec<String>, Value) {
        tokio::time::timeout(Duration::from_secs(30), self.received.recv()).await.expect("nothing was delivered").unwrap()
    }

    async fn next_type(&mut self) -> String {
        self.next().await.1["type"].as_str().unwrap().to_owned()
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const ERROR: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";

async fn start() -> Running {
    let webhook_ranges = vec!["127.0.0.0/8".parse().unwrap()];
    Running::with_tenants_and(GatewayConfig { webhook_ranges, ..GatewayConfig::default() }, |_, stream| echo(stream)).await
}

async fn call(running: &Running, key: &str, method: &str, path: &str, body: Value) -> TestResponse {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let head = format!("{method} /api/v2/webhooks{path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n");
    running.raw(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).await
}

async fn create(running: &Running, key: &str, body: Value) -> (String, String) {
    let made = call(running, key, "POST", "", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let text = |field: &str| made.json()[field].as_str().unwrap().to_owned();
    (text("id"), text("secret"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_events_are_delivered_to_its_webhooks_and_to_no_other() {
    let running = start().await;
    let (_, acme) = running.key("acme", Role::Admin, |_| {}).await;
    let (_, other) = running.key("other", Role::Admin, |_| {}).await;
    let (mut all, mut some, mut foreign) =
        (Receiver::new(|_| OK).await, Receiver::new(|_| OK).await, Receiver::new(|_| OK).await);
    let (id, secret) = create(&running, &acme, json!({ "url": all.url })).await;
    assert!(secret.starts_with("whsec_"));
    create(&running, &acme, json!({ "url": some.url, "types": ["sandbox.paused"] })).await;
    create(&running, &other, json!({ "url": foreign.url })).await;
    let sandbox = running.create_in("acme", "a").await;
    let (head, body) = all.next().await;
    assert_eq!(head[0], "POST /hook HTTP/1.1");
    assert_eq!((&body["sandbox"]["id"], &body["sandbox"]["name"]), (&json!(sandbox), &json!("a")));
    assert!(head.contains(&format!("webhook-id: {}", body["id"].as_str().unwrap())), "{head:?}");
    let mut kinds = vec![body["type"].as_str().unwrap().to_owned(), all.next_type().await];
    kinds.sort();
    assert_eq!(kinds, ["sandbox.created", "sandbox.creating"]);
    running.control.pause(&"acme".parse().unwrap(), &"a".parse().unwrap(), PauseKind::Freeze).await.unwrap();
    assert_eq!((some.next_type().await.as_str(), all.next_type().await.as_str()), ("sandbox.paused", "sandbox.paused"));
    assert!(some.received.try_recv().is_err() && foreign.received.try_recv().is_err());

    let listed = call(&running, &acme, "GET", "", Value::Null).await;
    assert_eq!(listed.json()["webhooks"].as_array().unwrap().len(), 2);
    assert!(!listed.text().contains("whsec") && !listed.text().contains("secret"), "{}", listed.text());
    // Another tenant's webhook is not found.
    let path = format!("/{id}");
    for (method, path) in
        [("GET", path.clone()), ("DELETE", path.clone()), ("POST", format!("{path}/test")), ("GET", format!("{path}/deliveries"))]
    {
        assert_eq!(call(&running, &other, method, &path, Value::Null).await.status, 404, "{method} {path}");
    }
    assert_eq!(call(&running, &acme, "GET", &path, Value::Null).await.status, 200);
    assert_eq!(call(&running, &acme, "DELETE", &path, Value::Null).await.json()["removed"], true);
    assert_eq!(call(&running, &acme, "GET", &path, Value::Null).await.status, 404);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_delivery_is_repeated_with_the_same_id() {
    let running = start().await;
    let (_, key) = running.key("acme", Role::Admin, |_| {}).await;
    let mut receiver = Receiver::new(|number| if number < 2 { ERROR } else { OK }).await;
    let (id, _) = create(&running, &key, json!({ "url": receiver.url, "types": ["sandbox.created"] })).await;
    running.create_in("acme", "a").await;
    let ids = [receiver.next().await, receiver.next().await, receiver.next().await].map(|(_, body)| body["id"].clone());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let listed = format!("/{id}/deliveries");
    let deliveries = || call(&running, &key, "GET", &listed, Value::Null);
    let mut delivery = deliveries().await.json()["deliveries"][0].clone();
    let begun = std::time::Instant::now();
    while delivery["state"] != "delivered" {
        assert!(begun.elapsed() < Duration::from_secs(10), "{delivery}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        delivery = deliveries().await.json()["deliveries"][0].clone();
    }
    assert_eq!((&delivery["attempts"], &delivery["status"], &delivery["error"]), (&json!(3), &json!(200), &Value::Null));
    assert_eq!((&delivery["event"], &delivery["next_attempt_at"]), (&ids[0], &Value::Null));
    let path = format!("/{id}/deliveries/{}/redeliver", delivery["number"]);
    assert_eq!(call(&running, &key, "POST", &path, Value::Null).await.json()["state"], "pending");
    assert_eq!(receiver.next().await.1["id"], ids[0]);
    assert_eq!(call(&running, &key, "POST", &format!("/{id}/deliveries/99/redeliver"), Value::Null).await.status, 404);
    assert_eq!(call(&running, &key, "GET", &format!("/{id}/deliveries?state=lost"), Value::Null).await.status, 400);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_that_hang_delay_no_other() {
    let running = start().await;
    let (_, key) = running.key("acme", Role::Admin, |_| {}).await;
    let hanging = Receiver::new(|_| "").await;
    let mut good = Receiver::new(|_| OK).await;
    for _ in 0..3 {
        create(&running, &key, json!({ "url": hanging.url })).await;
    }
    create(&running, &key, json!({ "url": good.url, "types": ["sandbox.deleted"] })).await;
    let begun = std::time::Instant::now();
    for number in 0..10 {
        let name = format!("s{number}");
        running.create_in("acme", &name).await;
        running.control.delete(&"acme".parse().unwrap(), &name.parse().unwrap()).await.unwrap();
    }
    for _ in 0..10 {
        good.next().await;
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_tells_its_result_and_private_addresses_are_not_reached() {
    let running = start().await;
    let (_, key) = running.key("acme", Role::Admin, |_| {}).await;
    let (mut good, bad) = (Receiver::new(|_| OK).await, Receiver::new(|_| ERROR).await);
    let test = async |url: &str| {
        let (id, _) = create(&running, &key, json!({ "url": url })).await;
        call(&running, &key, "POST", &format!("/{id}/test"), Value::Null).await.json()
    };
    let result = test(&good.url).await;
    assert_eq!((&result["delivered"], &result["status"]), (&json!(true), &json!(200)));
    assert_eq!(good.next_type().await, "webhook.test");
    let result = test(&bad.url).await;
    assert_eq!((&result["delivered"], &result["status"]), (&json!(false), &json!(503)));
    for private in ["http://169.254.169.254/latest/meta-data/", "http://[::ffff:10.0.0.1]/", "http://10.0.0.1/"] {
        let result = test(private).await;
        assert!(result["error"].as_str().unwrap().contains("not public"), "{result}");
    }
    for bad in [
        json!({}),
        json!({ "url": "ftp://x" }),
        json!({ "url": 1 }),
        json!({ "url": good.url, "types": ["x"] }),
        json!({ "url": good.url, "x": 1 }),
    ] {
        assert_eq!(call(&running, &key, "POST", "", bad.clone()).await.status, 400, "{bad}");
    }
    let (_, manager) = running.key("acme", Role::Manage, |_| {}).await;
    assert_eq!(call(&running, &manager, "GET", "", Value::Null).await.status, 403);
    for _ in 5..32 {
        create(&running, &key, json!({ "url": good.url })).await;
    }
    assert_eq!(call(&running, &key, "POST", "", json!({ "url": good.url })).await.status, 429);
    running.stop().await;
}
