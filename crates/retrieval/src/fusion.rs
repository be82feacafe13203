//! Reciprocal rank fusion of several lists.

use std::collections::HashMap;

use crate::Hit;

/// The constant that is added to ranks before the inversion: the larger, the less the first ranks count. The method's authors
/// found 60 best (Cormack, Clarke and Büttcher, 2009).
pub const RANK_CONSTANT: f32 = 60.0;

/// Fuses lists, best first; a score is the sum of `1 / (constant + rank)` over the lists with the hit.
pub fn fuse(lists: &[&[Hit]], top_k: usize, constant: f32) -> Vec<Hit> {
    let mut sums: HashMap<u32, f32> = HashMap::new();
    for list in lists {
        for (rank, hit) in (1u16..).zip(list.iter()) {
            *sums.entry(hit.ordinal).or_default() += 1.0 / (constant + f32::from(rank));
        }
    }
    let mut fused: Vec<Hit> = sums.into_iter().map(|(ordinal, score)| Hit { ordinal, score }).collect();
    fused.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.ordinal.cmp(&b.ordinal)));
    fused.truncate(top_k);
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_lists_have_comes_first() {
        let list = |ordinals: &[u32]| ordinals.iter().map(|&ordinal| Hit { ordinal, score: 1.0 }).collect::<Vec<_>>();
        let (words, meanings) = (list(&[1, 2, 3]), list(&[9, 3, 8]));
        let fused = fuse(&[&words, &meanings], 3, RANK_CONSTANT);
        assert_eq!(fused.iter().map(|hit| hit.ordinal).collect::<Vec<_>>(), [3, 1, 9]);
        assert!((fused[0].score - (1.0 / 63.0 + 1.0 / 62.0)).abs() < 1e-6);
        assert!(fuse(&[], 3, RANK_CONSTANT).is_empty());
    }
}
