"""transformers' own tests of `generate` on looped language models, with each kind of cache, and with early exits.

No distribution of transformers has them: `ADADEPTH_GENERATION_TESTS=FOLDER pytest -m slow
tests/ecosystem/test_generation.py` takes a folder with `tests/generation/test_utils.py` and
`tests/test_modeling_common.py` of the repository. Nothing of the tests is changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import unittest
from types import ModuleType
from typing import Any

import pytest
import torch

import adadepth
from tests.ecosystem.model_tests import _Parameterized

_FOLDER = os.environ.get("ADADEPTH_GENERATION_TESTS")
_LOOPS = {"head_dim": 8, "prelude": 1, "core": 1, "coda": 1, "num_loops": 2}
_OWN_CACHE = {**_LOOPS, "cache_policy": "frozen", "exit_rule": "margin:0.001"}
BATCH, LENGTH = 3, 7


def _load_mixin(folder: str) -> Any:
    if "parameterized" not in sys.modules and importlib.util.find_spec("parameterized") is None:
        stand_in = ModuleType("parameterized")
        vars(stand_in)["parameterized"] = _Parameterized
        sys.modules["parameterized"] = stand_in
    package = ModuleType("transformers_generation_tests")
    package.__path__ = [f"{folder}/tests"]
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}.generation.test_utils").GenerationTesterMixin


class _Tester:
    """The model tester of those tests."""

    def __init__(self, config_class: type, fields: dict[str, Any]) -> None:
        self._config_class, self._fields = config_class, fields
        self.batch_size, self.seq_length = BATCH, LENGTH

    def get_config(self) -> Any:
        sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 37}
        tokens = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
        config = self._config_class(**sizes, **tokens, **self._fields)
        config.use_cache = True  # those tests read it to see whether there is a cache; generate's default is the same
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        ids = torch.randint(5, 99, (BATCH, LENGTH))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _build_test_class(name: str, model_class: Any, fields: dict[str, Any], skipped: dict[str, str]) -> type:
    if _FOLDER is None:
        return _Missing

    def setUp(self: Any) -> None:
        self.all_generative_model_classes = self.all_model_classes = (model_class,)
        self.model_tester = _Tester(model_class.config_class, fields)

    mixin = _load_mixin(_FOLDER)
    members: dict[str, Any] = {"setUp": setUp, "pytestmark": pytest.mark.slow, "has_attentions": False}
    for test, reason in skipped.items():
        members[test] = unittest.skip(reason)(getattr(mixin, test))
    return type(name, (mixin, unittest.TestCase), members)


class _Missing:
    @pytest.mark.slow
    def test_sources(self) -> None:
        pytest.skip("ADADEPTH_GENERATION_TESTS names no folder with transformers' tests of generation")


_FULL = "asks for cache_implementation=dynamic_full, which the installed transformers does not have"
_LATER = dict.fromkeys(
    (
        "test_assisted_decoding_matches_greedy_search_0_random",
        "test_assisted_decoding_matches_greedy_search_1_same",
        "test_assisted_decoding_sample",
    ),
    _FULL,
)
_FORMAT = "a cache with a policy has a layer for each that has weights, not one for each that a token passes"
_OTHER_FORMAT = dict.fromkeys(
    (
        "test_beam_search_generate_dict_outputs_use_cache",
        "test_greedy_generate_dict_outputs_use_cache",
        "test_past_key_values_format",
    ),
    _FORMAT,
)

_LOOPED, _EXITS = adadepth.LoopedForCausalLM, adadepth.EarlyExitForCausalLM
TestAll = _build_test_class("TestAll", _LOOPED, _LOOPS, _LATER)
TestFrozen = _build_test_class("TestFrozen", _LOOPED, _OWN_CACHE, {**_LATER, **_OTHER_FORMAT})
TestMean = _build_test_class("TestMean", _LOOPED, {**_OWN_CACHE, "cache_policy": "mean"}, {**_LATER, **_OTHER_FORMAT})
TestEarlyExit = _build_test_class("TestEarlyExit", _EXITS, {"num_hidden_layers": 2}, _LATER)
TestEarlyExitMargin = _build_test_class(
    "TestEarlyExitMargin", _EXITS, {"num_hidden_layers": 3, "exit_heads": "own", "exit_rule": "margin:0.001"}, _LATER
)
