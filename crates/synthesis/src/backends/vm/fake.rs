//! A fake VM for tests, which records actions.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::driver::{Action, Button, Output, Recording, VirtualMachine};

use crate::error::{SynthesisError, machine};

/// 800 by 600 pixels, with the pointer always at 100, 100.
#[derive(Default)]
pub(super) struct FakeVm {
    done: Mutex<Vec<String>>,
}

impl FakeVm {
    pub(super) fn done(&self) -> Vec<String> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn does(&self, what: String) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

fn name(button: Button) -> String {
    format!("{button:?}").to_lowercase()
}

fn at(at: Option<(f64, f64)>) -> String {
    at.map(|(x, y)| format!(" at {x},{y}")).unwrap_or_default()
}

#[async_trait]
impl VirtualMachine for FakeVm {
    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        Ok((800, 600))
    }

    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        Err(machine("a fake has no picture"))
    }

    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        Ok(None)
    }

    async fn pointer(&self) -> Result<(f64, f64), SynthesisError> {
        Ok((100.0, 100.0))
    }

    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        let place = match action {
            Action::Move { x, y } => Some((*x, *y)),
            Action::Click { at, .. } | Action::Scroll { at, .. } => *at,
            _ => None,
        };
        if let Some((x, y)) = place.filter(|(x, y)| !(0.0..800.0).contains(x) || !(0.0..600.0).contains(y)) {
            return Err(machine(format!("{x}, {y} is outside of the screen, which is 800x600")));
        }
        self.does(match action {
            Action::Move { x, y } => format!("move {x},{y}"),
            Action::Click { at: place, button, times } => format!("click {} {times}{}", name(*button), at(*place)),
            Action::Press { button } => format!("down {}", name(*button)),
            Action::Release { button } => format!("up {}", name(*button)),
            Action::Drag { from, to, button, takes } => {
                let seconds = takes.as_secs_f64();
                format!("drag {} {},{} to {},{} in {seconds}", name(*button), from.0, from.1, to.0, to.1)
            }
            Action::Scroll { at: place, up, right } => format!("scroll up {up} right {right}{}", at(*place)),
            Action::Type { text, .. } => format!("type {text:?}"),
            Action::Keys { keys } => format!("keys {}", keys.join("+")),
            Action::KeyDown { key } => format!("key down {key}"),
            Action::KeyUp { key } => format!("key up {key}"),
        });
        Ok(())
    }

    async fn run(&self, _command: &[String], _timeout: Duration) -> Result<Output, SynthesisError> {
        Ok(Output::default())
    }

    async fn launch(&self, _command: &[String]) -> Result<(), SynthesisError> {
        Ok(())
    }

    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        Err(machine(format!("a fake has no file {path}")))
    }

    async fn write(&self, _path: &str, _content: &[u8]) -> Result<(), SynthesisError> {
        Ok(())
    }

    async fn record(&self, _what: Recording) -> Result<Vec<u8>, SynthesisError> {
        Ok(Vec::new())
    }

    async fn reset(&self) -> Result<(), SynthesisError> {
        Ok(())
    }
}
