/// A found passage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    pub ordinal: u32,
    /// Higher is better: BM25's sum, or the inner product.
    pub score: f32,
}

/// A set of ordinals, one bit each, to restrict a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ordinals {
    words: Vec<u64>,
}

impl Ordinals {
    /// All ordinals below `count`.
    pub fn all(count: u32) -> Self {
        let mut words = vec![u64::MAX; count as usize / 64];
        if !count.is_multiple_of(64) {
            words.push((1 << (count % 64)) - 1);
        }
        Self { words }
    }

    pub fn insert(&mut self, ordinal: u32) {
        let at = ordinal as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (ordinal % 64);
    }

    pub fn remove(&mut self, ordinal: u32) {
        if let Some(word) = self.words.get_mut(ordinal as usize / 64) {
            *word &= !(1 << (ordinal % 64));
        }
    }

    pub fn contains(&self, ordinal: u32) -> bool {
        self.words.get(ordinal as usize / 64).is_some_and(|word| word >> (ordinal % 64) & 1 == 1)
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |word: u64| (0..64u32).filter(move |bit| word >> bit & 1 == 1);
        (0u32..).step_by(64).zip(&self.words).flat_map(move |(base, word)| bits(*word).map(move |bit| base + bit))
    }
}

impl FromIterator<u32> for Ordinals {
    fn from_iter<I: IntoIterator<Item = u32>>(ordinals: I) -> Self {
        let mut set = Self::default();
        ordinals.into_iter().for_each(|ordinal| set.insert(ordinal));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set = Ordinals::all(130);
        assert_eq!(set.len(), 130);
        assert!(set.contains(129) && !set.contains(130));
        set.remove(64);
        set.remove(1_000_000);
        set.insert(700);
        assert_eq!(set.iter().filter(|one| *one > 127).collect::<Vec<_>>(), [128, 129, 700]);
        assert!(!set.contains(64) && set.len() == 130 && !set.is_empty());
        assert!(Ordinals::default().is_empty() && Ordinals::all(64).len() == 64);
    }
}
