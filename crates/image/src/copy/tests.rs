use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use rustix::fs::FileType;

use super::*;

/// A context, two layers below and a new layer.
struct Bench {
    scratch: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        for dir in ["context", "0", "1"] {
            fs::create_dir(scratch.path().join(dir)).unwrap();
        }
        Self { scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.scratch.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn file(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn plan(sources: &[&str], destination: &str) -> CopyPlan {
        CopyPlan {
            sources: sources.iter().map(|path| PlannedSource::Path(path.into())).collect(),
            destination: Path::new("/").join(destination),
            into_directory: destination.ends_with('/') || sources.len() > 1,
            owner: Some((0, 0)),
            created_owner: (0, 0),
            chmod: None,
            exclude: IgnoreFile::default(),
            unpacks: false,
            max_unpacked_bytes: None,
        }
    }

    fn origin(&self) -> Origin {
        Origin::Context { dir: self.scratch.path().join("context"), ignore: IgnoreFile::default() }
    }

    fn run(&self, plan: &CopyPlan) -> Result<String, String> {
        let new = self.scratch.path().join("new");
        remove(&new);
        fs::create_dir(&new).unwrap();
        let below: Vec<_> = ["0", "1"].iter().map(|n| self.scratch.path().join(n)).collect();
        let sources = Sources::read(&self.origin(), plan).map_err(|e| e.reason)?;
        sources.copy(plan, &below, &new).map_err(|e| e.reason)?;
        Ok(sources.digest("below", plan))
    }

    fn copy(&self, sources: &[&str], destination: &str) -> Result<String, String> {
        self.run(&Self::plan(sources, destination))
    }

    /// All entries of the new layer: paths, `/` after directories, `->` for links.
    fn made(&self) -> Vec<String> {
        fn list(dir: &Path, prefix: &str, out: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    out.push(format!("{name}/"));
                    list(&entry.path(), &format!("{name}/"), out);
                } else if kind.is_symlink() {
                    out.push(format!("{name}->{}", fs::read_link(entry.path()).unwrap().display()));
                } else {
                    out.push(name);
                }
            }
        }
        let mut out = Vec::new();
        list(&self.scratch.path().join("new"), "", &mut out);
        out.sort();
        out
    }
}

fn remove(dir: &Path) {
    crate::remove_tree(dir).unwrap();
}

#[test]
fn a_destination_means_what_it_means_in_a_dockerfile() {
    let bench = Bench::new();
    bench.file("context/f", "x");
    bench.file("context/d/a", "x");
    bench.file("context/d/sub/b", "x");
    bench.file("0/etc/there", "x");
    let cases: &[(&[&str], &str, &[&str])] = &[
        (&["f"], "x", &["x"]),
        (&["f"], "x/", &["x/", "x/f"]),
        (&["f"], "etc", &["etc/", "etc/f"]),
        (&["f"], "etc/there", &["etc/", "etc/there"]),
        (&["/f"], "deep/er/name", &["deep/", "deep/er/", "deep/er/name"]),
        (&["d"], "x", &["x/", "x/a", "x/sub/", "x/sub/b"]),
        (&["d/"], "etc/", &["etc/", "etc/a", "etc/sub/", "etc/sub/b"]),
        (&["f", "d"], "x", &["x/", "x/a", "x/f", "x/sub/", "x/sub/b"]),
        (&["."], "/", &["d/", "d/a", "d/sub/", "d/sub/b", "f"]),
    ];
    for (sources, destination, made) in cases {
        bench.copy(sources, destination).unwrap();
        assert_eq!(bench.made(), *made, "{sources:?} {destination}");
    }
    let error = bench.copy(&["d"], "etc/there").unwrap_err();
    assert!(error.contains("not a directory in the image"), "{error}");
    assert!(bench.copy(&["f"], "etc/there/x").is_err());
    bench.file("0/y/a/z", "x");
    let error = bench.copy(&["d"], "y").unwrap_err();
    assert!(error.contains("is a directory in the image"), "{error}");
}

#[test]
fn links_of_the_image_lead_to_places_in_the_image() {
    let bench = Bench::new();
    bench.file("context/f", "new");
    bench.file("context/tree/lib/f", "new");
    bench.file("outside/f", "host");
    let outside = bench.path("outside");
    fs::create_dir_all(bench.path("0/usr/lib/")).unwrap();
    symlink("usr/lib", bench.path("0/lib")).unwrap();
    symlink(&outside, bench.path("1/app")).unwrap();
    symlink("../../../../..", bench.path("1/up")).unwrap();
    symlink("usr/lib/target", bench.path("1/file-link")).unwrap();
    symlink("/nowhere", bench.path("1/usr/lib/f")).unwrap();

    bench.copy(&["f"], "app/").unwrap();
    let inside: String = outside.to_string_lossy()[1..].to_owned();
    assert!(bench.made().contains(&format!("{inside}/f")), "{:?}", bench.made());
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "host");

    bench.copy(&["f"], "up/").unwrap();
    assert_eq!(bench.made(), ["f"]);
    // The tree's own `lib` goes to the target of the image's link; a link in place of a file is replaced.
    bench.copy(&["tree"], "/").unwrap();
    assert_eq!(bench.made(), ["usr/", "usr/lib/", "usr/lib/f"]);
    bench.copy(&["f"], "file-link").unwrap();
    assert_eq!(bench.made(), ["usr/", "usr/lib/", "usr/lib/target"]);
}

#[test]
fn a_link_copied_before_does_not_carry_the_next_source_away() {
    let bench = Bench::new();
    bench.file("outside/f", "host");
    symlink(bench.path("outside"), bench.path("context/one/way")).unwrap();
    bench.file("context/two/way/f", "new");
    bench.copy(&["one", "two"], "x/").unwrap();
    assert_eq!(fs::read_to_string(bench.path("outside/f")).unwrap(), "host");
    let inside = bench.path("outside").to_string_lossy()[1..].to_owned();
    assert!(bench.made().contains(&format!("{inside}/f")), "{:?}", bench.made());
}

#[test]
fn nothing_outside_the_context_is_read() {
    let bench = Bench::new();
    bench.file("secret", "x");
    bench.file("context/real/f", "x");
    symlink("../secret", bench.path("context/relative")).unwrap();
    symlink("/etc/passwd", bench.path("context/absolute")).unwrap();
    symlink("real", bench.path("context/inside")).unwrap();
    for given in ["../secret", "relative", "absolute", "real/../../secret", "/../secret"] {
        let error = bench.copy(&[given], "x").unwrap_err();
        assert!(error.contains("leads out of the context"), "{given}: {error}");
    }
    let error = bench.copy(&["missing"], "x").unwrap_err();
    assert!(error.contains("is not in the context"), "{error}");
    // A link on the way is followed inside the context; those found in a directory are copied as they are.
    bench.copy(&["inside/f"], "x").unwrap();
    assert_eq!(bench.made(), ["x"]);
    bench.copy(&["."], "x").unwrap();
    assert!(bench.made().contains(&"x/absolute->/etc/passwd".to_owned()));
}

#[test]
fn owners_and_modes_are_the_images_for_what_it_has_and_the_steps_for_what_is_new() {
    let bench = Bench::new();
    bench.file("context/d/run", "x");
    fs::set_permissions(bench.path("context/d/run"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(bench.path("context/d"), PermissionsExt::from_mode(0o711)).unwrap();
    chown(bench.path("context/d/run"), Some(4242), Some(4242)).unwrap();
    fs::create_dir_all(bench.path("0/home/gem/")).unwrap();
    chown(bench.path("0/home/gem"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(bench.path("0/home/gem"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::set_permissions(bench.path("1"), PermissionsExt::from_mode(0o751)).unwrap();

    let of = |name: &str| {
        let meta = fs::symlink_metadata(bench.path("new").join(name)).unwrap();
        (meta.uid(), meta.gid(), meta.mode() & 0o7777)
    };
    bench.copy(&["d"], "home/gem/new/d").unwrap();
    assert_eq!(of("."), (0, 0, 0o751));
    assert_eq!(of("home/gem"), (1000, 1000, 0o700));
    assert_eq!(of("home/gem/new"), (0, 0, 0o755));
    assert_eq!(of("home/gem/new/d"), (0, 0, 0o711));
    assert_eq!(of("home/gem/new/d/run"), (0, 0, 0o755));

    let mut plan = Bench::plan(&["d"], "home/gem");
    plan.owner = Some((1000, 7));
    plan.chmod = Some(0o4640);
    bench.run(&plan).unwrap();
    assert_eq!(of("home/gem"), (1000, 1000, 0o700));
    assert_eq!(of("home/gem/run"), (1000, 7, 0o4640));
    plan.destination = "/new".into();
    bench.run(&plan).unwrap();
    assert_eq!(of("new"), (1000, 7, 0o4750));
}

#[test]
fn the_digest_follows_all_that_the_outcome_depends_on() {
    let bench = Bench::new();
    bench.file("context/a", "x");
    bench.file("context/b", "x");
    let first = bench.copy(&["a"], "x/").unwrap();
    assert_eq!(bench.copy(&["a"], "x/").unwrap(), first);
    let mut seen = vec![first];
    let mut differs = |digest: String| {
        assert!(!seen.contains(&digest));
        seen.push(digest);
    };
    differs(bench.copy(&["b"], "x/").unwrap());
    differs(bench.copy(&["a"], "x").unwrap());
    differs(bench.copy(&["a", "b"], "x/").unwrap());
    let mut plan = Bench::plan(&["a"], "x/");
    plan.owner = Some((1, 0));
    differs(bench.run(&plan).unwrap());
    plan.chmod = Some(0o600);
    differs(bench.run(&plan).unwrap());
    bench.file("context/a", "y");
    differs(bench.copy(&["a"], "x/").unwrap());
}

#[test]
fn a_source_that_changes_meanwhile_is_refused() {
    let bench = Bench::new();
    bench.file("context/a", "x");
    let plan = Bench::plan(&["a"], "x");
    let sources = Sources::read(&bench.origin(), &plan).unwrap();
    bench.file("context/a", "other");
    fs::create_dir(bench.path("new")).unwrap();
    let error = sources.copy(&plan, &[bench.path("0")], &bench.path("new")).unwrap_err();
    assert!(error.reason.contains("changed"), "{}", error.reason);
}

#[test]
fn files_of_layers_are_seen_as_in_a_sandbox_and_keep_their_owners() {
    let bench = Bench::new();
    for (name, content) in
        [("a/x/old", "old"), ("a/x/gone", "gone"), ("a/whole/lower", "l"), ("b/x/old", "new"), ("b/whole/upper", "u")]
    {
        bench.file(name, content);
    }
    chown(bench.path("b/x/old"), Some(7), Some(8)).unwrap();
    symlink("/x", bench.path("b/link")).unwrap();
    let whiteout = bench.path("b/x/gone");
    rustix::fs::mknodat(rustix::fs::CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    let opaque = rustix::fs::open(bench.path("b/whole"), OFlags::RDONLY, Mode::empty()).unwrap();
    rustix::fs::fsetxattr(&opaque, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    let layers = vec![bench.scratch.path().join("a"), bench.scratch.path().join("b")];
    let origin = Origin::Layers { layers, name: "\"b\"".to_owned() };
    let mut plan = Bench::plan(&["/link", "/who*/*"], "new/");
    plan.owner = None;
    let new = bench.scratch.path().join("new");
    fs::create_dir(&new).unwrap();
    let sources = Sources::read(&origin, &plan).unwrap();
    let digest = sources.digest("below", &plan);
    sources.copy(&plan, &[], &new).unwrap();
    assert_eq!(bench.made(), ["new/", "new/old", "new/upper"]);
    let meta = fs::metadata(new.join("new/old")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (7, 8));
    // An owner is a part of what is copied.
    chown(bench.path("b/x/old"), Some(9), Some(8)).unwrap();
    assert_ne!(Sources::read(&origin, &plan).unwrap().digest("below", &plan), digest);
    for missing in ["/x/gone", "/whole/lower", "/nothing"] {
        let error = Sources::read(&origin, &Bench::plan(&[missing], "new")).unwrap_err();
        assert!(error.reason.contains("of \"b\""), "{missing}: {}", error.reason);
    }
}

#[test]
fn patterns_never_leave_the_context() {
    let bench = Bench::new();
    bench.file("secret", "x");
    bench.file("context/a", "a");
    bench.file("context/.hidden", "h");
    symlink("..", bench.path("context/up")).unwrap();
    for pattern in ["../*", "up/*", "/../s*", "*/secret", "nothing*", "["] {
        let error = bench.copy(&[pattern], "x/").unwrap_err();
        assert!(error.contains("matches no file") || error.contains("not valid"), "{pattern}: {error}");
    }
    bench.copy(&["?", ".h*"], "x/").unwrap();
    assert_eq!(bench.made(), ["x/", "x/.hidden", "x/a"]);
}

#[test]
fn created_directories_are_the_owners_of_chown_and_not_like_their_source() {
    let bench = Bench::new();
    bench.file("context/d/sub/f", "x");
    fs::set_permissions(bench.path("context/d"), fs::Permissions::from_mode(0o700)).unwrap();
    let about = |path: &str| {
        let meta = fs::metadata(bench.scratch.path().join("new").join(path)).unwrap();
        (meta.uid(), meta.mode() & 0o7777)
    };
    let owned = |destination: &str| CopyPlan { owner: Some((5, 6)), created_owner: (5, 6), ..Bench::plan(&["d"], destination) };
    bench.run(&owned("a/b/c/")).unwrap();
    assert_eq!([about("a"), about("a/b"), about("a/b/c"), about("a/b/c/sub")], [(5, 0o755); 4]);
    // Without the slash, the directory is the source's.
    bench.run(&owned("a/b")).unwrap();
    assert_eq!([about("a"), about("a/b")], [(5, 0o755), (5, 0o700)]);
    bench.run(&Bench::plan(&["d"], "a/b/")).unwrap();
    assert_eq!([about("a"), about("a/b")], [(0, 0o755); 2]);
}
