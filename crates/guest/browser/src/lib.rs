//! AIO's `browser` service: the sandbox's one Chromium, on the desktop, so that viewers see what an agent does.
//!
//! ```text
//!  routes ─► service ─► browser: Chromium's process, started by `start` as the sandbox's user on the desktop's screen
//!                          ├─ cdp: our own connection to it
//!                          ├─ automation: a second one, which tracks tabs and their content
//!                          │    └─ page, tabs, cookies, state, network: what agents do there
//!                          └─ relay: connections of clients, each with its own to Chromium
//!  actions ─► desktop: mouse and keyboard input like a person's
//! ```
//!
//! Nothing of it runs before the first call. The profile lasts for the sandbox's whole life. The browser listens on loopback, for
//! DevTools clients in the sandbox; previews don't reach it. A browser that ended or hangs is replaced at the next call.

#![forbid(unsafe_code)]

mod automation;
mod cookies;
mod files;
mod network;
mod pac;
mod page;
mod policy;
mod relay;
mod routes;
mod service;
mod start;
mod state;
mod tabs;
mod types;

pub use automation::{Download, Progress as DownloadProgress};
pub use cookies::CookiesApi;
pub use network::NetworkApi;
pub use page::PageApi;
pub use page::{
    ClickRequest, PageButton, PageError, PageFormat, PagePicture, ScrollDirection, Shot, Target, WaitUntil, Work, act, work,
};
pub use routes::{BrowserApi, router};
pub use service::{Browser, BrowserError, BrowserService};
pub use state::StateApi;
pub use tabs::TabsApi;
pub use tabs::{TabTold, closed, known, opened, shown};
pub use types::*;
