use base64::Engine;
use serde_json::{Value, json};

use crate::samples::{pdf, row, word, workbook};
use crate::standalone::Guest;

pub(crate) async fn convert(guest: &Guest, uri: &str) -> Value {
    let (status, answer) = guest.call("POST", "/v1/util/convert_to_markdown", json!({"uri": uri}).to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn text(guest: &Guest, uri: &str) -> String {
    let answer = convert(guest, uri).await;
    assert_eq!(answer["success"], true, "{answer}");
    answer["data"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn files_become_markdown() {
    let guest = Guest::start().await;
    let files: [(&str, Vec<u8>, &str); 7] = [
        ("a page.html", b"<h1>Head</h1><p>some <b>words</b></p>".to_vec(), "# Head\n\nsome **words**\n"),
        ("a.pdf", pdf(&["one", "two"]), "one\n\ntwo\n"),
        ("a.docx", word("<w:p><w:r><w:t>text</w:t></w:r></w:p>"), "text\n"),
        ("a.xlsx", workbook(&[("S", &row(1, &["x", "y"]))]), "## S\n\n| x | y |\n| --- | --- |\n"),
        ("a.csv", b"x,y\n1,2\n".to_vec(), "| x | y |\n| --- | --- |\n| 1 | 2 |\n"),
        ("a.json", b"{\"a\": [1]}".to_vec(), "{\"a\": [1]}\n"),
        (
            "a.png",
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0".to_vec(),
            "# Image\n\n- Format: PNG\n- Size: 2 x 3 pixels, 29 bytes\n",
        ),
    ];
    for (name, bytes, expected) in files {
        std::fs::write(guest.dir.join(name), bytes).unwrap();
        let path = guest.dir.join(name).display().to_string();
        assert_eq!(text(&guest, &format!("file://{}", path.replace(' ', "%20"))).await, expected, "{name}");
        assert_eq!(text(&guest, &path).await, expected, "{name}");
    }
}

#[tokio::test]
async fn data_uris_become_markdown_by_their_type() {
    let guest = Guest::start().await;
    assert_eq!(text(&guest, "data:text/html;charset=iso-8859-2,%3Cp%3E%B3").await, "ł\n");
    assert_eq!(text(&guest, "data:,plain%20text").await, "plain text\n");
    let large = base64::engine::general_purpose::STANDARD.encode(pdf(&["x"; 2_000]));
    assert!(large.len() > 400_000);
    assert!(text(&guest, &format!("data:application/octet-stream;base64,{large}")).await.starts_with("x\n\nx\n"));
}

#[tokio::test]
async fn what_can_not_be_converted_says_why() {
    let guest = Guest::start().await;
    std::fs::write(guest.dir.join("b.docx"), b"PK\x03\x04nothing").unwrap();
    let broken = format!("file://{}/b.docx", guest.dir.display());
    for (uri, words) in [
        ("ftp://a.example/x", "no address that can be converted"),
        ("relative/path", "no address that can be converted"),
        ("", "no address that can be converted"),
        ("file://elsewhere.example/x", "no address that can be converted"),
        ("file:///no/such/file.pdf", "does not exist"),
        ("file:///", "directory"),
        ("file:///dev/zero", "not a regular file"),
        ("data:;base64,***", "not base64"),
        ("data:;base64,AAH/", "binary content"),
        (broken.as_str(), "not a readable"),
    ] {
        let answer = convert(&guest, uri).await;
        assert_eq!((&answer["success"], &answer["data"]), (&json!(false), &Value::Null), "{uri} {answer}");
        assert!(answer["message"].as_str().unwrap().contains(words), "{uri}: {answer}");
    }
    let (status, answer) = guest.call("POST", "/v1/util/convert_to_markdown", "{}").await;
    assert_eq!((status.as_u16(), &answer["detail"][0]["loc"]), (422, &json!(["body", "uri"])));
}

#[tokio::test]
async fn the_user_reads_what_the_user_may_read() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let guest = Guest::start_as("nobody").await;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&guest.dir, PermissionsExt::from_mode(0o755)).unwrap();
    for (name, mode, readable) in [("open.txt", 0o644, true), ("closed.txt", 0o600, false)] {
        let path = guest.dir.join(name);
        std::fs::write(&path, "words").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let answer = convert(&guest, &path.display().to_string()).await;
        assert_eq!(answer["success"], readable, "{answer}");
    }
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let guest = Guest::start().await;
    let calls = (0..12).map(|n| {
        let guest = &guest;
        async move { text(guest, &format!("data:text/html,<p>number {n}")).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer, &format!("number {n}\n"));
    }
    assert_eq!(guest.confined(), 0);
}
