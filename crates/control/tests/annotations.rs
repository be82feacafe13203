//! Annotations on the real stores.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arenite_control::annotations::{AnnotationChange, AnnotationFilter, NewAnnotation};
use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{self, AnnotationRow, AnnotationStore, MostAnnotations, Store};
use arenite_control::{Control, ControlConfig, ControlError};
use arenite_model::{Annotation, AnnotationId, AnnotationLabel, Rating, TenantId};
use jiff::Timestamp;
use support::cluster::Cluster;
use support::tenant;

const MANY: MostAnnotations = MostAnnotations { of_trajectory: 100, of_tenant: 100 };

fn labels(names: &[&str]) -> BTreeSet<AnnotationLabel> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn rating(number: u8) -> Option<Rating> {
    Some(number.try_into().unwrap())
}

fn row(tenant: &str, trajectory: &str, step: Option<u64>, names: &[&str], rate: Option<u8>) -> AnnotationRow {
    let annotation = Annotation {
        id: AnnotationId::random(),
        step,
        text: "a \0 \"note\" with 100% _ and ü".to_owned(),
        labels: labels(names),
        rating: rate.map(|number| number.try_into().unwrap()),
        author: Some("ada".to_owned()),
        created_at: Timestamp::from_second(1_700_000_000).unwrap(),
        changed_by: None,
        changed_at: Timestamp::from_second(1_700_000_000).unwrap(),
        revision: 1,
    };
    AnnotationRow { tenant: tenant.parse().unwrap(), trajectory: trajectory.to_owned(), annotation }
}

/// Every operation of a store.
async fn exercise(store: &dyn AnnotationStore) {
    let (acme, other): (TenantId, TenantId) = ("acme".parse().unwrap(), "other".parse().unwrap());
    let rows = [
        row("acme", "s1", Some(3), &["good", "phase:plan"], None),
        row("acme", "s1", None, &[], Some(5)),
        row("acme", "s1", None, &["goods"], Some(2)),
        row("acme", "s2", None, &["good"], Some(3)),
        row("acme", "s3", Some(1), &[], Some(5)),
        row("other", "s1", None, &["good"], Some(1)),
    ];
    for row in &rows {
        assert!(store.add_annotation(row.clone(), MANY).await.unwrap());
        assert!(!store.add_annotation(row.clone(), MANY).await.unwrap(), "it is there");
    }
    let mut expected: Vec<Annotation> = rows[..3].iter().map(|row| row.annotation.clone()).collect();
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(store.annotations(&acme, "s1").await.unwrap(), expected);
    assert_eq!(store.annotations(&acme, "s").await.unwrap(), []);
    let id = &rows[0].annotation.id;
    assert_eq!(store.annotation(&acme, "s1", id).await.unwrap().as_ref(), Some(&rows[0].annotation));
    assert_eq!(store.annotation(&other, "s1", id).await.unwrap(), None);
    assert_eq!(store.annotation(&acme, "s2", id).await.unwrap(), None);

    for (filter, wanted) in [
        (AnnotationFilter::default(), &["s1", "s2", "s3"][..]),
        (AnnotationFilter { labels: vec!["good".parse().unwrap()], min_rating: None }, &["s1", "s2"]),
        (AnnotationFilter { labels: vec!["plan".parse().unwrap()], min_rating: None }, &[]),
        (AnnotationFilter { labels: labels(&["good", "goods"]).into_iter().collect(), min_rating: None }, &["s1"]),
        // The mean of 5 and 2. A step's rating is not the run's.
        (AnnotationFilter { labels: Vec::new(), min_rating: rating(3) }, &["s1", "s2"]),
        (AnnotationFilter { labels: Vec::new(), min_rating: rating(4) }, &[]),
        (AnnotationFilter { labels: vec!["goods".parse().unwrap()], min_rating: rating(1) }, &["s1"]),
    ] {
        let mut found = store.annotated(&acme, filter.clone()).await.unwrap();
        found.sort();
        assert_eq!(found, wanted, "{filter:?}");
    }
    let all = ["s1", "s3", "s4"].map(str::to_owned).to_vec();
    let summaries = store.annotation_summaries(&acme, all).await.unwrap();
    assert_eq!(summaries.len(), 2);
    assert_eq!((summaries["s1"].count, summaries["s1"].rating), (3, Some(3.5)));
    assert_eq!(summaries["s1"].labels, labels(&["good", "goods", "phase:plan"]));
    assert_eq!((summaries["s3"].count, summaries["s3"].rating), (1, None));

    // Only from the revision that was read.
    let mut changed = rows[0].clone();
    (changed.annotation.revision, changed.annotation.rating, changed.annotation.labels) = (2, rating(1), labels(&["bad"]));
    assert!(store.replace_annotation(changed.clone(), 1).await.unwrap());
    assert!(!store.replace_annotation(changed.clone(), 1).await.unwrap());
    assert_eq!(store.annotation(&acme, "s1", id).await.unwrap().as_ref(), Some(&changed.annotation));
    assert!(!store.remove_annotation(&acme, "s1", id, 1).await.unwrap());
    assert!(!store.remove_annotation(&other, "s1", id, 2).await.unwrap());
    assert!(store.remove_annotation(&acme, "s1", id, 2).await.unwrap());
    assert!(!store.replace_annotation(changed, 2).await.unwrap());
    assert_eq!(store.annotations(&acme, "s1").await.unwrap().len(), 2);

    let most = |of_trajectory, of_tenant| MostAnnotations { of_trajectory, of_tenant };
    assert!(!store.add_annotation(row("acme", "s1", None, &["x"], None), most(2, 100)).await.unwrap());
    assert!(!store.add_annotation(row("acme", "s9", None, &["x"], None), most(2, 4)).await.unwrap());
    assert!(store.add_annotation(row("acme", "s9", None, &["x"], None), most(2, 5)).await.unwrap());
    assert_eq!(store.remove_annotations(&acme, "s1").await.unwrap(), 2);
    assert_eq!(store.remove_annotations(&acme, "s1").await.unwrap(), 0);
    assert_eq!(store.annotations(&other, "s1").await.unwrap().len(), 1);
}

async fn open(dir: &Path, cluster: Option<&Cluster>) -> Arc<dyn Store> {
    store::open(dir, cluster.map(Cluster::address).as_ref()).await.unwrap()
}

#[tokio::test]
async fn both_stores_keep_annotations() {
    let cluster = Cluster::start();
    for cluster in [None, Some(&cluster)] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), cluster).await;
        exercise(&*Arc::clone(&store).annotation_store().unwrap()).await;
        store.close().await;
        drop(store);
        let again = open(dir.path(), cluster).await;
        let found = Arc::clone(&again).annotation_store().unwrap().annotations(&"acme".parse().unwrap(), "s2").await.unwrap();
        assert_eq!((found.len(), found[0].text.as_str()), (1, "a \0 \"note\" with 100% _ and ü"));
        again.close().await;
    }
}

async fn control(dir: &Path) -> Arc<Control> {
    let config = ControlConfig::new(dir.to_owned(), "base".parse().unwrap());
    Control::start(config, FakeEngine::new()).await.unwrap()
}

#[tokio::test]
async fn of_two_writers_nobody_loses_anything() {
    let dir = tempfile::tempdir().unwrap();
    let control = control(dir.path()).await;
    let tenant = tenant();
    let new = NewAnnotation { step: Some(1), text: "first".to_owned(), ..NewAnnotation::default() };
    let first = control.annotate(&tenant, "s1", new).await.unwrap();
    let change = |change: AnnotationChange| {
        let (control, tenant, id) = (Arc::clone(&control), tenant.clone(), first.id.clone());
        async move { control.change_annotation(&tenant, "s1", &id, change).await }
    };
    // Each changes another field, without a version.
    let text = change(AnnotationChange { text: Some("second".to_owned()), ..AnnotationChange::default() });
    let rate = change(AnnotationChange { rating: Some(rating(4)), ..AnnotationChange::default() });
    let label = change(AnnotationChange { labels: Some(labels(&["x"])), ..AnnotationChange::default() });
    let (text, rate, label) = tokio::join!(text, rate, label);
    for done in [text, rate, label] {
        done.unwrap();
    }
    let merged = control.annotation(&tenant, "s1", &first.id).await.unwrap();
    assert_eq!((merged.text.as_str(), merged.rating, merged.labels, merged.revision), ("second", rating(4), labels(&["x"]), 4));
    // With a version, the second one is refused.
    let versions = Some(vec![format!("{}-4", first.id)]);
    let write =
        |text: &str| AnnotationChange { text: Some(text.to_owned()), versions: versions.clone(), ..AnnotationChange::default() };
    let (a, b) = tokio::join!(change(write("a")), change(write("b")));
    let (done, refused) = if a.is_ok() { (a, b) } else { (b, a) };
    assert_eq!(done.unwrap().revision, 5);
    assert!(matches!(refused.unwrap_err(), ControlError::AnnotationChanged { .. }));
    let gone = control.remove_annotation(&tenant, "s1", &first.id, versions.as_deref()).await.unwrap_err();
    assert!(matches!(gone, ControlError::AnnotationChanged { .. }), "{gone}");
    control.remove_annotation(&tenant, "s1", &first.id, None).await.unwrap();
    let late = change(AnnotationChange::default()).await.unwrap_err();
    assert!(matches!(late, ControlError::NoAnnotation { .. }), "{late}");
    control.stop(false).await;
}
