//! Values as passwords of connections.

use std::fmt;
use std::sync::Arc;

use arenite_model::SecretPlace;
use zeroize::Zeroizing;

use super::{Destination, SandboxSecrets, Secret, SecretRefusal};
use crate::policy::Reason;
use crate::tls::Authority;

/// What is sent to a server.
pub(crate) struct Password {
    pub(crate) text: Zeroizing<Vec<u8>>,
    /// The secret that it is the value of. None: the client's own.
    pub(crate) secret: Option<Box<str>>,
}

impl SandboxSecrets {
    /// Whether a host on this port may have a password put in.
    pub(crate) fn has_postgres_port(&self, port: u16) -> bool {
        let mut hosts = self.with_postgres().flat_map(|secret| &secret.hosts);
        self.authority.is_some() && hosts.any(|host| host.has_port(port))
    }

    /// The authority, if passwords are put in for this host.
    pub(crate) fn ends_postgres(&self, name: &str, port: u16) -> Option<Arc<Authority>> {
        let authority = self.authority.as_ref()?;
        self.with_postgres().any(|secret| secret.is_for(name, port)).then(|| authority.clone())
    }

    /// Whether a login that used a secret at this host could still use it.
    pub(crate) fn still_logs_in(&self, secret: &str, name: &str, port: u16) -> bool {
        let is_it = |known: &Secret| *known.bound.name == *secret && known.is_for(name, port);
        self.with_postgres().any(|known| is_it(known) && !known.bound.value.as_str().is_empty())
    }

    /// The value for a placeholder that is the whole password. Other passwords stay.
    pub(crate) fn fill_password(&self, password: &[u8], name: &str, port: u16) -> Result<Password, SecretRefusal> {
        let to = Destination::Tls(name, port);
        let Some(found) = self.placeholders.find_all(password).next() else {
            self.check_login_leak(password, name, port)?;
            return Ok(Password { text: password.to_vec().into(), secret: None });
        };
        let number = self.owners[found.pattern().as_usize()];
        let secret = &self.secrets[number];
        if found.len() != password.len() {
            return Err(secret.misplaced("in a part of a password"));
        }
        let value = self.value(number, SecretPlace::Postgres, to)?;
        Ok(Password { text: value.as_bytes().to_vec().into(), secret: Some(secret.bound.name.as_str().into()) })
    }

    /// Refuses placeholders and values in what a client says before its password.
    pub(crate) fn check_parameters(&self, parameters: &[u8], name: &str, port: u16) -> Result<(), SecretRefusal> {
        if let Some(found) = self.placeholders.find_all(parameters).next() {
            let secret = &self.secrets[self.owners[found.pattern().as_usize()]];
            return Err(secret.misplaced("in a parameter of a connection"));
        }
        self.check_login_leak(parameters, name, port)
    }

    /// A value of another host's secret: programs should never have had it.
    fn check_login_leak(&self, text: &[u8], name: &str, port: u16) -> Result<(), SecretRefusal> {
        let Some(values) = &self.values else { return Ok(()) };
        let mut owners = values.patterns.find_all(text).map(|found| &values.owners[found.pattern().as_usize()]);
        match owners.find(|owners| !owners.iter().any(|number| self.secrets[*number].is_for(name, port))) {
            None => Ok(()),
            Some(owners) => {
                let text = format!("it has the value of {}, which is not for it", self.secrets[owners[0]].title());
                Err(SecretRefusal { reason: Reason::SecretLeak, text })
            }
        }
    }

    fn with_postgres(&self) -> impl Iterator<Item = &Secret> {
        self.secrets.iter().filter(|secret| secret.bound.places.contains(&SecretPlace::Postgres))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Password").field("secret", &self.secret).finish_non_exhaustive()
    }
}
