"""Configurations of Adalayers: values taken from the base, round trips, and refused values."""

from __future__ import annotations

import pytest

from adadepth import AdaLayersConfig, AdaLayersForSequenceClassification, convert_reference_config
from adadepth.errors import CheckpointError, ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.adalayers_support import BASES, DEPTH, HEAD, WIDTH

BASE = {"base_config": BASES["bert"], **HEAD}


@pytest.mark.parametrize("kind", BASES)
def test_layers_and_widths_come_from_the_base(kind):
    config = AdaLayersConfig(base_config=BASES[kind])
    assert (config.layers_num, config.layer_in_dim, config.depth) == (DEPTH + 1, WIDTH, DEPTH)
    assert config.layer_states == (0, 1, 2, 3, 4)
    assert AdaLayersConfig(base_config=BASES[kind], include_embeddings=False).layer_states == (1, 2, 3, 4)


@pytest.mark.parametrize("kind", keep_one_quick(3, BASES))
def test_a_configuration_survives_a_round_trip(kind, tmp_path):
    config = AdaLayersConfig(base_config=BASES[kind], classes_weights=[1, 2.5, 0], num_labels=3, kept_layers=[0, 2])
    config.save_pretrained(tmp_path)
    loaded = AdaLayersConfig.from_pretrained(tmp_path)
    ignored = ("transformers_version",)
    fields, other = ({n: v for n, v in c.to_dict().items() if n not in ignored} for c in (config, loaded))
    assert type(loaded.base_config) is type(BASES[kind])
    assert fields == other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mix": "scaler"}, r"mix='scaler' must be one of projected, scalar \(did you mean 'scalar'\?\)"),
        ({"head": "mlp"}, "head='mlp' must be one of attention, linear"),
        ({"project_dim": 18}, "attention_heads_num=4 must divide project_dim=18"),
        ({"project_dim": 0}, "project_dim=0"),
        ({"attention_dropout_prob": 1.0}, r"attention_dropout_prob=1\.0"),
        ({"alpha_distribution": 0}, "alpha_distribution=0 must be above 0"),
        ({"lambda_distribution_depth": -1}, "lambda_distribution_depth=-1 must be at least 0"),
        ({"topk_distribution": 6}, "topk_distribution=6 must lie between 1 and 5, the number of layers"),
        ({"pick_one_layer_only": 5}, "pick_one_layer_only=5 must lie between -5 and 4"),
        ({"pick_one_layer_only": -6}, "pick_one_layer_only=-6 must lie between -5 and 4"),
        ({"distribution_cutoff": 0.2}, r"distribution_cutoff=0\.2 must lie in \[0, 1/5\)"),
        ({"distribution_cutoff": 0.2, "freeze_distribution": True}, r"distribution_cutoff=0\.2 must lie in \[0, 1/5\)"),
        ({"distribution_cutoff": -0.1}, r"distribution_cutoff=-0\.1"),
        ({"classes_weights": [1.0], "num_labels": 2}, r"classes_weights=\[1\.0\]: 1 weights for 2 classes"),
        ({"classes_weights": [1.0, -1.0]}, "must not be negative, nor all 0"),
        ({"classes_weights": [1.0], "num_labels": 1}, "only single-label classification"),
        ({"layers_num": 4}, "layers_num=4 must be 5, all hidden states; seed_compat=true allows fewer"),
        ({"layers_num": 6, "seed_compat": True}, "layers_num=6: the base has only 5 hidden states"),
        ({"layer_in_dim": 64}, "layer_in_dim=64: the states of the base have width 32"),
        ({"kept_layers": [2, 0]}, r"kept_layers=\[2, 0\] must be layers between 0 and 4 in increasing order"),
        ({"kept_layers": []}, r"kept_layers=\[\] must be layers"),
    ],
)
def test_invalid_values_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        AdaLayersConfig(**(BASE | fields))
    assert "\n" not in str(caught.value)


def test_unusual_but_valid_values_are_accepted():
    assert AdaLayersConfig(**BASE, pick_one_layer_only=-5, distribution_cutoff=0.5).layers == (0,)
    assert AdaLayersConfig(**BASE, layers_num=3, seed_compat=True).layer_states == (0, 1, 2)
    assert AdaLayersConfig(**(BASE | {"attention_dropout_prob": None})).attention_dropout_prob is None
    assert AdaLayersConfig(base_config=BASES["bert"], project_dim=18, head="linear").mixed_width == 18


def test_a_model_needs_a_base():
    with pytest.raises(ConfigError, match="base_config: missing"):
        AdaLayersForSequenceClassification(AdaLayersConfig(**HEAD))


def test_an_original_configuration_is_converted():
    config = convert_reference_config(
        "adalayers", {"num_classes": 9, "model_type": "other", "layers_num": 24, "layer_in_dim": 1024, "use_crf": False}
    )
    assert (config.model_type, config.num_labels, config.layers_num) == ("adalayers", 9, 24)
    assert (config.seed_compat, config.attention_dropout_prob) == (True, None)
    assert config.lambda_distribution_entropy == 0.02
    with pytest.raises(CheckpointError, match="use_crf: heads with a conditional random field"):
        convert_reference_config("adalayers", {"use_crf": True})
    with pytest.raises(CheckpointError, match="supported are adalayers and albert_act"):
        convert_reference_config("par", {})
