"""What a visitor can turn of a model's depth: asked of its capabilities, and told as settings of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adadepth.errors import ConfigError
from adadepth.families.contract import DepthKnob, HoldsBudget
from adadepth.families.registry import families
from adadepth.families.shared.losses import count_head_classes, takes_one_class
from adadepth.halting.exit_rules import ExitRule, list_supported_rules, parse_rule

AS_TRAINED, FULL, BUDGET = "as trained", "full depth", "mean updates (budget)"
_BUDGET_STEP = 0.25
_LEAST, _MOST, _LEVEL_STEP = 0.01, 0.99, 0.01


@dataclass(frozen=True)
class Knob:
    """Something that sets a depth.

    Attributes:
        name: What is turned, in words.
        low: Its lowest value: the shallowest.
        high: Its highest: the deepest.
        step: Between values.
        turn: Sets a model to a value.
    """

    name: str
    low: float
    high: float
    step: float
    turn: Callable[[Any, float], None]

    @property
    def start(self) -> float:
        """Where it stands at first: in the middle."""
        return round((self.low + self.high) / 2 / self.step) * self.step

    def checked(self, value: float) -> float:
        """A value that it has.

        Raises:
            ConfigError: It lies outside; one line.
        """
        if not self.low <= value <= self.high:
            raise ConfigError(f"{self.name}={value:g}: must be from {self.low:g} to {self.high:g}")
        return value


@dataclass(frozen=True)
class Setting:
    """How deep a model is asked: the name of a knob with its value, or `AS_TRAINED` or `FULL`."""

    knob: str = AS_TRAINED
    value: float = 0.0


def knobs_of(model: Any) -> list[Knob]:
    """What can be turned of a model, its own knob first; empty: it has one depth."""
    found = []
    if isinstance(model, DepthKnob) and not hasattr(model.config, "exit_rule"):
        found.append(_blocks(model) if _is_whole(model) else _level(model))
    if model.exit_signals and hasattr(model.config, "exit_rule"):
        found += _rules(model)
    return found


def _is_whole(model: Any) -> bool:
    about = families().get(model.config.model_type)
    return about is not None and about.budget.whole


def _blocks(model: Any) -> Knob:
    """Of a model whose depth is a number of blocks."""
    least = next((depth for depth in range(1, model.max_updates) if _can_have(model, depth)), model.max_updates)
    return Knob("number of blocks", least, model.max_updates, 1, lambda model, value: _fit(model, int(value)))


def _fit(model: Any, depth: int) -> None:
    model.fit_depth(depth, lambda: float(depth))


def _can_have(model: Any, depth: int) -> bool:
    with restored(model):
        try:
            _fit(model, depth)
        except ConfigError:
            return False
    return True


def _level(model: Any) -> Knob:
    return Knob(str(model.depth_knob), _LEAST, _MOST, _LEVEL_STEP, lambda model, value: model.set_depth_level(value))


def budget_knob(model: Any, depth: Callable[[], float]) -> Knob | None:
    """A mean number of updates, to which the model's own knob is fitted as for `budget.targets`; None: it has none.

    Args:
        model: Which.
        depth: Measures the mean of some examples as the model is set now.
    """
    about = families().get(model.config.model_type)
    if not isinstance(model, DepthKnob) or about is None or _is_whole(model) or not about.budget.fitted:
        return None
    fitted: dict[float, dict[str, Any]] = {}  # what a target changes, found once

    def turn(model: Any, target: float) -> None:
        if target not in fitted:
            before = dict(vars(model.config))
            model.fit_depth(target, depth)
            now = vars(model.config)
            fitted[target] = {name: value for name, value in now.items() if before.get(name) != value}
        vars(model.config).update(fitted[target])

    return Knob(BUDGET, max(about.budget.least, _BUDGET_STEP), model.max_updates, _BUDGET_STEP, turn)


def _rules(model: Any) -> list[Knob]:
    """A knob for every exit rule with a threshold that the model can follow, its own first, and one for all alike."""
    config = model.config
    known = list_supported_rules(model.exit_signals, count_head_classes(config), one_class=takes_one_class(config))
    rules = [rule for name in known if (rule := _with_threshold(name)) is not None]
    own = parse_rule(config.exit_rule).name if config.exit_rule else None
    rules.sort(key=lambda rule: rule.name not in (own, getattr(model, "level_rule", "").partition(":")[0]))
    knobs = [_of_rule(rule) for rule in rules]
    steps = Knob(
        "steps of everybody (fixed)", 1, model.max_updates, 1, lambda model, value: _exit_at(model, int(value))
    )
    return [*knobs, steps] if "fixed" in known else knobs


def _of_rule(rule: ExitRule) -> Knob:
    def turn(model: Any, level: float) -> None:
        found = rule.at_level(level)
        assert found is not None, "it has a threshold"
        model.config.exit_rule = found.label

    return Knob(f"exit rule {rule.name}", _LEAST, _MOST, _LEVEL_STEP, turn)


def _with_threshold(name: str) -> ExitRule | None:
    """A rule by its name, whatever its threshold; None: it has none that sets a depth."""
    for text in (name, f"{name}:0.5"):
        try:
            return parse_rule(text).at_level(0.5)
        except ConfigError:
            continue
    return None


def _exit_at(model: Any, step: int) -> None:
    model.config.exit_rule = f"fixed:{step}"


def set_full(model: Any) -> None:
    """Give everybody as many updates as there can be, where the model can be told to."""
    if model.exit_signals and hasattr(model.config, "exit_rule"):
        _exit_at(model, model.max_updates)
    elif isinstance(model, HoldsBudget) and (about := families().get(model.config.model_type)) and about.budget.grows:
        model.force_depth(model.max_updates)
    elif isinstance(model, DepthKnob) and _is_whole(model):
        _fit(model, model.max_updates)
    elif isinstance(model, DepthKnob):
        model.set_depth_level(1 - 1e-6)


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """Within, the model's depth may be set; afterwards it is as before."""
    before = dict(vars(model.config))
    try:
        yield
    finally:
        vars(model.config).clear()
        vars(model.config).update(before)
        if isinstance(model, HoldsBudget) and (about := families().get(model.config.model_type)) and about.budget.grows:
            model.force_depth(None)


@contextmanager
def turned(model: Any, knobs: list[Knob], setting: Setting) -> Iterator[dict[str, Any]]:
    """Within, the model is as deep as a setting says; yields the settings of its configuration that this changes.

    Raises:
        ConfigError: There is no such knob, or it has no such value.
    """
    with restored(model):
        before = dict(vars(model.config))
        if setting.knob == FULL:
            set_full(model)
        elif setting.knob != AS_TRAINED:
            knob = next((each for each in knobs if each.name == setting.knob), None)
            if knob is None:
                raise ConfigError(f"{setting.knob!r:.60}: this model has no such knob")
            knob.turn(model, knob.checked(setting.value))
        now = vars(model.config)
        yield {name: value for name, value in now.items() if before.get(name) != value}
