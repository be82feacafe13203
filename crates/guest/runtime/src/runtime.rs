//! What every service needs: configuration, users, processes, and threads that touch files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use arenite_model::protocol::{Assignment, GuestConfig, INTERNAL_PORTS};
use tokio::sync::watch;

use crate::process::Processes;
use crate::programs;
use crate::users::User;
use crate::workers::Workers;

/// The state that all services share.
#[derive(Debug)]
pub struct Runtime {
    /// Replaced when a pooled sandbox is assigned, and when processes were restored.
    config: RwLock<Arc<GuestConfig>>,
    /// Starts and reaps processes.
    pub processes: Processes,
    /// The user that runs commands.
    pub user: User,
    /// Root, for calls with `sudo: true`.
    pub root_user: User,
    /// Threads that touch files with the rights of a user.
    pub workers: Workers,
    /// The address of the sandbox's forward proxy, while it is in use.
    proxy_address: watch::Sender<Option<String>>,
    /// The port of the running or last browser; 0: there was none.
    browser_port: AtomicU16,
}

impl Runtime {
    /// Commands run as the user named by `USER` in the environment, if the image has it, otherwise as the configured one. If the
    /// image has neither, logs an error and uses root. See [`User::with_home`].
    pub fn new(config: GuestConfig, processes: Processes) -> Self {
        let wanted = config.user.as_deref();
        let by_name = config.env.get("USER").and_then(|name| match name.as_str() {
            // Without a line in `/etc/passwd`, too.
            "root" => Some(User::root()),
            name => User::find(name),
        });
        let user = by_name.or_else(|| User::configured(wanted.unwrap_or("gem")));
        if let (None, Some(name)) = (&user, wanted) {
            tracing::error!(name, "the image has no such user or group: commands run as root");
        }
        Self {
            config: RwLock::new(Arc::new(config)),
            processes,
            user: user.unwrap_or_else(User::root).with_home(),
            root_user: User::root(),
            workers: Workers::default(),
            proxy_address: watch::Sender::default(),
            browser_port: AtomicU16::default(),
        }
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<GuestConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Assigns a pooled sandbox to a client, after `change` has changed its environment. Processes started from now on get the new
    /// environment and directory. Returns false, and calls nothing, if it was assigned already.
    pub fn assign(&self, mut config: GuestConfig, change: impl FnOnce(&mut BTreeMap<String, String>)) -> bool {
        let mut current = self.config.write().unwrap_or_else(PoisonError::into_inner);
        if current.assignment == Assignment::Assigned {
            return false;
        }
        change(&mut config.env);
        config.assignment = Assignment::Assigned;
        *current = Arc::new(config);
        true
    }

    /// Replaces the configuration of a sandbox with restored processes. Those started from now on get the new environment and
    /// directory.
    pub fn reassign(&self, mut config: GuestConfig, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        change(&mut config.env);
        config.assignment = Assignment::Assigned;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The default directory of commands, in this order: `WORKSPACE` of the environment, configured, the user's home, `/`.
    pub fn default_dir(&self) -> PathBuf {
        let configured = self.config().default_dir().map(PathBuf::from);
        configured.into_iter().chain([self.user.home.clone()]).find(|d| d.is_dir()).unwrap_or_else(|| "/".into())
    }

    /// Makes a path absolute as the user's commands would: relative paths start at the default directory.
    pub fn absolute(&self, path: &str) -> PathBuf {
        match path.strip_prefix("~/").or((path == "~").then_some("")) {
            Some(rest) => self.user.home.join(rest),
            None => self.default_dir().join(path),
        }
    }

    /// The environment of a command: the configured one over the user's basics, `extra` over both.
    pub fn environment(&self, user: &User, extra: &[(String, String)]) -> Vec<(String, String)> {
        let mut env: BTreeMap<String, String> = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", user.home.display().to_string()),
            ("USER", user.name.clone()),
            ("LOGNAME", user.name.clone()),
            ("SHELL", user.shell.clone()),
            ("LANG", "C.UTF-8".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into();
        if let Some(address) = &*self.proxy_address.borrow() {
            let url = format!("http://{address}");
            let variables = [("http_proxy", &*url), ("https_proxy", &url), ("no_proxy", "localhost,127.0.0.1,::1")];
            env.extend(variables.iter().flat_map(|(name, value)| {
                [((*name).to_owned(), (*value).to_owned()), (name.to_uppercase(), (*value).to_owned())]
            }));
        }
        env.extend(self.config().env.clone());
        env.extend(extra.iter().cloned());
        env.into_iter().collect()
    }

    /// The path of a program on the search path of the user's commands.
    pub fn locate(&self, name: &str) -> Option<String> {
        let path = programs::search_path(&self.environment(&self.user, &[]));
        programs::locate(name, &path).map(|program| program.display().to_string())
    }

    /// Sets the `host:port` of the forward proxy, which commands started from now on use. `None`: they connect directly.
    pub fn set_proxy_address(&self, address: Option<String>) {
        self.proxy_address.send_replace(address);
    }

    /// Follows the address of the forward proxy. Each change of its rules counts as a change.
    pub fn proxy_address(&self) -> watch::Receiver<Option<String>> {
        self.proxy_address.subscribe()
    }

    /// Notes the port on loopback at which the browser listens for DevTools clients.
    pub fn set_browser_port(&self, port: u16) {
        self.browser_port.store(port, Ordering::Relaxed);
    }

    /// The ports on loopback that no external connection or fetched page may reach: the guest's own, and the browser's.
    pub fn internal_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let browser = self.browser_port.load(Ordering::Relaxed);
        INTERNAL_PORTS.into_iter().chain((browser != 0).then_some(browser))
    }
}
