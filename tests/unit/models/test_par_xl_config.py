"""Configurations of PAR Transformer-XLs: derived values, round trips and refused values."""

from __future__ import annotations

import pytest

from adadepth import ParXLConfig
from adadepth.errors import ConfigError


def test_an_architecture_fixes_the_number_of_blocks():
    config = ParXLConfig(architecture=" sf-s ")
    assert (config.architecture, config.num_hidden_layers) == ("sf-s", 4)
    assert config.operations == ("s", "f", "-", "s")
    assert config.path == [0, 1, 2, 0]
    assert ParXLConfig(num_hidden_layers=2).operations == ("sf-", "sf-")


def test_a_configuration_survives_a_round_trip(tmp_path):
    config = ParXLConfig(
        architecture="sfff", cutoffs=[250, 2500], clamp_length=400, latency_weight=0.1, operation_costs=[2, 1.5, 0]
    )
    config.save_pretrained(tmp_path)
    loaded = ParXLConfig.from_pretrained(tmp_path)
    fields, other = ({n: v for n, v in c.to_dict().items() if n != "transformers_version"} for c in (config, loaded))
    assert fields == other


def test_defaults_are_not_shared():
    first, second = ParXLConfig(), ParXLConfig()
    first.cutoffs.append(5)
    assert second.cutoffs == []


def test_costs_are_relative_to_attention_and_feed_forward_in_turn():
    config = ParXLConfig(num_hidden_layers=3, operation_costs=[2, 6, 0])
    assert config.relative_costs == pytest.approx([0.2, 0.6, 0.0])
    assert ParXLConfig().relative_costs is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "sfx"}, "architecture=.*: 'x' at block 3 .*; allowed: s"),
        ({"architecture": ""}, "architecture='': no blocks; allowed: s"),
        ({"num_attention_heads": 3}, "num_attention_heads=3 must divide hidden_size=128"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"memory_length": -1}, "memory_length=-1 must be at least 0"),
        ({"clamp_length": -1}, "clamp_length=-1"),
        ({"cutoffs": [2500, 250]}, r"cutoffs=\[2500, 250\]: must increase and stay below vocab_size=12000"),
        ({"cutoffs": [250, 12000]}, r"cutoffs=\[250, 12000\]: "),
        ({"cutoffs": [250], "proj_dims": [32, 8]}, r"proj_dims=\[32, 8\]: must be 1 positive width"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob=1\.0"),
        ({"output_dropout_prob": 1.0}, r"output_dropout_prob=1\.0"),
        ({"tau_start": 0}, "tau_start=0 must be above 0"),
        ({"tau_end": -0.5}, r"tau_end=-0\.5 must be above 0"),
        ({"tau_schedule": "exp"}, "tau_schedule='exp' must be one of exponential, linear, cosine"),
        ({"gate_path": "sample"}, r"gate_path='sample' must be one of soft, sampled \(did you mean 'sampled'\?\)"),
        ({"branch_norm": "pre"}, "branch_norm='pre' must be one of per_branch, paper"),
        ({"attention_scale": "sqr"}, r"attention_scale='sqr' must be one of sqrt, linear \(did you mean 'sqrt'\?\)"),
        ({"attention_out_act": "gelu"}, "attention_out_act='gelu' must be one of none, relu"),
        ({"gate_seed": -1}, "gate_seed=-1 must be at least 0"),
        ({"latency_weight": -1}, "latency_weight=-1 must be at least 0"),
        ({"latency_weight": 0.1}, r"latency_weight=0\.1 needs operation_costs"),
        ({"operation_costs": [1.0, 1.0]}, r"operation_costs=\[1\.0, 1\.0\]: must be three values"),
        ({"operation_costs": [0, 1, 0]}, r"operation_costs=\[0, 1, 0\]: must be three values, for attention \(> 0\)"),
    ],
)
def test_invalid_values_are_refused_in_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        ParXLConfig(**fields)
    assert "\n" not in str(caught.value)
