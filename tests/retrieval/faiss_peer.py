"""The dense search next to faiss-cpu, in the same minute on the same machine.

    python tests/retrieval/faiss_peer.py compare --bench target/release/examples/dense_bench --folder FOLDER
    python tests/retrieval/faiss_peer.py files   --bench … --folder FOLDER

`compare` measures in alternating rounds and prints one line of JSON: for the exact search and for the graph, what each side
took and how many times faster this side is (medians over rounds). `files` lets this side read what faiss wrote and compares
the answers. Needs numpy and faiss-cpu.
"""

import argparse
import json
import pathlib
import subprocess
import threading
import time

import faiss
import numpy as np

K = 10
CLIENTS = 16


def vectors(folder, count, queries, dimension, seed=7):
    """Clustered vectors of length one, and queries that are drawn the same way; raw f32 in files."""
    base, asked = folder / f"base-{count}x{dimension}.f32", folder / f"queries-{queries}x{dimension}.f32"
    if not base.exists() or not asked.exists():
        random = np.random.default_rng(seed)
        centres = random.standard_normal((max(count // 100, 1), dimension), dtype=np.float32)
        for path, rows in [(base, count), (asked, queries)]:
            drawn = centres[random.integers(len(centres), size=rows)] + random.standard_normal((rows, dimension), dtype=np.float32)
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
            drawn.tofile(path)
    shape = (-1, dimension)
    return base, asked, np.fromfile(base, dtype=np.float32).reshape(shape), np.fromfile(asked, dtype=np.float32).reshape(shape)


def ours(bench, kind, index, base, asked, dimension, **options):
    answers = index.with_suffix(".answers")
    answers.unlink(missing_ok=True)
    words = {"kind": kind, "index": index, "vectors": base, "queries": asked, "dimension": dimension, "k": K, **options}
    if options.pop("answer", False):
        words.pop("answer")
        words["answers"] = answers
    said = subprocess.run([bench, *(f"{name}={value}" for name, value in words.items())], check=True, capture_output=True, text=True)
    found = np.fromfile(answers, dtype=np.uint32).reshape(-1, K) if answers.exists() else None
    return json.loads(said.stdout), found


def theirs(index, asked, seconds):
    """Latency of a lone query; throughput of 16 threads with a query each, and of batches of 16."""
    for query in asked[:20]:
        index.search(query[None], K)
    taken, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        began = time.perf_counter()
        index.search(asked[len(taken) % len(asked)][None], K)
        taken.append(time.perf_counter() - began)

    done, begin = [0] * CLIENTS, time.perf_counter()

    def client(number):
        faiss.omp_set_num_threads(1)
        while time.perf_counter() - begin < seconds:
            index.search(asked[(number * 997 + done[number]) % len(asked)][None], K)
            done[number] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    [client.start() for client in clients]
    [client.join() for client in clients]
    threaded = sum(done) / (time.perf_counter() - begin)

    batches, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        first = batches * CLIENTS % (len(asked) - CLIENTS + 1)
        index.search(asked[first : first + CLIENTS], K)
        batches += 1
    batched = batches * CLIENTS / (time.perf_counter() - begin)
    return {
        "p50_ms": float(np.median(taken) * 1e3),
        "p99_ms": float(np.percentile(taken, 99) * 1e3),
        "queries_per_second": max(threaded, batched),
        "threads": threaded,
        "batches": batched,
    }


def recall(found, wanted):
    return float(np.mean([len(set(one) & set(other)) / K for one, other in zip(found.tolist(), wanted.tolist())]))


def same_answers(found, wanted, scores):
    """Share of answers that are the same, and how far apart in score the others are: floats summed in another order."""
    differ = found != wanted
    apart = 0.0
    for query, place in zip(*np.nonzero(differ)):
        here = scores[query]
        at = np.nonzero(wanted[query] == found[query, place])[0]
        other = here[at[0]] if len(at) else here[-1]
        apart = max(apart, float(abs(here[place] - other)))
    return {"same": float(1 - differ.mean()), "most_apart": apart}


def median(rounds, name):
    return float(np.median([one[name] for one in rounds]))


def table(our_rounds, their_rounds):
    names = ["p50_ms", "p99_ms", "queries_per_second"]
    mine, other = ({name: median(rounds, name) for name in names} for rounds in (our_rounds, their_rounds))
    latency = np.median([b["p50_ms"] / a["p50_ms"] for a, b in zip(our_rounds, their_rounds)])
    throughput = np.median([a["queries_per_second"] / b["queries_per_second"] for a, b in zip(our_rounds, their_rounds)])
    other.update({name: median(their_rounds, name) for name in ["threads", "batches"]})
    return {"ours": mine, "faiss": other, "latency_ratio": float(latency), "throughput_ratio": float(throughput)}


def compare(options):
    folder = pathlib.Path(options.folder)
    base, asked, rows, queries = vectors(folder, options.count, 1000, options.dimension)
    flat = faiss.IndexFlatIP(options.dimension)
    began = time.perf_counter()
    flat.add(rows)
    flat_seconds = time.perf_counter() - began
    scores, exact = flat.search(queries, K)
    at = (options.bench, "flat", folder / "flat", base, asked, options.dimension)
    first, found = ours(*at, answer=True, seconds=0.5)
    answer = {"exact": {"answers": same_answers(found, exact, scores)}}
    rounds = [(ours(*at, seconds=options.seconds)[0], theirs(flat, queries, options.seconds)) for _ in range(options.rounds)]
    answer["exact"].update(table(*zip(*rounds)), build_seconds=[first["build_seconds"], flat_seconds], bytes=[first["bytes"], rows.nbytes])

    graph = folder / f"faiss-{options.count}x{options.dimension}-{options.degree}-{options.construction}.hnsw"
    their_seconds = None
    if not graph.exists():
        index = faiss.IndexHNSWFlat(options.dimension, options.degree, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = options.construction
        began = time.perf_counter()
        index.add(rows)
        their_seconds = time.perf_counter() - began
        faiss.write_index(index, str(graph))
    index = faiss.read_index(str(graph))
    at = (options.bench, "hnsw", folder / f"hnsw-{options.degree}-{options.construction}", base, asked, options.dimension)
    how = {"degree": options.degree, "construction": options.construction}
    first, found = ours(*at, answer=True, ef=10, seconds=0.1, **how)
    least = {}
    for side in ["ours", "faiss"]:
        for ef in range(10, 400, 2):
            if side == "ours":
                found = ours(*at, answer=True, ef=ef, seconds=0.01, **how)[1]
            else:
                index.hnsw.efSearch = ef
                found = index.search(queries, K)[1]
            least[side] = (ef, recall(found, exact))
            if least[side][1] >= options.recall:
                break
    index.hnsw.efSearch = least["faiss"][0]
    rounds = [
        (ours(*at, ef=least["ours"][0], seconds=options.seconds, **how)[0], theirs(index, queries, options.seconds))
        for _ in range(options.rounds)
    ]
    answer["graph"] = {
        **table(*zip(*rounds)),
        "ef_and_recall": least,
        "build_seconds": [first["build_seconds"], their_seconds],
        "bytes": [first["bytes"], graph.stat().st_size],
    }
    return answer


def files(options):
    """What faiss wrote, read by this side: the same answers, at the same number of probes."""
    folder = pathlib.Path(options.folder)
    base, asked, rows, queries = vectors(folder, options.count, 1000, options.dimension)
    dimension = options.dimension
    lists = int(4 * len(rows) ** 0.5)

    def inverted(metric, quantizer):
        index = faiss.IndexIVFFlat(quantizer, dimension, lists, metric)
        index.train(rows[: lists * 40])
        index.nprobe = 8
        return index

    identified = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
    identified.add_with_ids(rows, np.arange(len(rows)) * 3)
    kinds = {
        "IndexFlatIP": faiss.IndexFlatIP(dimension),
        "IndexFlatL2": faiss.IndexFlatL2(dimension),
        "IndexIVFFlat-ip": inverted(faiss.METRIC_INNER_PRODUCT, faiss.IndexFlatIP(dimension)),
        "IndexIVFFlat-l2": inverted(faiss.METRIC_L2, faiss.IndexFlatL2(dimension)),
        "IndexIDMap2": identified,
    }
    answer = {}
    for name, index in kinds.items():
        if index.ntotal == 0:
            index.add(rows)
        path = folder / f"{name}.faiss"
        faiss.write_index(index, str(path))
        scores, wanted = index.search(queries, K)
        found = ours(options.bench, "faiss", path, base, asked, dimension, answer=True, seconds=0.1)[1]
        answer[name] = same_answers(found.astype(np.int64), wanted, scores)
    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["compare", "files"])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--construction", type=int, default=100)
    parser.add_argument("--recall", type=float, default=0.97)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    chosen = parser.parse_args()
    print(json.dumps({"compare": compare, "files": files}[chosen.what](chosen)))
