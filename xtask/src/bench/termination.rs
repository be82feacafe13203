//! What it costs that the egress proxy ends TLS for a host of a secret: a request on a warm connection, and on a new one.
//!
//! The same server and program without a policy are the floor. The server has a resolver and an authority of this bench.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;

use super::egress::{ADDRESS, NAMESPACE, World};
use super::http::Connection;
use super::quietly;
use super::report::{Report, Row};
use crate::command::program;
use crate::failure::{Attempt, Failure, Outcome};

const NAME: &str = "api.bench.test";
const RESOLVER: &str = "127.0.0.1:9053";
const ROUNDS: usize = 10;
const WARM_UP: usize = 2;
const REQUESTS: usize = 100;
/// Answers all names with one address.
const NAMES: &str = r#"
import socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", 9053))
print("ready", flush=True)
while True:
    query, client = sock.recvfrom(4096)
    end = query.index(b"\0", 12) + 5
    found = query[end - 4:end - 2] == b"\0\1"
    head = query[:2] + struct.pack(">5H", 0x8180, 1, int(found), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 300, 4) + socket.inet_aton(sys.argv[1])
    sock.sendto(head + query[12:end] + (record if found else b""), client)
"#;
/// Answers each request over TLS.
const SERVER: &str = r#"
import ssl, sys
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
class Answer(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *args): pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server = ThreadingTCPServer((sys.argv[1], 443), Answer)
server.daemon_threads = True
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
"#;
/// Prints the nanoseconds of each request.
const CLIENT: &str = r#"
import http.client, os, ssl, sys, time
kind, count = sys.argv[1], int(sys.argv[2])
context = ssl.create_default_context()
def connect(): return http.client.HTTPSConnection("api.bench.test", context=context)
def ask(connection):
    connection.request("GET", "/", headers={"authorization": os.environ.get("KEY", "none")})
    answer = connection.getresponse()
    assert answer.read() == b"ok", answer.status
warm = connect()
ask(warm)
for _ in range(count):
    connection = warm if kind == "warm" else connect()
    begun = time.perf_counter_ns()
    ask(connection)
    print(time.perf_counter_ns() - begun)
    if kind != "warm": connection.close()
"#;
const OPEN: &str = "bench-not-ended";
const ENDED: &str = "bench-ended";

/// The certificates, and the arguments of a server that uses them.
pub(super) fn prepare(work: &Path) -> Result<Vec<String>, Failure> {
    let subject = |name: &str| format!("/CN={name}");
    let common = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"];
    let authority = [&common[..], &["-keyout", "bench-ca.key", "-out", "bench-ca.pem", "-subj"]].concat();
    quietly("openssl", &[&authority[..], &[&subject("Arenite bench")]].concat(), work)?;
    let alternative = format!("subjectAltName=DNS:{NAME}");
    let server = ["-CA", "bench-ca.pem", "-CAkey", "bench-ca.key", "-keyout", "bench.key", "-out", "bench.pem"];
    let extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", &alternative, "-subj", &subject(NAME)];
    quietly("openssl", &[&common[..], &server, &extensions].concat(), work)?;
    let authority = work.join("bench-ca.pem").display().to_string();
    Ok(["--resolver", RESOLVER, "--extra-ca", &authority].map(str::to_owned).to_vec())
}

pub(super) fn measure(api: &mut Connection, work: &Path, report: &mut Report) -> Outcome {
    let _world = World::start()?;
    let _names = Running::start("python3", &["-c", NAMES, ADDRESS], work)?;
    let server = ["netns", "exec", NAMESPACE, "python3", "-c", SERVER, ADDRESS, "bench.pem", "bench.key"];
    let _server = Running::start("ip", &server, work)?;
    api.put("/api/v2/secrets/bench", &json!({ "value": "the-value-of-the-bench", "hosts": [NAME] }))?;
    let allowlist = json!({ "mode": "allowlist", "allow": [NAME] });
    for (name, network, env) in [(OPEN, json!("open"), json!({})), (ENDED, allowlist, json!({ "KEY": "{{secret:bench}}" }))] {
        api.post("/api/v2/sandboxes", &json!({ "name": name, "image": "base", "network": network, "env": env }))?;
        api.bash(name, &format!("cat >/tmp/client.py <<'END'\n{CLIENT}\nEND"))?;
    }
    for (what, kind) in [("request on a warm connection", "warm"), ("request on a new connection", "new")] {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + ROUNDS {
            let floor = run(api, OPEN, kind)?;
            let ended = run(api, ENDED, kind)?;
            if round >= WARM_UP {
                floors.extend(floor);
                ours.extend(ended);
            }
        }
        let name = format!("{what} with a secret, TLS ended at the proxy, p50");
        report.push(Row::added(&name, &ours, &floors, 3.0).against("an open network"));
    }
    for name in [OPEN, ENDED] {
        api.delete(name)?;
    }
    Ok(())
}

fn run(api: &mut Connection, name: &str, kind: &str) -> Result<Vec<Duration>, Failure> {
    let said = api.bash(name, &format!("python3 /tmp/client.py {kind} {REQUESTS}"))?;
    said.lines().map(|line| line.parse().map(Duration::from_nanos).attempt(|| format!("{name} said {line:?}"))).collect()
}

/// A program that has said that it is ready, until it is dropped.
struct Running(Child);

impl Running {
    fn start(name: &str, arguments: &[&str], work: &Path) -> Result<Self, Failure> {
        let mut command = program(name);
        command.args(arguments).current_dir(work).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Self(command.spawn().attempt(|| format!("could not start {name}"))?);
        let mut line = String::new();
        let output = running.0.stdout.take().map(BufReader::new);
        output.map_or(Ok(0), |mut output| output.read_line(&mut line)).attempt(|| format!("{name} of the bench said nothing"))?;
        if line.trim() == "ready" { Ok(running) } else { Err(Failure::new(format!("{name} of the bench did not start"))) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
