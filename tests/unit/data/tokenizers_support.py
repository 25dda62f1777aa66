"""Small tokenizers of the kinds that transformers has, which differ in their words and special tokens."""

from __future__ import annotations

import json
from functools import cache, lru_cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AlbertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from adadepth.data.text.tokenizer import train_tokenizer, wrap_tokenizer

TEXT = ["don't stop the naive cat", "a cat and a lot of lots", "they said: stop that now!", "12 of 345 cats don't"]
SPECIAL = {
    "bert": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
             "mask_token": "[MASK]"},
    "roberta": {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>",
                "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>"},
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}  # fmt: skip
KINDS = tuple(SPECIAL)


def tokenizer(kind: str, add_prefix_space: bool = False) -> PreTrainedTokenizerFast:
    """Return a small tokenizer.

    ``bert``: WordPiece, ``[CLS] A [SEP] B [SEP]`` with types; ``roberta``: byte-level, ``<s> A </s></s> B </s>``;
    ``t5``: unigram, ``A </s> B </s>``, neither [CLS] nor [MASK].
    """
    core = Tokenizer.from_str({"bert": _build_bert, "roberta": _build_roberta, "t5": _build_t5}[kind]())
    if kind == "roberta":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL[kind])


@lru_cache  # ties are broken anew in every training
def _build_bert() -> str:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL["bert"].values())
    core.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return core.to_str()


@lru_cache
def _build_roberta() -> str:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = list(dict.fromkeys(SPECIAL["roberta"].values()))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    core.post_processor = processors.RobertaProcessing(
        ("</s>", core.token_to_id("</s>")), ("<s>", core.token_to_id("<s>")), add_prefix_space=False
    )
    core.decoder = decoders.ByteLevel()
    return core.to_str()


def _build_t5() -> str:
    letters = sorted(set("".join(TEXT)) - {" "})
    words = sorted({f"▁{word}" for line in TEXT for word in line.split()})
    special = list(SPECIAL["t5"].values())
    pieces = [(token, 0.0) for token in special] + [(piece, -float(len(piece))) for piece in ["▁", *letters, *words]]
    core = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>")))
    core.normalizer = normalizers.Replace("\u200b", "")
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", special.index("</s>"))]
    )
    return core.to_str()


@cache
def get_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of any family: trained here, of a base, or of transformers' own classes for one model."""
    if kind == "trained":
        return wrap_tokenizer(train_tokenizer(TEXT, 60, lowercase=True))
    if kind == "albert":
        pieces = json.loads(get_tokenizer("trained").backend_tokenizer.to_str())["model"]["vocab"]
        return AlbertTokenizer(vocab=[tuple(piece) for piece in pieces])
    if kind == "own roberta":
        model = json.loads(tokenizer("roberta").backend_tokenizer.to_str())["model"]
        return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])
    return tokenizer(kind)


def build_streaming_tokenizer() -> PreTrainedTokenizerFast:
    """Return BERT's tokenizer as a language model reads it: nothing is put around a text."""
    words = json.loads(tokenizer("bert").backend_tokenizer.to_str()) | {"post_processor": None}
    backend = Tokenizer.from_str(json.dumps(words))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", eos_token="[SEP]")
