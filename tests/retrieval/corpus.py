"""Writes a corpus with questions and judgements: made-up words, the same for the same seed.

    python -m retrieval.corpus DIRECTORY [--passages N] [--queries Q] [--seed S]

makes `passages.jsonl` ({"id", "title", "text"}), `queries.jsonl` ({"id", "text"}) and `qrels.txt` (TREC: `query 0 passage grade`).

Words follow Zipf's law, as in a language. A passage belongs to a topic and speaks of a few of the topic's entities; its title names the
first. A query is about one passage: it has some of that passage's entities and of its topic's words, often in another form (`-s`,
another topic word, an entity's other name), and words that mean nothing. The passage is relevant at grade 2, those of its topic that
share two of the query's entities at grade 1. So searching by words does well, and not perfectly.
"""

import argparse
import json
import pathlib

import numpy as np

VOCABULARY = 50_000
TOPIC_WORDS = 40
ENTITIES_PER_TOPIC = 12
PASSAGES_PER_TOPIC = 50
ENTITIES_PER_PASSAGE = 3
LENGTHS = (40, 80)

ONSETS = ["b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "gr", "kl", "pr", "st", "tr"]
NUCLEI = ["a", "e", "i", "o", "u", "ai", "ei", "ou"]
CODAS = ["", "", "n", "r", "l", "m", "k"]


def made_up(rng: np.random.Generator, count: int, syllables: tuple[int, int]) -> list[str]:
    """So many different words of as many syllables."""
    parts = [onset + nucleus + coda for onset in ONSETS for nucleus in NUCLEI for coda in CODAS]
    words: dict[str, None] = {}
    while len(words) < count:
        lengths = rng.integers(syllables[0], syllables[1] + 1, count)
        picks = rng.integers(0, len(parts), (count, syllables[1]))
        for length, row in zip(lengths.tolist(), picks.tolist()):
            words["".join(parts[pick] for pick in row[:length])] = None
            if len(words) == count:
                break
    return list(words)


class Corpus:
    def __init__(self, passages: int = 200_000, queries: int = 1_000, seed: int = 7):
        rng = np.random.default_rng(seed)
        self.passages, self.topics = passages, max(1, -(-passages // PASSAGES_PER_TOPIC))
        # The commonest words are the shortest.
        self.words = made_up(rng, 300, (1, 1)) + made_up(rng, VOCABULARY - 300, (2, 4))
        names = [name.capitalize() for name in made_up(rng, 2 * 4_000, (2, 3))]
        entities = self.topics * ENTITIES_PER_TOPIC
        # A name of two words, of which each belongs to many entities; and another name, by which queries may call it.
        first, second, other = (rng.integers(0, len(names), entities) for _ in range(3))
        self.entity = [f"{names[a]} {names[b]}" for a, b in zip(first.tolist(), second.tolist())]
        self.nickname = [f"{names[a]} {names[b]}" for a, b in zip(first.tolist(), other.tolist())]

        weights = 1.0 / (np.arange(VOCABULARY) + 2.7)
        self.zipf = np.cumsum(weights / weights.sum())
        self.topic_words = rng.integers(200, VOCABULARY, (self.topics, TOPIC_WORDS))
        self.topic = rng.permutation(np.arange(passages) % self.topics)
        picks = rng.random((passages, ENTITIES_PER_TOPIC)).argpartition(ENTITIES_PER_PASSAGE, axis=1)[:, :ENTITIES_PER_PASSAGE]
        self.spoken_of = self.topic[:, None] * ENTITIES_PER_TOPIC + picks
        self.lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, passages)
        self.seed, self.queries = seed, queries
        self.members: list[list[int]] = [[] for _ in range(self.topics)]
        for passage, topic in enumerate(self.topic.tolist()):
            self.members[topic].append(passage)

    def texts(self):
        """(title, text) of each passage."""
        step = 10_000
        for start in range(0, self.passages, step):
            # A part of the passages has a generator of its own, so that a part can be had without the rest.
            rng = np.random.default_rng([self.seed, start])
            lengths = self.lengths[start:start + step]
            total = int(lengths.sum())
            words = np.searchsorted(self.zipf, rng.random(total))
            owner = np.repeat(np.arange(start, start + len(lengths)), lengths)
            of_topic = rng.random(total) < 0.12
            picked = self.topic_words[self.topic[owner], rng.integers(0, TOPIC_WORDS, total)]
            words = np.where(of_topic, picked, words).tolist()
            places = rng.random((len(lengths), 5))
            end = 0
            for index, length in enumerate(lengths.tolist()):
                body = [self.words[word] for word in words[end:end + length]]
                end += length
                spoken = self.spoken_of[start + index].tolist()
                for mention, place in zip((0, 0, 1, 1, 2), places[index].tolist()):
                    body.insert(int(place * len(body)), self.entity[spoken[mention]])
                body[0] = body[0].capitalize()
                yield self.entity[spoken[0]], " ".join(body) + "."

    def questions(self):
        """(text, {passage: grade}) of each query."""
        rng = np.random.default_rng([self.seed, self.passages, 1])
        for target in rng.integers(0, self.passages, self.queries).tolist():
            topic = int(self.topic[target])
            wanted = rng.permutation(self.spoken_of[target])[:2].tolist()
            text = []
            for entity in wanted:
                name = self.nickname[entity] if rng.random() < 0.35 else self.entity[entity]
                parts = name.split()
                text += parts if rng.random() < 0.5 else [parts[int(rng.integers(0, 2))]]
            for word in rng.choice(self.topic_words[topic], 3, replace=False).tolist():
                text.append(self.words[word] + ("s" if rng.random() < 0.4 else ""))
            noise = np.searchsorted(self.zipf, rng.random(int(rng.integers(2, 6)))).tolist()
            text += [self.words[word] for word in noise]
            grades = {target: 2}
            for member in self.members[topic]:
                if member != target and set(wanted) <= set(self.spoken_of[member].tolist()):
                    grades[member] = 1
            yield " ".join(text[place] for place in rng.permutation(len(text)).tolist()), grades


def write(directory: pathlib.Path, passages: int = 200_000, queries: int = 1_000, seed: int = 7) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    corpus = Corpus(passages, queries, seed)
    with open(directory / "passages.jsonl", "w") as out:
        # Made-up words need no escapes, and `json` would take as long as all the rest.
        out.writelines(f'{{"id": "p{n}", "title": "{title}", "text": "{text}"}}\n' for n, (title, text) in enumerate(corpus.texts()))
    with open(directory / "queries.jsonl", "w") as out, open(directory / "qrels.txt", "w") as judged:
        for n, (text, grades) in enumerate(corpus.questions()):
            out.write(json.dumps({"id": f"q{n}", "text": text}) + "\n")
            judged.writelines(f"q{n} 0 p{passage} {grade}\n" for passage, grade in sorted(grades.items()))


def ndcg(found: list[list[str]], queries: list[str], qrels: dict[str, dict[str, int]], k: int = 10) -> float:
    """The mean over the queries, with the grades as gains, as trec_eval has it."""
    def gain(grades):
        return sum(grade / np.log2(rank + 2) for rank, grade in enumerate(grades[:k]))
    scores = [gain([qrels[query].get(one, 0) for one in hits]) / gain(sorted(qrels[query].values(), reverse=True))
              for query, hits in zip(queries, found)]
    return float(np.mean(scores))


def read(directory: pathlib.Path):
    """What `write` wrote: passages and queries as they are, and {query: {passage: grade}}."""
    def lines(name):
        with open(directory / name) as file:
            return [json.loads(line) for line in file]
    qrels: dict[str, dict[str, int]] = {}
    for line in (directory / "qrels.txt").read_text().splitlines():
        query, _, passage, grade = line.split()
        qrels.setdefault(query, {})[passage] = int(grade)
    return lines("passages.jsonl"), lines("queries.jsonl"), qrels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    write(chosen.directory, chosen.passages, chosen.queries, chosen.seed)
