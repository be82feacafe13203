//! What a network policy costs: throughput and new connections next to an open network, and the proxy's memory.
//!
//! Servers are in a network namespace that plays the internet. Both sandboxes reach it over the same links.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::Connection;
use super::report::{Report, Row};
use super::{memory, quietly};
use crate::command::program;
use crate::failure::{Attempt, Failure, Outcome};
use crate::server::Started;

const ROUNDS: usize = 10;
const WARM_UP: usize = 2;
/// Bytes of one transfer, and of one at 1 Gbit/s.
const BYTES: usize = 512 << 20;
const SLOW_BYTES: usize = 128 << 20;
/// New connections of one round.
const CONNECTIONS: usize = 100;
/// Sandboxes and rules of each, for the proxy's memory.
const SANDBOXES: usize = 200;
const RULES: usize = 100;
pub(super) const NAMESPACE: &str = "arenite-bench";
const LINK: &str = "ar-bench0";
/// A public address, so that sandboxes may reach it.
pub(super) const ADDRESS: &str = "11.204.0.2";
const SENDER: u16 = 9001;
const GREETER: u16 = 9002;
const WEB: u16 = 9003;
/// 1 and 10 Gbit/s.
const SLOW: u16 = 9004;
const PACED: u16 = 9005;
/// Sends without end, greets once, answers one request, and sends at 1 and at 10 Gbit/s, on a port each.
const SERVERS: &str = r#"
import socket, threading, time
def serve(port, answer):
    listener = socket.create_server(("", port), backlog=512)
    def one(connection):
        with connection:
            try: answer(connection)
            except OSError: pass
    def accept():
        while True: threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
block = bytes(1 << 20)
def send(connection):
    while True: connection.sendall(block)
def pace(rate):
    def send(connection):
        begun, sent = time.monotonic(), 0
        while True:
            connection.sendall(block[:1 << 18])
            sent += 1 << 18
            time.sleep(max(0, begun + sent / rate - time.monotonic()))
    return send
def web(connection):
    connection.recv(4096); connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
serve(9001, send); serve(9002, lambda connection: connection.sendall(b"x")); serve(9003, web); serve(9004, pace(125e6)); serve(9005, pace(1250e6))
print("ready", flush=True)
threading.Event().wait()
"#;
/// Prints the nanoseconds of a transfer, or of each connection until its first byte.
const CLIENT: &str = r#"
import socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
def connect(): return socket.create_connection(("11.204.0.2", port), 10)
if port in (9001, 9004, 9005):
    with connect() as s:
        buffer, left, begun = bytearray(1 << 20), count, time.perf_counter_ns()
        while left > 0: left -= s.recv_into(buffer)
        print(time.perf_counter_ns() - begun)
else:
    for _ in range(count):
        begun = time.perf_counter_ns()
        with connect() as s:
            if port == 9003: s.sendall(b"GET / HTTP/1.1\r\nHost: 11.204.0.2:9003\r\n\r\n")
            assert s.recv(1), "it was refused"
            print(time.perf_counter_ns() - begun)
"#;
const OPEN: &str = "bench-open";
const POLICED: &str = "bench-policed";

pub(super) fn measure(port: u16, api: &mut Connection, report: &mut Report) -> Outcome {
    let _world = World::start()?;
    connections(api, report)?;
    memory_of_proxy(port, api, report)
}

fn connections(api: &mut Connection, report: &mut Report) -> Outcome {
    let rules = [format!("{ADDRESS}:{SENDER},{GREETER},{SLOW},{PACED}/tcp"), format!("{ADDRESS}:{WEB}/http")];
    for (name, network) in [(OPEN, json!("open")), (POLICED, json!({ "mode": "allowlist", "allow": rules }))] {
        api.post("/api/v2/sandboxes", &json!({ "name": name, "image": "base", "network": network }))?;
        api.bash(name, &format!("cat >/tmp/client.py <<'END'\n{CLIENT}\nEND"))?;
    }
    for (what, port, count) in [
        ("transfer of 128 MiB at 1 Gbit/s", SLOW, SLOW_BYTES),
        ("transfer of 512 MiB at 10 Gbit/s", PACED, BYTES),
        ("transfer of 512 MiB as fast as it goes", SENDER, BYTES),
        ("new connection", GREETER, CONNECTIONS),
        ("new request", WEB, CONNECTIONS),
    ] {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + ROUNDS {
            let floor = run(api, OPEN, port, count)?;
            let policed = run(api, POLICED, port, count)?;
            if round >= WARM_UP {
                floors.extend(floor);
                ours.extend(policed);
            }
        }
        let name = format!("{what} under an allowlist, p50");
        let row = match port {
            SLOW | PACED => Row::ratio(&name, &ours, 0.5, &floors, 0.5, 1.05),
            // Without a link, each byte is copied twice more, and nothing else limits it.
            SENDER => Row::ratio(&name, &ours, 0.5, &floors, 0.5, 1.05).goal_only(),
            _ => Row::added(&name, &ours, &floors, 1.0),
        };
        report.push(row.against("an open network"));
    }
    api.delete(OPEN)?;
    api.delete(POLICED)
}

fn run(api: &mut Connection, name: &str, port: u16, count: usize) -> Result<Vec<Duration>, Failure> {
    let said = api.bash(name, &format!("python3 /tmp/client.py {port} {count}"))?;
    said.lines().map(|line| line.parse().map(Duration::from_nanos).attempt(|| format!("{name} said {line:?}"))).collect()
}

fn memory_of_proxy(port: u16, api: &mut Connection, report: &mut Report) -> Outcome {
    let create = |api: &mut Connection, number: usize| {
        let allow: Vec<Value> = (0..RULES).map(|rule| json!(format!("host-{rule}.of-{number}.example:443"))).collect();
        let network = json!({ "mode": "allowlist", "allow": allow });
        let resources = json!({ "memory_bytes": 128 << 20, "disk_bytes": 64 << 20, "shm_bytes": 1 << 20 });
        let body =
            json!({ "name": format!("bench-rules-{number}"), "image": "base", "network": network, "resources": resources });
        api.post("/api/v2/sandboxes", &body).map(drop)
    };
    let created = (0..SANDBOXES).try_for_each(|number| create(api, number));
    let used = created.and_then(|()| {
        let server = Started::find(port).ok_or_else(|| Failure::new("the measured server is gone"))?.pid;
        let proxy = proxy_of(server)?;
        memory::of_process(proxy).ok_or_else(|| Failure::new("the egress proxy ended"))
    });
    for name in api.sandboxes()?.iter().filter(|name| name.starts_with("bench-rules-")) {
        api.delete(name)?;
    }
    let megabytes = used? as f64 / f64::from(1 << 20);
    report.push(Row::at_most("the egress proxy with 200 sandboxes of 100 rules each, PSS", megabytes, "MiB", 20.0));
    Ok(())
}

/// The egress proxy that a server started.
fn proxy_of(server: u32) -> Result<u32, Failure> {
    let found =
        program("pgrep").args(["-P", &server.to_string(), "-f", "egress"]).output().attempt(|| "could not run pgrep".into())?;
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    text.trim().parse().attempt(|| format!("the server has no single egress proxy: {text:?}"))
}

/// The namespace with the servers.
pub(super) struct World {
    servers: Child,
}

impl World {
    pub(super) fn start() -> Result<Self, Failure> {
        Self::remove();
        let here = std::path::Path::new("/");
        for command in [
            format!("netns add {NAMESPACE}"),
            format!("link add {LINK} type veth peer name eth0 netns {NAMESPACE}"),
            format!("addr add 11.204.0.1/24 dev {LINK}"),
            format!("link set {LINK} up"),
            format!("-n {NAMESPACE} link set lo up"),
            format!("-n {NAMESPACE} addr add {ADDRESS}/24 dev eth0"),
            format!("-n {NAMESPACE} link set eth0 up"),
            format!("-n {NAMESPACE} route add default via 11.204.0.1"),
        ] {
            quietly("ip", &command.split(' ').collect::<Vec<_>>(), here)?;
        }
        let mut command = program("ip");
        command.args(["netns", "exec", NAMESPACE, "python3", "-c", SERVERS]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut world = Self { servers: command.spawn().attempt(|| "could not start the servers of the bench".into())? };
        let output = world.servers.stdout.take().map(BufReader::new);
        let mut line = String::new();
        output
            .map_or(Ok(0), |mut output| output.read_line(&mut line))
            .attempt(|| "the servers of the bench said nothing".into())?;
        if line.trim() == "ready" { Ok(world) } else { Err(Failure::new("the servers of the bench did not start")) }
    }

    /// What an interrupted run left, too.
    fn remove() {
        let _ = quietly("ip", &["link", "del", LINK], std::path::Path::new("/"));
        let _ = quietly("ip", &["netns", "del", NAMESPACE], std::path::Path::new("/"));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.servers.kill();
        let _ = self.servers.wait();
        Self::remove();
    }
}
