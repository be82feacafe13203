//! Windows, and the size of the screen.

use std::time::{Duration, Instant};

use serde::Serialize;
use utoipa::ToSchema;
use x11rb::connection::Connection;
use x11rb::protocol::randr::{ConnectionExt as _, Rotation, SetConfig};
use x11rb::protocol::xproto::{
    AtomEnum, ClientMessageEvent, ConfigureWindowAux, ConnectionExt as _, EventMask, InputFocus, MapState, StackMode, WindowClass,
};

use super::accessibility::ScreenBox;
use super::clipboard::hidden_window;
use super::picture::Region;
use super::screen::{Screen, ScreenError};

/// Maximum windows of one answer.
const MAX_WINDOWS: usize = 500;
/// Maximum length of a window's title, in units of 4 bytes.
const MAX_TITLE: u32 = 256;
/// Maximum concurrent states of a window.
const MAX_STATES: u32 = 64;
/// Timeout for the window manager to start, and for each request to it.
const MANAGED: Duration = Duration::from_secs(2);
/// Interval between checks whether it listens.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Time for a program to close its window.
const CLOSED: Duration = Duration::from_secs(2);
/// The source of a request to the window manager: a person, who may do what programs may not.
const PERSON: u32 = 2;

/// A window of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Window {
    pub id: u32,
    pub title: String,
    /// The kind of program, such as `Chromium-browser`.
    pub class: String,
    /// The program's process, if the window names it.
    pub pid: Option<u32>,
    /// Its box on the screen, without its frame.
    #[serde(rename = "box")]
    pub place: ScreenBox,
    /// Whether it has the keyboard focus.
    pub active: bool,
    pub minimised: bool,
}

/// The result of asking a window to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct WindowClosed {
    pub id: u32,
    /// False: it still exists; its program may ask something first.
    pub closed: bool,
}

impl Window {
    pub fn region(&self) -> Region {
        let ScreenBox { x, y, width, height } = self.place;
        Region { x, y, width, height }
    }
}

/// Returns the X server's answer; `None` if the object no longer exists.
pub(super) fn if_there<T>(asked: Result<T, ScreenError>) -> Result<Option<T>, ScreenError> {
    match asked {
        Ok(told) => Ok(Some(told)),
        Err(ScreenError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Screen {
    pub(super) fn atom(&self, name: &str) -> Result<u32, ScreenError> {
        Ok(self.connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
    }

    pub(super) fn numbers(&self, window: u32, name: &str, most: u32) -> Result<Vec<u32>, ScreenError> {
        let reply = self.connection.get_property(false, window, self.atom(name)?, AtomEnum::ANY, 0, most)?.reply()?;
        Ok(reply.value32().map(Iterator::collect).unwrap_or_default())
    }

    fn text(&self, window: u32, property: u32) -> Result<String, ScreenError> {
        let reply = self.connection.get_property(false, window, property, AtomEnum::ANY, 0, MAX_TITLE)?.reply()?;
        Ok(String::from_utf8_lossy(&reply.value).into_owned())
    }

    /// Whether a window manager runs: its marker is a window, which ends with it.
    fn is_managed(&self) -> Result<bool, ScreenError> {
        let mark = "_NET_SUPPORTING_WM_CHECK";
        let Some(window) = self.numbers(self.root, mark, 1)?.first().copied() else { return Ok(false) };
        Ok(if_there(self.numbers(window, mark, 1))?.is_some_and(|own| own == [window]))
    }

    /// Waits until the window manager handles requests. Returns false if there is none or it takes too long. One that has just
    /// started may lose windows that are shown at that moment.
    pub fn is_managed_soon(&self) -> Result<bool, ScreenError> {
        if !self.until(MANAGED, Self::is_managed)? {
            return Ok(false);
        }
        // It answers with the width of a frame only after it has read all existing windows, and ignores requests until then.
        let window = hidden_window(&self.connection)?;
        let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
        let deadline = Instant::now() + MANAGED;
        let answers = loop {
            self.tell(self.root, window, "_NET_REQUEST_FRAME_EXTENTS", [0; 5], mask)?;
            let answers = self.until(ASK_AGAIN, |screen| Ok(!screen.numbers(window, "_NET_FRAME_EXTENTS", 4)?.is_empty()));
            if !matches!(answers, Ok(false)) || Instant::now() >= deadline {
                break answers;
            }
        };
        self.connection.destroy_window(window)?;
        self.finish()?;
        answers
    }

    /// The ids of programs' windows, the oldest first.
    fn ids(&self) -> Result<Vec<u32>, ScreenError> {
        if self.is_managed()? {
            return self.numbers(self.root, "_NET_CLIENT_LIST", MAX_WINDOWS as u32);
        }
        // Without a window manager, they are direct children of the root, among menus and similar windows.
        let mut ids = self.connection.query_tree(self.root)?.reply()?.children;
        ids.truncate(MAX_WINDOWS);
        let is_shown = |id: u32| -> Result<bool, ScreenError> {
            let look = self.connection.get_window_attributes(id)?.reply()?;
            Ok(look.map_state == MapState::VIEWABLE && !look.override_redirect && look.class == WindowClass::INPUT_OUTPUT)
        };
        let mut shown = Vec::new();
        for id in ids {
            if if_there(is_shown(id))? == Some(true) {
                shown.push(id);
            }
        }
        Ok(shown)
    }

    pub(super) fn active(&self) -> Result<Option<u32>, ScreenError> {
        Ok(self.numbers(self.root, "_NET_ACTIVE_WINDOW", 1)?.first().copied())
    }

    /// Lists all windows of programs, the oldest first.
    pub fn windows(&self) -> Result<Vec<Window>, ScreenError> {
        let active = self.active()?;
        // Windows that close meanwhile are left out.
        let windows = self.ids()?.into_iter().filter_map(|id| if_there(self.look_at(id, active)).transpose());
        windows.collect()
    }

    /// Returns one window.
    pub fn window(&self, id: u32) -> Result<Window, ScreenError> {
        if !self.ids()?.contains(&id) {
            return Err(ScreenError::NoWindow(id));
        }
        if_there(self.look_at(id, self.active()?))?.ok_or(ScreenError::NoWindow(id))
    }

    fn look_at(&self, id: u32, active: Option<u32>) -> Result<Window, ScreenError> {
        let geometry = self.connection.get_geometry(id)?.reply()?;
        let place = self.connection.translate_coordinates(id, self.root, 0, 0)?.reply()?;
        let mut title = self.text(id, self.atom("_NET_WM_NAME")?)?;
        if title.is_empty() {
            title = self.text(id, AtomEnum::WM_NAME.into())?;
        }
        // Two zero-terminated strings: the instance and the class.
        let class = self.text(id, AtomEnum::WM_CLASS.into())?;
        let hidden = self.atom("_NET_WM_STATE_HIDDEN")?;
        Ok(Window {
            id,
            title,
            class: class.split('\0').nth(1).unwrap_or_default().to_owned(),
            pid: self.numbers(id, "_NET_WM_PID", 1)?.first().copied(),
            place: ScreenBox {
                x: place.dst_x.into(),
                y: place.dst_y.into(),
                width: geometry.width.into(),
                height: geometry.height.into(),
            },
            active: active == Some(id),
            minimised: self.numbers(id, "_NET_WM_STATE", MAX_STATES)?.contains(&hidden),
        })
    }

    pub(super) fn tell(&self, to: u32, about: u32, kind: &str, data: [u32; 5], mask: EventMask) -> Result<(), ScreenError> {
        let message = ClientMessageEvent::new(32, about, self.atom(kind)?, data);
        self.connection.send_event(false, to, mask, message)?;
        Ok(())
    }

    /// Raises a window and gives it the keyboard focus. Some windows don't accept the focus: then `active` is false.
    ///
    /// # Errors
    /// `NoManager` if there is no window manager.
    pub fn activate(&self, id: u32) -> Result<Window, ScreenError> {
        self.window(id)?;
        if !self.is_managed_soon()? {
            return Err(ScreenError::NoManager);
        }
        let now = self.active()?.unwrap_or_default();
        let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
        self.tell(self.root, id, "_NET_ACTIVE_WINDOW", [PERSON, x11rb::CURRENT_TIME, now, 0, 0], mask)?;
        self.until(MANAGED, |screen| Ok(screen.active()? == Some(id)))?;
        self.window(id)
    }

    /// Like `activate`, on a screen without a window manager.
    pub fn raise(&self, id: u32) -> Result<Window, ScreenError> {
        self.window(id)?;
        self.connection.configure_window(id, &ConfigureWindowAux::new().stack_mode(StackMode::ABOVE))?;
        self.connection.set_input_focus(InputFocus::POINTER_ROOT, id, x11rb::CURRENT_TIME)?;
        self.finish()?;
        Ok(Window { active: true, ..self.window(id)? })
    }

    /// Asks a window to close, like its frame's close button. If it does not support that, its program is disconnected and ends.
    pub fn close(&self, id: u32) -> Result<WindowClosed, ScreenError> {
        self.window(id)?;
        let delete = self.atom("WM_DELETE_WINDOW")?;
        let knows = if_there(self.numbers(id, "WM_PROTOCOLS", MAX_STATES))?.unwrap_or_default();
        if knows.contains(&delete) {
            self.tell(id, id, "WM_PROTOCOLS", [delete, x11rb::CURRENT_TIME, 0, 0, 0], EventMask::NO_EVENT)?;
        } else {
            self.connection.kill_client(id)?;
        }
        self.connection.flush()?;
        let closed = self.until(CLOSED, |screen| Ok(!screen.ids()?.contains(&id)))?;
        Ok(WindowClosed { id, closed })
    }

    /// Changes the size of the screen to one that the X server supports.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), ScreenError> {
        // Clients that don't announce a version get the answers of the first ones.
        self.connection.randr_query_version(1, 5)?.reply()?;
        let info = self.connection.randr_get_screen_info(self.root)?.reply()?;
        let is_wanted =
            |size: &x11rb::protocol::randr::ScreenSize| (u32::from(size.width), u32::from(size.height)) == (width, height);
        let Some(index) = info.sizes.iter().position(is_wanted) else {
            let known: Vec<_> = info.sizes.iter().map(|size| format!("{}x{}", size.width, size.height)).collect();
            return Err(ScreenError::NoSize { width, height, known: known.join(", ") });
        };
        let set = self.connection.randr_set_screen_config(
            self.root,
            x11rb::CURRENT_TIME,
            info.config_timestamp,
            index as u16,
            Rotation::ROTATE0,
            0,
        )?;
        match set.reply()?.status {
            SetConfig::SUCCESS => self.finish(),
            status => Err(ScreenError::Refused(format!("the screen's new size ({status:?})"))),
        }
    }
}
