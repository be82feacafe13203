//! The registered hooks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arenite_guest_runtime::Runtime;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// The most hooks registered by the API.
const MAX_HOOKS: usize = 64;
/// The longest name and command, in characters.
const MAX_NAME: usize = 64;
const MAX_COMMAND: usize = 4096;
/// The default timeout of a hook, in seconds.
pub(super) const TIMEOUT_SECONDS: f64 = 10.0;
pub(super) const PRIORITY: i64 = 100;
/// The event that the API accepts.
pub(super) const SHUTDOWN: &str = "shutdown";
/// All events. Hooks for the other events come from the environment only.
const EVENTS: [&str; 4] = ["init", "pre_services", "post_ready", SHUTDOWN];

/// A command that runs when the sandbox ends.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SandboxHook {
    /// A unique name.
    pub name: String,
    /// The event at which it runs.
    #[schema(default = "shutdown")]
    pub event: String,
    /// For bash.
    #[schema(max_length = 4096)]
    pub command: String,
    /// Seconds that it may take.
    #[schema(default = 10.0)]
    pub timeout: f64,
    /// Lower ones go first; equal ones run together.
    #[schema(default = 100)]
    pub priority: i64,
    /// `api`, or `env` for one of the environment, which stays.
    #[schema(default = "api")]
    pub source: String,
}

fn shutdown() -> String {
    SHUTDOWN.to_owned()
}

fn timeout() -> f64 {
    TIMEOUT_SECONDS
}

fn priority() -> i64 {
    PRIORITY
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(super) struct RegisterHookRequest {
    /// A unique name.
    #[serde(deserialize_with = "name")]
    #[schema(max_length = 64, pattern = "^[a-zA-Z0-9_-]+$")]
    pub(super) name: String,
    /// Always `shutdown`.
    #[serde(default = "shutdown")]
    #[schema(default = "shutdown")]
    pub(super) event: String,
    /// For bash.
    #[serde(deserialize_with = "command")]
    #[schema(max_length = 4096)]
    pub(super) command: String,
    /// Seconds that it may take.
    #[serde(default = "timeout")]
    #[schema(default = 10.0)]
    pub(super) timeout: f64,
    /// Lower ones go first; equal ones run together.
    #[serde(default = "priority")]
    #[schema(default = 100)]
    pub(super) priority: i64,
}

fn name<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    match text.len() {
        1..=MAX_NAME if text.bytes().all(fits) => Ok(text),
        _ => Err(serde::de::Error::custom(format!("String should have 1 to {MAX_NAME} letters, digits, _ or -"))),
    }
}

fn command<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.chars().count() <= MAX_COMMAND {
        true => Ok(text),
        false => Err(serde::de::Error::custom(format!("String should have at most {MAX_COMMAND} characters"))),
    }
}

#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum HookError {
    #[error("there is no event {0:?}: hooks are for \"shutdown\"")]
    UnknownEvent(String),
    #[error("there is no event {0:?}: there are {list}", list = EVENTS.join(", "))]
    NotListed(String),
    #[error("the timeout of a hook must be more than 0 seconds")]
    NoTime,
    #[error("the hook {0:?} comes from the environment and can't be changed")]
    FromEnvironment(String),
    #[error("there is no hook {0:?}")]
    NotFound(String),
    #[error("there are {MAX_HOOKS} hooks, which is as many as there may be")]
    TooMany,
}

/// Hooks of the API, by name.
#[derive(Debug)]
pub struct Hooks {
    pub(super) runtime: Arc<Runtime>,
    registered: Mutex<BTreeMap<String, SandboxHook>>,
}

impl Hooks {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, registered: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SandboxHook>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hooks in the sandbox's environment.
fn of_environment(hooks: &Arc<Hooks>) -> impl Iterator<Item = SandboxHook> {
    let config = hooks.runtime.config();
    EVENTS.into_iter().filter_map(move |event| {
        let name = format!("RUN_HOOK_{}", event.to_uppercase());
        let command = config.env.get(&name).filter(|command| !command.trim().is_empty())?.clone();
        // A hook that prepares a sandbox may take longer than one that ends it.
        let timeout = if event == SHUTDOWN { TIMEOUT_SECONDS } else { super::run::START_SECONDS };
        let (event, source) = (event.to_owned(), "env".to_owned());
        Some(SandboxHook { name, event, command, timeout, priority: PRIORITY, source })
    })
}

/// The same as [`list`], for an event named by a caller.
pub(super) fn list_of(hooks: &Arc<Hooks>, event: &str) -> Result<Vec<SandboxHook>, HookError> {
    if EVENTS.contains(&event) { Ok(list(hooks, event)) } else { Err(HookError::NotListed(event.to_owned())) }
}

/// The hooks of an event, in the order in which they run.
pub(super) fn list(hooks: &Arc<Hooks>, event: &str) -> Vec<SandboxHook> {
    let mut hooks: Vec<_> = of_environment(hooks).chain(hooks.lock().values().cloned()).collect();
    hooks.retain(|hook| hook.event == event);
    hooks.sort_by_key(|hook| hook.priority);
    hooks
}

/// Registers a hook. Replaces a hook of the same name, so a repeated call changes nothing.
pub(super) fn register(hooks: &Arc<Hooks>, request: RegisterHookRequest) -> Result<SandboxHook, HookError> {
    let RegisterHookRequest { name, event, command, timeout, priority } = request;
    if event != SHUTDOWN {
        return Err(HookError::UnknownEvent(event));
    }
    if timeout.is_nan() || timeout <= 0.0 {
        return Err(HookError::NoTime);
    }
    if of_environment(hooks).any(|hook| hook.name == name) {
        return Err(HookError::FromEnvironment(name));
    }
    let mut hooks = hooks.lock();
    if hooks.len() >= MAX_HOOKS && !hooks.contains_key(&name) {
        return Err(HookError::TooMany);
    }
    let hook = SandboxHook { name: name.clone(), event, command, timeout, priority, source: "api".to_owned() };
    hooks.insert(name, hook.clone());
    Ok(hook)
}

pub(super) fn remove(hooks: &Arc<Hooks>, name: &str) -> Result<SandboxHook, HookError> {
    match hooks.lock().remove(name) {
        Some(hook) => Ok(hook),
        None if of_environment(hooks).any(|hook| hook.name == name) => Err(HookError::FromEnvironment(name.to_owned())),
        None => Err(HookError::NotFound(name.to_owned())),
    }
}
