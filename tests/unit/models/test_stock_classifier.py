"""Unchanged classifiers of transformers: logits, losses, checkpoints, and classes matched by name."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GPT2Config,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from adadepth import (
    AlbertActForSequenceClassification,
    Pipeline,
    PlainAlbertForSequenceClassification,
    StockForSequenceClassification,
    StockForTokenClassification,
)
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.build import build_classifier, load_model
from adadepth.models.stock_classifier.modeling import match_class_order
from adadepth.models.stock_classifier.settings import StockClassifierSettings
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_small_config
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.adalayers_support import BASES, DEPTH, WIDTH, draw_texts

HEADS = {
    "sequence": (AutoModelForSequenceClassification, StockForSequenceClassification),
    "token": (AutoModelForTokenClassification, StockForTokenClassification),
}
KINDS = ("bert", "roberta", "distilbert", "albert", "deberta", "electra")
NAMES = ["O", "B-PER", "I-PER"]


def save(folder, kind="bert", unit="token", names=NAMES, **changes):
    torch.manual_seed(0)
    config = type(BASES[kind])(**(BASES[kind].to_diff_dict() | {"initializer_range": 0.3} | changes))
    config.id2label, config.label2id = dict(enumerate(names)), {name: n for n, name in enumerate(names)}
    model = HEADS[unit][0].from_config(config).eval()
    model.save_pretrained(folder)
    return model


def build_fields(names=NAMES, problem_type=None):
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: n for n, name in enumerate(names)},
        "problem_type": problem_type,
    }


def build(folder, names=NAMES, problem="tagging", **settings):
    model_settings = StockClassifierSettings(pretrained=str(folder), **settings)
    torch.manual_seed(1)
    return build_classifier(model_settings, 120, build_fields(names), problem).eval()


@pytest.mark.parametrize(("kind", "unit"), keep_one_quick(3, product(KINDS, HEADS)))
def test_logits_and_loss_equal_transformers(kind, unit, tmp_path):
    theirs, batch = save(tmp_path, kind, unit), draw_texts()
    ours = HEADS[unit][1].from_pretrained(tmp_path)
    labels = torch.tensor([0, 2, 1])
    if unit == "token":
        labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 3, -100)
    with torch.no_grad():
        expected = theirs(**batch, labels=labels)
        output = ours(**batch, labels=labels)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    count = ours.count_targets({"labels": labels})["task"]
    assert count == (labels >= 0).sum()
    doubled = ours(**batch, labels=labels, num_targets={"task": 2 * count}).loss
    torch.testing.assert_close(2 * doubled, expected.loss)
    trace = output.trace
    assert (trace.unit, trace.max_updates) == (unit, DEPTH)
    valid = batch["attention_mask"].bool() if unit == "token" else torch.ones(3, dtype=torch.bool)
    assert torch.equal(trace.updates, DEPTH * valid.float())


@pytest.mark.parametrize(("stored", "requested", "order"), keep_one_quick(3, [
    (["O", "B-PER"], ["O", "B-PER"], [0, 1]),
    (["O", "B-PER", "B-LOC"], ["B-LOC", "O", "B-PER"], [2, 0, 1]),
    (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], ["entailment", "neutral", "contradiction"], [2, 1, 0]),
    (["a", "A"], ["A", "a"], [1, 0]),
    (["LABEL_0", "LABEL_1"], ["no", "yes"], [0, 1]),
    (["LABEL_1", "LABEL_0"], ["LABEL_0", "LABEL_1"], [1, 0]),
    (["LABEL_0", "LABEL_1", "LABEL_2"], ["no", "yes"], None),
    (["LABEL_0", "maybe"], ["no", "yes"], None),
    (["O", "B-PER"], ["O", "B-PER", "B-LOC"], None),
    (["O", "B-PER", "B-LOC"], ["O", "B-PER"], None),
    (["a", "A"], ["a", "b"], None),
    (["a", "A"], ["a"], None),
]))  # fmt: skip
def test_classes_are_matched_by_name(stored, requested, order):
    assert match_class_order(stored, requested) == order


@pytest.mark.parametrize(("kind", "unit"), keep_one_quick(6, product(KINDS, HEADS)))
def test_a_head_in_another_order_predicts_the_same_names(kind, unit, tmp_path):
    theirs, batch = save(tmp_path, kind, unit), draw_texts()
    ours = HEADS[unit][1].from_pretrained(tmp_path)
    ours.take_classes(["i-per", "o", "b-per"])
    assert ours.config.id2label == {0: "i-per", 1: "o", 2: "b-per"}
    assert ours.config.label2id == {"i-per": 0, "o": 1, "b-per": 2}
    with torch.no_grad():
        expected, logits = theirs(**batch).logits, ours(**batch).logits
    torch.testing.assert_close(logits, expected[..., [2, 0, 1]])
    ours.save_pretrained(tmp_path / "saved")
    loaded = HEADS[unit][0].from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, logits), "a saved checkpoint has names and rows in one order"


def test_classes_without_names_are_reported(tmp_path, caplog):
    save(tmp_path, names=["LABEL_0", "LABEL_1", "LABEL_2"])
    model = StockForTokenClassification.from_pretrained(tmp_path)
    model.take_classes(NAMES)
    assert "its classes have no names; assuming O, B-PER, I-PER" in caplog.text
    assert list(model.config.id2label.values()) == NAMES


def test_other_classes_are_refused_with_both_lists(tmp_path):
    save(tmp_path)
    with pytest.raises(ConfigError) as raised:
        StockForTokenClassification.from_pretrained(tmp_path).take_classes(["O", "B-LOC", "I-LOC"])
    assert str(raised.value) == (
        f"checkpoint={tmp_path}: its head has the classes O, B-PER, I-PER; the data have O, B-LOC, I-LOC"
    )


def test_macs_equal_those_of_plain_albert(tmp_path):
    """Compare with another family on the same network, whose formula has a test of its own."""
    torch.manual_seed(0)
    PlainAlbertForSequenceClassification(AlbertConfig(**SMALL, num_labels=3)).save_pretrained(tmp_path)
    ours = StockForSequenceClassification.from_pretrained(tmp_path)
    theirs = PlainAlbertForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = draw_texts()
    assert isinstance(ours, AlbertForSequenceClassification)
    for actual, expected in zip(ours.price(ours(**batch).trace), theirs.price(theirs(**batch).trace), strict=True):
        assert actual == expected


def test_macs_of_a_tagger_equal_their_formula(tmp_path):
    save(tmp_path)
    model = StockForTokenClassification.from_pretrained(tmp_path)
    work = model.price(model(**draw_texts((9, 6, 2), 11)).trace)

    def compute_macs(length):
        return length * (DEPTH * (4 * WIDTH**2 + 2 * length * WIDTH + 2 * WIDTH * 48) + WIDTH * 3)

    assert work.adaptive == work.full == sum(map(compute_macs, (9, 6, 2)))
    assert work.executed == work.dense == 3 * compute_macs(11)


def test_macs_of_distilbert_count_both_layers_of_its_head_once(tmp_path):
    save(tmp_path, "distilbert", "sequence")
    model = StockForSequenceClassification.from_pretrained(tmp_path)
    block = 4 * WIDTH**2 + 2 * 5 * WIDTH + 2 * WIDTH * 48
    assert model.price(model(**draw_texts((5,), 5)).trace).full == 5 * DEPTH * block + WIDTH * WIDTH + WIDTH * 3


def test_training_keeps_a_head_of_the_same_classes(tmp_path):
    theirs, batch = save(tmp_path), draw_texts()
    model = build(tmp_path, ["B-PER", "I-PER", "O"])
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, theirs(**batch).logits[..., [1, 2, 0]])


@pytest.mark.parametrize("names", keep_one_quick(2, [["O", "B-LOC", "I-LOC"], ["O", "B-LOC"]]))
def test_training_starts_with_a_new_head_for_other_classes(names, tmp_path, caplog):
    """Check equally many classes of other names: the head is new, the blocks are loaded."""
    theirs = save(tmp_path)
    model = build(tmp_path, names)
    assert "randomly initialised head, because the existing one predicts O, B-PER, I-PER" in caplog.text
    assert model.classifier.weight.shape[0] == len(names)
    assert not torch.isin(model.classifier.weight, theirs.classifier.weight).any()
    for name, weight in theirs.bert.state_dict().items():
        assert torch.equal(weight, model.bert.state_dict()[name]), name
    assert list(model.config.id2label.values()) == names


@pytest.mark.parametrize("kind", keep_one_quick(6, KINDS))
@pytest.mark.parametrize(("unit", "problem"), [("token", "tagging"), ("sequence", "classification")])
def test_training_starts_with_a_new_head_on_a_bare_model(kind, unit, problem, tmp_path, caplog):
    torch.manual_seed(0)
    bare = AutoModel.from_config(BASES[kind]).eval()
    bare.save_pretrained(tmp_path)
    model = build(tmp_path, problem=problem).train()
    assert not caplog.text
    weights = model.base_model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in bare.state_dict().items() if name in weights)
    batch = draw_texts()
    labels = batch["attention_mask"] if unit == "token" else torch.tensor([0, 2, 1])
    model(**batch, labels=labels).loss.backward()
    assert all(weight.grad is not None for weight in model.base_model.get_input_embeddings().parameters())


def test_a_regression_has_one_output(tmp_path):
    save(tmp_path, unit="sequence")
    settings = StockClassifierSettings(pretrained=str(tmp_path))
    model = build_classifier(settings, 120, {"num_labels": 1, "problem_type": "regression"}, "regression").eval()
    values = torch.tensor([0.5, 2.0, -1.0])
    output = model(**draw_texts(), labels=values)
    torch.testing.assert_close(output.loss, (output.logits.squeeze(-1) - values).square().mean())


def test_the_attention_implementation_is_configurable(tmp_path):
    save(tmp_path)
    assert build(tmp_path, attn_implementation="eager").config._attn_implementation == "eager"
    assert build(tmp_path, ["x", "y"], attn_implementation="eager").config._attn_implementation == "eager"


def test_invalid_models_are_refused(tmp_path):
    save(tmp_path / "tagger")
    save(tmp_path / "bart", "bart", "sequence")
    AutoModel.from_config(BASES["bert"]).save_pretrained(tmp_path / "bare")
    AlbertActForSequenceClassification(make_small_config()).save_pretrained(tmp_path / "act")
    settings = StockClassifierSettings()
    for head, folder, message in (
        (StockForSequenceClassification, "tagger", "contains a BertForTokenClassification, not a BertForSequenceClass"),
        (StockForTokenClassification, "bare", "contains a BertModel, not a BertForTokenClassification; model.p"),
        (StockForTokenClassification, "act", "transformers has no token classifier of albert_act"),
        (
            StockForSequenceClassification,
            "bart",
            "BartForSequenceClassification has an encoder and a decoder, which is not supported",
        ),
        (StockForTokenClassification, "nowhere", "neither a folder nor"),
    ):
        with pytest.raises(CheckpointError, match=message) as raised:
            load_model(str(tmp_path / folder), head, settings, [])
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="it has 120 tokens, the tokenizer 121"):
        build_classifier(StockClassifierSettings(pretrained=str(tmp_path / "tagger")), 121, build_fields(), "tagging")
    with pytest.raises(
        ConfigError, match="model_type=gpt2: its compute is unknown, because it declares none of intermediate_"
    ):
        StockForSequenceClassification.select_class(GPT2Config())
    with pytest.raises(DataError, match="labels: 3 is not a class"):
        build(tmp_path / "tagger")(**draw_texts(), labels=torch.full((3, 11), 3))


@pytest.mark.parametrize("head", [StockForSequenceClassification, StockForTokenClassification])
def test_inputs_of_the_trainer_are_arguments_of_the_forward_pass(head: Any) -> None:
    """Check that the trainer, which omits other inputs, passes the segments of pairs."""
    fed = {"input_ids", "attention_mask", "token_type_ids", "labels", "num_targets"}
    assert fed <= set(inspect.signature(head.forward).parameters)


# ---- classifiers that read the last token


def save_llama(folder, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.5, num_labels=3, **changes)
    LlamaForSequenceClassification(config).save_pretrained(folder)


TOKENS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [5, 1, 7, 1], [2, 3], [4, 4, 4, 4], [20, 21, 22], [30, 31, 32, 33]]


def pad_rows(rows, pad):
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("pad_token_id", [None, 0, 1], ids=["no pad", "another pad", "the tokenizer's pad"])
def test_padding_is_never_classified(pad_token_id, tmp_path):
    """Compare eight padded texts with each text alone without padding in the model of transformers."""
    save_llama(tmp_path, pad_token_id=pad_token_id)
    theirs = LlamaForSequenceClassification.from_pretrained(tmp_path).eval()
    model = StockForSequenceClassification.from_pretrained(tmp_path).eval()
    model.take_padding(1)
    ids, mask = pad_rows(TOKENS, pad=1)
    rows = [number for number, row in enumerate(TOKENS) if row[-1] != model.config.pad_token_id]
    with torch.no_grad():
        together = model(input_ids=ids, attention_mask=mask).logits
        for number in rows:
            alone = theirs.score(theirs.model(torch.tensor([TOKENS[number]])).last_hidden_state)[0, -1]
            padded_alone = model(input_ids=ids[number : number + 1], attention_mask=mask[number : number + 1]).logits
            torch.testing.assert_close(together[number], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(padded_alone[0], alone, atol=1e-5, rtol=1e-5)


def test_unknown_padding_is_refused_in_one_line(tmp_path):
    save_llama(tmp_path, pad_token_id=None)
    model = StockForSequenceClassification.from_pretrained(tmp_path).eval()
    ids, mask = pad_rows(TOKENS, pad=1)
    assert model(input_ids=ids[1:2]).logits.shape == (1, 3)
    for rows in (slice(0, 1), slice(0, 8)):
        with pytest.raises(ConfigError, match="pad_token_id=None: LlamaForSequenceClassification reads the last token"):
            model(input_ids=ids[rows], attention_mask=mask[rows])


def test_the_padding_token_of_the_tokenizer_is_saved(tmp_path):
    save_llama(tmp_path / "a", pad_token_id=None)
    words = tokenizer("bert")
    save_llama(tmp_path / "b", pad_token_id=None)
    model = StockForSequenceClassification.from_pretrained(tmp_path / "b")
    model.resize_token_embeddings(len(words))
    pipeline = Pipeline(model, words, batch_size=8)
    assert model.config.pad_token_id == words.pad_token_id
    together, alone = pipeline(["a cat", "stop that now"]), [pipeline(text)[0] for text in ("a cat", "stop that now")]
    assert [answer.scores for answer in together] == [pytest.approx(answer.scores, abs=1e-5) for answer in alone]
    model.save_pretrained(tmp_path / "c")
    loaded = StockForSequenceClassification.from_pretrained(tmp_path / "c")
    assert loaded.config.pad_token_id == words.pad_token_id
