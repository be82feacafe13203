//! `cargo xtask pictures`: takes the README's pictures from a running server.

use clap::Args;

use crate::command::{self, program, repository};
use crate::failure::Outcome;
use crate::{host, python};

#[derive(Debug, Args)]
pub(crate) struct PicturesArgs {
    /// A running server with the image `aio`
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    server: String,
}

pub(crate) fn run(args: &PicturesArgs) -> Outcome {
    host::must_be_root("pictures")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_TEST])?;
    let mut script = program(python::environment()?);
    script.current_dir(repository().join("tests")).args(["pictures.py", "--server", &args.server, "--out"]);
    command::run(script.arg(repository().join("docs/pictures")))
}
