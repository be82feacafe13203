//! Reads the documents of a folder as passages, each in a disposable process.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use arenite_guest::confined;
use arenite_retrieval::corpus::{Chunking, Fault, Record, chunks};
use arenite_retrieval::{Error, Passage};
use serde_json::{Map, json};

/// Maximum size of a document, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Time to read a document.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum depth of nested folders.
const MAX_DEPTH: usize = 64;
/// The user id that reads if this process is root: nobody.
const NOBODY: u32 = 65_534;

/// Passages of all documents below a folder, in the order of their paths. Skips hidden files and links.
pub(super) fn passages(folder: &Path, chunking: Chunking) -> arenite_retrieval::Result<impl Iterator<Item = Record>> {
    let mut files = Vec::new();
    gather(folder, 0, &mut files)?;
    files.sort_unstable();
    let folder = folder.to_owned();
    Ok(files.into_iter().flat_map(move |path| of_file(&folder, &path, chunking)))
}

fn gather(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> arenite_retrieval::Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let entry = entry.map_err(Error::io("read", folder))?;
        let kind = entry.file_type().map_err(Error::io("read", folder))?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() && depth < MAX_DEPTH {
            gather(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn of_file(folder: &Path, path: &Path, chunking: Chunking) -> Vec<Record> {
    let name = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned();
    let fault = |reason: String| vec![Ok(Err(Fault { place: name.clone(), reason }))];
    let text = match read(path, &name) {
        Ok(text) => text,
        Err(reason) => return fault(reason),
    };
    let found = chunks(&text, chunking);
    if found.is_empty() {
        return fault("there is no text in it".to_owned());
    }
    let heading = text.lines().find_map(|line| line.strip_prefix("# ")).map(|line| line.trim().to_owned());
    let title = heading.filter(|heading| !heading.is_empty()).unwrap_or_else(|| name.clone());
    let passage = |(number, chunk): (usize, &str)| {
        let metadata = Map::from_iter([("path".to_owned(), json!(name)), ("part".to_owned(), json!(number))]);
        Ok(Ok(Passage { id: format!("{name}#{number}"), title: title.clone(), text: chunk.to_owned(), metadata }))
    };
    found.into_iter().enumerate().map(passage).collect()
}

/// Converts the document to Markdown.
fn read(path: &Path, name: &str) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    if size > MAX_BYTES {
        return Err(format!("it is larger than {} MiB", MAX_BYTES >> 20));
    }
    let mut reader = confined::reader(name).map_err(|error| error.to_string())?;
    if rustix::process::geteuid().is_root() {
        reader.uid(NOBODY).gid(NOBODY);
    }
    let spawned = reader.stdin(file).stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("its reader could not be started: {error}"))?;
    let output = child.stdout.take();
    let (send, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.map(|output| output.take(confined::MAX_ANSWER_BYTES).read_to_end(&mut bytes));
        // The receiver is gone after the timeout.
        let _ = send.send(read.map(|read| read.map(|_| bytes)));
    });
    let answer = answer.recv_timeout(PATIENCE);
    let _ = child.kill();
    let status = child.wait().map_err(|error| error.to_string())?;
    match answer {
        Ok(Some(Ok(bytes))) => confined::markdown_of(&bytes).unwrap_or_else(|| Err(format!("its reader ended with {status}"))),
        Ok(_) => Err(format!("its reader ended with {status}")),
        Err(_) => Err(format!("it took longer than {} s", PATIENCE.as_secs())),
    }
}
