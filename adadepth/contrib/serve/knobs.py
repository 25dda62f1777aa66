"""Depth controls of a model in the web demo (sliders), and their effect on the model's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule, Fixed, list_supported_rules, parse_rule
from adadepth.models.contract import DepthKnob, HoldsBudget
from adadepth.models.registry import families
from adadepth.models.shared.losses import count_head_classes, takes_one_class

AS_TRAINED, FULL, BUDGET = "as trained", "full depth", "mean updates (budget)"
_BUDGET_STEP = 0.25
_MIN_LEVEL, _MAX_LEVEL, _LEVEL_STEP = 0.01, 0.99, 0.01


@dataclass(frozen=True)
class Knob:
    """Slider that controls a model's depth in the web demo.

    Attributes:
        name: Name for the visitor.
        low: Smallest value, the shallowest depth.
        high: Largest value, the deepest depth.
        step: Difference between neighbouring values.
        apply: Function that sets a model to a value.
        trained: Value with which the model was trained, or None if another control sets its depth.
    """

    name: str
    low: float
    high: float
    step: float
    apply: Callable[[Any, float], None]
    trained: float | None = None

    @property
    def start(self) -> float:
        """Initial value of the slider: the one nearest to that of training, otherwise the middle of its range."""
        start = (self.low + self.high) / 2 if self.trained is None else self.trained
        return min(max(round(round(start / self.step) * self.step, 2), self.low), self.high)

    def validate(self, value: float) -> float:
        """Return the value of a slider unchanged, or raise an error if it is out of range.

        Raises:
            ConfigError: If the value is out of range.
        """
        if not self.low <= value <= self.high:
            raise ConfigError(f"{self.name}={value:g}: must be from {self.low:g} to {self.high:g}")
        return value


@dataclass(frozen=True)
class Setting:
    """Depth setting of a model in the web demo: the name and value of a slider, or `AS_TRAINED` or `FULL`."""

    knob: str = AS_TRAINED
    value: float = 0.0


def list_knobs(model: Any) -> list[Knob]:
    """Return the depth sliders of a model, or an empty list if its depth is fixed."""
    knobs = []
    if isinstance(model, DepthKnob) and not hasattr(model.config, "exit_rule"):
        knobs.append(_build_block_knob(model) if _changes_block_count(model) else _build_level_knob(model))
    if model.exit_signals and hasattr(model.config, "exit_rule"):
        knobs += _build_rule_knobs(model)
    return knobs


def _changes_block_count(model: Any) -> bool:
    spec = families().get(model.config.model_type)
    return spec is not None and spec.budget.whole


def _build_block_knob(model: Any) -> Knob:
    """Build a slider for the number of blocks of a model that can run with fewer."""
    least = next((depth for depth in range(1, model.max_updates) if _supports_depth(model, depth)), model.max_updates)
    return Knob("number of blocks", least, model.max_updates, 1, lambda model, value: _fit_depth(model, int(value)))


def _fit_depth(model: Any, depth: int) -> None:
    model.fit_depth(depth, lambda: float(depth))


def _supports_depth(model: Any, depth: int) -> bool:
    with restore_depth(model):
        try:
            _fit_depth(model, depth)
        except ConfigError:
            return False
    return True


def _build_level_knob(model: Any) -> Knob:
    epsilon = getattr(model.config, "act_epsilon", None)
    return Knob(
        str(model.depth_knob), _MIN_LEVEL, _MAX_LEVEL, _LEVEL_STEP, lambda model, value: model.set_depth_level(value),
        None if epsilon is None else 1.0 - epsilon,
    )  # fmt: skip


def build_budget_knob(model: Any, depth: Callable[[], float]) -> Knob | None:
    """Build a slider for the mean number of updates, which is reached by fitting the model's exit threshold.

    Args:
        model: Model with a depth knob.
        depth: Function that measures the mean number of updates at the current setting.

    Returns:
        The new knob, or None if the model has no knob to fit.
    """
    spec = families().get(model.config.model_type)
    if not isinstance(model, DepthKnob) or spec is None or _changes_block_count(model) or not spec.budget.fitted:
        return None
    fitted: dict[float, dict[str, Any]] = {}  # configuration values by target

    def apply(model: Any, target: float) -> None:
        if target not in fitted:
            before = dict(vars(model.config))
            model.fit_depth(target, depth)
            now = vars(model.config)
            fitted[target] = {name: value for name, value in now.items() if before.get(name) != value}
        vars(model.config).update(fitted[target])

    return Knob(BUDGET, max(spec.budget.least, _BUDGET_STEP), model.max_updates, _BUDGET_STEP, apply)


def _build_rule_knobs(model: Any) -> list[Knob]:
    """Build a slider for each supported exit rule with a threshold, and one for a fixed exit step.

    The knob of the current rule comes first.
    """
    config = model.config
    supported = list_supported_rules(model.exit_signals, count_head_classes(config), one_class=takes_one_class(config))
    rules = [rule for name in supported if (rule := _parse_threshold_rule(name)) is not None]
    current_rule = parse_rule(config.exit_rule) if config.exit_rule else None
    if current_rule is not None and current_rule.fitted and current_rule.with_level(0.5) is not None:
        rules.append(current_rule)  # with its fitted parameters
    current = None if current_rule is None else current_rule.name
    fitted = getattr(model, "level_rule", "").partition(":")[0]
    rules.sort(key=lambda rule: (rule.name != current, rule.name != fitted))
    knobs = [_build_rule_knob(rule, current_rule) for rule in rules]
    fixed = float(current_rule.k) if isinstance(current_rule, Fixed) else None
    steps = Knob("steps of every token (fixed)", 1, model.max_updates, 1, _set_fixed_exit, fixed)
    if "fixed" not in supported:
        return knobs
    return [*knobs, steps] if fixed is None else [steps, *knobs]


def _build_rule_knob(rule: ExitRule, current: ExitRule | None) -> Knob:
    def apply(model: Any, level: float) -> None:
        setting_rule = rule.with_level(level)
        assert setting_rule is not None, "it has a threshold"
        model.config.exit_rule = setting_rule.label

    trained = None if current is None or current.name != rule.name else _find_level(current)
    return Knob(f"exit rule {rule.name}", _MIN_LEVEL, _MAX_LEVEL, _LEVEL_STEP, apply, trained)


def _find_level(rule: ExitRule) -> float | None:
    """Return the level of the slider at which the threshold of an exit rule is nearest to its own."""
    levels = [_LEVEL_STEP * number for number in range(1, round(_MAX_LEVEL / _LEVEL_STEP) + 1)]
    distances = {}
    for level in levels:
        if (moved := rule.with_level(level)) is not None:
            pairs = zip(astuple(rule), astuple(moved), strict=True)
            distances[level] = sum(abs(mine - other) for mine, other in pairs if isinstance(other, float))
    return min(distances, key=distances.__getitem__, default=None)


def _parse_threshold_rule(name: str) -> ExitRule | None:
    """Return an exit rule by name, with an example threshold, or None if it has no threshold or is to be fitted."""
    for text in (name, f"{name}:0.5"):
        try:
            rule = parse_rule(text)
        except ConfigError:
            continue
        return None if rule.needs_fit else rule.with_level(0.5)
    return None


def _set_fixed_exit(model: Any, step: float) -> None:
    model.config.exit_rule = f"fixed:{int(step)}"


def set_full_depth(model: Any) -> None:
    """Set a model to full depth, the maximum number of updates for every token, if it supports that."""
    if model.exit_signals and hasattr(model.config, "exit_rule"):
        _set_fixed_exit(model, model.max_updates)
    elif isinstance(model, HoldsBudget) and (spec := families().get(model.config.model_type)) and spec.budget.grows:
        model.force_depth(model.max_updates)
    elif isinstance(model, DepthKnob) and _changes_block_count(model):
        _fit_depth(model, model.max_updates)
    elif isinstance(model, DepthKnob):
        model.set_depth_level(1 - 1e-6)


@contextmanager
def restore_depth(model: Any) -> Iterator[None]:
    """Restore the model's original depth settings at the end of the `with` block."""
    before = dict(vars(model.config))
    try:
        yield
    finally:
        vars(model.config).clear()
        vars(model.config).update(before)
        if isinstance(model, HoldsBudget) and (spec := families().get(model.config.model_type)) and spec.budget.grows:
            model.force_depth(None)


@contextmanager
def apply_setting(model: Any, knobs: list[Knob], setting: Setting) -> Iterator[dict[str, Any]]:
    """Apply a depth setting within the `with` block, and yield the configuration values that it changes.

    Raises:
        ConfigError: If the knob does not exist, or the value is out of its range.
    """
    with restore_depth(model):
        before = model.config.to_dict()
        if setting.knob == FULL:
            set_full_depth(model)
        elif setting.knob != AS_TRAINED:
            knob = next((candidate for candidate in knobs if candidate.name == setting.knob), None)
            if knob is None:
                raise ConfigError(f"{setting.knob!r:.60}: unknown depth control of this model")
            knob.apply(model, knob.validate(setting.value))
        yield {name: value for name, value in model.config.to_dict().items() if before.get(name) != value}
