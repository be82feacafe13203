"""What others need for the same questions. One JSON line.

    python -m retrieval.peers CORPUS [--backend numba|numpy] [--top-k 10] [--threads 16]

CORPUS is what `retrieval.corpus` wrote. Needs `bm25s`, and `numba` for its fastest backend. Tokens are lower-case runs of letters and
digits, without stop words or stems, so that everyone searches for the same.
"""

import argparse
import json
import os
import pathlib
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import corpus

WORD = re.compile(r"[^\W_]+")


def tokens(text: str) -> list[str]:
    return WORD.findall(text.lower())


def text_of(passage: dict) -> str:
    return f"{passage['title']}\n{passage['text']}"


def bm25s(directory: pathlib.Path, backend: str = "numba", top_k: int = 10, threads: int = 16) -> dict:
    """Times are of searches alone, with the tokens of queries made beforehand; the build's are from the texts to an index on disk."""
    import bm25s as peer

    passages, queries, qrels = corpus.read(directory)
    texts = [text_of(passage) for passage in passages]
    asked = [tokens(query["text"]) for query in queries]

    start = time.perf_counter()
    numbers: dict[str, int] = {}
    tokenized = [[numbers.setdefault(token, len(numbers)) for token in tokens(text)] for text in texts]
    # Lucene's variant is the one that this project's index has, but for a factor that is the same for all.
    index = peer.BM25(k1=1.2, b=0.75, method="lucene", backend=backend)
    index.index(peer.tokenization.Tokenized(ids=tokenized, vocab=numbers), show_progress=False)
    with tempfile.TemporaryDirectory() as saved:
        index.save(saved)
        build = time.perf_counter() - start
        size = sum(file.stat().st_size for file in pathlib.Path(saved).rglob("*"))

    def search(query):
        return index.retrieve([query], k=top_k, show_progress=False, n_threads=0).documents[0]

    for query in asked[:20]:
        search(query)
    times, found = [], []
    for query in asked:
        start = time.perf_counter()
        hits = search(query)
        times.append(time.perf_counter() - start)
        found.append([passages[hit]["id"] for hit in hits])

    def round_of_threads():
        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(search, asked))
        return len(asked) / (time.perf_counter() - start)

    def batch():
        # Its own way of many at once, which is faster than threads that each ask for one.
        start = time.perf_counter()
        index.retrieve(asked, k=top_k, show_progress=False, n_threads=min(threads, os.cpu_count() or 1))
        return len(asked) / (time.perf_counter() - start)

    batch()
    return {
        "peer": f"bm25s {peer.__version__} {backend}",
        "top_k": top_k,
        "build_s": round(build, 2),
        "bytes": size,
        "p50_ms": round(float(np.percentile(times, 50)) * 1000, 3),
        "p99_ms": round(float(np.percentile(times, 99)) * 1000, 3),
        "qps16": round(max(round_of_threads(), batch()), 1),
        "ndcg10": round(corpus.ndcg(found, [query["id"] for query in queries], qrels), 4),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--backend", choices=["numba", "numpy"], default="numba")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--threads", type=int, default=16)
    chosen = parser.parse_args()
    print(json.dumps(bm25s(chosen.corpus, chosen.backend, chosen.top_k, chosen.threads)))
