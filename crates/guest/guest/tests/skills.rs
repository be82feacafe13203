//! The skills service of a real guest.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../documents/tests/reading/samples.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate that reads documents")]
mod samples;
mod standalone;

use std::io::{Cursor, Write};
use std::path::Path;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use samples::package;
use standalone::Guest;

fn skill(name: &str) -> String {
    format!("---\nname: {name}\ndescription: What {name} does\n---\n\n# {name}\n\nDo it.\n")
}

/// Sends a registration: text parts, and optionally an archive with its file name.
async fn register(guest: &Guest, texts: &[(&str, &str)], archive: Option<(&str, Vec<u8>)>) -> (StatusCode, Value) {
    let mut body = Vec::new();
    for (name, value) in texts {
        body.extend(format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes());
    }
    if let Some((file, bytes)) = archive {
        let head = format!(
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file}\"\r\nContent-Type: application/zip\r\n\r\n"
        );
        body.extend(head.into_bytes());
        body.extend(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--B--\r\n");
    let request = Request::post("/v1/skills/register")
        .header("host", "guest")
        .header("content-type", "multipart/form-data; boundary=B")
        .body(Body::from(body))
        .unwrap();
    let answer = guest.send(request).await;
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e}: {bytes:?}")))
}

async fn registered(guest: &Guest, texts: &[(&str, &str)], archive: Option<(&str, Vec<u8>)>) -> Vec<Value> {
    let (status, answer) = register(guest, texts, archive).await;
    assert_eq!((status, &answer["success"]), (StatusCode::OK, &json!(true)), "{answer}");
    let list = answer["data"]["registered"].as_array().unwrap().clone();
    assert_eq!(answer["data"]["count"], list.len());
    list
}

async fn refused(guest: &Guest, texts: &[(&str, &str)], archive: Option<(&str, Vec<u8>)>) -> String {
    let (status, answer) = register(guest, texts, archive).await;
    assert_eq!((status, &answer["success"]), (StatusCode::BAD_REQUEST, &json!(false)), "{answer}");
    answer["message"].as_str().unwrap().to_owned()
}

async fn names(guest: &Guest, query: &str) -> Vec<String> {
    let data = guest.get(&format!("/v1/skills/metadatas{query}")).await;
    data["skills"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != ".socket" && n != ".config")
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_skill_from_an_archive_lives_through_all_calls() {
    let guest = Guest::start().await;
    let archive = package(&[("SKILL.md", &skill("summary")), ("scripts/run.sh", "echo hi")]);
    let list = registered(&guest, &[], Some(("any.zip", archive))).await;
    let path = guest.dir.join("skills/summary");
    assert_eq!(
        list,
        [json!({
            "name": "summary", "path": path.display().to_string(), "dependency_commands": [],
            "metadata": {"name": "summary", "description": "What summary does"},
        })]
    );
    assert!(path.join("scripts/run.sh").is_file());
    assert_eq!(entries(&guest.dir.join("skills")), ["summary"]);
    let data = guest.get("/v1/skills/summary/content").await;
    assert_eq!(data, json!({"name": "summary", "path": path.display().to_string(), "content": "# summary\n\nDo it.\n"}));
    std::fs::write(path.join("SKILL.md"), "---\nname: summary\n---\nNew words\n").unwrap();
    assert_eq!(guest.get("/v1/skills/summary/content").await["content"], "New words\n");
    let (status, answer) = guest.call("DELETE", "/v1/skills/summary", "").await;
    assert_eq!((status, &answer["data"]["name"]), (StatusCode::OK, &json!("summary")));
    assert!(path.is_dir() && names(&guest, "").await.is_empty());
    for (method, path) in [("DELETE", "/v1/skills/summary"), ("GET", "/v1/skills/summary/content")] {
        assert_eq!(guest.call(method, path, "").await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn paths_names_and_archives_of_several_skills() {
    let guest = Guest::start().await;
    let several = || package(&[("a/SKILL.md", &skill("alpha")), ("b/deep/SKILL.md", "no front matter"), ("README.md", "x")]);
    let dir = guest.dir.join("own");
    let own = dir.display().to_string();
    let list = registered(&guest, &[("path", &own)], Some(("two.zip", several()))).await;
    assert_eq!(list.iter().map(|s| &s["name"]).collect::<Vec<_>>(), ["alpha", "deep"]);
    assert_eq!(entries(&dir), ["a", "b"]);
    registered(&guest, &[("path", &own), ("name", "both")], Some(("two.zip", several()))).await;
    assert_eq!(entries(&dir), ["a", "b", "both"]);
    let one = || package(&[("inner/SKILL.md", &skill("gamma"))]);
    let list = registered(&guest, &[("path", "own"), ("name", "delta")], Some(("x.zip", one()))).await;
    assert_eq!((&list[0]["name"], &list[0]["path"]), (&json!("delta"), &json!(dir.join("delta").display().to_string())));
    guest.call("DELETE", "/v1/skills", "").await;
    // A skill that is already on disk, without an archive.
    let list = registered(&guest, &[("path", &own)], None).await;
    assert_eq!(list.iter().map(|s| s["name"].as_str().unwrap()).collect::<Vec<_>>(), ["alpha", "deep", "alpha", "deep", "gamma"]);
    assert_eq!(names(&guest, "").await, ["alpha", "deep", "gamma"]);
    assert_eq!(names(&guest, "?names=gamma,%20alpha,missing").await, ["alpha", "gamma"]);
    assert_eq!(names(&guest, "?names=").await.len(), 3);
    let (_, answer) = guest.call("DELETE", "/v1/skills", "").await;
    assert_eq!(answer["data"], json!({"count": 3, "names": ["alpha", "deep", "gamma"]}));
}

#[tokio::test]
async fn an_archive_replaces_the_skill_of_before_and_nothing_else() {
    let guest = Guest::start().await;
    let archive = |extra: &str| package(&[("SKILL.md", &skill("s")), (extra, "x")]);
    registered(&guest, &[], Some(("s.zip", archive("old")))).await;
    registered(&guest, &[], Some(("s.zip", archive("new")))).await;
    assert_eq!(entries(&guest.dir.join("skills/s")), ["SKILL.md", "new"]);
    std::fs::create_dir(guest.dir.join("skills/mine")).unwrap();
    std::fs::write(guest.dir.join("skills/mine/file"), "x").unwrap();
    std::fs::write(guest.dir.join("skills/file"), "x").unwrap();
    for name in ["mine", "file"] {
        assert!(refused(&guest, &[("name", name)], Some(("s.zip", archive("x")))).await.contains("exists"));
    }
    assert_eq!(entries(&guest.dir.join("skills")), ["file", "mine", "s"]);
}

#[tokio::test]
async fn hostile_archives_leave_nothing_behind() {
    let guest = Guest::start().await;
    let mut link = ZipWriter::new(Cursor::new(Vec::new()));
    link.start_file("SKILL.md", SimpleFileOptions::default()).unwrap();
    link.add_symlink("etc", "/etc", SimpleFileOptions::default()).unwrap();
    let link = link.finish().unwrap().into_inner();
    let mut bomb = ZipWriter::new(Cursor::new(Vec::new()));
    bomb.start_file("SKILL.md", SimpleFileOptions::default()).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..257).for_each(|_| bomb.write_all(&zeros).unwrap());
    let bomb = bomb.finish().unwrap().into_inner();
    let s = skill("s");
    for (archive, words) in [
        (package(&[("SKILL.md", &s), ("../../evil", "x")]), "outside"),
        (package(&[("SKILL.md", &s), ("/tmp/evil", "x")]), "outside"),
        (link, "link"),
        (bomb, "256 MiB"),
        (package(&[("README.md", "x")]), "no SKILL.md"),
        (package(&[("SKILL.md", "---\nname: [\n---\n")]), "front matter"),
        (package(&[("SKILL.md", "---\nname: ../../up\n---\n")]), "no name for a skill"),
        (package(&[("SKILL.md", "---\nname: never closed\n")]), "front matter"),
        (b"no archive".to_vec(), "zip archive"),
    ] {
        let message = refused(&guest, &[], Some(("x.zip", archive))).await;
        assert!(message.contains(words), "{words}: {message}");
        assert_eq!(entries(&guest.dir.join("skills")), [""; 0], "{words}");
    }
    assert!(names(&guest, "").await.is_empty());
    assert!(!Path::new("/tmp/evil").exists());
    for (texts, words) in [
        (&[][..], "give the part"),
        (&[("path", "/no/such/directory")], "could not look into"),
        (&[("path", "."), ("name", "a/b")], "no name for a skill"),
        (&[("path", ".")], "holds no SKILL.md"),
        (&[("other", "x")], "there is no part"),
    ] {
        let message = refused(&guest, texts, None).await;
        assert!(message.contains(words), "{words}: {message}");
    }
    let (status, _) = guest.call("POST", "/v1/skills/register", "{}").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn what_is_no_package_is_not_handed_to_an_installer() {
    let guest = Guest::start().await;
    let text = "---\nname: s\ndependencies:\n  python: [\"--index-url=http://x\", ok]\n  nodejs: [\"file:../x\"]\n---\n";
    let list = registered(&guest, &[], Some(("s.zip", package(&[("SKILL.md", text)])))).await;
    let commands = list[0]["dependency_commands"].as_array().unwrap();
    assert_eq!(commands.len(), 2);
    for command in commands {
        assert_eq!(command["success"], false);
        assert!(command["stderr"].as_str().unwrap().contains("nothing was installed"), "{command}");
    }
    // In any other form, they are free text for readers.
    let text = "---\nname: t\ndependencies: python>=3.8, pandas\n---\n";
    let list = registered(&guest, &[], Some(("t.zip", package(&[("SKILL.md", text)])))).await;
    assert_eq!(
        (&list[0]["dependency_commands"], &list[0]["metadata"]["dependencies"]),
        (&json!([]), &json!("python>=3.8, pandas"))
    );
}

#[tokio::test]
async fn skills_of_the_image_are_there_at_the_first_call() {
    let guest = Guest::start_with("root", &[("AIO_SKILLS_PATH", "{dir}/image")]).await;
    for name in ["one", "two"] {
        std::fs::create_dir_all(guest.dir.join("image").join(name)).unwrap();
        std::fs::write(guest.dir.join("image").join(name).join("SKILL.md"), skill(name)).unwrap();
    }
    assert_eq!(names(&guest, "").await, ["one", "two"]);
    guest.call("DELETE", "/v1/skills/one", "").await;
    assert_eq!(names(&guest, "").await, ["two"]);
    // Archives are extracted there too.
    let list = registered(&guest, &[], Some(("x.zip", package(&[("SKILL.md", &skill("three"))])))).await;
    assert_eq!(list[0]["path"], guest.dir.join("image/three").display().to_string());
}
