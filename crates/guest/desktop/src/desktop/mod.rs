//! A screen for programs with windows, with input and screenshots.
//!
//! ```text
//!  control: input and screenshots, for routes, the browser's actions, and tools
//!   └─► service ─► desktop: the X server's process, the window manager's and the bus's, started as the sandbox's user
//!                ├─► screen: one thread with one connection to the X server, which runs one job after the other
//!                │     ├─ pointer, keyboard, clipboard: a person's input
//!                │     ├─ picture: what a person would see
//!                │     └─ windows, size
//!                └─► bus ─► accessibility: the accessibility trees of programs
//! ```
//!
//! Nothing of it runs before the first call. The X server listens on socket files only, never on a port. If it ended or hangs, it
//! is replaced at the next call; after a time without use, it is stopped.
//!
//! If the sandbox's image has a VM, `control` works on the VM's screen instead, and no X server is started.

mod accessibility;
mod actions;
mod announced;
mod bus;
mod clipboard;
mod control;
mod ffmpeg;
mod keyboard;
mod keys;
mod picture;
mod ping;
mod pointer;
mod record;
mod routes;
mod screen;
mod service;
mod start;
mod vnc;
mod windows;

pub use accessibility::{AccessibilityTree, AccessibleNode, NodeValue, ScreenBox};
pub use accessibility::{known_state, place_of};
pub use actions::{Action, ActionData, ActionResponse};
pub use bus::BusError;
pub use control::{Control, OnDesktop, View};
pub use ffmpeg::{ffmpeg_command, h264_arguments};
pub use keyboard::Keyboard;
pub use keys::keysym;
pub use keys::of_character as character_keysym;
pub use picture::{Format, Picture, PictureFormat, Region};
pub use pointer::Button;
pub use record::positive;
pub use record::{DisplayRecordRequest, DisplayRecordResult};
pub use routes::picture_answer;
pub use routes::{DisplayApi, router};
pub use screen::{Screen, ScreenError};
pub use service::{BrowserWindow, Desktop, DesktopError, DesktopService, Size};
pub use windows::{Window, WindowClosed};
