//! `image pull|push`: runs in this process, like the other commands for images.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arenite_image::{Image, ImageError, PullEvent, PullRequest, PushEvent, Reference, RegistryOptions, docker_config_file};
use arenite_model::ImageName;

use super::image::{Prepared, interrupted, must_be_root, open, refused, refused_by};
use super::transfer::Transfer;
use crate::cli::{ImagePullArgs, ImagePushArgs, RegistryArgs};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

pub(crate) fn pull(args: &ImagePullArgs) -> Outcome {
    must_be_root()?;
    let reference = parse(&args.reference)?;
    let options = options(&args.registry);
    let prepared = Prepared::new(&args.data_dir.data_dir)?;
    let pulled = pull_with_bar(&prepared, &reference, args.name.as_ref(), &options)?;
    output::line(&pulled.name);
    Ok(ExitCode::SUCCESS)
}

/// Pulls an image under the name of its reference, with the credentials of Docker's configuration.
pub(super) fn pull_image(prepared: &Prepared, name: &ImageName) -> Result<Image, Failure> {
    let options = RegistryOptions { docker_config: docker_config_file(), ..RegistryOptions::default() };
    pull_with_bar(prepared, &parse(name.as_str())?, None, &options)
}

fn pull_with_bar(
    prepared: &Prepared,
    reference: &Reference,
    name: Option<&ImageName>,
    options: &RegistryOptions,
) -> Result<Image, Failure> {
    let pulled = until_interrupted("pull", |cancel| {
        let transfer = Transfer::new(format!("pulling {reference}"), false);
        let request = PullRequest { reference, name, owner: None, options, cancel };
        let pulled = arenite_image::pull(prepared.images(), &request, &mut |event| match event {
            PullEvent::Resolved { digest, layers, missing, bytes } => {
                transfer.say(&format!("{digest}: {layers} layers, {missing} to download, {}", Size(bytes).short()));
                transfer.expect(bytes);
                transfer.tick();
            }
            PullEvent::Downloaded { bytes } => transfer.add(bytes),
            PullEvent::Unpacking => {
                transfer.end();
                eprintln!("unpacking");
            }
            PullEvent::Unpacked => {}
        });
        transfer.end();
        pulled
    })?;
    eprintln!("image {} is pulled: {}, {}", pulled.name, Size(pulled.size_bytes).short(), &pulled.digest[..12]);
    Ok(pulled)
}

pub(crate) fn push(args: &ImagePushArgs) -> Outcome {
    must_be_root()?;
    let reference = parse(&args.reference)?;
    let options = options(&args.registry);
    let missing = || refused(&ImageError::NotFound { name: args.image.clone() });
    let store = open(&args.data_dir.data_dir)?.ok_or_else(missing)?;
    let name = args.image.clone();
    store.get(&name).map_err(|error| refused_by(&store, &error))?;
    let digest = until_interrupted("push", |cancel| {
        arenite_image::push(&store, &name, args.guest.program(), &reference, &options, cancel, &mut |event| {
            let PushEvent::Layer { number, of, bytes, was_there } = event;
            let what = if was_there { "was there" } else { "sent" };
            eprintln!("[{number}/{of}] {what}, {}", Size(bytes).short());
        })
    })?;
    output::line(&digest);
    eprintln!("image {name} is pushed as {reference}");
    Ok(ExitCode::SUCCESS)
}

fn parse(text: &str) -> Result<Reference, Failure> {
    text.parse().map_err(|reason: String| Failure::new(reason).exit_code(2))
}

fn options(args: &RegistryArgs) -> RegistryOptions {
    RegistryOptions {
        insecure: args.insecure_registry.clone(),
        docker_config: args.docker_config.clone().or_else(docker_config_file),
        ..RegistryOptions::default()
    }
}

/// After this time, an interrupted command ends without waiting for its work.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `work` on this thread. SIGINT and SIGTERM set what it gets, and it ends soon after.
fn until_interrupted<T>(what: &str, work: impl FnOnce(&AtomicBool) -> Result<T, ImageError>) -> Result<T, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.attempt(|| "could not start".into())?;
    let set = Arc::clone(&cancel);
    runtime.spawn(async move {
        interrupted().await;
        set.store(true, Ordering::Relaxed);
        eprintln!("stopping");
        // It may wait for a registry that hangs. What is half done is what a crash leaves: the next command removes it.
        tokio::time::sleep(STOP_TIMEOUT).await;
        std::process::exit(130);
    });
    let done = work(&cancel);
    runtime.shutdown_background();
    done.map_err(|error| match error {
        ImageError::Cancelled => Failure::new(format!("the {what} was interrupted")).maybe_hint(error.hint()).exit_code(130),
        other => refused(&other),
    })
}
