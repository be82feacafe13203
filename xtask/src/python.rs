//! The Python environment of the end-to-end tests.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::command::{self, program, repository, succeeds, tools_dir};
use crate::failure::{Attempt, Failure};

/// The interpreter of an environment with exactly the pinned packages of `tests/requirements.txt`, and those of
/// `requirements-alone.txt` without their dependencies.
pub(crate) fn environment() -> Result<PathBuf, Failure> {
    // Tests are prepared while others run.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let requirements = repository().join("tests/requirements.txt");
    let alone = repository().join("tests/requirements-alone.txt");
    let read = |file: &Path| std::fs::read_to_string(file).attempt(|| format!("could not read {}", file.display()));
    let wanted = read(&requirements)? + &read(&alone)?;
    let mut hasher = DefaultHasher::new();
    wanted.hash(&mut hasher);
    let dir = tools_dir().join(format!("python-{:016x}", hasher.finish()));
    let python = dir.join("bin/python");
    let mark = dir.join("installed-requirements.txt");
    if std::fs::read_to_string(&mark).is_ok_and(|have| have == wanted) && succeeds(program(&python).args(["-c", "import pytest"]))
    {
        return Ok(python);
    }
    // --clear: packages of an older list must not stay.
    command::run(program("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    for (file, with) in [(&requirements, None), (&alone, Some("--no-deps"))] {
        let mut install = program(&python);
        // Some packages have thousands of modules, and the tests import a few: those are compiled when they are imported.
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]).args(with);
        command::download(install.arg("--requirement").arg(file))?;
    }
    std::fs::write(&mark, wanted).attempt(|| format!("could not write {}", mark.display()))?;
    Ok(python)
}
