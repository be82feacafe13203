//! A VM that QEMU runs in a sandbox: its screen is the sandbox's display, and its own agent handles files and commands.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::desktop::Desktop;
use super::driver::{Action, Output, Recording, VirtualMachine};
use super::osworld::OsWorld;
use super::osworld::http::InSandbox;
use crate::error::SynthesisError;
use crate::sandboxes::SandboxHandle;

/// Default port of the VM's agent in the sandbox.
pub(super) const AGENT: u16 = 5000;

pub(super) struct Qemu {
    handle: SandboxHandle,
    screen: Desktop,
    agent: OsWorld,
    /// Whether the accessibility tree is read.
    tells: bool,
}

impl Qemu {
    pub(super) fn new(handle: SandboxHandle, port: u16, tells: bool) -> Self {
        let agent = OsWorld::new(Box::new(InSandbox { handle: handle.clone(), port }));
        Self { screen: Desktop::new(handle.clone(), tells), handle, agent, tells }
    }
}

#[async_trait]
impl VirtualMachine for Qemu {
    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        self.screen.size().await
    }

    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        self.screen.screenshot().await
    }

    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        if self.tells { self.agent.tree().await } else { Ok(None) }
    }

    async fn pointer(&self) -> Result<(f64, f64), SynthesisError> {
        self.screen.pointer().await
    }

    async fn accessibility(&self) -> Result<Option<String>, SynthesisError> {
        self.agent.accessibility().await
    }

    async fn terminal(&self) -> Result<Option<String>, SynthesisError> {
        self.agent.terminal().await
    }

    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        self.screen.act(action).await
    }

    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError> {
        self.agent.run(command, timeout).await
    }

    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError> {
        self.agent.launch(command).await
    }

    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        self.agent.read(path).await
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError> {
        self.agent.write(path, content).await
    }

    async fn record(&self, what: Recording) -> Result<Vec<u8>, SynthesisError> {
        self.screen.record(what).await
    }

    async fn reset(&self) -> Result<(), SynthesisError> {
        self.handle.post("/v1/vm/reset", &json!({})).await.map(drop)
    }
}
