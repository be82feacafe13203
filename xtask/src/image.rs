//! `cargo xtask image`: builds an image with this tree's binary.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::binary::Profile;
use crate::failure::Outcome;
use crate::{binary, command, host};

/// The image with the machine that comes along.
const MACHINE: &str = "machine";

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
    host::prepare(&[host::TO_RUN])?;
    build(&binary::build(Profile::Release)?, &args.name, &args.data_dir)
}

/// Builds it when the data directory has none of that name.
pub(crate) fn ensure(arenite: &Path, name: &str, data_dir: &Path) -> Outcome {
    let mut inspect = command::program(arenite);
    inspect.args(["image", "inspect", name, "--json", "--data-dir"]).arg(data_dir);
    if command::succeeds(&mut inspect) { Ok(()) } else { build(arenite, name, data_dir) }
}

/// From the tree's Imagefile of that name, where there is one: the binary has only `base` with it. What it begins with is
/// built before it, when it is missing.
fn build(arenite: &Path, name: &str, data_dir: &Path) -> Outcome {
    let of_tree = |name: &str| command::repository().join("images").join(format!("{name}.Imagefile"));
    if name == MACHINE {
        // It is made of two Imagefiles, both of which the binary has with it, and stands on the base image.
        ensure(arenite, "base", data_dir)?;
        return command::run(command::program(arenite).args(["vm", "build", name, "--data-dir"]).arg(data_dir));
    }
    let imagefile = of_tree(name);
    let text = std::fs::read_to_string(&imagefile).unwrap_or_default();
    let from = text.lines().find_map(|line| line.strip_prefix("FROM ")).map(str::trim);
    if let Some(from) = from.filter(|from| of_tree(from).is_file()) {
        ensure(arenite, from, data_dir)?;
    }
    let mut build = command::program(arenite);
    build.args(["image", "build", name, "--data-dir"]).arg(data_dir);
    if imagefile.is_file() {
        build.arg("--file").arg(imagefile);
    }
    command::run(&mut build)
}
