//! `cargo xtask image`: builds an image with this tree's binary.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::binary::Profile;
use crate::failure::{Attempt, Failure, Outcome};
use crate::{binary, command, host};

/// The image with the VM that comes with Arenite.
const VM: &str = "vm";

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Its name
    #[arg(default_value = "base")]
    name: String,
    /// The server's data directory
    #[arg(long, default_value = "/var/lib/arenite", value_name = "DIR")]
    data_dir: PathBuf,
}

pub(crate) fn run(args: &ImageArgs) -> Outcome {
    host::must_be_root("image")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN])?;
    build(&binary::build(Profile::Release)?, &args.name, &args.data_dir)
}

/// Builds an image. Steps of an earlier build are cached, so an up-to-date image takes a second.
pub(crate) fn ensure(arenite: &Path, name: &str, data_dir: &Path) -> Outcome {
    if name == VM && is_built(arenite, name, data_dir) { Ok(()) } else { build(arenite, name, data_dir) }
}

/// The images of this tree that an image consists of, lowest first, and itself.
pub(crate) fn chain(name: &str) -> Vec<String> {
    if name == VM {
        // It consists of two Imagefiles, both embedded in the binary, and builds on the base image.
        return vec!["base".to_owned(), VM.to_owned()];
    }
    let mut chain = vec![name.to_owned()];
    loop {
        let text = std::fs::read_to_string(imagefile(&chain[0])).unwrap_or_default();
        let from = text.lines().find_map(|line| line.strip_prefix("FROM ")).map(|from| from.trim().to_owned());
        match from.filter(|from| imagefile(from).is_file() && !chain.contains(from)) {
            Some(from) => chain.insert(0, from),
            None => return chain,
        }
    }
}

fn imagefile(name: &str) -> PathBuf {
    command::repository().join("images").join(format!("{name}.Imagefile"))
}

/// Whether the data directory has an image of this name, maybe from an older Imagefile.
pub(crate) fn is_built(arenite: &Path, name: &str, data_dir: &Path) -> bool {
    let mut inspect = command::program(arenite);
    inspect.args(["image", "inspect", name, "--json", "--data-dir"]).arg(data_dir);
    command::succeeds(&mut inspect)
}

/// Copies images with the layers that the other data directory lacks: that takes seconds, and building them takes minutes.
pub(crate) fn copy(arenite: &Path, names: &[&str], from: &Path, to: &Path) -> Outcome {
    #[derive(Deserialize)]
    struct Manifest {
        layers: Vec<String>,
    }
    std::fs::create_dir_all(to).attempt(|| format!("could not create {}", to.display()))?;
    let _held = [hold_pool(from)?, hold_pool(to)?];
    // Listing images mounts the directory's storage pool, and creates it if it doesn't exist.
    for dir in [from, to] {
        command::output(command::program(arenite).args(["image", "ls", "--json", "--data-dir"]).arg(dir))?;
    }
    let [from, to] = [from, to].map(|dir| dir.join("pool"));
    let copy = |entry: &Path| {
        let scratch = to.join("copying");
        command::run(command::program("rm").arg("-rf").arg(&scratch))?;
        command::run(command::program("cp").arg("-a").arg(from.join(entry)).arg(&scratch))?;
        std::fs::rename(&scratch, to.join(entry)).attempt(|| format!("could not move {} to its place", entry.display()))
    };
    for name in names {
        let manifest = Path::new("images").join(format!("{name}.json"));
        let text = std::fs::read(from.join(&manifest)).attempt(|| format!("could not read the manifest of image {name}"))?;
        let parsed: Manifest = serde_json::from_slice(&text).attempt(|| format!("the manifest of image {name} is malformed"))?;
        for layer in parsed.layers.iter().map(|digest| Path::new("layers").join(digest)) {
            if !to.join(&layer).exists() {
                copy(&layer)?;
            }
        }
        if std::fs::read(to.join(&manifest)).ok().as_ref() != Some(&text) {
            copy(&manifest)?;
        }
    }
    Ok(())
}

/// Counts as a user of a storage pool while the file is open: the last user unmounts the pool.
fn hold_pool(data_dir: &Path) -> Result<File, Failure> {
    let path = data_dir.join("pool.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.attempt(|| format!("could not open {}", path.display()))?;
    file.lock_shared().attempt(|| format!("could not lock {}", path.display()))?;
    Ok(file)
}

/// Builds the image and those that it is built from.
fn build(arenite: &Path, name: &str, data_dir: &Path) -> Outcome {
    chain(name).iter().try_for_each(|name| build_one(arenite, name, data_dir))
}

/// Builds the image from the tree's Imagefile of that name, if there is one: the binary only includes `base`.
pub(crate) fn build_one(arenite: &Path, name: &str, data_dir: &Path) -> Outcome {
    if name == VM {
        return command::download(command::program(arenite).args(["vm", "build", name, "--data-dir"]).arg(data_dir));
    }
    let imagefile = imagefile(name);
    let mut build = command::program(arenite);
    build.args(["image", "build", name, "--data-dir"]).arg(data_dir);
    if imagefile.is_file() {
        build.arg("--file").arg(imagefile);
    }
    command::download(&mut build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_parts_come_before_it() {
        assert_eq!(chain("aio"), ["base", "code", "browser", "aio"]);
        assert_eq!(chain("base"), ["base"]);
        assert_eq!(chain("vm"), ["base", "vm"]);
    }
}
