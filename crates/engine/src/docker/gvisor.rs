//! Docker's runtime for the tier `gvisor`: whether the daemon has it, and with what arguments.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use arenite_image::Image;
use arenite_model::{SandboxSpec, Tier};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use super::container::other_host;
use super::engine::Shared;
use crate::EngineError;
use crate::namespace::gvisor;
use crate::namespace::host::at;

const REGISTER: &str =
    "register gVisor's runsc as a runtime in Docker's daemon.json, with the arguments of docs/ENGINES.md, and restart Docker";

/// A runtime of a daemon.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Runtime {
    path: String,
    runtime_args: Option<Vec<String>>,
}

/// Arguments of runsc without which a sandbox would not be what it says.
///
/// - The guest connects to the server through a Unix socket of the host.
/// - Sockets are those of the container's network namespace, which gets its connection after the start.
/// - Writes go to the container's disk, and not to a file that a restart removes.
const NEEDED: [(&str, &[&str]); 3] = [("host-uds", &["open", "all"]), ("network", &["host"]), ("overlay2", &["none"])];

/// Why a daemon's runtime can't run sandboxes.
pub(super) fn problem(name: &str, runtimes: &BTreeMap<String, Runtime>) -> Option<String> {
    let Some(runtime) = runtimes.get(name) else {
        return Some(format!("Docker has no runtime {name}"));
    };
    let arguments = runtime.runtime_args.as_deref().unwrap_or_default();
    if runtime.path.is_empty() && arguments.is_empty() {
        return Some(format!("Docker's runtime {name} is not registered with a path and runtimeArgs"));
    }
    let missing = NEEDED.iter().find(|(flag, values)| !value_of(flag, arguments).is_some_and(|value| values.contains(&value)));
    missing.map(|(flag, values)| format!("Docker's runtime {name} lacks --{flag}={} in its runtimeArgs", values[0]))
}

/// The last value of a flag, as Go's programs read them: `--flag=value`, `-flag=value`, or in two arguments.
fn value_of<'a>(flag: &str, arguments: &'a [String]) -> Option<&'a str> {
    let mut value = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else { continue };
        match text.split_once('=') {
            Some((name, given)) if name == flag => value = Some(given),
            None if text == flag => value = rest.next().map(String::as_str),
            _ => {}
        }
    }
    value
}

/// The process that holds the kernel of a container under gVisor, with its network namespace.
pub(super) struct Sentry {
    pub(super) pidfd: OwnedFd,
    pub(super) netns: OwnedFd,
}

impl Shared {
    /// The tier that a sandbox gets. None: the image isn't here.
    pub(super) async fn tier_of(&self, spec: &SandboxSpec, image: Option<&Image>) -> Result<Tier, EngineError> {
        let requested = spec.tier.unwrap_or(self.config.default_tier);
        // It can be registered while this server runs.
        let problem = match requested {
            Tier::Gvisor => problem(&self.config.gvisor_runtime, &self.docker.runtimes().await?),
            _ => None,
        };
        gvisor::tier_of(spec.tier, self.config.default_tier, image, || match problem {
            Some(reason) => Err(EngineError::NoTier { tier: Tier::Gvisor, reason, hint: REGISTER }),
            None => Ok(()),
        })
    }

    /// The sentry of a running container. Docker takes it for the first process; the one that connects is gVisor's file server.
    pub(super) async fn sentry(&self, container: &str) -> Result<Sentry, EngineError> {
        let pid = self.pid_of(container).await?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| at("first process", e.into()))?;
        let netns = fs::File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero())).map_err(|e| at("network namespace", e))?;
        let ours = fs::File::open("/proc/self/ns/net").map_err(|e| at("network namespace", e))?;
        let number = |file: &fs::File| rustix::fs::fstat(file.as_fd()).map(|about| (about.st_dev, about.st_ino));
        if number(&netns).map_err(|e| at("network namespace", e.into()))?
            == number(&ours).map_err(|e| at("network namespace", e.into()))?
        {
            return Err(at("network namespace", io::Error::other("gVisor runs in the host's")));
        }
        // Then its number was not another process's in between.
        if self.pid_of(container).await? != pid {
            return Err(at("first process", io::ErrorKind::NotFound.into()));
        }
        Ok(Sentry { pidfd, netns: netns.into() })
    }

    async fn pid_of(&self, container: &str) -> Result<Pid, EngineError> {
        let state = self.docker.state(container).await?.filter(|state| state.running);
        let state = state.ok_or_else(|| at("first process", io::Error::other("it ended")))?;
        Pid::from_raw(state.pid).ok_or_else(other_host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtimes(arguments: &str) -> BTreeMap<String, Runtime> {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let text = serde_json::json!({"runc": {"path": "runc"}, "runsc": {"path": "/opt/runsc", "runtimeArgs": arguments}});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_runtime_needs_its_arguments() {
        for (arguments, missing) in [
            ("--host-uds=open --network=host --overlay2=none", None),
            ("-host-uds all -network host -overlay2=none --allow-suid", None),
            ("--network=host --overlay2=none", Some("--host-uds=open")),
            ("--host-uds=create --network=host --overlay2=none", Some("--host-uds=open")),
            ("--host-uds=open --network=host --network=sandbox --overlay2=none", Some("--network=host")),
            ("--host-uds=open --network=host", Some("--overlay2=none")),
            ("", Some("--host-uds=open")),
        ] {
            let found = problem("runsc", &runtimes(arguments));
            assert_eq!(found.is_none(), missing.is_none(), "{arguments}: {found:?}");
            assert!(missing.is_none_or(|missing| found.unwrap().contains(missing)), "{arguments}");
        }
        assert_eq!(problem("gvisor", &runtimes("")).unwrap(), "Docker has no runtime gvisor");
        let of_shim: BTreeMap<String, Runtime> = serde_json::from_str(r#"{"runsc": {"status": {}}}"#).unwrap();
        assert!(problem("runsc", &of_shim).unwrap().contains("path and runtimeArgs"));
        assert!(problem("runc", &runtimes("")).is_some(), "it is not gVisor's");
    }
}
