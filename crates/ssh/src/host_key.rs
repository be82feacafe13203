//! Host keys of a secret, as lines of `known_hosts`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::{KeyError, PublicKey};

/// Characters of a line in a message.
const MAX_LINE: usize = 80;
const SSH_PORT: &str = "22";

/// The public key of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    host: Option<String>,
    key: PublicKey,
}

impl HostKey {
    /// `TYPE KEY`, or `HOST TYPE KEY`, with a comment behind it. A host with a port is `[HOST]:PORT`.
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        let invalid = || KeyError::HostKeyLine { line: line.chars().take(MAX_LINE).collect() };
        let mut words = line.split_ascii_whitespace().peekable();
        let is_type = |word: &&str| word.starts_with("ssh-") || word.starts_with("ecdsa-") || word.starts_with("sk-");
        let host = words.next_if(|word| !is_type(word));
        if host.is_some_and(|host| host.starts_with('|')) {
            return Err(KeyError::HashedHost);
        }
        if host.is_some_and(|host| host.starts_with(['@', '#']) || host.contains([',', '*', '?', '!'])) {
            return Err(invalid());
        }
        let algorithm = words.next().filter(is_type).ok_or_else(invalid)?;
        let blob = words.next().and_then(|word| BASE64_STANDARD.decode(word).ok()).ok_or_else(invalid)?;
        let key = PublicKey::from_blob(&blob)?;
        if key.algorithm() != algorithm {
            return Err(invalid());
        }
        Ok(Self { host: host.map(plain_host), key })
    }

    /// The host that the line names: `HOST`, or `HOST:PORT` if the port is not 22.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    pub fn key(&self) -> &PublicKey {
        &self.key
    }
}

fn plain_host(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match host.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        Some((name, SSH_PORT)) => name.to_owned(),
        Some((name, port)) => format!("{name}:{port}"),
        None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    #[test]
    fn lines_have_hosts_or_none() {
        for (line, host) in [
            (KEY.to_owned(), None),
            (format!("  {KEY} a comment\n"), None),
            (format!("github.com {KEY}"), Some("github.com")),
            (format!("Git.Example.com {KEY}"), Some("git.example.com")),
            (format!("[git.example.com]:2222 {KEY}"), Some("git.example.com:2222")),
            (format!("[git.example.com]:22 {KEY}"), Some("git.example.com")),
        ] {
            assert_eq!(HostKey::parse(&line).unwrap().host(), host, "{line}");
        }
        assert_eq!(HostKey::parse(KEY).unwrap().key().fingerprint(), "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU");
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "",
            "ssh-ed25519",
            "github.com",
            "ssh-ed25519 ????",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJlAAAA",
            "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t",
            &format!("|1|abc=|def= {KEY}"),
            &format!("@cert-authority *.example.com {KEY}"),
            &format!("a.example,b.example {KEY}"),
            &format!("*.example {KEY}"),
            &format!("# {KEY}"),
        ] {
            assert!(HostKey::parse(line).is_err(), "{line}");
        }
    }
}
