//! The guest's own log. It is on the sandbox's disk, so the disk limit bounds it, and is created with its first line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::sync::Mutex;

use tracing_subscriber::fmt::MakeWriter;

use crate::main_command::LOG_DIR;

/// Opens the file at the first line. A line that can't be written is lost, since there is no other place to report it.
struct Lazy(Option<File>);

impl Write for Lazy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_none() {
            fs::create_dir_all(LOG_DIR)?;
            self.0 = Some(OpenOptions::new().create(true).append(true).open(format!("{LOG_DIR}/guest.log"))?);
        }
        self.0.as_mut().map_or(Ok(bytes.len()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts logging; panics are logged too.
pub(crate) fn start() {
    start_on(Mutex::new(Lazy(None)));
}

/// Starts logging to the container's own log.
pub(crate) fn start_on_stderr() {
    start_on(io::stderr);
}

fn start_on(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::WARN).with_writer(writer);
    if tracing::subscriber::set_global_default(subscriber.finish()).is_ok() {
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the guest panicked")));
    }
}
