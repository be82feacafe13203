//! `image build|ls|rm|prune|inspect|history|save|load`: runs in this process, on the server's data directory, whether or not a server runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use arenite_engine::namespace::storage::{Storage, StorageConfig};
use arenite_engine::namespace::{Builder, RecordedSandbox, RecordsError, recorded_sandboxes};
use arenite_image::{BuildEnv, BuildEvent, BuildRequest, Image, ImageError, ImageStore, Imagefile};
use arenite_model::{ImageName, SandboxName};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{
    BuildArgs, ImageHistoryArgs, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImageRmArgs, ImageSaveArgs, InspectArgs,
};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::{output, serve};

/// The image that comes with Arenite.
pub(super) const BASE: &str = include_str!("../../../../images/base.Imagefile");

pub(super) fn refused(error: &ImageError) -> Failure {
    if let ImageError::Failed { tail, .. } = error {
        for line in tail {
            eprintln!("  {line}");
        }
    }
    Failure::new(error.to_string()).maybe_hint(error.hint())
}

pub(super) fn must_be_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("images are worked on by the host's root").hint("put sudo before the command"))
}

pub(crate) fn build(args: &BuildArgs) -> Outcome {
    must_be_root()?;
    let (imagefile, beside) = read(args)?;
    let context = args.context.clone().unwrap_or(beside);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().attempt(|| "could not start".into())?;
    let image = runtime.block_on(async {
        tokio::select! {
            built = build_in(args, &imagefile, &context) => built,
            () = interrupted() => Err(Failure::new("the build was interrupted; the steps that were done are kept").exit_code(130)),
        }
    })?;
    eprintln!("image {} is built: {}, {}", image.name, Size(image.size_bytes).short(), &image.digest[..12]);
    Ok(ExitCode::SUCCESS)
}

/// Returns at SIGINT and SIGTERM, so that a step's sandbox ends with its build.
pub(super) async fn interrupted() {
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        // Registering a handler only fails without memory for it.
        Err(error) => return eprintln!("error: could not watch for signals: {error}"),
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// The Imagefile and the directory that it is in.
fn read(args: &BuildArgs) -> Result<(Imagefile, PathBuf), Failure> {
    let Some(path) = &args.file else {
        if args.name.as_str() != "base" {
            return Err(Failure::new(format!("no Imagefile is given for image \"{}\"", args.name))
                .hint(format!("name it: arenite image build {} -f Imagefile; only base comes with Arenite", args.name))
                .exit_code(2));
        }
        let imagefile = Imagefile::parse(BASE.as_bytes()).map_err(|error| refused(&error.into()))?;
        // It copies nothing, so any directory will do.
        return Ok((imagefile, ".".into()));
    };
    let imagefile = Imagefile::read(path).map_err(|error| {
        let failure = refused(&error);
        Failure::new(format!("{}: {failure}", path.display())).maybe_hint(error.hint())
    })?;
    let beside = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((imagefile, beside.to_owned()))
}

/// Runs a build: the engine runs its steps, the image crate does the rest.
async fn build_in(args: &BuildArgs, imagefile: &Imagefile, context: &Path) -> Result<Image, Failure> {
    let config = serve::namespace_config(&args.data_dir.data_dir)?;
    let builder = Builder::open(config)
        .await
        .map_err(|error| Failure::new(format!("the build could not begin: {error}")).maybe_hint(error.hint()))?;
    let env = BuildEnv::of_host();
    let request = BuildRequest { imagefile, context_dir: context, name: &args.name, env: &env, use_cache: !args.no_cache };
    let mut progress = Progress::new(args.verbose);
    let built = arenite_image::build(builder.images(), request, &builder, &mut |event| progress.show(&event)).await;
    progress.end();
    built.map_err(|error| refused(&error))
}

/// Maximum number of characters of a step that are shown.
const STEP_WIDTH: usize = 100;

/// Shows the progress of a build: a line for each step, and while it runs, the last line of its output.
pub(super) struct Progress {
    bar: ProgressBar,
    verbose: bool,
    /// The current step was cached, which has been reported.
    cached: bool,
}

impl Progress {
    /// Removes the line of the current step.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    pub(super) fn new(verbose: bool) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}").expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, verbose, cached: false }
    }

    pub(super) fn show(&mut self, event: &BuildEvent<'_>) {
        let line = match event {
            BuildEvent::Waiting => "another build or removal is under way; waiting for its end".to_owned(),
            BuildEvent::StepStarted { number, of, text } => {
                self.cached = false;
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                format!("[{number}/{of}] {}", words.chars().take(STEP_WIDTH).collect::<String>())
            }
            BuildEvent::Cached { bytes } => {
                self.cached = true;
                format!("  taken from an earlier build, {}", Size(*bytes).short())
            }
            BuildEvent::Output { line } => {
                if !self.verbose {
                    self.bar.set_message((*line).to_owned());
                    return;
                }
                format!("  {line}")
            }
            BuildEvent::StepDone { .. } if self.cached => return,
            BuildEvent::StepDone { took, bytes } => {
                self.bar.set_message("");
                format!("  done in {:.1} s, {}", took.as_secs_f64(), Size(*bytes).short())
            }
            BuildEvent::Done { took, built, .. } => format!("steps carried out: {built}, in {:.1} s", took.as_secs_f64()),
        };
        // If the bar is hidden, as in a log, println would drop the line.
        self.bar.suspend(|| eprintln!("{line}"));
    }
}

/// The images of a data directory, and their storage.
pub(super) struct OpenImages {
    store: ImageStore,
    storage: Storage,
}

impl std::ops::Deref for OpenImages {
    type Target = ImageStore;

    fn deref(&self) -> &ImageStore {
        &self.store
    }
}

impl Drop for OpenImages {
    fn drop(&mut self) {
        self.storage.release();
    }
}

/// Opens the images of a data directory. None if nothing was ever built or served there.
pub(super) fn open(data_dir: &Path) -> Result<Option<OpenImages>, Failure> {
    must_be_root()?;
    if !data_dir.is_dir() {
        return Ok(None);
    }
    let data_dir = data_dir.canonicalize().attempt(|| format!("could not find {}", data_dir.display()))?;
    let storage = Storage::open(&data_dir, &StorageConfig::default())
        .map_err(|error| Failure::new(format!("the storage could not be opened: {error}")).maybe_hint(error.hint()))?;
    let store = ImageStore::open(storage.root().to_owned()).map_err(|error| refused(&error))?;
    Ok(Some(OpenImages { store, storage }))
}

fn not_built(name: &ImageName) -> Failure {
    refused(&ImageError::NotFound { name: name.clone() })
}

pub(crate) fn ls(args: &ImageLsArgs) -> Outcome {
    let images = match open(&args.data_dir.data_dir)? {
        Some(store) => store.list().map_err(|error| refused(&error))?,
        None => Vec::new(),
    };
    if args.format.json {
        let value = serde_json::to_value(&images).attempt(|| "could not write the list".into())?;
        output::json(&serde_json::json!({ "images": value }));
        return Ok(ExitCode::SUCCESS);
    }
    if images.is_empty() {
        eprintln!("no image is built here; build one with: arenite image build base");
        return Ok(ExitCode::SUCCESS);
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["name", "size", "layers", "built", "digest"]);
    for image in &images {
        rows.add_row([
            image.name.to_string(),
            Size(image.size_bytes).short(),
            image.layers.len().to_string(),
            format!("{} ago", output::distance(image.created_at, now)),
            image.digest.chars().take(12).collect(),
        ]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn inspect(args: &InspectArgs) -> Outcome {
    let store = open(&args.data_dir.data_dir)?.ok_or_else(|| not_built(&args.image))?;
    let image = store.get(&args.image).map_err(|error| refused(&error))?;
    if args.format.json {
        output::json(&serde_json::to_value(&image).attempt(|| "could not write the image".into())?);
        return Ok(ExitCode::SUCCESS);
    }
    let config = &image.config;
    output::line(format_args!("name     {}", image.name));
    output::line(format_args!("digest   {}", image.digest));
    output::line(format_args!("built    {}", image.created_at));
    output::line(format_args!("size     {}", Size(image.size_bytes).short()));
    if let Some(source) = &image.source {
        output::line(format_args!("from     {}", output::harmless(source)));
    }
    output::line(format_args!("user     {}", output::harmless(config.user.as_deref().unwrap_or("gem, else root"))));
    output::line(format_args!("workdir  {}", output::harmless(config.workdir.as_deref().unwrap_or("the user's home"))));
    for (what, words) in [("entry   ", &config.entrypoint), ("command ", &config.cmd)] {
        if !words.is_empty() {
            let words = serde_json::to_string(words).attempt(|| "could not write the image's command".into())?;
            output::line(format_args!("{what} {}", output::harmless(&words)));
        }
    }
    for port in &config.exposed_ports {
        output::line(format_args!("port     {}", output::harmless(port)));
    }
    for (key, value) in &config.env {
        output::line(format_args!("env      {key}={}", output::harmless(value)));
    }
    for (key, value) in &config.labels {
        output::line(format_args!("label    {}={}", output::harmless(key), output::harmless(value)));
    }
    output::line("");
    let mut rows = output::table(&["layer", "size", "made by"]);
    for layer in &image.layers {
        let made_by: String = output::harmless(&layer.created_by).chars().take(100).collect();
        rows.add_row([layer.digest.chars().take(12).collect(), Size(layer.bytes).short(), made_by]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn history(args: &ImageHistoryArgs) -> Outcome {
    let store = open(&args.data_dir.data_dir)?.ok_or_else(|| not_built(&args.image))?;
    let image = store.get(&args.image).map_err(|error| refused(&error))?;
    let layers: Vec<_> = image.layers.iter().rev().collect();
    if args.format.json {
        let value = serde_json::to_value(&layers).attempt(|| "could not write the layers".into())?;
        output::json(&serde_json::json!({ "layers": value }));
        return Ok(ExitCode::SUCCESS);
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["layer", "added", "size", "made by"]);
    for layer in layers {
        let added = format!("{} ago", output::distance(layer.created_at, now));
        let made_by = output::harmless(&layer.created_by);
        rows.add_row([layer.digest.chars().take(12).collect(), added, Size(layer.bytes).short(), made_by.to_string()]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn rm(args: &ImageRmArgs) -> Outcome {
    let Some(store) = open(&args.data_dir.data_dir)? else {
        return Err(args.images.first().map_or_else(|| Failure::new("no image is named"), not_built));
    };
    let records = records(&args.data_dir.data_dir)?;
    let used = layers_of(&records);
    let mut code = ExitCode::SUCCESS;
    for name in &args.images {
        let users: Vec<&str> = records.iter().filter(|record| record.image == name.as_str()).map(label).collect();
        if !users.is_empty() && !args.force {
            let question = format!(
                "remove image {name}, which {} sandboxes use ({}); they live on, but none can be made of it any more",
                users.len(),
                users.join(", ")
            );
            if let Err(failure) = output::confirm(&question) {
                code = failure.report();
                continue;
            }
        }
        match store.remove(name, &|digest| used.contains(digest)) {
            Ok(removed) => {
                output::line(name);
                eprintln!("freed {}", Size(removed.freed_bytes).short());
                if !removed.kept.is_empty() {
                    eprintln!("{} layers stay until the sandboxes that use them are deleted", removed.kept.len());
                }
            }
            Err(error) => code = refused(&error).report(),
        }
    }
    Ok(code)
}

pub(crate) fn save(args: &ImageSaveArgs) -> Outcome {
    let missing = || args.images.first().map_or_else(|| Failure::new("no image is named"), not_built);
    let store = open(&args.data_dir.data_dir)?.ok_or_else(missing)?;
    let images = arenite_image::save(&store, &args.images, &args.output).map_err(|error| refused(&error))?;
    let bytes = std::fs::metadata(&args.output).attempt(|| format!("could not read {}", args.output.display()))?.len();
    let names: Vec<String> = images.iter().map(|image| image.name.to_string()).collect();
    eprintln!("saved {} in {}: {}", names.join(", "), args.output.display(), Size(bytes).short());
    Ok(ExitCode::SUCCESS)
}

/// The images of a data directory, which may be new: its storage is prepared. Counts as a build until it is dropped.
pub(super) struct Prepared {
    builder: Builder,
    _runtime: tokio::runtime::Runtime,
}

impl Prepared {
    pub(super) fn new(data_dir: &Path) -> Result<Self, Failure> {
        must_be_root()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().attempt(|| "could not start".into())?;
        let config = serve::namespace_config(data_dir)?;
        let builder = runtime
            .block_on(Builder::open(config))
            .map_err(|error| Failure::new(format!("the storage could not be opened: {error}")).maybe_hint(error.hint()))?;
        Ok(Self { builder, _runtime: runtime })
    }

    pub(super) fn images(&self) -> &ImageStore {
        self.builder.images()
    }
}

pub(crate) fn load(args: &ImageLoadArgs) -> Outcome {
    let prepared = Prepared::new(&args.data_dir.data_dir)?;
    for image in arenite_image::load(prepared.images(), &args.file, args.name.as_ref()).map_err(|error| refused(&error))? {
        output::line(&image.name);
        eprintln!("image {} is loaded: {}, {}", image.name, Size(image.size_bytes).short(), &image.digest[..12]);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn prune(args: &ImagePruneArgs) -> Outcome {
    if let Some(store) = open(&args.data_dir.data_dir)? {
        let used = layers_of(&records(&args.data_dir.data_dir)?);
        let removed = store.prune(&|digest| used.contains(digest)).map_err(|error| refused(&error))?;
        removed.layers.iter().for_each(output::line);
        eprintln!("freed {}", Size(removed.freed_bytes).short());
    }
    Ok(ExitCode::SUCCESS)
}

/// The digests of layers that sandboxes use.
pub(super) fn layers_of(records: &[RecordedSandbox]) -> BTreeSet<String> {
    let parts = records.iter().flat_map(|record| &record.layers).flat_map(|dir| dir.iter()).filter_map(|part| part.to_str());
    parts.filter(|part| part.len() == 64).map(str::to_owned).collect()
}

/// The records of all sandboxes of a data directory.
pub(super) fn records(data_dir: &Path) -> Result<Vec<RecordedSandbox>, Failure> {
    recorded_sandboxes(data_dir).map_err(|error| {
        let failure = Failure::new(error.to_string());
        match error {
            RecordsError::Unknown { .. } => failure.hint("adopt or remove that sandbox first: arenite quarantine ls"),
            RecordsError::Read { .. } => failure,
        }
    })
}

fn label(record: &RecordedSandbox) -> &str {
    record.name.as_ref().map_or(record.id.as_str(), SandboxName::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_image_that_comes_along_is_valid_and_copies_nothing() {
        Imagefile::parse(BASE.as_bytes()).unwrap();
        assert!(!BASE.lines().any(|line| line.starts_with("COPY")));
    }
}
