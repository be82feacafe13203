use std::fs;
use std::path::Path;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::guest::{Guest, Scratch, multipart};

#[tokio::test]
async fn uploads_go_where_they_are_told_in_either_order() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::create_dir(dir.path("d")).unwrap();
    let content = b"\x00\r\n--BOUND\xff";
    let file = ("file", Some("own name.bin"), &content[..]);
    for (path, expected) in [
        (Some(dir.path("a/b/f")), dir.path("a/b/f")),
        (Some(dir.path("d")), dir.path("d/own name.bin")),
        (Some(dir.path("new/")), dir.path("new/own name.bin")),
        (Some("rel/f".to_owned()), dir.path("rel/f")),
        (None, dir.path("own name.bin")),
    ] {
        let path = path.as_ref().map(|p| ("path", None, p.as_bytes()));
        for parts in [[path, Some(file)], [Some(file), path]] {
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            let (status, answer) = guest.upload(&parts).await;
            assert_eq!(status, StatusCode::OK);
            let data = &answer["data"];
            assert_eq!(
                (&data["file_path"], &data["file_size"], &data["success"]),
                (&json!(expected), &json!(content.len()), &json!(true)),
                "{answer}"
            );
            assert_eq!(fs::read(&expected).unwrap(), content);
            fs::remove_file(&expected).unwrap();
        }
    }
    for name in ["..", "a/..", "", "x\\.."] {
        let (status, answer) = guest.upload(&[("file", Some(name), b"x")]).await;
        assert!(status.is_client_error() || answer["data"]["error_type"] == "invalid_path", "{name:?}: {status} {answer}");
    }
    let (_, answer) = guest.upload(&[("file", Some("../../../escape"), b"x")]).await;
    assert_eq!(answer["data"]["file_path"], dir.path("escape"), "only the last part of a name counts");
    let (status, _) = guest.upload(&[("path", None, b"x")]).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (status, _) = guest.upload(&[file, file]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = guest.post("/v1/file/upload", "{}").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let mut names = dir.names("");
    names.retain(|n| !["a", "d", "rel", "new", "escape"].contains(&n.as_str()));
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn an_upload_larger_than_memory_streams_to_disk() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let size = 256 << 20;
    let file = dir.path("large");
    let body = multipart(&[("path", None, file.as_bytes()), ("file", Some("x"), b"HOLE")]);
    let hole = body.windows(4).position(|w| w == b"HOLE").unwrap();
    let mut connection = guest.connect().await;
    let head = format!(
        "POST /v1/file/upload HTTP/1.1\r\nhost: guest\r\ncontent-type: multipart/form-data; boundary=BOUNDARY\r\ncontent-length: {}\r\n\r\n",
        body.len() - 4 + size
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(&body[..hole]).await.unwrap();
    let chunk: Vec<u8> = (0..1 << 20).map(|n: usize| (n * 31 % 251) as u8).collect();
    for _ in 0..size / chunk.len() {
        connection.write_all(&chunk).await.unwrap();
    }
    connection.write_all(&body[hole + 4..]).await.unwrap();
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(fs::metadata(&file).unwrap().len(), size as u64);
    // A download is streamed too.
    let io = TokioIo::new(guest.connect().await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(format!("/v1/file/download?path={file}")).header("host", "guest");
    let mut body = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap().into_body();
    let mut at = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        let from = at % chunk.len();
        let expected = chunk[from..].iter().chain(&chunk);
        assert!(data.iter().eq(expected.take(data.len())), "at {at}");
        at += data.len();
    }
    assert_eq!(at, size);
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 64 << 10, "peak memory {peak} KiB");
}

/// Waits until the guest has noticed that a connection is gone: it has no file of the directory open any more.
async fn no_file_open(guest: &Guest, dir: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let links = fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap();
        let open = links.flatten().filter_map(|l| fs::read_link(l.path()).ok()).any(|target| target.starts_with(dir));
        if !open {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "a file is still open");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_off_leaves_nothing() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    fs::write(&file, "precious").unwrap();
    let new = dir.path("new/deep/f");
    for path in [&file, &new] {
        let body = multipart(&[("path", None, path.as_bytes()), ("file", Some("x"), &[b'x'; 200_000])]);
        let head = format!(
            "POST /v1/file/upload HTTP/1.1\r\nhost: guest\r\ncontent-type: multipart/form-data; boundary=BOUNDARY\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        for cut in [10, 100, 250, 100_000, body.len() - 20, body.len() - 1] {
            let mut connection = guest.connect().await;
            connection.write_all(head.as_bytes()).await.unwrap();
            connection.write_all(&body[..cut]).await.unwrap();
            // Long enough to read what was sent, which may include the end of the form, but not of the body.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            drop(connection);
        }
    }
    // The guest's single thread answers calls in order of arrival: this one comes after it noticed the ends above.
    no_file_open(&guest, &dir.0).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(dir.names(""), ["f"]);
}

#[tokio::test]
async fn downloads_have_ranges_and_http_errors() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f.bin");
    fs::write(&file, b"0123456789").unwrap();
    let path = format!("/v1/file/download?path={file}");
    let (status, headers, body) = guest.get(&path, &[]).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, &b"0123456789"[..]));
    assert_eq!(headers["content-type"], "application/octet-stream");
    assert_eq!(headers["content-length"], "10");
    assert!(headers["content-disposition"].to_str().unwrap().contains("f.bin"));
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let (status, headers, body) = guest.get(&path, &[("range", "bytes=2-4")]).await;
    assert_eq!(
        (status, &headers["content-range"], &body[..]),
        (StatusCode::PARTIAL_CONTENT, &"bytes 2-4/10".parse().unwrap(), &b"234"[..])
    );
    let (status, _, body) = guest.get(&path, &[("range", "bytes=-2"), ("if-range", &tag)]).await;
    assert_eq!((status, &body[..]), (StatusCode::PARTIAL_CONTENT, &b"89"[..]));
    let (status, _, body) = guest.get(&path, &[("range", "bytes=-2"), ("if-range", "\"other\"")]).await;
    assert_eq!((status, body.len()), (StatusCode::OK, 10));
    let (status, headers, _) = guest.get(&path, &[("range", "bytes=10-")]).await;
    assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(headers["content-range"], "bytes */10");
    let head = Request::head(&path).header("host", "guest").body(Full::default()).unwrap();
    let (status, headers, body) = guest.send(head).await.unwrap();
    assert_eq!((status, &headers["content-length"], body.len()), (StatusCode::OK, &"10".parse().unwrap(), 0));
    fs::write(&file, b"").unwrap();
    let (status, headers, body) = guest.get(&path, &[("range", "bytes=0-")]).await;
    assert_eq!((status, headers.get("content-range").is_some(), body.len()), (StatusCode::RANGE_NOT_SATISFIABLE, true, 0));
    assert_eq!(guest.get(&path, &[]).await.0, StatusCode::OK);
    let (status, _, body) = guest.get("/v1/file/download?path=/proc/version", &[]).await;
    assert!(status == StatusCode::OK && body.starts_with(b"Linux"), "files of /proc say that they are empty");
    for (query, expected) in [
        (format!("path={}", dir.path("missing")), StatusCode::NOT_FOUND),
        (format!("path={}", dir.path("")), StatusCode::BAD_REQUEST),
        ("path=".to_owned(), StatusCode::BAD_REQUEST),
        (String::new(), StatusCode::UNPROCESSABLE_ENTITY),
        (format!("path={file}&change_policy=never"), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let (status, _, body) = guest.get(&format!("/v1/file/download?{query}"), &[]).await;
        assert_eq!(status, expected, "{query}");
        let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["success"], false);
        assert!(answer["message"].is_string(), "{query}: {answer}");
    }
}

#[tokio::test]
async fn a_file_that_changes_under_a_download_breaks_it_when_asked() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    let content = vec![b'x'; 64 << 20];
    for (policy, breaks) in [("abort", true), ("ignore", false)] {
        fs::write(&file, &content).unwrap();
        let mut connection = guest.connect().await;
        let request = format!(
            "GET /v1/file/download?path={file}&change_policy={policy} HTTP/1.1\r\nhost: guest\r\nconnection: close\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 15];
        connection.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        // Another file replaces this one, while most of the first is still to be sent.
        fs::write(dir.path("new"), "y").unwrap();
        fs::rename(dir.path("new"), &file).unwrap();
        let mut rest = Vec::new();
        let _ = connection.read_to_end(&mut rest).await;
        assert_eq!(rest.len() < content.len(), breaks, "{policy}: {} bytes", rest.len());
    }
}
