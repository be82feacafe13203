//! One RUN of an image build: the guest as a bare first process, without its server.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use arenite_isolation::Given;
use arenite_model::protocol::{self, GuestConfig};

use arenite_guest_desktop::vm;
use arenite_guest_proxy::ProxySettings;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Command, Exit, Processes};
use arenite_guest_runtime::users::User;

/// Runs the configuration's `args` and writes the exit code, or the error, to the status pipe.
pub(crate) fn run(output: OwnedFd, mut given: Given) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, "a build step needs its descriptors");
    let config = File::from(given.named.remove(protocol::CONFIG).ok_or_else(missing)?);
    let mut config: GuestConfig = serde_json::from_reader(io::BufReader::new(config))?;
    let mut status = File::from(given.named.remove(protocol::STATUS).ok_or_else(missing)?);
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = executor.block_on(async move {
        let name = config.user.clone().unwrap_or_else(|| "root".to_owned());
        let user = User::configured(&name).or_else(|| (name == "root").then(User::root));
        let user = user.ok_or_else(|| format!("the image has no user {name:?}"))?;
        let processes = Processes::start(given.spawner, Vec::new()).map_err(|e| e.to_string())?;
        // A command must not see the proxy's credentials.
        drop(ProxySettings::take(&mut config.env));
        let mut runtime = Runtime::new(config, processes);
        runtime.user = user;
        let config = runtime.config();
        let words: Vec<&str> = config.args.iter().map(String::as_str).collect();
        let of_vm = match words[..] {
            [vm::KEEP_READY, ..] => Some(None),
            [vm::PROBE_KVM, seconds, ..] => Some(Some(seconds.parse().map_err(|_| "a number of seconds is missing")?)),
            _ => None,
        };
        if let Some(probe) = of_vm {
            let mut output = File::from(output);
            let ready = match probe {
                Some(seconds) => vm::probe_kvm(&runtime, seconds).await,
                None => vm::keep_ready(&runtime).await,
            };
            return match ready {
                // The builder decides whether to read it.
                Ok(seconds) => {
                    drop(writeln!(output, "the VM was ready after {seconds:.1} s"));
                    Ok(Exit::Code(0))
                }
                Err(error) => {
                    drop(writeln!(output, "{error}"));
                    Ok(Exit::Code(1))
                }
            };
        }
        let stdio =
            || -> io::Result<[OwnedFd; 3]> { Ok([File::open("/dev/null")?.into(), output.try_clone()?, output.try_clone()?]) };
        let command = Command {
            argv: runtime.config().args.clone(),
            env: runtime.environment(&runtime.user, &[]),
            cwd: runtime.config().workdir.clone().unwrap_or_else(|| "/".to_owned()),
            user: &runtime.user,
            stdio: stdio().map_err(|e| e.to_string())?,
            controlling_tty: false,
        };
        let mut child = runtime.processes.spawn(command).await.map_err(|e| e.to_string())?;
        Ok::<Exit, String>(child.wait().await)
    });
    // Its background processes end with this process, the first of the sandbox.
    match exit {
        Ok(exit) => write!(status, "{}", exit.shell_code()),
        Err(error) => write!(status, "error: {error}"),
    }
}
