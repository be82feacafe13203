use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use super::*;

/// A server that gives each path its head and body.
fn server(answers: Vec<(&'static str, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let path = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
            line.clear();
            while reader.read_line(&mut line).unwrap_or_default() > 2 {}
            let answer = answers.iter().find(|(of, _)| *of == path).map_or("404 X\r\ncontent-length: 0", |(_, answer)| answer);
            let (head, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
            // A client may leave.
            let _ = (&stream).write_all(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}").as_bytes());
        }
    });
    host
}

fn download(address: String, permitted: Downloads) -> Download {
    Download { address, sha256: None, permitted }
}

#[test]
fn an_address_gives_a_file_with_its_time_and_checksum() {
    let scratch = tempfile::tempdir().unwrap();
    let other = server(vec![("/x", "200 OK\r\ncontent-length: 1\n\nx".into())]);
    let host = server(vec![
        ("/a", "302 X\r\nlocation: /dir/file.txt\r\ncontent-length: 0".into()),
        ("/dir/file.txt", "200 OK\r\ncontent-length: 7\r\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\n\ncontent".into()),
        ("/loop", "302 X\r\nlocation: /loop\r\ncontent-length: 0".into()),
        ("/away", format!("302 X\r\nlocation: http://{other}/x\r\ncontent-length: 0")),
        ("/cut", "200 OK\r\ncontent-length: 70\n\ncontent".into()),
        ("/big", "200 OK\r\ncontent-length: 99000000000\n\ncontent".into()),
    ]);
    let hash = hex::encode(Sha256::digest(b"content"));
    let get = |path: &str, sha256: Option<&str>| {
        let to = scratch.path().join("file");
        let _ = std::fs::remove_file(&to);
        let wanted = Download { sha256: sha256.map(str::to_owned), ..download(format!("http://{host}{path}"), Downloads::Any) };
        fetch(&wanted, &to, &Meter::default()).map(|done| (done, to)).map_err(|error| error.reason)
    };
    let (done, path) = get("/a", Some(&hash)).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((done.sha256, meta.mtime(), meta.mode() & 0o7777), (hash.clone(), 784_111_777, 0o600));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "content");
    for (path, sha256, reason) in [
        ("/a", Some("0".repeat(64)), &*hash),
        ("/loop", None, "redirects more than"),
        ("/none", None, "404"),
        ("/cut", None, "broke off"),
        ("/big", None, "more than"),
        // A server that is named may not lead to another private one.
        ("/away", None, "not on the public internet"),
    ] {
        let error = get(path, sha256.as_deref()).unwrap_err();
        assert!(error.contains(reason), "{path}: {error}");
    }
}

#[test]
fn a_build_of_others_calls_public_addresses_only() {
    let scratch = tempfile::tempdir().unwrap();
    let host = server(vec![("/x", "200 OK\r\ncontent-length: 0".into())]);
    let loopback = format!("http://{host}/x");
    for address in [
        &*loopback,
        "http://localhost/x",
        "http://a.localhost./x",
        "http://[::1]/x",
        "http://10.0.0.1/x",
        "http://169.254.169.254/x",
        "https://user:password@a.example/x",
        "http:///x",
    ] {
        let wanted = download(address.to_owned(), Downloads::Public);
        assert!(fetch(&wanted, &scratch.path().join("x"), &Meter::default()).is_err(), "{address}");
    }
    let refused = fetch(&download(loopback, Downloads::Refused), &scratch.path().join("x"), &Meter::default());
    assert!(refused.unwrap_err().reason.contains("may not download"));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn files_are_named_by_the_path() {
    for (address, name) in [
        ("https://a.example/x/y.tar.gz?z=1/2", Some("y.tar.gz")),
        ("https://a.example/a%20b", Some("a b")),
        ("https://a.example/", None),
        ("https://a.example", None),
        ("https://a.example/x/..", None),
        ("https://a.example/x%2fy", None),
    ] {
        assert_eq!(file_name(address).as_deref(), name, "{address}");
    }
    assert!(is_address("HTTPS://a.example/x") && !is_address("ftp://a.example/x") && !is_address("https:x"));
    assert!(!is_address("https://a.example/x.git") && !is_address("https://a.example/x.git#v1"));
}
