//! VS Code's and JupyterLab's pages, with a stand-in for the programs (`pages/fake_program.py`) that fails on demand.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use standalone::Guest;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

const PAGE: (&str, &str) = ("accept", "text/html,*/*;q=0.8");

/// A guest with an image that seems to have these programs.
async fn with(programs: &[&str], variables: &[(&str, &str)]) -> Guest {
    let path = [("PATH", "{dir}/bin:/usr/local/bin:/usr/bin:/bin")];
    let guest = Guest::start_with("root", &[&path[..], variables].concat()).await;
    let bin = guest.dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    // A link to the file in the source tree: a file that is written here could still be open for writing in another test's child.
    let fake = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/pages/fake_program.py");
    for program in programs {
        std::os::unix::fs::symlink(&fake, bin.join(program)).unwrap();
    }
    guest
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    fn pid(&self) -> i32 {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.json()["pid"].as_i64().unwrap().try_into().unwrap()
    }
}

async fn ask(guest: &Guest, method: &str, path: &str, headers: &[(&str, &str)], body: &'static str) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "box.example");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = guest.send(request.body(Body::from(body)).unwrap()).await;
    let (head, body) = answer.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().into()).unwrap();
    Answer { status: head.status, headers: head.headers, text }
}

async fn get(guest: &Guest, path: &str) -> Answer {
    ask(guest, "GET", path, &[], "").await
}

fn starts(guest: &Guest) -> usize {
    std::fs::read_to_string(guest.dir.join("starts")).map_or(0, |starts| starts.lines().count())
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn mode(guest: &Guest, mode: &str) {
    std::fs::write(guest.dir.join("mode"), mode).unwrap();
}

#[tokio::test]
async fn whoever_comes_while_it_starts_gets_the_same_one() {
    let guest = with(&["code-server"], &[]).await;
    mode(&guest, "slow");
    let answers = join_all((0..30).map(|_| get(&guest, "/code-server/x"))).await;
    let pids: HashSet<i32> = answers.iter().map(Answer::pid).collect();
    assert_eq!((pids.len(), starts(&guest)), (1, 1));
    let pids: Vec<i32> = pids.into_iter().collect();
    assert_eq!(get(&guest, "/code-server/x").await.pid(), pids[0]);
}

#[tokio::test]
async fn each_is_told_what_it_needs() {
    let guest = with(&["code-server", "jupyter-lab"], &[("WORKSPACE", "{dir}/work")]).await;
    let settings = guest.dir.join(".local/share/code-server/User/settings.json");
    let told = get(&guest, "/code-server/").await.json();
    let arguments = told["arguments"].to_string();
    for wanted in
        ["\"--auth\",\"none\"", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust", "/work\"]"]
    {
        assert!(arguments.contains(wanted), "{wanted}: {arguments}");
    }
    let written: Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
    assert_eq!(written["telemetry.telemetryLevel"], "off");
    // A person's settings are kept.
    std::fs::write(&settings, "{}").unwrap();
    let first = told["pid"].as_i64().unwrap().try_into().unwrap();
    kill(first);
    assert_ne!(get(&guest, "/code-server/").await.pid(), first);
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), "{}");
    let arguments = get(&guest, "/jupyter/lab").await.json()["arguments"].to_string();
    for wanted in
        ["base_url=/jupyter/", "IdentityProvider.token=\"", "news_url=None", "NeverCheck", "manager=readonly", "/work\""]
    {
        assert!(arguments.contains(wanted), "{wanted}: {arguments}");
    }
}

#[tokio::test]
async fn requests_pass_as_they_are() {
    let guest = with(&["code-server", "jupyter-lab"], &[]).await;
    for (asked, seen) in [
        ("/code-server/", "/"),
        ("/code-server/a%2Fb//c?x=%20y", "/a%2Fb//c?x=%20y"),
        ("/code-server/?folder=/tmp", "/?folder=/tmp"),
        ("/jupyter/", "/jupyter/"),
        ("/jupyter/lab/tree/a%20b?reset", "/jupyter/lab/tree/a%20b?reset"),
    ] {
        let headers = [("cookie", "_xsrf=1"), ("connection", "close, x-hop"), ("x-hop", "1"), ("origin", "http://box.example")];
        let told = ask(&guest, "GET", asked, &headers, "").await.json();
        assert_eq!(told["path"], seen, "{asked}");
        let headers = &told["headers"];
        let kept = json!([headers["host"], headers["cookie"], headers["origin"], headers["x-hop"], headers["connection"]]);
        assert_eq!(kept, json!(["box.example", "_xsrf=1", "http://box.example", null, null]), "{asked}");
    }
    let told = ask(&guest, "PUT", "/jupyter/api/contents/x", &[("content-type", "application/json")], "{\"a\":1}").await.json();
    assert_eq!((told["method"].as_str(), told["body"].as_str()), (Some("PUT"), Some("{\"a\":1}")));
    let answer = get(&guest, "/jupyter/cookie").await;
    assert_eq!(answer.headers["set-cookie"], "_xsrf=1; Path=/");
    assert!(!answer.headers.contains_key("x-hop"));
}

#[tokio::test]
async fn addresses_keep_what_stands_before_them() {
    let guest = with(&["code-server", "jupyter-lab"], &[]).await;
    for (prefix, path, wanted) in [
        ("", "/code-server", "code-server/"),
        ("", "/jupyter?a=b", "jupyter/?a=b"),
        ("", "/code-server/redirect", "/code-server/there"),
        ("", "/jupyter/redirect", "/jupyter/there?a=b"),
        ("/sandbox/a", "/code-server?folder=/x", "code-server/?folder=/x"),
        ("/sandbox/a", "/code-server/redirect", "/sandbox/a/code-server/there"),
        ("/sandbox/a", "/jupyter/redirect", "/sandbox/a/jupyter/there?a=b"),
    ] {
        let answer = ask(&guest, "GET", path, &[("x-forwarded-prefix", prefix)], "").await;
        assert!(answer.status.is_redirection(), "{path}");
        assert_eq!(answer.headers["location"], wanted, "{prefix} {path}");
    }
}

#[tokio::test]
async fn one_that_was_killed_is_replaced_in_the_same_request() {
    let guest = with(&["code-server"], &[]).await;
    let mut last = get(&guest, "/code-server/").await.pid();
    for _ in 0..5 {
        kill(last);
        // All at once: none can have noticed the end yet.
        let answers = join_all((0..4).map(|_| get(&guest, "/code-server/"))).await;
        let pids: HashSet<i32> = answers.iter().map(Answer::pid).collect();
        assert!(pids.len() == 1 && !pids.contains(&last), "{last} {pids:?}");
        last = pids.into_iter().next().unwrap();
    }
    assert_eq!(starts(&guest), 6);
    // A request that kills the program fails only itself.
    let died = get(&guest, "/code-server/dies").await;
    assert_eq!(died.status, StatusCode::FAILED_DEPENDENCY, "{}", died.text);
    assert!(died.json()["message"].as_str().unwrap().contains("it was the request"), "{}", died.text);
    assert!(get(&guest, "/code-server/").await.pid() != last);
}

#[tokio::test]
async fn a_request_that_may_do_something_is_not_repeated() {
    let guest = with(&["code-server"], &[]).await;
    get(&guest, "/code-server/").await.pid();
    let count = |text: &str| text.matches("without an answer").count();
    let answer = ask(&guest, "GET", "/code-server/dies", &[("content-length", "1")], "x").await;
    assert_eq!((answer.status, count(&answer.text)), (StatusCode::FAILED_DEPENDENCY, 1), "{}", answer.text);
    assert_eq!(starts(&guest), 1);
    // A connection that can't be opened is retried: nothing was sent.
    let told = ask(&guest, "POST", "/code-server/x", &[], "body").await;
    assert_eq!((told.status, told.json()["body"].as_str()), (StatusCode::OK, Some("body")), "{}", told.text);
    assert_eq!(starts(&guest), 2);
}

#[tokio::test]
async fn one_that_dies_at_its_start_is_heard() {
    let guest = with(&["code-server"], &[]).await;
    mode(&guest, "dies");
    let answer = get(&guest, "/code-server/").await;
    assert_eq!(answer.status, StatusCode::FAILED_DEPENDENCY);
    let told = answer.json();
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("VS Code ended before it served (exit code 3)") && message.contains("last words"), "{message}");
    let page = ask(&guest, "GET", "/code-server/", &[PAGE], "").await;
    assert_eq!(
        (page.status, page.headers["content-type"].to_str().unwrap()),
        (StatusCode::FAILED_DEPENDENCY, "text/html; charset=utf-8")
    );
    assert!(page.text.contains("<pre>starting\n&lt;script&gt;alert('last words')&lt;/script&gt;</pre>"), "{}", page.text);
    assert!(!page.text.contains("<script") && !page.text.contains('\u{1b}'));
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    // The next request restarts it, and it may work by then.
    mode(&guest, "");
    get(&guest, "/code-server/").await.pid();
}

#[tokio::test]
async fn an_image_without_it_and_a_switch_say_so() {
    let guest = with(&["jupyter-lab"], &[("DISABLE_JUPYTER", "True")]).await;
    for (path, status, said) in [
        ("/code-server/", StatusCode::FAILED_DEPENDENCY, "`aio`"),
        ("/jupyter/lab", StatusCode::NOT_FOUND, "DISABLE_JUPYTER"),
        ("/jupyter", StatusCode::NOT_FOUND, "DISABLE_JUPYTER"),
        ("/opencode", StatusCode::FAILED_DEPENDENCY, "npm install --global opencode-ai"),
        ("/codex", StatusCode::FAILED_DEPENDENCY, "npm install --global @openai/codex"),
    ] {
        let answer = get(&guest, path).await;
        assert_eq!((answer.status, answer.json()["success"].as_bool()), (status, Some(false)), "{path}");
        let page = ask(&guest, "GET", path, &[PAGE], "").await;
        assert_eq!(page.status, status, "{path}");
        assert!(answer.text.contains(said) && page.text.contains(said), "{path}: {} {}", answer.text, page.text);
        assert!(page.text.starts_with("<!doctype html>"), "{path}");
    }
    assert_eq!(starts(&guest), 0);
    for off in ["1", "TRUE"] {
        let guest = with(&["code-server"], &[("DISABLE_CODE_SERVER", off)]).await;
        assert_eq!(get(&guest, "/code-server/").await.status, StatusCode::NOT_FOUND);
    }
    let guest = with(&["code-server"], &[("DISABLE_CODE_SERVER", "false")]).await;
    get(&guest, "/code-server/").await.pid();
}

#[tokio::test]
async fn hostile_answers_are_errors_of_their_request_alone() {
    let guest = with(&["code-server"], &[]).await;
    let pid = get(&guest, "/code-server/").await.pid();
    for (path, said) in [
        ("/code-server/nonsense", "no HTTP"),
        ("/code-server/endless", "too large"),
        ("/code-server/closes", "closed the connection without an answer"),
    ] {
        let answer = get(&guest, path).await;
        assert_eq!(answer.status, StatusCode::FAILED_DEPENDENCY, "{path}");
        assert!(answer.json()["message"].as_str().unwrap().contains(said), "{}", answer.text);
    }
    // If the program's answer is cut off in its body, so is the client's.
    let request = Request::get("/code-server/half").header("host", "x").body(Body::empty()).unwrap();
    assert!(guest.send(request).await.into_body().collect().await.is_err());
    assert_eq!(get(&guest, "/code-server/").await.pid(), pid, "it goes on");
}

async fn socket(guest: &Guest, path: &str) -> WebSocketStream<tokio::net::UnixStream> {
    client_async(format!("ws://guest{path}"), guest.connect().await).await.unwrap().0
}

async fn echoed(socket: &mut WebSocketStream<tokio::net::UnixStream>, text: &str) -> String {
    socket.send(Message::text(text)).await.unwrap();
    socket.next().await.unwrap().unwrap().into_text().unwrap().to_string()
}

#[tokio::test]
async fn a_connection_keeps_it_and_without_one_it_ends() {
    let guest = with(&["code-server"], &[("PAGES_IDLE_SECONDS", "1")]).await;
    let mut first = socket(&guest, "/code-server/socket").await;
    assert_eq!(echoed(&mut first, "hello").await, "HELLO");
    let before = starts(&guest);
    // Longer than it would run without a connection; how much longer doesn't matter.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(echoed(&mut first, "still").await, "STILL");
    assert_eq!(starts(&guest), before);
    drop(first);
    guest.gone("--socket").await;
    let mut second = socket(&guest, "/code-server/socket").await;
    assert_eq!(echoed(&mut second, "again").await, "AGAIN");
    assert!(starts(&guest) > before);
    // When it ends, the connection ends.
    for pid in guest.processes("--socket") {
        kill(pid);
    }
    assert!(!matches!(second.next().await, Some(Ok(Message::Text(_)))));
}

#[tokio::test]
async fn an_agent_starts_in_a_terminal() {
    let guest = with(&["opencode"], &[]).await;
    let answer = ask(&guest, "GET", "/opencode", &[PAGE, ("x-forwarded-prefix", "/sandbox/a")], "").await;
    assert_eq!(answer.status, StatusCode::TEMPORARY_REDIRECT);
    let session = answer.headers["location"].to_str().unwrap().strip_prefix("terminal?session_id=").unwrap().to_owned();
    // The stand-in does not accept `--socket` here, and the terminal shows its error.
    for _ in 0..1500 {
        let shown = guest.post("/v1/shell/view", json!({"id": session})).await;
        if shown["command"] == "opencode" && shown["status"] == "completed" {
            return assert!(shown["output"].as_str().unwrap().contains("--socket"), "{shown}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never ran");
}
