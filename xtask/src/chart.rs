//! `cargo xtask chart`: what the Helm chart renders to, and whether the compose file is one.
//!
//! ```text
//!  deploy/helm/golden/NAME.values.yaml  ──►  deploy/helm/golden/NAME.yaml
//!                  install.values.yaml  ──►  deploy/install.yaml
//!  all of these, the chart, and compose ──►  deploy/helm/golden/SHA256SUMS
//! ```
//!
//! Helm takes minutes to build, so the lint does without: it compares the checksums, and refuses a change of the chart, of a
//! rendering, or of the compose file that `cargo xtask chart --bless` has not seen.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::command::{self, program, repository, target_dir};
use crate::dist::{VERSION, files_below, write};
use crate::failure::{Attempt, Failure, Outcome};
use crate::go;

const CHART: &str = "deploy/helm/arenite";
const GOLDEN: &str = "deploy/helm/golden";
const SUMS: &str = "deploy/helm/golden/SHA256SUMS";
const INSTALL: &str = "deploy/install.yaml";
const COMPOSE: &str = "deploy/compose.yaml";
/// The end of the names of value files.
const VALUES: &str = ".values.yaml";
/// The release and its namespace in renderings; `kubectl apply -n arenite -f deploy/install.yaml` needs the latter.
const RELEASE: &str = "arenite";
/// The version of Kubernetes that renderings are for. Helm's default changes with its version.
const KUBERNETES: &str = "1.36.0";
const INSTALL_HEADER: &str = "\
# Arenite on Kubernetes, without Helm. docs/KUBERNETES.md explains it.
#
#   kubectl create namespace arenite
#   kubectl apply -n arenite -f install.yaml
#
# Generated from deploy/helm/arenite by `cargo xtask chart --bless`: change the chart instead.
";

#[derive(Debug, Args)]
pub(crate) struct ChartArgs {
    /// Rewrite install.yaml and the golden files; check the difference before you commit it
    #[arg(long)]
    bless: bool,
    /// Only build Helm and print its path
    #[arg(long, conflicts_with = "bless")]
    helm: bool,
}

pub(crate) fn run(args: &ChartArgs) -> Outcome {
    let helm = go::HELM.ensure()?;
    if args.helm {
        println!("{}", helm.display());
        return Ok(());
    }
    command::output(program(go::COMPOSE.ensure()?).args(["-no-interpolation", COMPOSE]))?;
    let mut stale = Vec::new();
    for values in value_files()? {
        command::run(call(&helm).args(["lint", "--strict", "--quiet", CHART, "--values"]).arg(&values))?;
        let (file, text) = render(&helm, &values)?;
        if args.bless {
            write(&repository().join(&file), text.as_bytes())?;
        } else if fs::read_to_string(repository().join(&file)).ok().as_ref() != Some(&text) {
            stale.push(file.display().to_string());
        }
    }
    if args.bless {
        write(&repository().join(SUMS), sums()?.as_bytes())?;
    }
    if stale.is_empty() { check() } else { Err(is_stale(&stale)) }
}

/// Compares checksums and versions, without Helm.
pub(crate) fn check() -> Outcome {
    let about = read(Path::new(CHART).join("Chart.yaml"))?;
    for line in [format!("version: {VERSION}"), format!("appVersion: \"{VERSION}\"")] {
        if !about.lines().any(|has| has == line) {
            return Err(Failure::new(format!("{CHART}/Chart.yaml has no line {line:?}, the version of the program")));
        }
    }
    let (recorded, current) = (read(SUMS)?, sums()?);
    let [recorded, current] = [&recorded, &current].map(|sums| sums.lines().collect::<BTreeSet<_>>());
    let changed = recorded.symmetric_difference(&current).filter_map(|line| line.split_whitespace().nth(1));
    let changed: BTreeSet<String> = changed.map(str::to_owned).collect();
    if changed.is_empty() { Ok(()) } else { Err(is_stale(&Vec::from_iter(changed))) }
}

fn is_stale(files: &[String]) -> Failure {
    Failure::new(format!("the chart's renderings are not up to date; run: cargo xtask chart --bless ({})", files.join(", ")))
}

/// The rendering of a value file: its path and content.
fn render(helm: &Path, values: &Path) -> Result<(PathBuf, String), Failure> {
    let mut template = call(helm);
    template.args(["template", RELEASE, CHART, "--namespace", RELEASE, "--kube-version", KUBERNETES, "--values"]);
    let text = command::output(template.arg(values))?;
    let name = values.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(VALUES)).unwrap_or_default();
    Ok(match name {
        "install" => (INSTALL.into(), format!("{INSTALL_HEADER}{text}")),
        name => (Path::new(GOLDEN).join(format!("{name}.yaml")), text),
    })
}

/// Helm, without the plugins and settings of this host's user.
fn call(helm: &Path) -> std::process::Command {
    let home = target_dir().join("tools/helm-home");
    let mut command = program(helm);
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, home.join(name));
    }
    command.env_remove("KUBECONFIG");
    command
}

/// The value files, relative to the repository.
fn value_files() -> Result<Vec<PathBuf>, Failure> {
    let files = relative(Path::new(GOLDEN))?;
    Ok(files.into_iter().filter(|file| file.to_string_lossy().ends_with(VALUES)).collect())
}

/// The checksums of the chart, the value files, and the renderings.
fn sums() -> Result<String, Failure> {
    let mut files = [relative(Path::new(CHART))?, relative(Path::new(GOLDEN))?, vec![INSTALL.into(), COMPOSE.into()]].concat();
    files.retain(|file| file != Path::new(SUMS));
    command::output(program("sha256sum").args(files))
}

/// All files below a directory of the repository, sorted, relative to the repository.
fn relative(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let root = repository();
    let files = files_below(&root.join(dir))?;
    Ok(files.into_iter().filter_map(|file| file.strip_prefix(&root).map(Path::to_owned).ok()).collect())
}

fn read(file: impl AsRef<Path>) -> Result<String, Failure> {
    let file = repository().join(file);
    fs::read_to_string(&file).attempt(|| format!("could not read {}", file.display()))
}
