use std::{collections::HashSet, sync::atomic::AtomicUsize};

use super::*;
use crate::vectors::{
    Precision,
    testing::{Numbers, write},
};

fn recall(found: &[Vec<Hit>], wanted: &[Vec<Hit>]) -> f64 {
    let shares = found.iter().zip(wanted).map(|(found, wanted)| {
        let found: HashSet<u32> = found.iter().map(|hit| hit.ordinal).collect();
        wanted.iter().filter(|hit| found.contains(&hit.ordinal)).count() as f64 / wanted.len() as f64
    });
    shares.sum::<f64>() / wanted.len() as f64
}

#[test]
fn a_graph_finds_nearly_all_of_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = Numbers::new(19);
    let (vectors, queries) = {
        let mut all = numbers.clustered(4100, 24);
        let queries = all.split_off(4000);
        (all, queries)
    };
    let asked: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
    let path = folder.path().join("graph");
    for (precision, metric) in [(Precision::F32, Metric::InnerProduct), (Precision::F16, Metric::L2), (Precision::I8, Metric::L2)]
    {
        let flat = Arc::new(write(&folder.path().join("vectors"), &vectors, precision, metric));
        let told = AtomicUsize::new(0);
        let progress = |done: usize, of: usize| {
            assert_eq!(of, 4000);
            told.fetch_max(done, std::sync::atomic::Ordering::Relaxed);
        };
        Hnsw::build(&flat, HnswOptions { degree: 12, ef_construction: 80 }, &path, &progress).unwrap();
        assert_eq!(told.into_inner(), 4000);
        let hnsw = Hnsw::open(&path, flat.clone()).unwrap().with_ef_search(80);
        let exact = flat.search_many(&asked, 10, None).unwrap();
        let found = hnsw.search_many(&asked, 10, None).unwrap();
        assert!(recall(&found, &exact) > 0.97, "{precision:?} {metric:?}: {}", recall(&found, &exact));
        assert_eq!(hnsw.search(&queries[0], 10, None).unwrap(), found[0]);

        // Filters that leave half, a tenth, one in a hundred: through the graph, and by a scan if few are left.
        for every in [2, 10, 100] {
            let allowed: Ordinals = (0..4000).filter(|ordinal| ordinal % every == 1).map(|ordinal| ordinal + 500).collect();
            let exact = flat.search_from(500, &asked, 10, Some(&allowed)).unwrap();
            let found = hnsw.search_from(500, &asked, 10, Some(&allowed)).unwrap();
            assert!(found.iter().flatten().all(|hit| allowed.contains(hit.ordinal)));
            assert!(recall(&found, &exact) > 0.97, "one in {every}: {}", recall(&found, &exact));
        }

        // A filter that leaves much elsewhere and nothing here must not end in a walk through everything.
        let elsewhere: Ordinals = (4000..8000).chain([17]).collect();
        assert_eq!(hnsw.search(&queries[0], 10, Some(&elsewhere)).unwrap()[0].ordinal, 17);
    }
}

#[test]
fn a_graph_keeps_its_bounds_and_leads_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let vectors = Numbers::new(23).clustered(3000, 16);
    let flat = Arc::new(write(&folder.path().join("vectors"), &vectors, Precision::F32, Metric::InnerProduct));
    let path = folder.path().join("graph");
    Hnsw::build(&flat, HnswOptions { degree: 8, ef_construction: 40 }, &path, &|_, _| ()).unwrap();
    let hnsw = Hnsw::open(&path, flat).unwrap();
    let graph = hnsw.graph();
    let top = (0..3000).map(|node| graph.level(node)).max().unwrap();
    assert!(top >= 2 && graph.level(hnsw.entry) == top);
    for node in 0..3000 {
        for level in 0..=graph.level(node) {
            let mut neighbours = Vec::new();
            graph.each(node, level, |other| neighbours.push(other));
            let distinct: HashSet<u32> = neighbours.iter().copied().collect();
            assert!(distinct.len() == neighbours.len() && !distinct.contains(&node));
            assert!(level == 0 || neighbours.iter().all(|other| graph.level(*other) >= level));
        }
    }
    let mut reached = HashSet::from([hnsw.entry]);
    let mut from = vec![hnsw.entry];
    while let Some(node) = from.pop() {
        graph.each(node, 0, |other| {
            if reached.insert(other) {
                from.push(other);
            }
        });
    }
    assert_eq!(reached.len(), 3000);
}

#[test]
fn small_graphs_and_equal_vectors_are_no_exception() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph");
    for count in [1, 2, 3, 300] {
        let flat = Arc::new(write(&folder.path().join("vectors"), &vec![vec![0.6, 0.8]; count], Precision::F32, Metric::L2));
        Hnsw::build(&flat, HnswOptions { degree: 2, ef_construction: 8 }, &path, &|_, _| ()).unwrap();
        let hnsw = Hnsw::open(&path, flat).unwrap();
        assert_eq!(hnsw.search(&[1.0, 0.0], 5, None).unwrap().len(), count.min(5));
        assert!(hnsw.search(&[1.0, 0.0], 0, None).unwrap().is_empty());
        assert!(matches!(hnsw.search(&[1.0], 5, None), Err(Error::Dimension { .. })));
    }
    let empty = folder.path().join("empty");
    super::super::FlatWriter::create(&empty, 2, Precision::F32, Metric::L2).unwrap().finish().unwrap();
    let flat = Arc::new(Flat::open(&empty).unwrap());
    Hnsw::build(&flat, HnswOptions::default(), &path, &|_, _| ()).unwrap();
    assert!(Hnsw::open(&path, flat.clone()).unwrap().search(&[1.0, 0.0], 5, None).unwrap().is_empty());
    let wrong = HnswOptions { degree: 1, ef_construction: 8 };
    assert!(matches!(Hnsw::build(&flat, wrong, &path, &|_, _| ()), Err(Error::Invalid(_))));
}
