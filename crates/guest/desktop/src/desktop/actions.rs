//! Mouse and keyboard actions of a person, by AIO's names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use crate::desktop::DesktopService;
use crate::desktop::{Button, Control, DesktopError};
use arenite_guest_runtime::http::{lenient, within};
use arenite_guest_runtime::process;

/// Maximum seconds that one call may wait.
const MAX_WAIT: f64 = 600.0;

/// One action, selected by `action_type`. Coordinates are pixels of the screen; without them, the action happens at the pointer.
#[derive(Debug, Clone, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "action_type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    #[schemars(description = "Moves the pointer to a place.")]
    MoveTo {
        #[schemars(description = "Pixels from the left edge of the screen.")]
        #[serde(deserialize_with = "lenient")]
        x: f64,
        #[schemars(description = "Pixels from the top edge of the screen.")]
        #[serde(deserialize_with = "lenient")]
        y: f64,
    },
    #[schemars(description = "Moves the pointer from where it is.")]
    MoveRel {
        #[schemars(description = "Pixels to the right; below 0: to the left.")]
        #[serde(deserialize_with = "lenient")]
        x_offset: f64,
        #[schemars(description = "Pixels down; below 0: up.")]
        #[serde(deserialize_with = "lenient")]
        y_offset: f64,
    },
    #[schemars(description = "Clicks at a place, or where the pointer is.")]
    Click {
        #[schemars(description = "Pixels from the left edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        x: Option<f64>,
        #[schemars(description = "Pixels from the top edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        y: Option<f64>,
        #[serde(default)]
        #[schema(inline)]
        #[schemars(description = "The button of the mouse.")]
        button: Button,
        #[serde(default = "once", deserialize_with = "within::<_, 1, 3>")]
        #[schema(schema_with = clicks)]
        #[schemars(description = "How often.", range(min = 1, max = 3))]
        num_clicks: i64,
    },
    #[schemars(description = "Presses a button of the mouse, and holds it.")]
    MouseDown {
        #[serde(default)]
        #[schema(inline)]
        #[schemars(description = "The button of the mouse.")]
        button: Button,
    },
    #[schemars(description = "Lets a button of the mouse go.")]
    MouseUp {
        #[serde(default)]
        #[schema(inline)]
        #[schemars(description = "The button of the mouse.")]
        button: Button,
    },
    #[schemars(description = "Clicks with the right button.")]
    RightClick {
        #[schemars(description = "Pixels from the left edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        x: Option<f64>,
        #[schemars(description = "Pixels from the top edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        y: Option<f64>,
    },
    #[schemars(description = "Clicks twice with the left button.")]
    DoubleClick {
        #[schemars(description = "Pixels from the left edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        x: Option<f64>,
        #[schemars(description = "Pixels from the top edge of the screen.")]
        #[serde(default, deserialize_with = "lenient")]
        y: Option<f64>,
    },
    /// With the left button held.
    #[schemars(description = "Drags from where the pointer is to a place, with the left button.")]
    DragTo {
        #[schemars(description = "Pixels from the left edge of the screen.")]
        #[serde(deserialize_with = "lenient")]
        x: f64,
        #[schemars(description = "Pixels from the top edge of the screen.")]
        #[serde(deserialize_with = "lenient")]
        y: f64,
    },
    #[schemars(description = "Drags from where the pointer is by some pixels, with the left button.")]
    DragRel {
        #[schemars(description = "Pixels to the right; below 0: to the left.")]
        #[serde(deserialize_with = "lenient")]
        x_offset: f64,
        #[schemars(description = "Pixels down; below 0: up.")]
        #[serde(deserialize_with = "lenient")]
        y_offset: f64,
    },
    /// In turns of the wheel, at most 200: `dy` above 0 is up, `dx` above 0 is right.
    #[schemars(description = "Turns the wheel where the pointer is. In turns, at most 200; one is some 100 pixels.")]
    Scroll {
        #[serde(default, deserialize_with = "lenient")]
        #[schema(default = 0)]
        #[schemars(description = "Turns to the right; below 0: to the left.")]
        dx: i64,
        #[serde(default, deserialize_with = "lenient")]
        #[schema(default = 0)]
        #[schemars(description = "Turns up; below 0: down.")]
        dy: i64,
    },
    /// Types by keys, including characters that are on no key. Long texts are pasted.
    #[schemars(description = "Types a text into what has the focus.")]
    Typing {
        #[serde(deserialize_with = "not_empty")]
        #[schema(min_length = 1)]
        #[schemars(description = "The text.", length(min = 1))]
        text: String,
        /// Whether it may be pasted; null means true.
        #[serde(default = "yes", deserialize_with = "lenient")]
        #[schema(default = true)]
        #[schemars(description = "Whether a long text may be pasted over the clipboard.")]
        use_clipboard: Option<bool>,
    },
    #[schemars(description = "Presses a key and lets it go.")]
    Press {
        #[schemars(description = "Its name, such as Return, BackSpace, ctrl, F5 or a.")]
        key: String,
    },
    #[schemars(description = "Presses a key, and holds it.")]
    KeyDown {
        #[schemars(description = "Its name, such as shift.")]
        key: String,
    },
    #[schemars(description = "Lets a key go.")]
    KeyUp {
        #[schemars(description = "Its name, such as shift.")]
        key: String,
    },
    #[schemars(description = "Presses keys together.")]
    Hotkey {
        #[serde(deserialize_with = "some")]
        #[schemars(description = "Their names in this order, such as [\"ctrl\", \"l\"].", length(min = 1))]
        keys: Vec<String>,
    },
    #[schemars(description = "Waits.")]
    Wait {
        /// In seconds.
        #[serde(deserialize_with = "crate::desktop::positive")]
        #[schema(exclusive_minimum = 0)]
        #[schemars(description = "Seconds, at most 600.", extend("exclusiveMinimum" = 0))]
        duration: f64,
    },
}

fn once() -> i64 {
    1
}

fn yes() -> Option<bool> {
    Some(true)
}

fn clicks() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([1, 2, 3])).default(Some(1.into())).build().into()
}

fn not_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Err(serde::de::Error::custom("String should have at least 1 character")) } else { Ok(text) }
}

fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let keys = Vec::deserialize(deserializer)?;
    if keys.is_empty() { Err(serde::de::Error::custom("List should have at least 1 item")) } else { Ok(keys) }
}

async fn wait(seconds: f64) {
    tokio::time::sleep(process::seconds(seconds.min(MAX_WAIT))).await;
}

/// A failed action returns an error status instead of this answer.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActionStatus {
    Success,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ActionData {
    #[schema(inline)]
    pub status: ActionStatus,
    pub action_performed: String,
}

/// The envelope, with its data repeated beside it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActionResponse {
    pub success: bool,
    pub message: Option<String>,
    pub data: Option<ActionData>,
    /// Advice for agents.
    pub hint: Option<String>,
    #[schema(inline)]
    pub status: ActionStatus,
    pub action_performed: String,
}

impl ActionData {
    pub fn new(action: &Action) -> Self {
        Self { status: ActionStatus::Success, action_performed: action.name().to_owned() }
    }
}

impl ActionResponse {
    pub fn done(action: &Action) -> Self {
        let data = ActionData::new(action);
        Self {
            success: true,
            message: Some(format!("{} done", data.action_performed)),
            hint: None,
            status: data.status,
            action_performed: data.action_performed.clone(),
            data: Some(data),
        }
    }
}

impl Action {
    /// The action's name in AIO.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MoveTo { .. } => "MOVE_TO",
            Self::MoveRel { .. } => "MOVE_REL",
            Self::Click { .. } => "CLICK",
            Self::MouseDown { .. } => "MOUSE_DOWN",
            Self::MouseUp { .. } => "MOUSE_UP",
            Self::RightClick { .. } => "RIGHT_CLICK",
            Self::DoubleClick { .. } => "DOUBLE_CLICK",
            Self::DragTo { .. } => "DRAG_TO",
            Self::DragRel { .. } => "DRAG_REL",
            Self::Scroll { .. } => "SCROLL",
            Self::Typing { .. } => "TYPING",
            Self::Press { .. } => "PRESS",
            Self::KeyDown { .. } => "KEY_DOWN",
            Self::KeyUp { .. } => "KEY_UP",
            Self::Hotkey { .. } => "HOTKEY",
            Self::Wait { .. } => "WAIT",
        }
    }

    /// Performs the action on the screen without starting a browser.
    pub async fn perform_on_desktop(&self, service: &Arc<DesktopService>) -> Result<(), DesktopError> {
        self.perform(Control::start(service)).await
    }

    /// Performs the action on a screen. The screen is requested only for actions that need one.
    pub async fn perform<E: From<DesktopError>>(&self, screen: impl Future<Output = Result<Control, E>>) -> Result<(), E> {
        if let Self::Wait { duration } = self {
            wait(*duration).await;
            return Ok(());
        }
        Ok(self.on(&screen.await?).await?)
    }

    async fn on(&self, control: &Control) -> Result<(), DesktopError> {
        match *self {
            Self::MoveTo { x, y } => control.move_to(x, y).await,
            Self::MoveRel { x_offset, y_offset } => control.move_by(x_offset, y_offset).await,
            Self::Click { x, y, button, num_clicks } => control.click(x, y, button, num_clicks.clamp(1, 3) as u8).await,
            Self::MouseDown { button } => control.button(button, true).await,
            Self::MouseUp { button } => control.button(button, false).await,
            Self::RightClick { x, y } => control.click(x, y, Button::Right, 1).await,
            Self::DoubleClick { x, y } => control.click(x, y, Button::Left, 2).await,
            Self::DragTo { x, y } => control.drag_to(x, y).await,
            Self::DragRel { x_offset, y_offset } => control.drag_by(x_offset, y_offset).await,
            Self::Scroll { dx, dy } => control.scroll(dx, dy).await,
            Self::Typing { ref text, use_clipboard } => control.type_text(text, use_clipboard.unwrap_or(true)).await,
            Self::Press { ref key } => control.hotkey(vec![key.clone()]).await,
            Self::KeyDown { ref key } => control.key(key.clone(), true).await,
            Self::KeyUp { ref key } => control.key(key.clone(), false).await,
            Self::Hotkey { ref keys } => control.hotkey(keys.clone()).await,
            Self::Wait { .. } => Ok(()),
        }
    }
}
