"""transformers' own tests of models, from its source distribution (`make model-tests`), and their view of a family.

The distribution has `tests/test_modeling_common.py` and none of the folders beside it, so the mixins for generation and
export, which it imports from there, are empty here. The tests are used unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import unittest
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.models.registry import families

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / ".cache" / "model-tests" / f"transformers-{transformers.__version__}" / "tests"
_PACKAGE = "transformers_model_tests"
_STRICT = {
    "test_model_weights_reload_no_missing_tied_weights": "it loads a file without any weight, which is refused: drawn "
    "at random, they would pass for trained",
}
_MAPPINGS = {
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "tagging": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question_answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "multiple_choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "language_model": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModel": "MODEL_MAPPING_NAMES",
}

BATCH, LENGTH = 3, 7


@dataclass(frozen=True)
class ModelCase:
    """A family, or a part of it, as transformers' tests see it.

    Attributes:
        name: Name of the test class.
        config: Makes a small configuration with two layers at most.
        models: Gives the classes; called only where the sources are there.
        inputs: Makes the inputs of a batch, without labels.
        labels: Makes labels of classes for which transformers' tests know none, by class name.
        skipped: Test -> why no model of this family can have it, or why it says nothing of it.
        attributes: Further attributes of the test class, as those tests describe a model.
        shape: Gives the configuration that says how wide and deep the model is, where that is not its own.
    """

    name: str
    config: Callable[[], PreTrainedConfig]
    models: Callable[[], Iterable[type]]
    inputs: Callable[[PreTrainedConfig], dict[str, Tensor]]
    labels: Mapping[str, Callable[[], dict[str, Tensor]]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[PreTrainedConfig], PreTrainedConfig] = lambda config: config


def build_test_classes(cases: Iterable[ModelCase]) -> dict[str, type]:
    """Return a test class for every case, or, without sources, a single one that skips with a reason."""
    if not SOURCES.is_dir():
        return {"TestSources": _Missing}
    common = _load_common()
    return {f"{case.name}Test": _build_test_class(case, common) for case in cases}


class _Missing:
    def test_sources(self) -> None:
        pytest.skip(f"no tests of transformers {transformers.__version__} below .cache: run `make model-tests`")


class _Tester:
    """The model tester of those tests."""

    is_training, num_choices = True, 2

    def __init__(self, case: ModelCase) -> None:
        self._case = case
        self.config = case.config()
        self.batch_size, self.seq_length = BATCH, LENGTH
        for name in (
            "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "expected_num_hidden_layers",
        ):  # fmt: skip
            if (value := getattr(case.shape(self.config), name, None)) is not None:
                setattr(self, name, value)

    def get_config(self) -> PreTrainedConfig:
        return self._case.config()

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, Tensor]]:
        config = self.get_config()
        return config, self._case.inputs(config)


def _build_test_class(case: ModelCase, common: ModuleType) -> type:
    mixin = common.ModelTesterMixin

    def setUp(self: Any) -> None:
        self.all_model_classes = tuple(case.models())
        self.model_tester = _Tester(case)

    def prepare(self: Any, inputs: dict[str, Any], model: Any, return_labels: bool = False) -> dict[str, Any]:
        prepared = mixin._prepare_for_class(self, inputs, model, return_labels=return_labels)
        return prepared | (case.labels[model.__name__]() if return_labels and model.__name__ in case.labels else {})

    members = {"setUp": setUp, "_prepare_for_class": prepare, "pytestmark": pytest.mark.slow, **case.attributes}
    for name, reason in {**_STRICT, **case.skipped}.items():
        members[name] = unittest.skip(reason)(getattr(mixin, name))  # an AttributeError: the test no longer exists
    return type(f"{case.name}Test", (mixin, unittest.TestCase), members)


def _load_common() -> ModuleType:
    """Load `test_modeling_common` with the names of the families' classes by kind of task."""
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(SOURCES)]
    sys.modules[_PACKAGE] = package
    _install_module(f"{_PACKAGE}.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    _install_module(f"{_PACKAGE}.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    if importlib.util.find_spec("parameterized") is None:
        _install_module("parameterized", parameterized=_Parameterized)
    common = importlib.import_module(f"{_PACKAGE}.test_modeling_common")
    for kind, mapping in _MAPPINGS.items():
        bare = {name: {"AutoModel": family.encoder} for name, family in families().items()}
        importers = {
            name: {**bare[name], **family.heads, **family.auto}.get(kind) for name, family in families().items()
        }
        class_names = {name: importer().__name__ for name, importer in importers.items() if importer is not None}
        setattr(common, mapping, {**getattr(common, mapping), **class_names})
    return common


def _install_module(name: str, **members: Any) -> None:
    """Install a module of these members, below packages that are created if missing."""
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        _install_module(parent)
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module


class _Parameterized:
    """The one decorator of the package `parameterized` that those tests use: a method for every case."""

    @staticmethod
    def expand(cases: Iterable[Any]) -> Callable[[Callable[..., None]], None]:
        body = sys._getframe(1).f_locals

        def decorate(test: Callable[..., None]) -> None:
            for number, case in enumerate(cases):
                values = case if isinstance(case, tuple) else (case,)
                body[f"{test.__name__}_{number}_{values[0]}"] = _bind_values(test, values)

        return decorate


def _bind_values(test: Callable[..., None], values: tuple[Any, ...]) -> Callable[[Any], None]:
    def method(self: Any) -> None:
        test(self, *values)

    return method


def draw_token_inputs(config: PreTrainedConfig) -> dict[str, Tensor]:
    """Return ids, a mask with padding on the right of one row, and segments."""
    ids = torch.randint(5, config.vocab_size, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
