//! Observations: current usage, usage over time, and reports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::io::Read;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use standalone::{Guest, eventually};

const BASE: &str = "/v1/sandbox/observe";

async fn refused(guest: &Guest, path: &str, body: Value) -> StatusCode {
    guest.refused(&format!("{BASE}/{path}"), body).await
}

async fn report(guest: &Guest, id: &str) -> Vec<Value> {
    let request = Request::get(format!("{BASE}/reports/{id}")).header("host", "guest").body(axum::body::Body::empty()).unwrap();
    let answer = guest.send(request).await;
    assert_eq!((answer.status(), &answer.headers()["content-type"]), (StatusCode::OK, &"application/gzip".parse().unwrap()));
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn live_tells_of_disks_and_processes() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let guest = Guest::start().await;
    let status = guest.get(&format!("{BASE}/status")).await;
    assert_eq!((&status["mode"], &status["running"], &status["report_count"]), (&json!("off"), &json!(false), &json!(0)));
    // It holds memory, so that it is soon among the rows, also on a host with more processes than rows.
    let command = "sleep 0.6 & held=$(head -c 60000000 /dev/zero | tr '\\0' x); while :; do :; done";
    guest.post("/v1/bash/exec", json!({"command": command, "async_mode": true, "hard_timeout": 30})).await;
    let is_busy = |row: &Value| row["comm"] == "bash" && row["cpu_pct"].as_f64().unwrap() > 0.0;
    let started = std::time::Instant::now();
    let live = loop {
        let live = guest.get(&format!("{BASE}/live?top_rows=100")).await;
        if live["top_processes"].as_array().unwrap().iter().any(is_busy) || started.elapsed().as_secs() > 20 {
            break live;
        }
    };
    assert_eq!(live["mode"], "off");
    assert!(live["disk"][0]["total_bytes"].as_u64().unwrap() > 0 && live["disk"][0]["path"] == "/", "{live}");
    let rows = live["top_processes"].as_array().unwrap();
    assert!(rows.len() > 2 && rows.windows(2).all(|w| w[0]["rss_bytes"].as_u64() >= w[1]["rss_bytes"].as_u64()));
    assert!(rows.iter().any(is_busy));
    let few = guest.get(&format!("{BASE}/live?top_rows=1")).await;
    assert_eq!(few["top_processes"].as_array().unwrap().len(), 1);
    assert_eq!(guest.get(&format!("{BASE}/live?top_rows=-5")).await["top_processes"], json!([]));
    assert_eq!(guest.call("GET", &format!("{BASE}/live?top_rows=x"), "").await.0, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn a_capture_is_started_once_sampled_stopped_and_reported() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let guest = Guest::start().await;
    assert_eq!(refused(&guest, "stop", json!({})).await, StatusCode::CONFLICT);
    let arguments = json!({"interval_seconds": 0.1, "idempotency_key": "k"});
    let started = guest.post(&format!("{BASE}/start"), arguments.clone()).await;
    assert_eq!((&started["mode"], &started["interval_seconds"]), (&json!("capture"), &json!(0.1)));
    assert!(started["ends_at"].is_string() && started["runtime_dir"].is_string());
    assert_eq!(guest.post(&format!("{BASE}/start"), arguments).await, started, "the same key, the same answer");
    assert_eq!(refused(&guest, "start", json!({})).await, StatusCode::CONFLICT);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let status = guest.get(&format!("{BASE}/status")).await;
    assert_eq!((&status["running"], &status["session_id"]), (&json!(true), &started["session_id"]));
    assert!(status["last_sample_at"].is_string(), "{status}");
    let exported = guest.post(&format!("{BASE}/export"), json!({"idempotency_key": "e", "reason": "look"})).await;
    assert_eq!(guest.post(&format!("{BASE}/export"), json!({"idempotency_key": "e"})).await, exported);
    assert_eq!((&exported["session_id"], &exported["reason"]), (&started["session_id"], &json!("look")));
    let stopped = guest.post(&format!("{BASE}/stop"), json!({"session_id": started["session_id"]})).await;
    assert_eq!(stopped, json!({"session_id": started["session_id"], "stopped": true, "report_ready": true}));
    let again = guest.post(&format!("{BASE}/stop"), json!({"session_id": started["session_id"]})).await;
    assert_eq!(again["stopped"], false);
    let reports = guest.get(&format!("{BASE}/reports")).await;
    assert_eq!(reports.as_array().unwrap().len(), 2, "{reports}");
    let id = reports[1]["report_id"].as_str().unwrap();
    let lines = report(&guest, id).await;
    assert_eq!((&lines[0]["report"]["reason"], &lines[0]["head"]["at_export"]["mode"]), (&json!("stopped"), &json!("off")));
    let samples: Vec<_> = lines.iter().filter_map(|line| line.get("sample")).collect();
    assert!(samples.len() >= 3, "{}", samples.len());
    assert!(samples[1]["processes"].as_array().unwrap().len() > 2 && samples[1]["disk"][0]["path"] == "/");
    assert_eq!(lines.iter().filter(|line| line["event"]["type"] == "stopped").count(), 1);
    for report in reports.as_array().unwrap() {
        let path = format!("{BASE}/reports/{}", report["report_id"].as_str().unwrap());
        assert_eq!(guest.call("DELETE", &path, "").await.0, StatusCode::OK);
        assert!(!std::path::Path::new(report["path"].as_str().unwrap()).exists());
        assert_eq!(guest.call("DELETE", &path, "").await.0, StatusCode::NOT_FOUND);
        assert_eq!(guest.call("GET", &path, "").await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn time_ends_a_capture_and_numbers_are_bounded() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let guest = Guest::start().await;
    for (body, status) in [
        (json!({"interval_seconds": 0}), StatusCode::BAD_REQUEST),
        (json!({"interval_seconds": -1}), StatusCode::BAD_REQUEST),
        (json!({"duration_seconds": 0}), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(refused(&guest, "start", body).await, status);
    }
    for body in [json!({"mode": "off"}), json!({"idempotency_key": "x".repeat(129)}), json!({"duration_seconds": 1.5})] {
        assert_eq!(
            guest.call("POST", &format!("{BASE}/start"), body.to_string()).await.0,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{body}"
        );
    }
    assert_eq!(refused(&guest, "export", json!({"session_id": "o-0"})).await, StatusCode::NOT_FOUND);
    let body = json!({"interval_seconds": 0.2, "duration_seconds": 1, "include_processes": false, "include_disk": false});
    let started = guest.post(&format!("{BASE}/start"), body).await;
    let pid = guest.pid();
    let directory = started["runtime_dir"].as_str().unwrap().to_owned();
    let session = started["session_id"].as_str().unwrap().to_owned();
    for _ in 0..100 {
        if guest.get(&format!("{BASE}/status")).await["report_count"] == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let reports = guest.get(&format!("{BASE}/reports")).await;
    assert_eq!((&reports[0]["reason"], &reports[0]["session_id"]), (&json!("completed"), &json!(session)));
    assert_eq!(guest.get(&format!("{BASE}/status")).await["mode"], "off");
    let id = reports[0]["report_id"].as_str().unwrap();
    let lines = report(&guest, id).await;
    assert!(lines.iter().filter_map(|l| l.get("sample")).all(|s| s.get("processes").is_none() && s.get("disk").is_none()));
    guest.call("DELETE", &format!("{BASE}/reports/{id}"), "").await;
    // The next observation replaces the file of the last one.
    let guardrail = guest.post(&format!("{BASE}/start"), json!({"mode": "guardrail", "interval_seconds": 0.1})).await;
    assert_eq!((&guardrail["mode"], &guardrail["ends_at"]), (&json!("guardrail"), &Value::Null));
    assert!(!std::path::Path::new(&format!("{directory}/{session}.jsonl")).exists());
    assert_eq!(guest.post(&format!("{BASE}/stop"), json!({})).await["report_ready"], false);
    eventually("its threads have ended", || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() <= 4).await;
    drop(std::fs::remove_file(format!("{directory}/{}.jsonl", guardrail["session_id"].as_str().unwrap())));
}
