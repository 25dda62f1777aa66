"""PonderALBERT as a transformers model: configuration, loading, heads, losses, inputs as text, and compute."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from adadepth import (
    AlbertActForPreTraining,
    MultiExitAlbertForSequenceClassification,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    PonderAlbertForSequenceClassification,
    PonderClassificationLoss,
)
from adadepth.data.text.special_tokens import Layout
from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.halting.trace import DepthTrace, Execution
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_padded_batch, make_small_config, make_small_ponder

HEADS = [
    {"readout": readout, "halting_head": head, "halting_head_layers": layers}
    for readout in ("tokens", "pooler")
    for head, layers in (("mlp", 1), ("linear", 1), ("linear_cat", 1), ("linear_cat", 3), ("linear_diff", 2))
]


def build_untrained(**changes):
    return PonderAlbertForSequenceClassification(PonderAlbertConfig(**(SMALL | changes)))


# ---- configuration


def test_defaults_are_those_of_the_original():
    config = PonderAlbertConfig()
    defaults = {
        "prior": "geometric",
        "target_halt_probability": 0.1,
        "kl_penalty_factor": 0.01,
        "ce_normalisation": "sum",
        "kl_direction": "posterior_prior",
        "truncation": "renormalise",
        "readout": "tokens",
        "halting_head": "mlp",
        "head_size": 128,
        "double_cls_pairs": "first",
        "exit_rule": "sample",
    }
    assert {name: getattr(config, name) for name in defaults} == defaults
    assert config.cls_tokens == 2
    assert PonderAlbertConfig(readout="pooler").cls_tokens == 1
    assert PonderAlbertConfig(num_hidden_layers=43).max_updates == 43


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_halt_probability": 0.0}, "target_halt_probability=0.0"),
        ({"target_halt_probability": 1.0}, "target_halt_probability=1.0"),
        ({"target_halt_probability": 1}, "target_halt_probability=1 "),
        ({"target_halt_probability": -0.2}, "target_halt_probability=-0.2 must be above 0"),
        ({"kl_penalty_factor": -1.0}, "kl_penalty_factor=-1.0 must be at least 0"),
        ({"kl_direction": "prior_postrior"}, "did you mean 'prior_posterior'"),
        ({"prior": "unifrom"}, "did you mean 'uniform'"),
        ({"truncation": "renormalize"}, "did you mean 'renormalise'"),
        ({"halting_head": "linear_diff", "halting_head_layers": 0}, "halting_head_layers=0"),
        ({"halting_head_layers": 3}, "halting_head_layers=3: the mlp head supports no further layers"),
        ({"exit_rule": "quantil:0.5"}, "did you mean 'quantile'"),
        ({"num_hidden_groups": 2}, "num_hidden_groups=2 must be 1, the only supported value"),
        ({"inner_group_num": 2}, "inner_group_num=2 must be 1, the only supported value"),
    ],
)
def test_invalid_configurations_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        PonderAlbertConfig(**(SMALL | changes))
    assert "\n" not in str(caught.value)


def test_constructor_takes_the_configuration_of_another_albert():
    source = AlbertConfig(**SMALL, num_labels=3, problem_type="single_label_classification")
    model = PonderAlbertClassifier(source, target_halt_probability=0.2, readout="pooler")
    assert type(model.config) is PonderAlbertConfig
    assert (model.config.hidden_size, model.config.num_labels) == (32, 3)
    assert (model.config.target_halt_probability, model.config.readout) == (0.2, "pooler")
    original = PonderAlbertConfig(**SMALL, num_labels=3, kl_penalty_factor=0.5)
    assert PonderAlbertClassifier(original).config is original
    changed = PonderAlbertClassifier(original, num_labels=1, truncation="leftover").config
    assert (changed.num_labels, changed.truncation, changed.kl_penalty_factor) == (1, "leftover", 0.5)
    assert original.truncation == "renormalise"
    for config in (source, original):
        with pytest.raises(ConfigError, match="did you mean 'target_halt_probability'"):
            PonderAlbertClassifier(config, target_halt_probabilty=0.2)


# ---- layout, saving, loading


def test_a_checkpoint_is_loaded_at_another_depth(tmp_path):
    model = make_small_ponder()
    model.save_pretrained(tmp_path)
    deeper = PonderAlbertForSequenceClassification.from_pretrained(
        tmp_path, num_hidden_layers=43, target_halt_probability=0.2
    )
    batch = make_padded_batch()
    with torch.no_grad():
        expected, got = model(**batch, run_all_steps=True), deeper(**batch, run_all_steps=True)
    assert got.step_logits.shape == (3, 43, 2)
    assert torch.equal(got.step_logits[:, :6], expected.step_logits)
    torch.testing.assert_close(got.prior.pmf[1] / got.prior.pmf[0], torch.tensor(0.8))


def test_any_albert_of_one_group_is_loaded(tmp_path):
    """Load the encoder without task heads, which are new."""
    torch.manual_seed(0)
    for source_class, with_pooler in ((AlbertForMaskedLM, False), (AlbertForSequenceClassification, True)):
        source = source_class(AlbertConfig(**SMALL))
        source.save_pretrained(tmp_path / source_class.__name__)
        for readout in ("tokens", "pooler"):
            model, theirs = load_and_name(tmp_path / source_class.__name__, source, readout=readout)
            for name, value in model.albert.state_dict().items():
                if name in theirs:
                    assert torch.equal(value, theirs[name]), name
            absent = {"pooler.weight", "pooler.bias"} if readout == "pooler" and not with_pooler else set()
            assert {*model.albert.state_dict()} - {*theirs} == absent
            assert all(parameter.isfinite().all() for parameter in model.parameters())


def load_and_name(path, source, **changes):
    """Load the model of a folder, and the source's encoder under this project's names."""
    model = PonderAlbertForSequenceClassification.from_pretrained(
        path, num_hidden_layers=43, target_halt_probability=0.2, **changes
    )
    assert (model.config.num_hidden_layers, model.config.target_halt_probability) == (43, 0.2)
    assert not model.training
    inner = "encoder.albert_layer_groups.0.albert_layers.0."
    renamed = {
        name.replace(f"{inner}attention.LayerNorm", "encoder.albert_layer.LayerNorm").replace(
            inner, "encoder.albert_layer."
        ): value
        for name, value in source.albert.state_dict().items()
    }
    return model, renamed


@pytest.mark.parametrize(
    ("model_class", "changes"),
    [
        (PonderAlbertForSequenceClassification, {"readout": "tokens"}),
        (PonderAlbertForSequenceClassification, {"readout": "pooler"}),
        (MultiExitAlbertForSequenceClassification, {}),
    ],
)
def test_the_encoder_of_act_albert_is_loaded(model_class, changes, tmp_path):
    source = AlbertActForPreTraining(make_small_config(halt_bias_init=3.0))
    source.save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path, num_labels=3, **changes)
    theirs = source.albert.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.albert.state_dict().items())
    assert model.config.num_labels == 3
    assert not {"act_epsilon", "state_rule"} & {*model.config.to_dict()}


def test_a_configuration_is_accepted_with_any_checkpoint(tmp_path):
    AlbertForMaskedLM(AlbertConfig(**SMALL)).save_pretrained(tmp_path / "albert")
    build_untrained().save_pretrained(tmp_path / "own")
    for folder in ("albert", "own"):
        config = PonderAlbertConfig(**(SMALL | {"num_hidden_layers": 9, "kl_penalty_factor": 0.3}))
        model = PonderAlbertForSequenceClassification.from_pretrained(tmp_path / folder, config=config)
        assert (model.config.max_updates, model.config.kl_penalty_factor) == (9, 0.3)
        assert model.config.name_or_path == str(tmp_path / folder)


def test_unsupported_checkpoints_are_refused(tmp_path):
    AlbertForMaskedLM(AlbertConfig(**SMALL, num_hidden_groups=2)).save_pretrained(tmp_path / "groups")
    AlbertForMaskedLM(AlbertConfig(**SMALL, inner_group_num=2)).save_pretrained(tmp_path / "inner")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for folder, message in (
        ("groups", "num_hidden_groups=2, inner_group_num=1; only one group of one layer"),
        ("inner", "num_hidden_groups=1, inner_group_num=2; only one group of one layer"),
        (
            "bert",
            "contains a model of type bert; PonderAlbertForSequenceClassification reads ponder_albert, albert or alb",
        ),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            PonderAlbertForSequenceClassification.from_pretrained(tmp_path / folder)
        assert "\n" not in str(caught.value)
    AlbertForMaskedLM(AlbertConfig(**SMALL)).save_pretrained(tmp_path / "albert")
    with pytest.raises(ConfigError, match="did you mean 'target_halt_probability'"):
        PonderAlbertForSequenceClassification.from_pretrained(tmp_path / "albert", target_halt_probabilty=0.2)


# ---- heads


@pytest.mark.parametrize("changes", keep_one_quick(4, HEADS))
def test_every_parameter_is_initialised_and_trained(changes):
    torch.manual_seed(0)
    model = build_untrained(num_labels=3, halt_bias_init=-2.5, **changes).train()
    assert model.ponder[-1].bias.item() == -2.5
    outputs = model(**make_padded_batch(), labels=torch.tensor([0, 2, 1]))
    outputs.loss.backward()
    assert not {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert (model.albert.pooler is None) == (changes["readout"] == "tokens")


def test_the_halting_bias_survives_loading(tmp_path):
    model = build_untrained(halt_bias_init=-2.5)
    with torch.no_grad():
        model.ponder[-1].bias.fill_(0.25)
    model.save_pretrained(tmp_path)
    loaded = PonderAlbertForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.ponder[-1].bias.item() == 0.25


@pytest.mark.parametrize("head", ["linear", "linear_cat", "linear_diff"])
def test_halting_heads_equal_those_of_palbert(head):
    """Check z_n = w f_n + b with features f, features with their predecessor's, or their difference."""
    model = make_small_ponder(readout="pooler", halting_head=head)
    pooled = []

    def record(state):
        pooled.append(torch.tanh(model.albert.pooler(state[:, 0])))
        return pooled[-1]

    model.albert.pooled = record
    with torch.no_grad():
        outputs = model(**make_padded_batch(), run_all_steps=True)
        previous = torch.zeros_like(pooled[0])
        for step, features in enumerate(pooled):
            seen = {
                "linear": features,
                "linear_cat": torch.cat([features, previous], dim=1),
                "linear_diff": features - previous,
            }[head]
            unit = model.ponder[0]
            expected = seen @ unit.weight[0] + unit.bias
            torch.testing.assert_close(outputs.halting_logits[:, step], expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(outputs.step_logits[:, step], model.classifier(features))
            previous = features


def test_the_halting_head_of_palbert_has_several_layers():
    widths = [type(module) for module in build_untrained(halting_head="linear_cat", halting_head_layers=3).ponder]
    assert widths[:-1] == [nn.Linear, nn.Tanh] * 3
    assert build_untrained(halting_head="linear_cat", halting_head_layers=3).ponder[0].weight.shape == (64, 64)
    assert len(build_untrained(halting_head="linear_cat").ponder) == 1


def test_dropout_reaches_the_pooled_readout_only():
    batch = make_padded_batch()
    for readout, varies in (("pooler", True), ("tokens", False)):
        model = build_untrained(readout=readout, classifier_dropout_prob=0.5).train()
        first, second = (model(**batch).step_logits for _ in range(2))
        assert torch.equal(first, second) != varies


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_halting_is_float32_in_low_precision(precision):
    model, batch = make_small_ponder(), make_padded_batch()
    with torch.no_grad():
        exact = model(**batch, run_all_steps=True)
        with torch.autocast("cpu", dtype=precision):
            autocast = model(**batch, run_all_steps=True)
        low = model.to(precision)(**batch, run_all_steps=True)
    for outputs in (autocast, low):
        for name in ("step_logits", "halting_logits", "halting_probabilities", "logits"):
            assert outputs[name].dtype == torch.float32, name
        torch.testing.assert_close(outputs.posterior.pmf, exact.posterior.pmf, atol=0.1, rtol=0)
        torch.testing.assert_close(outputs.posterior.pmf.sum(dim=1), torch.ones(3))


# ---- losses


def test_the_expectation_of_a_regression_is_a_weighted_mean():
    model, batch = make_small_ponder(num_labels=1), make_padded_batch()
    outputs = model(**batch, run_all_steps=True)
    mixed = model(**batch, exit_rule="expectation").logits
    survival = torch.cumprod(1 - outputs.halting_probabilities, dim=1)
    weights = outputs.halting_probabilities * torch.nn.functional.pad(survival[:, :-1], (1, 0), value=1.0)
    weights[:, -1] = survival[:, -2]
    torch.testing.assert_close(mixed, (weights * outputs.step_logits.squeeze(-1)).sum(dim=1, keepdim=True))


def test_the_criterion_equals_the_loss_of_the_model():
    model = make_small_ponder(num_labels=3, kl_penalty_factor=0.3, kl_direction="prior_posterior")
    batch, labels = make_padded_batch(), [2, 0, 1]
    expected = model(**batch, labels=torch.tensor(labels))
    criterion = PonderClassificationLoss(kl_penalty_factor=0.3, kl_direction="prior_posterior")
    prediction = model(**batch, run_all_steps=True)
    for targets in (labels, torch.tensor(labels)):
        losses = criterion(prediction, targets)
        torch.testing.assert_close(losses["total_loss"], expected.loss)
        torch.testing.assert_close(losses["task"], expected.loss_parts["task"])
        torch.testing.assert_close(losses["kl"], expected.loss_parts["kl"])
    with pytest.raises(ValueError, match="the loss needs every step"):
        criterion(model(**batch), labels)
    with pytest.raises(DataError, match="labels: 99 is not a class of this model"):
        criterion(prediction, [0, 99, 1])


def test_unsupported_labels_are_refused():
    model = make_small_ponder(num_labels=3)
    model.config.problem_type = "regression"
    with pytest.raises(ConfigError, match="problem_type=regression with 3 outputs"):
        model(**make_padded_batch(), labels=torch.ones(3, 3))


@pytest.mark.parametrize(
    ("labels", "rule", "message"),
    [
        (3, "fixed:7", "the model has 6 steps"),
        (1, "entropy:0.3", "this is a regression"),
        (3, "confidnce:0.3", "did you mean 'confidence'"),
    ],
)
def test_unsupported_rules_are_refused(labels, rule, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_small_ponder(num_labels=labels)(**make_padded_batch(), exit_rule=rule)
    assert "\n" not in str(caught.value)


# ---- texts


@pytest.fixture(scope="module")
def tokenizer():
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f", "g", "h"]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


PAIRS = [("a b", "c"), ("a", "b c d"), ("a b c d e f g h", "a b c"), ("a b c d", "e f g h"), ("h " * 9, "a " * 8)]


@pytest.mark.parametrize("readout", keep_one_quick(2, ["tokens", "pooler"]))
@pytest.mark.parametrize("double", keep_one_quick(2, ["first", "both"]))
def test_texts_are_encoded_as_in_datasets(tokenizer, readout, double):
    """Compare with collated batches: special token in front or in both texts of a pair, the longer text truncated."""
    model = make_small_ponder(max_position_embeddings=10, readout=readout, double_cls_pairs=double)
    model.tokenizer = tokenizer
    layout = Layout.from_tokenizer(tokenizer, 10, model.config.cls_tokens, double)
    for texts in ([("a b",), ("a b c d e f g h a b c",), ("",)], PAIRS):
        parts = [[torch.tensor(tokenizer(text)["input_ids"]).numpy() for text in example] for example in texts]
        rows = [layout.build(example) for example in parts]
        inputs = [example[0] if len(example) == 1 else example for example in texts]
        with torch.no_grad():
            outputs = model(inputs, exit_rule="quantile:0.5")
            for row, expected in enumerate(rows):
                ids = torch.from_numpy(expected["input_ids"]).unsqueeze(0)
                segments = torch.from_numpy(expected["token_type_ids"]).unsqueeze(0)
                single = model(ids, token_type_ids=segments, exit_rule="quantile:0.5")
                torch.testing.assert_close(outputs.logits[row], single.logits[0], atol=1e-5, rtol=0)
                assert outputs.trace.execution.tokens[row] == ids.shape[1]


def test_the_tokenizer_is_loaded_from_the_folder_of_the_weights(tokenizer, tmp_path):
    model = make_small_ponder()
    with pytest.raises(ConfigError, match="a call with texts needs a tokenizer"):
        model(["a b"])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = PonderAlbertForSequenceClassification.from_pretrained(tmp_path)
    model.tokenizer = tokenizer
    with torch.no_grad():
        expected = model(["a b", "c"], exit_rule="fixed:2").logits
        assert torch.equal(loaded(["a b", "c"], exit_rule="fixed:2").logits, expected)
    with pytest.raises(ValueError, match="no texts"):
        model([])


def test_pairs_are_accepted_in_the_format_of_the_original(tokenizer):
    """Pass two lists, all first and all second texts: the n-th pair is the n-th of each."""
    model = make_small_ponder()
    model.tokenizer = tokenizer
    first, second = map(list, zip(*PAIRS[:3], strict=True))
    with torch.no_grad():
        for count in (1, 2, 3):
            expected = model(PAIRS[:count], exit_rule="fixed:2").logits
            assert torch.equal(model((first[:count], second[:count]), exit_rule="fixed:2").logits, expected)
            rows = [list(pair) for pair in PAIRS[:count]]
            assert torch.equal(model(rows, exit_rule="fixed:2").logits, expected)
        assert torch.equal(
            model((PAIRS[0], PAIRS[1]), exit_rule="fixed:2").logits, model(PAIRS[:2], exit_rule="fixed:2").logits
        )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((["a", "b"], ["c"]), "texts: 2 first texts and 1 second texts"),
        ((["a", "b"], []), "texts: 2 first texts and 0 second texts"),
        (([], []), "texts: no texts to encode"),
        ([("a", "b", "c")], "texts: item 1 is neither a text nor a pair of texts"),
        (["a", 3], "texts: item 2 is neither"),
        ([None], "texts: item 1 is neither"),
        (["a", ("b", None)], "texts: item 2 is neither"),
        ("a b c", "texts: must be a list of texts, not one text"),
    ],
)
def test_invalid_texts_are_refused_in_one_line(tokenizer, texts, message):
    model = make_small_ponder()
    model.tokenizer = tokenizer
    with pytest.raises(DataError, match=message) as raised:
        model(texts)
    assert "\n" not in str(raised.value)


# ---- compute


def test_macs_equal_a_plain_loop():
    model = make_small_ponder(num_labels=3, halting_head="linear_cat", readout="pooler")
    lengths = (10, 7, 2, 12)
    batch = {name: nn.functional.pad(value, (0, 4)) for name, value in make_padded_batch(lengths).items()}
    with torch.no_grad():
        outputs = model(**batch, exit_rule="quantile:0.5")
    hidden, inner, entry, heads = 32, 64, 16 * 32, 32 * 32 + 32 * 3 + 2 * 32

    def step(length):
        return length * (4 * hidden**2 + 2 * length * hidden + 2 * hidden * inner) + heads

    exits = outputs.exit_steps.tolist()
    work = model.price(outputs.trace)
    assert work.adaptive.item() == sum(n * step(t) + t * entry for n, t in zip(exits, lengths, strict=True))
    assert work.full.item() == sum(6 * step(t) + t * entry for t in lengths)
    executed = 4 * 16 * entry
    for number in range(1, max(exits) + 1):
        running = [t for n, t in zip(exits, lengths, strict=True) if n >= number]
        executed += sum(t * (4 * hidden**2 + 2 * hidden * inner) + 2 * max(running) ** 2 * hidden for t in running)
        executed += len(running) * heads
    assert work.executed.item() == executed
    assert work.dense.item() == 4 * (16 * entry + max(exits) * step(16))
    exits_alone = DepthTrace(
        unit="sequence",
        updates=outputs.exit_steps.float(),
        valid=torch.ones(4, dtype=torch.bool),
        max_updates=6,
        execution=Execution(max(exits), tokens=torch.tensor(lengths)),
    )
    assert model.price(exits_alone)[2:] == work[2:], "the compute of exits is known without running them"
    assert len(set(exits)) > 1
