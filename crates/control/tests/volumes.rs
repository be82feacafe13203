//! Volumes after crashes at each step, and races between uses and removals.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::{Control, ControlError, CreateRequest, NewVolume, SpecOverlay, Volume};
use arenite_engine::Storage;
use arenite_engine::namespace::storage::{PoolMode, StorageConfig};
use arenite_model::{VolumeId, VolumeMount};
use support::home::{Home, on_both_stores};
use support::{named, removing, tenant, volume_record};

on_both_stores! {
    a_start_completes_what_a_crash_interrupted,
    a_volume_is_either_used_or_removed,
    ten_creates_race_for_one_name,
}

/// A server with a storage of plain directories, and the directory of its volumes.
async fn start(home: &Home) -> (Arc<Control>, Arc<FakeEngine>, PathBuf) {
    let engine = FakeEngine::new();
    let config = StorageConfig { mode: PoolMode::Off, ..StorageConfig::default() };
    let storage = Storage::open(&home.dir().join("storage"), &config).unwrap();
    let directory = storage.root().join("volumes");
    engine.keep_volumes(Arc::new(storage));
    (home.start_with(home.config(), &engine).await, engine, directory)
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume {
        name: name.parse().unwrap(),
        size_bytes: None,
        bucket: None,
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn files_of(volume: &Volume) -> Vec<String> {
    vec![volume.id.to_string(), format!("{}.json", volume.id)]
}

async fn a_start_completes_what_a_crash_interrupted(home: Home) {
    let (control, _, directory) = start(&home).await;
    let kept = control.create_volume(&tenant(), new_volume("kept")).await.unwrap();
    let lost_row = control.create_volume(&tenant(), new_volume("lost-row")).await.unwrap();
    let no_memo = control.create_volume(&tenant(), new_volume("no-memo")).await.unwrap();
    let to_remove = control.create_volume(&tenant(), new_volume("removing")).await.unwrap();
    let gone = control.create_volume(&tenant(), new_volume("gone")).await.unwrap();
    control.stop(false).await;
    let store = home.open().await;
    store.remove_record(&volume_record(&lost_row).id).await.unwrap();
    store.put_record(volume_record(&removing(&to_remove))).await.unwrap();
    store.put_record(volume_record(&removing(&gone))).await.unwrap();
    store.close().await;
    drop(store);
    fs::remove_file(directory.join(format!("{}.json", no_memo.id))).unwrap();
    fs::remove_dir(directory.join(gone.id.as_str())).unwrap();
    fs::remove_file(directory.join(format!("{}.json", gone.id))).unwrap();
    // Its creation was interrupted before its row.
    fs::create_dir(directory.join(VolumeId::random().as_str())).unwrap();

    let (control, _, directory) = start(&home).await;
    let mut found = control.volumes(&tenant()).await.unwrap();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(found, [kept.clone(), lost_row.clone(), no_memo.clone()]);
    let mut expected: Vec<String> = [&kept, &lost_row, &no_memo].into_iter().flat_map(files_of).collect();
    expected.sort_unstable();
    assert_eq!(entries(&directory), expected);
    // A row without files stays until it is removed.
    fs::remove_dir(directory.join(kept.id.as_str())).unwrap();
    assert!(control.volume_facts(std::slice::from_ref(&kept), false).await.unwrap()[0].is_missing);
    assert!(matches!(control.volume_files(&tenant(), &kept.name).await, Err(ControlError::VolumeMissing { .. })));
    control.remove_volume(&tenant(), &kept.name, false).await.unwrap();
    assert!(matches!(control.volume(&tenant(), &kept.name).await, Err(ControlError::NoVolume { .. })));
    control.stop(true).await;
}

async fn a_volume_is_either_used_or_removed(home: Home) {
    let (control, engine, _) = start(&home).await;
    let volume = control.create_volume(&tenant(), new_volume("v")).await.unwrap();
    let mount = VolumeMount { name: "v".to_owned(), path: "/data".to_owned(), ..VolumeMount::default() };
    let request = CreateRequest {
        spec: SpecOverlay { volumes: Some(vec![mount.clone()]), ..SpecOverlay::default() },
        own_volumes_only: true,
        ..named("box")
    };
    engine.delay(Point::Reserve, Duration::from_millis(300));
    let creating = tokio::spawn({
        let (control, request) = (Arc::clone(&control), request.clone());
        async move { control.create(&tenant(), request).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = control.remove_volume(&tenant(), &volume.name, true).await;
    assert!(matches!(busy, Err(ControlError::VolumeBusy { .. })), "{busy:?}");
    let made = creating.await.unwrap().unwrap();
    assert_eq!(made.spec.volumes[0].volume_id.as_ref(), Some(&volume.id));
    let used = control.remove_volume(&tenant(), &volume.name, true).await;
    assert!(matches!(&used, Err(ControlError::VolumeInUse { may_force: false, .. })), "{used:?}");
    control.delete(&tenant(), &made.name).await.unwrap();
    control.remove_volume(&tenant(), &volume.name, false).await.unwrap();
    let refused = control.create(&tenant(), request).await;
    assert!(matches!(refused, Err(ControlError::NotOwnVolume { .. })), "{refused:?}");
    control.stop(true).await;
}

async fn ten_creates_race_for_one_name(home: Home) {
    let (control, _, directory) = start(&home).await;
    let creates = (0..10).map(|_| {
        let control = Arc::clone(&control);
        tokio::spawn(async move { control.create_volume(&tenant(), new_volume("v")).await })
    });
    let mut made = 0;
    for create in creates.collect::<Vec<_>>() {
        match create.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert!(matches!(error, ControlError::VolumeExists { .. }), "{error}"),
        }
    }
    assert_eq!((made, entries(&directory).len()), (1, 2));
    control.stop(true).await;
}
