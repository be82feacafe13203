//! The protocol as a client in a sandbox sees it, with real keys.

use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::wire::{Reader, put_string};
use crate::{AgentKey, HostKey, KeyError, Keyring, Outcome, PrivateKey, SignDecision, serve};

const ED25519: &str = include_str!("../tests/keys/ed25519");
const P256: &str = include_str!("../tests/keys/ecdsab256");
const P256_SHORT: &str = include_str!("../tests/keys/ecdsab256short");
const P384: &str = include_str!("../tests/keys/ecdsab384");
const P521_SHORT: &str = include_str!("../tests/keys/ecdsab521short");
const RSA_2048: &str = include_str!("../tests/keys/rsab2048");
const RSA_4096: &str = include_str!("../tests/keys/rsab4096");
const RSA_1024: &str = include_str!("../tests/keys/rsab1024");
const DSA: &str = include_str!("../tests/keys/dsa");
const ENCRYPTED: &str = include_str!("../tests/keys/encrypted");
const PEM: &str = include_str!("../tests/keys/pem");
const PUBLIC: [(&str, &str); 6] = [
    (ED25519, include_str!("../tests/keys/ed25519.pub")),
    (P256, include_str!("../tests/keys/ecdsab256.pub")),
    (P384, include_str!("../tests/keys/ecdsab384.pub")),
    (P521_SHORT, include_str!("../tests/keys/ecdsab521short.pub")),
    (P256_SHORT, include_str!("../tests/keys/ecdsab256short.pub")),
    (RSA_4096, include_str!("../tests/keys/rsab4096.pub")),
];
const SESSION: [u8; 32] = [7; 32];
const FAILURE: &[u8] = &[5];
const SUCCESS: &[u8] = &[6];

fn key(text: &str) -> PrivateKey {
    PrivateKey::from_openssh(text).unwrap()
}

/// The secrets of a sandbox: name, private key, and host keys.
#[derive(Default)]
struct Secrets {
    keys: Mutex<Vec<(&'static str, &'static str, Vec<String>)>>,
    decided: Mutex<Vec<SignDecision>>,
}

impl Secrets {
    fn new(keys: &[(&'static str, &'static str, &[&str])]) -> Self {
        let owned = |line: &&str| (*line).to_owned();
        let keys = keys.iter().map(|(name, key, hosts)| (*name, *key, hosts.iter().map(owned).collect()));
        Self { keys: Mutex::new(keys.collect()), ..Self::default() }
    }

    fn last(&self) -> SignDecision {
        self.decided.lock().unwrap().last().unwrap().clone()
    }
}

impl Keyring for Secrets {
    async fn keys(&self) -> Vec<AgentKey> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |(name, text, host_keys): &(&str, &str, Vec<String>)| AgentKey {
            secret: (*name).to_owned(),
            hosts: vec!["git.example:2222".to_owned()],
            host_keys: host_keys.iter().map(|line| HostKey::parse(line).unwrap()).collect(),
            key: key(text),
        };
        keys.iter().map(read).collect()
    }

    async fn admit(&self) {}

    async fn run<T: Send + 'static>(&self, sign: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        Some(sign())
    }

    fn decided(&self, decision: SignDecision) {
        self.decided.lock().unwrap().push(decision);
    }
}

fn strings(kind: u8, strings: &[&[u8]]) -> Vec<u8> {
    let mut message = vec![kind];
    strings.iter().for_each(|bytes| put_string(&mut message, bytes));
    message
}

/// The data that a client signs to log in.
fn login(session: &[u8], user: &str, algorithm: &str, key: &PrivateKey) -> Vec<u8> {
    let mut data = Vec::new();
    put_string(&mut data, session);
    data.extend(strings(50, &[user.as_bytes(), b"ssh-connection", b"publickey"]));
    data.push(1);
    put_string(&mut data, algorithm.as_bytes());
    put_string(&mut data, key.public().blob());
    data
}

fn host_bound(session: &[u8], key: &PrivateKey, host: &PrivateKey) -> Vec<u8> {
    let mut data = Vec::new();
    put_string(&mut data, session);
    data.extend(strings(50, &[b"git", b"ssh-connection", b"publickey-hostbound-v00@openssh.com"]));
    data.push(1);
    for part in [key.public().algorithm().as_bytes(), key.public().blob(), host.public().blob()] {
        put_string(&mut data, part);
    }
    data
}

fn sign(key: &PrivateKey, data: &[u8], flags: u32) -> Vec<u8> {
    let mut message = strings(13, &[key.public().blob(), data]);
    message.extend(flags.to_be_bytes());
    message
}

fn bind(host: &PrivateKey, session: &[u8], is_forwarded: bool) -> Vec<u8> {
    let algorithm = if host.public().algorithm() == "ssh-rsa" { "rsa-sha2-512" } else { host.public().algorithm() };
    let signature = host.sign(algorithm, session).unwrap();
    let mut message = strings(27, &[b"session-bind@openssh.com", host.public().blob(), session, &signature]);
    message.push(u8::from(is_forwarded));
    message
}

/// A line of `known_hosts` with the public part of a key of [`PUBLIC`].
fn public_line(private: &str) -> &'static str {
    PUBLIC.iter().find(|(text, _)| *text == private).unwrap().1
}

async fn exchange(stream: &mut DuplexStream, message: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    put_string(&mut framed, message);
    stream.write_all(&framed).await.unwrap();
    read(stream).await
}

async fn read(stream: &mut DuplexStream) -> Vec<u8> {
    let length = stream.read_u32().await.unwrap() as usize;
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

/// The answers to messages on one connection.
async fn answers(secrets: &Secrets, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut client, server) = duplex(1 << 20);
    let talk = async move {
        let mut answers = Vec::new();
        for message in messages {
            answers.push(exchange(&mut client, message).await);
        }
        answers
    };
    tokio::join!(talk, serve(server, secrets)).0
}

/// Whether the last answer is a signature of the data by the key.
fn is_signature(answer: &[u8], key: &PrivateKey, data: &[u8]) -> bool {
    let mut reader = Reader::new(answer);
    reader.byte() == Some(14) && reader.string().is_some_and(|signature| key.public().verifies(data, signature))
}

#[test]
fn keys_of_openssh_are_read() {
    for (private, public) in PUBLIC {
        let (key, line) = (key(private), HostKey::parse(public).unwrap());
        assert_eq!(key.public(), line.key());
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }
    // As editors and terminals change it.
    for text in [ED25519.trim_end().to_owned(), ED25519.replace('\n', "\r\n"), format!("\n{ED25519}\n")] {
        assert_eq!(key(&text).public(), key(ED25519).public());
    }
}

#[test]
fn other_keys_are_refused_with_a_reason() {
    let refused = |text: &str| PrivateKey::from_openssh(text).unwrap_err();
    assert_eq!(refused(ENCRYPTED), KeyError::Encrypted);
    assert_eq!(refused(RSA_1024), KeyError::RsaBits { bits: 1024 });
    assert_eq!(refused(DSA), KeyError::Algorithm { algorithm: "ssh-dss".to_owned() });
    assert_eq!(refused(PEM), KeyError::OtherFormat { label: "RSA PRIVATE KEY".to_owned() });
    assert_eq!(refused(PUBLIC[0].1), KeyError::PublicInsteadOfPrivate);
    for text in ["", "password", "-----BEGIN", "{\"key\": 1}"] {
        assert_eq!(refused(text), KeyError::NoPrivateKey, "{text}");
    }
    let lines: Vec<&str> = ED25519.lines().collect();
    for text in [lines[..lines.len() - 1].join("\n"), lines[0].to_owned(), [lines[0], lines[lines.len() - 1]].join("\n")] {
        assert_eq!(refused(&text), KeyError::MalformedPrivate, "{text}");
    }
}

#[test]
fn changed_keys_never_become_others() {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD as BASE64;
    for text in [ED25519, P256, RSA_2048] {
        let lines: Vec<&str> = text.lines().collect();
        let bytes = BASE64.decode(lines[1..lines.len() - 1].concat()).unwrap();
        let step = if text == RSA_2048 { 41 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            let armored = |bytes: &[u8]| format!("{}\n{}\n{}", lines[0], BASE64.encode(bytes), lines[lines.len() - 1]);
            // The comment, and both check numbers, are free.
            if let Ok(other) = PrivateKey::from_openssh(&armored(&changed)) {
                assert_eq!(other.public(), key(text).public(), "byte {at}");
            }
            assert!(PrivateKey::from_openssh(&armored(&bytes[..at])).is_err(), "{at} bytes");
        }
    }
}

#[tokio::test]
async fn identities_are_those_of_the_secrets() {
    let secrets = Secrets::new(&[("one", ED25519, &[]), ("two", P384, &[])]);
    let answer = answers(&secrets, &[vec![11]]).await.remove(0);
    let mut reader = Reader::new(&answer);
    assert_eq!((reader.byte(), reader.number()), (Some(12), Some(2)));
    for (name, text) in [("one", ED25519), ("two", P384)] {
        assert_eq!((reader.string(), reader.text()), (Some(key(text).public().blob()), Some(name)));
    }
    assert!(reader.end().is_some());
    assert_eq!(answers(&Secrets::default(), &[vec![11]]).await, [[12, 0, 0, 0, 0]]);
}

#[tokio::test]
async fn each_type_of_key_signs_a_login() {
    for (text, algorithm, flags) in [
        (ED25519, "ssh-ed25519", 0),
        (P256, "ecdsa-sha2-nistp256", 0),
        (P256_SHORT, "ecdsa-sha2-nistp256", 0),
        (P384, "ecdsa-sha2-nistp384", 0),
        (P521_SHORT, "ecdsa-sha2-nistp521", 0),
        (RSA_2048, "rsa-sha2-256", 2),
        (RSA_4096, "rsa-sha2-512", 4),
    ] {
        let secrets = Secrets::new(&[("deploy", text, &[])]);
        let data = login(&SESSION, "git", algorithm, &key(text));
        let answer = answers(&secrets, &[sign(&key(text), &data, flags)]).await.remove(0);
        assert!(is_signature(&answer, &key(text), &data), "{algorithm}");
        let decision = secrets.last();
        assert_eq!(
            (decision.outcome, decision.secret.as_deref(), decision.user.as_deref()),
            (Outcome::Signed, Some("deploy"), Some("git"))
        );
        assert_eq!((decision.fingerprint, decision.host, decision.host_key), (key(text).public().fingerprint(), None, None));
    }
}

#[tokio::test]
async fn only_logins_by_the_key_are_signed() {
    let (own, rsa, other) = (key(ED25519), key(RSA_2048), key(P256));
    let good = login(&SESSION, "git", "ssh-ed25519", &own);
    let mut longer = good.clone();
    longer.push(0);
    let replaced = |from: &str, to: &str| {
        let text = |bytes: &str| strings(0, &[bytes.as_bytes()])[1..].to_vec();
        let (from, to) = (text(from), text(to));
        let at = good.windows(from.len()).position(|window| window == from).unwrap();
        [&good[..at], &to, &good[at + from.len()..]].concat()
    };
    let mut unsigned = good.clone();
    let at = good.windows(9).position(|window| window == b"publickey").unwrap() + 9;
    unsigned[at] = 0;
    let sshsig = [&b"SSHSIG"[..], &strings(0, &[b"git", b"", b"sha512", &[1; 64]])[1..]].concat();
    let secrets = Secrets::new(&[("deploy", ED25519, &[]), ("rsa", RSA_2048, &[])]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", sign(&own, b"", 0)),
        ("text", sign(&own, b"arbitrary data", 0)),
        ("a signature of a file or a commit", sign(&own, &sshsig, 0)),
        ("a digest", sign(&own, &[1; 64], 0)),
        ("cut off", sign(&own, &good[..good.len() - 1], 0)),
        ("with more behind it", sign(&own, &longer, 0)),
        ("another service", sign(&own, &replaced("ssh-connection", "ssh-userauth"), 0)),
        ("another method", sign(&own, &replaced("publickey", "hostbased"), 0)),
        ("without a user", sign(&own, &replaced("git", ""), 0)),
        ("a user that changes a terminal", sign(&own, &replaced("git", "g\x1b[2J"), 0)),
        ("a question and no login", sign(&own, &unsigned, 0)),
        ("a short session", sign(&own, &login(&[7; 19], "git", "ssh-ed25519", &own), 0)),
        ("a long session", sign(&own, &login(&[7; 65], "git", "ssh-ed25519", &own), 0)),
        ("another type", sign(&own, &login(&SESSION, "git", "rsa-sha2-256", &own), 2)),
        ("a certificate", sign(&own, &login(&SESSION, "git", "ssh-ed25519-cert-v01@openssh.com", &own), 0)),
        ("another key in it", sign(&own, &login(&SESSION, "git", "ssh-ed25519", &other), 0)),
        ("SHA-1", sign(&rsa, &login(&SESSION, "git", "ssh-rsa", &rsa), 0)),
        ("SHA-1 by its flags", sign(&rsa, &login(&SESSION, "git", "rsa-sha2-512", &rsa), 0)),
    ];
    for (what, message) in cases {
        assert_eq!(answers(&secrets, &[message]).await, [FAILURE], "{what}");
        assert_eq!(secrets.last().outcome, Outcome::NoLogin, "{what}");
    }
    let data = login(&SESSION, "git", "ecdsa-sha2-nistp256", &other);
    assert_eq!(answers(&secrets, &[sign(&other, &data, 0)]).await, [FAILURE]);
    let decision = secrets.last();
    assert_eq!(
        (decision.outcome, decision.secret, decision.fingerprint),
        (Outcome::UnknownKey, None, other.public().fingerprint())
    );
}

#[tokio::test]
async fn a_removed_key_signs_nothing_more_on_the_same_connection() {
    let secrets = Secrets::new(&[("deploy", ED25519, &[])]);
    let own = key(ED25519);
    let message = sign(&own, &login(&SESSION, "git", "ssh-ed25519", &own), 0);
    let (mut client, server) = duplex(1 << 20);
    let talk = async {
        assert_eq!(exchange(&mut client, &message).await[0], 14);
        secrets.keys.lock().unwrap().clear();
        assert_eq!(exchange(&mut client, &message).await, FAILURE);
        assert_eq!(exchange(&mut client, &[11]).await, [12, 0, 0, 0, 0]);
        drop(client);
    };
    tokio::join!(talk, serve(server, &secrets));
}

#[tokio::test]
async fn with_host_keys_only_logins_to_those_are_signed() {
    let (own, host, stranger) = (key(ED25519), key(P256), key(RSA_4096));
    let secrets = Secrets::new(&[("deploy", ED25519, &[public_line(P384), public_line(P256)])]);
    let message = sign(&own, &login(&SESSION, "git", "ssh-ed25519", &own), 0);
    let bound_message = sign(&own, &host_bound(&SESSION, &own, &host), 0);
    for good in [&message, &bound_message] {
        let all = answers(&secrets, &[bind(&host, &SESSION, false), good.clone()]).await;
        assert_eq!((&*all[0], all[1][0]), (SUCCESS, 14));
        let decision = secrets.last();
        assert_eq!((decision.outcome, decision.host.as_deref()), (Outcome::Signed, Some("git.example:2222")));
        assert_eq!(decision.host_key, Some(host.public().fingerprint()));
    }
    for (what, bindings, sign) in [
        ("not bound", vec![], &message),
        ("not bound, but the server is in the login", vec![], &bound_message),
        ("another server", vec![bind(&stranger, &SESSION, false)], &message),
        ("another session", vec![bind(&host, &[8; 32], false)], &message),
        ("bound twice", vec![bind(&stranger, &SESSION, false), bind(&host, &SESSION, false)], &message),
        ("bound twice to the same", vec![bind(&host, &SESSION, false), bind(&host, &SESSION, false)], &message),
    ] {
        let all = answers(&secrets, &[bindings, vec![sign.clone()]].concat()).await;
        assert_eq!(all.last().unwrap(), FAILURE, "{what}");
        assert_eq!(secrets.last().outcome, Outcome::WrongHost, "{what}");
    }
    let all = answers(&secrets, &[bind(&host, &SESSION, true), message.clone()]).await;
    assert_eq!((&*all[0], &*all[1], secrets.last().outcome), (SUCCESS, FAILURE, Outcome::Forwarded));
    let onward = [bind(&host, &SESSION, true), bind(&host, &SESSION, false), message.clone()];
    assert_eq!(answers(&secrets, &onward).await[1..], [FAILURE, FAILURE]);
    assert_eq!(secrets.last().outcome, Outcome::Forwarded);
    // The login is for another server than the one of the session.
    let elsewhere = sign(&own, &host_bound(&SESSION, &own, &stranger), 0);
    assert_eq!(answers(&secrets, &[bind(&host, &SESSION, false), elsewhere]).await[1], FAILURE);
}

#[tokio::test]
async fn a_false_binding_ends_signatures_also_without_host_keys() {
    let (own, host) = (key(ED25519), key(P256));
    let secrets = Secrets::new(&[("deploy", ED25519, &[])]);
    let message = sign(&own, &login(&SESSION, "git", "ssh-ed25519", &own), 0);
    let good = bind(&host, &SESSION, false);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let all = answers(&secrets, &[bad.clone(), message.clone()]).await;
        assert_eq!(all[0], FAILURE, "byte {at}");
        // Unless it is no binding at all.
        let is_binding = bad[0] == 27 && bad[1..29] == good[1..29];
        assert_eq!(all[1] == FAILURE, is_binding, "byte {at}");
    }
    assert_eq!(answers(&secrets, &[good, message]).await[1][0], 14);
    // Each type of host key.
    for text in [ED25519, P384, P521_SHORT, RSA_2048] {
        assert_eq!(answers(&secrets, &[bind(&key(text), &SESSION, false)]).await, [SUCCESS]);
        assert_eq!(answers(&secrets, &[bind(&key(text), &[7; 65], false)]).await, [FAILURE]);
    }
}

#[tokio::test]
async fn one_key_of_two_secrets_is_for_the_hosts_of_both() {
    let own = key(ED25519);
    let secrets = Secrets::new(&[("one", ED25519, &[public_line(P256)]), ("two", ED25519, &[public_line(P384)])]);
    let message = sign(&own, &login(&SESSION, "git", "ssh-ed25519", &own), 0);
    for (host, name) in [(P256, "one"), (P384, "two")] {
        assert_eq!(answers(&secrets, &[bind(&key(host), &SESSION, false), message.clone()]).await[1][0], 14);
        assert_eq!(secrets.last().secret.as_deref(), Some(name));
    }
    assert_eq!(answers(&secrets, &[bind(&key(RSA_4096), &SESSION, false), message.clone()]).await[1], FAILURE);
}

#[tokio::test]
async fn other_messages_fail_and_the_connection_goes_on() {
    let secrets = Secrets::new(&[("deploy", ED25519, &[])]);
    let messages: Vec<Vec<u8>> = (0..=255).filter(|kind| *kind != 11).map(|kind| vec![kind]).collect();
    let all = answers(&secrets, &[messages.clone(), vec![vec![11, 0], vec![11]]].concat()).await;
    assert!(all[..messages.len() + 1].iter().all(|answer| answer == FAILURE));
    assert_eq!(all.last().unwrap()[0], 12);
    let query = strings(27, &[b"query"]);
    assert_eq!(answers(&secrets, &[query]).await, [FAILURE]);
}

#[tokio::test(start_paused = true)]
async fn malformed_and_unfinished_messages_end_the_connection() {
    let secrets = Secrets::default();
    for bytes in [
        &[0u8, 0, 0, 0][..],
        &[0, 4, 0, 1, 11],
        &[0xff, 0xff, 0xff, 0xff],
        // It stops in the middle.
        &[0, 0],
        &[0, 0, 0, 2, 11],
        &[0, 4, 0, 0, 11, 11],
    ] {
        let (mut client, server) = duplex(1 << 20);
        let talk = async {
            client.write_all(bytes).await.unwrap();
            assert_eq!(read(&mut client).await, FAILURE, "{bytes:?}");
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "{bytes:?}");
        };
        tokio::join!(talk, serve(server, &secrets));
    }
    // The longest, one that the client never reads the answers of, and one that does nothing.
    assert_eq!(answers(&secrets, &[vec![1; 256 << 10], vec![11]]).await, [&[5][..], &[12, 0, 0, 0, 0]]);
    let (mut client, server) = duplex(16);
    let talk = async {
        let message = [0, 0, 0, 1, 11].repeat(100);
        assert!(client.write_all(&message).await.is_err());
    };
    tokio::join!(talk, async { serve(server, &secrets).await });
    let (_client, server) = duplex(16);
    serve(server, &secrets).await;
}
