use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{AtFlags, CWD, FileType, Mode, XattrFlags};

use super::*;
use crate::image::{HealthConfig, ImageConfig};
use crate::store::OpenLayer;
use tar::EntryType as E;

fn store(scratch: &tempfile::TempDir, name: &str) -> ImageStore {
    ImageStore::open(scratch.path().join(name)).unwrap()
}

fn seal(store: &ImageStore, letter: char, write: impl FnOnce(&OpenLayer)) -> String {
    let lock = store.lock().unwrap();
    let layer = store.new_layer().unwrap();
    write(&layer);
    let digest = letter.to_string().repeat(64);
    store.seal(&lock, &layer, &digest, &format!("RUN {letter}")).unwrap();
    digest
}

fn publish(store: &ImageStore, name: &str, layers: &[&String]) {
    let mut config = ImageConfig { workdir: Some("/home/gem".into()), user: Some("gem".into()), ..ImageConfig::default() };
    config.env.insert("PATH".into(), "/bin=x".into());
    config.labels.insert("a".into(), "b".into());
    config.volumes.insert("/data".into());
    config.stop_signal = Some("SIGINT".into());
    config.shell = vec!["/bin/bash".into(), "-c".into()];
    let test = vec!["CMD-SHELL".to_owned(), "true".to_owned()];
    config.healthcheck = Some(HealthConfig { test, interval: 1_000_000_000, retries: 2, ..HealthConfig::default() });
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
    save(&from, &names(), None, &file).unwrap();
    let loaded = load(&to, &file, None).unwrap();

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
    save(&from, &names(), None, &again).unwrap();
    assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap());
    load(&to, &again, None).unwrap();
    assert_eq!(fs::read_dir(to.dir().join("layers")).unwrap().count(), 2);
}

#[test]
fn a_guest_is_added_to_what_is_saved_only() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (store(&scratch, "from"), store(&scratch, "to"));
    two_images(&from);
    let (file, again, program) = (scratch.path().join("a.tar"), scratch.path().join("b.tar"), scratch.path().join("program"));
    fs::write(&program, "the guest").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o600)).unwrap();
    let before = from.get(&names()[1]).unwrap();
    save(&from, &names(), Some(&program), &file).unwrap();
    save(&from, &names(), Some(&program), &again).unwrap();
    assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap(), "the same program gives the same file");
    assert_eq!(from.get(&names()[1]).unwrap().config, before.config);
    assert_eq!(fs::read_dir(from.dir().join("building")).unwrap().count(), 0);

    load(&to, &file, None).unwrap();
    let image = to.get(&names()[1]).unwrap();
    assert_eq!(image.layers.len(), before.layers.len() + 1);
    let config = &image.config;
    assert_eq!((config.entrypoint.join(" ").as_str(), config.cmd.len()), ("/.arenite/arenite guest standalone", 0));
    assert!(config.exposed_ports.contains("8080/tcp") && !config.env.contains_key("USER"));
    assert_eq!((&config.user, &config.workdir), (&before.config.user, &before.config.workdir));
    let dir = image.layers.last().unwrap().dir.join(".arenite");
    let about = fs::metadata(dir.join("aio")).unwrap();
    assert_eq!((about.mode() & 0o7777, about.nlink(), about.mtime()), (0o755, 2, 0));
    assert_eq!(fs::read(dir.join("arenite")).unwrap(), b"the guest");

    let missing = save(&from, &names(), Some(&scratch.path().join("absent")), &file);
    assert!(matches!(missing, Err(ImageError::Io { .. })));
    assert_eq!(fs::read_dir(from.dir().join("building")).unwrap().count(), 0);
}

#[test]
fn a_changed_or_incomplete_file_gives_no_layer() {
    let scratch = tempfile::tempdir().unwrap();
    let from = store(&scratch, "from");
    two_images(&from);
    let file = scratch.path().join("images.tar");
    save(&from, &names(), None, &file).unwrap();
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
        let error = load(&to, &damaged, None).unwrap_err();
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
    assert!(matches!(save(&from, &names(), None, &into), Err(ImageError::Io { .. })));
    let unknown = ["nothing".parse().unwrap()];
    let file = scratch.path().join("images.tar");
    assert!(matches!(save(&from, &unknown, None, &file), Err(ImageError::NotFound { .. })));
    let lock = from.lock().unwrap();
    assert!(matches!(save(&from, &names(), None, &file), Err(ImageError::Busy)));
    drop(lock);
    assert!(!file.exists());
}

/// An entry of a tar that a test writes: name, kind, target of a link, and content.
type Written<'a> = (&'a str, E, &'a str, &'a str);

fn header(name: &str, kind: E, link: &str, size: u64) -> tar::Header {
    let mut header = pack::plain_header(name, size);
    header.set_entry_type(kind);
    header.set_link_name_literal(link).unwrap();
    if kind == E::Directory {
        header.set_mode(0o755);
    }
    header.set_cksum();
    header
}

fn block(bytes: &[u8]) -> Vec<u8> {
    [bytes, &vec![0; pack::padding(bytes.len() as u64)]].concat()
}

fn tar_of(entries: &[Written<'_>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, kind, link, content) in entries {
        tar.extend_from_slice(header(name, *kind, link, content.len() as u64).as_bytes());
        tar.extend_from_slice(&block(content.as_bytes()));
    }
    tar.extend_from_slice(&[0; 1024]);
    tar
}

/// An entry with the records of a PAX header before it.
fn pax(records: &[(&str, &str)], header: &tar::Header, content: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in records {
        pack::push_record(&mut text, key.as_bytes(), value.as_bytes());
    }
    let mut extended = pack::plain_header("x", text.len() as u64);
    extended.set_entry_type(E::XHeader);
    extended.set_cksum();
    [extended.as_bytes(), &block(&text)[..], header.as_bytes(), &block(content)].concat()
}

/// Unpacks layers, lowest first; returns the directory that has them as `0`, `1`, and so on, and the last one's result.
fn unpack_layers(tars: &[Vec<u8>]) -> (tempfile::TempDir, io::Result<bool>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut lower = Vec::new();
    let mut result = Ok(false);
    for (index, tar) in tars.iter().enumerate() {
        let files = scratch.path().join(index.to_string());
        fs::create_dir(&files).unwrap();
        result = unpack::unpack(&mut &tar[..], &lower, &files);
        lower.push(files);
    }
    (scratch, result)
}

fn is_whiteout(path: &Path) -> bool {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_opaque(path: &Path) -> bool {
    rustix::fs::getxattr(path, "user.overlay.opaque", &mut [0; 8][..]).is_ok()
}

#[test]
fn a_hostile_layer_is_refused_and_writes_nothing_outside() {
    for entries in [
        &[("../outside", E::Regular, "", "")][..],
        &[("passwd", E::Link, "../../etc/passwd", "")],
        &[("d", E::Symlink, "..", ""), ("x", E::Link, "d/passwd", "")],
        &[("null", E::Char, "", "")],
        &[("x/sda", E::Block, "", "")],
        &[("d/..", E::Directory, "", "")],
        &[("", E::Regular, "", "x")],
        &[(".wh..", E::Regular, "", "")],
        &[(".wh...", E::Regular, "", "")],
        &[(".wh.", E::Regular, "", "")],
        &[("f", E::Regular, "", ""), ("f/x", E::Regular, "", "")],
        &[("d/x", E::Regular, "", ""), ("d", E::Regular, "", "")],
        &[("l", E::Symlink, "l", ""), ("l/x", E::Regular, "", "")],
        &[("x", E::Link, "missing", "")],
        &[("x", E::Link, "", "")],
        &[("x", E::new(b'M'), "", "")],
    ] {
        let (scratch, unpacked) = unpack_layers(&[tar_of(entries)]);
        assert!(unpacked.is_err(), "{entries:?}");
        assert!(!scratch.path().join("outside").exists(), "{entries:?}");
    }
    // Links inside the image are followed there, wherever they lead on the host.
    for target in ["/tmp", "..", "../../../tmp", "/"] {
        let (scratch, unpacked) =
            unpack_layers(&[tar_of(&[("d", E::Symlink, target, ""), ("d/outside-of-it", E::Regular, "", "")])]);
        unpacked.unwrap();
        assert!(!scratch.path().join("outside-of-it").exists() && !Path::new("/tmp/outside-of-it").exists());
        let inside = if target.ends_with("tmp") { "0/tmp/outside-of-it" } else { "0/outside-of-it" };
        assert!(scratch.path().join(inside).is_file(), "{target}");
    }
    let names = [("/a/b", E::Regular, "", "x"), ("./c", E::Directory, "", ""), ("c", E::Regular, "", "")];
    let (scratch, unpacked) = unpack_layers(&[tar_of(&names)]);
    unpacked.unwrap();
    assert!(scratch.path().join("0/a/b").is_file() && scratch.path().join("0/c").is_file());
    // Sandboxes have their own devices.
    let (scratch, unpacked) = unpack_layers(&[tar_of(&[("dev/null", E::Char, "", "")])]);
    unpacked.unwrap();
    assert!(!scratch.path().join("0/dev/null").exists());
}

#[test]
fn a_malformed_tar_is_refused() {
    let good = tar_of(&[("f", E::Regular, "", "content"), ("g", E::Regular, "", "more")]);
    for cut in [1, 511, 513, 520, 1024 + 3] {
        assert!(unpack_layers(&[good[..cut].to_vec()]).1.is_err(), "{cut}");
    }
    let mut changed = good.clone();
    changed[3] ^= 1;
    assert!(unpack_layers(&[changed]).1.is_err());
    let mut huge = header("f", E::Regular, "", 0);
    huge.set_size(u64::MAX);
    huge.set_cksum();
    assert!(unpack_layers(&[huge.as_bytes().to_vec()]).1.is_err());
    let file = header("f", E::Regular, "", 0);
    for records in [
        &[("size", "-1")][..],
        &[("size", "99999999999999999999")],
        &[("uid", "x")],
        &[("path", "../x")],
        &[("path", "a\0b")],
        &[("GNU.sparse.name", "f")],
        &[("GNU.sparse.size", "10"), ("GNU.sparse.map", "0")],
        &[("GNU.sparse.size", "10"), ("GNU.sparse.map", "0,5")],
        &[("GNU.sparse.size", "10"), ("GNU.sparse.map", "8,5")],
        &[("GNU.sparse.size", "10"), ("GNU.sparse.map", "18446744073709551615,1")],
        &[("GNU.sparse.numbytes", "1")],
        &[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "10")],
        &[("GNU.sparse.size", "99999999999999"), ("GNU.sparse.map", "")],
        &[("SCHILY.xattr.security.capability", "x")],
    ] {
        assert!(unpack_layers(&[pax(records, &file, b"")]).1.is_err(), "{records:?}");
    }
    let deep = format!("{}x", "d/".repeat(201));
    let long = "x/".repeat(2100);
    for path in [&deep, &long] {
        assert!(unpack_layers(&[pax(&[("path", path)], &file, b"")]).1.is_err());
    }
    let mut headers = Vec::new();
    for _ in 0..20 {
        headers.extend_from_slice(header("g", E::XGlobalHeader, "", 0).as_bytes());
    }
    assert!(unpack_layers(&[headers]).1.unwrap_err().to_string().contains("too many headers"));
}

#[test]
fn an_owner_that_no_sandbox_has_is_refused_with_the_reason() {
    for (field, id, is_possible) in
        [("uid", "65535", true), ("gid", "65535", true), ("uid", "65536", false), ("gid", "4294967296", false)]
    {
        let file = header("f", E::Regular, "", 0);
        let (scratch, unpacked) = unpack_layers(&[pax(&[(field, id)], &file, b"")]);
        match unpacked {
            Ok(_) => {
                let about = fs::metadata(scratch.path().join("0/f")).unwrap();
                assert!(is_possible && (about.uid() == 65_535) == (field == "uid"), "{field} {id}");
            }
            Err(error) => assert!(!is_possible && error.to_string().contains(id), "{error}"),
        }
    }
}

#[test]
fn whiteouts_hide_what_is_below_and_never_what_is_beside_them() {
    let below = tar_of(&[
        ("gone", E::Regular, "", "below"),
        ("d/", E::Directory, "", ""),
        ("d/x", E::Regular, "", "below"),
        ("again/", E::Directory, "", ""),
        ("again/old", E::Regular, "", "below"),
        ("early/", E::Directory, "", ""),
        ("late/", E::Directory, "", ""),
        ("cleared/", E::Directory, "", ""),
    ]);
    let above = tar_of(&[
        (".wh.gone", E::Regular, "", ""),
        (".wh.d", E::Regular, "", ""),
        // Removed and created again, in both orders, and without an entry.
        (".wh.again", E::Regular, "", ""),
        ("again/", E::Directory, "", ""),
        ("again/new", E::Regular, "", "above"),
        ("early/", E::Directory, "", ""),
        ("early/new", E::Regular, "", "above"),
        (".wh.early", E::Regular, "", ""),
        (".wh.late", E::Regular, "", ""),
        ("late/new", E::Regular, "", "above"),
        ("cleared/.wh..wh..opq", E::Regular, "", ""),
        ("kept", E::Regular, "", "above"),
        (".wh.kept", E::Regular, "", ""),
        // Notes of AUFS.
        (".wh..wh.plnk", E::Directory, "", ""),
        (".wh..wh.aufs", E::Regular, "", ""),
    ]);
    let (scratch, unpacked) = unpack_layers(&[below, above]);
    unpacked.unwrap();
    let top = scratch.path().join("1");
    for name in ["gone", "d"] {
        assert!(is_whiteout(&top.join(name)), "{name}");
        // The tar's: the layer is the same whenever it is unpacked.
        assert_eq!(fs::symlink_metadata(top.join(name)).unwrap().mtime(), 0, "{name}");
    }
    for name in ["again", "early", "late", "cleared"] {
        assert!(is_opaque(&top.join(name)), "{name}");
        assert_eq!(top.join(name).join("new").exists(), name != "cleared");
    }
    assert_eq!(fs::read_to_string(top.join("kept")).unwrap(), "above");
    assert!(!top.join(".wh..wh.aufs").exists());
    // And as sandboxes see it.
    let layers = ["0", "1"].map(|layer| scratch.path().join(layer));
    let view = crate::root::RootView::open(layers.iter().map(PathBuf::as_path)).unwrap();
    for (path, is_there) in [("gone", false), ("d/x", false), ("again/old", false), ("again/new", true), ("late/new", true)] {
        let found = view.resolve(Path::new(path), false).unwrap().entry;
        assert_eq!(!matches!(found, crate::root::Entry::Missing), is_there, "{path}");
    }
}

#[test]
fn a_layer_goes_through_the_links_of_the_layers_below() {
    let below =
        tar_of(&[("usr/bin/", E::Directory, "", ""), ("bin", E::Symlink, "usr/bin", ""), ("lib", E::Symlink, "usr/lib", "")]);
    let above = tar_of(&[("bin/tool", E::Regular, "", "x"), ("lib/", E::Directory, "", ""), ("lib/own", E::Regular, "", "x")]);
    let (scratch, unpacked) = unpack_layers(&[below, above]);
    assert!(unpacked.unwrap(), "it depends on the layers below");
    let top = scratch.path().join("1");
    assert!(top.join("usr/bin/tool").is_file() && fs::symlink_metadata(top.join("bin")).is_err());
    // A directory of the tar replaces the link, as in Docker.
    assert!(top.join("lib/own").is_file());
}

#[test]
fn sparse_files_and_long_names_are_read_in_each_form() {
    let name = "n".repeat(150);
    let mut old = tar::Header::new_gnu();
    old.set_path("old").unwrap();
    old.set_entry_type(E::GNUSparse);
    old.set_mode(0o644);
    old.set_uid(0);
    old.set_gid(0);
    old.set_mtime(0);
    old.set_size(4);
    let gnu = old.as_gnu_mut().unwrap();
    gnu.sparse[0].set_offset(1_000_000);
    gnu.sparse[0].set_length(4);
    gnu.realsize = *b"00007641100\0";
    gnu.set_is_extended(true);
    old.set_cksum();
    let mut more = tar::GnuExtSparseHeader::new();
    more.sparse[0].set_offset(1_048_576);
    more.sparse[0].set_length(0);
    let plain = header("f", E::Regular, "", 4);
    let with_map = header("g", E::Regular, "", 516);
    let map = block(b"1\n1000000\n4\n");
    let tar = [
        &[old.as_bytes(), &more.as_bytes()[..], &block(b"data")].concat()[..],
        &pax(
            &[
                ("GNU.sparse.name", "pax0"),
                ("GNU.sparse.size", "1048576"),
                ("GNU.sparse.offset", "1000000"),
                ("GNU.sparse.numbytes", "4"),
            ],
            &plain,
            b"data",
        ),
        &pax(&[("GNU.sparse.name", "pax01"), ("GNU.sparse.size", "1048576"), ("GNU.sparse.map", "1000000,4")], &plain, b"data"),
        &pax(
            &[
                ("GNU.sparse.major", "1"),
                ("GNU.sparse.minor", "0"),
                ("GNU.sparse.name", "pax1"),
                ("GNU.sparse.realsize", "1048576"),
            ],
            &with_map,
            &[&map[..], b"data"].concat(),
        ),
        header("././@LongLink", E::GNULongName, "", name.len() as u64 + 1).as_bytes(),
        &block(format!("{name}\0").as_bytes()),
        header("cut", E::Regular, "", 4).as_bytes(),
        &block(b"data"),
        // What has no content has no size.
        header("link", E::Symlink, "old", 100).as_bytes(),
        header("zeros", E::Regular, "", 1 << 20).as_bytes(),
        &vec![0; 1 << 20],
    ]
    .concat();
    let (scratch, unpacked) = unpack_layers(&[tar]);
    unpacked.unwrap();
    let top = scratch.path().join("0");
    for file in ["old", "pax0", "pax01", "pax1"] {
        let content = fs::read(top.join(file)).unwrap();
        assert!(content.len() >= 1_048_576 - 64 && &content[1_000_000..1_000_004] == b"data", "{file} {}", content.len());
        assert!(content[..1_000_000].iter().all(|byte| *byte == 0), "{file}");
        assert!(fs::metadata(top.join(file)).unwrap().blocks() < 100, "{file} has no holes");
    }
    assert_eq!(fs::read(top.join(&name)).unwrap(), b"data");
    let zeros = fs::metadata(top.join("zeros")).unwrap();
    assert_eq!((zeros.len(), zeros.blocks()), (1 << 20, 0));
}

#[test]
fn attributes_of_this_host_do_not_come_from_a_layer() {
    let file = header("f", E::Regular, "", 0);
    let capability = "\u{1}\0\0\u{2}\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let records = [
        ("SCHILY.xattr.user.kept", "x"),
        ("SCHILY.xattr.user.overlay.redirect", "/etc"),
        ("SCHILY.xattr.trusted.overlay.opaque", "y"),
        ("SCHILY.xattr.security.selinux", "x"),
        ("SCHILY.xattr.security.capability", capability),
    ];
    let (scratch, unpacked) = unpack_layers(&[pax(&records, &file, b"")]);
    unpacked.unwrap();
    let mut names = [0; 256];
    let length = rustix::fs::listxattr(scratch.path().join("0/f"), &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    assert!(names.contains("user.kept") && names.contains("security.capability"), "{names}");
    assert!(!names.contains("overlay") && !names.contains("selinux"), "{names}");
}

/// An archive as `docker save` writes it. `newer`: parts are named by their digests, and there is an `index.json`.
fn docker_archive(newer: bool, tags: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    let diffs: Vec<String> = layers.iter().map(|layer| format!("\"sha256:{}\"", sha256(layer))).collect();
    let config = format!(
        r#"{{"architecture": "{}", "os": "linux", "config": {{"User": "1000:1000", "Env": ["PATH=/bin"], "WorkingDir": "/srv",
        "Entrypoint": ["/bin/app"], "Cmd": ["--help"], "Labels": null, "ExposedPorts": {{"80/tcp": {{}}}}, "Volumes": null}},
        "rootfs": {{"type": "layers", "diff_ids": [{}]}}, "history": null}}"#,
        oci::ARCHITECTURE,
        diffs.join(",")
    );
    let config_name =
        if newer { format!("blobs/sha256/{}", sha256(config.as_bytes())) } else { format!("{}.json", sha256(config.as_bytes())) };
    let mut tar = Vec::new();
    let mut add = |name: &str, kind: E, link: &str, content: &[u8]| {
        tar.extend_from_slice(header(name, kind, link, content.len() as u64).as_bytes());
        tar.extend_from_slice(&block(content));
    };
    let mut names: Vec<String> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let name = if newer { format!("blobs/sha256/{}", sha256(layer)) } else { format!("id{index}/layer.tar") };
        match layers[..index].iter().position(|other| other == layer) {
            Some(first) if !newer => add(&name, E::Symlink, &format!("../id{first}/layer.tar"), b""),
            _ => add(&name, E::Regular, "", layer),
        }
        names.push(format!("{name:?}"));
    }
    add(&config_name, E::Regular, "", config.as_bytes());
    let manifest = format!(r#"[{{"Config": "{config_name}", "RepoTags": {tags}, "Layers": [{}]}}]"#, names.join(","));
    add("manifest.json", E::Regular, "", manifest.as_bytes());
    if newer {
        add("index.json", E::Regular, "", br#"{"schemaVersion": 2, "manifests": []}"#);
    }
    tar.extend_from_slice(&[0; 1024]);
    tar
}

#[test]
fn what_docker_saves_is_loaded_in_both_forms() {
    let scratch = tempfile::tempdir().unwrap();
    let below = tar_of(&[("etc/", E::Directory, "", ""), ("etc/x", E::Regular, "", "below")]);
    let empty = vec![0; 1024];
    for newer in [false, true] {
        let store = store(&scratch, &format!("store-{newer}"));
        let file = scratch.path().join("saved.tar");
        let layers = [below.clone(), empty.clone(), empty.clone()];
        fs::write(&file, docker_archive(newer, r#"["docker.io/library/app:latest", "r.example:5000/app:1"]"#, &layers)).unwrap();
        let loaded = load(&store, &file, None).unwrap();
        assert_eq!(loaded.iter().map(|image| image.name.as_str()).collect::<Vec<_>>(), ["app", "r.example:5000/app:1"]);
        let image = store.get(&"app:latest".parse().unwrap()).unwrap();
        assert_eq!(image.config.user.as_deref(), Some("1000:1000"));
        assert_eq!(
            (&image.config.entrypoint[..], &image.config.cmd[..]),
            (&["/bin/app".to_owned()][..], &["--help".to_owned()][..])
        );
        assert!(image.config.exposed_ports.contains("80/tcp") && image.config.workdir.as_deref() == Some("/srv"));
        // The same directory twice is refused by the kernel.
        assert_ne!(image.layers[1].digest, image.layers[2].digest);

        // Another image shares the layer by its content, although it lies on another one.
        let other = tar_of(&[("other/", E::Directory, "", "")]);
        fs::write(&file, docker_archive(newer, "null", &[other, below.clone()])).unwrap();
        assert!(load(&store, &file, None).unwrap_err().to_string().contains("no name"));
        let named = load(&store, &file, Some(&"other".parse().unwrap())).unwrap();
        assert_eq!(named[0].layers[1].digest, image.layers[0].digest);
    }
}

#[test]
fn a_layer_that_takes_directories_over_belongs_to_those_below() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(&scratch, "store");
    let above = tar_of(&[("srv/x", E::Regular, "", "above")]);
    let mut open = header("srv/", E::Directory, "", 0);
    open.set_mode(0o1777);
    open.set_cksum();
    let open = [open.as_bytes(), &[0; 1024][..]].concat();
    let closed = tar_of(&[("srv/", E::Directory, "", "")]);
    let mut tops = Vec::new();
    for (name, below) in [("open", open), ("closed", closed)] {
        let file = scratch.path().join("saved.tar");
        fs::write(&file, docker_archive(true, &format!(r#"["{name}:1"]"#), &[below, above.clone()])).unwrap();
        tops.push(load(&store, &file, None).unwrap()[0].layers[1].clone());
    }
    let modes = tops.iter().map(|layer| fs::metadata(layer.dir.join("srv")).unwrap().mode() & 0o7777).collect::<Vec<_>>();
    assert_eq!(modes, [0o1777, 0o755]);
    assert_ne!(tops[0].digest, tops[1].digest);
}

#[test]
fn layouts_of_other_tools_are_loaded_from_a_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let from = store(&scratch, "from");
    two_images(&from);
    let file = scratch.path().join("images.tar");
    save(&from, &names()[..1], None, &file).unwrap();
    let layout = scratch.path().join("layout");
    tar::Archive::new(fs::File::open(&file).unwrap()).unpack(&layout).unwrap();
    // As other tools write it: an index in the index, a tag in place of the name, and no manifest.json.
    fs::remove_file(layout.join("manifest.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let mut manifest = index["manifests"][0].clone();
    manifest["platform"] = serde_json::json!({"os": "linux", "architecture": oci::ARCHITECTURE});
    manifest.as_object_mut().unwrap().remove("annotations");
    let mut other = manifest.clone();
    other["platform"]["architecture"] = "s390x".into();
    let proof =
        serde_json::json!({"digest": manifest["digest"], "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}});
    let inner = serde_json::to_vec(&serde_json::json!({"schemaVersion": 2, "manifests": [other, proof, manifest]})).unwrap();
    fs::write(layout.join("blobs/sha256").join(sha256(&inner)), &inner).unwrap();
    let outer = |digest: &str, media_type: &str| {
        let descriptor = serde_json::json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": inner.len()});
        fs::write(layout.join("index.json"), serde_json::json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string())
            .unwrap();
    };
    let to = store(&scratch, "to");
    outer(&sha256(&inner), oci::INDEX);
    assert!(load(&to, &layout, None).unwrap_err().to_string().contains("no name"));
    let loaded = load(&to, &layout, Some(&"named:1".parse().unwrap())).unwrap();
    assert_eq!(loaded[0].layers[0].created_by, "RUN a");

    // Parts are opened inside the layout only.
    let outside = scratch.path().join("outside");
    fs::write(&outside, &inner).unwrap();
    fs::remove_file(layout.join("index.json")).unwrap();
    symlink(&outside, layout.join("index.json")).unwrap();
    assert!(load(&to, &layout, None).unwrap_err().to_string().contains("index.json"));
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("saved.tar");
    let bytes = docker_archive(false, r#"["app:1"]"#, &[vec![0; 1024]]);
    let at = bytes.windows(oci::ARCHITECTURE.len()).position(|window| window == oci::ARCHITECTURE.as_bytes()).unwrap();
    let mut changed = bytes;
    changed[at..at + 3].copy_from_slice(b"xyz");
    fs::write(&file, changed).unwrap();
    // Its config has another digest then.
    assert!(load(&store(&scratch, "store"), &file, None).unwrap_err().to_string().contains("SHA-256"));
    let index: oci::Index = serde_json::from_str(
        r#"{"schemaVersion": 2, "manifests": [{"digest": "x", "size": 1, "platform": {"os": "linux", "architecture": "s390x"}}]}"#,
    )
    .unwrap();
    assert!(index.for_this_host().unwrap_err().contains("linux/s390x"));
}

#[test]
fn a_layer_that_unpacks_to_too_much_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let tar = tar_of(&[("f", E::Regular, "", "content")]);
    let mut bounded = install::Bounded::new(&tar[..], 600);
    let files = scratch.path().join("files");
    fs::create_dir(&files).unwrap();
    let error = unpack::unpack(&mut bounded, &[], &files).unwrap_err();
    assert!(error.to_string().contains("bytes without compression"), "{error}");
}
