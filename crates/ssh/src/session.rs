//! One connection of a client: which session it is for, and what is answered to its messages.

use std::future::Future;

use crate::login::{Login, SESSION_ID};
use crate::public::{PublicKey, fingerprint};
use crate::wire::{Reader, put_string};
use crate::{HostKey, PrivateKey};

const FAILURE: u8 = 5;
const SUCCESS: u8 = 6;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
const EXTENSION: u8 = 27;
const SESSION_BIND: &str = "session-bind@openssh.com";
const WANTS_SHA256: u32 = 2;
const WANTS_SHA512: u32 = 4;

/// A key that the agent may use, with the secret that it is of.
#[derive(Debug)]
pub struct AgentKey {
    pub secret: String,
    /// The servers that it is for: names, with `*.` for those below, and perhaps ports.
    pub hosts: Vec<String>,
    /// The keys of these servers. If there are any, only logins to servers with one of them are signed.
    pub host_keys: Vec<HostKey>,
    pub key: PrivateKey,
}

/// Where the keys are.
pub trait Keyring: Sync {
    /// The keys of this moment. It is asked for each message, so a key that was removed signs nothing more.
    fn keys(&self) -> impl Future<Output = Vec<AgentKey>> + Send;

    /// Waits until another message may be answered.
    fn admit(&self) -> impl Future<Output = ()> + Send;

    /// Signs, where it keeps nothing else from running.
    fn run<T: Send + 'static>(&self, sign: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = Option<T>> + Send;

    /// Takes each decision on a signature, before the client has it.
    fn decided(&self, decision: SignDecision);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Signed,
    /// No secret of the sandbox has this key, or not any more.
    UnknownKey,
    /// The data is no login by this key.
    NoLogin,
    /// The connection is not bound to this session, or to a server that the secret is for.
    WrongHost,
    /// Another host asks, over a forwarded connection.
    Forwarded,
}

/// Whether a signature was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignDecision {
    pub outcome: Outcome,
    pub secret: Option<String>,
    /// The server, if the secret says which one has this host key: `HOST`, or `HOST:PORT`.
    pub host: Option<String>,
    /// The user on the server.
    pub user: Option<String>,
    /// Of the key that signs.
    pub fingerprint: String,
    /// Fingerprint of the server's key, if the client proved it.
    pub host_key: Option<String>,
}

/// What a client proved about the connection to a server that it has.
#[derive(Debug, Default)]
enum Binding {
    /// It said nothing.
    #[default]
    None,
    /// This server signed this session.
    Bound { host_key: PublicKey, session_id: Vec<u8>, is_forwarded: bool },
    /// What it said was wrong. Nothing is signed on its connection.
    Invalid,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    binding: Binding,
}

impl Session {
    /// The answer to a message, without its length.
    pub(crate) async fn answer(&mut self, message: &[u8], keyring: &impl Keyring) -> Vec<u8> {
        let mut reader = Reader::new(message);
        let answer = match reader.byte() {
            Some(REQUEST_IDENTITIES) if reader.end().is_some() => Some(identities(&keyring.keys().await)),
            Some(SIGN_REQUEST) => self.sign(reader, keyring).await,
            Some(EXTENSION) => self.extend(reader).map(|()| vec![SUCCESS]),
            _ => None,
        };
        answer.unwrap_or_else(failure)
    }

    /// Binds the connection to a session with a server, once.
    fn extend(&mut self, mut reader: Reader<'_>) -> Option<()> {
        reader.text().filter(|name| *name == SESSION_BIND)?;
        self.binding = match (&self.binding, read_binding(reader)) {
            (Binding::None, Some(bound)) => bound,
            // The host at the other end names its own session.
            (Binding::Bound { is_forwarded: true, .. }, _) => return None,
            _ => Binding::Invalid,
        };
        matches!(self.binding, Binding::Bound { .. }).then_some(())
    }

    async fn sign(&self, mut reader: Reader<'_>, keyring: &impl Keyring) -> Option<Vec<u8>> {
        let (blob, data, flags) = (reader.string()?, reader.string()?, reader.number()?);
        reader.end()?;
        let login = Login::parse(data).filter(|login| login.key == blob);
        let mut decision = self.draft(blob, login);
        let mut chosen = None;
        // Several secrets may have the same key, for different hosts.
        for key in keyring.keys().await.into_iter().filter(|key| key.key.public().blob() == blob) {
            decision.outcome = self.decide(&key, login, flags);
            decision.secret = Some(key.secret.clone());
            decision.host = self.host_of(&key);
            if decision.outcome == Outcome::Signed {
                chosen = Some(key);
                break;
            }
        }
        let signature = match chosen.zip(login) {
            Some((key, login)) => {
                let (algorithm, data) = (login.algorithm.to_owned(), data.to_vec());
                Some(keyring.run(move || key.key.sign(&algorithm, &data)).await??)
            }
            None => None,
        };
        keyring.decided(decision);
        let mut answer = vec![SIGN_RESPONSE];
        put_string(&mut answer, &signature?);
        Some(answer)
    }

    fn draft(&self, blob: &[u8], login: Option<Login<'_>>) -> SignDecision {
        let host_key = match &self.binding {
            Binding::Bound { host_key, .. } => Some(host_key.fingerprint()),
            Binding::None | Binding::Invalid => None,
        };
        let user = login.map(|login| login.user.to_owned());
        SignDecision { outcome: Outcome::UnknownKey, secret: None, host: None, user, fingerprint: fingerprint(blob), host_key }
    }

    fn decide(&self, key: &AgentKey, login: Option<Login<'_>>, flags: u32) -> Outcome {
        let Some(login) = login.filter(|login| is_algorithm_of(key.key.public(), login.algorithm, flags)) else {
            return Outcome::NoLogin;
        };
        match &self.binding {
            Binding::Invalid => Outcome::WrongHost,
            Binding::Bound { is_forwarded: true, .. } => Outcome::Forwarded,
            Binding::None if key.host_keys.is_empty() => Outcome::Signed,
            Binding::None => Outcome::WrongHost,
            Binding::Bound { host_key, session_id, .. } => {
                let is_session = session_id == login.session_id && login.host_key.is_none_or(|blob| blob == host_key.blob());
                let is_known = key.host_keys.is_empty() || key.host_keys.iter().any(|known| known.key() == host_key);
                if is_session && is_known { Outcome::Signed } else { Outcome::WrongHost }
            }
        }
    }

    /// The server of a secret with the host key that the connection is bound to.
    fn host_of(&self, key: &AgentKey) -> Option<String> {
        let Binding::Bound { host_key, .. } = &self.binding else { return None };
        let known = key.host_keys.iter().find(|known| known.key() == host_key)?;
        let only = match &*key.hosts {
            [host] if !host.contains('*') => Some(host.as_str()),
            _ => None,
        };
        known.host().or(only).map(str::to_owned)
    }
}

/// The algorithms of RSA have two names more. SHA-1 is none of them.
fn is_algorithm_of(key: &PublicKey, algorithm: &str, flags: u32) -> bool {
    match algorithm {
        crate::public::RSA_SHA256 => key.algorithm() == crate::public::RSA_NAME && flags & WANTS_SHA256 != 0,
        crate::public::RSA_SHA512 => key.algorithm() == crate::public::RSA_NAME && flags & WANTS_SHA512 != 0,
        crate::public::RSA_NAME => false,
        other => other == key.algorithm(),
    }
}

fn read_binding(mut reader: Reader<'_>) -> Option<Binding> {
    let (host_key, session_id, signature) = (reader.string()?, reader.string()?, reader.string()?);
    let is_forwarded = reader.boolean()?;
    reader.end().filter(|()| SESSION_ID.contains(&session_id.len()))?;
    let host_key = PublicKey::from_blob(host_key).ok()?;
    host_key.verifies(session_id, signature).then(|| Binding::Bound { host_key, session_id: session_id.to_vec(), is_forwarded })
}

fn identities(keys: &[AgentKey]) -> Vec<u8> {
    let count = u32::try_from(keys.len()).expect("a sandbox has few secrets");
    let mut answer = vec![IDENTITIES_ANSWER];
    answer.extend(count.to_be_bytes());
    for key in keys {
        put_string(&mut answer, key.key.public().blob());
        put_string(&mut answer, key.secret.as_bytes());
    }
    answer
}

pub(crate) fn failure() -> Vec<u8> {
    vec![FAILURE]
}
