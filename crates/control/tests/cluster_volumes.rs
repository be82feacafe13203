//! Volumes that a cluster stores: sizes that only grow, and starts after crashes at each step.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;

use arenite_control::fake_cluster::{FakeClaim, FakeCluster};
use arenite_control::fake_engine::FakeEngine;
use arenite_control::{Control, ControlError, NewVolume, Volume, VolumeChange};
use arenite_model::{ErrorCode, VolumeId};
use support::home::{Home, on_both_stores};
use support::{removing, tenant, volume_record};

on_both_stores! {
    a_start_completes_what_a_crash_interrupted,
    a_size_only_grows,
    files_and_copies_are_the_clusters,
}

async fn start(home: &Home, cluster: &Arc<FakeCluster>) -> Arc<Control> {
    let engine = FakeEngine::new();
    engine.keep_cluster_volumes(Arc::clone(cluster));
    home.start_with(home.config(), &engine).await
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume { name: name.parse().unwrap(), size_bytes: Some(1 << 30), bucket: None, labels: [].into() }
}

async fn a_start_completes_what_a_crash_interrupted(home: Home) {
    let cluster = Arc::new(FakeCluster::default());
    let control = start(&home, &cluster).await;
    let lost_row = control.create_volume(&tenant(), new_volume("a-lost-row")).await.unwrap();
    let no_memo = control.create_volume(&tenant(), new_volume("b-no-memo")).await.unwrap();
    let growing = control.create_volume(&tenant(), new_volume("c-growing")).await.unwrap();
    let gone = control.create_volume(&tenant(), new_volume("d-gone")).await.unwrap();
    let to_remove = control.create_volume(&tenant(), new_volume("e-removing")).await.unwrap();
    control.stop(false).await;
    let store = home.open().await;
    store.remove_record(&volume_record(&lost_row).id).await.unwrap();
    let growing = Volume { size_bytes: 2 << 30, ..growing };
    store.put_record(volume_record(&growing)).await.unwrap();
    store.put_record(volume_record(&removing(&to_remove))).await.unwrap();
    store.close().await;
    drop(store);
    cluster.claims().get_mut(&no_memo.id).unwrap().memo = None;
    cluster.claims().remove(&gone.id);
    // Its creation was interrupted before its row.
    cluster.claims().insert(VolumeId::random(), FakeClaim::default());
    // It is another server's mistake, and not explained.
    let strange = VolumeId::random();
    cluster.claims().insert(strange.clone(), FakeClaim { memo: Some("{}".to_owned()), ..FakeClaim::default() });

    let control = start(&home, &cluster).await;
    let mut found = control.volumes(&tenant()).await.unwrap();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(found, [lost_row.clone(), no_memo.clone(), growing.clone(), gone.clone()]);
    let claims = cluster.claims().clone();
    let mut expected = [&lost_row.id, &no_memo.id, &growing.id, &strange];
    expected.sort_unstable();
    assert_eq!(claims.keys().collect::<Vec<_>>(), expected);
    assert_eq!(claims[&growing.id].size_bytes, 2 << 30);
    assert!(claims[&growing.id].memo.as_ref().unwrap().contains("2147483648"));
    assert!(claims[&no_memo.id].memo.as_ref().unwrap().contains("b-no-memo"));
    // A row without a claim stays until it is removed.
    cluster.claims().get_mut(&lost_row.id).unwrap().problem = Some("it is lost".to_owned());
    let facts = control.volume_facts(&[lost_row.clone(), gone.clone()], true).await.unwrap();
    assert_eq!((facts[0].is_missing, facts[0].problem.as_deref()), (false, Some("it is lost")));
    assert_eq!((facts[1].is_missing, facts[1].used_bytes, facts[1].size_enforced), (true, None, false));
    for volume in [&gone, &lost_row] {
        control.remove_volume(&tenant(), &volume.name, false).await.unwrap();
        assert!(matches!(control.volume(&tenant(), &volume.name).await, Err(ControlError::NoVolume { .. })));
    }
    assert!(!cluster.claims().contains_key(&lost_row.id));
    control.stop(true).await;
}

async fn a_size_only_grows(home: Home) {
    let cluster = Arc::new(FakeCluster::default());
    let control = start(&home, &cluster).await;
    let volume = control.create_volume(&tenant(), new_volume("v")).await.unwrap();
    let resize = async |size_bytes: u64| {
        let labels = [("a".to_owned(), Some("b".to_owned()))].into();
        control.change_volume(&tenant(), &volume.name, VolumeChange { size_bytes: Some(size_bytes), labels }).await
    };
    let smaller = resize(512 << 20).await.unwrap_err();
    assert_eq!((smaller.code(), smaller.hint().is_some()), (ErrorCode::Unsupported, true), "{smaller}");
    assert!(smaller.to_string().contains("1073741824 bytes"), "{smaller}");
    cluster.refuse_growth(true);
    let refused = resize(2 << 30).await.unwrap_err();
    assert!(refused.code() == ErrorCode::Conflict && refused.hint().unwrap().contains("allowVolumeExpansion"), "{refused}");
    // As before, with its labels.
    assert_eq!(control.volume(&tenant(), &volume.name).await.unwrap(), volume);
    assert_eq!(cluster.claims()[&volume.id].size_bytes, 1 << 30);
    cluster.refuse_growth(false);
    let grown = resize(2 << 30).await.unwrap();
    assert_eq!((grown.size_bytes, grown.labels["a"].as_str()), (2 << 30, "b"));
    let claim = cluster.claims()[&volume.id].clone();
    assert_eq!(claim.size_bytes, 2 << 30);
    assert!(claim.memo.unwrap().contains("2147483648"));
    control.stop(true).await;
}

async fn files_and_copies_are_the_clusters(home: Home) {
    let cluster = Arc::new(FakeCluster::default());
    let control = start(&home, &cluster).await;
    let volume = control.create_volume(&tenant(), new_volume("v")).await.unwrap();
    assert_eq!(volume.node, None);
    let copy = control.copy_volume(&tenant(), &volume.name, new_volume("w")).await.unwrap_err();
    let Err(files) = control.volume_files(&tenant(), &volume.name).await else { panic!("there are files") };
    let in_bucket = NewVolume { bucket: Some("b".to_owned()), ..new_volume("w") };
    let bucket = control.create_volume(&tenant(), in_bucket).await.unwrap_err();
    for error in [copy, files, bucket] {
        assert_eq!((error.code(), error.hint().is_some()), (ErrorCode::Unsupported, true), "{error}");
    }
    assert_eq!(cluster.claims().len(), 1);
    control.stop(true).await;
}
