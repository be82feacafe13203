use std::fs;

use super::*;
use crate::{Error, vectors::testing::Numbers};

/// A file in the format of faiss 1.15, built by hand like its serializer does.
#[derive(Default, Clone)]
struct Made(Vec<u8>);

impl Made {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn sizes(self, sizes: &[u64]) -> Self {
        sizes.iter().fold(self, |made, size| made.bytes(&size.to_le_bytes()))
    }

    fn header(self, four: &[u8; 4], dimension: u32, count: u64, metric: u32) -> Self {
        self.bytes(four)
            .bytes(&dimension.to_le_bytes())
            .sizes(&[count, 1 << 20, 1 << 20])
            .bytes(&[1])
            .bytes(&metric.to_le_bytes())
    }

    fn floats(self, floats: &[f32]) -> Self {
        floats.iter().fold(self, |made, number| made.bytes(&number.to_le_bytes()))
    }

    fn flat(self, four: &[u8; 4], rows: &[[f32; 3]], metric: u32) -> Self {
        self.header(four, 3, rows.len() as u64, metric).sizes(&[rows.len() as u64 * 3]).floats(rows.as_flattened())
    }

    fn inverted(sparse: bool) -> Self {
        let centres = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let made = Self::default().header(b"IwFl", 3, 3, 0).sizes(&[3, 1]).flat(b"IxFI", &centres, 0);
        let made = made.bytes(&[0]).sizes(&[0]).bytes(b"ilar").sizes(&[3, 12]);
        let made = if sparse { made.bytes(b"sprs").sizes(&[4, 0, 2, 2, 1]) } else { made.bytes(b"full").sizes(&[3, 2, 0, 1]) };
        made.floats(&[0.9, 0.1, 0.0, 0.8, 0.0, 0.2]).sizes(&[2, 0]).floats(&[0.0, 0.3, 0.7]).sizes(&[1])
    }
}

const ROWS: [[f32; 3]; 3] = [[0.5, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0]];

fn samples() -> [Made; 5] {
    [
        Made::default().flat(b"IxFI", &ROWS, 0),
        Made::default().flat(b"IxF2", &ROWS, 1),
        Made::default().header(b"IxM2", 3, 3, 0).flat(b"IxFI", &ROWS, 0).sizes(&[3, 40, 30, 20]),
        Made::inverted(false),
        Made::inverted(true),
    ]
}

fn open(made: &[u8]) -> Result<Faiss> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    fs::write(&path, made).unwrap();
    Faiss::open(&path)
}

#[test]
fn what_faiss_wrote_is_found() {
    let ordinals = |faiss: &Faiss, k, allowed: Option<&Ordinals>| {
        let hits = faiss.search(&[1.0, 0.2, 0.1], k, allowed).unwrap();
        hits.iter().map(|hit| hit.ordinal).collect::<Vec<_>>()
    };
    let [product, distance, identified, full, sparse] = samples().map(|made| open(&made.0).unwrap());
    assert_eq!(ordinals(&product, 5, None), [2, 0, 1]);
    assert_eq!(ordinals(&distance, 5, None), [0, 2, 1]);
    assert_eq!(distance.search(&[0.5, 0.0, 2.0], 1, None).unwrap()[0].score, -2.25);
    assert_eq!(ordinals(&identified, 2, None), [20, 40]);
    assert_eq!(ordinals(&identified, 2, Some(&[30, 40].into_iter().collect())), [40, 30]);
    for inverted in [full, sparse] {
        assert_eq!(ordinals(&inverted, 5, None), [2, 0]);
        let inverted = inverted.with_probes(3);
        assert_eq!(ordinals(&inverted, 5, None), [2, 0, 1]);
        assert_eq!(ordinals(&inverted, 5, Some(&[1].into_iter().collect())), [1]);
        assert_eq!(inverted.search_from(7, &[&[1.0, 0.0, 0.0]], 1, None).unwrap()[0][0].ordinal, 9);
    }
}

#[test]
fn other_kinds_are_named() {
    for (made, name) in [
        (Made::default().header(b"IHNf", 3, 3, 0), "IHNf"),
        (Made::default().flat(b"IxFI", &ROWS, 4), "metric"),
        (Made::default().header(b"IxMp", 3, 3, 0).header(b"IxPq", 3, 3, 0), "IxPq"),
        (Made::default().header(b"IxM2", 3, 3, 0).flat(b"IxFI", &ROWS, 0).sizes(&[3, 1, 2, u64::MAX]), "negative"),
        (Made::default().header(b"IwFl", 3, 3, 0).sizes(&[3, 1]).header(b"IHNf", 3, 3, 0), "only flat"),
    ] {
        let error = open(&made.0).err().unwrap();
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn garbage_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut numbers = Numbers::new(31);
    for made in samples() {
        for length in 0..made.0.len() {
            assert!(parse::index(&made.0[..length], &path).is_err(), "cut to {length} bytes");
        }
        for round in 0..20_000 {
            let mut bytes = made.0.clone();
            for _ in 0..=round % 4 {
                let at = numbers.below(bytes.len());
                match numbers.below(4) {
                    0 => bytes[at] = 0xff,
                    1 => bytes[at] ^= 1 << numbers.below(8),
                    2 => bytes[at] = numbers.next() as u8,
                    _ => bytes.truncate(at.max(1)),
                }
            }
            if parse::index(&bytes, &path).is_err() {
                continue;
            }
            // A file that is accepted can be searched.
            fs::write(&path, &bytes).unwrap();
            let faiss = Faiss::open(&path).unwrap();
            let query = numbers.vector(faiss.dimension());
            assert!(faiss.search(&query, 4, None).unwrap().len() <= 4);
            fs::remove_file(&path).unwrap();
        }
    }
}
