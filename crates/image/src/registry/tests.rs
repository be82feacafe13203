//! A registry of the tests: a plain HTTP server that answers as each case needs it. The end-to-end tests use a real one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arenite_model::ErrorCode;
use serde_json::json;

use super::*;
use crate::archive::{oci, sha256};
use crate::error::ImageError;
use crate::image::Image;
use crate::store::ImageStore;

/// One request, with its headers in lower case.
#[derive(Debug, Clone)]
struct Asked {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body after which the connection is closed.
    closed_after: Option<usize>,
    /// Keeps the connection open after the answer, without a further byte.
    hangs: bool,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), closed_after: None, hangs: false }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Handler = dyn Fn(&Asked) -> Option<Answer> + Send + Sync;

/// Answers what `special` does not from its parts, by path.
struct FakeRegistry {
    host: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl FakeRegistry {
    fn start(parts: BTreeMap<String, Vec<u8>>, special: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (parts, special, log): (_, Arc<Handler>, _) = (Arc::new(parts), Arc::new(special), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (parts, special, log) = (Arc::clone(&parts), Arc::clone(&special), Arc::clone(&log));
                // A client may close its connection at any time.
                std::thread::spawn(move || serve(&stream, &parts, &*special, &log));
            }
        });
        Self { host, asked }
    }

    fn reference(&self, rest: &str) -> Reference {
        format!("{}/{rest}", self.host).parse().unwrap()
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn blobs_asked(&self) -> usize {
        self.asked().iter().filter(|asked| asked.path.contains("/blobs/")).count()
    }
}

fn serve(stream: &TcpStream, parts: &BTreeMap<String, Vec<u8>>, special: &Handler, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink()).ok()?;
        let asked = Asked { method, path, headers };
        log.lock().unwrap().push(asked.clone());
        let answer = special(&asked).unwrap_or_else(|| part(parts, &asked));
        let mut head = format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut out = stream;
        out.write_all(head.as_bytes()).ok()?;
        out.write_all(b"\r\n").ok()?;
        let sent = answer.closed_after.unwrap_or(answer.body.len());
        out.write_all(&answer.body[..sent]).ok()?;
        if answer.hangs {
            // Until the client gives up.
            let _ = reader.read_line(&mut String::new());
        }
        if answer.closed_after.is_some() {
            return stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

fn part(parts: &BTreeMap<String, Vec<u8>>, asked: &Asked) -> Answer {
    if asked.path == "/v2/" {
        return Answer::new(200, "{}");
    }
    let Some(body) = parts.get(&asked.path) else {
        return Answer::new(404, r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown\u001b[31m"}]}"#);
    };
    let from =
        asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
            Answer::new(206, &body[from..]).header("content-range", range)
        }
        None => Answer::new(200, body.clone()),
    }
}

/// A plain layer with one file of this size that does not compress.
fn layer(name: &str, size: usize) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(size as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let content: Vec<u8> = (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    tar.append_data(&mut header, name, &content[..]).unwrap();
    tar.into_inner().unwrap()
}

/// The parts of an image `app:1` with these layers, and the digest of its manifest.
fn parts(layers: &[Vec<u8>]) -> (BTreeMap<String, Vec<u8>>, String) {
    let mut parts = BTreeMap::new();
    let mut add = |bytes: &[u8], media_type: &str| {
        let digest = format!("sha256:{}", sha256(bytes));
        parts.insert(format!("/v2/app/blobs/{digest}"), bytes.to_vec());
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let described: Vec<_> = layers.iter().map(|layer| add(layer, "application/vnd.oci.image.layer.v1.tar")).collect();
    let diffs: Vec<_> = described.iter().map(|layer| layer["digest"].clone()).collect();
    let config = json!({"architecture": oci::ARCHITECTURE, "os": "linux", "config": {"Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": diffs}});
    let config = add(config.to_string().as_bytes(), oci::CONFIG);
    let manifest = json!({"schemaVersion": 2, "mediaType": oci::MANIFEST, "config": config, "layers": described}).to_string();
    let digest = format!("sha256:{}", sha256(manifest.as_bytes()));
    let index = json!({"schemaVersion": 2, "mediaType": oci::INDEX, "manifests": [
        {"digest": format!("sha256:{}", "0".repeat(64)), "size": 1, "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": digest, "size": manifest.len(), "platform": {"os": "linux", "architecture": oci::ARCHITECTURE}},
    ]});
    parts.insert(format!("/v2/app/manifests/{digest}"), manifest.into_bytes());
    parts.insert("/v2/app/manifests/1".to_owned(), index.to_string().into_bytes());
    (parts, digest)
}

fn store(scratch: &tempfile::TempDir) -> ImageStore {
    ImageStore::open(scratch.path().join("store")).unwrap()
}

fn quick() -> RegistryOptions {
    let time = Duration::from_millis(700);
    RegistryOptions { answer_timeout: time, stall_timeout: time, ..RegistryOptions::default() }
}

fn pull_with(store: &ImageStore, reference: &Reference, options: &RegistryOptions) -> Result<Image, ImageError> {
    let request = PullRequest { reference, name: None, owner: None, options, cancel: &AtomicBool::new(false) };
    pull(store, &request, &mut |_| {})
}

fn try_pull(store: &ImageStore, reference: &Reference) -> Result<Image, ImageError> {
    pull_with(store, reference, &quick())
}

fn is_empty(store: &ImageStore, places: &[&str]) -> bool {
    places.iter().all(|place| fs::read_dir(store.dir().join(place)).unwrap().count() == 0)
}

const EVERYWHERE: [&str; 4] = ["images", "layers", "building", "downloads"];

#[test]
fn an_image_is_pulled_once_and_shares_its_layers() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (parts, digest) = parts(&[layer("a", 200_000), layer("b", 10), layer("a", 200_000)]);
    let registry = FakeRegistry::start(parts, |_| None);
    let image = try_pull(&store, &registry.reference("app:1")).unwrap();
    assert_eq!(image.name.as_str(), format!("{}/app:1", registry.host));
    assert_eq!(image.source.as_deref(), Some(&*format!("{}/app@{digest}", registry.host)));
    assert_eq!((image.layers.len(), image.config.env["A"].as_str()), (3, "b"));
    assert!(is_empty(&store, &["building", "downloads"]));
    assert_eq!(registry.blobs_asked(), 3, "a layer that is there twice is downloaded once");

    // By its digest, under another name: only the config is needed.
    let name = "other:2".parse().unwrap();
    let reference = registry.reference(&format!("app@{digest}"));
    let request =
        PullRequest { reference: &reference, name: Some(&name), owner: None, options: &quick(), cancel: &AtomicBool::new(false) };
    let mut events = Vec::new();
    let again = pull(&store, &request, &mut |event| events.push(event)).unwrap();
    assert_eq!((again.name, &again.digest), (name, &image.digest));
    let resolved = PullEvent::Resolved { digest, layers: 3, missing: 0, bytes: 0 };
    assert_eq!(events[..2], [resolved, PullEvent::Unpacking]);
    assert_eq!(events[2..], [PullEvent::Unpacked, PullEvent::Unpacked, PullEvent::Unpacked]);
    assert_eq!(registry.blobs_asked(), 4);
}

#[test]
fn an_interrupted_pull_goes_on_where_it_ended() {
    for knows_ranges in [true, false] {
        let scratch = tempfile::tempdir().unwrap();
        let store = store(&scratch);
        let big = layer("a", 1_000_000);
        let (parts, _) = parts(std::slice::from_ref(&big));
        let path = format!("/v2/app/blobs/sha256:{}", sha256(&big));
        let whole = big.clone();
        let times = AtomicBool::new(false);
        let registry = FakeRegistry::start(parts, move |asked| {
            if asked.path != path {
                return None;
            }
            if !times.swap(true, Ordering::Relaxed) {
                return Some(Answer { closed_after: Some(300_000), ..Answer::new(200, whole.clone()) });
            }
            (!knows_ranges).then(|| Answer::new(200, whole.clone()))
        });
        try_pull(&store, &registry.reference("app:1")).unwrap();
        let ranges: Vec<_> = registry.asked().iter().filter_map(|asked| asked.headers.get("range").cloned()).collect();
        assert_eq!(ranges, ["bytes=300000-"], "{knows_ranges}");
    }
}

#[test]
fn a_cancelled_pull_keeps_what_it_has_for_the_next_one() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let big = layer("a", 5_000_000);
    let (parts, _) = parts(std::slice::from_ref(&big));
    let registry = FakeRegistry::start(parts, |_| None);
    let reference = registry.reference("app:1");
    let cancel = AtomicBool::new(false);
    let request = PullRequest { reference: &reference, name: None, owner: None, options: &quick(), cancel: &cancel };
    let cancelled = pull(&store, &request, &mut |event| {
        // It was there from before: nothing.
        if matches!(event, PullEvent::Downloaded { bytes } if bytes > 0) {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(cancelled, Err(ImageError::Cancelled)), "{cancelled:?}");
    assert!(is_empty(&store, &["images", "layers", "building"]));
    let kept = fs::metadata(store.downloads().join(sha256(&big))).unwrap().len();
    assert!(kept > 0 && kept < big.len() as u64);
    try_pull(&store, &reference).unwrap();
    assert!(registry.asked().iter().any(|asked| asked.headers.get("range") == Some(&format!("bytes={kept}-"))));
    assert!(is_empty(&store, &["downloads"]));
}

#[test]
fn what_an_earlier_pull_left_is_not_trusted() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let big = layer("a", 100_000);
    let (parts, _) = parts(std::slice::from_ref(&big));
    let registry = FakeRegistry::start(parts, |_| None);
    for left in [vec![7; 50_000], vec![7; big.len()], vec![7; big.len() + 1]] {
        fs::write(store.downloads().join(sha256(&big)), left).unwrap();
        try_pull(&store, &registry.reference("app:1")).unwrap();
        store.remove(&registry.reference("app:1").name().unwrap(), &|_| false).unwrap();
    }
}

#[test]
fn a_registry_that_lies_gives_no_image() {
    let big = layer("a", 100_000);
    let other = layer("b", 100_000);
    let (good, digest) = parts(&[big.clone(), layer("c", 10)]);
    let blob = format!("/v2/app/blobs/sha256:{}", sha256(&big));
    let manifest = format!("/v2/app/manifests/{digest}");
    let config = good.keys().find(|path| good[*path].starts_with(b"{\"arch")).unwrap().clone();
    let longer = [&big[..], b"x"].concat();
    type Change = Box<dyn Fn(&Asked) -> Option<Answer> + Send + Sync>;
    let at = |path: &str, answer: fn(&[u8]) -> Answer, body: &[u8]| -> Change {
        let (path, body) = (path.to_owned(), body.to_vec());
        Box::new(move |asked| (asked.path == path).then(|| answer(&body)))
    };
    let plain: fn(&[u8]) -> Answer = |body| Answer::new(200, body);
    let page: fn(&[u8]) -> Answer = |_| Answer::new(200, "<html>").header("content-type", "text/html; charset=utf-8");
    let cases: Vec<(&str, Change, &str)> = vec![
        ("other bytes of the same size", at(&blob, plain, &other), "other bytes"),
        ("more bytes", at(&blob, plain, &longer), "more than"),
        ("fewer bytes", at(&blob, plain, &big[..1000]), "only a part"),
        ("a page for a layer", at(&blob, page, b""), "web page"),
        ("a page for a manifest", at("/v2/app/manifests/1", page, b""), "web page"),
        ("a page for the config", at(&config, page, b""), "web page"),
        ("another manifest", at(&manifest, plain, b"{}"), "other bytes"),
        ("another config", at(&config, plain, b"{}"), "other bytes"),
        ("no JSON", at("/v2/app/manifests/1", plain, b"<"), "malformed"),
        ("no manifest", at("/v2/app/manifests/1", plain, b"{\"schemaVersion\": 1}"), "version 1"),
        (
            "a digest of something else",
            at(
                "/v2/app/manifests/1",
                |_| Answer::new(200, "{}").header("docker-content-digest", format!("sha256:{}", "0".repeat(64))),
                b"",
            ),
            "other bytes",
        ),
        ("too long", at("/v2/app/manifests/1", plain, &vec![b' '; 5 << 20]), "more than"),
        ("unknown", at("/v2/app/manifests/1", |_| Answer::new(404, ""), b""), "no such image"),
        ("overloaded", at(&blob, |_| Answer::new(503, ""), b""), "failed"),
        ("limited", at("/v2/app/manifests/1", |_| Answer::new(429, ""), b""), "no more requests"),
        ("closed", at(&blob, |_| Answer::new(403, ""), b""), "refuses access"),
        ("a loop", at(&blob, |_| Answer::new(307, "").header("location", "/v2/app/blobs/x?again"), b""), "no such image"),
    ];
    for (what, change, expected) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let store = store(&scratch);
        let registry = FakeRegistry::start(good.clone(), change);
        let error = try_pull(&store, &registry.reference("app:1")).unwrap_err();
        assert!(matches!(error, ImageError::Registry { .. }) && error.to_string().contains(expected), "{what}: {error}");
        assert!(!error.to_string().contains('\u{1b}'), "{what}: {error:?}");
        assert!(is_empty(&store, &["images", "layers", "building"]), "{what}");
        let left = fs::read_dir(store.downloads()).unwrap().flatten().filter(|entry| entry.file_name() == *sha256(&big)).count();
        // What is right as far as it goes, or empty, stays for the next pull.
        let may_stay = ["fewer bytes", "a page for a layer", "overloaded", "closed", "a loop"].contains(&what);
        assert!(may_stay || left == 0, "{what}");
    }
}

#[test]
fn a_registry_that_hangs_is_given_up() {
    let big = layer("a", 100_000);
    let (good, _) = parts(std::slice::from_ref(&big));
    let blob = format!("/v2/app/blobs/sha256:{}", sha256(&big));
    for (what, path, sent) in [("in an answer", blob.as_str(), 10), ("before an answer", "/v2/app/manifests/1", 0)] {
        let scratch = tempfile::tempdir().unwrap();
        let store = store(&scratch);
        let (path, body) = (path.to_owned(), big.clone());
        let registry = FakeRegistry::start(good.clone(), move |asked| {
            let answer = Answer { closed_after: Some(sent), hangs: true, ..Answer::new(200, body.clone()) };
            (asked.path == path).then_some(answer)
        });
        let error = try_pull(&store, &registry.reference("app:1")).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout, "{what}: {error}");
        assert!(is_empty(&store, &["images", "layers", "building"]), "{what}");
    }
    // Nobody listens.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let error = try_pull(&store(&scratch), &format!("{closed}/app:1").parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("can't be reached"), "{error}");
}

fn config_with_password(scratch: &tempfile::TempDir, host: &str, password: &str) -> RegistryOptions {
    use base64::Engine;
    let file = scratch.path().join("config.json");
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("user:{password}"));
    fs::write(&file, json!({"auths": {host: {"auth": auth}}}).to_string()).unwrap();
    RegistryOptions { docker_config: Some(file), ..quick() }
}

#[test]
fn clients_sign_in_with_a_password_or_a_token_and_no_one_else_gets_them() {
    let scratch = tempfile::tempdir().unwrap();
    let big = layer("a", 1000);
    let (good, _) = parts(std::slice::from_ref(&big));
    let blob = format!("/v2/app/blobs/sha256:{}", sha256(&big));
    // Another host, which layers are redirected to.
    let elsewhere = FakeRegistry::start(BTreeMap::from([("/layer".to_owned(), big)]), |_| None);
    for scheme in ["Basic", "Bearer"] {
        let target = format!("http://{}/layer", elsewhere.host);
        let blob = blob.clone();
        let own = Arc::new(Mutex::new(String::new()));
        let host = Arc::clone(&own);
        let registry = FakeRegistry::start(good.clone(), move |asked| {
            let authorization = asked.headers.get("authorization").map(String::as_str).unwrap_or_default();
            if asked.path.starts_with("/token") {
                let is_known = authorization == "Basic dXNlcjpzZWNyZXQ=" && asked.path.contains("service=here");
                return Some(if is_known { Answer::new(200, r#"{"token": "ticket"}"#) } else { Answer::new(401, "") });
            }
            let expected = if scheme == "Basic" { "Basic dXNlcjpzZWNyZXQ=" } else { "Bearer ticket" };
            if authorization != expected {
                let realm = format!("{scheme} realm=\"http://{}/token\",service=\"here\"", host.lock().unwrap());
                return Some(Answer::new(401, "").header("www-authenticate", realm));
            }
            (asked.path == blob).then(|| Answer::new(307, "").header("location", target.clone()))
        });
        own.lock().unwrap().clone_from(&registry.host);
        let reference = registry.reference("app:1");
        let pull_as = |password: &str| {
            let scratch = tempfile::tempdir().unwrap();
            let options = config_with_password(&scratch, &registry.host, password);
            pull_with(&store(&scratch), &reference, &options).map(|image| image.layers.len())
        };
        assert_eq!(pull_as("secret").unwrap(), 1, "{scheme}");
        let wrong = pull_as("wrong").unwrap_err();
        assert!(wrong.code() == ErrorCode::Unauthorized && wrong.to_string().contains("refuses the"), "{scheme}: {wrong}");
        assert!(!format!("{wrong:?}").contains("wrong"), "{wrong:?}");
        let without = try_pull(&store(&scratch), &reference).unwrap_err();
        assert!(without.hint().unwrap().contains("docker login"), "{scheme}: {without}");
    }
    assert_eq!(elsewhere.asked().len(), 2);
    assert!(elsewhere.asked().iter().all(|asked| !asked.headers.contains_key("authorization")), "{:?}", elsewhere.asked());
}

#[test]
fn an_image_that_was_built_here_is_not_replaced_by_chance() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (good, _) = parts(&[layer("a", 10)]);
    let registry = FakeRegistry::start(good, |_| None);
    let reference = registry.reference("app:1");
    let name = reference.name().unwrap();
    let image = try_pull(&store, &reference).unwrap();
    // A second pull replaces what was pulled.
    try_pull(&store, &reference).unwrap();
    let lock = store.lock().unwrap();
    let layers = image.layers.iter().map(|layer| layer.digest.clone()).collect();
    store.publish(&lock, &name, image.digest, layers, image.config).unwrap();
    drop(lock);
    let error = try_pull(&store, &reference).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    let request =
        PullRequest { reference: &reference, name: Some(&name), owner: None, options: &quick(), cancel: &AtomicBool::new(false) };
    pull(&store, &request, &mut |_| {}).unwrap();
}

#[test]
fn a_push_sends_what_the_registry_lacks() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (good, _) = parts(&[layer("a", 100_000), layer("b", 10)]);
    let from = FakeRegistry::start(good, |_| None);
    let image = try_pull(&store, &from.reference("app:1")).unwrap();
    let has = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let known = Arc::clone(&has);
    let to = FakeRegistry::start(BTreeMap::new(), move |asked| match asked.method.as_str() {
        "HEAD" => Some(Answer::new(if known.lock().unwrap().contains(asked.path.rsplit('/').next()?) { 200 } else { 404 }, "")),
        "POST" => Some(Answer::new(202, "").header("location", "/v2/app/blobs/uploads/1?state=x")),
        "PUT" => {
            if let Some((_, digest)) = asked.path.split_once("digest=") {
                known.lock().unwrap().insert(digest.replace("%3A", ":"));
            }
            Some(Answer::new(201, ""))
        }
        _ => None,
    });
    let mut sent = Vec::new();
    let mut pushed = || {
        push(&store, &image.name, None, &to.reference("app:2"), &quick(), &AtomicBool::new(false), &mut |event| {
            let PushEvent::Layer { was_there, .. } = event;
            sent.push(!was_there);
        })
    };
    let digest = pushed().unwrap();
    assert_eq!(pushed().unwrap(), digest);
    assert_eq!(sent, [true, true, false, false]);
    assert!(to.asked().iter().any(|asked| asked.path == "/v2/app/manifests/2" && asked.headers["content-type"] == oci::MANIFEST));
    let unknown = "nothing".parse().unwrap();
    let nothing = push(&store, &unknown, None, &to.reference("app"), &quick(), &AtomicBool::new(false), &mut |_| {});
    assert!(matches!(nothing, Err(ImageError::NotFound { .. })));
    assert!(is_empty(&store, &["downloads"]));
}

#[test]
fn nothing_stays_of_a_layer_that_does_not_unpack() {
    let hostile = {
        let mut tar = layer("x", 10);
        // The name leads out.
        tar[..4].copy_from_slice(b"../x");
        let mut header = tar::Header::from_byte_slice(&tar[..512]).clone();
        header.set_cksum();
        tar[..512].copy_from_slice(header.as_bytes());
        tar
    };
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (good, _) = parts(&[hostile]);
    let registry = FakeRegistry::start(good, |_| None);
    let error = try_pull(&store, &registry.reference("app:1")).unwrap_err();
    assert!(error.to_string().contains("leads out"), "{error}");
    assert!(is_empty(&store, &EVERYWHERE));
}

#[test]
fn a_manifest_alone_gives_no_layer_of_another_tenant() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (one, two) = ("one".parse().unwrap(), "two".parse().unwrap());
    let pull_for = |owner, reference: &Reference, options: &RegistryOptions| {
        let request = PullRequest { reference, name: None, owner: Some(owner), options, cancel: &AtomicBool::new(false) };
        pull(&store, &request, &mut |_| {})
    };
    let secret = layer("secret", 300_000);
    let (good, _) = parts(std::slice::from_ref(&secret));
    let path = format!("/v2/app/blobs/sha256:{}", sha256(&secret));
    let registry = FakeRegistry::start(good.clone(), |_| None);
    pull_for(&one, &registry.reference("app:1"), &quick()).unwrap();
    assert_eq!(registry.blobs_asked(), 2);

    // Another registry names the layer, which it does not have.
    let without = good.iter().filter(|(name, _)| **name != path).map(|(name, part)| (name.clone(), part.clone())).collect();
    let hostile = FakeRegistry::start(without, |_| None);
    let error = pull_for(&two, &hostile.reference("app:1"), &quick()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
    // Nor when a part of it is here, from a pull of the first tenant that was interrupted.
    fs::write(super::download::file_of(&store.downloads(), Some(&one), &sha256(&secret)), &secret).unwrap();
    assert!(pull_for(&two, &hostile.reference("app:1"), &quick()).is_err());
    // Nor the operator.
    assert!(try_pull(&store, &hostile.reference("app:1")).is_err());
    assert_eq!(store.list().unwrap().len(), 1);

    // With its bytes, the tenant gets it, and it is on the disk once.
    let image = pull_for(&two, &registry.reference("app:1"), &quick()).unwrap();
    assert_eq!((image.owner, registry.blobs_asked()), (Some(two.clone()), 4));
    assert_eq!(fs::read_dir(store.dir().join("layers")).unwrap().count(), 1);
    // From then on, a manifest is enough.
    pull_for(&two, &registry.reference("app:1"), &quick()).unwrap();
    assert_eq!(registry.blobs_asked(), 5);
}

#[test]
fn mirrors_are_asked_first_and_never_with_credentials() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let (good, _) = parts(&[layer("a", 10)]);
    let origin = FakeRegistry::start(good.clone(), |_| None);
    let mirror = FakeRegistry::start(good, |_| None);
    let reference = origin.reference("app:1");
    let mirrors = |place: &str| vec![format!("{}/app={place}", origin.host).parse().unwrap()];
    let options = RegistryOptions { mirrors: mirrors(&format!("{}/app", mirror.host)), ..quick() };
    let image = pull_with(&store, &reference, &options).unwrap();
    assert!(image.source.unwrap().starts_with(&origin.host), "it has the name of its registry");
    assert!(origin.asked().is_empty() && !mirror.asked().is_empty());

    let before = mirror.asked().len();
    let credentials = Some(RegistryCredentials { user: "u".into(), password: "p".into() });
    pull_with(&store, &reference, &RegistryOptions { credentials, ..options }).unwrap();
    assert_eq!(mirror.asked().len(), before);
    pull_with(&store, &reference, &RegistryOptions { mirrors: mirrors("127.0.0.1:1/app"), ..quick() }).unwrap();
}

#[test]
fn a_registry_that_nobody_named_has_to_be_public() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let registry = FakeRegistry::start(parts(&[layer("a", 10)]).0, |_| None);
    let options = RegistryOptions { public_only: true, ..quick() };
    for host in [registry.host.as_str(), "localhost:1", "a.localhost", "10.0.0.1", "169.254.169.254"] {
        let error = pull_with(&store, &format!("{host}/app:1").parse().unwrap(), &options).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Forbidden, "{host}: {error}");
    }
    assert!(registry.asked().is_empty());
}

#[test]
fn a_pull_leaves_the_disk_its_reserve() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch);
    let registry = FakeRegistry::start(parts(&[layer("a", 10)]).0, |_| None);
    let options = RegistryOptions { keep_free_bytes: u64::MAX / 2, ..quick() };
    let error = pull_with(&store, &registry.reference("app:1"), &options).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Exhausted, "{error}");
    assert!(is_empty(&store, &EVERYWHERE));
}
