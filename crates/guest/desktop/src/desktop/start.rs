//! Starts the image's X server, and programs on its screen.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::bus;
use super::screen::Hands;
use super::service::{DesktopError, Size};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::process::{self, Child, Command, Kept, OwnedProcess, Said, ScratchDir};

/// Timeout for the X server's start. On an idle machine it takes some 20 ms.
const START: Duration = Duration::from_secs(30);
/// The display that programs get in `DISPLAY`, unless the sandbox's environment names another.
const DISPLAY: u32 = 99;
/// The number of displays that are tried: a program may already use the first ones.
const DISPLAYS: u32 = 10;
/// The directory in which programs look for displays.
const SOCKETS: &str = "/tmp/.X11-unix";

/// A started X server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) process: Kept,
    /// The display's name, such as `:99`.
    pub(super) display: String,
    /// The path of the socket for VNC's protocol.
    pub(super) vnc: String,
    /// Our connection to it.
    pub(super) hands: Hands,
}

/// Returns the path of a display's socket.
pub(super) fn socket(display: &str) -> String {
    format!("{SOCKETS}/X{}", display.trim_start_matches(':'))
}

/// The number of the display that is tried first.
fn first_display(runtime: &Runtime) -> u32 {
    let config = runtime.config();
    let named = config.env.get("DISPLAY").and_then(|d| d.strip_prefix(':')?.split('.').next()?.parse().ok());
    named.unwrap_or(DISPLAY)
}

/// The display that a desktop usually has.
pub(super) fn usual_display(runtime: &Runtime) -> String {
    format!(":{}", first_display(runtime))
}

/// Passes the display's socket, which is its standard input, to the X server by systemd's protocol for socket activation.
const TAKE_UP: &str = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";

/// Listens on a display's socket for an X server that starts later; `None` if the display is or was in use.
fn listen(runtime: &Runtime, number: u32) -> Option<UnixListener> {
    // If the user owned the directory, the user could put a link in the socket's place before `chown`.
    let dir = std::fs::symlink_metadata(SOCKETS).ok()?;
    if is_taken(number) || !dir.is_dir() || dir.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let place = socket(&number.to_string());
    let listener = UnixListener::bind(&place).ok()?;
    std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).ok()?;
    // The next server removes it. From here on, the user owns the file, so nothing else may be done to it.
    chown(&place, Some(runtime.user.uid), Some(runtime.user.gid)).ok()?;
    Some(listener)
}

fn is_taken(number: u32) -> bool {
    std::path::Path::new(&format!("/tmp/.X{number}-lock")).exists()
}

/// Starts an X server. `bound` fires as soon as programs can start on its display, [`usual_display`]: they wait for the server
/// then. It does not fire where that is impossible. Programs that started fail if the server can't serve them.
pub(super) async fn server(runtime: &Runtime, size: Size, bound: oneshot::Sender<()>) -> Result<Server, DesktopError> {
    let program = runtime.locate("Xvnc").ok_or(DesktopError::NoServer)?;
    let at = |what: &'static str| move |source: io::Error| DesktopError::Io { what, source };
    // Owned by root, as X servers expect; one that the sandbox's user creates is not trusted.
    let made = std::fs::DirBuilder::new().mode(0o1777).create(SOCKETS);
    if made.is_ok() {
        std::fs::set_permissions(SOCKETS, PermissionsExt::from_mode(0o1777)).map_err(at("the directory of displays"))?;
    }
    let first = first_display(runtime);
    if let Some(listener) = listen(runtime, first) {
        let inode = || std::fs::symlink_metadata(socket(&first.to_string())).map(|file| file.ino());
        let before = inode();
        // The receiver may have been dropped.
        let _ = bound.send(());
        let server = one_server(runtime, &program, first, size, Some(listener.into())).await;
        // A server that can't use the passed socket has created another, and earlier clients wait at the first.
        if let Ok(server) = server
            && before.is_ok_and(|before| inode().is_ok_and(|now| now == before))
        {
            return Ok(server);
        }
    }
    let is_free = |number: &u32| !is_taken(*number);
    let mut failure = None;
    // A server checks the lock of a killed predecessor itself, so the first display is always tried.
    let others = (first + 1..first.saturating_add(DISPLAYS)).filter(is_free);
    for number in [first].into_iter().chain(others) {
        match one_server(runtime, &program, number, size, None).await {
            Ok(server) => return Ok(server),
            Err(error @ DesktopError::Ended { .. }) => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or(DesktopError::NoServer))
}

/// `listener` is the display's socket, if it already exists.
async fn one_server(
    runtime: &Runtime,
    program: &str,
    number: u32,
    size: Size,
    listener: Option<OwnedFd>,
) -> Result<Server, DesktopError> {
    let at = |what: &'static str| move |source: io::Error| DesktopError::Io { what, source };
    let dir = ScratchDir::new(&runtime.user).map_err(at("its directory"))?;
    let vnc = dir.path().join("vnc").display().to_string();
    let display = format!(":{number}");
    let take_up: &[&str] = if listener.is_some() { &["/bin/sh", "-c", TAKE_UP] } else { &[] };
    let argv = [
        program,
        &display,
        "-geometry",
        &format!("{}x{}", size.width, size.height),
        "-depth",
        "24",
        // A socket file and no port: nothing else in the sandbox, such as a page, can reach it by address.
        "-rfbunixpath",
        &vnc,
        "-rfbunixmode",
        "0600",
        "-rfbport",
        "-1",
        "-nolisten",
        "tcp",
        "-SecurityTypes",
        "None",
        "-AlwaysShared",
        "-noreset",
        // The server's own OpenGL takes 50 MiB for a compiler; programs render with their own.
        "-extension",
        "GLX",
        "-desktop",
        "Desktop",
        // It writes its number there once it is ready.
        "-displayfd",
        "1",
    ];
    let (announced, stdout) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
    let (output, stderr) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
    let child = runtime
        .processes
        .spawn(Command {
            argv: take_up.iter().chain(&argv).map(|&word| word.to_owned()).collect(),
            env: runtime.environment(&runtime.user, &[]),
            cwd: runtime.user.home.display().to_string(),
            user: &runtime.user,
            stdio: [listener.map_or_else(process::dev_null, Ok).map_err(at("its input"))?, stdout, stderr],
            controlling_tty: false,
        })
        .await
        .map_err(DesktopError::NotSpawned)?;
    let said = Said::default();
    let listening = tokio::spawn(said.clone().listen(output));
    let mut process = OwnedProcess::new(child, dir);
    let deadline = Instant::now() + START;
    let announced = async {
        // The number and the line end arrive separately, and closing the pipe between them would kill the server.
        let mut line = String::new();
        BufReader::new(announced).take(16).read_line(&mut line).await.is_ok() && line.ends_with('\n')
    };
    match timeout_at(deadline, announced).await {
        Ok(true) => {}
        Ok(false) => {
            drop(timeout(Duration::from_millis(200), listening).await);
            let exit = timeout(Duration::from_millis(500), process.wait()).await;
            let how = exit.map_or_else(|_| "it went silent".to_owned(), |exit| exit.to_string());
            return Err(DesktopError::Ended { what: "the X server", how, said: said.text() });
        }
        Err(_) => return Err(DesktopError::TooSlow { what: "the X server", seconds: START.as_secs(), said: said.text() }),
    }
    let hands = Hands::over(connect(runtime, &display).await.map_err(at("its socket"))?).await?;
    Ok(Server { process: process.keep(), display, vnc, hands })
}

/// Opens a new connection to a display.
pub(super) async fn connect(runtime: &Runtime, display: &str) -> io::Result<std::os::unix::net::UnixStream> {
    let stream = timeout(START, dial::socket(runtime, &socket(display))).await??.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Starts a program on a display, and discards its output. The holder watches for its end.
pub(super) async fn program(runtime: &Runtime, display: &str, argv: &[&str]) -> Result<Kept, DesktopError> {
    let dir = ScratchDir::new(&runtime.user).map_err(|source| DesktopError::Io { what: "its directory", source })?;
    let child = spawn(runtime, display, argv).await.map_err(DesktopError::NotSpawned)?;
    Ok(OwnedProcess::new(child, dir).keep())
}

/// The environment variables by which programs find a desktop and its bus.
fn surroundings(runtime: &Runtime, display: &str) -> [(String, String); 2] {
    [("DISPLAY".to_owned(), display.to_owned()), (bus::VARIABLE.to_owned(), bus::address(runtime))]
}

async fn spawn(runtime: &Runtime, display: &str, argv: &[&str]) -> Result<Child, SpawnError> {
    let null = || {
        let file = std::fs::File::options().read(true).write(true).open("/dev/null");
        file.map(Into::into).map_err(SpawnError::Gone)
    };
    let command = Command {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: runtime.environment(&runtime.user, &surroundings(runtime, display)),
        cwd: runtime.user.home.display().to_string(),
        user: &runtime.user,
        stdio: [null()?, null()?, null()?],
        controlling_tty: false,
    };
    runtime.processes.spawn(command).await
}
