//! Waits for files that a started process creates, usually sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// Files that appear in a directory.
#[derive(Debug)]
pub struct Arrivals(AsyncFd<OwnedFd>);

impl Arrivals {
    /// Watches for files that appear from now on.
    pub fn watch(dir: &Path) -> io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, dir, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)?;
        #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise")]
        let watch = AsyncFd::new(watch)?;
        Ok(Self(watch))
    }

    /// Waits until all of these paths exist.
    pub async fn wait_for(&self, paths: &[String]) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while !paths.iter().all(|path| Path::new(path).exists()) {
            let mut ready = self.0.readable().await?;
            // The content of the events doesn't matter: the loop checks the paths.
            if let Ok(read) = ready.try_io(|watch| Ok(rustix::io::read(watch.get_ref(), &mut buffer)?)) {
                read?;
            }
        }
        Ok(())
    }
}
