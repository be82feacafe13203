//! A gigabyte into a sandbox and out of it, next to nginx proxying the same bytes from a second nginx.

use std::fs;
use std::io::{self, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::http::Connection;
use super::memory;
use super::report::{Report, Row, quantile};
use crate::command::{find, program};
use crate::failure::{Attempt, Failure, Outcome};
use crate::server::Started;

const NAME: &str = "bench-stream";
const BYTES: u64 = 1_000_000_000;
const ROUNDS: usize = 5;
/// Interval of memory measurements.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum time for nginx to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        // One process, by its configuration: nothing is left after it is killed.
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

pub(super) fn measure(port: u16, api: &mut Connection, work: &Path, report: &mut Report) -> Outcome {
    let nginx = find("nginx").ok_or_else(|| Failure::new("nginx is not there"))?;
    let dir = work.join("stream");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("files")).attempt(|| format!("could not make {}", dir.display()))?;
    let file = dir.join("files/stream");
    fill(&file).attempt(|| format!("could not write {}", file.display()))?;
    let (inner, outer) = (free_port()?, free_port()?);
    let _inner = start(&nginx, &dir, "inner", inner, &format!("root {};", dir.join("files").display()))?;
    let proxy = format!("proxy_pass http://127.0.0.1:{inner}; proxy_http_version 1.1; proxy_max_temp_file_size 0;");
    let _outer = start(&nginx, &dir, "outer", outer, &proxy)?;
    let _ = api.delete(NAME);
    api.create(NAME)?;
    let server = Started::find(port).ok_or_else(|| Failure::new("the server has gone"))?.pid;
    let owner = memory::first_id(api, NAME)?;
    let (mut downs, mut ups, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let is_over = AtomicBool::new(false);
    let peaks = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peaks = [0; 2];
            while !is_over.load(Ordering::Relaxed) {
                let now = [memory::of_process(server).unwrap_or(0), memory::of_owners(owner).unwrap_or(0)];
                peaks = [0, 1].map(|i| now[i].max(peaks[i]));
                thread::sleep(LOOK);
            }
            peaks
        });
        let rounds = (0..=ROUNDS).try_for_each(|round| {
            let mut connection = Connection::open(port)?;
            let begun = Instant::now();
            connection.upload(NAME, "/home/gem/stream", &file)?;
            let up = begun.elapsed();
            let down = timed(port, &format!("/sandbox/{NAME}/v1/file/download?path=/home/gem/stream"))?;
            connection.bash(NAME, "rm ~/stream")?;
            let other = timed(outer, "/stream")?;
            if round > 0 {
                ups.push(up);
                downs.push(down);
                theirs.push(other);
            }
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        rounds.and(watcher.join().map_err(|_| Failure::new("the watcher of memory panicked")))
    })?;
    // The server may have closed the other, idle connection.
    Connection::open(port)?.delete(NAME)?;
    let rate = |samples: &[Duration]| BYTES as f64 / 1e6 / quantile(samples, 0.5).as_secs_f64();
    for (name, ours) in [("download of 1 GB", &downs), ("upload of 1 GB", &ups)] {
        report.push(Row::throughput(name, rate(ours), rate(&theirs), "MB/s", 0.5).against("nginx → nginx"));
    }
    let goal = Row::throughput("proxied byte stream", rate(&downs), rate(&theirs), "MB/s", 0.8);
    report.push(goal.against("nginx → nginx").goal_only());
    for (name, peak) in ["server", "sandbox"].into_iter().zip(peaks) {
        let name = format!("meanwhile, the most PSS of the {name}");
        report.push(Row::at_most(&name, peak as f64 / f64::from(1 << 20), "MiB", 32.0));
    }
    Ok(())
}

/// Writes incompressible bytes.
fn fill(file: &Path) -> io::Result<()> {
    io::copy(&mut fs::File::open("/dev/urandom")?.take(BYTES), &mut fs::File::create(file)?)?;
    Ok(())
}

fn timed(port: u16, path: &str) -> Result<Duration, Failure> {
    let mut connection = Connection::open(port)?;
    let begun = Instant::now();
    let got = connection.download(path, &mut io::sink())?;
    if got != BYTES {
        return Err(Failure::new(format!("{path} sent {got} bytes of {BYTES}")));
    }
    Ok(begun.elapsed())
}
