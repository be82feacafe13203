use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// Layers in a scratch directory, lowest first.
struct Layers {
    scratch: tempfile::TempDir,
    count: usize,
}

impl Layers {
    fn new(count: usize) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        for n in 0..count {
            fs::create_dir(scratch.path().join(n.to_string())).unwrap();
        }
        Self { scratch, count }
    }

    fn path(&self, layer: usize, name: &str) -> PathBuf {
        let path = self.scratch.path().join(layer.to_string()).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn file(&self, layer: usize, name: &str, content: &str) {
        fs::write(self.path(layer, name), content).unwrap();
    }

    fn whiteout(&self, layer: usize, name: &str) {
        let kind = FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(layer, name), kind, Mode::empty(), 0).unwrap();
    }

    fn opaque(&self, layer: usize, name: &str) {
        let path = self.path(layer, name);
        fs::create_dir_all(&path).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.overlay.opaque", b"y", flags).unwrap();
    }

    fn view(&self) -> RootView {
        let dirs: Vec<_> = (0..self.count).map(|n| self.scratch.path().join(n.to_string())).collect();
        RootView::open(dirs.iter().map(PathBuf::as_path)).unwrap()
    }
}

fn read(view: &RootView, path: &str) -> Option<String> {
    let content = view.read(Path::new(path), 1000).unwrap();
    content.map(|c| String::from_utf8(c).unwrap())
}

#[test]
fn upper_layers_hide_lower_ones_as_an_overlay_does() {
    let layers = Layers::new(3);
    layers.file(0, "d/low", "0");
    layers.file(0, "d/both", "0");
    layers.file(0, "gone/x", "0");
    layers.file(0, "again/old", "0");
    layers.file(0, "opaque/old", "0");
    layers.file(0, "becomes-file/x", "0");
    layers.file(0, "becomes-dir", "0");
    layers.file(1, "d/both", "1");
    layers.whiteout(1, "gone");
    layers.whiteout(1, "again");
    layers.opaque(1, "opaque");
    layers.file(1, "opaque/new", "1");
    layers.file(1, "becomes-file", "1");
    layers.file(1, "becomes-dir/x", "1");
    layers.file(2, "again/new", "2");
    let view = layers.view();
    for (path, content) in [
        ("/d/low", Some("0")),
        ("d/both", Some("1")),
        ("/gone/x", None),
        ("/again/old", None),
        ("/again/new", Some("2")),
        ("/opaque/old", None),
        ("/opaque/new", Some("1")),
        ("/becomes-file", Some("1")),
        ("/becomes-dir/x", Some("1")),
        ("/d", None),
    ] {
        assert_eq!(read(&view, path).as_deref(), content, "{path}");
    }
    assert!(view.read(Path::new("/becomes-file/x"), 9).is_err());
    assert!(view.read(Path::new("/d/both"), 0).is_err());
}

#[test]
fn links_stay_inside_the_image() {
    let layers = Layers::new(2);
    let outside = layers.scratch.path().join("outside");
    fs::write(&outside, "host").unwrap();
    layers.file(0, "etc/real", "image");
    symlink("/etc", layers.path(0, "abs")).unwrap();
    symlink("../../../../../../etc", layers.path(0, "a/b/up")).unwrap();
    symlink(&outside, layers.path(0, "host")).unwrap();
    symlink("/", layers.path(1, "top")).unwrap();
    symlink(".", layers.path(1, "dot")).unwrap();
    symlink("loop", layers.path(1, "loop")).unwrap();
    symlink("real", layers.path(1, "etc/alias")).unwrap();
    let view = layers.view();
    for (given, path) in [
        ("abs/real", "/etc/real"),
        ("a/b/up/real", "/etc/real"),
        ("/a/b/up/../etc/./alias", "/etc/real"),
        ("top/top/dot/etc", "/etc"),
        ("..", "/"),
        ("../../etc", "/etc"),
        ("top", "/"),
        ("new/../etc/real", "/etc/real"),
        ("abs/new/deep/../file", "/etc/new/file"),
        ("new/deeper/../../../x", "/x"),
    ] {
        let resolved = view.resolve(Path::new(given), true).unwrap();
        assert_eq!(resolved.path(), Path::new(path), "{given}");
    }
    assert_eq!(read(&view, "/host"), None);
    assert!(matches!(view.resolve(Path::new("top"), false).unwrap().entry, Entry::Symlink(..)));
    assert!(matches!(view.resolve(Path::new("new/x"), true).unwrap().entry, Entry::Missing));
    assert!(matches!(view.resolve(Path::new("a/new/.."), true).unwrap().entry, Entry::Directory(_)));
    assert!(view.resolve(Path::new("loop/x"), true).is_err());
    for n in 0..50 {
        symlink(format!("chain{}", n + 1), layers.path(1, &format!("chain{n}"))).unwrap();
    }
    layers.file(1, "chain50", "end");
    assert_eq!(read(&view, "/chain10").as_deref(), Some("end"));
    assert!(view.resolve(Path::new("/chain9"), true).is_err());
    assert!(view.resolve(Path::new("etc/real/x"), true).is_err());
    assert!(view.resolve(Path::new(&"x/".repeat(4000)), true).is_err());
}

#[test]
fn a_directory_of_one_layer_lists_no_whiteouts() {
    let layers = Layers::new(2);
    layers.whiteout(0, "d/gone");
    layers.file(0, "d/kept", "");
    layers.whiteout(1, "e/gone");
    layers.opaque(1, "e");
    layers.file(0, "e/below", "");
    let names = |path: &str| match layers.view().open_node(Path::new(path)).unwrap() {
        Some(Opened::Directory(directory)) => directory.names().unwrap(),
        other => panic!("{path} is {other:?}"),
    };
    assert_eq!(names("/d"), ["kept"]);
    assert!(names("/e").is_empty());
}
