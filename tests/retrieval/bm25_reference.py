"""BM25 by its formula, over every passage, with lengths as coarse as an index keeps them. Slow, short, and nothing left out."""

import numpy as np

K1, B = 1.2, 0.75


def _lengths() -> np.ndarray:
    """The 256 lengths that one byte can tell apart.

    The first 24 are themselves. Beyond them a byte is a small float: three bits of mantissa (with a leading one that is not written,
    once there is an exponent) and an exponent above, counted from 24 on.
    """
    rest = np.arange(256 - 24)
    mantissa, exponent = rest & 7, rest >> 3
    floats = np.where(exponent == 0, mantissa, (mantissa | 8) << np.maximum(exponent - 1, 0))
    return np.concatenate([np.arange(24), 24 + floats]).astype(np.int64)


LENGTHS = _lengths()


def coarse(lengths: np.ndarray) -> np.ndarray:
    """Each length as the greatest of LENGTHS that is not above it."""
    return LENGTHS[np.searchsorted(LENGTHS, lengths, side="right") - 1]


class Reference:
    def __init__(self, docs_tokens: list[list[str]]):
        self.count = len(docs_tokens)
        lengths = np.array([len(tokens) for tokens in docs_tokens], dtype=np.int64)
        # The mean is of the lengths as they are.
        mean = lengths.sum() / max(self.count, 1)
        self.norm = K1 * (1 - B + B * coarse(lengths) / mean)
        self.numbers: dict[str, int] = {}
        words = np.fromiter((self.numbers.setdefault(token, len(self.numbers)) for tokens in docs_tokens for token in tokens),
                            dtype=np.int64, count=int(lengths.sum()))
        pairs, self.times = np.unique(words * self.count + np.repeat(np.arange(self.count), lengths), return_counts=True)
        self.docs = pairs % max(self.count, 1)
        self.starts = np.searchsorted(pairs // max(self.count, 1), np.arange(len(self.numbers) + 1))

    def search(self, query_tokens: list[str], k: int) -> list[tuple[int, float]]:
        """(ordinal, score) of the best, ties by ordinal. A token that comes twice counts twice."""
        scores = np.zeros(self.count)
        for number in filter(lambda number: number is not None, map(self.numbers.get, query_tokens)):
            span = slice(self.starts[number], self.starts[number + 1])
            docs, times = self.docs[span], self.times[span]
            idf = np.log(1 + (self.count - len(docs) + 0.5) / (len(docs) + 0.5))
            scores[docs] += idf * (K1 + 1) * times / (times + self.norm[docs])
        found = np.flatnonzero(scores)
        if len(found) > k:
            # All that tie with the last one stay, for their ordinals to decide.
            found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
        found = found[np.argsort(-scores[found], kind="stable")][:k]
        return [(int(ordinal), float(scores[ordinal])) for ordinal in found]
