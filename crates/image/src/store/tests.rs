use super::*;

fn store() -> (tempfile::TempDir, ImageStore) {
    let scratch = tempfile::tempdir().unwrap();
    let store = ImageStore::open(scratch.path().join("images")).unwrap();
    (scratch, store)
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

/// A digest that differs from others by one letter.
fn digest(letter: char) -> String {
    letter.to_string().repeat(64)
}

fn add_layer(store: &ImageStore, letter: char) -> String {
    let lock = store.lock().unwrap();
    let layer = store.new_layer().unwrap();
    fs::write(layer.files().join("file"), vec![b'x'; 10_000]).unwrap();
    fs::create_dir(layer.work().join("work")).unwrap();
    store.seal(&lock, &layer, &digest(letter), "RUN x").unwrap();
    digest(letter)
}

fn add_image(store: &ImageStore, text: &str, layers: &str) -> Image {
    let digests = layers.chars().map(digest).collect();
    let lock = store.lock().unwrap();
    let config = ImageConfig::default();
    store.publish(&lock, &name(text), digest('0'), digests, config).unwrap()
}

#[test]
fn a_layer_goes_with_the_last_image_that_has_it() {
    let (_scratch, store) = store();
    for letter in ['a', 'b', 'c'] {
        add_layer(&store, letter);
    }
    let one = add_image(&store, "one", "ab");
    add_image(&store, "two", "ac");
    assert_eq!(one.layers.len(), 2);
    assert!(one.layers[0].bytes >= 10_000);
    assert_eq!(one.size_bytes, one.layers[0].bytes + one.layers[1].bytes);
    assert!(one.layers[0].dir.join("file").exists());
    assert!(!one.layers[0].dir.parent().unwrap().join("work").exists());

    let removed = store.remove(&name("one"), &|_| false).unwrap();
    assert_eq!(removed.layers, [digest('b')]);
    assert_eq!(removed.freed_bytes, one.layers[1].bytes);
    assert!(store.get(&name("two")).is_ok());
    assert!(matches!(store.get(&name("one")), Err(ImageError::NotFound { .. })));

    // A sandbox runs on `a`.
    let used = digest('a');
    let removed = store.remove(&name("two"), &|d| d == used).unwrap();
    assert_eq!((removed.layers, removed.kept), (vec![digest('c')], vec![digest('a')]));
    assert!(store.layer_files(&used).join("file").exists());
    assert_eq!(store.prune(&|_| false).unwrap().layers, [used]);
    assert_eq!(fs::read_dir(store.dir().join("layers")).unwrap().count(), 0);
}

#[test]
fn an_image_is_current_until_its_name_is_that_of_another() {
    let (_scratch, store) = store();
    add_layer(&store, 'a');
    let built = add_image(&store, "one", "a");
    assert!(store.is_current(&built).unwrap());
    // Also with the same layers: its configuration may differ.
    let lock = store.lock().unwrap();
    let rebuilt = store.publish(&lock, &name("one"), digest('1'), vec![digest('a')], ImageConfig::default()).unwrap();
    drop(lock);
    assert!(!store.is_current(&built).unwrap() && store.is_current(&rebuilt).unwrap());
    store.remove(&name("one"), &|_| false).unwrap();
    assert!(!store.is_current(&rebuilt).unwrap());
}

#[test]
fn names_with_slashes_and_tags_are_files_of_their_own() {
    let (_scratch, store) = store();
    add_layer(&store, 'a');
    for text in ["team/tools:2", "team/tools", "team", "base:latest"] {
        add_image(&store, text, "a");
    }
    let names: Vec<_> = store.list().unwrap().into_iter().map(|i| i.name.to_string()).collect();
    assert_eq!(names, ["base", "team", "team/tools", "team/tools:2"]);
    assert!(store.get(&name("base")).is_ok());
    assert!(store.get(&name("team/tools:latest")).is_ok());
    assert!(store.get(&name("tools")).is_err());
}

#[test]
fn what_a_crash_left_is_swept_but_not_from_under_a_build() {
    let (_scratch, store) = store();
    let lock = store.lock().unwrap();
    let layer = store.new_layer().unwrap();
    fs::write(layer.files().join("half"), "x").unwrap();
    fs::write(store.dir().join("trash/manifest"), "{").unwrap();

    let again = ImageStore::open(store.dir().to_owned()).unwrap();
    assert!(layer.dir.exists(), "a build holds the lock");
    assert!(matches!(again.remove(&name("x"), &|_| false), Err(ImageError::Busy)));
    drop(lock);
    ImageStore::open(store.dir().to_owned()).unwrap();
    assert!(layer.dir.exists(), "a pull unpacks without the lock");
    drop(layer);
    ImageStore::open(store.dir().to_owned()).unwrap();
    for place in ["building", "trash"] {
        assert_eq!(fs::read_dir(store.dir().join(place)).unwrap().count(), 0, "{place}");
    }
}

#[test]
fn a_damaged_image_is_told_and_harms_no_other() {
    let (_scratch, store) = store();
    add_layer(&store, 'a');
    add_layer(&store, 'b');
    add_image(&store, "good", "a");
    add_image(&store, "poor", "ab");
    remove_tree(&store.layer_dir(&digest('b'))).unwrap();
    let error = store.get(&name("poor")).unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");

    let manifest = store.manifest_path(None, &name("evil"));
    let escape =
        r#"{"version":1,"name":"evil","digest":"x","layers":["../../etc"],"config":{},"created_at":"2026-01-01T00:00:00Z"}"#;
    for content in ["not json", escape, r#"{"version":99}"#, ""] {
        fs::write(&manifest, content).unwrap();
        assert!(matches!(store.get(&name("evil")), Err(ImageError::Damaged { .. })), "{content}");
    }
    let names: Vec<_> = store.list().unwrap().into_iter().map(|i| i.name.to_string()).collect();
    assert_eq!(names, ["good"]);
    // The damaged one's layers are unknown, so none is removed until it is.
    assert_eq!(store.remove(&name("good"), &|_| false).unwrap().kept, [digest('a')]);
    store.remove(&name("evil"), &|_| false).unwrap();
    store.remove(&name("poor"), &|_| false).unwrap();
    assert_eq!(fs::read_dir(store.dir().join("layers")).unwrap().count(), 0);
}

#[test]
fn the_store_is_closed_to_other_users() {
    let (_scratch, store) = store();
    let mode = fs::metadata(store.dir()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn an_image_has_one_name_however_it_is_written() {
    let digest = format!("sha256:{}", "0".repeat(64));
    for (given, kept) in [
        ("base:latest", "base"),
        ("docker.io/library/python:3.12", "python:3.12"),
        ("index.docker.io/team/app", "team/app"),
        ("localhost:5000/app:latest", "localhost:5000/app"),
        ("localhost:5000/app", "localhost:5000/app"),
        (&format!("localhost:5000/app@{digest}"), &format!("localhost:5000/app@{digest}")),
        (&format!("docker.io/library/app:1@{digest}"), &format!("app@{digest}")),
        ("library/own", "library/own"),
    ] {
        assert_eq!(canonical(&name(given)).as_str(), kept, "{given}");
    }
}

#[test]
fn what_a_pull_left_goes_unless_it_is_in_use_or_recent() {
    let (_scratch, store) = store();
    for name in ["left", "used"] {
        fs::write(store.downloads().join(name), "12345").unwrap();
    }
    assert_eq!(store.remove_downloads(Some(Duration::from_secs(60))), 0);
    let used = File::open(store.downloads().join("used")).unwrap();
    rustix::fs::flock(&used, FlockOperation::LockExclusive).unwrap();
    assert_eq!(store.prune(&|_| false).unwrap().freed_bytes, 5);
    assert!(store.downloads().join("used").exists() && !store.downloads().join("left").exists());
}

#[test]
fn an_image_of_a_tenant_is_found_by_that_tenant_alone() {
    let (_scratch, store) = store();
    for letter in ['a', 'b'] {
        add_layer(&store, letter);
    }
    let (one, two): (TenantId, TenantId) = ("one".parse().unwrap(), "two".parse().unwrap());
    add_image(&store, "r.example/team/app:1", "a");
    let lock = store.lock().unwrap();
    let origin = Origin { source: Some("r.example/team/app"), owner: Some(&one) };
    let app = name("r.example/team/app:1");
    store.publish_from(&lock, &app, digest('1'), vec![digest('a'), digest('b')], ImageConfig::default(), origin).unwrap();
    drop(lock);
    assert_eq!(store.get_of(Some(&one), &app).unwrap().layers.len(), 2);
    assert_eq!(store.get(&app).unwrap().layers.len(), 1);
    assert!(store.has(Some(&one), &app) && store.has(None, &app) && !store.has(Some(&two), &app));
    assert!(matches!(store.get_of(Some(&two), &app), Err(ImageError::NotFound { .. })));

    // Its layer is another tenant's by the registry's bytes only.
    let may_take =
        |owner: Option<&TenantId>| ['a', 'b'].map(|letter| store.shared_layers(owner).unwrap().contains(&digest(letter)));
    assert_eq!(may_take(Some(&one)), [true, true]);
    assert_eq!(may_take(Some(&two)), [true, false]);
    assert_eq!(may_take(None), [true, false]);

    // A manifest in another tenant's place is not believed.
    let place = |owner: &str| store.dir().join(format!("images/{owner}=r.example%team%app:1.json"));
    fs::copy(place("one"), place("two")).unwrap();
    assert!(matches!(store.get_of(Some(&two), &app), Err(ImageError::Damaged { .. })));
    fs::remove_file(place("two")).unwrap();

    assert!(store.prune(&|_| false).unwrap().layers.is_empty());
    assert_eq!(store.remove_of(Some(&one), &app, &|_| false).unwrap().layers, [digest('b')]);
    assert!(store.has(None, &app));
}
