//! Pictures of the VM's screen for a recorder: one after the other, as raw pixels.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::service::Vm;

/// A recording in progress.
#[derive(Debug)]
pub struct Film {
    pub vm: Arc<Vm>,
    pub fps: i64,
    /// Size of each picture. While the screen has another size, the last picture of this size is repeated.
    pub size: (u16, u16),
}

impl Film {
    /// The recorder's input arguments.
    pub fn input(&self) -> Vec<String> {
        let (width, height) = self.size;
        let size = format!("{width}x{height}");
        let fps = self.fps.to_string();
        ["-f", "rawvideo", "-pix_fmt", "rgb24", "-framerate", &fps, "-video_size", &size, "-i", "pipe:0"]
            .map(str::to_owned)
            .into()
    }

    /// Writes a picture at every tick, until the recorder stops reading or the VM has ended.
    pub async fn run(self, mut input: Sender) {
        let gap = Duration::from_secs_f64(1.0 / self.fps.max(1) as f64);
        let mut ticks = interval(gap);
        // The video lasts as long as what it shows, even when the VM is busy.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut latest = vec![0; usize::from(self.size.0) * usize::from(self.size.1) * 3];
        loop {
            let due = ticks.tick().await;
            // Missed ticks repeat the latest picture.
            if Instant::now().duration_since(due) < gap {
                match self.vm.picture().await {
                    Ok(picture) if picture.screen == self.size => latest = picture.into_pixels(),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            if input.write_all(&latest).await.is_err() {
                return;
            }
        }
    }
}
