//! Input and screenshots on the desktop: what a person could do and see there, for callers that act in a person's place. Routes,
//! the browser's actions, and tools all use it.
//!
//! Reads can be repeated, so they are retried once if the desktop broke meanwhile. Input is sent once: half of it may have
//! happened.

use std::sync::Arc;

use super::accessibility::{self, AccessibilityTree, Wanted};
use super::bus::BusError;
use super::keys;
use super::picture::{Format, Picture, Region};
use super::pointer::Button;
use super::screen::{Screen, ScreenError};
use super::service::{Desktop, DesktopError};
use super::windows::{Window, WindowClosed};
use crate::desktop::DesktopService;
use crate::vm::{Vm, VmError};

/// Maximum characters without a key that are typed one by one; with more, the text is pasted if allowed.
const MAX_FOREIGN: usize = 32;
/// Maximum characters that are typed by keys; longer texts are pasted if allowed.
const MAX_TYPED: usize = 4000;
/// Maximum bytes of a text that is typed by keys alone.
const MAX_TYPED_BYTES: usize = 1 << 20;
/// Maximum attempts to read a tree: the bus, and then what it starts, may each have ended.
const READS: usize = 3;

/// What to capture: the screen, or a window with anything in front of it; and which part, in pixels from the upper left corner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct View {
    pub window: Option<u32>,
    pub x: u32,
    pub y: u32,
    /// `None`: up to the edge.
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
    service: Arc<DesktopService>,
    desktop: Arc<Desktop>,
}

/// Runs the same code for either kind of screen.
macro_rules! on_either {
    ($self:ident, $desktop:ident => $there:expr, $vm:ident => $here:expr) => {
        match $self {
            Self::Desktop($desktop) => $there,
            Self::Vm($vm) => Ok($here?),
        }
    };
}

impl Control {
    /// Controls the sandbox's own screen, or that of a VM if the image has one. Starts it if it is not running.
    pub async fn start(service: &Arc<DesktopService>) -> Result<Self, DesktopError> {
        match Self::vm(service).await? {
            Some(vm) => Ok(vm),
            None => Ok(Self::over(service, service.ready().await?)),
        }
    }

    /// Controls the screen of the sandbox's VM, which is started if it is not running; `None` if its image has no VM.
    pub async fn vm(service: &Arc<DesktopService>) -> Result<Option<Self>, DesktopError> {
        if !service.vm.is_there()? {
            return Ok(None);
        }
        Ok(Some(Self::Vm(service.vm.ready().await?)))
    }

    /// Controls a desktop that is already running.
    pub fn over(service: &Arc<DesktopService>, desktop: Arc<Desktop>) -> Self {
        Self::Desktop(OnDesktop { service: Arc::clone(service), desktop })
    }

    /// Returns the pointer's position, and the size of the screen.
    pub async fn pointer(&self) -> Result<((i16, i16), (u16, u16)), DesktopError> {
        on_either!(self,
            on => on.look(|screen| Ok((screen.position()?, screen.size()?))).await,
            vm => vm.pointer().await)
    }

    /// Moves the pointer to a point on the screen.
    pub async fn move_to(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.move_to(x, y)).await, vm => vm.move_to(x, y).await)
    }

    /// Moves the pointer relative to its position, at most to the edge.
    pub async fn move_by(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.move_by(x, y)).await, vm => vm.move_by(x, y).await)
    }

    /// Clicks at the pointer, or at a point; a missing coordinate is the pointer's.
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

    /// Like `drag_to`, relative to the pointer.
    pub async fn drag_by(&self, x: f64, y: f64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.drag_by(x, y)).await, vm => vm.drag_by(x, y).await)
    }

    /// Turns the wheel: `dy` above 0 is up, `dx` above 0 is right.
    pub async fn scroll(&self, dx: i64, dy: i64) -> Result<(), DesktopError> {
        on_either!(self, on => on.desktop.run(move |screen| screen.scroll(dx, dy)).await, vm => vm.scroll(dx, dy).await)
    }

    /// Presses keys in order, and releases them in reverse order. A single key is pressed and released.
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

    /// Types a text by keys. Long texts, and those with many characters that are on no key, are pasted if allowed.
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
        on_either!(self, on => on.desktop.copy(&on.service.runtime, text).await, vm => vm.copy(text).await)
    }

    /// The clipboard's text; empty if nothing was copied, or something that is not text.
    pub async fn clipboard(&self) -> Result<String, DesktopError> {
        on_either!(self, on => on.look(|screen| screen.clipboard()).await, vm => vm.clipboard().await)
    }

    /// Lists the windows of programs, the oldest first.
    pub async fn windows(&self) -> Result<Vec<Window>, DesktopError> {
        self.windowed()?.look(|screen| screen.windows()).await
    }

    /// Raises a window, even a minimised one, and gives it the keyboard focus.
    pub async fn activate(&self, id: u32) -> Result<Window, DesktopError> {
        self.windowed()?.activate(id).await
    }

    /// Asks a window to close, like its frame's close button.
    pub async fn close(&self, id: u32) -> Result<WindowClosed, DesktopError> {
        self.windowed()?.desktop.run(move |screen| screen.close(id)).await
    }

    /// The desktop, if its windows are known; those in a VM are not.
    fn windowed(&self) -> Result<&OnDesktop, DesktopError> {
        match self {
            Self::Desktop(on) => Ok(on),
            Self::Vm(_) => Err(VmError::NoWindows.into()),
        }
    }

    /// Takes a picture, and returns it with its file.
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
        // If a part can't be typed, nothing is.
        if let Some(character) = text.chars().find(|character| keys::of_character(*character).is_none()) {
            return Err(ScreenError::NoCharacter(character).into());
        }
        let characters: Vec<char> = text.replace("\r\n", "\n").chars().collect();
        // Each piece is a separate job, with a job's timeout.
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

    /// Raises a window, even a minimised one, and gives it the keyboard focus.
    async fn activate(&self, id: u32) -> Result<Window, DesktopError> {
        match self.look(move |screen| screen.activate(id)).await {
            Err(DesktopError::Screen(ScreenError::NoManager)) => {}
            outcome => return outcome,
        }
        // The window manager has ended unnoticed. The image may also have none.
        self.desktop.replace_manager(&self.service.runtime).await?;
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
            let desktop = self.service.ready().await?;
            let (place, ended) = desktop.bus(&self.service.runtime).await?;
            let read = tokio::select! {
                read = accessibility::read(&self.service.runtime, &place, &wanted) => read,
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

    /// Runs a job that can be repeated, and retries it once on a fresh desktop if the X server ended or hung.
    async fn look<T: Send + 'static>(
        &self,
        job: impl Fn(&Screen) -> Result<T, ScreenError> + Clone + Send + 'static,
    ) -> Result<T, DesktopError> {
        let again = job.clone();
        match self.desktop.run(move |screen| job(screen)).await {
            Err(DesktopError::Screen(ScreenError::Gone | ScreenError::Hung)) => {
                let fresh = self.service.ready().await?;
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

    /// The part of a region that is meant. It has no pixels if it would be outside.
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
