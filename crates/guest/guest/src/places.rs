//! Directories that programs expect and an image may lack: `scratch` has none.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::Path;

use arenite_guest_runtime::users::User;

use crate::Guest;

/// Creates what is missing in the sandbox's writable layer: `/tmp`, `/run`, the users' homes, and the directory of commands,
/// as Dockerfiles' WORKDIR does. Existing ones are left as they are.
pub(crate) fn make_missing(guest: &Guest) {
    let runtime = &guest.runtime;
    let root = &runtime.root_user;
    let config = runtime.config();
    let workdir = config.default_dir().map(Path::new);
    let places = [
        (Path::new("/tmp"), 0o1777, root),
        (Path::new("/run"), 0o755, root),
        (&root.home, 0o700, root),
        (&runtime.user.home, 0o755, &runtime.user),
    ];
    let workdir = workdir.map(|dir| (dir, 0o755, &runtime.user));
    for (dir, mode, owner) in places.into_iter().chain(workdir) {
        if let Err(error) = make(dir, mode, owner) {
            tracing::error!(dir = %dir.display(), %error, "the directory could not be made");
        }
    }
}

fn make(dir: &Path, mode: u32, owner: &User) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    fs::create_dir(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(mode))?;
    match rustix::process::geteuid().is_root() {
        true => chown(dir, Some(owner.uid), Some(owner.gid)),
        false => Ok(()),
    }
}
