//! `cargo xtask clients`: the clients for Python and TypeScript, generated from the OpenAPI documents and packaged.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::command::{self, program, repository, target_dir};
use crate::failure::{Attempt, Outcome};
use crate::{python, web};

/// What the build of the TypeScript client reads.
const TYPESCRIPT: [&str; 6] =
    ["generate.mjs", "package.json", "package-lock.json", "tsconfig.json", "src", "../../crates/gateway/golden"];

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    /// Directory for the wheel and the npm tarball [default: clients in the target directory]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &ClientsArgs) -> Outcome {
    let output = args.output.clone().unwrap_or_else(|| target_dir().join("clients"));
    std::fs::create_dir_all(&output).attempt(|| format!("could not make {}", output.display()))?;
    generate()?;
    let interpreter = python::environment()?;
    let pip = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir"];
    command::run(in_python(&interpreter).args(pip).arg(&output).arg("."))?;
    build_typescript()?;
    command::run(in_typescript("npm").args(["pack", "--silent", "--pack-destination"]).arg(&output))
}

/// Writes the generated parts of the Python client.
pub(crate) fn generate() -> Outcome {
    // It needs no packages.
    command::run(in_python(Path::new("python3")).arg("generate.py"))
}

/// Checks types, and that generated files are up to date.
pub(crate) fn check() -> Outcome {
    let interpreter = python::environment()?;
    command::run(in_python(&interpreter).args(["generate.py", "--check"]))?;
    let cache = target_dir().join("mypy");
    command::run(in_python(&interpreter).args(["-m", "mypy", "--no-error-summary", "--cache-dir"]).arg(cache))?;
    build_typescript()
}

/// The clients' own tests.
pub(crate) fn test() -> Outcome {
    let mut pytest = in_python(&python::environment()?);
    // A folder for their files that no other run uses.
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"]).arg(target_dir().join("package-tests"));
    command::run(&mut pytest)?;
    build_typescript()?;
    command::run(in_typescript("npm").args(["test", "--silent"]))
}

/// Builds the TypeScript client if a source or a document changed since the last build.
fn build_typescript() -> Outcome {
    let folder = repository().join("clients/typescript");
    web::install(&folder)?;
    let mark = folder.join("node_modules/.built-from");
    let built = std::fs::read_to_string(&mark).unwrap_or_default();
    if folder.join("dist/index.js").is_file() && web::fingerprint(&folder, &TYPESCRIPT)? == built {
        return Ok(());
    }
    command::run(in_typescript("npm").args(["run", "--silent", "build"]))?;
    // After the build, because it generates sources.
    let sources = web::fingerprint(&folder, &TYPESCRIPT)?;
    std::fs::write(&mark, sources).attempt(|| format!("could not write {}", mark.display()))
}

fn in_python(interpreter: &Path) -> Command {
    let mut python = program(interpreter);
    python.current_dir(repository().join("clients/python"));
    python
}

fn in_typescript(name: &str) -> Command {
    let mut program = program(name);
    program.current_dir(repository().join("clients/typescript"));
    program
}
