//! The binary as people and scripts use it: help, errors with hints, exit codes, configuration. Nothing here needs root.

#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that is not as expected")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The binary, without variables of this environment that concern a server.
fn arenite(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arenite"));
    let ours = std::env::vars().filter(|(name, _)| name.starts_with("ARENITE_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).env("COLUMNS", "100");
    command
}

fn run(args: &[&str]) -> Output {
    arenite(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn stderr(output: &Output) -> &str {
    text(&output.stderr)
}

/// Every command's help is unchanged since its last review.
#[test]
fn golden_help() {
    let commands = [
        "",
        "serve",
        "create",
        "ls",
        "inspect",
        "top",
        "exec",
        "open",
        "demo",
        "cp",
        "logs",
        "set",
        "rm",
        "pause",
        "resume",
        "snapshot inspect",
        "snapshot export",
        "template",
        "template ls",
        "template inspect",
        "volume ls",
        "quarantine",
        "quarantine ls",
        "quarantine adopt",
        "quarantine rm",
        "tenant",
        "tenant create",
        "tenant ls",
        "tenant set",
        "tenant rm",
        "key",
        "key create",
        "key ls",
        "key rotate",
        "key revoke",
        "audit",
        "events",
        "webhook",
        "webhook create",
        "webhook ls",
        "webhook rm",
        "webhook test",
        "webhook deliveries",
        "webhook redeliver",
        "image",
        "image build",
        "image ls",
        "image rm",
        "image prune",
        "image inspect",
        "image history",
        "image pull",
        "image push",
        "image save",
        "image load",
        "vm",
        "vm build",
        "vm import",
        "vm list",
        "trajectory",
        "trajectory ls",
        "trajectory show",
        "trajectory export",
        "trajectory replay",
        "trajectory annotate",
        "trajectory annotations",
        "trajectory unannotate",
        "store",
        "store export",
        "store import",
        "doctor",
        "completions",
        "mcp",
        "rollout",
        "rollout run",
    ];
    let mut found = String::new();
    for command in commands {
        let mut words: Vec<&str> = command.split_whitespace().collect();
        words.push("--help");
        let output = run(&words);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        found += &format!("$ arenite {}\n\n{}\n", words.join(" "), text(&output.stdout));
    }
    compare("help.txt", &found);
}

/// Compares with a golden file; writes it when `ARENITE_BLESS` is set.
fn compare(name: &str, found: &str) {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/golden").join(name);
    if std::env::var_os("ARENITE_BLESS").is_some() {
        return std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(found.lines()).enumerate().find(|(_, (e, f))| e != f);
    assert!(
        expected == found,
        "{} is out of date, first at {differs:?}; if that is meant: cargo xtask openapi --bless",
        path.display()
    );
}

#[test]
fn mistakes_on_the_command_line_are_named_and_exit_with_2() {
    let mistakes: [(&[&str], &str); 10] = [
        (&["create", "Not_A_Name"], "lower-case letters, digits and inner hyphens"),
        (&["create", "--memory", "lots"], "512MiB"),
        (&["create", "--cpu", "0"], "number of cores"),
        (&["create", "--timeout", "1week"], "90s, 10m, 2h or 1d"),
        (&["create", "--label", "x"], "hint: write --label KEY=VALUE"),
        (&["create", "--env", "ARENITE_NOT_SET_HERE"], "hint: write --env ARENITE_NOT_SET_HERE=VALUE"),
        (&["cp", "a", "b"], "hint: write NAME:/PATH"),
        (&["cp", "demo:relative", "b"], "hint: write it as demo:/home/gem/relative"),
        (&["rm"], "<SANDBOXES>"),
        (&["ls", "--server", "127.0.0.1:8080"], "hint: write it as http://127.0.0.1:8080"),
    ];
    for (args, expected) in mistakes {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_server_every_client_command_says_how_to_start_one() {
    // A port that was free a moment ago; nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("http://127.0.0.1:{port}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let commands: [(&[&str], i32); 9] = [
        (&["ls"], 5),
        (&["create"], 5),
        (&["rm", "demo"], 5),
        (&["pause", "demo"], 5),
        (&["logs", "demo"], 5),
        (&["cp", path, "demo:/tmp/x"], 5),
        (&["trajectory", "ls"], 5),
        (&["exec", "demo", "--", "true"], 125),
        (&["exec", "demo"], 125),
    ];
    for (args, code) in commands {
        let output = arenite(args).env("ARENITE_SERVER", &server).output().unwrap();
        let expected = format!("error: no server answers at {server}\nhint: start one with: sudo arenite serve");
        assert!(stderr(&output).starts_with(&expected), "{args:?}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

fn config_file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("arenite.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = config_file(dir.path(), "prepared_slots = 3\ncreate_queue = 4\nmax_sandboxes = 5\nmemory_reserve = \"1GiB\"\n");
    let file = file.to_str().unwrap();
    let mut show = arenite(&["serve", "--show-config", "--config", file, "--prepared-slots", "1"]);
    let output = show.env("ARENITE_PREPARED_SLOTS", "2").env("ARENITE_CREATE_QUEUE", "2").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = text(&output.stdout);
    for line in [
        "prepared_slots = 1  # flag --prepared-slots".to_owned(),
        "create_queue = 2  # variable ARENITE_CREATE_QUEUE".to_owned(),
        format!("max_sandboxes = 5  # file {file}"),
        format!("memory_reserve = \"1GiB\"  # file {file}"),
        "listen = [\"127.0.0.1:8080\"]  # default".to_owned(),
        "# extra_ca is not set".to_owned(),
    ] {
        assert!(shown.lines().any(|l| l == line), "{line} is not in\n{shown}");
    }
    // The output is a file that gives the same configuration.
    let again = config_file(dir.path(), shown);
    let output = run(&["serve", "--show-config", "--config", again.to_str().unwrap()]);
    let values = |text: &str| text.lines().map(|l| l.split("  #").next().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(text(&output.stdout)), values(shown));
}

#[test]
fn the_old_name_of_prepared_slots_still_works() {
    let dir = tempfile::tempdir().unwrap();
    let file = config_file(dir.path(), "pool_size = 3\n");
    let shown = |arguments: &[&str]| text(&run(arguments).stdout).to_owned();
    let of_file = shown(&["serve", "--show-config", "--config", file.to_str().unwrap()]);
    assert!(of_file.contains("prepared_slots = 3  # file"), "{of_file}");
    let of_flag = shown(&["serve", "--show-config", "--pool-size", "1"]);
    assert!(of_flag.contains("prepared_slots = 1  # flag"), "{of_flag}");
}

#[test]
fn a_bad_configuration_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    for (content, expected) in [
        ("prepared_slots = 3\nprepared_slotz = 4\n", "line 2"),
        ("listen = \"127.0.0.1\"\n", "line 1"),
        ("\nmemory_reserve = \"lots\"\n", "512MiB"),
        ("prepared_slots = 3\nx = [\n", "line"),
    ] {
        let file = config_file(dir.path(), content);
        let output = run(&["serve", "--config", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{content}");
        assert!(stderr(&output).contains(expected), "{content}: {}", stderr(&output));
        assert!(stderr(&output).contains("arenite.toml"), "{}", stderr(&output));
    }
    let output = run(&["serve", "--config", "/does/not/exist.toml"]);
    assert!(stderr(&output).starts_with("error: could not read the configuration file /does/not/exist.toml"));
}

#[test]
fn a_bind_that_others_reach_is_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let output = run(&["serve", "--listen", "0.0.0.0:8080", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("error: listening on 0.0.0.0:8080"), "{}", stderr(&output));
    assert!(stderr(&output).contains("\nhint: "), "{}", stderr(&output));
    assert!(!data.exists());
}

#[test]
fn doctor_says_in_json_whether_sandboxes_can_be_made() {
    let output = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["checks"].as_array().unwrap().iter().any(|c| c["status"] == "missing");
    assert_eq!(report["ok"], !missing);
    assert_eq!(output.status.code(), Some(i32::from(missing)));
}

#[test]
fn an_image_without_an_imagefile_is_a_question_of_its_name() {
    if !rustix::process::geteuid().is_root() {
        let output = run(&["image", "build", "base"]);
        assert!(stderr(&output).contains("hint: put sudo before the command"), "{}", stderr(&output));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let output = run(&["image", "build", "tools", "--data-dir", data]);
    assert!(stderr(&output).contains("hint: name its directory: arenite image build tools PATH"), "{}", stderr(&output));
    // The question alone creates nothing.
    assert_eq!(
        text(&run(&["image", "ls", "--json", "--data-dir", data]).stdout).split_whitespace().collect::<String>(),
        r#"{"images":[]}"#
    );
    let output = run(&["image", "inspect", "base", "--data-dir", data]);
    assert!(stderr(&output).contains("image \"base\" is not built here\nhint: build it with: arenite image build base"));
    assert!(!Path::new(data).exists());
}

#[test]
fn a_rollout_names_the_faults_of_its_tasks_and_a_server_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = dir.path().join("tasks.jsonl");
    let out = dir.path().join("out");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("http://127.0.0.1:{port}");
    let rollout = || {
        let args = ["rollout", "run", tasks.to_str().unwrap(), "--agent", "true", "--out", out.to_str().unwrap()];
        arenite(&args).args(["--server", &server, "--patience", "0s"]).output().unwrap()
    };
    std::fs::write(&tasks, "{\"id\": \"a\"}\nno JSON\n{\"id\": \"a\"}\n").unwrap();
    let output = rollout();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    for expected in ["line 2: it is not JSON", "line 3: the id \"a\" is that of line 1 too", "hint: each line is a JSON object"] {
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert!(!out.exists());
    std::fs::write(&tasks, "{\"id\": \"a\"}\n").unwrap();
    let output = rollout();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let expected = format!("error: no server answers at {server}; waited 0 s\nhint: start one with: sudo arenite serve");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
}
