//! The progress of a pull that the server makes, on stderr.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::config::values::Size;
use crate::output;

/// A line for each state of the pull, and on a terminal a bar with its bytes.
#[derive(Default)]
pub(super) struct PullBar {
    bar: Option<ProgressBar>,
    state: String,
}

impl PullBar {
    pub(super) fn show(&mut self, progress: &Value) {
        let number = |name: &str| progress[name].as_u64().unwrap_or_default();
        let image = output::harmless(progress["image"].as_str().unwrap_or_default()).to_string();
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::no_length();
            let style = ProgressStyle::with_template("{spinner} {bytes}/{total_bytes} {bytes_per_sec} {wide_bar}");
            bar.set_style(style.expect("the template is valid"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
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
            bar.suspend(|| eprintln!("{line}"));
        }
        bar.set_length(number("bytes"));
        bar.set_position(number("bytes_done"));
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
