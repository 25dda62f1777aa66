"""Halting rules and exit rules of an installed package, from their entry points to a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adadepth.cli.config_files import list_config_folders
from adadepth.cli.help import format_usage
from adadepth.errors import ConfigError
from adadepth.halting import exit_rules, rules
from adadepth.metrics.exit_study import list_standard_rules
from adadepth.models import AlbertActForTokenClassification, AlbertActModel
from adadepth.tasks.exit_study import parse_exit_rules
from adadepth.tasks.next_commands import _has_exit_rules
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_config
from tests.plugins_support import install_package

SOURCE = """
from dataclasses import dataclass

from adadepth.config.declaration import POSITIVE, setting
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.rules import HaltingRule


@dataclass(frozen=True)
class Shares(HaltingRule):
    name = "shares"
    power: float = setting(1.0, "of what is left", POSITIVE)

    def mass(self, probability, accumulated, step):
        return probability * (1.0 - accumulated) ** self.power


@dataclass(frozen=True)
class Odd(ExitRule):
    name = "odd"
    needs = frozenset({"logits"})
    after: int = 1

    def decide(self, view, memory):
        return (memory > -1)[:, 0] & (view.step > self.after and view.step % 2 == 1), memory


@dataclass(frozen=True)
class Flat(ExitRule):
    name = "flat"
    needs = frozenset({"logits"})
    after: int = 1

    def start(self, rows, device, generator=None):
        return super().start(rows, device)[:, 0]

    def decide(self, view, memory):
        return memory > self.after, memory


@dataclass(frozen=True)
class NoDefault(HaltingRule):
    name = "shares"
    power: float

    def mass(self, probability, accumulated, step):
        return probability
"""
HALTING, EXITS = {rules.GROUP: {"shares": "own_rules:Shares"}}, {exit_rules.GROUP: {"odd": "own_rules:Odd"}}


@pytest.fixture
def rules_dir(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "own_rules.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("own_rules", None)


def compute_depths(rule: str, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Return updates and halting masses of real tokens, all of which have halting probability 1/2 at every update."""
    model = AlbertActModel(make_small_config(halting_rule=rule, num_hidden_layers=9, **changes)).eval()
    unit = model.encoder.albert_layer.act.dense
    for parameter in unit.parameters():
        torch.nn.init.zeros_(parameter)
    batch = make_padded_batch()
    outputs = model(**batch)
    valid = batch["attention_mask"].bool()
    return outputs.updates[valid], outputs.halting_probabilities[valid]


@pytest.mark.parametrize("execution", keep_one_quick(2, ["dense", "ragged"]))
def test_a_halting_rule_of_a_plugin_sets_the_masses(rules_dir: Path, execution: str) -> None:
    """Compare masses of half the remainder, 1 - 2^-n > 0.99 at n = 7, with the built-in rule, 1/2 + 1/2 at n = 2."""
    with install_package(rules_dir, "own-rules", HALTING):
        updates, masses = compute_depths("shares", execution=execution)
        assert updates.unique().tolist() == [7]
        assert torch.allclose(masses, 0.5 ** torch.arange(1, 8).expand_as(masses))
        assert compute_depths("act", execution=execution)[0].unique().tolist() == [2]


def test_no_token_halts_at_a_fixed_depth(rules_dir: Path) -> None:
    with install_package(rules_dir, "own-rules", HALTING):
        assert compute_depths("shares", fixed_depth=8)[0].unique().tolist() == [8]


@pytest.mark.parametrize(("rule", "message"), keep_one_quick(3, [
    ("share", "model.halting_rule=share: halting rule 'share': must be one of act, shares (did you mean 'shares'?)"),
    ("shares:0", "model.halting_rule=shares:0: halting rule 'shares:0': power=0.0: must be above 0"),
    ("act:1", "model.halting_rule=act:1: halting rule 'act:1': too many parameters, the form is act"),
]))  # fmt: skip
def test_an_invalid_halting_rule_is_refused_in_one_line(rules_dir: Path, rule: str, message: str) -> None:
    with install_package(rules_dir, "own-rules", HALTING):
        assert configured("act_tiny", "model.halting_rule=shares:2").model.halting_rule == "shares:2"  # type: ignore[attr-defined]
        with pytest.raises(ConfigError) as raised:
            configured("act_tiny", f"model.halting_rule={rule}")
        assert str(raised.value) == message


def test_a_memory_of_a_wrong_shape_is_refused_before_the_evaluation(rules_dir: Path) -> None:
    model = AlbertActForTokenClassification(make_small_config())
    message = r"^exit rule 'flat': returned a memory of shape \(2,\), not \(2, k\)$"
    with install_package(rules_dir, "own-rules", {exit_rules.GROUP: {"flat": "own_rules:Flat"}}):
        before = torch.get_rng_state()
        with pytest.raises(ConfigError, match=message):
            parse_exit_rules(["sample", "flat"], model)
        assert torch.equal(torch.get_rng_state(), before), "a rule that draws its memory draws the same in a run"


def test_exit_rules_are_refused_with_a_halting_rule_of_a_plugin(rules_dir: Path) -> None:
    """Check that they are refused before an evaluation and that the last screen prints no command with them."""
    config = configured("act_hops")
    with install_package(rules_dir, "own-rules", HALTING):
        for fields in ({"halting_rule": "shares"}, {"state_rule": "accumulated"}):
            model = AlbertActForTokenClassification(make_small_config(**fields))
            assert model.exit_signals == frozenset()
            assert not _has_exit_rules(config, model)
            with pytest.raises(ConfigError, match=r"^exit_rules=\['all'\]: (halting|state)_rule='.*': exit rules "):
                parse_exit_rules(["all"], model)
        assert _has_exit_rules(config, AlbertActForTokenClassification(make_small_config()))


def test_the_help_lists_the_plug_ins_of_a_package(rules_dir: Path) -> None:
    assert "own-rules" not in format_usage(list_config_folders())
    with install_package(rules_dir, "own-rules", {**HALTING, **EXITS}):
        assert "Plug-ins of installed packages (docs/plugins.md):\n" in format_usage(list_config_folders())
        assert "  own-rules: exit rules odd, halting rules shares\n" in format_usage(list_config_folders())


def test_an_exit_rule_of_a_plugin_is_parsed_applied_and_listed(rules_dir: Path) -> None:
    with install_package(rules_dir, "own-rules", EXITS):
        rule = exit_rules.parse_rule("odd:3")
        assert rule.label == "odd:3"
        assert exit_rules.apply_rule(rule, torch.zeros(2, 9, 3), None).tolist() == [5, 5]
        assert "odd:1" in list_standard_rules(frozenset({"logits"}), 2, 6)
    assert not any(label.startswith("odd") for label in list_standard_rules(frozenset({"logits"}), 2, 6))


@pytest.mark.parametrize(("group", "name", "entry_point", "message"), [
    (rules.GROUP, "shares", "own_rules:Odd", "must be a dataclass that extends adadepth.halting.rules.HaltingRule"),
    (rules.GROUP, "share", "own_rules:Shares", "its name is 'shares'"),
    (rules.GROUP, "act", "own_rules:Shares", "a halting rule of that name already exists"),
    (rules.GROUP, "shares", "own_rules:NoDefault", "its parameter power must be an int or a float with a default"),
    (exit_rules.GROUP, "odd", "own_rules:Shares", "a dataclass that extends adadepth.halting.exit_decisions.ExitRule"),
])  # fmt: skip
def test_an_invalid_plugin_is_refused_in_one_line(
    rules_dir: Path, group: str, name: str, entry_point: str, message: str
) -> None:
    with install_package(rules_dir, "own-rules", {group: {name: entry_point}}):
        with pytest.raises(ConfigError) as raised:
            rules.halting_rules() if group == rules.GROUP else exit_rules.exit_rules()
        assert message in str(raised.value)
        assert "own-rules" in str(raised.value)
