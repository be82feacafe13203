//! Keys by the names of Puppeteer and AIO's hub.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key that types nothing, or a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) enum KeyName {
    #[serde(alias = "Return")]
    Enter,
    Tab,
    #[serde(alias = "Esc")]
    Escape,
    Backspace,
    Delete,
    Insert,
    #[serde(alias = " ")]
    Space,
    #[serde(alias = "Left")]
    ArrowLeft,
    #[serde(alias = "Right")]
    ArrowRight,
    #[serde(alias = "Up")]
    ArrowUp,
    #[serde(alias = "Down")]
    ArrowDown,
    PageUp,
    PageDown,
    Home,
    End,
    F1,
    F2,
    F3,
    F4,
    F5,
    F6,
    F7,
    F8,
    F9,
    F10,
    F11,
    F12,
    #[serde(alias = "Shift")]
    ShiftLeft,
    ShiftRight,
    #[serde(alias = "Control", alias = "Ctrl")]
    ControlLeft,
    ControlRight,
    #[serde(alias = "Alt")]
    AltLeft,
    AltRight,
    #[serde(alias = "Meta")]
    MetaLeft,
    MetaRight,
    CapsLock,
    PrintScreen,
    ScrollLock,
    Pause,
    ContextMenu,
}

impl std::fmt::Display for KeyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Unit variants are formatted as their names.
        std::fmt::Debug::fmt(self, f)
    }
}
