//! Passwords of Postgres, at a server that plays its part of the protocol.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use arenite_egress::{Protocol, Reason};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{PLACEHOLDER, Setting, VALUE, secret};
use crate::fake_resolver::A;
use crate::harness::{LIMIT, SANDBOX, SERVER, is_reset, read_exactly};
use crate::names::ask;
use crate::tls::{ServerAuthority, shake_hands};

const SSL: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];
const GSS: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 48];
const READY: &[u8] = b"Z\0\0\0\x05I";

/// What a server does after TLS, and the password that it got.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// Asks for the password, repeats it in all its messages, and then echoes.
    Repeats,
    RefusesWithValue,
    WithoutTls,
    /// Accepts a login by SCRAM without a proof that it knows the password.
    SkipsProof,
    AsksForKerberos,
    AsksTwice,
    SendsTooMuch,
}

type Passwords = Arc<Mutex<Vec<String>>>;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind], &u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], body].concat()
}

async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let read = async {
        let kind = stream.read_u8().await?;
        let mut body = vec![0; stream.read_u32().await? as usize - 4];
        stream.read_exact(&mut body).await?;
        std::io::Result::Ok((kind, body))
    };
    timeout(LIMIT, read).await.expect("no message in time").expect("the connection ended")
}

fn startup(parameters: &str) -> Vec<u8> {
    let body = [&[0, 3, 0, 0], format!("{parameters}\0").as_bytes()].concat();
    [&u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], &body].concat()
}

async fn play(
    mut stream: TcpStream,
    servers: &ServerAuthority,
    name: &str,
    role: Role,
    passwords: Passwords,
) -> std::io::Result<()> {
    let mut first = [0; 8];
    stream.read_exact(&mut first).await?;
    assert_eq!(first, SSL, "TLS comes first");
    if role == Role::WithoutTls {
        stream.write_all(b"N").await?;
        // Nothing more comes.
        assert_eq!(stream.read(&mut first).await.unwrap_or(0), 0);
        return Ok(());
    }
    stream.write_all(b"S").await?;
    let mut stream = servers.acceptor(&[name]).accept(stream).await?;
    let mut startup = vec![0; stream.read_u32().await? as usize - 4];
    stream.read_exact(&mut startup).await?;
    if startup.starts_with(&[4, 210, 22, 46]) {
        passwords.lock().unwrap().push(format!("cancel {:?}", &startup[4..]));
        return stream.shutdown().await;
    }
    let request = match role {
        Role::AsksForKerberos => message(b'R', &[0, 0, 0, 7]),
        Role::SkipsProof => message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"),
        _ => message(b'R', &[0, 0, 0, 3]),
    };
    stream.write_all(&request).await?;
    stream.flush().await?;
    let (_, password) = read_message(&mut stream).await;
    let password = String::from_utf8_lossy(&password).trim_end_matches('\0').to_owned();
    passwords.lock().unwrap().push(password.clone());
    let answer = match role {
        Role::RefusesWithValue => message(b'E', format!("SFATAL\0C28P01\0Mthe password {password} is wrong\0\0").as_bytes()),
        Role::AsksTwice => message(b'R', &[0, 0, 0, 3]),
        Role::SendsTooMuch => message(b'N', &vec![b'x'; 70_000]),
        _ => [
            message(b'N', format!("SNOTICE\0Myou said {password}\0\0").as_bytes()),
            message(b'R', &[0, 0, 0, 0]),
            message(b'S', format!("said\0{password}\0").as_bytes()),
            READY.to_vec(),
        ]
        .concat(),
    };
    stream.write_all(&answer).await?;
    stream.flush().await?;
    let (mut read, mut write) = tokio::io::split(stream);
    tokio::io::copy(&mut read, &mut write).await?;
    write.shutdown().await
}

/// A setting with a Postgres server that `name` leads to.
async fn start(name: &'static str, role: Role) -> (Setting, SocketAddr, Passwords) {
    let mut setting = Setting::start(&["header"]).await;
    let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let passwords = Passwords::default();
    let (seen, servers) = (passwords.clone(), Arc::new(std::mem::replace(&mut setting.servers, ServerAuthority::new("x"))));
    setting.proxy.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (servers, seen) = (servers.clone(), seen.clone());
            tokio::spawn(async move { play(stream, &servers, name, role, seen).await });
        }
    });
    let host = format!("a.test:{}", address.port());
    setting.set(vec![secret(VALUE, &[&host], &["postgres"])]).await;
    resolve(&mut setting, "a.test").await;
    (setting, address, passwords)
}

/// The sandbox has the name's address from the resolver.
async fn resolve(setting: &mut Setting, name: &str) {
    setting.proxy.resolver.name(name, &[SERVER]);
    ask(&setting.proxy, SANDBOX, name, A).await;
}

/// Sends the start of a session, and returns the first answer after the password.
async fn log_in(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), parameters: &str, password: &str) -> (u8, String) {
    stream.write_all(&startup(parameters)).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(read_message(stream).await, (b'R', vec![0, 0, 0, 3]), "it asks for a password");
    stream.write_all(&message(b'p', format!("{password}\0").as_bytes())).await.unwrap();
    stream.flush().await.unwrap();
    let (kind, body) = read_message(stream).await;
    (kind, String::from_utf8_lossy(&body).into_owned())
}

/// With the number of a process and its key.
fn cancel_request() -> Vec<u8> {
    [&[0, 0, 0, 16, 4, 210, 22, 46][..], &[7; 8]].concat()
}

const CANCELLED: &str = "cancel [7, 7, 7, 7, 7, 7, 7, 7]";

const USER: &str = "user\0me\0";

#[tokio::test]
async fn a_placeholder_becomes_the_password_and_answers_are_masked_until_the_server_is_ready() {
    let (mut setting, address, passwords) = start("a.test", Role::Repeats).await;
    let mut plain = setting.proxy.connect(address).await;
    let notice = log_in(&mut plain, USER, PLACEHOLDER).await;
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some(VALUE));
    assert_eq!(notice, (b'N', format!("SNOTICE\0Myou said {PLACEHOLDER}\0\0")));
    assert_eq!(read_message(&mut plain).await, (b'R', vec![0; 4]));
    assert_eq!(read_message(&mut plain).await, (b'S', format!("said\0{PLACEHOLDER}\0").into_bytes()));
    assert_eq!(read_exactly(&mut plain, READY.len()).await, READY);
    plain.write_all(b"as it is").await.unwrap();
    assert_eq!(read_exactly(&mut plain, 8).await, b"as it is");
    plain.shutdown().await.unwrap();
    let end = setting.proxy.end().await;
    assert_eq!((end.protocol, end.name.as_deref(), end.allowed), (Protocol::Postgres, Some("a.test"), true));
    assert!(end.bytes_sent > 50 && end.bytes_received > 100, "{end:?}");
    // After a request for GSS and one for TLS, and with a password of the client's own.
    let mut stream = setting.proxy.connect(address).await;
    stream.write_all(GSS).await.unwrap();
    assert_eq!(read_exactly(&mut stream, 1).await, b"N");
    stream.write_all(SSL).await.unwrap();
    assert_eq!(read_exactly(&mut stream, 1).await, b"S");
    let client = postgres_client(&setting);
    let mut encrypted = shake_hands(&client, "a.test", stream).await.unwrap();
    assert_eq!(log_in(&mut encrypted, USER, "my own").await.0, b'N');
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some("my own"));
    // In direct TLS.
    let mut direct = shake_hands(&client, "a.test", setting.proxy.connect(address).await).await.unwrap();
    assert_eq!(log_in(&mut direct, USER, PLACEHOLDER).await.0, b'N');
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some(VALUE));
}

fn postgres_client(setting: &Setting) -> tokio_rustls::TlsConnector {
    let mut config = (**setting.client.config()).clone();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Arc::new(config).into()
}

#[tokio::test]
async fn what_is_misplaced_or_revoked_is_refused_with_a_message() {
    let (mut setting, address, passwords) = start("a.test", Role::Repeats).await;
    let host = format!("a.test:{}", address.port());
    let other = format!("b.test:{}", address.port());
    let refused = [
        (
            secret(VALUE, &[&host], &["postgres"]),
            USER,
            format!("{PLACEHOLDER}x"),
            Reason::SecretMisplaced,
            "in a part of a password",
        ),
        (
            secret(VALUE, &[&host], &["postgres"]),
            "user\0arenite_secret_1_KEY\0",
            "x".into(),
            Reason::SecretMisplaced,
            "in a parameter",
        ),
        (secret("", &[&host], &["postgres"]), USER, PLACEHOLDER.into(), Reason::SecretRevoked, "was revoked"),
        (secret(VALUE, &[&other], &["postgres"]), USER, PLACEHOLDER.into(), Reason::SecretMisplaced, "for this host"),
        (secret(VALUE, &[&host], &["header"]), USER, PLACEHOLDER.into(), Reason::SecretMisplaced, "in the password of Postgres"),
        (secret(VALUE, &[&other], &["postgres"]), USER, VALUE.into(), Reason::SecretLeak, "has the value of the secret KEY"),
    ];
    for (mut bound, parameters, password, reason, text) in refused {
        bound.name = "KEY".into();
        // Another one makes the host one with passwords.
        let mut filler = secret("another-value-of-it", &[&host], &["postgres"]);
        (filler.name, filler.placeholders) = ("FILLER".into(), vec!["filler_placeholder".into()]);
        setting.set(vec![bound, filler]).await;
        let mut stream = setting.proxy.connect(address).await;
        let (kind, answer) = log_in(&mut stream, parameters, &password).await;
        assert!(kind == b'E' && answer.contains("SFATAL\0VFATAL\0C28000\0Marenite: a.test:"), "{answer:?}");
        assert!(answer.contains(text), "{answer:?} should have {text:?}");
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "it ends in an orderly way");
        let refusal = setting.refusal().await;
        assert_eq!((refusal.reason, refusal.protocol, refusal.name.as_deref()), (reason, Protocol::Postgres, Some("a.test")));
    }
    assert!(passwords.lock().unwrap().is_empty(), "nothing reached the server");
    // Without a name of a host, or by a policy that does not allow it.
    setting.set_with(r#"{"allow": ["a.test:1"]}"#, vec![secret(VALUE, &[&host], &["postgres"])]).await;
    let mut stream = setting.proxy.connect(address).await;
    stream.write_all(&startup(USER)).await.unwrap();
    assert!(is_reset(&mut stream).await);
    assert_eq!(setting.refusal().await.reason, Reason::UnknownProtocol);
}

#[tokio::test]
async fn hosts_that_share_an_address_are_told_apart_by_name_or_secret() {
    let (mut setting, address, passwords) = start("b.test", Role::Repeats).await;
    let hosts = ["a.test", "b.test"].map(|name| format!("{name}:{}", address.port()));
    let mut other = secret("the-value-of-the-other", &[&hosts[1]], &["postgres"]);
    (other.name, other.placeholders) = ("OTHER".into(), vec!["placeholder_of_other".into()]);
    setting.set(vec![secret(VALUE, &[&hosts[0]], &["postgres"]), other]).await;
    resolve(&mut setting, "b.test").await;
    let mut stream = setting.proxy.connect(address).await;
    assert_eq!(log_in(&mut stream, USER, "placeholder_of_other").await.0, b'N');
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some("the-value-of-the-other"));
    // The server is not a.test, and gets nothing.
    let mut stream = setting.proxy.connect(address).await;
    let (kind, answer) = log_in(&mut stream, USER, PLACEHOLDER).await;
    assert!(kind == b'E' && answer.contains("C08001") && answer.contains("certificate"), "{answer:?}");
    assert_eq!(setting.refusal().await.reason, Reason::InvalidCertificate);
    // With a password for both, the server shows which one it is.
    let mut both = secret(VALUE, &[&hosts[0], &hosts[1]], &["postgres"]);
    both.name = "BOTH".into();
    setting.set(vec![both]).await;
    let mut stream = setting.proxy.connect(address).await;
    assert_eq!(log_in(&mut stream, USER, PLACEHOLDER).await.0, b'N');
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some(VALUE));
    // Nothing says which one a request to cancel is for, so the one that is there gets it.
    let mut stream = setting.proxy.connect(address).await;
    stream.write_all(&cancel_request()).await.unwrap();
    let _ = timeout(LIMIT, stream.read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some(CANCELLED));
    // A name without a secret.
    let mut stream = setting.proxy.connect(address).await;
    stream.write_all(SSL).await.unwrap();
    assert_eq!(read_exactly(&mut stream, 1).await, b"S");
    assert!(shake_hands(&postgres_client(&setting), "c.test", stream).await.is_err());
    assert_eq!(setting.refusal().await.reason, Reason::HostMismatch);
    assert!(passwords.lock().unwrap().is_empty());
}

#[tokio::test]
async fn servers_that_do_not_keep_to_the_protocol_are_refused() {
    for (role, reason, text, is_sent) in [
        (Role::WithoutTls, Reason::ServerWithoutTls, "offers no TLS", false),
        (Role::SkipsProof, Reason::ServerLogin, "out of order", false),
        (Role::AsksForKerberos, Reason::ServerLogin, "not for a password", false),
        (Role::AsksTwice, Reason::ServerLogin, "a second proof", true),
        (Role::SendsTooMuch, Reason::ServerLogin, "too long", true),
    ] {
        let (mut setting, address, passwords) = start("a.test", role).await;
        let mut stream = setting.proxy.connect(address).await;
        let (kind, answer) = log_in(&mut stream, USER, PLACEHOLDER).await;
        let is_it = if role == Role::SkipsProof { kind == b'N' || kind == b'E' } else { kind == b'E' };
        assert!(is_it, "{answer:?}");
        if kind == b'E' {
            assert!(answer.contains("C08001") && answer.contains(text), "{answer:?}");
        }
        assert_eq!(setting.refusal().await.reason, reason, "{text}");
        assert_eq!(passwords.lock().unwrap().iter().any(|password| password == VALUE), is_sent, "{text}");
    }
    let (mut setting, address, _) = start("a.test", Role::RefusesWithValue).await;
    let mut stream = setting.proxy.connect(address).await;
    let (kind, answer) = log_in(&mut stream, USER, PLACEHOLDER).await;
    assert_eq!((kind, answer), (b'E', format!("SFATAL\0C28P01\0Mthe password {PLACEHOLDER} is wrong\0\0")));
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    assert!(setting.proxy.end().await.allowed);
}

#[tokio::test]
async fn a_session_ends_with_its_secret_and_not_with_a_rotation() {
    let (mut setting, address, _) = start("a.test", Role::Repeats).await;
    let host = format!("a.test:{}", address.port());
    let mut sessions = Vec::new();
    for password in [PLACEHOLDER, "my own"] {
        let mut stream = setting.proxy.connect(address).await;
        log_in(&mut stream, USER, password).await;
        while read_message(&mut stream).await.0 != b'Z' {}
        sessions.push(stream);
    }
    setting.set(vec![secret("a-rotated-value", &[&host], &["postgres"])]).await;
    for stream in &mut sessions {
        stream.write_all(b"still").await.unwrap();
        assert_eq!(read_exactly(stream, 5).await, b"still");
    }
    setting.set(vec![secret("", &[&host], &["postgres"])]).await;
    assert!(is_reset(&mut sessions[0]).await);
    sessions[1].write_all(b"still").await.unwrap();
    assert_eq!(read_exactly(&mut sessions[1], 5).await, b"still", "it used none");
}

#[tokio::test]
async fn malformed_starts_are_refused_and_requests_to_cancel_pass() {
    let (mut setting, address, passwords) = start("a.test", Role::Repeats).await;
    for bad in [&b"\0\0\0\x08\0\x02\0\0"[..], b"\0\x01\0\0", &[SSL, SSL].concat()] {
        let mut stream = setting.proxy.connect(address).await;
        stream.write_all(bad).await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.unwrap();
        let reason = setting.refusal().await.reason;
        assert!(matches!(reason, Reason::MalformedPostgres | Reason::ClientHandshake), "{bad:?}: {reason:?}");
    }
    let mut stream = setting.proxy.connect(address).await;
    stream.write_all(&cancel_request()).await.unwrap();
    assert_eq!(timeout(LIMIT, stream.read(&mut [0])).await.unwrap().unwrap(), 0, "it ends when the server has it");
    assert_eq!(passwords.lock().unwrap().pop().as_deref(), Some(CANCELLED));
}
