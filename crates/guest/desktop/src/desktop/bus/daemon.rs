//! The desktop's own bus: `dbus-daemon`, as the sandbox's user. Programs find it by `DBUS_SESSION_BUS_ADDRESS`, and it starts
//! services that they request, such as the accessibility bus.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::{BusError, Connection};
use crate::desktop::announced::Announced;
use crate::desktop::service::DesktopError;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::process::{self, Kept, ScratchDir};
use arenite_guest_runtime::users::User;

/// The default path of its socket, unless the sandbox's environment names another.
const PLACE: &str = "/run/desktop/bus";
/// The variable by which programs find it.
pub(in crate::desktop) const VARIABLE: &str = "DBUS_SESSION_BUS_ADDRESS";
/// The prefix of the address of a socket file.
const FILE: &str = "unix:path=";
/// The usual rules, and the guest, which is root, may connect too.
const RULES: &str = "<busconfig>\n\
    <include>/usr/share/dbus-1/session.conf</include>\n\
    <policy context=\"mandatory\"><allow user=\"root\"/></policy>\n\
    </busconfig>\n";
/// Timeout for a connection to its socket.
const DIAL: Duration = Duration::from_secs(2);
const WHAT: &str = "the desktop's bus";

/// A running bus. On drop, it ends with everything that it started.
#[derive(Debug)]
pub(in crate::desktop) struct Daemon {
    pub(in crate::desktop) process: Kept,
    /// The path of its socket.
    place: String,
}

/// Returns the path of the bus's socket in a sandbox.
fn place(runtime: &Runtime) -> String {
    let config = runtime.config();
    let named = config.env.get(VARIABLE).and_then(|address| file_of(address));
    named.unwrap_or_else(|| PLACE.to_owned())
}

/// The value of [`VARIABLE`] for programs of the desktop.
pub(in crate::desktop) fn address(runtime: &Runtime) -> String {
    format!("{FILE}{}", place(runtime))
}

/// Returns the socket file in an address: the first of its entries that is one.
pub(in crate::desktop) fn file_of(address: &str) -> Option<String> {
    let path = address.split(';').find_map(|one| one.strip_prefix(FILE))?;
    let path = path.split(',').next()?;
    // Reserved bytes in an address are escaped, as %2c.
    let plain = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
    (plain.starts_with('/') && !plain.contains('\0')).then(|| plain.into_owned())
}

/// Creates the directory of the default path, owned by the user.
fn make_room(place: &str, user: &User) -> io::Result<()> {
    let Some(dir) = Path::new(place).parent().filter(|_| place == PLACE) else { return Ok(()) };
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) if rustix::process::geteuid().is_root() => chown(dir, Some(user.uid), Some(user.gid)),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Daemon {
    /// Starts the bus; `None` if the image has none.
    pub(in crate::desktop) async fn start(runtime: &Runtime, display: &str) -> Result<Option<Self>, DesktopError> {
        let at = |source: io::Error| DesktopError::Io { what: WHAT, source };
        let Some(program) = runtime.locate("dbus-daemon") else { return Ok(None) };
        let place = place(runtime);
        make_room(&place, &runtime.user).map_err(at)?;
        let dir = ScratchDir::new(&runtime.user).map_err(at)?;
        let rules = dir.path().join("rules");
        // It must be new, or the user could have put a link there.
        File::create_new(&rules).and_then(|mut file| file.write_all(RULES.as_bytes())).map_err(at)?;
        let argv = [
            program,
            format!("--config-file={}", rules.display()),
            format!("--address={FILE}{place}"),
            "--nofork".to_owned(),
            "--nopidfile".to_owned(),
            // It writes its address there once it is ready.
            "--print-address=1".to_owned(),
        ];
        let program = Announced {
            what: WHAT,
            argv: argv.into(),
            // What it starts shows its windows there.
            env: vec![("DISPLAY".to_owned(), display.to_owned())],
            cwd: runtime.user.home.display().to_string(),
            stdin: process::dev_null().map_err(at)?,
            dir,
        };
        let process = program.start(runtime).await?;
        Ok(Some(Self { process: process.keep(), place }))
    }

    /// The path of its socket.
    pub(in crate::desktop) fn place(&self) -> &str {
        &self.place
    }
}

/// Connects to the bus with this socket file.
pub(in crate::desktop) async fn connect(runtime: &Runtime, place: &str) -> Result<Connection, BusError> {
    let stream = timeout(DIAL, dial::socket(runtime, place)).await.map_err(|_| BusError::Gone)??;
    Connection::open(stream).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_files() {
        for (address, wanted) in [
            ("unix:path=/run/desktop/bus", Some("/run/desktop/bus")),
            ("unix:path=/home/gem/.cache/at-spi/bus_99,guid=0123", Some("/home/gem/.cache/at-spi/bus_99")),
            ("tcp:host=x;unix:path=/a%20b%2cc,guid=1;unix:path=/d", Some("/a b,c")),
            ("unix:abstract=/tmp/x", None),
            ("unix:path=relative", None),
            ("unix:path=/a%00b", None),
            ("unix:path=/%ff", None),
            ("disabled:", None),
            ("", None),
        ] {
            assert_eq!(file_of(address).as_deref(), wanted, "{address}");
        }
    }
}
