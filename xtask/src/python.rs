//! The Python environment of the end-to-end tests.

use std::path::PathBuf;

use crate::command::{self, program, repository, succeeds, target_dir};
use crate::failure::{Attempt, Failure};

/// The interpreter of an environment that has exactly what `tests/requirements.txt` pins.
pub(crate) fn environment() -> Result<PathBuf, Failure> {
    let requirements = repository().join("tests/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).attempt(|| format!("could not read {}", requirements.display()))?;
    let dir = target_dir().join("venv");
    let python = dir.join("bin/python");
    let mark = dir.join("installed-requirements.txt");
    if std::fs::read_to_string(&mark).is_ok_and(|have| have == wanted) && succeeds(program(&python).args(["-c", "import pytest"]))
    {
        return Ok(python);
    }
    // --clear: what an older list wanted must not stay.
    command::run(program("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    let mut install = program(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&requirements);
    command::run(&mut install)?;
    std::fs::write(&mark, wanted).attempt(|| format!("could not write {}", mark.display()))?;
    Ok(python)
}
