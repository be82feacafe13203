//! The mouse.

use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::ToSchema;
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, KEY_PRESS_EVENT, KEY_RELEASE_EVENT, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;

use super::screen::{Screen, ScreenError};

/// Maximum turns of the wheel in one call; the rest is cut off.
const MAX_TURNS: u32 = 200;
/// Steps of a drag: programs follow a movement, and miss a jump.
const DRAG_STEPS: i32 = 12;
/// Pause between two steps of a drag, and between pressing and moving, in milliseconds.
const DRAG_PAUSE: u32 = 12;
/// Pause before a button goes down or up, in milliseconds: simultaneous clicks don't count as several.
const CLICK_PAUSE: u32 = 10;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "left")]
pub enum Button {
    #[default]
    Left,
    Right,
    Middle,
}

impl Button {
    fn number(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Middle => 2,
            Self::Right => 3,
        }
    }
}

impl Screen {
    /// Has the X server simulate a device event, `pause` milliseconds after the previous one.
    fn fake(&self, kind: u8, detail: u8, pause: u32, (x, y): (i16, i16)) -> Result<(), ScreenError> {
        self.connection.xtest_fake_input(kind, detail, pause, self.root, x, y, 0)?;
        Ok(())
    }

    pub(super) fn key(&self, keycode: u8, down: bool) -> Result<(), ScreenError> {
        self.fake(if down { KEY_PRESS_EVENT } else { KEY_RELEASE_EVENT }, keycode, 0, (0, 0))
    }

    /// The pointer's position.
    pub fn position(&self) -> Result<(i16, i16), ScreenError> {
        let pointer = self.connection.query_pointer(self.root)?.reply()?;
        Ok((pointer.root_x, pointer.root_y))
    }

    fn place(&self, x: f64, y: f64) -> Result<(i16, i16), ScreenError> {
        let (width, height) = self.size()?;
        let (column, row) = (x.round() as i64, y.round() as i64);
        let inside = |at: i64, size: u16| (0..i64::from(size)).contains(&at).then_some(at as i16);
        match (inside(column, width), inside(row, height)) {
            (Some(column), Some(row)) => Ok((column, row)),
            _ => Err(ScreenError::Outside { x: column, y: row, width, height }),
        }
    }

    pub fn move_to(&self, x: f64, y: f64) -> Result<(), ScreenError> {
        let place = self.place(x, y)?;
        self.fake(MOTION_NOTIFY_EVENT, 0, 0, place)?;
        self.finish()
    }

    /// Returns where the pointer would be after a relative movement. It stops at the edges, as a mouse does.
    fn after_way(&self, x: f64, y: f64) -> Result<(f64, f64), ScreenError> {
        let (at, (width, height)) = (self.position()?, self.size()?);
        let stop = |at: i16, way: f64, size: u16| (f64::from(at) + way).clamp(0.0, f64::from(size.max(1) - 1));
        Ok((stop(at.0, x, width), stop(at.1, y, height)))
    }

    pub fn move_by(&self, x: f64, y: f64) -> Result<(), ScreenError> {
        let (x, y) = self.after_way(x, y)?;
        self.move_to(x, y)
    }

    /// Clicks at the pointer, or at a point; a missing coordinate is the pointer's.
    pub fn click(&self, x: Option<f64>, y: Option<f64>, button: Button, times: u8) -> Result<(), ScreenError> {
        if x.is_some() || y.is_some() {
            let here = self.position()?;
            self.move_to(x.unwrap_or(here.0.into()), y.unwrap_or(here.1.into()))?;
        }
        for _ in 0..times {
            self.fake(BUTTON_PRESS_EVENT, button.number(), CLICK_PAUSE, (0, 0))?;
            self.fake(BUTTON_RELEASE_EVENT, button.number(), CLICK_PAUSE, (0, 0))?;
        }
        self.finish()
    }

    pub fn button(&self, button: Button, down: bool) -> Result<(), ScreenError> {
        self.fake(if down { BUTTON_PRESS_EVENT } else { BUTTON_RELEASE_EVENT }, button.number(), 0, (0, 0))?;
        self.finish()
    }

    /// Moves the pointer with the left button held.
    pub fn drag_to(&self, x: f64, y: f64) -> Result<(), ScreenError> {
        let (from, to) = (self.position()?, self.place(x, y)?);
        self.fake(BUTTON_PRESS_EVENT, Button::Left.number(), 0, (0, 0))?;
        for step in 1..=DRAG_STEPS {
            let part = |from: i16, to: i16| (i32::from(from) + (i32::from(to) - i32::from(from)) * step / DRAG_STEPS) as i16;
            self.fake(MOTION_NOTIFY_EVENT, 0, DRAG_PAUSE, (part(from.0, to.0), part(from.1, to.1)))?;
        }
        self.fake(BUTTON_RELEASE_EVENT, Button::Left.number(), DRAG_PAUSE, (0, 0))?;
        self.finish()
    }

    pub fn drag_by(&self, x: f64, y: f64) -> Result<(), ScreenError> {
        let (x, y) = self.after_way(x, y)?;
        self.drag_to(x, y)
    }

    /// Turns the wheel: `dy` above 0 is up, `dx` above 0 is right. In turns.
    pub fn scroll(&self, dx: i64, dy: i64) -> Result<(), ScreenError> {
        for (turns, forth, back) in [(dy, 4, 5), (dx, 7, 6)] {
            let button = if turns > 0 { forth } else { back };
            for _ in 0..u32::try_from(turns.unsigned_abs()).unwrap_or(MAX_TURNS).min(MAX_TURNS) {
                self.fake(BUTTON_PRESS_EVENT, button, 0, (0, 0))?;
                self.fake(BUTTON_RELEASE_EVENT, button, 0, (0, 0))?;
            }
        }
        self.connection.flush()?;
        self.finish()
    }
}
