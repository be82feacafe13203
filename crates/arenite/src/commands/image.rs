//! `image build|ls|rm|prune|inspect|history|save|load`: runs in this process, on the server's data directory, whether or not a server runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use arenite_control::images::configured_images;
use arenite_engine::namespace::storage::{Storage, StorageConfig};
use arenite_engine::namespace::{Builder, RecordedSandbox, RecordsError, recorded_sandboxes};
use arenite_image::{
    AgeLimit, BuildEnv, BuildEvent, BuildOptions, BuildRequest, Downloads, IgnoreFile, Image, ImageError, ImageStore, Imagefile,
    RemovedImages,
};
use arenite_model::{ImageName, SandboxName};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::base;
use crate::cli::{
    BuildArgs, ImageHistoryArgs, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImageRmArgs, ImageSaveArgs, InspectArgs,
};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, NOT_FOUND, Outcome};
use crate::names;
use crate::output::{Entries, Form, View};
use crate::{output, serve};

pub(super) fn refused(error: &ImageError) -> Failure {
    if let ImageError::Failed { tail, .. } = error {
        for line in tail {
            eprintln!("  {line}");
        }
    }
    let failure = Failure::new(error.to_string()).maybe_hint(error.hint());
    if matches!(error, ImageError::NotFound { .. }) { failure.exit_code(NOT_FOUND) } else { failure }
}

pub(super) fn must_be_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("images are worked on by the host's root").hint("put sudo before the command"))
}

pub(crate) fn build(args: &BuildArgs) -> Outcome {
    must_be_root()?;
    let wanted = Wanted::find(args)?;
    if let Some(from) = &args.from {
        base::find(from, &args.data_dir.data_dir)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().attempt(|| "could not start".into())?;
    let image = runtime.block_on(async {
        tokio::select! {
            built = build_in(args, &wanted) => built,
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

/// What a build's arguments ask for.
struct Wanted {
    name: ImageName,
    imagefile: Imagefile,
    context: PathBuf,
    options: BuildOptions,
}

impl Wanted {
    fn find(args: &BuildArgs) -> Result<Self, Failure> {
        // With --tag, as in Docker, the only word is the directory.
        let (name, path) = match (&args.tag, &args.first, &args.second) {
            (Some(name), path, None) => (name.clone(), path.as_ref().map(PathBuf::from)),
            (None, Some(name), path) => {
                let name = name.parse().map_err(|error: arenite_model::IdError| {
                    let hint = "write the name first: arenite image build NAME PATH";
                    Failure::new(error.to_string()).hint(hint).exit_code(2)
                })?;
                (name, path.clone())
            }
            (Some(_), _, Some(_)) => return Err(Failure::new("the image has two names: NAME and --tag").exit_code(2)),
            (None, None, _) => {
                let hint = "name it: arenite image build NAME PATH";
                return Err(Failure::new("no name is given for the image").hint(hint).exit_code(2));
            }
        };
        if path.is_some() && args.context.is_some() {
            return Err(Failure::new("the context is given twice: by PATH and by --context").exit_code(2));
        }
        if let Some(from) = &args.from {
            if path.is_some() || args.context.is_some() || args.file.is_some() {
                let hint = "write FROM in the Dockerfile, and leave --from out";
                return Err(Failure::new("--from is for the steps of base, and not for a file").hint(hint).exit_code(2));
            }
            return Ok(Self { name, imagefile: base::imagefile_on(from)?, context: ".".into(), options: options(args)? });
        }
        let context = path.or_else(|| args.context.clone());
        let file = match (&args.file, &context) {
            (Some(file), _) => Some(file.clone()),
            (None, Some(dir)) => Some(file_in(dir)?),
            (None, None) => None,
        };
        let Some(file) = file else {
            if name.as_str() != "base" {
                return Err(Failure::new(format!("no Imagefile or Dockerfile is given for image \"{name}\""))
                    .hint(format!("name its directory: arenite image build {name} PATH; only base comes with Arenite"))
                    .exit_code(2));
            }
            let imagefile = Imagefile::parse(base::BASE.as_bytes()).map_err(|error| refused(&error.into()))?;
            // It copies nothing, so any directory will do.
            return Ok(Self { name, imagefile, context: ".".into(), options: options(args)? });
        };
        let imagefile = Imagefile::read(&file).map_err(|error| {
            let failure = refused(&error);
            Failure::new(format!("{}: {failure}", file.display())).maybe_hint(error.hint())
        })?;
        let beside = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let context = context.unwrap_or_else(|| beside.to_owned());
        let mut options = options(args)?;
        options.ignore = IgnoreFile::read(&context, Some(&file)).map_err(|error| refused(&error))?;
        Ok(Self { name, imagefile, context, options })
    }
}

/// The file of a context.
fn file_in(dir: &Path) -> Result<PathBuf, Failure> {
    let found = ["Imagefile", "Dockerfile"].map(|name| dir.join(name)).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        Failure::new(format!("there is no Imagefile or Dockerfile in {}", dir.display()))
            .hint("name the file: -f FILE")
            .exit_code(2)
    })
}

fn options(args: &BuildArgs) -> Result<BuildOptions, Failure> {
    // Root may name any server.
    let mut options = BuildOptions { target: args.target.clone(), downloads: Downloads::Any, ..BuildOptions::default() };
    for text in &args.build_arg {
        match text.split_once('=') {
            Some((name, value)) => drop(options.build_args.insert(name.to_owned(), value.to_owned())),
            // As in Docker: one that is not set is left to its ARG.
            None => options.build_args.extend(std::env::var(text).ok().map(|value| (text.clone(), value))),
        }
    }
    for text in &args.label {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        options.labels.insert(name.to_owned(), value.to_owned());
    }
    for text in &args.secret {
        let (id, content) = secret(text)?;
        options.secrets.insert(id, content);
    }
    Ok(options)
}

/// Maximum number of bytes that are read of a secret: the build refuses shorter ones than that already.
const MAX_SECRET_BYTES: u64 = 1 << 20;

/// Reads `id=ID,src=FILE`, `id=ID,env=NAME`, or `id=ID`, which is the variable or file of that name.
fn secret(text: &str) -> Result<(String, Vec<u8>), Failure> {
    use std::io::Read;
    let invalid = |reason: String| {
        Failure::new(format!("--secret: {reason}")).hint("write --secret id=ID,src=FILE or --secret id=ID,env=NAME").exit_code(2)
    };
    let (mut id, mut file, mut variable) = (None, None, None);
    for field in text.split(',') {
        match field.split_once('=') {
            Some(("id", value)) => id = Some(value.to_owned()),
            Some(("src" | "source", value)) => file = Some(PathBuf::from(value)),
            Some(("env", value)) => variable = Some(value.to_owned()),
            Some(("type", "file" | "env")) => {}
            _ => return Err(invalid(format!("{field:?} is not valid"))),
        }
    }
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| invalid("it has no id".to_owned()))?;
    let variable = variable.or_else(|| (file.is_none() && std::env::var_os(&id).is_some()).then(|| id.clone()));
    if let Some(name) = variable.filter(|_| file.is_none()) {
        let value = std::env::var_os(&name).ok_or_else(|| invalid(format!("the variable {name} is not set")))?;
        return Ok((id, std::os::unix::ffi::OsStringExt::into_vec(value)));
    }
    let path = file.unwrap_or_else(|| PathBuf::from(&id));
    let mut content = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_SECRET_BYTES).read_to_end(&mut content))
        .attempt(|| format!("could not read the secret {}", path.display()))?;
    Ok((id, content))
}

/// Runs a build: the engine runs its steps, the image crate does the rest.
async fn build_in(args: &BuildArgs, wanted: &Wanted) -> Result<Image, Failure> {
    let config = serve::namespace_config(&args.data_dir.data_dir)?;
    let builder = Builder::open(config)
        .await
        .map_err(|error| Failure::new(format!("the build could not begin: {error}")).maybe_hint(error.hint()))?;
    let env = BuildEnv::of_host();
    let request = BuildRequest {
        imagefile: &wanted.imagefile,
        context_dir: &wanted.context,
        name: &wanted.name,
        env: &env,
        use_cache: !args.no_cache,
        options: &wanted.options,
        tenant: None,
    };
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
            BuildEvent::Warning { line, text } => format!("  warning: line {line}: {text}"),
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

/// Adds to the failure of an image that doesn't exist the name that was meant.
pub(super) fn refused_by(store: &ImageStore, error: &ImageError) -> Failure {
    let failure = refused(error);
    let ImageError::NotFound { name } = error else { return failure };
    let built: Vec<String> = store.list().unwrap_or_default().iter().map(|image| image.name.to_string()).collect();
    match names::hint(name.as_str(), &built, names::IMAGE.command, failure.hint_text()) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub(crate) fn ls(args: &ImageLsArgs) -> Outcome {
    let images = match open(&args.data_dir.data_dir)? {
        Some(store) => store.list().map_err(|error| refused(&error))?,
        None => Vec::new(),
    };
    let value = serde_json::to_value(&images).attempt(|| "could not write the list".into())?;
    args.output.form().show(serde_json::json!({ "images": value }), Entries::named("images"), |_| Ok(view(&images)))
}

fn view(images: &[Image]) -> View {
    if images.is_empty() {
        return View::empty("no image is built here; build one with: arenite image build base");
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["name", "size", "layers", "built", "digest"]);
    for image in images {
        rows.add_row([
            image.name.to_string(),
            Size(image.size_bytes).short(),
            image.layers.len().to_string(),
            format!("{} ago", output::distance(image.created_at, now)),
            image.digest.chars().take(12).collect(),
        ]);
    }
    rows.into()
}

pub(crate) fn inspect(args: &InspectArgs) -> Outcome {
    let store = open(&args.data_dir.data_dir)?.ok_or_else(|| not_built(&args.image))?;
    let image = store.get(&args.image).map_err(|error| refused_by(&store, &error))?;
    let form = args.output.form();
    if form != Form::Table {
        let value = serde_json::to_value(&image).attempt(|| "could not write the image".into())?;
        return form.show_objects(vec![value], "name");
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
    let commands = [("entry", &config.entrypoint), ("cmd", &config.cmd)];
    for (name, argv) in commands.into_iter().filter(|(_, argv)| !argv.is_empty()) {
        let shown = serde_json::to_string(argv).unwrap_or_default();
        output::line(format_args!("{name:<8} {}", output::harmless(&shown)));
    }
    if !config.exposed_ports.is_empty() {
        let ports: Vec<String> = config.exposed_ports.iter().map(|port| output::harmless(port).to_string()).collect();
        output::line(format_args!("ports    {}", ports.join(" ")));
    }
    for (key, value) in &config.labels {
        output::line(format_args!("label    {}={}", output::harmless(key), output::harmless(value)));
    }
    output::line("");
    let mut rows = output::table(&["layer", "size", "made by"]).long(&["made by"]);
    for layer in &image.layers {
        let made_by: String = output::harmless(&layer.created_by).chars().take(100).collect();
        rows.add_row([layer.digest.chars().take(12).collect(), Size(layer.bytes).short(), made_by]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn history(args: &ImageHistoryArgs) -> Outcome {
    let store = open(&args.data_dir.data_dir)?.ok_or_else(|| not_built(&args.image))?;
    let image = store.get(&args.image).map_err(|error| refused_by(&store, &error))?;
    let layers: Vec<_> = image.layers.iter().rev().collect();
    let value = serde_json::to_value(&layers).attempt(|| "could not write the layers".into())?;
    let entries = Entries { list: "layers", names: &["digest"] };
    args.output.form().show(serde_json::json!({ "layers": value }), entries, |_| Ok(layers_view(&layers)))
}

fn layers_view(layers: &[&arenite_image::Layer]) -> View {
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["layer", "added", "size", "made by"]).long(&["made by"]);
    for layer in layers {
        let added = format!("{} ago", output::distance(layer.created_at, now));
        let made_by = output::harmless(&layer.created_by);
        rows.add_row([layer.digest.chars().take(12).collect(), added, Size(layer.bytes).short(), made_by.to_string()]);
    }
    rows.into()
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
            Err(error) => code = refused_by(&store, &error).report(),
        }
    }
    Ok(code)
}

pub(crate) fn save(args: &ImageSaveArgs) -> Outcome {
    let missing = || args.images.first().map_or_else(|| Failure::new("no image is named"), not_built);
    let store = open(&args.data_dir.data_dir)?.ok_or_else(missing)?;
    let images = arenite_image::save(&store, &args.images, args.guest.program(), &args.output)
        .map_err(|error| refused_by(&store, &error))?;
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
    let Some(store) = open(&args.data_dir.data_dir)? else {
        return show_removed(args, &RemovedImages::default());
    };
    let records = records(&args.data_dir.data_dir)?;
    let used = layers_of(&records);
    let in_use = |digest: &str| used.contains(digest);
    let mut done = match &args.unused_for {
        Some(unused_for) => {
            let keep = kept_images(&args.data_dir.data_dir, &records)?;
            let limit = AgeLimit { unused_for: unused_for.0, all: args.all, keep: &keep, dry_run: args.dry_run };
            store.remove_unused_images(limit, &in_use).map_err(|error| refused(&error))?
        }
        None => RemovedImages::default(),
    };
    if !args.dry_run {
        let rest = store.prune(&in_use).map_err(|error| refused(&error))?;
        done.removed.layers.extend(rest.layers);
        done.removed.kept = rest.kept;
        done.removed.freed_bytes += rest.freed_bytes + store.remove_caches().map_err(|error| refused(&error))?;
    }
    show_removed(args, &done)
}

fn show_removed(args: &ImagePruneArgs, done: &RemovedImages) -> Outcome {
    if args.format.json {
        let mut value = serde_json::to_value(done).attempt(|| "could not write what was removed".into())?;
        value["dry_run"] = args.dry_run.into();
        output::json(&value);
        return Ok(ExitCode::SUCCESS);
    }
    let now = jiff::Timestamp::now();
    for image in &done.images {
        let owner = image.owner.as_ref().map(|owner| format!(" of tenant {owner}")).unwrap_or_default();
        output::line(format_args!("{}{owner}, last used {} ago", image.name, output::distance(image.last_used, now)));
    }
    if args.unused_for.is_none() {
        done.removed.layers.iter().for_each(output::line);
    }
    let verb = if args.dry_run { "would free" } else { "freed" };
    eprintln!("{verb} {}", Size(done.removed.freed_bytes).short());
    Ok(ExitCode::SUCCESS)
}

/// The images that stay, whatever their age: those of sandboxes, and those that the last server's configuration needs.
fn kept_images(data_dir: &Path, records: &[RecordedSandbox]) -> Result<BTreeSet<ImageName>, Failure> {
    let configured = configured_images(data_dir).attempt(|| "could not read which images the server needs".into())?;
    let of_sandboxes = records.iter().filter_map(|record| record.image.parse().ok());
    Ok(configured.into_iter().chain(of_sandboxes).chain(["base".parse().expect("the name is valid")]).collect())
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
            RecordsError::Read { .. } | RecordsError::State { .. } => failure,
        }
    })
}

fn label(record: &RecordedSandbox) -> &str {
    record.name.as_ref().map_or(record.id.as_str(), SandboxName::as_str)
}
