//! A Postgres server for one test: its own cluster in a temporary directory, on a Unix socket, as an unprivileged user.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use arenite_control::store::PostgresAddress;
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};

/// Debian's `nobody` and `nogroup`: Postgres refuses to run as root.
const NOBODY: u32 = 65_534;

pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        // A socket's path must be short, and the other user must be able to reach it.
        let dir = tempfile::Builder::new().prefix("pg").tempdir_in("/tmp").unwrap();
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fill(dir.path());
        let mut cluster = Self { dir, server: None };
        cluster.resume();
        cluster
    }

    /// Starts the server again after [`Cluster::kill`].
    pub(crate) fn resume(&mut self) {
        let begun = Instant::now();
        let socket = self.dir.path().join(".s.PGSQL.5432");
        loop {
            let mut server = unprivileged("postgres", self.dir.path())
                .arg("-D")
                .arg(self.dir.path().join("data"))
                .arg("-k")
                .arg(self.dir.path())
                .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=30"])
                .stdout(Stdio::null())
                .stderr(std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap())
                .spawn()
                .unwrap();
            // A process of the previous server may still hold its memory; the new one then ends.
            while server.try_wait().unwrap().is_none() {
                if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                    self.server = Some(server);
                    return;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "Postgres did not start");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Kills all processes of the server.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut server) = self.server.take() {
            server.wait().unwrap();
        }
        std::fs::remove_file(self.dir.path().join(".s.PGSQL.5432")).unwrap();
        std::fs::remove_file(self.dir.path().join("data/postmaster.pid")).unwrap();
    }

    /// Sends a signal to all processes of the server.
    pub(crate) fn signal(&self, signal: Signal) {
        let Some(server) = &self.server else { return };
        let id = server.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        for id in std::iter::once(id as i32).chain(children) {
            // A session may have ended by itself.
            let _ = kill_process(Pid::from_raw(id).unwrap(), signal);
        }
    }

    /// The directory of the socket.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn address(&self) -> PostgresAddress {
        url(self.dir(), "postgres").parse().unwrap()
    }

    /// A session of another program.
    pub(crate) async fn client(&self) -> Client {
        let begun = Instant::now();
        loop {
            match tokio_postgres::connect(&url(self.dir(), "postgres"), NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(server) = &mut self.server {
            let _ = server.wait();
        }
    }
}

/// Makes the directory `data` of a new cluster: a copy of the first one that a test made, since making one takes much longer.
fn fill(dir: &Path) {
    let data = dir.join("data");
    let version = newest().parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
    let template = option_env!("CARGO_TARGET_TMPDIR").map(|target| Path::new(target).join(format!("postgres-{version}")));
    if let Some(template) = template.as_ref().filter(|template| template.is_dir()) {
        return copy(template, &data);
    }
    let made = unprivileged("initdb", dir)
        .args(["-U", "arenite", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    if let Some(template) = template {
        // Another test may be faster, which then keeps its own.
        let scratch = tempfile::tempdir_in(template.parent().unwrap()).unwrap();
        copy(&data, &scratch.path().join("data"));
        let _ = std::fs::rename(scratch.path().join("data"), template);
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}

/// The URL of a database with its socket in a directory.
pub(crate) fn url(dir: &Path, database: &str) -> String {
    format!("postgres:///{database}?host={}&user=arenite", dir.display())
}

/// A program of Postgres, as another user if the test runs as root. It ends with the test's thread.
fn unprivileged(program: &str, dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "QUIT"]).arg(newest().join(program)).current_dir(dir).env("LC_ALL", "C");
    command
}

fn newest() -> PathBuf {
    let found =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|version| version.path().join("bin"));
    let found = found.filter(|bin| bin.join("initdb").exists()).max();
    found.expect("Postgres is missing; install it: apt-get install postgresql")
}
