//! The progress of a pull that the server makes, on stderr.

use serde_json::Value;

use super::transfer::Transfer;
use crate::config::values::Size;
use crate::output;

/// A line for each state of the pull, and the progress of its bytes.
#[derive(Default)]
pub(super) struct PullBar {
    transfer: Option<Transfer>,
    state: String,
}

impl PullBar {
    pub(super) fn show(&mut self, progress: &Value) {
        let number = |name: &str| progress[name].as_u64().unwrap_or_default();
        let image = output::harmless(progress["image"].as_str().unwrap_or_default());
        let transfer = self.transfer.get_or_insert_with(|| {
            let transfer = Transfer::new(format!("pulling {image}"), false);
            transfer.tick();
            transfer
        });
        let is_first = self.state.is_empty();
        let state = progress["state"].as_str().unwrap_or_default();
        if state != self.state {
            state.clone_into(&mut self.state);
            let line = match state {
                "downloading" => {
                    let (layers, here) = (number("layers"), number("layers_done"));
                    format!("{layers} layers, {here} are here, {}", Size(number("bytes")).short())
                }
                "unpacking" => "unpacking".to_owned(),
                _ if is_first => format!("pulling {image}"),
                _ => return,
            };
            transfer.say(&line);
        }
        transfer.expect(number("bytes"));
        transfer.set(number("bytes_done"));
    }

    pub(super) fn end(&self) {
        if let Some(transfer) = &self.transfer {
            transfer.end();
        }
    }
}
