"""Declarations of settings: ranges, choices, defaults, shapes and documentation that follow from them."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import StrEnum
from typing import Any

import pytest
from transformers import PreTrainedConfig

from adadepth.cli.keys import list_model_schemas
from adadepth.config import ContextConfig, SearchConfig
from adadepth.config.declaration import (
    BELOW_ONE,
    FINITE,
    OPEN_SHARE,
    POSITIVE,
    SHARE,
    Allowed,
    at_least,
    between,
    choices,
    drop_neutral,
    find_range_errors,
    format_help,
    get_field_specs,
    shapes,
)
from adadepth.models.albert_act.settings import AlbertActSettings
from adadepth.models.par_xl.settings import ParXLSettings
from adadepth.models.registry import family
from adadepth.models.shared.albert.configuration import AlbertShape


@pytest.mark.parametrize(("allowed", "inside", "outside"), [
    (at_least(1), [1, 7, 1e9], [0, -1, math.inf, math.nan]),
    (between(2, 8), [2, 8], [1, 9]),
    (POSITIVE, [1e-9], [0, -1, math.inf, math.nan]),
    (SHARE, [0, 0.5, 1], [-0.1, 1.1, math.nan]),
    (OPEN_SHARE, [0.5], [0, 1]),
    (BELOW_ONE, [0, 0.99], [1, -0.1]),
    (FINITE, [-3, 0], [math.inf, math.nan]),
], ids=["at least", "between", "positive", "share", "open share", "below one", "finite"])  # fmt: skip
def test_ranges(allowed: Allowed, inside: list[float], outside: list[float]) -> None:
    assert all(map(allowed.test, inside))
    assert not any(map(allowed.test, outside))


def test_a_value_out_of_range_is_a_line_with_its_key() -> None:
    search = SearchConfig(tau_end=0, sampled_paths=0)
    assert list(find_range_errors(search, "search.")) == [
        "search.tau_end=0: must be above 0",
        "search.sampled_paths=0: must be at least 1",
    ]


def test_none_is_valid_in_every_range() -> None:
    assert list(find_range_errors(ContextConfig())) == []


def test_choices_follow_from_the_type() -> None:
    assert choices(AlbertActSettings)["cap_remainder"] == ("reference", "penalty", "forced")
    assert "attn_implementation" in choices(AlbertActSettings)


def test_settings_that_determine_shapes_are_declared() -> None:
    assert {"hidden_size", "vocab_size"} <= set(shapes(AlbertActSettings))
    assert "act_penalty" not in shapes(AlbertActSettings)
    assert {"architecture", "cutoffs"} <= set(shapes(ParXLSettings))
    assert "type_vocab_size" in shapes(family("albert_act").config())


def test_settings_that_cannot_change_a_result_are_left_out() -> None:
    assert "timing_repeats" not in drop_neutral(SearchConfig, dataclasses.asdict(SearchConfig()))


def test_a_default_list_is_not_shared() -> None:
    ParXLSettings().cutoffs.append(3)
    assert ParXLSettings().cutoffs == []


# Settings of a base of transformers, which has its own value where the setting is null.
OF_A_BASE = {"max_position_embeddings", "num_key_value_heads", "tie_word_embeddings", "initializer_range"}


@pytest.mark.parametrize("name", [name for name in list_model_schemas() if name != "albert"])
def test_a_configuration_has_every_setting_of_a_model_with_the_declared_default(name: str) -> None:
    specs, config = get_field_specs(family(name).settings), family(name).config()()
    settings = family(name).settings()
    for field, spec in specs.items():
        if (
            spec.in_model
            and field != "layers_num"
            and field not in (OF_A_BASE if name in ("early_exit", "routed") else SPECIAL)
        ):
            default = spec.hub if spec.differs_on_hub else getattr(settings, field)
            assert getattr(config, field) == default, field


def test_defaults_of_files_and_settings_differ_only_where_listed() -> None:
    """Check defaults of published configurations, which name no newer field and must keep their meaning."""
    differing = {
        name: {field for field, spec in get_field_specs(schema).items() if spec.differs_on_hub}
        for name, schema in list_model_schemas().items()
    }
    sizes = {
        "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "hidden_act", "max_position_embeddings",
    }  # fmt: skip
    assert differing == {
        "adalayers": {"base_model"},
        "albert": sizes,
        "albert_act": sizes | {"act_penalty"},
        "early_exit": sizes - {"embedding_size", "hidden_act"},
        "looped": {"geometric_truncation", "vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"},
        "multi_exit_albert": sizes | {"exit_rule"},
        "par_xl": {"vocab_size"},
        "routed": sizes - {"embedding_size", "hidden_act"},
        "ponder_albert": sizes | {"target_halt_probability", "truncation", "exit_rule"},
        "ponder_rnn": {"target_halt_probability", "truncation", "exit_rule"},
        "stock_classifier": set(),
        "trm": {"vocab_size"},
    }


OWN_CONFIGS = [name for name in list_model_schemas() if family(name).config().__module__.startswith("adadepth.")]
# Fields of every language model in transformers; a family only gives them other defaults.
SPECIAL = {"pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"}


@pytest.mark.parametrize("name", OWN_CONFIGS)
def test_every_field_of_a_configuration_is_declared_and_in_its_docstring(name: str) -> None:
    config_class = family(name).config()
    fields = {field.name for field in dataclasses.fields(config_class)}
    fields -= SPECIAL | {field.name for field in dataclasses.fields(PreTrainedConfig)}
    specs = get_field_specs(config_class)
    assert fields == specs.keys() - SPECIAL
    for field, spec in specs.items():
        text = " ".join(config_class.__doc__.split())
        assert f" {field}: {spec.help}" in text
        assert spec.more in text


def list_json_types(annotation: Any) -> set[Any]:
    """Return the types of a setting as JSON keeps them: choices are strings, and a number may have lost its point."""
    if isinstance(annotation, types.UnionType):
        return set().union(*map(list_json_types, typing.get_args(annotation)))
    if typing.get_origin(annotation) is list:
        return {(list, *list_json_types(*typing.get_args(annotation)))}
    if annotation is float:
        return {int, float}
    return {str if issubclass(annotation, StrEnum) else annotation}


@pytest.mark.parametrize("name", OWN_CONFIGS)
def test_a_configuration_has_the_types_and_defaults_of_the_settings(name: str) -> None:
    """Check that a field is never null where a file without it means something, though the setting may be."""
    config_class = family(name).config()
    settings, stored = config_class.settings_class, {field.name: field for field in dataclasses.fields(config_class)}
    hints, specs = typing.get_type_hints(settings), get_field_specs(settings)
    for field in (
        candidate
        for candidate in dataclasses.fields(settings)
        if candidate.name in specs and specs[candidate.name].in_model
    ):
        spec = specs[field.name]
        default = spec.hub if spec.differs_on_hub else get_default(field)
        assert get_default(stored[field.name]) == default, field.name
        nullable = {types.NoneType} if spec.differs_on_hub and spec.hub is None else set()
        expected = list_json_types(hints[field.name]) - ({types.NoneType} if spec.differs_on_hub else set()) | nullable
        if name in ("early_exit", "routed") and field.name in OF_A_BASE:  # a base need not have it
            expected |= {types.NoneType}
        assert list_json_types(stored[field.name].type) == expected, field.name


def get_default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def test_a_configuration_without_a_setting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Other: lacks act_epsilon, .*, which AlbertActSettings declares$"):

        class Other(AlbertShape, settings=AlbertActSettings):
            act_penalty: int | float = 0.0


def test_a_docstring_has_choices_and_explanation_and_the_help_choices_only() -> None:
    spec = get_field_specs(AlbertActSettings)["cap_remainder"]
    assert format_help(spec, choices(AlbertActSettings)["cap_remainder"]) == (
        "cost and output weight of a token that reaches L without halting; one of reference, penalty, forced"
    )
    assert "one of reference, penalty, forced. `reference`: no remainder" in " ".join(
        family("albert_act").config().__doc__.split()
    )


def test_gate_settings_of_a_model_are_those_of_the_search() -> None:
    config_class = family("par_xl").config()
    specs, search_specs = get_field_specs(config_class), get_field_specs(SearchConfig)
    for name in ("tau_start", "tau_end", "tau_schedule", "straight_through", "latency_weight"):
        assert specs[name] is search_specs[name]
    assert specs["gate_path"] is search_specs["path"]
    assert specs["clamp_length"] is get_field_specs(ContextConfig)["clamp_length"]
    assert config_class().gate_path == "soft"


def test_the_name_of_a_family_is_that_of_its_configuration() -> None:
    for name in OWN_CONFIGS:
        assert family(name).config().model_type == family(name).name == name
        assert "name" not in get_field_specs(family(name).config())
