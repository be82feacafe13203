//! ClientHellos of a real client.

use std::sync::Arc;

use arenite_egress::{HelloReader, HelloStep};
use rustls::client::{EchGreaseConfig, EchMode};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

fn config(alpn: &[&str]) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(RootCertStore::empty());
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// What the client sends first to the server with this name.
fn first_bytes(config: ClientConfig, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

pub(crate) fn client_hello(name: &str) -> Vec<u8> {
    first_bytes(config(&["h2", "http/1.1"]), name)
}

fn with_grease() -> ClientConfig {
    let suite = aws_lc_rs::hpke::ALL_SUPPORTED_SUITES[0];
    let (public, _) = suite.generate_key_pair().unwrap();
    let builder = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
    let builder = builder.with_ech(EchMode::Grease(EchGreaseConfig::new(suite, public))).unwrap();
    builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

#[test]
fn a_real_hello_is_read_however_it_is_split() {
    let bytes = client_hello("files.pythonhosted.org");
    assert!(bytes.len() > 200, "{}", bytes.len());
    for at in 1..bytes.len() {
        let mut reader = HelloReader::default();
        assert_eq!(reader.push(&bytes[..at]), HelloStep::More, "after {at} bytes");
        let HelloStep::Hello(hello) = reader.push(&bytes[at..]) else { panic!("not read when split at {at}") };
        assert_eq!(hello.server_name.as_deref(), Some("files.pythonhosted.org"));
        assert_eq!(hello.alpn, ["h2", "http/1.1"]);
        assert!(!hello.has_ech);
    }
    let mut reader = HelloReader::default();
    let steps: Vec<_> = bytes.iter().map(|byte| reader.push(&[*byte])).collect();
    let (last, rest) = steps.split_last().unwrap();
    assert!(rest.iter().all(|step| *step == HelloStep::More));
    assert!(matches!(last, HelloStep::Hello(_)));
}

#[test]
fn a_meaningless_encrypted_hello_keeps_its_name() {
    let HelloStep::Hello(hello) = HelloReader::default().push(&first_bytes(with_grease(), "a.example")) else {
        panic!("not read")
    };
    assert_eq!((hello.server_name.as_deref(), hello.has_ech), (Some("a.example"), true));
}

#[test]
fn a_hello_to_an_address_has_no_name() {
    let HelloStep::Hello(hello) = HelloReader::default().push(&client_hello("192.0.2.1")) else { panic!("not read") };
    assert_eq!(hello.server_name, None);
}

#[test]
fn a_long_hello_is_read() {
    let names: Vec<String> = (0..60).map(|n| format!("protocol-{n}-{}", "x".repeat(100))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bytes = first_bytes(config(&names), "a.example");
    assert!(bytes.len() > 6_000);
    let HelloStep::Hello(hello) = HelloReader::default().push(&bytes) else { panic!("not read") };
    assert_eq!(hello.alpn.len(), 60);
}
