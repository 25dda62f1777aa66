"""Descriptors of the model families, and their discovery without importing torch.

A family is a folder of `adadepth.models` whose module `family` holds its descriptor `FAMILY`, or `FAMILIES` where a
folder has several. Installed packages add families by entry points of the group `adadepth.families`. A YAML file only
names a family.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from adadepth.config import BudgetUnit, ExperimentConfig, ModelConfig
from adadepth.config.kinds import Kind, kinds
from adadepth.config.modes import ModeSpec, modes
from adadepth.config.plugins import list_plugin_files, load_plugins
from adadepth.config.plugins import load as load  # exported for users of descriptors
from adadepth.errors import ConfigError, nearest

GROUP = "adadepth.families"
_GROUPS_WITH_CONFIGS = ("adadepth.sweepers", "adadepth.loggers")  # beside families, kinds of data and modes

# A supernet has none: its configuration is that of a language model without an architecture.
_AUTO = {
    "pretraining": "AutoModelForPreTraining",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "language_model": "AutoModelForCausalLM",
}


@dataclass(frozen=True)
class Budgeting:
    """Depth budgets of a family.

    Attributes:
        trained: Units of a mean depth that training can hold.
        fitted: Units of a mean depth to which a trained model can be fitted.
        fits_target: Whether the trained model is fitted to `budget.target`, since training has no penalty on depth.
        prices: Settings of penalties on depth, which must be 0 beside a budget.
        grows: Whether it can train at any fixed depth, so that depth may grow at first.
        whole: Whether depth is a number of blocks.
        least: Fewest updates of a unit.
        checks: `"module:function"` of checks of a target: from a configuration to a line per mistake.
    """

    trained: tuple[BudgetUnit, ...] = ()
    fitted: tuple[BudgetUnit, ...] = ()
    fits_target: bool = False
    prices: tuple[str, ...] = ()
    grows: bool = False
    whole: bool = False
    least: int = 1
    checks: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[BudgetUnit, ...]:
        """Units of a `budget.target`, held in training or fitted."""
        return self.fitted if self.fits_target else self.trained


@dataclass(frozen=True)
class Searching:
    """Search of architectures in a family; an architecture is a string, one letter per block.

    Functions are `"module:function"`, with the arguments of the named ones of `adadepth.models.par_xl`. A shape is
    length, memory and batch of a segment of text.

    Attributes:
        setting: Setting of the architecture; None there means the supernet, which is `heads["search"]`.
        memory: Setting of the number of positions before a segment that it sees.
        costs: Cost of each operation in seconds or multiply-accumulates: `latency.operation_costs`.
        derive: Network of one architecture with the weights of the supernet: `latency.derive`.
        baselines: Architectures of equal compute by name: `configuration.baseline_architectures`.
        macs: Multiply-accumulates of an architecture at a shape: `configuration.architecture_macs`.
        time: Seconds of several networks at a shape: `latency.model_latencies`.
    """

    setting: str
    memory: str
    costs: str
    derive: str
    baselines: str
    macs: str
    time: str


@dataclass(frozen=True)
class Family:
    """Descriptor of a family; code is named as `"module:name"` and imported when needed.

    Attributes:
        settings: Its settings, a subclass of `ModelConfig` whose `name` is that of the family in `model.name`.
        config: Its `PreTrainedConfig`; its `model_type` is that name, too. transformers' `PreTrainedConfig` itself has
            none: checkpoints are then of any type that the heads can load.
        heads: Kind of task -> class of its model: `pretraining`, `classification` (and regression), `tagging`,
            `question_answering`, `multiple_choice`, `language_model`, `search`.
        auto: Further Auto classes of transformers, besides those of its heads -> class registered with it.
        encoder: Its model without a head for probes, see `DepthModel`; None: its states cannot be read.
        tokenizer: The fast tokenizer that AutoTokenizer loads with it; None: none of its own.
        public: Additional names of the package `adadepth` -> objects.
        loss_parts: Losses that an evaluation reports besides that of the task -> setting that must be above 0 for it;
            None: always.
        budget: Its depth budgets.
        depth: Setting of the greatest number of updates; None: a pretrained model decides.
        fixed_depth: Setting that gives every unit the same depth, for a matched baseline.
        matched_baseline: Settings of the fixed-depth network that is trained at the end of a run on its cached states,
            and a description of that network; None: a run evaluates its network at a fixed depth.
        search: Search of its architectures; None: it has no supernet.
        reads: `OPTIONAL_GROUPS` of a configuration that it reads, besides `budget`.
        starts_from: Other families whose weights it can start from -> function that loads them, called like
            `adadepth.models.albert_act.convert.load_albert`; None: the head's own `from_pretrained`.
        build: Function that makes a classifier without a configuration before its base is read; called like
            `adadepth.models.adalayers.base.build_on_base`.
        published: Published model types whose folders its configuration and its heads read.
        adopts: Function that makes a model of the layers of a pretrained decoder of no family; called like
            `adadepth.models.looped.retrofit.build_from_decoder`. None: such a checkpoint is refused.
        text: `Kind.reading` of the data of its language model.
        settle: Function that sets settings from the training text before a language model is built; called like
            `adadepth.models.par_xl.configuration.settle_cutoffs`.
        first_tokens: Function from settings or configuration to the number of [CLS] at the start of a text, by argument
            of `load_labelled_data`; None: one.
        reads_vectors: Whether it reads vectors and no tokens.
        own_symbols: Whether it learns embeddings of its symbols, and not only words of a pretrained tokenizer.
        checks: Checks of its settings against each other and the rest of a configuration; see `Budgeting.checks`.
        option: Option of the group `model` for this family, which messages advise.
        advice: Advice for depth that does not adapt: one line of overrides and their effects, separated by "; "; DEPTH
            stands for half of the greatest depth.
        offline: Alternative to pretrained weights of the hub without a network, one line.
        weights_from: Function that renames the parameters of an original, for `convert_reference_state_dict`.
        config_from: Function that reads the configuration of an original, for `convert_reference_config`.
        extensions: Extensions of training, each a `"module:name"` that makes an
            `adadepth.training.extension.Extension`, or None if a run needs none. Its arguments are any of `config`,
            `args` (of transformers' trainer), `model`, `data` and `seed`.
        sections: Additional sections of its report, each a `"module:function"` from the files of a run to a section, or
            to None; see `adadepth.report.section`.
        reference_depth: Published depths of its models, a `"module:function"` from the files of a run to an
            `adadepth.report.console_summary.ReferenceDepth`, or to None.
    """

    settings: type[ModelConfig]
    config: str
    heads: Mapping[str, str]
    auto: Mapping[str, str] = field(default_factory=dict)
    encoder: str | None = None
    tokenizer: str | None = None
    public: Mapping[str, str] = field(default_factory=dict)
    loss_parts: Mapping[str, str | None] = field(default_factory=dict)
    budget: Budgeting = field(default_factory=Budgeting)
    depth: str | None = None
    fixed_depth: str | None = None
    matched_baseline: tuple[Mapping[str, Any], str] | None = None
    search: Searching | None = None
    reads: frozenset[str] = frozenset()
    starts_from: Mapping[str, str | None] = field(default_factory=dict)
    build: str | None = None
    published: tuple[str, ...] = ()
    adopts: str | None = None
    text: str = "streams"
    settle: str | None = None
    first_tokens: str | None = None
    reads_vectors: bool = False
    own_symbols: bool = True
    checks: tuple[str, ...] = ()
    option: str | None = None
    advice: str | None = None
    offline: str | None = None
    weights_from: str | None = None
    config_from: str | None = None
    extensions: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    reference_depth: str | None = None

    @property
    def name(self) -> str:
        """Name of the family in `model.name`."""
        return self.settings.name

    @property
    def groups(self) -> frozenset[str]:
        """`OPTIONAL_GROUPS` of a configuration that it reads."""
        holds_budget = self.budget.trained or self.budget.fitted
        return self.reads | {"budget"} if holds_budget else self.reads

    def reported_losses(self, settings: ModelConfig) -> tuple[str, ...]:
        """Return the losses that an evaluation reports besides that of the task."""
        return tuple(
            part for part, weight in self.loss_parts.items() if weight is None or getattr(settings, weight) > 0
        )

    def auto_classes(self) -> Mapping[str, str]:
        """Return the class that each Auto class of transformers makes of a configuration of this family."""
        return {_AUTO[kind]: path for kind, path in self.heads.items() if kind in _AUTO} | dict(self.auto)

    def searches(self, described: object) -> bool:
        """Return whether settings or a configuration have no architecture, so that supernet gates learn it."""
        return self.search is not None and getattr(described, self.search.setting, "") is None

    def head(self, kind: str) -> Any:
        """Load the class of its model for a kind of task.

        Raises:
            ConfigError: If it has none.
        """
        if kind not in self.heads:
            raise ConfigError(f"model={self.name}: has no model for {kind}; it supports {', '.join(self.heads)}")
        return load(self.heads[kind])


@cache
def families() -> Mapping[str, Family]:
    """Return all families by name: folders of this package in alphabetical order, then those of installed packages.

    Raises:
        ConfigError: If the family of an installed package is broken, or its name is taken.
    """
    here = Path(__file__).parent
    folders = sorted(path.parent.name for path in here.glob("*/family.py"))
    modules = [import_module(f"{__package__}.{folder}.family") for folder in folders]
    specs = [spec for module in modules for spec in getattr(module, "FAMILIES", None) or (module.FAMILY,)]
    by_name = {spec.name: spec for spec in specs}
    return by_name | load_plugins(GROUP, "family", by_name, _check_descriptor)


def family(name: str) -> Family:
    """Return the family of a name.

    Raises:
        ConfigError: If there is none.
    """
    specs = families()
    if name not in specs:
        raise ConfigError(f"model.name={name}: unknown model family{nearest(name, specs)}; known: {', '.join(specs)}")
    return specs[name]


def budget_mode(config: ExperimentConfig) -> Literal["held", "fitted"] | None:
    """Return whether training holds `budget.target` or the trained model is fitted to it; None without a target."""
    if config.budget.target is None:
        return None
    return "fitted" if family(config.model.name).budget.fits_target else "held"


def config_folders() -> list[Path]:
    """Return the folders `configs` with YAML files beside what packages offer.

    They lie beside the settings of families, kinds of data and modes, and beside the modules of sweepers and loggers.
    """
    specs: tuple[Family | Kind | ModeSpec, ...] = (*families().values(), *kinds().values(), *modes().values())
    settings = [spec.settings for spec in specs if spec.settings is not None]
    files = [Path(file) for group in settings if (file := sys.modules[group.__module__].__file__) is not None]
    files += (file for group in _GROUPS_WITH_CONFIGS for file in list_plugin_files(group))
    folders = dict.fromkeys(file.parent / "configs" for file in files)
    return [folder for folder in folders if folder.is_dir()]


def list_families_with_head(kind: str) -> list[str]:
    """Return the names of the families with a head for a kind of task."""
    return [name for name, spec in families().items() if kind in spec.heads]


def list_families_reading(group: str) -> list[str]:
    """Return the names of the families that read an optional group of a configuration."""
    return [name for name, spec in families().items() if group in spec.reads]


def join_alternatives(names: Iterable[str]) -> str:
    """Join names for a sentence: `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _check_descriptor(descriptor: object, name: str) -> str | None:
    """Describe why an object is no descriptor of a family of that name; None if it is one."""
    if not isinstance(descriptor, Family):
        return f"must be an adadepth.models.registry.Family, not {type(descriptor).__name__}"
    if not issubclass(descriptor.settings, ModelConfig):
        return f"its settings must be a ModelConfig, not {descriptor.settings.__name__}"
    if descriptor.name != name:
        return f"its settings name it {descriptor.name!r}"
    if wrong := [path for path in (descriptor.config, *descriptor.heads.values()) if path.count(":") != 1]:
        return f"{wrong[0]!r} must be 'module:Class'"
    return None
