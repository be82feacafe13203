use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use super::*;

/// Builds a tar from names, kinds, and contents or targets.
fn tar_of(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // Not by `set_path`, which refuses hostile names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o4750);
        header.set_uid(1000);
        header.set_gid(7);
        header.set_mtime(1_000_000_000);
        let is_file = *kind == EntryType::Regular;
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_size(if is_file { content.len() as u64 } else { 0 });
        header.set_cksum();
        builder.append(&header, if is_file { content.as_bytes() } else { &[] }).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Unpacks into `/opt` of an image with a link `/opt/link` to `/`.
fn unpacked(archive: &[u8]) -> (tempfile::TempDir, io::Result<()>) {
    let scratch = tempfile::tempdir().unwrap();
    let lower = scratch.path().join("lower");
    fs::create_dir_all(lower.join("opt")).unwrap();
    symlink("/", lower.join("opt/link")).unwrap();
    fs::create_dir(scratch.path().join("new")).unwrap();
    let file = scratch.path().join("archive");
    fs::write(&file, archive).unwrap();
    let file: OwnedFd = File::open(file).unwrap().into();
    let FoundPacking::Some(packing) = packing(&file).unwrap() else { panic!("not found to be an archive") };
    let mut target = LayerWriter::open(&[lower], &scratch.path().join("new")).unwrap();
    let result = unpack(&mut target, &["opt".into()], &file, packing, ((5, 6), None));
    (scratch, result)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn archives_keep_modes_owners_times_and_links() {
    let archive = tar_of(&[
        ("./", EntryType::Directory, ""),
        ("d/", EntryType::Directory, ""),
        ("d/f", EntryType::Regular, "text"),
        ("d/again", EntryType::Link, "d/f"),
        ("d/l", EntryType::Symlink, "/etc/passwd"),
        (".wh.kept", EntryType::Regular, ""),
    ]);
    for archive in [archive.clone(), gzip(&archive)] {
        let (scratch, result) = unpacked(&archive);
        result.unwrap();
        let opt = scratch.path().join("new/opt");
        let meta = fs::metadata(opt.join("d/f")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.mtime()), (0o4750, 1000, 7, 1_000_000_000));
        assert_eq!(fs::metadata(opt.join("d/again")).unwrap().ino(), meta.ino());
        assert_eq!(fs::metadata(opt.join("d")).unwrap().mtime(), 1_000_000_000);
        assert_eq!(fs::read_link(opt.join("d/l")).unwrap(), Path::new("/etc/passwd"));
        // It is a name as any other.
        assert!(opt.join(".wh.kept").exists());
        // The destination is the image's own.
        assert_eq!(fs::metadata(&opt).unwrap().uid(), 0);
    }
}

#[test]
fn nothing_is_written_outside_the_layer() {
    for (entries, message) in [
        (&[("../x", EntryType::Regular, "x")][..], "leads out"),
        (&[("a/../../x", EntryType::Regular, "x")], "leads out"),
        (&[("d", EntryType::Char, "")], "device"),
        (&[("d", EntryType::Block, "")], "device"),
        (&[("p", EntryType::Fifo, "")], "FIFO"),
        (&[("l", EntryType::Link, "/etc/passwd")], "not in the archive"),
        (&[("l", EntryType::Link, "../../x")], "leads out"),
        (&[("link", EntryType::Directory, ""), ("d", EntryType::Directory, ""), ("d", EntryType::Regular, "x")], "directory"),
    ] {
        let (_, result) = unpacked(&tar_of(entries));
        let error = result.unwrap_err().to_string();
        assert!(error.contains(message), "{entries:?}: {error}");
    }
    // A link in the image or in the archive leads to the image's own root.
    let archive = tar_of(&[
        ("link/etc/a", EntryType::Regular, "a"),
        ("up", EntryType::Symlink, "../../../../.."),
        ("up/b", EntryType::Regular, "b"),
    ]);
    let (scratch, result) = unpacked(&archive);
    result.unwrap();
    assert_eq!(fs::read_to_string(scratch.path().join("new/etc/a")).unwrap(), "a");
    assert_eq!(fs::read_to_string(scratch.path().join("new/b")).unwrap(), "b");
    assert!(!scratch.path().join("b").exists());
}

#[test]
fn only_archives_are_unpacked() {
    let scratch = tempfile::tempdir().unwrap();
    let kind = |bytes: &[u8]| {
        let path = scratch.path().join("f");
        fs::write(&path, bytes).unwrap();
        packing(&File::open(path).unwrap().into()).unwrap()
    };
    let archive = tar_of(&[("f", EntryType::Regular, "x")]);
    assert_eq!(kind(&archive), FoundPacking::Some(Packing::Tar));
    assert_eq!(kind(&gzip(&archive)), FoundPacking::Some(Packing::GzipTar));
    for plain in [&b""[..], b"text", &[0; 1024], &[b'x'; 1024], &gzip(b"text"), b"\x1f\x8b broken", &archive[..511]] {
        assert_eq!(kind(plain), FoundPacking::None);
    }
    assert_eq!(kind(b"BZh9..."), FoundPacking::Unsupported("bzip2"));
    assert_eq!(kind(b"\xfd7zXZ\0..."), FoundPacking::Unsupported("xz"));
    assert_eq!(kind(b"\x28\xb5\x2f\xfd..."), FoundPacking::Unsupported("zstd"));
}
