//! A computer with a screen, independent of what runs it: the operations behind `vm:*`.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Something that a person's hands could do. Positions are pixels from the upper left corner.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Move {
        x: f64,
        y: f64,
    },
    /// Where the pointer is, or at a place.
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
    /// A key goes down and comes up again; more than one: all down in order, then all up.
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

/// What a command came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub code: i64,
}

/// What of a recording is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Start,
    /// Ends it; the film is answered as mp4.
    Stop,
}

/// A computer with a screen. Errors are words for the client.
#[async_trait]
pub trait VirtualMachine: Send + Sync {
    /// Width and height in pixels.
    async fn size(&self) -> Result<(u32, u32), String>;
    /// A PNG.
    async fn screenshot(&self) -> Result<Vec<u8>, String>;
    /// What is on the screen, as text for a model. None: the VM can't tell.
    async fn tree(&self) -> Result<Option<String>, String>;
    /// Where the pointer is.
    async fn pointer(&self) -> Result<(f64, f64), String> {
        Err("this VM can't tell where its pointer is".to_owned())
    }
    /// The accessibility tree itself, as XML. None: the VM can't tell.
    async fn accessibility(&self) -> Result<Option<String>, String> {
        Ok(None)
    }
    /// What the terminal in front shows. None: there is none, or the VM can't tell.
    async fn terminal(&self) -> Result<Option<String>, String> {
        Ok(None)
    }
    /// Starts what a desktop has beside its window manager, such as a panel, where the VM does not start it itself.
    async fn start_desktop(&self) -> Result<(), String> {
        Ok(())
    }
    async fn act(&self, action: &Action) -> Result<(), String>;
    /// Runs a program with its arguments; no shell is between.
    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, String>;
    /// Starts a program and does not wait for it.
    async fn launch(&self, command: &[String]) -> Result<(), String>;
    async fn read(&self, path: &str) -> Result<Vec<u8>, String>;
    async fn write(&self, path: &str, content: &[u8]) -> Result<(), String>;
    /// Films the screen. Stop answers with the film; start with nothing.
    async fn record(&self, what: Recording) -> Result<Vec<u8>, String>;
    /// Puts it back to where it was when it was first ready: its files, its programs, its screen.
    async fn reset(&self) -> Result<(), String>;
    /// Its session is over. What is in a sandbox goes with that.
    async fn end(&self) {}
}
