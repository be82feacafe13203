//! Entry points of the fuzz targets in `fuzz/`, with the checks that hold for every input. A panic is a finding.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use arenite_model::ImageName;
use serde_json::json;

use crate::archive::oci::{self, DockerArchived, Index, Manifest};
use crate::archive::{self, LayerSource, diffs, sha256, unpack_layers};
use crate::error::ImageError;
use crate::glob::Glob;
use crate::ignore::IgnoreFile;
use crate::imagefile::{CopySource, Imagefile, Instruction, Text};
use crate::registry::Reference;
use crate::removal::remove_tree;
use crate::root::{Entry, RootView};
use crate::store::{ImageStore, Origin};

/// Maximum size of a layer without compression, in bytes: larger ones only take time.
const MAX_TAR_BYTES: u64 = 4 << 20;
/// The name of images.
const NAME: &str = "fuzzed";

/// Adds an image of these layers to a new store in `dir`, as a pull does, and checks what is there afterwards. Packs a loaded
/// image and unpacks it again. Returns whether the image is loaded.
pub fn unpack(dir: &Path, layers: &[Vec<u8>]) -> bool {
    let Some(tars) = layers.iter().map(|layer| digest_of_tar(layer)).collect::<Option<Vec<_>>>() else { return false };
    let store = ImageStore::open(dir.join("store")).expect("the folder is writable");
    let is_loaded = add_image(&store, layers, &tars);
    if is_loaded {
        check_image(&store, dir);
    }
    remove_tree(store.dir()).expect("a store can be removed");
    is_loaded
}

/// The digest of a layer without compression. None: it is too long. A layer that can't be decompressed has the digest of what
/// comes before the damage.
fn digest_of_tar(layer: &[u8]) -> Option<String> {
    let mut tar = Vec::new();
    // Its error comes again when the layer is unpacked.
    let _ = archive::plain(layer).and_then(|plain| plain.take(MAX_TAR_BYTES + 1).read_to_end(&mut tar));
    (tar.len() as u64 <= MAX_TAR_BYTES).then(|| sha256(&tar))
}

fn add_image(store: &ImageStore, layers: &[Vec<u8>], tars: &[String]) -> bool {
    let diff_ids: Vec<String> = tars.iter().map(|digest| format!("sha256:{digest}")).collect();
    let config = json!({ "architecture": oci::ARCHITECTURE, "rootfs": { "type": "layers", "diff_ids": diff_ids } });
    let config = serde_json::from_value(config).expect("it is a config");
    let name: ImageName = NAME.parse().expect("it is a name");
    let added = unpack_layers(store, config, &Bytes(layers), None, &mut || {}).and_then(|unpacked| {
        let lock = store.lock()?;
        unpacked.commit(store, &lock, &[name], Origin::default())
    });
    for place in ["building", "trash", "downloads"] {
        assert!(is_empty(&store.dir().join(place)), "{place} has something left");
    }
    match added {
        Ok(images) => {
            assert!(images.is_some_and(|images| images.len() == 1), "no layer was removed meanwhile");
            true
        }
        Err(error) => {
            assert!(matches!(error, ImageError::Archive { .. }), "not an error of the archive: {error}");
            assert!(is_empty(&store.dir().join("layers")), "a refused image has a layer");
            assert!(is_empty(&store.dir().join("images")), "a refused image is listed");
            false
        }
    }
}

/// The only image's files are such that sandboxes may have, and survive a way into an archive and out of it.
fn check_image(store: &ImageStore, dir: &Path) {
    let image = store.get(&NAME.parse().expect("it is a name")).expect("it was just loaded");
    let files: Vec<PathBuf> = image.layers.iter().map(|layer| layer.dir.clone()).collect();
    let bytes: u64 = files.iter().map(|files| check_files(files, 0)).fold(0, u64::saturating_add);
    let view = RootView::open(files.iter().map(PathBuf::as_path)).expect("the layers are there");
    assert!(matches!(view.resolve(Path::new("a/b/../c"), true), Err(_) | Ok(_)));
    check_view(&view, &mut Vec::new(), &mut 0);
    // Packing writes holes as zeros.
    if bytes > MAX_TAR_BYTES {
        return;
    }
    let pack = |files: &[PathBuf]| -> Vec<Vec<u8>> {
        let packed = files.iter().map(|files| {
            let mut tar = Vec::new();
            archive::pack(files, &mut tar).map(|()| tar)
        });
        packed.collect::<io::Result<_>>().expect("what was unpacked can be packed")
    };
    let packed = pack(&files);
    let tars: Vec<String> = packed.iter().map(|tar| sha256(tar)).collect();
    let second = ImageStore::open(dir.join("store/second")).expect("the folder is writable");
    assert!(add_image(&second, &packed, &tars), "what was packed can't be unpacked");
    let image = second.get(&NAME.parse().expect("it is a name")).expect("it was just loaded");
    let files: Vec<PathBuf> = image.layers.iter().map(|layer| layer.dir.clone()).collect();
    assert!(pack(&files) == packed, "a layer is another one after a way into an archive and out of it");
}

/// Checks a layer's directory and what is in it; returns the files' sizes, with holes.
fn check_files(dir: &Path, depth: usize) -> u64 {
    assert!(depth <= 256, "{dir:?} is nested deeper than a layer may be");
    let mut bytes = 0u64;
    for entry in fs::read_dir(dir).expect("a layer is readable") {
        let path = entry.expect("a layer is readable").path();
        let about = fs::symlink_metadata(&path).expect("a layer is readable");
        let kind = about.file_type();
        assert!(about.uid() < 65_536 && about.gid() < 65_536, "{path:?} belongs to no id of a sandbox");
        let is_whiteout = kind.is_char_device() && about.rdev() == 0;
        let is_allowed = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_fifo() || is_whiteout;
        assert!(is_allowed, "{path:?} is a {kind:?}");
        bytes = bytes.saturating_add(if kind.is_dir() { check_files(&path, depth + 1) } else { 512 });
        if kind.is_file() {
            bytes = bytes.saturating_add(about.len());
        }
    }
    bytes
}

/// Each name that a directory of the view lists has an entry, and is found by its path.
fn check_view(view: &RootView, at: &mut Vec<std::ffi::OsString>, seen: &mut usize) {
    let path: PathBuf = Path::new("/").join(at.iter().collect::<PathBuf>());
    let Ok(Some(crate::root::Opened::Directory(here))) = view.open_node(&path) else {
        panic!("{path:?} is not a directory of the view");
    };
    for name in here.names().expect("a layer is readable") {
        *seen += 1;
        at.push(name);
        let entry = view.entry(at).expect("a layer is readable");
        assert!(!matches!(entry, Entry::Missing), "{at:?} is listed and missing");
        let is_nested = matches!(entry, Entry::Directory(_));
        // A path longer than the kernel's limit is refused, and so are links in a circle.
        let _ = view.resolve(&at.iter().collect::<PathBuf>(), true);
        if is_nested && *seen < 1000 && at.iter().map(|part| part.len() + 1).sum::<usize>() < 4000 {
            check_view(view, at, seen);
        }
        at.pop();
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Layers in memory.
struct Bytes<'a>(&'a [Vec<u8>]);

impl LayerSource for Bytes<'_> {
    fn damaged(&self, reason: String) -> ImageError {
        ImageError::Archive { path: NAME.into(), reason }
    }

    fn open(&self, index: usize) -> Result<Box<dyn Read + '_>, ImageError> {
        Ok(Box::new(&self.0[index][..]))
    }

    fn digest(&self, _: usize) -> Option<&str> {
        None
    }
}

/// Reads bytes as each of the documents of images.
pub fn documents(bytes: &[u8]) {
    if let Ok(index) = serde_json::from_slice::<Index>(bytes) {
        if let Ok(chosen) = index.for_this_host() {
            assert!(index.manifests.iter().any(|manifest| manifest.digest == chosen.digest));
            assert!(chosen.hex().is_none_or(|hex| hex.len() == 64));
        }
        assert_same(&index);
    }
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
        assert_same(&manifest);
    }
    if let Ok(archived) = serde_json::from_slice::<Vec<DockerArchived>>(bytes) {
        assert_same(&archived);
    }
    let Ok(config) = serde_json::from_slice::<oci::Config>(bytes) else { return };
    assert_same(&config);
    let layers = config.rootfs.diff_ids.len();
    if let Ok(diffs) = diffs(&config, layers) {
        assert!(diffs.len() == layers && diffs.iter().all(|diff| diff.len() == 64));
    }
    let _ = config.check_platform();
    let _ = config.created_by();
    if let Ok(image) = config.into_image() {
        assert!(image.workdir.as_ref().is_none_or(|dir| dir.starts_with('/')));
        assert_same(&image);
    }
}

/// A document is the same after it was written and read.
fn assert_same<T: serde::Serialize + serde::de::DeserializeOwned>(document: &T) {
    let once = serde_json::to_vec(document).expect("documents are plain data");
    let read: T = serde_json::from_slice(&once).expect("what was written can be read");
    assert!(serde_json::to_vec(&read).expect("documents are plain data") == once);
}

/// Loads bytes as an image archive into a new store in `dir`. Returns whether it is loaded.
pub fn load(dir: &Path, archived: &[u8]) -> bool {
    let store = ImageStore::open(dir.join("store")).expect("the folder is writable");
    let path = dir.join("archive.tar");
    let written = fs::File::create(&path).and_then(|mut file| file.write_all(archived));
    written.expect("the folder is writable");
    let loaded = archive::load(&store, &path, None);
    for place in ["building", "trash"] {
        assert!(is_empty(&store.dir().join(place)), "{place} has something left");
    }
    match &loaded {
        Ok(images) => {
            for image in images {
                // A later image of the archive may have the same name.
                let there = store.get(&image.name).expect("it was just loaded");
                assert!(!there.layers.is_empty());
            }
        }
        Err(error) => assert!(matches!(error, ImageError::Archive { .. }), "not an error of the archive: {error}"),
    }
    remove_tree(store.dir()).expect("a store can be removed");
    loaded.is_ok()
}

/// Parses a Dockerfile and plans the build of each stage. Returns whether it is valid.
pub fn dockerfile(bytes: &[u8]) -> bool {
    let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
    let file = match Imagefile::parse(bytes) {
        Ok(file) => file,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "an error in line {} of {lines}: {error}", error.line);
            return false;
        }
    };
    let arguments = BTreeMap::from([("A".to_owned(), "b".repeat(100)), ("EMPTY".to_owned(), String::new())]);
    let names = file.stages.iter().filter_map(|stage| stage.name.as_deref());
    for target in [None, Some("0"), Some("1")].into_iter().chain(names.map(Some)) {
        match file.plan(target, &arguments) {
            Ok(plan) => {
                let indexes: Vec<usize> = plan.stages.iter().map(|(index, _)| *index).collect();
                assert!(indexes.is_sorted() && indexes.last().is_some_and(|last| *last < file.stages.len()));
            }
            Err(error) => assert!((1..=lines).contains(&error.line), "an error in line {} of {lines}", error.line),
        }
    }
    for step in file.stages.iter().flat_map(|stage| &stage.steps) {
        assert!((1..=lines).contains(&step.source.line));
        for text in texts(&step.instruction) {
            if let Ok(expanded) = text.expand(&arguments) {
                assert!(expanded.len() <= 1 << 20);
                assert!(text.literal().is_none_or(|literal| literal == expanded));
            }
        }
    }
    true
}

fn texts(instruction: &Instruction) -> Vec<&Text> {
    match instruction {
        Instruction::Env(pairs) => pairs.iter().map(|(_, value)| value).collect(),
        Instruction::Arg(arguments) => arguments.iter().filter_map(|argument| argument.default.as_ref()).collect(),
        Instruction::Label(pairs) => pairs.iter().flat_map(|(name, value)| [name, value]).collect(),
        Instruction::Workdir(text) | Instruction::User(text) | Instruction::StopSignal(text) => vec![text],
        Instruction::Expose(texts) | Instruction::Volume(texts) => texts.iter().collect(),
        Instruction::Copy(copy) => {
            let sources = copy.sources.iter().map(|source| match source {
                CopySource::Path(text) => text,
                CopySource::Inline { content, .. } => content,
            });
            sources.chain([&copy.destination]).chain(&copy.chown).chain(&copy.chmod).chain(&copy.exclude).collect()
        }
        _ => Vec::new(),
    }
}

/// Parses a `.dockerignore`, and selects paths with it, one a line.
pub fn ignore(text: &str, paths: &str) {
    if let Ok(file) = IgnoreFile::parse(text) {
        for path in paths.lines().take(8) {
            let selected = file.select(Path::new(path));
            assert!(!file.is_empty() || selected == crate::tree::Selection::Included);
        }
    }
    for pattern in text.lines().take(8) {
        let glob = Glob::parse(pattern);
        for name in paths.lines().take(8) {
            if let Some(glob) = &glob {
                let matches = glob.matches(name);
                assert!(matches || crate::glob::is_pattern(pattern) || pattern != name, "{pattern:?} does not match itself");
            }
            let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
            assert!(Glob::parse(&escaped).is_some_and(|glob| glob.matches(name)), "{name:?} does not match itself");
        }
    }
}

/// Parses a reference, and its other forms. Returns whether it is valid.
pub fn reference(text: &str) -> bool {
    let Ok(reference) = text.parse::<Reference>() else { return false };
    let whole = reference.to_string();
    assert!(whole.parse::<Reference>().is_ok_and(|same| same.to_string() == whole), "{whole:?} is another reference");
    assert!(!reference.host().contains(['/', '@']) && !reference.version().contains('/'));
    if let Some(name) = reference.name() {
        let named = name.as_str().parse::<Reference>().map(|named| named.to_string());
        assert!(named.as_ref() == Ok(&whole), "the image {name} of {whole:?} names {named:?}");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(entries: &[(tar::EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(1);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn inputs_pass_and_fail() {
        use tar::EntryType::{Directory, Regular};
        let scratch = tempfile::tempdir().unwrap();
        let lower = tar(&[(Directory, "a", b""), (Regular, "a/b", b"content")]);
        let upper = tar(&[(Regular, "a/.wh.b", b""), (Regular, "c", b"")]);
        assert!(unpack(scratch.path(), &[lower.clone(), upper]));
        assert!(!unpack(scratch.path(), &[lower, tar(&[(Regular, "../b", b"")])]));
        assert!(!unpack(scratch.path(), &[b"not a tar".to_vec()]));
        assert!(!load(scratch.path(), b"not a tar"));
        documents(br#"{"architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}"#);
        assert!(dockerfile(b"ARG A=1\nFROM scratch AS x\nCOPY a$A /\n"));
        assert!(!dockerfile(b"FROM"));
        ignore("*.md\n!a", "a\nb.md");
        assert!(reference("localhost:5000/a:b"));
        assert!(!reference("A"));
    }
}
