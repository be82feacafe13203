use super::*;
use crate::image::ImageConfig;
use crate::store::Origin;

const DAY: Duration = Duration::from_secs(86_400);

fn store() -> (tempfile::TempDir, ImageStore) {
    let scratch = tempfile::tempdir().unwrap();
    let store = ImageStore::open(scratch.path().join("images")).unwrap();
    (scratch, store)
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

fn digest(letter: char) -> String {
    letter.to_string().repeat(64)
}

/// An image of layers, each a letter, that was last used a number of days ago.
fn add(store: &ImageStore, text: &str, layers: &str, days: u32, source: Option<&str>, owner: Option<&TenantId>) {
    let lock = store.lock().unwrap();
    for letter in layers.chars().filter(|letter| store.layer_record(&digest(*letter)).is_none()) {
        let layer = store.new_layer().unwrap();
        fs::write(layer.files().join("file"), vec![b'x'; 10_000]).unwrap();
        store.seal(&lock, &layer, &digest(letter), "RUN x").unwrap();
    }
    let digests = layers.chars().map(digest).collect();
    let origin = Origin { source, owner };
    store.publish_from(&lock, &name(text), digest('0'), digests, ImageConfig::default(), origin).unwrap();
    set_age(store, text, owner, days);
}

fn set_age(store: &ImageStore, text: &str, owner: Option<&TenantId>, days: u32) {
    let file = fs::File::open(store.manifest_path(owner, &name(text))).unwrap();
    file.set_modified(SystemTime::now() - DAY * days).unwrap();
}

/// The names of the removed images, and their layers. `change` sets what differs from the default.
fn prune(store: &ImageStore, days: u32, keep: &[&str], change: impl FnOnce(&mut AgeLimit<'_>)) -> (Vec<String>, Removed) {
    let keep = keep.iter().map(|text| name(text)).collect();
    let mut limit = AgeLimit { unused_for: DAY * days, all: false, keep: &keep, dry_run: false };
    change(&mut limit);
    let done = store.remove_unused_images(limit, &|_| false).unwrap();
    (done.images.iter().map(|image| image.name.to_string()).collect(), done.removed)
}

#[test]
fn only_pulled_images_that_nothing_used_for_long_go() {
    let (_scratch, store) = store();
    let tenant: TenantId = "acme".parse().unwrap();
    add(&store, "old", "ab", 40, Some("r.example/old"), None);
    add(&store, "older", "c", 50, Some("r.example/older"), Some(&tenant));
    add(&store, "recent", "ad", 20, Some("r.example/recent"), None);
    add(&store, "built", "e", 400, None, None);

    let (images, dry) = prune(&store, 30, &[], |limit| limit.dry_run = true);
    assert_eq!(images, ["older", "old"]);
    assert!(store.has(None, &name("old")), "nothing was removed");
    let (images, removed) = prune(&store, 30, &[], |_| ());
    assert_eq!(images, ["older", "old"]);
    assert_eq!((&removed.layers, removed.freed_bytes), (&dry.layers, dry.freed_bytes));
    assert_eq!(removed.layers, [digest('b'), digest('c')]);
    assert!(removed.freed_bytes >= 20_000);
    assert!(store.get(&name("recent")).is_ok() && store.get(&name("built")).is_ok());
    assert!(!store.has(None, &name("old")) && !store.has(Some(&tenant), &name("older")));

    assert_eq!(prune(&store, 30, &[], |_| ()).0, Vec::<String>::new());
    assert_eq!(prune(&store, 30, &[], |limit| limit.all = true).0, ["built"]);
}

#[test]
fn a_use_keeps_an_image() {
    let (_scratch, store) = store();
    for text in ["python", "kept", "other"] {
        add(&store, text, "a", 40, Some("docker.io/library/x"), None);
    }
    store.mark_used(None, &name("docker.io/library/python:latest"));
    store.mark_used(None, &name("absent"));
    let (images, removed) = prune(&store, 30, &["kept:latest"], |_| ());
    assert_eq!((images, removed.layers), (vec!["other".to_owned()], Vec::new()));
    // What was kept counts as used when it was: it has its whole time before it goes.
    assert_eq!(prune(&store, 30, &[], |_| ()).0, Vec::<String>::new());
    set_age(&store, "kept", None, 31);
    assert_eq!(prune(&store, 30, &[], |_| ()).0, ["kept"]);
}

#[test]
fn a_use_is_noted_once_in_a_while() {
    let (_scratch, store) = store();
    add(&store, "one", "a", 1, None, None);
    let path = store.manifest_path(None, &name("one"));
    store.mark_used(None, &name("one"));
    let first = last_used(&path).unwrap();
    assert!(SystemTime::now().duration_since(first.into()).unwrap() < DAY / 2);
    store.mark_used(None, &name("one"));
    assert_eq!(last_used(&path).unwrap(), first);
    // A clock that was set back.
    fs::File::open(&path).unwrap().set_modified(SystemTime::now() + DAY).unwrap();
    store.mark_used(None, &name("one"));
    assert!(SystemTime::from(last_used(&path).unwrap()) <= SystemTime::now());
}

#[test]
fn a_layer_stays_while_a_sandbox_runs_on_it() {
    let (_scratch, store) = store();
    add(&store, "old", "ab", 40, Some("r.example/old"), None);
    let keep = BTreeSet::new();
    let limit = AgeLimit { unused_for: DAY, all: false, keep: &keep, dry_run: false };
    for dry_run in [true, false] {
        let done = store.remove_unused_images(AgeLimit { dry_run, ..limit }, &|layer| layer == digest('a')).unwrap();
        assert_eq!((done.removed.layers, done.removed.kept), (vec![digest('b')], vec![digest('a')]));
    }
    let _lock = store.lock().unwrap();
    assert!(matches!(store.remove_unused_images(limit, &|_| false), Err(ImageError::Busy)));
}
