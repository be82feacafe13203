"""Fixtures for corpora."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rag_cli import Rag, run_rag


@pytest.fixture
def rag(tmp_path: Path) -> Rag:
    return lambda *words, **more: run_rag(tmp_path / "data", *words, **more)


@pytest.fixture
def found(rag: Rag) -> Callable[..., list[str]]:
    """The ids that a search finds, best first."""

    def search(corpus: str | Path, query: str, *more: str) -> list[str]:
        answer = json.loads(rag("search", corpus, query, "--json", *more).stdout)
        return [one["id"] for one in answer["results"]]

    return search
