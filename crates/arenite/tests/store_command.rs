//! `arenite store` and the setting `store`, on SQLite and on a real Postgres server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that is not as expected")]

#[allow(dead_code, reason = "the tests of control use more of it")]
#[path = "../../control/tests/support/cluster.rs"]
mod cluster;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use arenite_control::Sandbox;
use arenite_control::store;
use arenite_model::{SandboxId, SandboxSpec, SandboxState};
use cluster::Cluster;
use jiff::Timestamp;

fn run(args: &[&str], stdin: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arenite"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ARENITE_")) {
        command.env_remove(name);
    }
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(input.path(), stdin).unwrap();
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::from(input.into_file())).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command that must succeed, and returns what it prints.
fn succeed(args: &[&str], stdin: &str) -> String {
    let output = run(args, stdin, &[]);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// Runs a command that must fail, and returns its message.
fn fail(args: &[&str], stdin: &str) -> String {
    let output = run(args, stdin, &[]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    text(&output.stderr).to_owned()
}

fn sandbox(name: &str) -> Sandbox {
    let at = Timestamp::from_microsecond(1_700_000_000_123_456).unwrap();
    Sandbox {
        id: SandboxId::random(),
        tenant: "default".parse().unwrap(),
        name: name.parse().unwrap(),
        state: SandboxState::Running,
        spec: SandboxSpec::of_image("base".parse().unwrap()),
        template: None,
        pause_kind: None,
        reason: None,
        died: None,
        revision: 1,
        isolation: Vec::new(),
        origin: "test".to_owned(),
        created_at: at,
        last_used_at: at,
        state_since: at,
        expires_at: None,
        provenance: arenite_control::Provenance::default(),
        stages: Vec::new(),
        node: None,
    }
}

/// The archive of sandboxes with these names.
fn archive(names: &[&str]) -> String {
    let mut archive = Vec::new();
    let sandboxes = names.iter().map(|name| sandbox(name)).collect();
    store::archive::write(store::Contents { sandboxes, ..store::Contents::default() }, &mut archive).unwrap();
    text(&archive).to_owned()
}

#[test]
fn rows_move_from_sqlite_to_postgres_and_back() {
    let cluster = Cluster::start();
    let url = cluster::url(cluster.dir(), "postgres");
    let dir = tempfile::tempdir().unwrap();
    let (first, second, file) = (dir.path().join("first"), dir.path().join("second"), dir.path().join("rows.jsonl"));
    let [first_dir, second_dir, path] = [&first, &second, &file].map(|path| path.to_str().unwrap());
    succeed(&["store", "import", "-", "--data-dir", first_dir], &archive(&["one", "two"]));

    let exported = succeed(&["store", "export", "-", "--data-dir", first_dir], "");
    assert_eq!(exported.lines().count(), 4, "{exported}");
    assert!(exported.lines().last().unwrap().starts_with(r#"{"end":{"sandboxes":2,"sha256":""#), "{exported}");
    succeed(&["store", "import", "-", "--data-dir", first_dir, "--store", &url], &exported);
    let config = dir.path().join("arenite.toml");
    std::fs::write(&config, format!("store = {url:?}\ndata_dir = {first_dir:?}\n")).unwrap();
    succeed(&["store", "export", path, "--config", config.to_str().unwrap()], "");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), exported);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    succeed(&["store", "import", path, "--data-dir", second_dir], "");
    assert_eq!(succeed(&["store", "export", "-", "--data-dir", second_dir], ""), exported);
}

#[tokio::test]
async fn an_import_replaces_rows_only_on_demand_and_none_of_a_server() {
    let cluster = Cluster::start();
    let (url, database) = (cluster::url(cluster.dir(), "postgres"), cluster.address());
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    for (address, flag) in [(None, "sqlite"), (Some(&database), url.as_str())] {
        let with = |words: &[&'static str]| [&["store"], words, &["--data-dir", data, "--store", flag]].concat();
        succeed(&with(&["import", "-"]), &archive(&["one", "two"]));
        let export = with(&["export", "-"]);
        let exported = succeed(&export, "");
        let refused = fail(&with(&["import", "-"]), &exported);
        assert!(refused.contains("it holds 2 sandboxes already") && refused.contains("hint: --replace"), "{refused}");
        succeed(&with(&["import", "-", "--replace"]), &exported);

        let damaged = exported.replace("\"two\"", "\"six\"");
        let refused = fail(&with(&["import", "-", "--replace"]), &damaged);
        assert!(refused.contains("checksum"), "{refused}");
        let refused = fail(&with(&["import", "-", "--replace"]), &archive(&["one", "one"]));
        assert!(refused.contains("nothing was imported"), "{refused}");

        let server = store::open(dir.path(), address).await.unwrap();
        let refused = fail(&with(&["import", "-", "--replace"]), &exported);
        assert!(refused.contains("another server uses the store"), "{refused}");
        assert_eq!(succeed(&export, ""), exported, "an export works beside a server");
        server.insert(&sandbox("three")).await.unwrap();
        server.close().await;
    }
}

#[test]
fn a_store_that_is_missing_or_a_file_that_can_t_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("none");
    let data_dir = data.to_str().unwrap();
    let missing = fail(&["store", "export", "-", "--data-dir", data_dir], "");
    assert!(missing.contains("none/control.sqlite"), "{missing}");
    assert!(!data.exists(), "an export creates nothing");
    let missing = fail(&["store", "import", "/does/not/exist", "--data-dir", data_dir], "");
    assert!(missing.contains("could not open /does/not/exist"), "{missing}");
    let empty = fail(&["store", "import", "-", "--data-dir", data_dir], "");
    assert!(empty.contains("incomplete") && !data.exists(), "{empty}");
}

#[test]
fn the_password_of_a_database_is_never_printed() {
    let url = "postgres://arenite:s3cret@db.example/arenite";
    let bad = [
        "postgres://arenite:s3cret@db.example/arenite?sslmode=require",
        "postgres://arenite:s3cret@db.example:port/arenite",
        "mysql://arenite:s3cret@db.example/arenite",
    ];
    let shown = run(&["serve", "--show-config"], "", &[("ARENITE_STORE", url)]);
    assert!(text(&shown.stdout).contains("# store is set, and not shown  # variable ARENITE_STORE"), "{}", text(&shown.stdout));
    let mut outputs = vec![shown, run(&["serve", "--help"], "", &[("ARENITE_STORE", url)])];
    outputs.push(run(&["serve", "--validate", "--store", url], "", &[]));
    for url in bad {
        for command in [&["serve", "--validate"][..], &["store", "export", "-"]] {
            let refused = run(&[command, &["--store", url]].concat(), "", &[]);
            assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
            assert!(text(&refused.stderr).starts_with("error: store: "), "{}", text(&refused.stderr));
            outputs.push(refused);
        }
    }
    for output in outputs {
        assert!(!text(&output.stdout).contains("s3cret") && !text(&output.stderr).contains("s3cret"));
    }
}
