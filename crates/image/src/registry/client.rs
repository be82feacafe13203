//! A client of one repository of a registry: requests, signing in, and redirects.
//!
//! The registry is not trusted: what it sends is bounded and compared with digests by the callers. It can't make this host call
//! addresses of the host's network: if the registry is on the internet, redirects and addresses for tokens are, too. Credentials go
//! to the registry and to the address for tokens that it names, and to no redirect's target.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arenite_model::{ErrorCode, is_public_address};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::config::Config;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy};

use super::credentials::{self, Credentials};
use super::web::{Guarded, is_closed, is_loopback, is_not_public, join};
use super::{Reference, RegistryCredentials, RegistryOptions};
use crate::error::ImageError;

/// Where hosts keep trusted certificates. `SSL_CERT_FILE` comes before them.
const CERTIFICATES: [&str; 3] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Certificates of single registries, where Docker looks for them: `HOST:PORT/*.crt`.
const DOCKER_CERTIFICATES: &str = "/etc/docker/certs.d";
/// Maximum size of a file of certificates, in bytes.
const MAX_CERTIFICATE_BYTES: u64 = 8 << 20;
const MAX_REDIRECTS: usize = 5;
/// Maximum size of an answer's headers, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum size of an error or a token, in bytes.
const MAX_ANSWER_BYTES: u64 = 256 << 10;

/// The body of a request.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// From its start.
    File(&'a File),
}

/// What a client wants to do in its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Pull,
    Push,
}

pub(super) struct Client<'a> {
    reference: Reference,
    access: Access,
    options: &'a RegistryOptions,
    /// Such as `https://localhost:5000`.
    base: String,
    /// For the registry itself.
    direct: Agent,
    /// For addresses that the registry names.
    named: Agent,
    is_private: bool,
    /// The value of the header, once it is known.
    authorization: Mutex<Option<String>>,
    credentials: OnceLock<Option<Credentials>>,
}

impl<'a> Client<'a> {
    /// Finds out whether a registry without TLS answers. Otherwise sends nothing.
    pub(super) fn new(reference: &Reference, access: Access, options: &'a RegistryOptions) -> Result<Self, ImageError> {
        let host = reference.host();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let is_loopback = is_loopback(name);
        if options.public_only && (is_loopback || name.parse().is_ok_and(|address| !is_public_address(address))) {
            return Err(not_permitted(reference));
        }
        let may_be_plain = is_loopback || options.insecure.iter().any(|insecure| insecure == host || insecure == name);
        let proxy = Proxy::try_from_env();
        let is_private = !options.public_only && (may_be_plain || is_private(host, name));
        let roots = roots(host);
        let agent = |proxy: Option<Proxy>, is_public_only: bool| {
            let resolver = Guarded::new(proxy.as_ref(), is_public_only);
            Agent::with_parts(config(options, proxy, roots.clone()), DefaultConnector::default(), resolver)
        };
        let mut client = Self {
            reference: reference.clone(),
            access,
            options,
            base: format!("https://{host}"),
            direct: agent(proxy.clone().filter(|_| !is_loopback), options.public_only),
            named: agent(proxy, !is_private),
            is_private,
            authorization: Mutex::new(None),
            credentials: OnceLock::new(),
        };
        if may_be_plain {
            let plain = format!("http://{host}");
            // A registry with TLS answers with 400, or not at all.
            let answer = client.direct.get(format!("{plain}/v2/")).call().map_err(|error| client.unreachable(&error))?;
            if answer.status() != StatusCode::BAD_REQUEST {
                client.base = plain;
            }
        }
        Ok(client)
    }

    /// The address of something in the repository: `manifests/latest`.
    pub(super) fn url(&self, what: &str) -> String {
        format!("{}/v2/{}/{what}", self.base, self.reference.repository)
    }

    /// The target of a header `Location`, which may be relative. Only on the registry itself.
    pub(super) fn own_url(&self, location: &str) -> Result<String, ImageError> {
        let url = if location.starts_with('/') { format!("{}{location}", self.base) } else { location.to_owned() };
        let uri: Uri = url.parse().map_err(|_| self.strange("it names a malformed address"))?;
        if self.is_own(&uri) { Ok(url) } else { Err(self.strange("it wants the upload to go to another host")) }
    }

    /// Sends a request, signs in if the registry asks for it, and follows redirects of GET and HEAD. Any status but 401 is an
    /// answer.
    pub(super) fn call(
        &self,
        method: &Method,
        url: &str,
        headers: &[(header::HeaderName, String)],
        payload: Payload<'_>,
    ) -> Result<Response<Body>, ImageError> {
        let mut uri: Uri = url.parse().map_err(|_| self.strange("it names a malformed address"))?;
        let mut is_signed_in = false;
        let mut redirects = 0;
        loop {
            let is_own = redirects == 0;
            let authorization = if is_own { self.authorization().clone() } else { None };
            let agent = if is_own { &self.direct } else { &self.named };
            let answer = self.send(agent, method, &uri, headers, authorization.as_deref(), payload)?;
            let status = answer.status();
            if status == StatusCode::UNAUTHORIZED && is_own && !is_signed_in {
                is_signed_in = true;
                self.sign_in(answer.headers(), authorization.as_deref())?;
                continue;
            }
            if status == StatusCode::UNAUTHORIZED && is_own && authorization.is_some_and(|sent| sent.starts_with("Basic")) {
                return Err(self.unauthorized("it refuses the user and the password that are known for it"));
            }
            if status == StatusCode::UNAUTHORIZED {
                return Err(self.refusal(answer));
            }
            let is_safe = *method == Method::GET || *method == Method::HEAD;
            let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let Some(location) = location.filter(|_| is_safe && status.is_redirection()) else { return Ok(answer) };
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(self.strange(format!("it redirects more than {MAX_REDIRECTS} times")));
            }
            uri = self.named_uri(&join(&uri, location).unwrap_or_default())?;
        }
    }

    fn send(
        &self,
        agent: &Agent,
        method: &Method,
        uri: &Uri,
        headers: &[(header::HeaderName, String)],
        authorization: Option<&str>,
        payload: Payload<'_>,
    ) -> Result<Response<Body>, ImageError> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let malformed = |_| self.strange("a header of the request is malformed");
        let sent = match payload {
            Payload::Nothing => agent.run(request.body(()).map_err(malformed)?),
            Payload::Bytes(bytes) => agent.run(request.body(bytes).map_err(malformed)?),
            Payload::File(mut file) => {
                std::io::Seek::rewind(&mut file).map_err(ImageError::io("could not read", "the packed layer"))?;
                agent.run(request.body(file).map_err(malformed)?)
            }
        };
        sent.map_err(|error| self.unreachable(&error))
    }

    fn authorization(&self) -> MutexGuard<'_, Option<String>> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets what the registry asks for, unless another thread did after this one sent `used`.
    fn sign_in(&self, headers: &HeaderMap, used: Option<&str>) -> Result<(), ImageError> {
        let mut authorization = self.authorization();
        if authorization.as_deref() != used {
            return Ok(());
        }
        let challenges = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<Challenge> = challenges.filter_map(Challenge::parse).collect();
        if let Some(bearer) = challenges.iter().find(|challenge| challenge.scheme == "bearer") {
            *authorization = Some(format!("Bearer {}", self.token(bearer)?));
            return Ok(());
        }
        if !challenges.iter().any(|challenge| challenge.scheme == "basic") {
            return Err(self.strange("it asks for a way to sign in that is not known here"));
        }
        let basic = self
            .credentials()?
            .and_then(Credentials::basic)
            .ok_or_else(|| self.unauthorized("it needs a user and a password"))?;
        if used == Some(basic.as_str()) {
            return Err(self.unauthorized("it refuses the user and the password that are known for it"));
        }
        *authorization = Some(basic);
        Ok(())
    }

    fn credentials(&self) -> Result<Option<&Credentials>, ImageError> {
        if let Some(known) = self.credentials.get() {
            return Ok(known.as_ref());
        }
        let given = self.options.credentials.as_ref();
        if let Some(RegistryCredentials { user, password }) = given.cloned() {
            return Ok(self.credentials.get_or_init(|| Some(Credentials::Password { user, password })).as_ref());
        }
        let found = match &self.options.docker_config {
            Some(file) => credentials::find(file, &self.reference.registry).map_err(|reason| self.unauthorized(reason))?,
            None => None,
        };
        Ok(self.credentials.get_or_init(|| found).as_ref())
    }

    /// Gets a token for the repository.
    fn token(&self, bearer: &Challenge) -> Result<String, ImageError> {
        let realm = self.named_uri(&bearer.realm)?;
        let actions = if self.access == Access::Push { "pull,push" } else { "pull" };
        let scope = format!("repository:{}:{actions}", self.reference.repository);
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut query = format!("scope={}", escape(&scope));
        if let Some(service) = &bearer.service {
            query.push_str(&format!("&service={}", escape(service)));
        }
        let credentials = self.credentials()?;
        let agent = if self.is_own(&realm) { &self.direct } else { &self.named };
        let answer = match credentials {
            Some(Credentials::IdentityToken(token)) => {
                let form = format!("grant_type=refresh_token&client_id=arenite&{query}&refresh_token={}", escape(token));
                let content = [(header::CONTENT_TYPE, "application/x-www-form-urlencoded".to_owned())];
                self.send(agent, &Method::POST, &realm, &content, None, Payload::Bytes(form.as_bytes()))?
            }
            other => {
                let separator = if realm.query().is_some() { '&' } else { '?' };
                let uri =
                    format!("{realm}{separator}{query}").parse().map_err(|_| self.strange("it names a malformed address"))?;
                let basic = other.and_then(Credentials::basic);
                self.send(agent, &Method::GET, &uri, &[], basic.as_deref(), Payload::Nothing)?
            }
        };
        if !answer.status().is_success() {
            let status = answer.status();
            return Err(match (credentials.is_some(), status.is_client_error()) {
                (true, true) => self.unauthorized(format!("it refuses the credentials that are known for it ({status})")),
                (false, true) => self.unauthorized(format!("it gives no token without credentials ({status})")),
                _ => self.strange(format!("it gives no token: {status}")),
            });
        }
        let token: Token = serde_json::from_slice(&self.read(answer, MAX_ANSWER_BYTES)?)
            .map_err(|_| self.strange("it gives no token, but something else"))?;
        let token = Some(token.token).filter(|token| !token.is_empty()).unwrap_or(token.access_token);
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(self.strange("it gives a malformed token"));
        }
        Ok(token)
    }

    /// Reads a whole answer of at most `limit` bytes.
    pub(super) fn read(&self, answer: Response<Body>, limit: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let read = answer.into_body().into_reader().take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreachable(&ureq::Error::from(error)))?;
        if bytes.len() as u64 > limit {
            return Err(self.strange(format!("its answer has more than {limit} bytes")));
        }
        Ok(bytes)
    }

    fn is_own(&self, uri: &Uri) -> bool {
        let own = self.base.parse::<Uri>().ok();
        own.is_some_and(|own| (own.scheme(), own.authority()) == (uri.scheme(), uri.authority()))
    }

    /// An address that the registry names, if it may be called.
    fn named_uri(&self, text: &str) -> Result<Uri, ImageError> {
        let uri: Uri = text.parse().map_err(|_| self.strange("it names a malformed address"))?;
        let is_plain = uri.scheme_str() == Some("http");
        if !is_plain && uri.scheme_str() != Some("https") || uri.authority().is_none_or(|a| a.as_str().contains('@')) {
            return Err(self.strange("it names an address that is not of the web"));
        }
        if is_plain && !self.base.starts_with("http:") {
            return Err(self.strange("it leads to an address without TLS"));
        }
        if is_closed(&uri) && !self.is_private {
            return Err(self.not_public());
        }
        Ok(uri)
    }

    fn not_public(&self) -> ImageError {
        self.strange("it leads to an address that is not on the public internet, which is not called")
    }

    /// The error of an answer that is no success.
    pub(super) fn refusal(&self, answer: Response<Body>) -> ImageError {
        let status = answer.status();
        if is_page(answer.headers()) {
            return self.page(status);
        }
        let bytes = self.read(answer, MAX_ANSWER_BYTES).unwrap_or_default();
        let said = serde_json::from_slice::<Errors>(&bytes).ok().and_then(|errors| errors.errors.into_iter().next());
        let said = said.map(|error| harmless(&format!("{} {}", error.code, error.message))).unwrap_or_default();
        let said = if said.trim().is_empty() { status.to_string() } else { format!("{status}: {}", said.trim()) };
        let retry = Some("try again later".to_owned());
        match status {
            StatusCode::NOT_FOUND => self.error(
                ErrorCode::NotFound,
                format!("the registry has no such image ({said})"),
                Some(format!("check the name and the tag; a private image needs: docker login {}", self.reference.registry)),
            ),
            StatusCode::UNAUTHORIZED => self.unauthorized(format!("it refuses access ({said})")),
            StatusCode::FORBIDDEN => self.error(
                ErrorCode::Forbidden,
                format!("it refuses access ({said})"),
                Some(self.login("with a user that has access")),
            ),
            StatusCode::TOO_MANY_REQUESTS => {
                self.error(ErrorCode::Exhausted, format!("it answers no more requests for now ({said})"), retry)
            }
            status if status.is_server_error() => self.error(ErrorCode::Internal, format!("it failed ({said})"), retry),
            _ => self.error(ErrorCode::InvalidRequest, format!("it refuses the request ({said})"), None),
        }
    }

    /// The error of a web page in place of an answer.
    pub(super) fn page(&self, status: StatusCode) -> ImageError {
        self.error(
            ErrorCode::InvalidRequest,
            format!("{} answers with a web page ({status}), not as a registry", self.base),
            Some("check the registry's address, and whether a proxy or a sign-in page answers in its place".to_owned()),
        )
    }

    fn login(&self, how: &str) -> String {
        format!("sign in {how}: docker login {}; or write the credentials into Docker's config.json", self.reference.registry)
    }

    fn unauthorized(&self, reason: impl Into<String>) -> ImageError {
        self.error(ErrorCode::Unauthorized, reason.into(), Some(self.login("first")))
    }

    /// The registry does not behave like one.
    pub(super) fn strange(&self, reason: impl Into<String>) -> ImageError {
        self.error(ErrorCode::InvalidRequest, reason.into(), None)
    }

    pub(super) fn error(&self, code: ErrorCode, reason: String, hint: Option<String>) -> ImageError {
        ImageError::Registry { reference: self.reference.to_string(), reason, hint, code }
    }

    pub(super) fn unreachable(&self, error: &ureq::Error) -> ImageError {
        let base = &self.base;
        match error {
            ureq::Error::Timeout(_) => self.error(
                ErrorCode::Timeout,
                format!("{base} does not answer in time"),
                Some("check the network and the registry; what was downloaded is kept for the next try".to_owned()),
            ),
            error if is_not_public(error) => self.not_public(),
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => self.error(
                ErrorCode::InvalidRequest,
                format!("there is no TLS connection to {base}: {error}"),
                Some(format!(
                    "name its authority's file in SSL_CERT_FILE or {DOCKER_CERTIFICATES}/{}/ca.crt; a registry without TLS \
                     needs --insecure-registry {}",
                    self.reference.host(),
                    self.reference.host()
                )),
            ),
            other => self.error(
                ErrorCode::Internal,
                format!("{base} can't be reached: {}", harmless(&other.to_string())),
                Some("check the address and the network; proxies are those of the environment".to_owned()),
            ),
        }
    }
}

/// The error of a registry that is not on the internet, where it has to be.
fn not_permitted(reference: &Reference) -> ImageError {
    ImageError::Registry {
        reference: reference.to_string(),
        reason: "its registry is not on the public internet, and the configuration does not name it".to_owned(),
        hint: Some("an operator can name it: image_registry".to_owned()),
        code: ErrorCode::Forbidden,
    }
}

/// Whether an answer is HTML.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.to_ascii_lowercase().starts_with("text/html")
}

pub(super) fn config(options: &RegistryOptions, proxy: Option<Proxy>, roots: RootCerts) -> Config {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_response_header_size(MAX_HEAD_BYTES)
        // A layer's digest is that of the bytes that were stored.
        .accept_encoding("identity")
        .user_agent(concat!("arenite/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(options.connect_timeout))
        .timeout_connect(Some(options.connect_timeout))
        .timeout_recv_response(Some(options.answer_timeout))
        .timeout_per_read(Some(options.stall_timeout))
        .timeout_per_write(Some(options.stall_timeout))
        .proxy(proxy)
        .tls_config(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
        .build()
}

/// The certificates to check a registry with. Without any, no registry with TLS is trusted.
pub(super) fn roots(host: &str) -> RootCerts {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let mut places = named.iter().map(String::as_str).chain(CERTIFICATES);
    let read = |path: &std::path::Path| -> Option<Vec<u8>> {
        let mut pem = Vec::new();
        File::open(path).ok()?.take(MAX_CERTIFICATE_BYTES).read_to_end(&mut pem).ok()?;
        Some(pem)
    };
    let mut pem = places.find_map(|path| read(path.as_ref())).unwrap_or_default();
    // A host is no path: it has no `/`.
    for entry in std::fs::read_dir(format!("{DOCKER_CERTIFICATES}/{host}")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "crt") {
            pem.push(b'\n');
            pem.extend(read(&entry.path()).unwrap_or_default());
        }
    }
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    RootCerts::new_with_certs(&certificates)
}

/// Whether a registry is on a network that is not the internet, so that it may lead to other hosts there.
fn is_private(host: &str, name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        return !is_public_address(address);
    }
    let with_port = if host == name { format!("{host}:443") } else { host.to_owned() };
    with_port.to_socket_addrs().is_ok_and(|mut found| found.any(|address| !is_public_address(address.ip())))
}

/// Text of a registry for a message: one short line without control characters.
pub(super) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A way to sign in that the registry names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Challenge {
    /// In lower case.
    scheme: String,
    realm: String,
    service: Option<String>,
}

impl Challenge {
    /// Parses `Bearer realm="…",service="…"`.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let mut challenge = Self { scheme: scheme.to_ascii_lowercase(), ..Self::default() };
        while let Some((name, after)) = rest.split_once('=') {
            let (value, next) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').map_or((after, ""), |(value, next)| (value, next)),
            };
            match name.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value.to_owned(),
                "service" => challenge.service = Some(value.to_owned()),
                _ => {}
            }
            rest = next;
        }
        Some(challenge)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Token {
    token: String,
    access_token: String,
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<RegistryError>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RegistryError {
    code: String,
    message: String,
}

/// The times of [`RegistryOptions`] for people's networks.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_with_and_without_quotes() {
        let bearer =
            Challenge::parse(r#"Bearer realm="https://a.example/token?x=1,2",service="r.example", scope="a,b""#).unwrap();
        assert_eq!((bearer.scheme.as_str(), bearer.realm.as_str()), ("bearer", "https://a.example/token?x=1,2"));
        assert_eq!(bearer.service.as_deref(), Some("r.example"));
        let plain = Challenge::parse("BASIC realm=basic-realm").unwrap();
        assert_eq!((plain.scheme.as_str(), plain.realm.as_str()), ("basic", "basic-realm"));
        for text in ["", "Bearer", "Bearer realm", r#"Bearer realm="open"#, "=", "Bearer =,=,="] {
            // None of them panics.
            let _ = Challenge::parse(text);
        }
    }

    #[test]
    fn a_registry_on_the_internet_leads_to_no_private_address() {
        let options = RegistryOptions::default();
        let reference: Reference = "203.0.114.1/a".parse().unwrap();
        let client = Client::new(&reference, Access::Pull, &options).unwrap();
        for target in [
            "https://127.0.0.1/x",
            "https://localhost/x",
            "https://a.localhost/",
            "https://10.0.0.1/",
            "https://[::1]/",
            "https://169.254.169.254/latest",
            "http://a.example/",
            "https://u:p@a.example/",
            "ftp://a.example/",
            "",
            "/x",
        ] {
            assert!(client.named_uri(target).is_err(), "{target}");
        }
        assert!(client.named_uri("https://a.example/x").is_ok());
        assert!(client.own_url("https://a.example/upload").is_err());
        assert_eq!(client.own_url("/v2/x?y=1").unwrap(), "https://203.0.114.1/v2/x?y=1");
    }
}
