//! Fetching from the internet: a network with a single public address.

use crate::markdown::convert;
use crate::standalone::Guest;

const ADDRESS: &str = "93.184.215.14";

/// A web server at that address, with and without TLS. Its certificate is from an authority that the test creates.
const SERVER: &str = r#"
ip addr add 93.184.215.14/32 dev lo
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj "/CN=Test authority" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out leaf.csr -subj "/CN=test" 2>/dev/null
printf 'subjectAltName=IP:93.184.215.14\nbasicConstraints=CA:FALSE\n' >extensions
openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile extensions 2>/dev/null
cat >serve.py <<'END'
import http.server, ssl, threading
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'<h1>From the internet</h1>'
        self.send_response(302 if self.path == '/inside' else 200)
        self.send_header('Location', 'https://127.0.0.1/')
        self.send_header('Content-Type', 'text/html')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain('cert.pem', 'key.pem')
secure = http.server.HTTPServer(('93.184.215.14', 443), Pages)
secure.socket = tls.wrap_socket(secure.socket, server_side=True)
plain = http.server.HTTPServer(('93.184.215.14', 80), Pages)
threading.Thread(target=plain.serve_forever, daemon=True).start()
open('ready', 'w').close()
secure.serve_forever()
END
setpriv --pdeathsig KILL python3 serve.py &
until [ -e ready ]; do sleep 0.05; done
"#;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn pages_come_from_public_addresses_over_trusted_connections() {
    if !is_root() {
        return;
    }
    let guest = Guest::start_apart(SERVER, &[("SSL_CERT_FILE", "{dir}/ca.pem")]).await;
    for scheme in ["http", "https"] {
        let answer = convert(&guest, &format!("{scheme}://{ADDRESS}/page")).await;
        assert_eq!(answer["data"], "# From the internet\n", "{answer}");
    }
    let answer = convert(&guest, &format!("https://{ADDRESS}/inside")).await;
    assert!(answer["message"].as_str().unwrap().contains("127.0.0.1/ is not on the public internet"), "{answer}");
    // A name that does not resolve.
    let answer = convert(&guest, "https://no-such-name.arenite.invalid/").await;
    assert!(answer["message"].as_str().unwrap().contains("could not fetch"), "{answer}");
}

#[tokio::test]
async fn who_is_not_trusted_is_not_read() {
    if !is_root() {
        return;
    }
    let guest = Guest::start_apart(SERVER, &[]).await;
    let answer = convert(&guest, &format!("https://{ADDRESS}/page")).await;
    assert!(answer["message"].as_str().unwrap().contains("certificate"), "{answer}");
}
