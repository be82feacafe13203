//! The `shell` service over HTTP: real shells on real terminals.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use standalone::{Guest, eventually};

async fn exec(guest: &Guest, body: Value) -> Value {
    guest.post("/v1/shell/exec", body).await
}

/// Runs a command in the session `s`.
async fn run(guest: &Guest, command: &str) -> Value {
    exec(guest, json!({"id": "s", "command": command})).await
}

/// A guest with a session `s`.
async fn with_session() -> Guest {
    let guest = Guest::start().await;
    guest.post("/v1/shell/sessions/create", json!({"id": "s"})).await;
    guest
}

#[track_caller]
fn is(done: &Value, output: &str, exit_code: i32) {
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["output"], output, "{done}");
    assert_eq!(done["exit_code"], exit_code, "{done}");
}

#[tokio::test]
async fn a_session_keeps_its_state_and_output_is_clean() {
    let guest = with_session().await;
    is(&run(&guest, "echo hi").await, "hi", 0);
    is(&run(&guest, "printf 'no newline'").await, "no newline", 0);
    is(&run(&guest, "export X=1; y='a b'; cd /usr; f() { echo f$1; }; (exit 7)").await, "", 7);
    is(&run(&guest, "echo $? $X $y; f 2; pwd").await, "0 1 a b\nf2\n/usr".replacen('0', "7", 1).as_str(), 0);
    is(&run(&guest, "printf '\\e[31mred\\e[0m 10%%\\r100%%\\n\\n'").await, "100%10%", 0);
    is(&run(&guest, "ls --color=always -d /usr/bin; grep --color=always b <<< abc").await, "/usr/bin\nabc", 0);
    is(&run(&guest, "for i in 1 2\ndo\n\techo $i\ndone\n\n# a remark").await, "1\n2", 0);
    is(&run(&guest, "cat <<'E' | tr a-z A-Z\nit's \"$x\" é€😀\nE").await, "IT'S \"$X\" é€😀", 0);
    is(&run(&guest, "printf 'a\\xff\\xc3\\n\\xe2\\x82'; printf '\\xac'").await, "a\u{fffd}\u{fffd}\n€", 0);
    is(&run(&guest, "declare -A m=([k]=v); local z=1").await, "bash: local: can only be used in a function", 1);
    is(&run(&guest, "echo ${m[k]}; return 3").await, "v\nbash: return: can only `return' from a function or sourced script", 2);
    is(&run(&guest, "").await, "", 0);
    is(&run(&guest, "no-such-program").await, "bash: no-such-program: command not found", 127);
    is(&run(&guest, "tty >/dev/null && test -t 0 -a -t 1 && echo $TERM").await, "xterm-256color", 0);
    is(&run(&guest, "echo !! '!x' \"!$\"; history | grep -c '[_]next'").await, "!! !x !$\n0", 1);
    is(&run(&guest, "env | grep -ci '__arenite\\|PROMPT_COMMAND'").await, "0", 1);

    let console = run(&guest, "echo end").await["console"].clone();
    let last = json!({"ps1": "$ ", "command": "echo end", "output": "end"});
    assert_eq!(console.as_array().unwrap().last(), Some(&last));
    assert_eq!(console[0], json!({"ps1": "$ ", "command": "echo hi", "output": "hi"}));
}

#[tokio::test]
async fn nothing_that_a_command_does_to_its_shell_jams_it() {
    let guest = with_session().await;
    is(&run(&guest, "set -x; echo a").await, "++ echo a\na", 0);
    is(&run(&guest, "echo b; set +x").await, "++ echo b\nb\n++ set +x", 0);
    is(&run(&guest, "echo c").await, "c", 0);
    for command in ["echo \"unterminated", "echo 'unterminated", "if true", "$(", "cat <<E\nno end", ")", "case x in"] {
        let done = run(&guest, command).await;
        assert_eq!(done["status"], "completed", "{command}");
        is(&run(&guest, "echo fine").await, "fine", 0);
    }
    for (command, back) in [
        ("stty raw", "stty sane"),
        ("stty -echo -icanon -icrnl -onlcr -opost", "stty sane"),
        ("exec >/dev/null 2>&1", "exec >/dev/tty 2>&1"),
        ("exec 2>/dev/null", "exec 2>/dev/tty"),
        ("PS1='$(exit 3)new > '; PS2=; PS0=zero", "PS0="),
        ("PROMPT_COMMAND=", ":"),
        ("PROMPT_COMMAND='echo prompt'", "PROMPT_COMMAND="),
        ("unset PROMPT_COMMAND PS1 PS2 HISTCONTROL IFS", ":"),
        ("trap 'true dbg' DEBUG; trap 'true err' ERR; trap true INT", "trap - DEBUG ERR INT"),
        ("set -u; set -f; set -C; shopt -s extglob nullglob failglob", "set +ufC; shopt -u nullglob failglob"),
        ("set -o vi", "set -o emacs"),
        ("LC_ALL=POSIX; LANG=xx", "unset LC_ALL"),
        ("printf() { false; }; eval() { false; }; alias read=false cd=false", "unset -f printf eval; unalias -a"),
        ("set -x", "set +x"),
        ("sleep 77 &", "kill %1"),
        ("sleep 77 & kill -STOP $!", ":"),
        ("printf '\\e[?1049h\\e]0;'", ":"),
        ("umask 777; ulimit -f 0", "umask 022"),
        ("mkdir gone; cd gone; rmdir ../gone", "cd"),
        ("set -m; set -b; set -H", "set +H"),
        ("TMOUT=2", "TMOUT="),
        ("readonly PS1; readonly X=5; X=6", ":"),
        ("set +o emacs", ":"),
    ] {
        let done = run(&guest, command).await;
        assert_eq!(done["status"], "completed", "{command}: {done}");
        let next = run(&guest, "(exit 9)").await;
        assert_eq!((&next["status"], &next["exit_code"]), (&json!("completed"), &json!(9)), "{command}: {next}");
        run(&guest, back).await;
        let next = run(&guest, "echo fine").await;
        let last = next["output"].as_str().unwrap().lines().next_back();
        assert_eq!(last, Some("fine"), "{command}: {next}");
    }
}

#[tokio::test]
async fn a_session_outlives_its_shell() {
    let guest = with_session().await;
    run(&guest, "cd /usr; X=1").await;
    is(&run(&guest, "echo bye; exit 3").await, "bye", 3);
    is(&run(&guest, "pwd; echo [$X]").await, "/usr\n[]", 0);
    is(&run(&guest, "set -e; false; echo never").await, "", 1);
    is(&run(&guest, "exec echo replaced").await, "replaced", 0);
    is(&run(&guest, "exec <&-").await, "", 0);
    is(&run(&guest, "echo still").await, "still", 0);
    let body = json!({"id": "s", "command": "echo dying; kill -9 $$"});
    let (_, killed) = guest.call("POST", "/v1/shell/exec", body.to_string()).await;
    assert_eq!(killed["data"]["status"], "terminated");
    assert_eq!(killed["data"]["output"], "dying");
    assert!(killed["hint"].as_str().unwrap().contains("new shell"));
    is(&run(&guest, "echo still").await, "still", 0);
    // Commands that wait behind one that ends the shell run after it.
    let guest = Arc::new(guest);
    let calls = ["sleep 0.3; exit 5", "echo after"].map(|command| {
        let guest = Arc::clone(&guest);
        async move { run(&guest, command).await }
    });
    let [first, second] = calls;
    let (first, second) = tokio::join!(first, second);
    is(&first, "", 5);
    is(&second, "after", 0);
}

#[tokio::test]
async fn a_hundred_calls_at_once_get_their_own_answers() {
    let guest = Arc::new(with_session().await);
    let calls = (0..100).map(|n| {
        let guest = Arc::clone(&guest);
        tokio::spawn(async move {
            let done = run(&guest, &format!("sleep 0.0{}; echo out {n}; (exit {n})", n % 3)).await;
            is(&done, &format!("out {n}"), n);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let calls = (0..100).map(|n| {
        let guest = Arc::clone(&guest);
        tokio::spawn(async move {
            let done = exec(&guest, json!({"command": format!("N={n}; echo out $N; (exit $N)")})).await;
            is(&done, &format!("out {n}"), n);
            let again = json!({"id": done["session_id"], "command": "echo again $N"});
            is(&exec(&guest, again).await, &format!("again {n}"), 0);
            done["session_id"].to_string()
        })
    });
    let mut ids = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        ids.push(call.await.unwrap());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 100);
    let stats = guest.get("/v1/shell/sessions/stats").await;
    assert_eq!((&stats["total_sessions"], &stats["active_sessions"]), (&json!(101), &json!(101)));
    assert_eq!((&stats["max_sessions"], &stats["session_timeout"]), (&json!(128), &json!(3600)));

    // More than the maximum: sessions that calls created are closed first, the oldest of them first; those with background jobs
    // stay.
    let job = json!({"command": "sleep 4242 &"});
    let job = exec(&guest, job).await;
    for _ in 0..40 {
        exec(&guest, json!({"command": "true"})).await;
    }
    let list = guest.get("/v1/shell/sessions").await;
    let list = list["sessions"].as_object().unwrap();
    assert_eq!(list.len(), 128);
    assert!(list.contains_key("s") && list.contains_key(job["session_id"].as_str().unwrap()));
    assert_eq!(guest.processes("sleep 4242").len(), 1);
    let (status, _) = guest.call("DELETE", "/v1/shell/sessions", "").await;
    assert_eq!(status, StatusCode::OK);
    guest.gone("sleep 4242").await;
    eventually("all shells are gone", || guest.processes("bash").is_empty()).await;
    assert_eq!(guest.get("/v1/shell/sessions").await["sessions"], json!({}));
}

#[tokio::test]
async fn three_clocks() {
    let guest = with_session().await;
    // The call ends, and the command continues.
    let body = json!({"id": "s", "command": "echo begin; read x; echo got $x; (exit 4)", "timeout": 0.3});
    let early = exec(&guest, body).await;
    assert_eq!((&early["status"], &early["exit_code"]), (&json!("running"), &Value::Null));
    assert_eq!(early["output"], "begin");
    let view = guest.post("/v1/shell/view", json!({"id": "s"})).await;
    assert_eq!((&view["status"], &view["output"]), (&json!("running"), &json!("begin")));
    let wait = guest.post("/v1/shell/wait", json!({"id": "s", "max_wait_seconds": 0})).await;
    assert_eq!(wait["status"], "running");
    let list = guest.get("/v1/shell/sessions").await;
    assert_eq!(list["sessions"]["s"]["status"], "running");
    let write = json!({"id": "s", "input": "it", "press_enter": true});
    guest.post("/v1/shell/write", write).await;
    let wait = guest.post("/v1/shell/wait", json!({"id": "s", "seconds": 30})).await;
    assert_eq!(wait["status"], "completed");
    let view = guest.post("/v1/shell/view", json!({"id": "s"})).await;
    assert_eq!((&view["output"], &view["exit_code"]), (&json!("begin\nit\ngot it"), &json!(4)));
    // Typed input does not affect the next command, not even its `$?`.
    is(&run(&guest, "echo $?").await, "4", 0);

    let quiet = json!({"id": "s", "command": "echo one; sleep 0.4; echo two; sleep 1000", "no_change_timeout": 1});
    let quiet = exec(&guest, quiet).await;
    assert_eq!((&quiet["status"], &quiet["output"]), (&json!("no_change_timeout"), &json!("one\ntwo")));
    assert_eq!(guest.processes("sleep 1000").len(), 1);
    // A queued command behind it is abandoned, and that is reported.
    let behind = json!({"id": "s", "command": "echo never", "no_change_timeout": 1}).to_string();
    let (_, behind) = guest.call("POST", "/v1/shell/exec", behind).await;
    assert_eq!(behind["data"]["status"], "no_change_timeout");
    assert!(behind["hint"].as_str().unwrap().contains("not started"));
    let kill = guest.post("/v1/shell/kill", json!({"id": "s"})).await;
    assert_eq!((&kill["status"], &kill["exit_code"]), (&json!("terminated"), &Value::Null));
    guest.gone("sleep 1000").await;
    let view = guest.post("/v1/shell/view", json!({"id": "s"})).await;
    assert_eq!((&view["status"], &view["command"]), (&json!("terminated"), &quiet["command"]));
    is(&run(&guest, "echo alive").await, "alive", 0);
    let kill = guest.post("/v1/shell/kill", json!({"id": "s"})).await;
    assert_eq!((&kill["exit_code"], &kill["returncode"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_hard_timeout_stops_anything_and_the_session_lives_on() {
    let guest = with_session().await;
    let guest = Arc::new(guest);
    let commands = [
        "sleep 1001",
        "while :; do :; done",
        "while :; do sleep 1001; done",
        "read x",
        "x=$(sleep 1001)",
        "sleep 1001 | cat",
        "sleep 1001 & sleep 1001",
        "sh -c 'trap \"\" INT; sleep 1001; sleep 1001'",
        "bash -c 'trap \"\" INT TERM; while :; do sleep 1001; done'",
        "setsid -w sleep 1001",
        "stty raw -isig; sleep 1001; stty sane",
    ];
    let stops = commands.map(|command| {
        let guest = Arc::clone(&guest);
        tokio::spawn(async move {
            let first = exec(&guest, json!({"command": "X=kept; sleep 3600 &"})).await;
            let id = &first["session_id"];
            let body = json!({"id": id, "command": format!("echo begin; {command}"), "hard_timeout": 0.5});
            let hard = exec(&guest, body).await;
            assert_eq!((&hard["status"], &hard["exit_code"]), (&json!("hard_timeout"), &Value::Null), "{command}");
            assert!(hard["output"].as_str().unwrap().starts_with("begin"), "{command}: {hard}");
            let next = json!({"id": id, "command": "stty sane; echo $X"});
            is(&exec(&guest, next).await, "kept", 0);
        })
    });
    for stop in stops {
        stop.await.unwrap();
    }
    guest.gone("sleep 1001").await;
    let earlier = guest.processes("sleep 3600").len();
    assert_eq!(earlier, commands.len(), "an earlier background job was hit");
    // The shell itself ignores the signals: it is replaced.
    let body = json!({"id": "s", "command": "trap '' INT TERM HUP; cd /usr; while :; do :; done", "hard_timeout": 0.5});
    let (_, hard) = guest.call("POST", "/v1/shell/exec", body.to_string()).await;
    assert_eq!(hard["data"]["status"], "hard_timeout");
    assert!(hard["hint"].as_str().unwrap().contains("new shell"));
    is(&run(&guest, "echo [$X]").await, "[]", 0);
}

#[tokio::test]
async fn commands_of_any_length_and_output_of_any_length() {
    let guest = with_session().await;
    for length in [5_000, 300_000, 2_000_000] {
        let command = format!("x='{}é'\necho ${{#x}}", "a \"$\\\n!".repeat(length / 7));
        is(&run(&guest, &command).await, &(length / 7 * 7 + 1).to_string(), 0);
    }
    let too_long = json!({"id": "s", "command": "x".repeat(5 << 20)});
    assert_eq!(guest.refused("/v1/shell/exec", too_long).await, StatusCode::PAYLOAD_TOO_LARGE);

    let cut = run(&guest, "seq 100000").await;
    let text = cut["output"].as_str().unwrap();
    let (head, rest) = text.split_once("\n[... output truncated: ").unwrap();
    let (count, tail) = rest.split_once(" characters dropped here ...]\n").unwrap();
    assert_eq!((head.len(), tail.len(), count), (15_000, 15_000, "558894"));
    assert!(head.starts_with("1\n2\n") && tail.ends_with("\n100000"));
    let whole = exec(&guest, json!({"id": "s", "command": "seq 100000", "truncate": false})).await;
    assert_eq!(whole["output"].as_str().unwrap().len(), 588_894);

    let before = guest.peak_memory();
    let much = "echo first; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo last";
    let much = exec(&guest, json!({"id": "s", "command": much, "truncate": false})).await;
    let text = much["output"].as_str().unwrap();
    assert!(text.starts_with("first\nxxx") && text.ends_with("xxx\nlast") && text.contains("bytes dropped"));
    assert!(text.len() > 10 << 20 && text.len() < (10 << 20) + 200, "{}", text.len());
    assert!(guest.peak_memory() - before < 100 << 20, "{}", guest.peak_memory() - before);
}

#[tokio::test]
async fn background_jobs_do_not_hold_a_command_open() {
    let guest = with_session().await;
    let done = run(&guest, "sleep 1234 & (setsid sleep 1234 >/dev/null 2>&1 &); echo main").await;
    assert_eq!(done["status"], "completed");
    assert!(done["output"].as_str().unwrap().ends_with("main"));
    is(&run(&guest, "jobs -r | wc -l").await, "1", 0);
    eventually("both run", || guest.processes("sleep 1234").len() == 2).await;
    let noisy = run(&guest, "yes & sleep 0.1").await;
    assert_eq!(noisy["status"], "completed");
    let next = run(&guest, "kill %2; echo killed").await;
    assert!(next["output"].as_str().unwrap().contains("killed"));
    let (status, _) = guest.call("DELETE", "/v1/shell/sessions/s", "").await;
    assert_eq!(status, StatusCode::OK);
    guest.gone("sleep 1234").await;
    let (status, _) = guest.call("DELETE", "/v1/shell/sessions/s", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn directories_and_settings() {
    let guest = Guest::start().await;
    std::fs::create_dir(guest.dir.join("real")).unwrap();
    std::os::unix::fs::symlink("real", guest.dir.join("link")).unwrap();
    let (real, link) = (guest.dir.join("real"), guest.dir.join("link"));
    let (real, link) = (real.to_str().unwrap(), link.to_str().unwrap());
    let created = guest.call("POST", "/v1/shell/sessions/create", "").await.1;
    let home = guest.dir.to_str().unwrap();
    assert_eq!(created["data"]["working_dir"], home);
    for (keep, dir) in [(false, real), (true, link)] {
        let body = json!({"id": format!("keep {keep}"), "exec_dir": link, "preserve_symlinks": keep});
        let session = guest.post("/v1/shell/sessions/create", body).await;
        assert_eq!(session["working_dir"], dir);
        let body = json!({"id": session["session_id"], "command": "pwd"});
        is(&exec(&guest, body).await, dir, 0);
        let body = json!({"command": "pwd; pwd >&2", "exec_dir": link, "preserve_symlinks": keep});
        is(&exec(&guest, body).await, &format!("{dir}\n{dir}"), 0);
    }
    let id = created["data"]["session_id"].clone();
    let there = json!({"id": id, "command": "pwd", "exec_dir": real});
    is(&exec(&guest, there).await, real, 0);
    is(&exec(&guest, json!({"id": id, "command": "pwd"})).await, real, 0);
    is(&exec(&guest, json!({"id": id, "command": "pwd", "exec_dir": "/none"})).await, real, 0);
    is(&exec(&guest, json!({"command": "pwd", "exec_dir": "/none"})).await, home, 0);
    let strict = json!({"id": id, "command": "pwd", "exec_dir": "/none", "strict": true});
    assert_eq!(guest.refused("/v1/shell/exec", strict).await, StatusCode::BAD_REQUEST);

    guest.post("/v1/shell/sessions/update", json!({"id": id, "no_change_timeout": 1})).await;
    let quiet = exec(&guest, json!({"id": id, "command": "sleep 60"})).await;
    assert_eq!(quiet["status"], "no_change_timeout");
    let same = guest.post("/v1/shell/sessions/create", json!({"id": id, "exec_dir": "/usr"})).await;
    assert_eq!(same["working_dir"], real);
    for path in ["exec", "view", "wait", "write", "kill", "sessions/update"] {
        let body = json!({"id": "none", "command": "true", "input": "x", "press_enter": true});
        let status = guest.refused(&format!("/v1/shell/{path}"), body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    let bad = guest.refused("/v1/shell/sessions/create", json!({"id": "a\u{7}b"})).await;
    assert_eq!(bad, StatusCode::BAD_REQUEST);

    let request = Request::builder()
        .uri("/v1/shell/terminal-url")
        .header("host", "guest")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", "box.example")
        .header("x-forwarded-prefix", "/sandbox/demo")
        .body(Body::empty())
        .unwrap();
    let body = guest.send(request).await.into_body().collect().await.unwrap().to_bytes();
    let url: Value = serde_json::from_slice(&body).unwrap();
    let url = url["data"].as_str().unwrap().to_owned();
    let session = url.strip_prefix("https://box.example/sandbox/demo/terminal?session_id=").unwrap();
    is(&exec(&guest, json!({"id": session, "command": "echo here"})).await, "here", 0);
}

#[tokio::test]
async fn asynchronous_commands_queue_and_a_caller_may_leave() {
    let guest = with_session().await;
    for n in 1..=3 {
        let body = json!({"id": "s", "command": format!("sleep 0.2; echo {n} >>log"), "async_mode": true});
        let accepted = exec(&guest, body).await;
        assert_eq!((&accepted["status"], &accepted["output"]), (&json!("running"), &Value::Null));
    }
    let wait = guest.post("/v1/shell/wait", json!({"id": "s"})).await;
    assert_eq!(wait["status"], "completed");
    is(&run(&guest, "cat log").await, "1\n2\n3", 0);
    let call = run(&guest, "sleep 0.5; echo finished; touch finished");
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
    eventually("it goes on", || guest.dir.join("finished").exists()).await;
    guest.post("/v1/shell/wait", json!({"id": "s"})).await;
    let view = guest.post("/v1/shell/view", json!({"id": "s"})).await;
    assert_eq!((&view["output"], &view["status"]), (&json!("finished"), &json!("completed")));
}

#[tokio::test]
async fn events_bring_lines_as_they_come() {
    let guest = with_session().await;
    let command = "echo one; echo two; read x; printf 'got %s' $x; (exit 2)";
    let request = Request::builder()
        .method("POST")
        .uri("/v1/shell/exec")
        .header("host", "guest")
        .header("accept", "text/event-stream")
        .body(Body::from(json!({"id": "s", "command": command}).to_string()))
        .unwrap();
    let answer = guest.send(request).await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    let mut text = String::new();
    while !text.contains("two") {
        let frame = body.frame().await.unwrap().unwrap();
        text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
    }
    guest.post("/v1/shell/write", json!({"id": "s", "input": "it", "press_enter": true})).await;
    text += std::str::from_utf8(&body.collect().await.unwrap().to_bytes()).unwrap();
    let (mut output, mut end) = (String::new(), Value::Null);
    assert!(text.starts_with("event: status\ndata: {\"session_id\":\"s\",\"status\":\"running\"}\n\n"), "{text}");
    for event in text.split("\n\n").filter(|e| e.starts_with("event:")) {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        match name {
            "event: output" => output += data["output"].as_str().unwrap(),
            "event: status" => assert!(end.is_null()),
            "event: end" => end = data,
            other => panic!("{other}"),
        }
    }
    assert_eq!(output, "one\ntwo\nit\ngot it");
    is(&end, &output, 2);
    let view = Request::builder()
        .method("POST")
        .uri("/v1/shell/view")
        .header("host", "guest")
        .header("accept", "text/event-stream")
        .body(Body::from(json!({"id": "s"}).to_string()))
        .unwrap();
    let text = guest.send(view).await.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&text).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, ["status", "output", "end"], "{text}");
}
