"""Corpora are made, changed and searched, by the command line."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import docx
import pandas
import pytest
from arenite_server import binary
from reportlab.pdfgen import canvas

from rag_cli import Rag, lines

Found = Callable[..., list[str]]

ANIMALS = [
    {"id": "cat", "title": "Cats", "contents": "The cat sleeps on the warm stove all day.", "metadata": {"legs": 4, "home": True}},
    {"id": "dog", "title": "Dogs", "contents": "A dog guards the house and barks at strangers.", "metadata": {"legs": 4, "home": True}},
    {"id": "crane", "title": "Cranes", "contents": "Cranes fly south in autumn, calling loudly.", "metadata": {"legs": 2}},
    {"id": "wolf", "contents": "Wolves hunt in packs; their howling carries far.", "legs": 4, "home": False},
]


@pytest.fixture
def animals(rag: Rag, tmp_path: Path) -> str:
    rag("index", "animals", lines(tmp_path / "animals.jsonl", *ANIMALS))
    return "animals"


def test_each_mode_finds_and_filters_hold(animals: str, found: Found, rag: Rag) -> None:
    for mode in ("bm25", "dense", "hybrid"):
        assert found(animals, "which dog barks at strangers", "--mode", mode)[0] == "dog"
    assert found(animals, "barks", "--mode", "bm25") == ["dog"], "words alone find no other"
    both = found(animals, "dog crane wolf cat", "--filter", '{"legs": {"lt": 4}}')
    assert both == ["crane"], both
    assert set(found(animals, "the house", "--mode", "dense", "--filter", '{"home": {"exists": true}}')) == {"cat", "dog", "wolf"}
    shown = rag("search", animals, "sleeping cat").stdout
    assert "Cats  (cat)" in shown and "warm stove" in shown
    listed = json.loads(rag("ls", "--json").stdout)["corpora"]
    assert [one["name"] for one in listed] == [animals] and listed[0]["stats"]["passages"] == 4
    assert "hashing" in rag("ls").stdout, "the default is named as what it is"


def test_a_corpus_changes_passage_by_passage(animals: str, found: Found, rag: Rag, tmp_path: Path) -> None:
    changed = {"id": "cat", "text": "The cat chases mice in the barn."}
    report = json.loads(
        rag("index", animals, lines(tmp_path / "more.jsonl", changed, {"id": "emu", "text": "The emu runs fast."}), "--json").stdout
    )
    assert (report["added"], report["replaced"], report["passages"]) == (2, 1, 5), report
    assert found(animals, "stove", "--mode", "bm25") == [] and found(animals, "mice barn", "--mode", "dense")[0] == "cat"
    gone = tmp_path / "gone"
    gone.write_text("dog\nnobody\n")
    report = json.loads(rag("index", animals, "--delete-ids", gone, "--json").stdout)
    assert (report["removed"], report["absent"], report["passages"]) == (1, 1, 4), report
    for mode in ("bm25", "dense", "hybrid"):
        assert "dog" not in found(animals, "a dog guards the house", "--mode", mode, "-k", "10")
    # So much is replaced that everything is rewritten.
    for _ in range(12):
        rag("index", animals, lines(tmp_path / "again.jsonl", *ANIMALS))
    stats = json.loads(rag("ls", "--json").stdout)["corpora"][0]["stats"]
    assert stats["passages"] == 5 and stats["segments"] <= 8 and stats["dead"] <= 4, stats
    assert found(animals, "sleeps on the stove", "--mode", "dense")[0] == "cat"
    assert rag("index", animals, tmp_path / "again.jsonl", "--embedder", "none", check=False).returncode == 1
    rag("rm", animals)
    assert "no index" in rag("search", animals, "x", check=False).stderr


def test_lines_that_are_no_passages_are_told_or_refused(rag: Rag, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    good = json.dumps({"text": "a good one"})
    file.write_text(f'{good}\nnonsense\n{{"title": "no text"}}\n\n{{"text": "{"x" * (17 << 20)}"}}\n{good}\n')
    done = rag("index", "bad", file, "--json")
    report = json.loads(done.stdout)
    assert (report["added"], report["skipped"]) == (2, 3), report
    for number in (2, 3, 5):
        assert f"bad.jsonl, line {number}: " in done.stderr, done.stderr
    refused = rag("index", "strict", file, "--strict", check=False)
    assert refused.returncode == 1 and "line 2" in refused.stderr
    assert json.loads(rag("ls", "--json").stdout)["corpora"][0]["name"] == "bad", "nothing of the other is there"
    assert "stdin, line 1" in rag("index", "piped", "-", input="[]\n" + good).stderr


def test_parquet_and_documents_are_read(rag: Rag, found: Found, tmp_path: Path) -> None:
    table = pandas.DataFrame(ANIMALS[:3])
    table["metadata"] = [json.dumps(one) for one in table["metadata"]]
    table.rename(columns={"metadata": "facts"}).to_parquet(tmp_path / "animals.parquet")
    rag("index", "table", tmp_path / "animals.parquet")
    assert found("table", "guards the house")[0] == "dog"
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "animals.parquet").read_bytes()[:-100])
    assert rag("index", "cut", tmp_path / "cut.parquet", check=False).returncode == 1

    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "guide.md").write_text("# The guide\n\n" + "Filler words stand here. " * 300 + "The password is reset by the caretaker.")
    document = docx.Document()
    document.add_paragraph("Invoices are paid within thirty days.")
    document.save(str(folder / "deep/invoices.docx"))
    page = canvas.Canvas(str(folder / "plan.pdf"))
    page.drawString(72, 720, "The bridge opens in spring.")
    page.save()
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7\n" + random.Random(1).randbytes(2000))
    (folder / ".hidden.md").write_text("the caretaker hides")
    with (folder / "huge.txt").open("wb") as huge:
        huge.truncate(100 << 20)
    done = rag("index", "docs", folder, "--json")
    assert json.loads(done.stdout)["skipped"] == 2, done.stderr
    assert "huge.txt: it is larger than 64 MiB" in done.stderr and "broken.pdf: " in done.stderr
    assert found("docs", "who resets the password", "--mode", "bm25")[0].startswith("guide.md#")
    assert found("docs", "when are invoices paid")[0] == "deep/invoices.docx#0"
    assert found("docs", "bridge spring", "--mode", "bm25") == ["plan.pdf#0"]
    assert rag("index", "docs", tmp_path / "nowhere", check=False).returncode == 1


def test_languages_without_spaces_and_long_queries(rag: Rag, found: Found, tmp_path: Path) -> None:
    file = lines(tmp_path / "zh.jsonl", {"id": "a", "text": "北京是中国的首都"}, {"id": "b", "text": "東京は日本の首都です"})
    rag("index", "cjk", file, "--language", "cjk")
    assert found("cjk", "中国的首都在哪里", "--mode", "bm25")[0] == "a"
    assert found("cjk", "日本", "--mode", "bm25") == ["b"]
    assert rag("search", "cjk", "  ", check=False).returncode == 1
    assert found("cjk", "。!?", "--mode", "bm25") == []
    long = "首都 " + "nonsense words " * 7000
    assert len(long) > 100_000
    for mode in ("bm25", "dense", "hybrid"):
        assert set(found("cjk", long, "--mode", mode)) >= {"a"}


def test_what_is_damaged_is_refused(animals: str, rag: Rag, tmp_path: Path) -> None:
    dir = next((tmp_path / "data/retrieval" / animals).glob("gen-*"))
    noise = random.Random(2)
    for file in sorted(path for path in dir.rglob("*") if path.is_file() and not path.name.endswith(".lock")):
        whole = file.read_bytes()
        cuts = [whole[: len(whole) // 2], b"", noise.randbytes(len(whole)), whole + b"x"]
        for cut in cuts:
            file.write_bytes(cut)
            for mode in ("bm25", "dense"):
                done = rag("search", animals, "dog", "--mode", mode, check=False)
                assert done.returncode in (0, 1), (file, done.returncode, done.stderr)
        file.write_bytes(whole)
    assert rag("search", animals, "dog").returncode == 0


def test_a_change_that_is_killed_leaves_what_was_there(rag: Rag, found: Found, animals: str, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(2000)]
    chosen = random.Random(3)
    many = lines(tmp_path / "many.jsonl", *({"id": f"m{n}", "text": " ".join(chosen.choices(words, k=40))} for n in range(20_000)))
    line = [str(binary()), "rag", "index", animals, str(many), "--data-dir", str(tmp_path / "data")]
    for wait in (0.05, 0.3, 0.8):
        process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        time.sleep(wait)
        busy = rag("index", animals, many, check=False)
        ended = process.poll() is not None
        process.kill()
        process.wait()
        if not ended and wait > 0.05:
            assert "being changed" in busy.stderr, busy.stderr
        stats = json.loads(rag("ls", "--json").stdout)["corpora"][0]["stats"]
        assert stats["passages"] in (4, 20_004), stats
        assert found(animals, "dog barks at strangers", "--mode", "bm25")[0] == "dog"
    rag("index", animals, many)
    left = sorted(path.name for path in (tmp_path / "data/retrieval" / animals).iterdir())
    assert len([name for name in left if name.startswith("gen-")]) == 1, left
