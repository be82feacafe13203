//! A computer with a screen, independent of what runs it: the operations behind `vm:*`.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{SynthesisError, machine};

/// An input action. Positions are pixels from the upper left corner.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Move {
        x: f64,
        y: f64,
    },
    /// At the pointer, or at a position.
    Click {
        at: Option<(f64, f64)>,
        button: Button,
        times: u32,
    },
    Press {
        button: Button,
    },
    Release {
        button: Button,
    },
    Drag {
        from: (f64, f64),
        to: (f64, f64),
        button: Button,
        takes: Duration,
    },
    /// Notches of the wheel; up and right are positive.
    Scroll {
        at: Option<(f64, f64)>,
        up: i64,
        right: i64,
    },
    Type {
        text: String,
        interval: Duration,
    },
    /// Presses and releases a key. Several: presses all in order, then releases all.
    Keys {
        keys: Vec<String>,
    },
    KeyDown {
        key: String,
    },
    KeyUp {
        key: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Button {
    Left,
    Middle,
    Right,
}

/// The result of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub code: i64,
}

/// A request to the screen recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Start,
    /// Ends it and returns the film as mp4.
    Stop,
}

/// A computer with a screen. Errors are messages for the client.
#[async_trait]
pub trait VirtualMachine: Send + Sync {
    /// Width and height in pixels.
    async fn size(&self) -> Result<(u32, u32), SynthesisError>;
    /// A screenshot as PNG.
    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError>;
    /// The content of the screen, as text for a model. None: the VM can't provide it.
    async fn tree(&self) -> Result<Option<String>, SynthesisError>;
    /// The position of the pointer.
    async fn pointer(&self) -> Result<(f64, f64), SynthesisError> {
        Err(machine("this VM can't tell where its pointer is"))
    }
    /// The accessibility tree itself, as XML. None: the VM can't provide it.
    async fn accessibility(&self) -> Result<Option<String>, SynthesisError> {
        Ok(None)
    }
    /// The text of the terminal in front. None: there is no terminal, or the VM can't provide it.
    async fn terminal(&self) -> Result<Option<String>, SynthesisError> {
        Ok(None)
    }
    /// Starts the parts of a desktop beside its window manager, such as a panel, if the VM does not start them itself.
    async fn start_desktop(&self) -> Result<(), SynthesisError> {
        Ok(())
    }
    async fn act(&self, action: &Action) -> Result<(), SynthesisError>;
    /// Runs a program with its arguments, without a shell.
    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError>;
    /// Starts a program without waiting for it.
    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError>;
    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError>;
    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError>;
    /// Records the screen. Stop returns the film; start returns nothing.
    async fn record(&self, what: Recording) -> Result<Vec<u8>, SynthesisError>;
    /// Resets files, programs and screen to their state when it was first ready.
    async fn reset(&self) -> Result<(), SynthesisError>;
    /// Ends it with its session. The content of a sandbox is removed with that sandbox.
    async fn end(&self) {}
}
