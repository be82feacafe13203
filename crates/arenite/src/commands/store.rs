//! `store export|import`: the rows of the store as a file.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arenite_control::ControlError;
use arenite_control::store::{self, Contents, PostgresAddress, StoreError, archive};

use crate::cli::{StoreCommand, StoreExportArgs, StoreImportArgs, StoreSettings};
use crate::config::Settings;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

pub(crate) async fn run(command: StoreCommand) -> Outcome {
    // The files hold environments of sandboxes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    match command {
        StoreCommand::Export(args) => export(args).await,
        StoreCommand::Import(args) => import(args).await,
    }
}

fn resolve(settings: StoreSettings) -> Result<(PathBuf, Option<PostgresAddress>), Failure> {
    let (file, _) = Settings::of_file(settings.config.as_deref())?;
    Ok(Settings::of_store(settings.data_dir, settings.store).over(file).resolve_store()?)
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

async fn export(args: StoreExportArgs) -> Outcome {
    let (data_dir, database) = resolve(args.settings)?;
    let contents = store::read(&data_dir, database.as_ref()).await.map_err(refused)?;
    let number = counted(&contents);
    if is_standard(&args.file) {
        let mut out = Vec::new();
        archive::write(contents, &mut out).map_err(|error| Failure::new(error.to_string()))?;
        output::bytes(&out);
    } else {
        write_file(&args.file, contents).map_err(|error| Failure::new(format!("{}: {error}", args.file.display())))?;
    }
    eprintln!("exported {number}");
    Ok(ExitCode::SUCCESS)
}

/// The file is complete when it gets its name.
fn write_file(path: &Path, contents: Contents) -> Result<(), archive::ArchiveError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(archive::ArchiveError::Write)?;
    archive::write(contents, &mut file)?;
    file.as_file().sync_all().map_err(archive::ArchiveError::Write)?;
    file.persist(path).map_err(|error| archive::ArchiveError::Write(error.error))?;
    Ok(())
}

async fn import(args: StoreImportArgs) -> Outcome {
    let (data_dir, database) = resolve(args.settings)?;
    let contents = if is_standard(&args.file) {
        archive::read(io::stdin().lock())
    } else {
        let file = File::open(&args.file).attempt(|| format!("could not open {}", args.file.display()))?;
        archive::read(BufReader::new(file))
    };
    let contents = contents.map_err(|error| Failure::new(format!("{}: {error}", args.file.display())))?;
    let number = counted(&contents);
    let store = store::open(&data_dir, database.as_ref()).await.map_err(refused)?;
    for note in store.notes() {
        eprintln!("{note}");
    }
    let imported = store.import(contents, args.replace).await;
    store.close().await;
    imported.map_err(|error| match error {
        StoreError::NotEmpty { .. } | StoreError::HasTenants { .. } => Failure::new(format!("nothing was imported: {error}"))
            .hint("--replace removes these rows; export them first: arenite store export FILE"),
        StoreError::Taken => Failure::new("nothing was imported: an id or a name is there twice"),
        StoreError::Unavailable(_) => Failure::new(format!("the import failed, or its result was lost: {error}"))
            .hint("run it again with --replace: it imports all rows or none"),
        other => Failure::new(format!("nothing was imported: {other}")),
    })?;
    eprintln!("imported {number}");
    Ok(ExitCode::SUCCESS)
}

fn counted(contents: &Contents) -> String {
    let counted = |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let sandboxes = counted(contents.sandboxes.len(), "sandbox", "sandboxes");
    match &contents.tenants {
        Some(of) if !of.tenants.is_empty() => {
            let (tenants, keys) = (counted(of.tenants.len(), "tenant", "tenants"), counted(of.keys.len(), "key", "keys"));
            format!("{sandboxes}, {tenants}, and {keys}")
        }
        _ => sandboxes,
    }
}

fn refused(error: ControlError) -> Failure {
    let hint = error.hint();
    Failure::new(error.to_string()).maybe_hint(hint)
}
