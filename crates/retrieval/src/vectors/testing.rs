//! Numbers for tests: the same in each run.

use std::path::Path;

use super::{Flat, FlatWriter, Metric, Precision};

pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniformly distributed bits (SplitMix64).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Numbers between -1 and 1.
    pub(crate) fn vector(&mut self, dimension: usize) -> Vec<f32> {
        (0..dimension).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Vectors of length one in clusters.
    pub(crate) fn clustered(&mut self, count: usize, dimension: usize) -> Vec<Vec<f32>> {
        let centres: Vec<Vec<f32>> = (0..count.div_ceil(100)).map(|_| self.vector(dimension)).collect();
        let near = |numbers: &mut Self| {
            let centre = &centres[numbers.below(centres.len())];
            let vector: Vec<f32> = numbers.vector(dimension).iter().zip(centre).map(|(noise, centre)| centre + noise).collect();
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vector.iter().map(|number| number / length).collect()
        };
        (0..count).map(|_| near(self)).collect()
    }
}

pub(crate) fn write(path: &Path, vectors: &[Vec<f32>], precision: Precision, metric: Metric) -> Flat {
    let mut writer = FlatWriter::create(path, vectors[0].len(), precision, metric).unwrap();
    vectors.iter().for_each(|vector| {
        writer.push(vector).unwrap();
    });
    writer.finish().unwrap();
    Flat::open(path).unwrap()
}
