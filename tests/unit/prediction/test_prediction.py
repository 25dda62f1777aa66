"""Batched prediction: equal to one text at a time, in the order given, for every kind of model."""

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
from tests.marks_support import quick_one_in
from tests.models_support import SMALL, small_act, small_multi_exit, small_ponder
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


def adalayers(model_class, folder: Path, **fields) -> PreTrainedModel:
    torch.manual_seed(0)
    return model_class.from_base(save_base("bert", folder / "base"), **HEAD, **fields)


def encoded(text: str | tuple[str, str], cls: int = 1) -> dict[str, torch.Tensor]:
    """Ids and segments of a text or a pair by the tokenizer's own template, with further [CLS] in front."""
    found = WORDS(*([text] if isinstance(text, str) else text), return_token_type_ids=True, return_tensors="pt")
    ids, types = found["input_ids"], found["token_type_ids"]
    return {
        "input_ids": torch.cat([ids[:, :1]] * (cls - 1) + [ids], dim=1),
        "token_type_ids": torch.cat([types[:, :1]] * (cls - 1) + [types], dim=1),
    }


@pytest.fixture(params=quick_one_in(2, ["act", "ponder", "palbert", "multi exit", "adalayers", "plain"]))
def classifier(request, tmp_path) -> PreTrainedModel:
    """A classifier of three classes."""
    make = {
        "act": lambda: small_act(AlbertActForSequenceClassification, num_labels=3),
        "ponder": lambda: small_ponder(num_labels=3, exit_rule="quantile:0.5"),
        "palbert": lambda: small_ponder(num_labels=3, exit_rule="quantile:0.5", readout="pooler"),
        "multi exit": lambda: small_multi_exit(num_labels=3, exit_rule="patience:1"),
        "plain": lambda: PlainAlbertForSequenceClassification(
            PlainAlbertForSequenceClassification.config_class(**SMALL, num_labels=3)
        ),
        "adalayers": lambda: adalayers(AdaLayersForSequenceClassification, tmp_path, num_labels=3),
    }
    model = make[request.param]().eval()
    model.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    return model


def depth_of(outputs) -> float:
    """Mean updates of the only text of a pass."""
    return float(outputs.trace.updates.double().mean())


@pytest.mark.parametrize("texts", quick_one_in(4, [TEXTS, PAIRS]), ids=["texts", "pairs"])
def test_classes_are_those_of_one_text_at_a_time(classifier, texts) -> None:
    found = Pipeline(classifier, WORDS, batch_size=4)(texts)
    assert len(found) == len(texts)
    for text, prediction in zip(texts, found, strict=True):
        with torch.no_grad():
            outputs = classifier(**encoded(text, cls=getattr(classifier.config, "cls_tokens", 1)))
        scores = outputs.logits.softmax(dim=-1)[0].tolist()
        assert prediction.scores == pytest.approx(dict(zip(("no", "maybe", "yes"), scores, strict=True)), abs=1e-5)
        assert prediction.score == max(prediction.scores.values()) == prediction.scores[prediction.label]
        assert prediction.updates == pytest.approx(depth_of(outputs), abs=1e-5)
        assert prediction.value is None


def test_halting_differs_and_tokens_tell_it() -> None:
    model = small_act(AlbertActForSequenceClassification)
    found = Pipeline(model, WORDS)(TEXTS)
    assert len({prediction.updates for prediction in found}) > 1
    for text, prediction in zip(TEXTS, found, strict=True):
        depths = model(**encoded(text)).updates[0].tolist()
        assert [token.updates for token in prediction.tokens] == depths
        assert [prediction.tokens[place].piece for place in (0, -1)] == ["[CLS]", "[SEP]"]
        assert [prediction.tokens[place].span for place in (0, -1)] == [None, None]


def test_spans_are_the_characters_of_the_text() -> None:
    (found,) = Pipeline(small_act(AlbertActForTokenClassification), WORDS)([PAIRS[0]])
    ordinary = [token for token in found.tokens if token.span is not None]
    texts = {part: [t for t in ordinary if t.part == part] for part in (0, 1)}
    for part, tokens in texts.items():
        pieces = [PAIRS[0][part][slice(*token.span)] for token in tokens]
        assert "".join(pieces) == PAIRS[0][part].replace(" ", "")
        assert pieces == [token.piece.removeprefix("##") for token in tokens]


@pytest.mark.parametrize("kind", ["act", "adalayers"])
def test_tags_are_those_of_one_text_at_a_time(kind, tmp_path) -> None:
    names = {0: "O", 1: "B", 2: "I"}
    if kind == "act":
        model = small_act(AlbertActForTokenClassification, id2label=names)
    else:
        model = adalayers(AdaLayersForTokenClassification, tmp_path, id2label=names).eval()
    for text, found in zip(TEXTS, Pipeline(model, WORDS, batch_size=3)(TEXTS), strict=True):
        with torch.no_grad():
            outputs = model(**encoded(text))
        scores, tags = outputs.logits[0].softmax(dim=-1).max(dim=-1)
        tokens = found.tokens[1:-1]
        assert [token.label for token in tokens] == [names[tag] for tag in tags[1:-1].tolist()]
        assert [token.score for token in tokens] == pytest.approx(scores[1:-1].tolist(), abs=1e-5)
        assert [token.label for token in (found.tokens[0], found.tokens[-1])] == [None, None]
        assert found.label is None
        assert found.updates == pytest.approx(depth_of(outputs), abs=1e-5)


@pytest.mark.parametrize("model_class", [AlbertActForMaskedLM, AlbertActForPreTraining])
def test_masks_are_filled(model_class) -> None:
    model = small_act(model_class, vocab_size=len(WORDS) + 5)
    texts = ["a [MASK] cat", "no mask", "[MASK] that [MASK]", "stop"]
    for text, found in zip(texts, Pipeline(model, WORDS)(texts), strict=True):
        batch = encoded(text)
        with torch.no_grad():
            logits = model(**batch).prediction_logits[0, :, : len(WORDS)]
        masked = (batch["input_ids"][0] == WORDS.mask_token_id).nonzero()[:, 0].tolist()
        said = {place: token for place, token in enumerate(found.tokens) if token.label is not None}
        assert list(said) == masked
        for place, token in said.items():
            assert token.piece == "[MASK]"
            assert token.label == WORDS.decode([int(logits[place].argmax())])
            assert token.score == pytest.approx(float(logits[place].softmax(dim=-1).max()), abs=1e-5)
    assert all(token.label is None for token in Pipeline(model, WORDS)("no mask")[0].tokens)


def test_values_and_labels_that_may_all_be_right() -> None:
    model = small_act(AlbertActForSequenceClassification, num_labels=1)
    (found,) = Pipeline(model, WORDS)("a cat")
    assert found.value == pytest.approx(model(**encoded("a cat")).logits.item(), abs=1e-5)
    assert found.label is found.scores is None
    model = small_act(AlbertActForSequenceClassification, num_labels=3, problem_type="multi_label_classification")
    (found,) = Pipeline(model, WORDS)("a cat")
    expected = model(**encoded("a cat")).logits.sigmoid()[0].tolist()
    assert list(found.scores.values()) == pytest.approx(expected, abs=1e-5)


def test_exit_rules() -> None:
    model = small_ponder(num_labels=3)
    assert {found.updates for found in Pipeline(model, WORDS, exit_rule="fixed:2")(TEXTS)} == {2.0}
    drawn = [Pipeline(model, WORDS, exit_rule="sample", batch_size=size)(TEXTS) for size in (2, 2, 6)]
    steps = [[found.updates for found in predictions] for predictions in drawn]
    assert steps[0] == steps[1] == steps[2]
    assert len(set(steps[0])) > 1


def test_texts_are_cut_with_one_warning(caplog) -> None:
    model = small_act(AlbertActForSequenceClassification)
    with caplog.at_level(logging.WARNING, logger="adadepth"):
        found = Pipeline(model, WORDS, max_length=8)(TEXTS)
    (record,) = caplog.records
    lengths = [len(WORDS(text)["input_ids"]) for text in TEXTS]
    assert record.getMessage().startswith(f"{sum(length > 8 for length in lengths)} of 6 texts have more than 8 tokens")
    assert [len(prediction.tokens) for prediction in found] == [min(length, 8) for length in lengths]
    long = Pipeline(model, WORDS)("cat " * 100)[0]
    assert len(long.tokens) == model.config.max_position_embeddings


def test_batches_are_padded_to_their_longest_text_only() -> None:
    model, widths = small_act(AlbertActForSequenceClassification), []
    model.register_forward_pre_hook(
        lambda _, __, inputs: widths.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    Pipeline(model, WORDS, batch_size=2)(TEXTS)
    lengths = sorted((len(WORDS(text)["input_ids"]) for text in TEXTS), reverse=True)
    assert widths == [(2, length) for length in lengths[::2]]


def test_training_mode_does_not_matter() -> None:
    model = small_act(AlbertActForSequenceClassification, hidden_dropout_prob=0.5)
    pipeline = Pipeline(model, WORDS)
    expected = pipeline("a cat")
    model.train()
    assert pipeline("a cat") == expected


@pytest.mark.parametrize(
    "model_class", [AlbertActForSequenceClassification, AlbertActForTokenClassification, AlbertActForMaskedLM]
)
def test_empty_texts_are_read_as_empty_ones(model_class) -> None:
    model = small_act(model_class)
    found = Pipeline(model, WORDS)(["a cat", "", ("", ""), " "])
    assert [found[1].updates, found[3].updates] == pytest.approx([depth_of(model(**encoded("")))] * 2)
    assert [token.piece for token in found[2].tokens] == ["[CLS]", "[SEP]", "[SEP]"]


def test_lists_of_words_have_a_tag_a_word() -> None:
    model = small_act(AlbertActForTokenClassification, id2label={0: "O", 1: "B", 2: "I"})
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
def test_texts_that_cannot_be_predicted(texts, message) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        Pipeline(small_act(AlbertActForSequenceClassification), WORDS)(texts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    quick_one_in(
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
def test_options_that_are_not_allowed(options, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        Pipeline(small_act(AlbertActForSequenceClassification), WORDS, **options)
    assert "\n" not in str(caught.value)


def language_model() -> PreTrainedModel:
    return ParXLForCausalLM(ParXLConfig(**PAR, architecture="sfsf"))


def test_models_and_tokenizers_that_do_not_do() -> None:
    with pytest.raises(ConfigError, match="is not a supported text model") as caught:
        Pipeline(small_act(AlbertActForQuestionAnswering), WORDS)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="the model needs eos_token"):
        Pipeline(language_model(), WORDS)
    with pytest.raises(ConfigError, match="the model needs cls_token, sep_token"):
        Pipeline(small_act(AlbertActForSequenceClassification), tokenizer("t5"))


# ---- folders


def saved(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    WORDS.save_pretrained(folder)
    return str(folder)


def test_folders(classifier, tmp_path) -> None:
    folder = saved(classifier, tmp_path / "model")
    for expected, found in zip(
        Pipeline(classifier, WORDS)(TEXTS), Pipeline.from_pretrained(folder, batch_size=2)(TEXTS), strict=True
    ):
        assert found.scores == pytest.approx(expected.scores, abs=1e-5)


def test_folders_that_hold_nothing_to_predict_with(tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare"
    small_act(AlbertActForSequenceClassification).save_pretrained(bare)
    answers = saved(small_act(AlbertActForQuestionAnswering), tmp_path / "answers")
    language = saved(ParXLSupernet(ParXLConfig(**PAR)), tmp_path / "language")
    for place, message in (
        (tmp_path / "nowhere", "neither a folder nor a model"),
        (empty, "a folder without a model"),
        (answers, "AlbertActForQuestionAnswering is not a supported text model"),
        (language, "ParXLSupernet is not a supported text model"),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            Pipeline.from_pretrained(place)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="tokenizer: it has 5 tokens, the model 120; use the tokenizer of the model"):
        Pipeline.from_pretrained(bare)


def test_the_page_s_example(capsys) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(example, {})
    assert re.search(r"^\[MASK\] \d\.0 \w+$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("head", [AlbertActForSequenceClassification, AlbertActForMaskedLM])
def test_a_model_that_says_no_numbers_is_one_line(head: type[PreTrainedModel]) -> None:
    """Its weights are numbers, its states are not."""
    model = small_act(head)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1e30)
    with pytest.raises(CheckpointError, match="its logits are NaN or infinite") as caught:
        Pipeline(model, WORDS)("a [MASK] cat")
    assert "\n" not in str(caught.value)


def test_a_model_that_knows_no_token_types_is_given_none() -> None:
    words = tokenizer("bert")
    model = build_looped(LoopedForSequenceClassification, **OURO | {"vocab_size": len(words)}, num_labels=3)
    (found,) = adadepth.Pipeline(model, words)("a naive cat")
    with torch.no_grad():
        encoded = words("a naive cat", return_tensors="pt")
        expected = model(encoded["input_ids"], encoded["attention_mask"])
    assert found.updates == expected.trace.updates.item()
    assert list(found.scores.values()) == pytest.approx(expected.logits.softmax(-1)[0].tolist(), abs=1e-6)
