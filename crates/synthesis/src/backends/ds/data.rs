//! A folder of the server's data, which is copied into a sandbox.

use std::path::{Path, PathBuf};

use super::super::api::Fault;

/// Largest folder of data that is copied, in bytes.
const MAX_BYTES: u64 = 256 << 20;
const MAX_FILES: usize = 10_000;
/// Bytes that are sent together, unless one file is larger.
const BATCH: usize = 16 << 20;

/// The files of a folder, without links and hidden files.
pub(super) struct Data {
    files: Vec<File>,
    /// Changes when one of the files changes.
    pub(super) mark: String,
}

struct File {
    /// Path within the folder.
    name: String,
    path: PathBuf,
    size: u64,
}

impl Data {
    pub(super) fn open(folder: &Path) -> Result<Self, Fault> {
        let failed = |error: std::io::Error| Fault::new(format!("the data can't be read: {}", error.kind()));
        let (mut files, mut open, mut bytes) = (Vec::new(), vec![folder.to_owned()], 0u64);
        let mut mark = blake3::Hasher::new();
        while let Some(next) = open.pop() {
            let mut entries: Vec<_> = std::fs::read_dir(&next).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let about = entry.metadata().map_err(failed)?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let path = entry.path();
                if about.is_dir() {
                    open.push(path);
                } else if about.is_file() {
                    bytes += about.len();
                    if bytes > MAX_BYTES || files.len() >= MAX_FILES {
                        let most = MAX_BYTES >> 20;
                        return Err(Fault::new(format!("the data is larger than {most} MiB or {MAX_FILES} files")));
                    }
                    let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                    mark.update(format!("{name}\0{}\0{:?}\0", about.len(), about.modified().ok()).as_bytes());
                    files.push(File { name, path, size: about.len() });
                }
            }
        }
        Ok(Self { files, mark: mark.finalize().to_hex()[..32].to_owned() })
    }

    /// The messages for the sandbox's process, in order: a line of JSON, then the files that it names. The last one states that
    /// all were sent.
    pub(super) fn messages(&self, folder: &str) -> impl Iterator<Item = Result<Vec<u8>, Fault>> {
        let (mut at, mut done) = (0, false);
        std::iter::from_fn(move || {
            if done {
                return None;
            }
            let (mut names, mut bytes) = (Vec::new(), Vec::new());
            while let Some(file) = self.files.get(at) {
                if !names.is_empty() && bytes.len() + usize::try_from(file.size).unwrap_or(usize::MAX) > BATCH {
                    break;
                }
                match std::fs::read(&file.path) {
                    Ok(read) => {
                        names.push(serde_json::json!([file.name, read.len()]));
                        bytes.extend(read);
                    }
                    Err(error) => return Some(Err(Fault::new(format!("the data can't be read: {}", error.kind())))),
                }
                at += 1;
            }
            done = at == self.files.len();
            let mark = if done { self.mark.as_str() } else { "" };
            let mut message = serde_json::json!({ "folder": folder, "files": names, "mark": mark }).to_string().into_bytes();
            message.push(b'\n');
            message.extend(bytes);
            Some(Ok(message))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_sent_without_what_is_hidden_and_known_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("more/.git")).unwrap();
        for name in ["a.csv", "more/b.csv", ".env", "more/.git/config"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out")).unwrap();
        let Ok(data) = Data::open(dir.path()) else { panic!("not read") };
        let sent: Vec<String> =
            data.messages("/f").map(|sent| String::from_utf8(sent.unwrap_or_else(|_| panic!("not read"))).unwrap()).collect();
        let head = serde_json::json!({"folder": "/f", "files": [["a.csv", 5], ["more/b.csv", 10]], "mark": data.mark});
        assert_eq!(sent, [format!("{head}\na.csvmore/b.csv")]);
        std::fs::write(dir.path().join("a.csv"), "changed").unwrap();
        assert!(Data::open(dir.path()).is_ok_and(|changed| changed.mark != data.mark));
        // An empty folder is valid too.
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Data::open(empty.path()).map(|data| data.messages("/f").count()).unwrap_or_default(), 1);
    }
}
