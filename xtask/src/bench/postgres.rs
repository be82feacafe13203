//! A Postgres server of Debian's package for one measurement, with its default settings. It vacuums nothing by itself, so its
//! counters are those of its clients.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{self, program, succeeds};
use crate::failure::{Attempt, Failure};

/// Debian's `nobody` and `nogroup`: Postgres refuses to run as root.
const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(60);

/// Its socket and its data are in a temporary directory, which is removed with it.
pub(super) struct Postgres {
    dir: PathBuf,
    programs: PathBuf,
    server: Option<Child>,
}

impl Postgres {
    pub(super) fn start() -> Result<Self, Failure> {
        let programs = newest()?;
        // The path of a socket must be short.
        let dir = PathBuf::from(format!("/tmp/arenite-bench-{}", std::process::id()));
        fs::create_dir(&dir).attempt(|| format!("could not create {}", dir.display()))?;
        let mut postgres = Self { dir, programs, server: None };
        chown(&postgres.dir, Some(NOBODY), Some(NOBODY)).attempt(|| "could not give Postgres its directory".into())?;
        let mut initialize = postgres.program("initdb");
        initialize.args(["-U", "arenite", "-A", "trust", "-E", "UTF8", "--locale=C", "-D"]).arg(postgres.dir.join("data"));
        command::output(&mut initialize)?;
        let log = postgres.dir.join("log");
        let file = fs::File::create(&log).attempt(|| format!("could not create {}", log.display()))?;
        let mut serve = postgres.program("postgres");
        serve.arg("-D").arg(postgres.dir.join("data")).arg("-k").arg(&postgres.dir).args([
            "-c",
            "listen_addresses=",
            "-c",
            "autovacuum=off",
        ]);
        serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        postgres.server = Some(serve.spawn().attempt(|| "could not start Postgres".into())?);
        let begun = Instant::now();
        while !succeeds(postgres.program("pg_isready").args(["-q", "-h"]).arg(&postgres.dir)) {
            if begun.elapsed() > LIMIT {
                return Err(Failure::new(format!("Postgres did not start: {}", fs::read_to_string(&log).unwrap_or_default())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(postgres)
    }

    /// The URL of a database.
    pub(super) fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=arenite", self.dir.display())
    }

    /// The rows of a statement in the database `postgres`, one a line.
    pub(super) fn sql(&self, statement: &str) -> Result<String, Failure> {
        let mut psql = self.program("psql");
        psql.arg("-h").arg(&self.dir).args(["-U", "arenite", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-Atc", statement]);
        command::output(&mut psql).map(|rows| rows.trim_end().to_owned())
    }

    /// The only number of a statement's answer.
    pub(super) fn number(&self, statement: &str) -> Result<f64, Failure> {
        let answer = self.sql(statement)?;
        answer.parse().attempt(|| format!("{statement} answered {answer:?}"))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = program(self.programs.join(name));
        // Without `groups`, a root that takes another user's id drops its own.
        command.current_dir(&self.dir).uid(NOBODY).gid(NOBODY).env("LC_ALL", "C");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It ends all sessions at once.
            let asked = succeeds(program("sh").args(["-c", "kill -QUIT \"$0\"", &server.id().to_string()]));
            let ended = if asked { server.wait().map(drop) } else { server.kill() };
            if let Err(error) = ended {
                eprintln!("Postgres did not end: {error}");
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} could not be removed: {error}", self.dir.display());
        }
    }
}

/// The programs of the newest version.
fn newest() -> Result<PathBuf, Failure> {
    let versions = fs::read_dir(Path::new("/usr/lib/postgresql")).into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    let number = |bin: &PathBuf| bin.parent().and_then(|version| version.file_name()?.to_str()?.parse::<u32>().ok());
    found.max_by_key(number).ok_or_else(|| Failure::new("Postgres is missing; install it: apt-get install postgresql"))
}
