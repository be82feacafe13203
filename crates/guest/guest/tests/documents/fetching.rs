//! Fetching: not from private addresses, and through the proxy if there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::markdown::convert;
use crate::standalone::{Guest, eventually};

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// A proxy that answers for the hosts behind it, according to the requested path.
async fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let tunnels = Arc::new(AtomicUsize::new(0));
    let count = tunnels.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let connect = head(&mut stream).await;
                assert!(connect.starts_with("CONNECT "), "{connect}");
                count.fetch_add(1, Ordering::Relaxed);
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let request = head(&mut stream).await;
                let path = request.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
                let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
                let answer = match path.as_str() {
                    "/page" => {
                        let page = "<title>T</title><h1>Fetched</h1>";
                        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}", page.len())
                    }
                    "/there" => redirect("page"),
                    "/loop" => redirect("/loop"),
                    "/metadata" => redirect("http://169.254.169.254/latest/meta-data"),
                    "/guest" => redirect("http://localhost:8080/v1/sandbox"),
                    "/file" => redirect("file:///etc/passwd"),
                    "/cut" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort".to_owned(),
                    "/silent" => return std::future::pending().await,
                    _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (address, tunnels)
}

#[tokio::test]
async fn private_places_are_not_fetched() {
    let guest = Guest::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["2130706433", "127.1", "0x7f000001"] {
        let answer = convert(&guest, &format!("http://{host}:{port}/")).await;
        assert_eq!(answer["success"], false, "{host} {answer}");
        assert!(answer["message"].as_str().unwrap().contains("not on the public internet"), "{host} {answer}");
    }
    for uri in ["http://169.254.169.254/", "http://10.0.0.1/", "https://192.168.1.1/", "http://[fd00::1]/"] {
        assert!(convert(&guest, uri).await["message"].as_str().unwrap().contains("not on the public internet"), "{uri}");
    }
    let none = tokio::time::timeout(Duration::from_millis(200), listener.accept()).await;
    assert!(none.is_err(), "a connection was made");
}

/// The sandbox's own servers are fetched if a caller names loopback, but not its API, and not by a redirect from elsewhere.
#[tokio::test]
async fn servers_on_loopback_are_fetched() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let path = head(&mut stream).await.split(' ').nth(1).unwrap_or_default().to_owned();
            let answer = match path.as_str() {
                "/api" => {
                    "HTTP/1.1 302 Found\r\nLocation: http://localhost:8080/v1/sandbox\r\nContent-Length: 0\r\n\r\n".to_owned()
                }
                "/away" => "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "/there" => "HTTP/1.1 302 Found\r\nLocation: page\r\nContent-Length: 0\r\n\r\n".to_owned(),
                _ => "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 16\r\n\r\n<h1>Served</h1>\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    // A proxy that doesn't answer: requests to loopback bypass it.
    let guest = Guest::start_with("root", &[("HTTP_PROXY", "http://127.0.0.1:1")]).await;
    for host in ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"] {
        for path in ["page", "there"] {
            let answer = convert(&guest, &format!("http://{host}:{port}/{path}")).await;
            assert_eq!(answer["data"], "# Served\n", "{host}/{path} {answer}");
        }
    }
    for (uri, words) in [
        (format!("http://127.0.0.1:{port}/api"), "own API"),
        (format!("http://127.0.0.1:{port}/away"), "not on the public internet"),
        ("http://localhost:8080/v1/sandbox".to_owned(), "own API"),
        ("http://[::1]:9222/json".to_owned(), "own API"),
    ] {
        let answer = convert(&guest, &uri).await;
        assert!(answer["message"].as_str().unwrap().contains(words), "{uri} {answer}");
    }
}

#[tokio::test]
async fn a_proxy_is_used_and_its_redirects_are_checked() {
    let (address, tunnels) = proxy().await;
    let guest = Guest::start_with("root", &[("HTTP_PROXY", &address)]).await;
    // Names that don't resolve: only the proxy knows them.
    let site = "http://pages.arenite.invalid";
    for path in ["/page", "/there"] {
        let answer = convert(&guest, &format!("{site}{path}")).await;
        assert_eq!(answer["data"], "# Fetched\n", "{answer}");
    }
    for (path, words) in [
        ("/loop", "redirects more than"),
        ("/metadata", "not on the public internet"),
        ("/guest", "not on the public internet"),
        ("/file", "malformed"),
        ("/missing", "404"),
        ("/cut", "broke off"),
    ] {
        let answer = convert(&guest, &format!("{site}{path}?token=sekrit")).await;
        let message = answer["message"].as_str().unwrap();
        assert!(answer["success"] == false && message.contains(words), "{path} {answer}");
        assert!(!message.contains("sekrit"), "{answer}");
    }
    let before = tunnels.load(Ordering::Relaxed);
    // Requests to loopback bypass the proxy.
    assert!(convert(&guest, "http://127.0.0.1:1/").await["message"].as_str().unwrap().contains("could not fetch"));
    assert_eq!(tunnels.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_work() {
    let (address, tunnels) = proxy().await;
    let guest = Guest::start_with("root", &[("HTTP_PROXY", &address)]).await;
    let body = json!({"uri": "http://pages.arenite.invalid/silent"}).to_string();
    let request = Request::post("/v1/util/convert_to_markdown").header("host", "guest").body(Body::from(body)).unwrap();
    let left = tokio::select! {
        _ = guest.send(request) => false,
        () = async { while tunnels.load(Ordering::Relaxed) == 0 { tokio::time::sleep(Duration::from_millis(5)).await } } => true,
    };
    assert!(left && guest.confined() == 1);
    eventually("the reader is gone", || guest.confined() == 0).await;
}
