//! The address of a database: a URL that may hold a password, so it is never printed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// A connection that is idle sends a probe after this time, and is given up after three more without an answer.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Postgres cuts longer names.
const NAME: usize = 63;

/// Why a URL of a database was refused. Never quotes the URL.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    #[error(
        "it is not a URL such as postgres://USER:PASSWORD@HOST/DATABASE; special characters in user and password are written as %XX"
    )]
    NotAUrl,
    #[error("it names no host; a directory with a Unix socket is one too: postgres:///DATABASE?host=/run/postgresql")]
    NoHost,
    #[error(
        "its sslmode asks for TLS, and arenite connects to databases without it: use a Unix socket, a private network or a tunnel, with sslmode=disable"
    )]
    Tls,
}

/// The URL of a database, checked.
#[derive(Clone)]
pub struct PostgresAddress(Config);

impl FromStr for PostgresAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(AddressError::NotAUrl);
        }
        // The parser doesn't know all modes.
        let invalid = if text.contains("sslmode=verify-") { AddressError::Tls } else { AddressError::NotAUrl };
        let mut config: Config = text.parse().map_err(|_| invalid)?;
        if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
            return Err(AddressError::Tls);
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(AddressError::NoHost);
        }
        // A second server reports it as the holder.
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name: String = format!("arenite pid {} on {host}", std::process::id()).chars().take(NAME).collect();
        config
            .application_name(name)
            .keepalives_idle(PROBE_AFTER)
            .keepalives_interval(PROBE_EVERY)
            .keepalives_retries(3)
            .tcp_user_timeout(PROBE_AFTER);
        Ok(Self(config))
    }
}

impl PostgresAddress {
    pub(super) fn config(&self) -> &Config {
        &self.0
    }
}

/// Database and hosts, without user and password.
impl fmt::Display for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = match self.0.get_hosts() {
            [] => self.0.get_hostaddrs().iter().map(ToString::to_string).collect(),
            hosts => hosts
                .iter()
                .map(|host| match host {
                    Host::Tcp(name) => name.clone(),
                    Host::Unix(dir) => dir.display().to_string(),
                })
                .collect(),
        };
        let database = self.0.get_dbname().or(self.0.get_user()).unwrap_or("of the user");
        write!(f, "database {database} on {}", hosts.join(" and "))
    }
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (text, shown) in [
            ("postgres://u:s3cret@db.example:5433/arenite", "database arenite on db.example"),
            ("postgresql://u:s3cret@[::1]/arenite?sslmode=disable", "database arenite on ::1"),
            ("postgres://u:s3cret@%2Frun%2Fpostgresql/arenite", "database arenite on /run/postgresql"),
            ("postgres:///arenite?host=/run/postgresql&password=s3cret", "database arenite on /run/postgresql"),
            ("postgres://u:s3cret@a,b/arenite?target_session_attrs=read-write", "database arenite on a and b"),
        ] {
            let address: PostgresAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown, "{text}");
            assert!(!format!("{address:?}").contains("s3cret"));
        }
    }

    #[test]
    fn what_is_no_address_or_needs_tls_is_refused_without_quoting_it() {
        for (text, expected) in [
            ("", AddressError::NotAUrl),
            ("mysql://u:s3cret@h/d", AddressError::NotAUrl),
            ("host=h password=s3cret", AddressError::NotAUrl),
            ("postgres://u:s3cret@h:port/d", AddressError::NotAUrl),
            ("postgres://u@h/d?s3cret=1", AddressError::NotAUrl),
            ("postgres://u:s3cret@/d", AddressError::NoHost),
            ("postgres:///d", AddressError::NoHost),
            ("postgres://u:s3cret@h/d?sslmode=require", AddressError::Tls),
            ("postgres://u:s3cret@h/d?sslmode=verify-full", AddressError::Tls),
        ] {
            let error = text.parse::<PostgresAddress>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("s3cret"));
        }
    }
}
