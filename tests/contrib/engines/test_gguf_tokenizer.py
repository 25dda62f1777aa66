"""Tokenizers in GGUF files: llama.cpp splits texts as the tokenizers do, and unsupported ones are named."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from adadepth.data.streams import tokenizer as streams
from adadepth.data.text.corpora import read_embedded_documents
from adadepth.data.text.tokenizer import load_tokenizer, train_tokenizer, wrap_tokenizer
from tests.unit.data.tokenizers_support import tokenizer

gguf = pytest.importorskip("gguf")
from adadepth.contrib.engines import gguf_tokenizer  # noqa: E402

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
STRANGE = [
    "", " ", "  two  spaces ", "Tab\tand\nnew\r\nline\n\n",
    "nai\u0308ve cafe\u0301 e\u0301te\u0301 \u212b ﬁ ½ ①②",
    "ΑΒΓΔ Ωμέγα ς", "Привет, мир!", "日本語 한국어 \u1112\u1161\u11ab", "don't I'll we've THEY'RE",
    "1234567 3.14 1,000",
    "emoji 😀👍🏽", "a\u00a0b\u3000c\u2028d\u0085e", "<eos> and <pad> [CLS] <unk>", "``quoted'' '''x'''", "x" * 50,
    "def f(a, b=1):\n    return a+b  # why", "ŠŽ ǅ ẞ ß İı", "a\u0323\u0307 \u0307\u0323a e\u0302\u0301", "UPPER MiXed",
    "नमस्ते ไทย مرحبا",
    "zero\u200bwidth\u200djoin", "−×÷≈∑ Ⅳ ㎏ ﷺ", "!?!?...--- ~`^|<>{}[]",
    "http://a.b/c?d=e&f=g#h", "a▁b",
]  # fmt: skip


@cache
def get_texts() -> tuple[list[str], list[str]]:
    """Return paragraphs to train on, and 200 texts to split."""
    paragraphs = [line for text in read_embedded_documents() for line in text.splitlines() if line.strip()]
    parts = (paragraph[start : start + 150] for paragraph in paragraphs[::3] for start in (0, 40))
    return paragraphs[:1500], [*STRANGE, *islice(parts, 200 - len(STRANGE))]


def build_byte_bpe(
    division: Any, normalizer: Any = None, ignore_merges: bool = False, **options: Any
) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    core.normalizer, core.pre_tokenizer, core.decoder = normalizer, division, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIAL.values()), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(get_texts()[0], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL, **options)


def split_bytes(digits: str) -> Any:
    """Return the pre-tokenizer of Qwen2 and Llama 3."""
    expression = gguf_tokenizer._WORDS + digits + gguf_tokenizer._REST
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), whole])


def build_sentencepiece_bpe(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer as Llama 2 or Gemma has it, from a trained SentencePiece model."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    proto = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(get_texts()[0]), model_writer=proto, model_type="bpe", vocab_size=1000,
        byte_fallback=True, minloglevel=2, normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    trained = SentencePieceProcessor(model_proto=proto.getvalue())
    vocabulary = {trained.id_to_piece(number): number for number in range(trained.vocab_size())}
    merges = [
        pair
        for token in vocabulary
        if not token.startswith("<")
        for pair in sorted(
            ((token[:cut], token[cut:]) for cut in range(1, len(token))),
            key=lambda pair: [vocabulary.get(part, -1) for part in pair],
        )
        if vocabulary.keys() >= set(pair)
    ]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    if kind == "gemma":
        core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), core.normalizer])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def build_stream_tokenizer(kind: Callable[..., Tokenizer], lowercase: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of causal language models of this package."""
    config: Any = SimpleNamespace(vocab_size=800, lowercase=lowercase, symbols=[])
    core = kind(config, lambda: get_texts()[0])
    return PreTrainedTokenizerFast(tokenizer_object=core, split_special_tokens=True, **SPECIAL)


EQUAL: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "unigram": lambda: build_stream_tokenizer(streams._train_unigram),
    "unigram of lower case": lambda: build_stream_tokenizer(streams._train_unigram, lowercase=True),
    "bytes": lambda: build_stream_tokenizer(streams._build_bytes),
    "albert": lambda: wrap_tokenizer(train_tokenizer(get_texts()[0], 800, True)),
    "gpt2": lambda: build_byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: build_byte_bpe(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "qwen2": lambda: build_byte_bpe(split_bytes(r"\p{N}")),
    "olmo2": lambda: build_byte_bpe(split_bytes(r"\p{N}{1,3}")),
    "llama3": lambda: build_byte_bpe(split_bytes(r"\p{N}{1,3}"), ignore_merges=True),
    "llama2": lambda: build_sentencepiece_bpe("llama2"),
    "gemma": lambda: build_sentencepiece_bpe("gemma"),
}


def write(tokenizer: PreTrainedTokenizerFast, folder: Path, extra: int = 3) -> str | None:
    """Write a file with a tokenizer only, and return why it has none."""
    tokenizer.save_pretrained(folder)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    problem = gguf_tokenizer.add_tokenizer(writer, folder, len(tokenizer) + extra)
    writer.add_vocab_size(len(tokenizer) + extra)
    for add, value in ((writer.add_context_length, 64), (writer.add_embedding_length, 32), (writer.add_block_count, 1),
                       (writer.add_feed_forward_length, 32), (writer.add_head_count, 1),
                       (writer.add_layer_norm_rms_eps, 1e-5)):  # fmt: skip
        add(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("kind", EQUAL)
def test_llama_cpp_splits_texts_as_the_tokenizer_does(kind: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    assert write(EQUAL[kind](), tmp_path) is None
    loaded = load_tokenizer(str(tmp_path), needed=())
    engine = llama_cpp.Llama(str(tmp_path / "model.gguf"), vocab_only=True, verbose=False)
    texts = get_texts()[1]
    assert len(texts) == 200
    for text in texts:
        ours = loaded(text)["input_ids"]
        is_special = not loaded.split_special_tokens
        assert engine.tokenize(text.encode(), add_bos=True, special=is_special) == ours, text
    assert engine.token_eos() == loaded.eos_token_id
    engine.close()


def test_tokens_have_types_and_missing_ones_are_unused(tmp_path: Path) -> None:
    tokenizer = build_stream_tokenizer(streams._build_bytes)
    tokenizer.add_tokens(["ordinary"])
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert write(tokenizer, tmp_path) is None
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    keys = {name: field.contents() for name, field in reader.fields.items()}
    kinds, tokens = keys["tokenizer.ggml.token_type"], keys["tokenizer.ggml.tokens"]
    control, unknown, user, normal, unused = (
        gguf.TokenType[name].value for name in ("CONTROL", "UNKNOWN", "USER_DEFINED", "NORMAL", "UNUSED")
    )
    assert kinds == [control, unknown, control, *[normal] * 256, user, *[unused] * 3]
    assert (*tokens[:3], tokens[-4]) == ("<pad>", "<unk>", "<eos>", "ordinary")
    assert len(set(tokens)) == len(tokens)
    assert (keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.padding_token_id"]) == (2, 0)
    assert not keys["tokenizer.ggml.add_bos_token"] | keys["tokenizer.ggml.add_eos_token"]
    assert keys["tokenizer.chat_template"] == "{{ messages[0].content }}"


def lower(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def build_without_end() -> PreTrainedTokenizerFast:
    core = build_stream_tokenizer(streams._build_bytes).backend_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>")


def build_with_symbol() -> PreTrainedTokenizerFast:
    config: Any = SimpleNamespace(vocab_size=800, lowercase=False, symbols=["@-@"])
    core = streams._train_unigram(config, lambda: get_texts()[0])
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)


def build_with_two_first_tokens() -> PreTrainedTokenizerFast:
    tokenizer = build_stream_tokenizer(streams._build_bytes)
    special = [("<pad>", 0)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<pad> <pad> $A", "$A $B", special)
    return tokenizer


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: build_stream_tokenizer(streams._train_words), "no equal of the tokenizer's model WordLevel"),
        (lambda: tokenizer("bert"), "the tokenizer has no token for the end of a text"),
        (lambda: lower(build_stream_tokenizer(streams._build_bytes)), "llama.cpp has no normalizer for byte-level BPE"),
        (build_without_end, "the tokenizer has no token for the end of a text"),
        (build_with_symbol, "no equal of the tokenizer's pre_tokenizer"),
        (
            lambda: build_byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
            "equal of the tokenizer's pre_tokenizer",
        ),
        (build_with_two_first_tokens, "the tokenizer puts more around a text"),
    ],
)
def test_an_unsupported_tokenizer_is_left_out_and_named(
    make: Callable[[], PreTrainedTokenizerFast], problem: str, tmp_path: Path
) -> None:
    assert problem in (write(make(), tmp_path) or "")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "none"


def test_a_model_with_fewer_rows_than_tokens_is_named(tmp_path: Path) -> None:
    tokenizer = build_stream_tokenizer(streams._build_bytes)
    assert write(tokenizer, tmp_path, extra=-1) == "the tokenizer has 259 tokens, and the model 258"
