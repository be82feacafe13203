//! `recover-storage`: runs in this process, while no server runs.

use std::process::ExitCode;

use arenite_engine::namespace::recover_storage;

use crate::cli::RecoverStorageArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

pub(crate) fn recover(args: &RecoverStorageArgs) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("the storage pool is mounted by the host's root").hint("put sudo before the command"));
    }
    let done = recover_storage(&args.data_dir.data_dir)
        .map_err(|error| Failure::new(format!("the storage pool could not be recovered: {error}")).maybe_hint(error.hint()))?;
    done.iter().for_each(output::line);
    Ok(ExitCode::SUCCESS)
}
