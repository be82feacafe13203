//! Input and screenshots on the desktop: what a person could do and see there, for callers that act in a person's place. Routes,
//! the browser's actions, and tools all use it.
//!
//! Looking twice does no harm, so what only looks is done once more when the desktop broke under it. What hands do is
//! done once: half of it may have happened.

use std::sync::Arc;

use super::accessibility::{self, AccessibilityTree, Wanted};
use super::bus::BusError;
use super::keys;
use super::picture::{Format, Picture, Region};
use super::pointer::Button;
use super::screen::{Screen, ScreenError};
use super::service::{Desktop, DesktopError};
use super::windows::{Window, WindowClosed};
use crate::SharedGuest;
use crate::vm::{Vm, VmError};

/// Characters on no key that are typed one by one; with more the text goes over the clipboard, if it may.
const MAX_FOREIGN: usize = 32;
/// Characters typed by keys; longer texts go over the clipboard, if they may.
const MAX_TYPED: usize = 4000;
/// Bytes of a text that is typed by keys alone.
const MAX_TYPED_BYTES: usize = 1 << 20;
/// How often a tree is read until it is whole: its bus, and then what the bus starts, may each have ended.
const READS: usize = 3;

/// What a picture is of: the screen, or a window with whatever is before it; and which part of that, in pixels from its
/// upper left corner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct View {
    pub window: Option<u32>,
    pub x: u32,
    pub y: u32,
    /// None: up to the edge.
    pub width: Option<u32>,
    pub height: Option<u32>,
}

/// A screen in use: the sandbox's own, or that of its VM.
#[derive(Debug, Clone)]
pub enum Control {
    Desktop(OnDesktop),
    Vm(Arc<Vm>),
}

/// A desktop in use.
#[derive(Debug, Clone)]
pub struct OnDesktop {
    guest: SharedGuest,
    desktop: Arc<Desktop>,
}

/// Does the same on whichever screen it is.
macro_rules! on_either {
    ($self:ident, $desktop:ident => $there:expr, $vm:ident => $here:expr) => {
        match $self {
            Self::Desktop($desktop) => $there,
            Self::Vm($vm) => Ok($here?),
        }
    };
}

impl Control {
    /// On the sandbox's screen, which is started when it is not there: a VM's, if its image has one.
    pub async fn start(guest: &SharedGuest) -> Result<Self, DesktopError> {
        match Self::vm(guest).await? {
            Some(vm) => Ok(vm),
            None => Ok(Self::over(guest, guest.desktop.ready(guest).await?)),
        }
    }

    /// On the screen of the sandbox's VM, which is started when it is not there; none: its image has no VM.
    pub async fn vm(guest: &SharedGuest) -> Result<Option<Self>, DesktopError> {
        if !guest.vm.is_there(guest)? {
            return Ok(None);
        }
        Ok(Some(Self::Vm(guest.vm.ready(guest).await?)))
    }

    /// On a desktop that runs already.
    pub fn over(guest: &SharedGuest, desktop: Arc<Desktop>) -> Self {
        Self::Desktop(OnDesktop { guest: guest.clone(), desktop })
    }

    /// Where the pointer is, and the size of the screen.
    pub async fn pointer(&self) -> Result<((i16, i16), (u16, u16)), DesktopError> {
        on_either!(self,
            on => on.look(|screen| Ok((screen.position()?, screen.size()?))).await,
            vm => vm.pointer().await)
    }

    /// Moves the pointer to a place on the screen.
    pub async fn move_to(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.move_to(x, y)).await, vm => vm.move_to(x, y).await)
    }

    /// Moves the pointer from where it is, at most to the edge.
    pub async fn move_by(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.move_by(x, y)).await, vm => vm.move_by(x, y).await)
    }

    /// Clicks where the pointer is, or at a place; one that is half given keeps the pointer's other coordinate.
    pub async fn click(&self, x: Option<f64>, y: Option<f64>, button: Button, times: u8) -> Result<(), DesktopError> {
        on_either!(self,
            on => on.desktop.run(move |screen| screen.click(x, y, button, times)).await,
            vm => vm.click(x, y, button, times).await)
    }

    /// Presses or releases a button of the mouse.
    pub async fn button(&self, button: Button, down: bool) -> Result<(), DesktopError> {
        on_either!(self,
            on => on.desktop.run(move |screen| screen.button(button, down)).await,
            vm => vm.button(button, down).await)
    }

    /// Moves the pointer with the left button held.
    pub async fn drag_to(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.drag_to(x, y)).await, vm => vm.drag_to(x, y).await)
    }

    /// The same from where the pointer is.
    pub async fn drag_by(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.drag_by(x, y)).await, vm => vm.drag_by(x, y).await)
    }

    /// Turns the wheel: `dy` above 0 is up, `dx` above 0 is right.
    pub async fn scroll(&self, dx: i64, dy: i64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.scroll(dx, dy)).await, vm => vm.scroll(dx, dy).await)
    }

    /// Presses keys in this order, and releases them in the other. One key is a stroke of it.
    pub async fn hotkey(&self, names: Vec<String>) -> Result<(), DesktopError> {
        on_either!(self,
            on => on.desktop.run(move |screen| screen.hotkey(&names)).await,
            vm => vm.hotkey(&names).await)
    }

    /// Presses or releases a key.
    pub async fn key(&self, name: String, down: bool) -> Result<(), DesktopError> {
        on_either!(self,
            on => on.desktop.run(move |screen| screen.key_by_name(&name, down)).await,
            vm => vm.press(&name, down).await)
    }

    /// Types a text by keys; a long one, or one with much that is on no key, goes over the clipboard where it may.
    pub async fn type_text(&self, text: &str, may_paste: bool) -> Result<(), DesktopError> {
        if text.len() > MAX_TYPED_BYTES && !may_paste {
            return Err(DesktopError::LongText(MAX_TYPED_BYTES));
        }
        let is_pasted = may_paste
            && match self {
                Self::Desktop(on) => on.is_better_pasted(text).await?,
                Self::Vm(_) => text.chars().nth(MAX_TYPED).is_some() || Vm::can_type(text).is_err(),
            };
        if is_pasted {
            self.copy(text).await?;
            return self.hotkey(["ctrl", "v"].map(str::to_owned).into()).await;
        }
        on_either!(self,
            on => on.type_keys(text).await,
            vm => vm.type_keys(&text.replace("\r\n", "\n")).await)
    }

    /// Copies a text to the clipboard.
    pub async fn copy(&self, text: &str) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.copy(&on.guest, text).await, vm => vm.copy(text).await)
    }

    /// The text of the clipboard; empty when nothing was copied, or nothing that is text.
    pub async fn clipboard(&self) -> Result<String, DesktopError> {
        on_either!(self, on => on.look(|screen| screen.clipboard()).await, vm => vm.clipboard().await)
    }

    /// All windows that programs show, the oldest first.
    pub async fn windows(&self) -> Result<Vec<Window>, DesktopError> {
        self.windowed()?.look(|screen| screen.windows()).await
    }

    /// Has a window shown before all others, also a minimised one, and keys go to it.
    pub async fn activate(&self, id: u32) -> Result<Window, DesktopError> {
        self.windowed()?.activate(id).await
    }

    /// Asks a window to close, as its frame's button does.
    pub async fn close(&self, id: u32) -> Result<WindowClosed, DesktopError> {
        self.windowed()?.desktop.run(move |screen| screen.close(id)).await
    }

    /// The desktop with windows; a VM's screen has none that are known here.
    fn windowed(&self) -> Result<&OnDesktop, DesktopError> {
        match self {
            Self::Desktop(on) => Ok(on),
            Self::Vm(_) => Err(VmError::NoWindows.into()),
        }
    }

    /// A picture, and its file.
    pub async fn picture(&self, view: View, format: Format) -> Result<(Picture, Vec<u8>), DesktopError> {
        let picture = match self {
            Self::Desktop(on) => on.look(move |screen| view.taken(screen)).await?,
            Self::Vm(_) if view.window.is_some() => return Err(VmError::NoWindows.into()),
            Self::Vm(vm) => {
                let whole = vm.picture().await?;
                let (width, height) = whole.screen;
                whole.cut(view.part(Region { x: 0, y: 0, width: width.into(), height: height.into() }))?
            }
        };
        picture.encoded(format).await
    }

    /// The accessibility tree of all programs, or of one window, with at most `nodes` nodes and `depth` levels below the root.
    pub async fn accessibility(&self, window: Option<u32>, depth: u32, nodes: u32) -> Result<AccessibilityTree, DesktopError> {
        match self {
            Self::Desktop(on) => on.accessibility(window, depth, nodes).await,
            Self::Vm(_) if window.is_some() => Err(VmError::NoWindows.into()),
            Self::Vm(vm) => Ok(vm.accessibility(depth, nodes).await?),
        }
    }
}

impl OnDesktop {
    /// Types a text by keys alone.
    async fn type_keys(&self, text: &str) -> Result<(), DesktopError> {
        // None of it is typed when a part can't be.
        if let Some(character) = text.chars().find(|character| keys::of_character(*character).is_none()) {
            return Err(ScreenError::NoCharacter(character).into());
        }
        let characters: Vec<char> = text.replace("\r\n", "\n").chars().collect();
        // Each piece is its own job, with the time that a job has.
        for piece in characters.chunks(MAX_TYPED) {
            let piece: String = piece.iter().collect();
            self.desktop.run(move |screen| screen.type_text(&piece)).await?;
        }
        Ok(())
    }

    async fn is_better_pasted(&self, text: &str) -> Result<bool, DesktopError> {
        if text.chars().nth(MAX_TYPED).is_some() {
            return Ok(true);
        }
        let text = text.to_owned();
        Ok(self.desktop.run(move |screen| screen.foreign(&text)).await? > MAX_FOREIGN)
    }

    /// Has a window shown before all others, also a minimised one, and keys go to it.
    async fn activate(&self, id: u32) -> Result<Window, DesktopError> {
        match self.look(move |screen| screen.activate(id)).await {
            Err(DesktopError::Screen(ScreenError::NoManager)) => {}
            outcome => return outcome,
        }
        // It has ended, and nobody has noticed yet. An image may also have none.
        self.desktop.replace_manager(&self.guest).await?;
        match self.look(move |screen| screen.activate(id)).await {
            Err(DesktopError::Screen(ScreenError::NoManager)) => self.look(move |screen| screen.raise(id)).await,
            outcome => outcome,
        }
    }

    /// The accessibility tree of all programs, or of one window, with at most `nodes` nodes and `depth` levels below the root.
    async fn accessibility(&self, window: Option<u32>, depth: u32, nodes: u32) -> Result<AccessibilityTree, DesktopError> {
        let window = match window {
            Some(id) => Some(self.look(move |screen| screen.window(id)).await?),
            None => None,
        };
        let wanted = Wanted { window, depth, nodes };
        let mut last = None;
        for _ in 0..READS {
            let desktop = self.guest.desktop.ready(&self.guest).await?;
            let (place, ended) = desktop.bus(&self.guest).await?;
            let read = tokio::select! {
                read = accessibility::read(&self.guest, &place, &wanted) => read,
                () = ended.cancelled() => Err(BusError::Gone.into()),
            };
            match read {
                Err(DesktopError::Bus(error)) => {
                    if matches!(error, BusError::Silent) {
                        desktop.end_bus().await;
                    }
                    last = Some(error);
                }
                outcome => return outcome,
            }
        }
        Err(last.unwrap_or(BusError::Gone).into())
    }

    /// Does what can be done twice; once more on a fresh desktop when the X server ended or stood still under it.
    async fn look<T: Send + 'static>(
        &self,
        job: impl Fn(&Screen) -> Result<T, ScreenError> + Clone + Send + 'static,
    ) -> Result<T, DesktopError> {
        let again = job.clone();
        match self.desktop.run(move |screen| job(screen)).await {
            Err(DesktopError::Screen(ScreenError::Gone | ScreenError::Hung)) => {
                let fresh = self.guest.desktop.ready(&self.guest).await?;
                fresh.run(move |screen| again(screen)).await
            }
            outcome => outcome,
        }
    }
}

impl View {
    fn taken(self, screen: &Screen) -> Result<Picture, ScreenError> {
        let whole = match self.window {
            Some(id) => {
                let window = screen.window(id)?;
                if window.minimised {
                    return Err(ScreenError::Minimised(id));
                }
                window.region()
            }
            None => {
                let (width, height) = screen.size()?;
                Region { x: 0, y: 0, width: width.into(), height: height.into() }
            }
        };
        screen.picture(Some(self.part(whole)))
    }

    /// The part of a region that is meant, which has no pixel when it would be outside.
    fn part(self, whole: Region) -> Region {
        let side = |from: u32, length: Option<u32>, all: u32| {
            let left = all.saturating_sub(from);
            length.map_or(left, |length| length.min(left))
        };
        Region {
            x: whole.x.saturating_add_unsigned(self.x),
            y: whole.y.saturating_add_unsigned(self.y),
            width: side(self.x, self.width, whole.width),
            height: side(self.y, self.height, whole.height),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_stay_within_what_they_are_of() {
        let whole = Region { x: -10, y: 20, width: 100, height: 50 };
        let part = |x, y, width, height| View { window: None, x, y, width, height }.part(whole);
        assert_eq!(part(0, 0, None, None), whole);
        assert_eq!(part(30, 40, None, Some(5)), Region { x: 20, y: 60, width: 70, height: 5 });
        assert_eq!(part(30, 40, Some(1000), Some(1000)), Region { x: 20, y: 60, width: 70, height: 10 });
        assert_eq!(part(100, u32::MAX, Some(1), None), Region { x: 90, y: i32::MAX, width: 0, height: 0 });
    }
}
