//! `cargo xtask test-kubernetes`: builds a cluster and the program, and runs `tests/kubernetes` with both.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;

use super::cluster::{self, Cluster};
use super::images::{self, Images};
use super::{SizeArgs, prepare};
use crate::binary::{self, Profile};
use crate::command::{self, program, repository};
use crate::failure::{Attempt, Failure, Outcome};
use crate::{host, python};

/// The folder of the tests, in `tests`.
const FOLDER: &str = "kubernetes";
/// Two nodes, as tests move pods from one to the other.
const SIZE: SizeArgs = SizeArgs { nodes: 2, fake_nodes: 2 };

const EXAMPLES: &str = "Examples:
  cargo xtask test-kubernetes
  cargo xtask test-kubernetes -- -k restart

  # with a cluster that stays up:
  cargo xtask kubernetes up --nodes 2 --fake-nodes 2 && cargo xtask test-kubernetes";

/// Start a Kubernetes cluster, run the tests of `tests/kubernetes` on it, and take it down
///
/// The cluster's programs are built the first time, which takes 10 to 18 minutes on two cores. After that, it starts in about
/// 15 seconds.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TestKubernetesArgs {
    /// Arguments for pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub(crate) fn run(args: &TestKubernetesArgs) -> Outcome {
    let begun = Instant::now();
    let step = |what: &str| eprintln!("\n== {what} ({:.0} s so far)", begun.elapsed().as_secs_f64());
    host::must_be_root("test-kubernetes")?;
    step("1 of 4: what the host lacks, and the cluster's programs");
    host::prepare(&[host::TO_BUILD, host::TO_RUN_PYTEST])?;
    prepare(SIZE)?;
    step("2 of 4: arenite and the tests' environment");
    let arenite = binary::build(Profile::Checked)?;
    let guests = binary::example("guests", Profile::Checked)?;
    let python = python::environment()?;
    step("3 of 4: the cluster");
    let running = Cluster::find()?;
    // Before the start of a cluster, which can be interrupted too.
    let guard = running.is_none().then(TakeDown::start).transpose()?;
    let outcome = with_cluster(running, |cluster| {
        step("4 of 4: tests/kubernetes");
        cluster.import(&Images::new(cluster.dir().join("images")).guest(&arenite)?)?;
        command::run(pytest(cluster, &arenite, &python, &args.pytest)?.env("ARENITE_TEST_GUESTS", &guests))
    });
    let taken_down = guard.map_or(Ok(()), TakeDown::finish);
    outcome?;
    taken_down?;
    println!("test result: ok. tests/kubernetes passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn with_cluster(running: Option<Cluster>, tests: impl FnOnce(&Cluster) -> Outcome) -> Outcome {
    let cluster = match running {
        Some(cluster) => {
            eprintln!("a cluster runs already; the tests use it and leave it up");
            cluster
        }
        None => Cluster::up(SIZE.into())?,
    };
    // Logs stay until the next start.
    let logs = cluster.dir().join("logs");
    tests(&cluster).map_err(|failure| Failure::new(format!("{failure}; the cluster's logs are in {}", logs.display())))
}

fn pytest(cluster: &Cluster, arenite: &Path, python: &Path, args: &[String]) -> Result<Command, Failure> {
    let xtask = std::env::current_exe().attempt(|| "could not find this program".into())?;
    let mut pytest = program(python);
    pytest.current_dir(repository().join("tests")).args(["-m", "pytest"]);
    // Arguments may name files of the folder.
    if !args.iter().any(|arg| arg.starts_with(FOLDER)) {
        pytest.arg(FOLDER);
    }
    pytest.args(args).env("ARENITE_BIN", arenite);
    pytest.env("ARENITE_TEST_KUBECONFIG", cluster.kubeconfig()).env("ARENITE_TEST_KUBECTL", cluster.dir().join("bin/kubectl"));
    pytest.env("ARENITE_TEST_XTASK", xtask).env(cluster::KUBECTL_CACHE, cluster.kubectl_cache());
    pytest.env("ARENITE_TEST_AUDIT_LOG", cluster.log("audit"));
    pytest.env("ARENITE_TEST_BUSYBOX_IMAGE", images::BUSYBOX).env("ARENITE_TEST_GUEST_IMAGE", images::GUEST);
    Ok(pytest)
}

/// Takes the cluster down when this task ends, also if it is interrupted: a process waits for the end of its input, which this
/// task holds.
struct TakeDown(Child);

impl TakeDown {
    fn start() -> Result<Self, Failure> {
        let xtask = std::env::current_exe().attempt(|| "could not find this program".into())?;
        let mut down = program(xtask);
        // Ctrl-C ends the others of this terminal's group.
        down.args(["kubernetes", "down", "--after-input"]).stdin(Stdio::piped()).process_group(0);
        down.spawn().map(Self).attempt(|| "could not start the process that takes the cluster down".into())
    }

    fn finish(mut self) -> Outcome {
        drop(self.0.stdin.take());
        let status = self.0.wait().attempt(|| "could not wait for the cluster's end".into())?;
        if status.success() { Ok(()) } else { Err(Failure::new("the cluster was not taken down; see above")) }
    }
}
