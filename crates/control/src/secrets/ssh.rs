//! SSH keys as secrets: the agent of a sandbox signs logins with them, outside. Neither the sandbox nor the egress proxy has one.

use arenite_model::protocol::{SSH_AGENT_ENV, SSH_AGENT_SOCKET};
use arenite_model::{SandboxId, SandboxSpec, SecretPlace, SpecError};
use arenite_ssh::{AgentKey, HostKey, KeyError, PrivateKey};

use super::{invalid, record_id};
use crate::{Control, ControlError};

/// The most host keys of a secret, and the longest of them in bytes.
const MAX_HOST_KEYS: usize = 32;
const MAX_HOST_KEY: usize = 2 << 10;

pub(super) fn is_ssh(places: &[SecretPlace]) -> bool {
    places.contains(&SecretPlace::Ssh)
}

/// Checks the places of a secret together. A key that could be put elsewhere would be one that leaves.
pub(super) fn check_places(places: &[SecretPlace], known: Option<&[SecretPlace]>) -> Result<(), ControlError> {
    if is_ssh(places) && places.len() > 1 {
        return Err(invalid("ssh is the only place of a secret, since an SSH key is never put into a request"));
    }
    match known.map(|known| (is_ssh(known), is_ssh(places))) {
        Some((true, false)) => Err(invalid("the secret is an SSH key; remove it before you set another under its name")),
        Some((false, true)) => Err(invalid("the secret is no SSH key; remove it before you set one under its name")),
        _ => Ok(()),
    }
}

pub(super) fn check_key(value: &str) -> Result<(), ControlError> {
    let refused = |reason: KeyError| invalid(format!("the value is not an SSH key that can be used: {reason}"));
    PrivateKey::from_openssh(value).map(drop).map_err(refused)
}

/// Lines as in `known_hosts`. The host of one has to be one of the secret.
pub(super) fn check_host_keys(lines: &[String], hosts: &[String], places: &[SecretPlace]) -> Result<(), ControlError> {
    if !lines.is_empty() && !is_ssh(places) {
        return Err(invalid("host keys belong to secrets with the place ssh"));
    }
    if lines.len() > MAX_HOST_KEYS {
        return Err(invalid(format!("give at most {MAX_HOST_KEYS} host keys")));
    }
    for line in lines {
        if line.len() > MAX_HOST_KEY {
            return Err(invalid(format!("a host key has at most {MAX_HOST_KEY} bytes")));
        }
        let key = HostKey::parse(line).map_err(|reason| invalid(format!("invalid host key: {reason}")))?;
        if let Some(host) = key.host().filter(|host| !hosts.iter().any(|known| is_of(known, host))) {
            return Err(invalid(format!("a host key is for {host}, which is none of the secret's hosts")));
        }
    }
    Ok(())
}

/// Whether a host with or without a port has a name of the secret.
fn is_of(known: &str, host: &str) -> bool {
    let name = |text: &str| text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let (known, host) = (name(known), name(host));
    match known.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => known == host,
    }
}

/// The socket of the agent, for a sandbox with an SSH key.
pub(crate) fn add_socket(spec: &mut SandboxSpec) {
    if spec.has_ssh_keys() {
        spec.env.insert(SSH_AGENT_ENV.to_owned(), SSH_AGENT_SOCKET.to_owned());
    }
}

pub(super) fn check_env(spec: &SandboxSpec) -> Result<(), ControlError> {
    if spec.has_ssh_keys() && spec.env.get(SSH_AGENT_ENV).is_some_and(|socket| socket != SSH_AGENT_SOCKET) {
        let reason = format!("a sandbox with an SSH key has another {SSH_AGENT_ENV}; leave it out");
        return Err(SpecError::Invalid { field: "env", reason }.into());
    }
    Ok(())
}

impl Control {
    /// The SSH keys of a sandbox at this moment. A secret that was removed is none of them.
    pub async fn ssh_keys(&self, id: &SandboxId) -> Result<Vec<AgentKey>, ControlError> {
        let entry = self.registry().by_id(id).cloned().ok_or_else(|| ControlError::NoSuchId { id: id.clone() })?;
        let bindings = entry.sandbox().spec.secrets.clone();
        let mut keys = Vec::new();
        for binding in bindings.into_iter().filter(|binding| binding.ssh) {
            let stored = match self.stored_secret(&entry.tenant, &binding.name).await {
                Ok(stored) if is_ssh(&stored.places) => stored,
                Ok(_) | Err(ControlError::NoSecret { .. }) => continue,
                Err(error) => return Err(error),
            };
            let value = self.open_secret(&record_id(&entry.tenant, &binding.name), &stored).await?;
            let unreadable = |reason: KeyError| invalid(format!("the SSH key {} can't be used: {reason}", binding.name));
            keys.push(AgentKey {
                secret: binding.name.to_string(),
                hosts: stored.hosts,
                host_keys: stored
                    .host_keys
                    .iter()
                    .map(|line| HostKey::parse(line))
                    .collect::<Result<_, _>>()
                    .map_err(unreadable)?,
                key: PrivateKey::from_openssh(value.as_str()).map_err(unreadable)?,
            });
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    #[test]
    fn host_keys_are_for_hosts_of_the_secret() {
        let hosts = ["git.example.com".to_owned(), "*.internal.example:2222".to_owned()];
        let check = |line: &str| check_host_keys(&[line.to_owned()], &hosts, &[SecretPlace::Ssh]);
        for good in [KEY, &format!("git.example.com {KEY}"), &format!("[a.internal.example]:2222 {KEY}")] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "git.example.com",
            &format!("other.example {KEY}"),
            &format!("internal.example {KEY}"),
            &format!("{KEY}{}", " ".repeat(MAX_HOST_KEY)),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check_host_keys(&vec![KEY.to_owned(); MAX_HOST_KEYS + 1], &hosts, &[SecretPlace::Ssh]).is_err());
        assert!(check_host_keys(&[KEY.to_owned()], &hosts, &[SecretPlace::Header]).is_err());
        assert!(check_host_keys(&[], &hosts, &[SecretPlace::Header]).is_ok());
    }

    #[test]
    fn ssh_is_the_only_place_and_stays() {
        use SecretPlace::{Header, Ssh};
        assert!(check_places(&[Ssh], None).is_ok() && check_places(&[Ssh], Some(&[Ssh])).is_ok());
        for (places, known) in [(&[Header, Ssh][..], None), (&[Header], Some(&[Ssh][..])), (&[Ssh], Some(&[Header]))] {
            assert!(check_places(places, known).is_err(), "{places:?} {known:?}");
        }
    }
}
