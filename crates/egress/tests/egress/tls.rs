//! Servers and clients of TLS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use arenite_egress::AuthorityKeys;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::harness::{LIMIT, Proxy, SERVER};

pub(crate) type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;
pub(crate) type ClientStream = tokio_rustls::client::TlsStream<TcpStream>;
pub(crate) type ServerBody = BoxBody<Bytes, std::io::Error>;

/// An authority that signs certificates of servers.
pub(crate) struct ServerAuthority(CertifiedIssuer<'static, KeyPair>);

impl ServerAuthority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn acceptor(&self, names: &[&str]) -> TlsAcceptor {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        let builder = ServerConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = builder.with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::from(key)).unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// What a client in the sandbox trusts.
pub(crate) fn trust(certificate: CertificateDer<'static>) -> TlsConnector {
    trust_with(certificate, rustls::ALL_VERSIONS)
}

pub(crate) fn trust_with(
    certificate: CertificateDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let builder = ClientConfig::builder_with_provider(default_provider().into());
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

pub(crate) fn certificate_of(keys: &AuthorityKeys) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(keys.certificate.as_bytes()).unwrap()
}

pub(crate) async fn shake_hands(connector: &TlsConnector, name: &str, stream: TcpStream) -> std::io::Result<ClientStream> {
    // As clients of the web do.
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(LIMIT, connector.connect(name, stream)).await.expect("no handshake in time")
}

/// A request that a server got.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// Of its connection.
    pub(crate) from: SocketAddr,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(crate) type ReceivedLog = Arc<Mutex<Vec<Received>>>;

/// A web server with TLS.
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    received: ReceivedLog,
    begun: Arc<Mutex<Vec<String>>>,
}

impl WebServer {
    /// `answer` gets what the server got.
    pub(crate) async fn start(
        proxy: &mut Proxy,
        acceptor: TlsAcceptor,
        answer: impl Fn(&Received) -> Response<ServerBody> + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = ReceivedLog::default();
        let known = received.clone();
        let begun = Arc::<Mutex<Vec<String>>>::default();
        let paths = begun.clone();
        proxy.spawn(async move {
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (acceptor, known, answer, paths) = (acceptor.clone(), known.clone(), answer.clone(), paths.clone());
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await?;
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (known, answer) = (known.clone(), answer.clone());
                        paths.lock().unwrap().push(request.uri().path().to_owned());
                        async move {
                            let (parts, body) = request.into_parts();
                            let body = String::from_utf8(body.collect().await?.to_bytes().to_vec()).unwrap();
                            let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
                            let received = Received { method, uri, headers, body, from };
                            let response = answer(&received);
                            known.lock().unwrap().push(received);
                            hyper::Result::Ok(response)
                        }
                    });
                    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    std::io::Result::Ok(connection.await)
                });
            }
        });
        Self { address, received, begun }
    }

    /// Paths of requests of which the head came.
    pub(crate) fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Received {
        self.received().last().expect("no request came").clone()
    }
}

pub(crate) fn whole(text: impl Into<Bytes>) -> ServerBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// Reads until the end, which may be a reset.
pub(crate) async fn read_to_end(stream: &mut ClientStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("no end in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(LIMIT, stream.read_u8()).await.expect("no head in time").expect("the head is cut off"));
    }
    String::from_utf8(head).unwrap()
}

pub(crate) async fn read_exactly(stream: &mut (impl tokio::io::AsyncRead + Unpin), length: usize) -> String {
    let mut bytes = vec![0; length];
    timeout(LIMIT, stream.read_exact(&mut bytes)).await.expect("no bytes in time").unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}
