//! A byte stream out of a sandbox, next to nginx proxying the same bytes from a second nginx.

use std::fs;
use std::io::sink;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::http::Connection;
use super::report::{Row, quantile};
use crate::command::{find, program};
use crate::failure::{Attempt, Failure};

const BYTES: u64 = 256 << 20;
const ROUNDS: usize = 7;
/// How long nginx may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        // One process, as the configuration says: nothing is left when it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").attempt(|| "no port is free".into())?;
    Ok(listener.local_addr().attempt(|| "no port is free".into())?.port())
}

fn start(nginx: &Path, dir: &Path, name: &str, port: u16, location: &str) -> Result<Nginx, Failure> {
    let prefix = dir.join(name);
    fs::create_dir_all(prefix.join("logs")).attempt(|| format!("could not make {}", prefix.display()))?;
    let configuration = format!(
        "daemon off; master_process off; pid nginx.pid; error_log logs/error.log; events {{}}\n\
         http {{ access_log off; sendfile on; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ {location} }} }} }}\n"
    );
    let file = prefix.join("nginx.conf");
    fs::write(&file, configuration).attempt(|| format!("could not write {}", file.display()))?;
    let child = program(nginx).arg("-p").arg(&prefix).arg("-c").arg(&file).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let nginx = Nginx(child.attempt(|| "could not start nginx".into())?);
    let begun = Instant::now();
    while Connection::open(port).is_err() {
        if begun.elapsed() > START_LIMIT {
            return Err(Failure::new(format!("nginx doesn't listen; see {}", prefix.join("logs/error.log").display())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(nginx)
}

pub(super) fn measure(port: u16, api: &mut Connection, work: &Path) -> Result<Row, Failure> {
    const NAME: &str = "proxied byte stream";
    let Some(nginx) = find("nginx") else {
        return Ok(Row::plain("proxied byte stream (not measured: nginx is not there)", 0.0, "MB/s"));
    };
    let dir = work.join("stream");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("files")).attempt(|| format!("could not make {}", dir.display()))?;
    let file = fs::File::create(dir.join("files/stream")).attempt(|| "could not make the stream's file".into())?;
    file.set_len(BYTES).attempt(|| "could not size the stream's file".into())?;
    let (inner, outer) = (free_port()?, free_port()?);
    let _inner = start(&nginx, &dir, "inner", inner, &format!("root {};", dir.join("files").display()))?;
    let proxy = format!("proxy_pass http://127.0.0.1:{inner}; proxy_http_version 1.1; proxy_max_temp_file_size 0;");
    let _outer = start(&nginx, &dir, "outer", outer, &proxy)?;
    let _ = api.delete("bench-stream");
    api.create("bench-stream")?;
    api.bash("bench-stream", &format!("truncate -s {BYTES} ~/stream"))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let one = timed(port, "/sandbox/bench-stream/v1/file/download?path=/home/gem/stream")?;
        let other = timed(outer, "/stream")?;
        if round > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    api.delete("bench-stream")?;
    let rate = |samples: &[Duration]| BYTES as f64 / 1e6 / quantile(samples, 0.5).as_secs_f64();
    Ok(Row::throughput(NAME, rate(&ours), rate(&theirs), "MB/s", 0.8).against("nginx → nginx").goal_only())
}

fn timed(port: u16, path: &str) -> Result<Duration, Failure> {
    let mut connection = Connection::open(port)?;
    let begun = Instant::now();
    let got = connection.download(path, &mut sink())?;
    if got != BYTES {
        return Err(Failure::new(format!("{path} sent {got} bytes of {BYTES}")));
    }
    Ok(begun.elapsed())
}
