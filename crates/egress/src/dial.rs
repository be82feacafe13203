//! Connections to where a policy leads: by name, to an address that our resolver gave, and never into a closed range.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{reset_on_close, set_options};
use crate::dns::{Bound, Load, Lookup, LookupError};
use crate::policy::{Decision, Reason};
use crate::sandbox::{Admission, Sandbox, Spoken};

/// Names that the proxy resolves concurrently, because a sandbox has not resolved them here.
const LOOKUPS: Bound = Bound { of_one: 128, of_all: 1024 };
/// Time for one address to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Addresses of a name that are tried.
const MAX_TRIES: usize = 3;

/// A connection that is ready for the bytes of a client.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: TcpStream,
    pub(crate) address: IpAddr,
}

#[derive(Debug)]
pub(crate) struct Dialer {
    lookup: Arc<Lookup>,
    lookups: Arc<Load<Arc<str>>>,
}

impl Dialer {
    pub(crate) fn new(lookup: Arc<Lookup>) -> Self {
        Self { lookup, lookups: Load::new(LOOKUPS) }
    }

    /// Connects to an allowed name. `wanted` is the address that the client chose: it is only a preference among those of the
    /// name.
    pub(crate) async fn dial_name(
        &self,
        sandbox: &Sandbox,
        name: &Arc<str>,
        wanted: SocketAddr,
        spoken: &Spoken,
    ) -> Result<Dialed, Decision> {
        let mut addresses = self.resolve(sandbox, name).await?;
        addresses.sort_by_key(|address| *address != wanted.ip());
        let policy = sandbox.policy();
        let mut refusal = Decision::refused(Reason::NoAddress);
        let mut tries = 0;
        for address in addresses {
            let (name, spoken) = (Some(name.clone()), spoken.clone());
            let decision = Admission { name, address, port: wanted.port(), spoken }.decide(&policy);
            if !decision.allowed {
                refusal = decision;
                continue;
            }
            if tries == MAX_TRIES {
                break;
            }
            tries += 1;
            match self.dial_address(SocketAddr::new(address, wanted.port())).await {
                Ok(dialed) => return Ok(dialed),
                Err(reason) => refusal = Decision { allowed: false, rule: decision.rule, reason },
            }
        }
        Err(refusal)
    }

    /// Connects to an address that a rule has.
    pub(crate) async fn dial_address(&self, to: SocketAddr) -> Result<Dialed, Reason> {
        let address = to.ip().to_canonical();
        if self.lookup.closed.contains(address) {
            return Err(Reason::ClosedAddress);
        }
        match timeout(CONNECT, TcpStream::connect(SocketAddr::new(address, to.port()))).await {
            Ok(Ok(stream)) => {
                set_options(&stream);
                reset_on_close(&stream, true);
                Ok(Dialed { stream, address })
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, %to, "no connection");
                Err(Reason::NotConnected)
            }
            Err(_) => Err(Reason::NotConnected),
        }
    }

    pub(crate) fn is_closed(&self, address: IpAddr) -> bool {
        self.lookup.closed.contains(address)
    }

    /// Resolves a name again, as if the sandbox had asked for it.
    pub(crate) async fn refresh(&self, sandbox: &Sandbox, name: &str) {
        let Some(_slot) = self.lookups.enter(sandbox.shared_id()) else { return };
        if let Ok(resolved) = self.lookup.addresses(name).await
            && resolved.aliases.iter().all(|alias| sandbox.policy().denies_name(alias).is_none())
        {
            sandbox.remember(name, &resolved, Instant::now());
        }
    }

    /// The addresses that the sandbox got for the name, or gets now.
    async fn resolve(&self, sandbox: &Sandbox, name: &str) -> Result<Vec<IpAddr>, Decision> {
        if let Some(known) = sandbox.addresses_of(name)
            && !known.is_empty()
        {
            return Ok(known.into_iter().map(IpAddr::V4).collect());
        }
        let Some(_slot) = self.lookups.enter(sandbox.shared_id()) else {
            return Err(Decision::refused(Reason::TooMany));
        };
        let resolved = match self.lookup.addresses(name).await {
            Ok(resolved) => resolved,
            Err(LookupError::NoSuchName) => return Err(Decision::refused(Reason::NoAddress)),
            Err(LookupError::Failed) => return Err(Decision::refused(Reason::NotResolved)),
        };
        if let Some(denied) = resolved.aliases.iter().find_map(|alias| sandbox.policy().denies_name(alias)) {
            return Err(denied);
        }
        sandbox.remember(name, &resolved, Instant::now());
        match (resolved.addresses.is_empty(), resolved.closed) {
            (true, Some(_)) => Err(Decision::refused(Reason::ClosedAddress)),
            _ => Ok(resolved.addresses.into_iter().map(IpAddr::V4).collect()),
        }
    }
}
