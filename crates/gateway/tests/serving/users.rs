//! Users of tenants with tokens of an issuer.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use arenite_control::tenants::AuditQuery;
use arenite_gateway::{Authentication, GatewayConfig, TICKET_TTL, TokenRules};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::auth::in_seconds;
use crate::harness::{Running, echo, eventually, read_chunk, read_head};

struct Signer {
    id: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
}

fn rsa(size: KeySize) -> EncodingKey {
    let pair = KeyPair::generate(size).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let body = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
    let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
}

fn ed() -> EncodingKey {
    EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).unwrap().as_ref())
}

static SIGNERS: LazyLock<[Signer; 3]> = LazyLock::new(|| {
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    [
        Signer { id: "rsa", algorithm: Algorithm::RS256, key: rsa(KeySize::Rsa2048) },
        Signer { id: "ec", algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(ec.as_ref()) },
        Signer { id: "ed", algorithm: Algorithm::EdDSA, key: ed() },
    ]
});

impl Signer {
    fn jwk(&self) -> Value {
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = self.id.into();
        jwk["use"] = "sig".into();
        jwk
    }

    fn token(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.to_owned()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
    json!({ "iss": "https://issuer", "aud": "arenite", "sub": "alice", "exp": in_seconds(60), "tenant": "acme", "role": "manage" })
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut claims = claims();
    change(&mut claims);
    claims
}

/// A server with the tenants `acme` and `other`.
struct Users {
    running: Running,
    dir: TempDir,
}

impl Users {
    async fn with(keys: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let jwks = dir.path().join("jwks.json");
        fs::write(&jwks, keys.to_string()).unwrap();
        let rules = TokenRules {
            issuer: "https://issuer".to_owned(),
            audience: "arenite".to_owned(),
            jwks,
            tenant_claim: "tenant".to_owned(),
            role_claim: "role".to_owned(),
        };
        let auth = Authentication::new(None, None, TICKET_TTL).unwrap().with_users(rules).unwrap();
        let config = GatewayConfig { auth, ..GatewayConfig::default() };
        let running = Running::with_tenants_and(config, |_, stream| echo(stream)).await;
        for tenant in ["acme", "other"] {
            running.control.tenants().unwrap().create(tenant.parse().unwrap()).await.unwrap();
        }
        Self { running, dir }
    }

    async fn new() -> Self {
        Self::with(json!({ "keys": SIGNERS.iter().map(Signer::jwk).collect::<Vec<_>>() })).await
    }

    async fn status(&self, token: &str) -> u16 {
        self.running.get_with("/api/v2/me", &format!("authorization: Bearer {token}\r\n")).await.status
    }
}

#[test]
fn files_without_usable_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let jwks = dir.path().join("jwks.json");
    let open = |text: &str| {
        fs::write(&jwks, text).unwrap();
        let text = || "x".to_owned();
        let rules = TokenRules { issuer: text(), audience: text(), jwks: jwks.clone(), tenant_claim: text(), role_claim: text() };
        Authentication::new(None, None, TICKET_TTL).unwrap().with_users(rules).map(drop).map_err(|error| error.to_string())
    };
    open(&json!({ "keys": [SIGNERS[0].jwk()] }).to_string()).unwrap();
    let with = |field: &str, value: Value| {
        let mut jwk = SIGNERS[0].jwk();
        jwk[field] = value;
        json!({ "keys": [jwk] }).to_string()
    };
    let secret = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" }] }).to_string();
    for bad in [
        "",
        "[]",
        "{}",
        "{\"keys\":[]}",
        &secret,
        &with("n", URL_SAFE_NO_PAD.encode([0xff; 128]).into()),
        &with("use", "enc".into()),
        &with("alg", "RS512".into()),
        &with("key_ops", json!(["sign"])),
        &with("d", "AQAB".into()),
        &json!({ "keys": vec![SIGNERS[0].jwk(); 101] }).to_string(),
    ] {
        assert!(open(bad).is_err(), "{bad}");
    }
    // A key for another purpose does not make the others useless.
    let mixed = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }, { "kty": "new" }, SIGNERS[1].jwk()] });
    open(&mixed.to_string()).unwrap();
}

#[tokio::test]
async fn a_user_has_the_tenant_and_the_role_of_its_token() {
    let users = Users::new().await;
    let running = &users.running;
    running.create_in("acme", "a").await;
    for signer in SIGNERS.iter() {
        let token = signer.token(&claims());
        for (path, header) in [
            ("/api/v2/me", format!("authorization: Bearer {token}\r\n")),
            ("/api/v2/me", format!("x-api-key: {token}\r\n")),
            (&*format!("/api/v2/me?api_key={token}"), String::new()),
        ] {
            let me = running.get_with(path, &header).await;
            assert_eq!(me.status, 200, "{path} {header}");
            let me = me.json();
            assert_eq!(
                (&me["tenant"], &me["subject"], &me["role"], &me["key"], &me["operator"]),
                (&json!("acme"), &json!("alice"), &json!("manage"), &Value::Null, &json!(false))
            );
        }
    }
    let header = |claims: &Value| format!("x-api-key: {}\r\n", SIGNERS[0].token(claims));
    let called = running.get_with("/sandbox/a/v1/x", &header(&claims())).await;
    assert_eq!(called.status, 200);
    assert!(!called.text().contains("eyJ"), "a sandbox got the token: {}", called.text());
    let stranger = changed(|claims| claims["tenant"] = "other".into());
    assert_eq!(running.get_with("/api/v2/sandboxes/a", &header(&stranger)).await.status, 404);
    assert_eq!(running.get_with("/api/v2/keys", &header(&claims())).await.status, 403, "it is no admin");
    let roles = changed(|claims| claims["role"] = json!(["offline_access", "read", "admin", 7]));
    assert_eq!(running.get_with("/api/v2/keys", &header(&roles)).await.status, 200);
    let reader = changed(|claims| claims["role"] = "read".into());
    assert_eq!(running.get_with("/sandbox/a/v1/x", &header(&reader)).await.status, 403);
    assert_eq!(running.get_with("/api/v2/tenants", &header(&roles)).await.status, 403, "no user is an operator");

    // The audit log has the user.
    let request =
        format!("DELETE /api/v2/sandboxes/a HTTP/1.1\r\nhost: localhost\r\n{}content-length: 0\r\n\r\n", header(&claims()));
    assert_eq!(running.raw(request.as_bytes()).await.status, 200);
    let query = AuditQuery { tenant: Some("acme".parse().unwrap()), limit: 10, ..AuditQuery::default() };
    let rows = running.control.tenants().unwrap().audit_page(query).await.unwrap();
    let row = rows.iter().find(|row| row.entry.action == "sandbox.delete").unwrap();
    assert_eq!((row.entry.subject.as_deref(), &row.entry.key), (Some("alice"), &None));
    assert_eq!(row.entry.actor().as_deref(), Some("user:alice"));
    users.running.stop().await;
}

#[tokio::test]
async fn other_tokens_identify_nobody() {
    let users = Users::new().await;
    let [rsa_signer, ec, ed_signer] = &*SIGNERS;
    let with_header = |header: Value, claims: &Value| {
        let pack = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let text = format!("{}.{}", pack(&header), pack(claims));
        let signature = jsonwebtoken::crypto::sign(text.as_bytes(), &rsa_signer.key, Algorithm::RS256).unwrap();
        format!("{text}.{signature}")
    };
    assert_eq!(users.status(&with_header(json!({ "alg": "RS256", "kid": "rsa" }), &claims())).await, 200);
    let modulus = rsa_signer.jwk()["n"].as_str().unwrap().to_owned();
    let confused = |secret: &[u8]| {
        let header = Header { kid: Some("rsa".to_owned()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims(), &EncodingKey::from_secret(secret)).unwrap()
    };
    let stranger = Signer { id: "rsa", algorithm: Algorithm::RS256, key: rsa(KeySize::Rsa2048) };
    let good = rsa_signer.token(&claims());
    let (head, rest) = good.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    let forged = URL_SAFE_NO_PAD.encode(changed(|claims| claims["role"] = "admin".into()).to_string());
    let none = URL_SAFE_NO_PAD.encode(json!({ "alg": "none" }).to_string());
    let mut bad = vec![
        ("another key", stranger.token(&claims())),
        ("another algorithm", with_header(json!({ "alg": "RS512", "kid": "rsa" }), &claims())),
        ("HMAC with the public key", confused(modulus.as_bytes())),
        ("HMAC with the public key's bytes", confused(&URL_SAFE_NO_PAD.decode(&modulus).unwrap())),
        ("no signature", format!("{none}.{body}.")),
        ("none with a signature", format!("{none}.{body}.{signature}")),
        ("an empty signature", format!("{head}.{body}.")),
        ("changed claims", format!("{head}.{forged}.{signature}")),
        ("an unknown kid", with_header(json!({ "alg": "RS256", "kid": "other" }), &claims())),
        ("the kid of another type", with_header(json!({ "alg": "RS256", "kid": "ec" }), &claims())),
        ("another type's algorithm", with_header(json!({ "alg": "ES256", "kid": "rsa" }), &claims())),
        ("an extension", with_header(json!({ "alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1 }), &claims())),
        ("a key in the header", with_header(json!({ "alg": "RS256", "jwk": stranger.jwk(), "kid": "x" }), &claims())),
        ("a huge token", rsa_signer.token(&changed(|claims| claims["x"] = "x".repeat(9000).into()))),
        ("four parts", format!("{good}.x")),
        ("two parts", format!("{head}.{body}")),
        ("no token", "e30.e30.e30".to_owned()),
    ];
    for (what, claims) in [
        ("another issuer", changed(|claims| claims["iss"] = "https://other".into())),
        ("another audience", changed(|claims| claims["aud"] = "other".into())),
        ("expired", changed(|claims| claims["exp"] = in_seconds(-10).into())),
        ("not yet valid", changed(|claims| claims["nbf"] = in_seconds(60).into())),
        ("an unknown tenant", changed(|claims| claims["tenant"] = "nobody".into())),
        ("a name that no tenant can have", changed(|claims| claims["tenant"] = "../acme".into())),
        ("a tenant that is a list", changed(|claims| claims["tenant"] = json!(["acme"]))),
        ("an unknown role", changed(|claims| claims["role"] = "operator".into())),
        ("no known role", changed(|claims| claims["role"] = json!(["x", 1]))),
        ("a role that is a number", changed(|claims| claims["role"] = 4.into())),
        ("an empty subject", changed(|claims| claims["sub"] = "".into())),
        ("a subject with control characters", changed(|claims| claims["sub"] = "a\nb".into())),
        ("a long subject", changed(|claims| claims["sub"] = "x".repeat(201).into())),
        ("an expiry that is a text", changed(|claims| claims["exp"] = "tomorrow".into())),
    ] {
        bad.push((what, rsa_signer.token(&claims)));
    }
    for claim in ["iss", "aud", "sub", "exp", "tenant", "role"] {
        let without = changed(|claims| drop(claims.as_object_mut().unwrap().remove(claim)));
        bad.push((claim, ec.token(&without)));
        bad.push((claim, ed_signer.token(&without)));
    }
    for (what, token) in bad {
        assert_eq!(users.status(&token).await, 401, "{what}: {token}");
    }
    // Clocks may differ a little, and a list of audiences may have ours.
    for claims in [
        changed(|claims| claims["exp"] = in_seconds(-2).into()),
        changed(|claims| claims["nbf"] = in_seconds(3).into()),
        changed(|claims| claims["aud"] = json!(["x", "arenite"])),
        changed(|claims| claims["exp"] = json!(1e15)),
    ] {
        assert_eq!(users.status(&rsa_signer.token(&claims)).await, 200, "{claims}");
    }
    users.running.stop().await;
}

#[tokio::test]
async fn a_changed_file_is_used_and_a_broken_one_is_not() {
    let users = Users::with(json!({ "keys": [SIGNERS[0].jwk()] })).await;
    let jwks = users.dir.path().join("jwks.json");
    let (old, new) = (SIGNERS[0].token(&claims()), SIGNERS[2].token(&claims()));
    assert_eq!((users.status(&old).await, users.status(&new).await), (200, 401));
    fs::write(&jwks, "{\"keys\": [").unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!((users.status(&old).await, users.status(&new).await), (200, 401));
    fs::write(&jwks, json!({ "keys": [SIGNERS[2].jwk()] }).to_string()).unwrap();
    let begun = std::time::Instant::now();
    while (users.status(&old).await, users.status(&new).await) != (401, 200) {
        assert!(begun.elapsed() < Duration::from_secs(10), "the new keys are not used");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    users.running.stop().await;
}

#[tokio::test]
async fn what_a_token_opened_ends_with_it_and_with_its_tenant() {
    let users = Users::new().await;
    let running = &users.running;
    let open = async |claims: &Value| {
        let mut stream = running.connect().await;
        let token = SIGNERS[1].token(claims);
        let request = format!("GET /api/v2/events?follow=true HTTP/1.1\r\nhost: localhost\r\nx-api-key: {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.unwrap().starts_with("HTTP/1.1 200"));
        read_chunk(&mut stream).await.unwrap();
        stream
    };
    // 5 seconds are added to the expiry for clocks that differ.
    let mut short = open(&changed(|claims| claims["exp"] = in_seconds(-3).into())).await;
    let mut long = open(&claims()).await;
    let mut other = open(&changed(|claims| claims["tenant"] = "other".into())).await;
    let ends = |stream: &mut tokio::net::TcpStream| {
        let read = stream.try_read(&mut [0; 64]);
        match read {
            Ok(0) => Some(()),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Some(()),
            _ => None,
        }
    };
    eventually(|| ends(&mut short)).await;
    // Cookies and tickets have the same end.
    let soon = SIGNERS[0].token(&changed(|claims| claims["exp"] = in_seconds(-3).into()));
    let body = json!({ "key": soon }).to_string();
    let signed_in = running.post("/login", &body).await;
    let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let with_cookie = format!("cookie: {cookie}\r\n");
    assert_eq!(running.get_with("/api/v2/me", &with_cookie).await.json()["subject"], "alice");
    let made = running
        .raw(format!("POST /tickets HTTP/1.1\r\nhost: localhost\r\n{with_cookie}content-length: 0\r\n\r\n").as_bytes())
        .await;
    let ticket = made.json()["ticket"].as_str().unwrap().to_owned();
    assert_eq!(running.get(&format!("/api/v2/me?ticket={ticket}")).await.status, 200);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(running.get_with("/api/v2/me", &with_cookie).await.status, 401);
    assert_eq!(running.get(&format!("/api/v2/me?ticket={ticket}")).await.status, 401);
    assert!(ends(&mut long).is_none(), "its token is valid");
    running.control.tenants().unwrap().set_disabled(&"acme".parse().unwrap(), true).await.unwrap();
    eventually(|| ends(&mut long)).await;
    assert!(ends(&mut other).is_none(), "another tenant's user");
    assert_eq!(users.status(&SIGNERS[0].token(&claims())).await, 401);
    users.running.stop().await;
}
