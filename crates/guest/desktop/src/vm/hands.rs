//! Mouse and keyboard of a VM. QEMU takes positions as fractions of the whole screen, in 32,768ths.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::keys::{self, Stroke};
use super::service::{Vm, VmError};
use crate::desktop::{Button, ScreenError};

/// Maximum turns of the wheel in one call; the rest is cut off.
const MAX_TURNS: u64 = 200;
/// Steps of a drag: programs follow a movement, and miss a jump.
const DRAG_STEPS: i64 = 12;
/// Pause between two strokes, turns of the wheel, or steps. The devices queue some events and drop the next ones, and an emulated
/// VM is slow; nothing reports that it has received them.
const PAUSE: Duration = Duration::from_millis(15);
/// Pause between press and release of a button, and before a second click.
const CLICK_PAUSE: Duration = Duration::from_millis(30);
/// QEMU's value for a whole side.
const WHOLE: f64 = 32768.0;

/// The pointer's position, as last set from here.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Position {
    pub(super) x: f64,
    pub(super) y: f64,
}

fn button_name(button: Button) -> &'static str {
    match button {
        Button::Left => "left",
        Button::Middle => "middle",
        Button::Right => "right",
    }
}

fn button_event(name: &str, down: bool) -> Value {
    json!({"type": "btn", "data": {"button": name, "down": down}})
}

fn key_event(qcode: &str, down: bool) -> Value {
    json!({"type": "key", "data": {"key": {"type": "qcode", "data": qcode}, "down": down}})
}

/// The center of a pixel, in 32,768ths of a side.
fn part(at: i64, side: u16) -> i64 {
    ((at as f64 + 0.5) * WHOLE / f64::from(side.max(1))) as i64
}

impl Vm {
    async fn input(&self, events: Vec<Value>) -> Result<(), VmError> {
        self.qmp.execute("input-send-event", json!({"events": events})).await?;
        Ok(())
    }

    async fn go(&self, column: i64, row: i64, (width, height): (u16, u16)) -> Result<(), VmError> {
        let axis = |axis: &str, value: i64| json!({"type": "abs", "data": {"axis": axis, "value": value}});
        self.input(vec![axis("x", part(column, width)), axis("y", part(row, height))]).await?;
        self.note(Position { x: column as f64, y: row as f64 });
        Ok(())
    }

    /// Moves the pointer to a point on the screen.
    pub async fn move_to(&self, x: f64, y: f64) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        self.point(x, y).await
    }

    async fn point(&self, x: f64, y: f64) -> Result<(), VmError> {
        let (width, height) = self.size().await?;
        let (column, row) = (x.round() as i64, y.round() as i64);
        if !(0..i64::from(width)).contains(&column) || !(0..i64::from(height)).contains(&row) {
            return Err(ScreenError::Outside { x: column, y: row, width, height }.into());
        }
        self.go(column, row, (width, height)).await
    }

    /// Returns the last position that was set, and the size of the screen.
    pub async fn pointer(&self) -> Result<((i16, i16), (u16, u16)), VmError> {
        let at = self.position();
        Ok(((at.x as i16, at.y as i16), self.size().await?))
    }

    /// Returns the point at this distance from the pointer, at most at the edge.
    async fn beside(&self, x: f64, y: f64) -> Result<Position, VmError> {
        let (at, (width, height)) = (self.position(), self.size().await?);
        let stop = |at: f64, way: f64, side: u16| (at + way).clamp(0.0, f64::from(side.max(1) - 1));
        Ok(Position { x: stop(at.x, x, width), y: stop(at.y, y, height) })
    }

    /// Moves the pointer relative to its position, at most to the edge.
    pub async fn move_by(&self, x: f64, y: f64) -> Result<(), VmError> {
        let to = self.beside(x, y).await?;
        self.move_to(to.x, to.y).await
    }

    /// Clicks at the pointer, or at a point.
    pub async fn click(&self, x: Option<f64>, y: Option<f64>, button: Button, times: u8) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        if x.is_some() || y.is_some() {
            let here = self.position();
            self.point(x.unwrap_or(here.x), y.unwrap_or(here.y)).await?;
            sleep(CLICK_PAUSE).await;
        }
        for _ in 0..times {
            self.input(vec![button_event(button_name(button), true)]).await?;
            sleep(CLICK_PAUSE).await;
            self.input(vec![button_event(button_name(button), false)]).await?;
            sleep(CLICK_PAUSE).await;
        }
        Ok(())
    }

    /// Presses or releases a button of the mouse.
    pub async fn button(&self, button: Button, down: bool) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        self.input(vec![button_event(button_name(button), down)]).await
    }

    /// Moves the pointer with the left button held.
    pub async fn drag_to(&self, x: f64, y: f64) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        let (from, size) = (self.position(), self.size().await?);
        if !(0.0..f64::from(size.0)).contains(&x) || !(0.0..f64::from(size.1)).contains(&y) {
            let (width, height) = size;
            return Err(ScreenError::Outside { x: x as i64, y: y as i64, width, height }.into());
        }
        self.input(vec![button_event("left", true)]).await?;
        for step in 1..=DRAG_STEPS {
            sleep(PAUSE).await;
            let part = |from: f64, to: f64| (from + (to - from) * step as f64 / DRAG_STEPS as f64).round() as i64;
            self.go(part(from.x, x), part(from.y, y), size).await?;
        }
        sleep(CLICK_PAUSE).await;
        self.input(vec![button_event("left", false)]).await
    }

    /// Like `drag_to`, relative to the pointer.
    pub async fn drag_by(&self, x: f64, y: f64) -> Result<(), VmError> {
        let to = self.beside(x, y).await?;
        self.drag_to(to.x, to.y).await
    }

    /// Turns the wheel: `dy` above 0 is up, `dx` above 0 is right.
    pub async fn scroll(&self, dx: i64, dy: i64) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        for (turns, forth, back) in [(dy, "wheel-up", "wheel-down"), (dx, "wheel-right", "wheel-left")] {
            let name = if turns > 0 { forth } else { back };
            for _ in 0..turns.unsigned_abs().min(MAX_TURNS) {
                self.input(vec![button_event(name, true)]).await?;
                self.input(vec![button_event(name, false)]).await?;
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn key(&self, stroke: Stroke, down: bool) -> Result<(), VmError> {
        let shift = stroke.shift.then(|| key_event("shift", down));
        let key = key_event(stroke.qcode, down);
        let events = if down { [shift, Some(key)] } else { [Some(key), shift] };
        self.input(events.into_iter().flatten().collect()).await
    }

    /// Presses or releases a key.
    pub async fn press(&self, name: &str, down: bool) -> Result<(), VmError> {
        let stroke = keys::named(name)?;
        let _hands = self.hands.lock().await;
        self.key(stroke, down).await
    }

    /// Presses keys in order, and releases them in reverse order.
    pub async fn hotkey(&self, names: &[String]) -> Result<(), VmError> {
        // All names are checked before the first press, so no key stays pressed because of an unknown one.
        let strokes = names.iter().map(|name| keys::named(name)).collect::<Result<Vec<_>, _>>()?;
        let _hands = self.hands.lock().await;
        let mut held = Vec::new();
        let mut outcome = Ok(());
        for stroke in strokes {
            outcome = self.key(stroke, true).await;
            if outcome.is_err() {
                break;
            }
            held.push(stroke);
            sleep(PAUSE).await;
        }
        for stroke in held.into_iter().rev() {
            self.key(stroke, false).await?;
            sleep(PAUSE).await;
        }
        outcome
    }

    /// Checks that each character of a text is on a key.
    pub fn can_type(text: &str) -> Result<(), VmError> {
        match text.chars().find(|character| keys::of_character(*character).is_none()) {
            Some(character) => Err(VmError::NoKeyFor(character)),
            None => Ok(()),
        }
    }

    /// Types a text by keys; each character must be on one.
    pub async fn type_keys(&self, text: &str) -> Result<(), VmError> {
        Self::can_type(text)?;
        let _hands = self.hands.lock().await;
        for stroke in text.chars().filter_map(keys::of_character) {
            self.key(stroke, true).await?;
            self.key(stroke, false).await?;
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_come_back_as_they_went() {
        // The conversion of X and others from a tablet's value to a pixel.
        let back = |value: i64, side: u16| value * i64::from(side) / 32768;
        for side in [1_u16, 800, 1280, 1920, 4096] {
            for at in 0..i64::from(side) {
                assert_eq!(back(part(at, side), side), at, "{at} of {side}");
                assert!((0..32768).contains(&part(at, side)));
            }
        }
    }

    #[test]
    fn what_no_key_types_is_found_before_anything_is_typed() {
        assert!(Vm::can_type("Aa1~\n\t").is_ok());
        assert!(matches!(Vm::can_type("abé"), Err(VmError::NoKeyFor('é'))));
    }
}
