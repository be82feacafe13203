//! A fake VM: commands run on this host, with a separate home and separate first programs, and input actions are recorded.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use super::super::driver::{Action, Output, Recording, VirtualMachine};

use crate::error::{SynthesisError, machine};

pub(in crate::backends::vm) struct FakeVm {
    dir: tempfile::TempDir,
    pub(in crate::backends::vm) noted: Mutex<Vec<String>>,
    /// The accessibility tree and the terminal's text.
    pub(in crate::backends::vm) xml: Option<String>,
    pub(in crate::backends::vm) terminal: Option<String>,
}

impl FakeVm {
    pub(in crate::backends::vm) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "bin"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir, noted: Mutex::default(), xml: None, terminal: None }
    }

    pub(in crate::backends::vm) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A program of the VM that replaces the host's.
    pub(in crate::backends::vm) fn program(&self, name: &str, script: &str) {
        let path = self.dir.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(in crate::backends::vm) fn noted(&self) -> MutexGuard<'_, Vec<String>> {
        self.noted.lock().unwrap()
    }
}

#[async_trait]
impl VirtualMachine for FakeVm {
    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        Ok((1920, 1080))
    }
    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        Ok(Vec::new())
    }
    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        Ok(None)
    }
    async fn accessibility(&self) -> Result<Option<String>, SynthesisError> {
        Ok(self.xml.clone())
    }
    async fn terminal(&self) -> Result<Option<String>, SynthesisError> {
        Ok(self.terminal.clone())
    }
    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        self.noted().push(format!("{action:?}"));
        Ok(())
    }
    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError> {
        let bin = self.dir.path().join("bin");
        let mut started = tokio::process::Command::new(&command[0]);
        started.args(&command[1..]).env_clear().env("HOME", self.home()).current_dir(self.home()).kill_on_drop(true);
        started.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
        let done = tokio::time::timeout(timeout, started.output()).await.map_err(|_| machine("it took too long"))?;
        let done = done.map_err(|error| machine(format!("{} can't be started: {error}", command[0])))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { stdout: text(&done.stdout), stderr: text(&done.stderr), code: done.status.code().unwrap_or(-1).into() })
    }
    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError> {
        self.noted().push(format!("launch {command:?}"));
        Ok(())
    }
    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        std::fs::read(self.home().join(path)).map_err(|_| machine(format!("there is no file {path:?} in the VM")))
    }
    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError> {
        std::fs::write(self.home().join(path), content).map_err(machine)
    }
    async fn record(&self, _: Recording) -> Result<Vec<u8>, SynthesisError> {
        Ok(Vec::new())
    }
    async fn reset(&self) -> Result<(), SynthesisError> {
        Ok(())
    }
}
