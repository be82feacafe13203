use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{AtFlags, CWD, FileType, Mode, XattrFlags};

use super::*;
use crate::image::ImageConfig;
use crate::store::OpenLayer;

fn store(scratch: &tempfile::TempDir, name: &str) -> ImageStore {
    ImageStore::open(scratch.path().join(name)).unwrap()
}

fn seal(store: &ImageStore, letter: char, write: impl FnOnce(&OpenLayer)) -> String {
    let lock = store.lock().unwrap();
    let layer = store.new_layer(&lock).unwrap();
    write(&layer);
    let digest = letter.to_string().repeat(64);
    store.seal(&lock, &layer, &digest, &format!("RUN {letter}")).unwrap();
    digest
}

fn publish(store: &ImageStore, name: &str, layers: &[&String]) {
    let mut config = ImageConfig { workdir: Some("/home/gem".into()), user: Some("gem".into()), ..ImageConfig::default() };
    config.env.insert("PATH".into(), "/bin=x".into());
    config.labels.insert("a".into(), "b".into());
    let lock = store.lock().unwrap();
    let layers = layers.iter().map(|layer| (*layer).clone()).collect();
    store.publish(&lock, &name.parse().unwrap(), "0".repeat(64), layers, config).unwrap();
}

/// Two images that share their lowest layer, with one of each kind of file.
fn two_images(store: &ImageStore) {
    let long = "n".repeat(120);
    let base = seal(store, 'a', |layer| {
        let files = layer.files();
        fs::create_dir_all(files.join("d/old")).unwrap();
        fs::write(files.join("d/old/x"), "below").unwrap();
        fs::write(files.join("gone"), "below").unwrap();
        fs::write(files.join("program"), vec![7; 1000]).unwrap();
        fs::set_permissions(files.join("program"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(files.join("program"), files.join("second")).unwrap();
        symlink("/etc/passwd", files.join("link")).unwrap();
        fs::write(files.join(&long), "long").unwrap();
        symlink(&long, files.join("to-long")).unwrap();
        rustix::fs::mknodat(CWD, files.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // The value has the byte that ends a record.
        rustix::fs::setxattr(files.join("program"), "user.note", b"a\nb=c", XattrFlags::empty()).unwrap();
        fs::File::open(files.join("program"))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000))
            .unwrap();
    });
    let top = seal(store, 'b', |layer| {
        let files = layer.files();
        rustix::fs::mknodat(CWD, files.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::create_dir_all(files.join("d/old")).unwrap();
        rustix::fs::setxattr(files.join("d/old"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(files.join("d/old"), "user.overlay.origin", b"this host's", XattrFlags::empty()).unwrap();
        fs::write(files.join("d/old/y"), "above").unwrap();
    });
    publish(store, "base", &[&base]);
    publish(store, "team/tools:2", &[&base, &top]);
}

fn names() -> [ImageName; 2] {
    ["base", "team/tools:2"].map(|name| name.parse().unwrap())
}

#[test]
fn images_survive_the_way_into_a_file_and_out_of_it() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (store(&scratch, "from"), store(&scratch, "to"));
    two_images(&from);
    let file = scratch.path().join("images.tar");
    save(&from, &names(), &file).unwrap();
    let loaded = load(&to, &file).unwrap();

    assert_eq!(loaded.iter().map(|image| image.name.clone()).collect::<Vec<_>>(), names());
    let tools = to.get(&names()[1]).unwrap();
    let original = from.get(&names()[1]).unwrap();
    assert_eq!(tools.config, original.config);
    assert_eq!(tools.layers[0].digest, loaded[0].layers[0].digest, "the shared layer is there once");
    assert_eq!(fs::read_dir(to.dir().join("layers")).unwrap().count(), 2);
    assert_eq!(tools.layers[1].created_by, "RUN b");
    assert!(!original.layers.iter().any(|layer| layer.digest == tools.layers[0].digest), "no build's digest is taken over");

    let base = &tools.layers[0].dir;
    let about = fs::metadata(base.join("program")).unwrap();
    assert_eq!((about.mode() & 0o7777, about.mtime(), about.nlink(), about.len()), (0o4755, 1_000_000_000, 2, 1000));
    assert_eq!(about.ino(), fs::metadata(base.join("second")).unwrap().ino());
    let mut note = [0; 16];
    let length = rustix::fs::getxattr(base.join("program"), "user.note", &mut note[..]).unwrap();
    assert_eq!(&note[..length], b"a\nb=c");
    assert_eq!(fs::read_link(base.join("link")).unwrap(), Path::new("/etc/passwd"));
    let long = fs::read_link(base.join("to-long")).unwrap();
    assert_eq!(fs::read_to_string(base.join(long)).unwrap(), "long");
    assert!(fs::symlink_metadata(base.join("pipe")).unwrap().file_type().is_fifo());

    let top = &tools.layers[1].dir;
    let whiteout = rustix::fs::statat(CWD, top.join("gone"), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!((FileType::from_raw_mode(whiteout.st_mode), whiteout.st_rdev), (FileType::CharacterDevice, 0));
    let mut value = [0; 16];
    let attribute = |name: &str, value: &mut [u8]| rustix::fs::getxattr(top.join("d/old"), name, value);
    assert_eq!(attribute("user.overlay.opaque", &mut value[..]), Ok(1));
    assert_eq!(attribute("user.overlay.origin", &mut value[..]), Err(rustix::io::Errno::NODATA));
    assert_eq!(fs::read_dir(top.join("d/old")).unwrap().count(), 1, "markers are no files of the layer");

    // The same images again: the same file, and nothing to do.
    let again = scratch.path().join("again.tar");
    save(&from, &names(), &again).unwrap();
    assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap());
    load(&to, &again).unwrap();
    assert_eq!(fs::read_dir(to.dir().join("layers")).unwrap().count(), 2);
}

#[test]
fn a_changed_or_incomplete_file_gives_no_layer() {
    let scratch = tempfile::tempdir().unwrap();
    let from = store(&scratch, "from");
    two_images(&from);
    let file = scratch.path().join("images.tar");
    save(&from, &names(), &file).unwrap();
    let bytes = fs::read(&file).unwrap();
    let damaged = scratch.path().join("damaged.tar");
    let to = store(&scratch, "to");
    // One bit of the first layer, which begins after its header.
    let mut changed = bytes.clone();
    changed[512 + 40] ^= 1;
    for (what, content) in
        [("changed", &changed[..]), ("cut off", &bytes[..bytes.len() / 2]), ("no archive", b"x"), ("empty", b"")]
    {
        fs::write(&damaged, content).unwrap();
        let error = load(&to, &damaged).unwrap_err();
        assert!(matches!(error, ImageError::Archive { .. }), "{what}: {error}");
        assert!(error.to_string().contains("damaged.tar"), "{error}");
    }
    for place in ["layers", "images", "building"] {
        assert_eq!(fs::read_dir(to.dir().join(place)).unwrap().count(), 0, "{place}");
    }
}

#[test]
fn a_file_that_can_not_be_written_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let from = store(&scratch, "from");
    two_images(&from);
    let into = scratch.path().join("missing/images.tar");
    assert!(matches!(save(&from, &names(), &into), Err(ImageError::Io { .. })));
    let unknown = ["nothing".parse().unwrap()];
    let file = scratch.path().join("images.tar");
    assert!(matches!(save(&from, &unknown, &file), Err(ImageError::NotFound { .. })));
    let lock = from.lock().unwrap();
    assert!(matches!(save(&from, &names(), &file), Err(ImageError::Busy)));
    drop(lock);
    assert!(!file.exists());
}

/// Unpacks a tar of these entries into a new layer.
fn unpack_entries(entries: &[(&str, tar::EntryType, &str)]) -> (tempfile::TempDir, io::Result<()>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut tar = Vec::new();
    for (name, kind, link) in entries {
        let mut header = pack::plain_header(name, 0);
        header.set_entry_type(*kind);
        header.set_link_name_literal(link).unwrap();
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
    }
    tar.extend_from_slice(&[0; 1024]);
    let files = scratch.path().join("layer");
    fs::create_dir(&files).unwrap();
    let unpacked = unpack::unpack(&mut &tar[..], &[], &files);
    (scratch, unpacked)
}

#[test]
fn an_archive_writes_nothing_outside_its_layer() {
    use tar::EntryType as E;
    for entries in [
        &[("../outside", E::Regular, "")][..],
        &[("d", E::Symlink, "/tmp"), ("d/outside", E::Regular, "")],
        &[("d", E::Symlink, ".."), ("d/outside", E::Regular, "")],
        &[("passwd", E::Link, "../../etc/passwd")],
        &[("d", E::Symlink, ".."), ("x", E::Link, "d/layer")],
        &[("null", E::Char, "")],
        &[("d/..", E::Directory, "")],
    ] {
        let (scratch, unpacked) = unpack_entries(entries);
        assert!(unpacked.is_err(), "{entries:?}");
        assert!(!scratch.path().join("outside").exists() && !Path::new("/tmp/outside").exists(), "{entries:?}");
    }
    let (scratch, unpacked) = unpack_entries(&[("/a/b", E::Regular, ""), ("./c", E::Directory, ""), ("c", E::Regular, "")]);
    unpacked.unwrap();
    assert!(scratch.path().join("layer/a/b").is_file() && scratch.path().join("layer/c").is_file());
}
