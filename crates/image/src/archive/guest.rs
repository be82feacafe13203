//! The layer that lets an image run without a server: the guest's program, as the entry point of its containers.

use std::fs::{self, DirBuilder, File, FileTimes, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::error::ImageError;
use crate::image::{Image, Layer};
use crate::store::{ImageStore, OpenLayer};

/// The directory of the layer. No distribution has one of this name.
const DIR: &str = ".arenite";
/// The guest's entry point. Arguments of the container come after it.
const ENTRYPOINT: [&str; 3] = ["/.arenite/arenite", "guest", "standalone"];
/// The port at which it listens.
const PORT: &str = "8080/tcp";

/// A layer with the guest's program, which exists as long as this value.
pub(crate) struct GuestLayer<'a> {
    store: &'a ImageStore,
    layer: OpenLayer,
    digest: String,
    bytes: u64,
}

impl<'a> GuestLayer<'a> {
    /// Copies the program, a static one, into a new layer. The same program always gives the same layer.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub(crate) fn new(store: &'a ImageStore, program: &Path) -> Result<Self, ImageError> {
        let mut guest = Self { store, layer: store.new_layer()?, digest: String::new(), bytes: 0 };
        guest.fill(program).map_err(ImageError::io("could not add", program))?;
        Ok(guest)
    }

    fn fill(&mut self, program: &Path) -> io::Result<()> {
        let files = self.layer.files();
        let dir = files.join(DIR);
        DirBuilder::new().mode(0o755).create(&dir)?;
        let target = dir.join("arenite");
        fs::copy(program, &target)?;
        // The same program is the command of agents.
        fs::hard_link(&target, dir.join("aio"))?;
        let mut hash = Sha256::new();
        self.bytes = io::copy(&mut File::open(&target)?, &mut hash)?;
        self.digest = hex::encode(hash.finalize());
        let times = FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH).set_modified(SystemTime::UNIX_EPOCH);
        for path in [&target, &dir, &files] {
            fs::set_permissions(path, Permissions::from_mode(0o755))?;
            File::open(path)?.set_times(times)?;
        }
        Ok(())
    }

    /// Adds the layer to an image, and makes the guest its entry point. The image's own command is started by naming it as the
    /// arguments of the container.
    pub(crate) fn add_to(&self, image: &mut Image) {
        image.layers.push(Layer {
            digest: self.digest.clone(),
            dir: self.layer.files(),
            bytes: self.bytes,
            created_by: format!("arenite {}", env!("CARGO_PKG_VERSION")),
            created_at: image.created_at,
        });
        let config = &mut image.config;
        config.entrypoint = ENTRYPOINT.map(str::to_owned).to_vec();
        config.cmd = Vec::new();
        config.exposed_ports.insert(PORT.to_owned());
        // A guest that is root can't see the image's USER, and takes the user `gem` for commands if there is one.
        let is_root = config.user.as_deref().is_some_and(|user| matches!(user.split(':').next(), Some("root" | "0")));
        if is_root {
            config.env.entry("USER".to_owned()).or_insert_with(|| "root".to_owned());
        }
    }
}

impl Drop for GuestLayer<'_> {
    fn drop(&mut self) {
        self.store.abandon(&self.layer);
    }
}
