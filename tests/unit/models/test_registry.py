"""Registration of families: folders, entry points of installed packages, and errors of invalid ones."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedConfig

import adadepth
from adadepth.cli.keys import list_keys, list_model_schemas
from adadepth.errors import ConfigError
from adadepth.models import registry
from adadepth.models.registry import families, family
from adadepth.report.section import SectionEntry
from tests.plugins_support import install_package

ROOT = Path(__file__).resolve().parents[3]
BUILT_IN = ["adalayers", "albert", "albert_act", "early_exit", "looped", "multi_exit_albert", "par_xl", "ponder_albert",
            "ponder_rnn", "routed", "stock_classifier", "trm"]  # fmt: skip
TOY = """
from dataclasses import dataclass

from adadepth.config import ModelConfig, family_name
from adadepth.config.declaration import at_least, setting
from adadepth.models.registry import Family


@dataclass
class ToySettings(ModelConfig):
    name: str = family_name("toy")
    wheels: int = setting(3, "how many it rolls on", at_least(1))


@dataclass
class BoySettings(ModelConfig):
    name: str = family_name("boy")


FAMILY = Family(settings=ToySettings, config="math:floor", heads={"tagging": "math:floor"})
WRONG_NAME = Family(settings=BoySettings, config="toy_family:ToyConfig", heads={})
NO_SETTINGS = Family(settings=dict, config="toy_family:ToyConfig", heads={})
NO_PLACE = Family(settings=ToySettings, config="toy_family.ToyConfig", heads={})
"""


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Return a function that installs a package with entry points of the group, as importlib.metadata sees it."""
    with ExitStack() as stack:

        def install_family(**entry_points: str) -> None:
            (tmp_path / "toy_family.py").write_text(TOY)
            stack.enter_context(install_package(tmp_path, "toy-family", {registry.GROUP: entry_points}))

        yield install_family
    sys.modules.pop("toy_family", None)


def test_family_folders_are_found() -> None:
    assert list(families()) == BUILT_IN
    assert list_model_schemas()["albert_act"].__name__ == "AlbertActSettings"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_import_of_a_descriptor_exists(name: str) -> None:
    descriptor = family(name)
    assert descriptor.settings().name == name
    importers = [
        descriptor.config,
        *descriptor.heads.values(),
        *descriptor.auto.values(),
        *descriptor.public.values(),
        *descriptor.layouts.values(),
    ]
    importers += [*descriptor.sections, *descriptor.extensions, *filter(None, descriptor.starts_from.values())]
    importers += filter(
        None, (descriptor.encoder, descriptor.tokenizer, descriptor.build, descriptor.adopts, descriptor.settle)
    )
    importers += filter(
        None, (descriptor.weights_from, descriptor.config_from, descriptor.folders_from, descriptor.reference_depth)
    )
    if descriptor.search is not None:
        search = descriptor.search
        importers += [search.costs, search.derive, search.baselines, search.macs, search.time]
    assert all(
        callable(imported) or isinstance(imported, SectionEntry) for imported in (importer() for importer in importers)
    )
    assert descriptor.config().model_type == ("" if descriptor.config() is PreTrainedConfig else name)
    assert descriptor.trains_in_slots == any(importer().trains_in_slots for importer in descriptor.heads.values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_settings_named_by_a_descriptor_exist(name: str) -> None:
    descriptor, settings = family(name), family(name).settings()
    setting_names = [
        *descriptor.budget.prices,
        *filter(
            None, (descriptor.depth, descriptor.search and descriptor.search.setting, *descriptor.loss_parts.values())
        ),
    ]
    assert all(hasattr(settings, setting) for setting in setting_names)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_family_has_a_fixed_depth_or_a_reason(name: str) -> None:
    fix_depth, settings = family(name).fixed_depth, family(name).settings()
    if name == "routed":
        settings.num_hidden_layers = 4
    if isinstance(fix_depth, str):
        assert len(f"model={name} {fix_depth}".splitlines()) == 1
    else:
        changed = replace(settings, **fix_depth(settings, 3))  # raises an error for a field that does not exist
        assert changed != settings


def test_a_family_of_an_installed_package_is_registered(install: Callable[..., None]) -> None:
    install(toy="toy_family:FAMILY")
    assert list(families()) == [*BUILT_IN, "toy"]
    assert family("toy").heads["tagging"]() is family("toy").config() is math.floor
    assert "model.wheels" in set(list_keys())


@pytest.mark.parametrize(("entry_points", "message"), [
    ({"toy": "toy_family:NOTHING"}, "family 'toy' of package toy-family (toy_family:NOTHING): cannot be imported"),
    ({"toy": "toy_famly:FAMILY"}, "cannot be imported (ModuleNotFoundError: No module named 'toy_famly')"),
    ({"albert": "toy_family:FAMILY"}, "a family of that name already exists"),
    ({"toy": "toy_family:ToySettings"}, "must be an adadepth.models.registry.Family, not type"),
    ({"toy": "toy_family:WRONG_NAME"}, "its settings name it 'boy'"),
    ({"toy": "toy_family:NO_SETTINGS"}, "its settings must be a ModelConfig, not dict"),
    ({"toy": "toy_family:NO_PLACE"}, "'toy_family.ToyConfig' must be 'module:Class'"),
    ({"toy": "toy_family:FAMILY", "roy": "toy_family:FAMILY"}, "its settings name it 'toy'"),
])  # fmt: skip
def test_an_invalid_family_is_refused_in_one_line(
    install: Callable[..., None], entry_points: dict[str, str], message: str
) -> None:
    install(**entry_points)
    with pytest.raises(ConfigError) as raised:
        families()
    assert message in str(raised.value)
    assert "toy-family" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_family_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError,
        match=r"model.name=albert_at: unknown model family \(did "
        r"you mean 'albert_act'\?\)",
    ):
        family("albert_at")


def test_a_missing_head_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match="model=ponder_rnn: has no model for pretraining; it has models for classification"
    ):
        family("ponder_rnn").head("pretraining")


def test_finding_families_imports_no_torch() -> None:
    code = "import sys; from adadepth.models.registry import families; families(); print('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    assert process.stdout.strip() == "False"


def test_an_installed_package_cannot_replace_a_family(tmp_path: Path) -> None:
    names = {"count_wheels": "math:floor", "LoopedConfig": "math:ceil"}
    with install_package(tmp_path, "toy-names", {"adadepth.names": names}):
        assert adadepth.count_wheels is math.floor
        assert "count_wheels" in dir(adadepth)
        assert adadepth.LoopedConfig is not math.ceil
    assert not hasattr(adadepth, "count_wheels")
