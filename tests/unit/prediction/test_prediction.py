"""Batched prediction, equal to one text at a time, in the order of the input, for every kind of model."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import adadepth
from adadepth import (
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    ParXLConfig,
    ParXLForCausalLM,
    ParXLSupernet,
    Pipeline,
    PlainAlbertForSequenceClassification,
)
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.looped.heads import LoopedForSequenceClassification
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_small_act, make_small_multi_exit, make_small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.adalayers_support import HEAD, save_base
from tests.unit.models.looped.looped_support import OURO, build_looped
from tests.unit.models.par_xl_support import SMALL as PAR

WORDS = tokenizer("bert")
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "prediction.md"
TEXTS = [
    "a cat",
    "they said: stop that now! don't stop the naive cat",
    "12 of 345 cats don't",
    "stop",
    "a cat and a lot of lots",
    "the naive cat",
]
PAIRS = [("a cat", "they said: stop that now!"), ("stop that now", "a"), ("a lot", "of lots")]


def build_adalayers(model_class, folder: Path, **fields) -> PreTrainedModel:
    torch.manual_seed(0)
    return model_class.from_base(save_base("bert", folder / "base"), **HEAD, **fields)


def encode(text: str | tuple[str, str], cls: int = 1) -> dict[str, torch.Tensor]:
    """Return ids and segments of a text or a pair by the tokenizer's own template, with further [CLS] in front."""
    tokens = WORDS(*([text] if isinstance(text, str) else text), return_token_type_ids=True, return_tensors="pt")
    ids, types = tokens["input_ids"], tokens["token_type_ids"]
    return {
        "input_ids": torch.cat([ids[:, :1]] * (cls - 1) + [ids], dim=1),
        "token_type_ids": torch.cat([types[:, :1]] * (cls - 1) + [types], dim=1),
    }


@pytest.fixture(params=keep_one_quick(2, ["act", "ponder", "palbert", "multi exit", "adalayers", "plain"]))
def classifier(request, tmp_path) -> PreTrainedModel:
    """Return a classifier of three classes."""
    make = {
        "act": lambda: make_small_act(AlbertActForSequenceClassification, num_labels=3),
        "ponder": lambda: make_small_ponder(num_labels=3, exit_rule="quantile:0.5"),
        "palbert": lambda: make_small_ponder(num_labels=3, exit_rule="quantile:0.5", readout="pooler"),
        "multi exit": lambda: make_small_multi_exit(num_labels=3, exit_rule="patience:1"),
        "plain": lambda: PlainAlbertForSequenceClassification(
            PlainAlbertForSequenceClassification.config_class(**SMALL, num_labels=3)
        ),
        "adalayers": lambda: build_adalayers(AdaLayersForSequenceClassification, tmp_path, num_labels=3),
    }
    model = make[request.param]().eval()
    model.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    return model


def compute_depth(outputs) -> float:
    """Return the mean updates of the only text of a pass."""
    return float(outputs.trace.updates.double().mean())


@pytest.mark.parametrize("texts", keep_one_quick(4, [TEXTS, PAIRS]), ids=["texts", "pairs"])
def test_classes_equal_those_of_one_text_at_a_time(classifier, texts) -> None:
    predictions = Pipeline(classifier, WORDS, batch_size=4)(texts)
    assert len(predictions) == len(texts)
    for text, prediction in zip(texts, predictions, strict=True):
        with torch.no_grad():
            outputs = classifier(**encode(text, cls=getattr(classifier.config, "cls_tokens", 1)))
        scores = outputs.logits.softmax(dim=-1)[0].tolist()
        assert prediction.scores == pytest.approx(dict(zip(("no", "maybe", "yes"), scores, strict=True)), abs=1e-5)
        assert prediction.score == max(prediction.scores.values()) == prediction.scores[prediction.label]
        assert prediction.updates == pytest.approx(compute_depth(outputs), abs=1e-5)
        assert prediction.value is None


def test_depths_differ_and_tokens_have_them() -> None:
    model = make_small_act(AlbertActForSequenceClassification)
    predictions = Pipeline(model, WORDS)(TEXTS)
    assert len({prediction.updates for prediction in predictions}) > 1
    for text, prediction in zip(TEXTS, predictions, strict=True):
        depths = model(**encode(text)).updates[0].tolist()
        assert [token.updates for token in prediction.tokens] == depths
        assert [prediction.tokens[position].piece for position in (0, -1)] == ["[CLS]", "[SEP]"]
        assert [prediction.tokens[position].span for position in (0, -1)] == [None, None]


def test_spans_are_the_characters_of_the_text() -> None:
    (prediction,) = Pipeline(make_small_act(AlbertActForTokenClassification), WORDS)([PAIRS[0]])
    ordinary = [token for token in prediction.tokens if token.span is not None]
    texts = {part: [t for t in ordinary if t.part == part] for part in (0, 1)}
    for part, tokens in texts.items():
        pieces = [PAIRS[0][part][slice(*token.span)] for token in tokens]
        assert "".join(pieces) == PAIRS[0][part].replace(" ", "")
        assert pieces == [token.piece.removeprefix("##") for token in tokens]


@pytest.mark.parametrize("kind", ["act", "adalayers"])
def test_tags_equal_those_of_one_text_at_a_time(kind, tmp_path) -> None:
    names = {0: "O", 1: "B", 2: "I"}
    if kind == "act":
        model = make_small_act(AlbertActForTokenClassification, id2label=names)
    else:
        model = build_adalayers(AdaLayersForTokenClassification, tmp_path, id2label=names).eval()
    for text, prediction in zip(TEXTS, Pipeline(model, WORDS, batch_size=3)(TEXTS), strict=True):
        with torch.no_grad():
            outputs = model(**encode(text))
        scores, tags = outputs.logits[0].softmax(dim=-1).max(dim=-1)
        tokens = prediction.tokens[1:-1]
        assert [token.label for token in tokens] == [names[tag] for tag in tags[1:-1].tolist()]
        assert [token.score for token in tokens] == pytest.approx(scores[1:-1].tolist(), abs=1e-5)
        assert [token.label for token in (prediction.tokens[0], prediction.tokens[-1])] == [None, None]
        assert prediction.label is None
        assert prediction.updates == pytest.approx(compute_depth(outputs), abs=1e-5)


@pytest.mark.parametrize("model_class", [AlbertActForMaskedLM, AlbertActForPreTraining])
def test_masks_are_filled(model_class) -> None:
    model = make_small_act(model_class, vocab_size=len(WORDS) + 5)
    texts = ["a [MASK] cat", "no mask", "[MASK] that [MASK]", "stop"]
    for text, prediction in zip(texts, Pipeline(model, WORDS)(texts), strict=True):
        batch = encode(text)
        with torch.no_grad():
            logits = model(**batch).prediction_logits[0, :, : len(WORDS)]
        masked = (batch["input_ids"][0] == WORDS.mask_token_id).nonzero()[:, 0].tolist()
        filled = {position: token for position, token in enumerate(prediction.tokens) if token.label is not None}
        assert list(filled) == masked
        for position, token in filled.items():
            assert token.piece == "[MASK]"
            assert token.label == WORDS.decode([int(logits[position].argmax())])
            assert token.score == pytest.approx(float(logits[position].softmax(dim=-1).max()), abs=1e-5)
    assert all(token.label is None for token in Pipeline(model, WORDS)("no mask")[0].tokens)


def test_values_and_multi_label_scores() -> None:
    model = make_small_act(AlbertActForSequenceClassification, num_labels=1)
    (prediction,) = Pipeline(model, WORDS)("a cat")
    assert prediction.value == pytest.approx(model(**encode("a cat")).logits.item(), abs=1e-5)
    assert prediction.label is prediction.scores is None
    model = make_small_act(AlbertActForSequenceClassification, num_labels=3, problem_type="multi_label_classification")
    (prediction,) = Pipeline(model, WORDS)("a cat")
    expected = model(**encode("a cat")).logits.sigmoid()[0].tolist()
    assert list(prediction.scores.values()) == pytest.approx(expected, abs=1e-5)


def test_exit_rules_decide_the_depth_of_predictions() -> None:
    model = make_small_ponder(num_labels=3)
    assert {prediction.updates for prediction in Pipeline(model, WORDS, exit_rule="fixed:2")(TEXTS)} == {2.0}
    samples = [Pipeline(model, WORDS, exit_rule="sample", batch_size=size)(TEXTS) for size in (2, 2, 6)]
    steps = [[prediction.updates for prediction in predictions] for predictions in samples]
    assert steps[0] == steps[1] == steps[2]
    assert len(set(steps[0])) > 1


def test_long_texts_are_truncated_with_one_warning(caplog) -> None:
    model = make_small_act(AlbertActForSequenceClassification)
    with caplog.at_level(logging.WARNING, logger="adadepth"):
        predictions = Pipeline(model, WORDS, max_length=8)(TEXTS)
    (record,) = caplog.records
    lengths = [len(WORDS(text)["input_ids"]) for text in TEXTS]
    assert record.getMessage().startswith(f"{sum(length > 8 for length in lengths)} of 6 texts have more than 8 tokens")
    assert [len(prediction.tokens) for prediction in predictions] == [min(length, 8) for length in lengths]
    long = Pipeline(model, WORDS)("cat " * 100)[0]
    assert len(long.tokens) == model.config.max_position_embeddings


def test_batches_are_padded_to_their_longest_text_only() -> None:
    model, widths = make_small_act(AlbertActForSequenceClassification), []
    model.register_forward_pre_hook(
        lambda _, __, inputs: widths.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    Pipeline(model, WORDS, batch_size=2)(TEXTS)
    lengths = sorted((len(WORDS(text)["input_ids"]) for text in TEXTS), reverse=True)
    assert widths == [(2, length) for length in lengths[::2]]


def test_training_mode_does_not_matter() -> None:
    model = make_small_act(AlbertActForSequenceClassification, hidden_dropout_prob=0.5)
    pipeline = Pipeline(model, WORDS)
    expected = pipeline("a cat")
    model.train()
    assert pipeline("a cat") == expected


@pytest.mark.parametrize(
    "model_class", [AlbertActForSequenceClassification, AlbertActForTokenClassification, AlbertActForMaskedLM]
)
def test_empty_texts_are_predicted(model_class) -> None:
    model = make_small_act(model_class)
    predictions = Pipeline(model, WORDS)(["a cat", "", ("", ""), " "])
    assert [predictions[1].updates, predictions[3].updates] == pytest.approx([compute_depth(model(**encode("")))] * 2)
    assert [token.piece for token in predictions[2].tokens] == ["[CLS]", "[SEP]", "[SEP]"]


def test_lists_of_words_have_a_tag_a_word() -> None:
    model = make_small_act(AlbertActForTokenClassification, id2label={0: "O", 1: "B", 2: "I"})
    words = ["the", "naive", "cat's"]
    whole, split = (Pipeline(model, WORDS)([text])[0] for text in (" ".join(words), words))
    assert [token.label for token in split.tokens] == [token.label for token in whole.tokens]
    firsts = {token.part: token.piece for token in reversed(split.tokens) if token.part is not None}
    assert list(map(firsts.get, range(3))) == ["the", "n", "cat"]


# ---- mistakes


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "texts=[]: no texts to predict"),
        (["a", "b\ud800"], "texts[1]='b\\ud800': contains an unpaired surrogate"),
        (["a", 3], "texts[1]=3: must be a text, or a tuple of two"),
        ([("a", "b", "c")], "must be a text, or a tuple of two"),
        ([["a", "b"]], "must be a text, or a tuple of two"),
    ],
)
def test_texts_that_cannot_be_predicted_are_refused(texts, message) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        Pipeline(make_small_act(AlbertActForSequenceClassification), WORDS)(texts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    keep_one_quick(
        3,
        [
            ({"batch_size": 0}, "batch_size=0: must be a whole number of at least 1"),
            ({"batch_size": "x"}, "batch_size='x': "),
            ({"batch_size": True}, "batch_size=True: "),
            ({"device": "nonsense"}, "device=nonsense: "),
            pytest.param({"device": "cuda"}, "device=cuda: ", marks=WITHOUT_GPU),
            ({"max_length": 33}, "max_length=33: must be from 5 to 32"),
            ({"max_length": 2}, "max_length=2: must be from 5 to 32"),
            ({"exit_rule": "fixed:99"}, "albert_act supports quantile"),
            ({"exit_rule": "fixd"}, "did you mean 'fixed'"),
        ],
    ),
)
def test_options_that_are_not_allowed_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        Pipeline(make_small_act(AlbertActForSequenceClassification), WORDS, **options)
    assert "\n" not in str(caught.value)


def build_language_model() -> PreTrainedModel:
    return ParXLForCausalLM(ParXLConfig(**PAR, architecture="sfsf"))


def test_unsuitable_models_and_tokenizers_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not a supported text model") as caught:
        Pipeline(make_small_act(AlbertActForQuestionAnswering), WORDS)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="the model needs eos_token"):
        Pipeline(build_language_model(), WORDS)
    with pytest.raises(ConfigError, match="the model needs cls_token, sep_token"):
        Pipeline(make_small_act(AlbertActForSequenceClassification), tokenizer("t5"))


# ---- folders


def save(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    WORDS.save_pretrained(folder)
    return str(folder)


def test_a_loaded_folder_predicts_like_the_model(classifier, tmp_path) -> None:
    folder = save(classifier, tmp_path / "model")
    for expected, prediction in zip(
        Pipeline(classifier, WORDS)(TEXTS), Pipeline.from_pretrained(folder, batch_size=2)(TEXTS), strict=True
    ):
        assert prediction.scores == pytest.approx(expected.scores, abs=1e-5)


def test_folders_without_a_usable_model_are_refused(tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare"
    make_small_act(AlbertActForSequenceClassification).save_pretrained(bare)
    answers = save(make_small_act(AlbertActForQuestionAnswering), tmp_path / "answers")
    language = save(ParXLSupernet(ParXLConfig(**PAR)), tmp_path / "language")
    for folder, message in (
        (tmp_path / "nowhere", "neither a folder nor a model"),
        (empty, "a folder without a model"),
        (answers, "AlbertActForQuestionAnswering is not a supported text model"),
        (language, "ParXLSupernet is not a supported text model"),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            Pipeline.from_pretrained(folder)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="tokenizer: it has 5 tokens, the model 120; use the tokenizer of the model"):
        Pipeline.from_pretrained(bare)


def test_the_example_of_the_page_runs(capsys) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(example, {})
    assert re.search(r"^\[MASK\] \d\.0 \w+$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("head", [AlbertActForSequenceClassification, AlbertActForMaskedLM])
def test_predictions_that_are_not_finite_are_a_one_line_error(head: type[PreTrainedModel]) -> None:
    """Check states that are not numbers, of weights that are."""
    model = make_small_act(head)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1e30)
    with pytest.raises(CheckpointError, match="its logits are NaN or infinite") as caught:
        Pipeline(model, WORDS)("a [MASK] cat")
    assert "\n" not in str(caught.value)


def test_a_model_without_token_types_gets_none() -> None:
    words = tokenizer("bert")
    model = build_looped(LoopedForSequenceClassification, **OURO | {"vocab_size": len(words)}, num_labels=3)
    (prediction,) = adadepth.Pipeline(model, words)("a naive cat")
    with torch.no_grad():
        encoded = words("a naive cat", return_tensors="pt")
        expected = model(encoded["input_ids"], encoded["attention_mask"])
    assert prediction.updates == expected.trace.updates.item()
    assert list(prediction.scores.values()) == pytest.approx(expected.logits.softmax(-1)[0].tolist(), abs=1e-6)
