//! Windows, and the size of the screen.

use serde::Serialize;
use utoipa::ToSchema;
use x11rb::protocol::randr::{ConnectionExt as _, Rotation, SetConfig};
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt as _, MapState};

use super::picture::Region;
use super::screen::{Screen, ScreenError};

/// Windows of one answer.
const MAX_WINDOWS: usize = 500;
/// Of a window's title, in units of 4 bytes.
const MAX_TITLE: u32 = 256;

/// A window that a program shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Window {
    pub id: u32,
    pub title: String,
    /// The kind of program, such as `Chromium-browser`.
    pub class: String,
    /// Where it is on the screen, without its frame.
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
    /// Whether it is shown, and not minimised.
    pub visible: bool,
    /// Whether keys go to it.
    pub active: bool,
}

impl Window {
    pub fn region(&self) -> Region {
        Region { x: self.x, y: self.y, width: self.width, height: self.height }
    }
}

impl Screen {
    fn atom(&self, name: &str) -> Result<u32, ScreenError> {
        Ok(self.connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
    }

    fn numbers(&self, window: u32, name: &str, most: u32) -> Result<Vec<u32>, ScreenError> {
        let reply = self.connection.get_property(false, window, self.atom(name)?, AtomEnum::ANY, 0, most)?.reply()?;
        Ok(reply.value32().map(Iterator::collect).unwrap_or_default())
    }

    fn text(&self, window: u32, property: u32) -> Result<String, ScreenError> {
        let reply = self.connection.get_property(false, window, property, AtomEnum::ANY, 0, MAX_TITLE)?.reply()?;
        Ok(String::from_utf8_lossy(&reply.value).into_owned())
    }

    /// All that the window manager knows, the oldest first.
    pub fn windows(&self) -> Result<Vec<Window>, ScreenError> {
        let active = self.numbers(self.root, "_NET_ACTIVE_WINDOW", 1)?.first().copied();
        let ids = self.numbers(self.root, "_NET_CLIENT_LIST", MAX_WINDOWS as u32)?;
        let title = self.atom("_NET_WM_NAME")?;
        // One that closes meanwhile is left out.
        let windows = ids.into_iter().filter_map(|id| self.window(id, title, active).transpose());
        windows.collect()
    }

    fn window(&self, id: u32, title: u32, active: Option<u32>) -> Result<Option<Window>, ScreenError> {
        let looked = || -> Result<Window, ScreenError> {
            let geometry = self.connection.get_geometry(id)?.reply()?;
            let place = self.connection.translate_coordinates(id, self.root, 0, 0)?.reply()?;
            let attributes = self.connection.get_window_attributes(id)?.reply()?;
            let mut name = self.text(id, title)?;
            if name.is_empty() {
                name = self.text(id, AtomEnum::WM_NAME.into())?;
            }
            // Two texts, each with a zero behind: the instance and the class.
            let class = self.text(id, AtomEnum::WM_CLASS.into())?;
            Ok(Window {
                id,
                title: name,
                class: class.split('\0').nth(1).unwrap_or_default().to_owned(),
                x: place.dst_x.into(),
                y: place.dst_y.into(),
                width: geometry.width.into(),
                height: geometry.height.into(),
                visible: attributes.map_state == MapState::VIEWABLE,
                active: active == Some(id),
            })
        };
        match looked() {
            Ok(window) => Ok(Some(window)),
            Err(ScreenError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes the size of the screen to one of those that the X server has.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), ScreenError> {
        // Who does not say which version it knows is answered as one of the first.
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
