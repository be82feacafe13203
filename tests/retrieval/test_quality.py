"""How well a corpus answers: BM25 next to a reference of our own and to bm25s, vectors next to Faiss, the graph next to the exact
search. Smaller here than in the soak, whose corpus has 200,000 passages."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import faiss
import numpy
import pytest
from rag_cli import run_rag
from retrieval import corpus, peers
from retrieval.bm25_reference import Reference

QUERIES = 300


def indexed(work: Path, passages: int) -> Path:
    """A generated corpus, indexed as `generated`; answers where its files are."""
    files = work / "corpus"
    corpus.write(files, passages=passages, queries=QUERIES)
    run_rag(work / "data", "index", "generated", files / "passages.jsonl", "--language", "simple")
    return files


def evaluated(work: Path, files: Path, *more: str) -> dict[str, dict[str, Any]]:
    done = run_rag(
        work / "data", "eval", "generated", "--queries", files / "queries.jsonl", "--qrels", files / "qrels.txt",
        "--run", work / "run", "--json", *more,
    )  # fmt: skip
    return {row["mode"]: row["scores"] for row in json.loads(done.stdout)["modes"]}


def ranked(run: Path) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for line in run.read_text().splitlines():
        query, _, passage, _, score, _ = line.split()
        found[query].append((passage, float(score)))
    return found


def check(work: Path, passages: int) -> None:
    files = indexed(work, passages)
    scores = evaluated(work, files)
    print(json.dumps(scores, indent=1))
    assert set(scores) == {"bm25", "dense", "hybrid"}
    # The more passages, the less hashed words tell them apart: 0.17 and 0.35 by vectors alone among 200,000.
    for mode, row in scores.items():
        least, found = (0.1, 0.3) if mode == "dense" and passages == 200_000 else (0.2, 0.4)
        assert least < row["ndcg_at_10"] < 0.98 and row["recall_at_100"] > found, scores

    texts, queries, _ = corpus.read(files)
    reference = Reference([peers.tokens(peers.text_of(one)) for one in texts])
    ours, agreed = ranked(work / "run.bm25"), 0
    for query in queries:
        theirs = reference.search(peers.tokens(query["text"]), 10)
        hits = ours[query["id"]][:10]
        assert [score for _, score in hits] == pytest.approx([score for _, score in theirs], rel=1e-3), query
        # Those whose scores are equal may stand in any order, and the last of them for any other.
        certain = {texts[ordinal]["id"] for ordinal, score in theirs if score > theirs[-1][1] * (1 + 1e-5)}
        agreed += certain <= {passage for passage, _ in hits}
    assert agreed >= 0.99 * len(queries), agreed

    peer = peers.bm25s(files, backend="numpy")
    assert scores["bm25"]["ndcg_at_10"] == pytest.approx(peer["ndcg10"], rel=0.01), peer


def test_words_are_ranked_as_the_reference_ranks_them(tmp_path: Path) -> None:
    check(tmp_path, 5_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_thousand_passages(tmp_path: Path) -> None:
    check(tmp_path, 200_000)


def embedded(texts: list[str], *more: str) -> numpy.ndarray:
    printed = run_rag(Path(), "embed", *more, input="".join(json.dumps(text) + "\n" for text in texts)).stdout
    return numpy.array([json.loads(line) for line in printed.splitlines()], dtype="float32")


def test_vectors_are_searched_as_faiss_does(tmp_path: Path) -> None:
    files = tmp_path / "corpus"
    corpus.write(files, passages=1_500, queries=QUERIES)
    passages, queries, _ = corpus.read(files)
    index = faiss.IndexFlatIP(384)
    index.add(embedded([peers.text_of(one) for one in passages]))
    scores, places = index.search(embedded([one["text"] for one in queries], "--queries"), 10)

    def overlap(name: str) -> float:
        found, same = ranked(tmp_path / f"{name}.dense"), 0
        for query, row, score in zip(queries, places, scores, strict=True):
            certain = {passages[at]["id"] for at, one in zip(row, score, strict=True) if one > score[-1] + 1e-6}
            same += len(certain & {passage for passage, _ in found[query["id"]][:10]}) / max(len(certain), 1)
        return same / len(queries)

    for name, more in (("exact", ()), ("half", ("--precision", "f16")), ("graph", ("--graph-from", "1"))):
        run_rag(tmp_path / "data", "index", name, files / "passages.jsonl", *more)
        run_rag(
            tmp_path / "data", "eval", name, "--queries", files / "queries.jsonl", "--qrels", files / "qrels.txt",
            "--mode", "dense", "--run", tmp_path / name,
        )  # fmt: skip
    assert overlap("exact") > 0.9999
    assert overlap("half") > 0.97
    assert overlap("graph") > 0.97
