"""What is known of every family of models, before torch is imported: descriptors, and how they are found.

A family is a folder of `adadepth.families` whose module `family` holds its descriptor `FAMILY`, or `FAMILIES` where a
folder has several, or an entry point of the group `adadepth.families` of any installed package that names such a
descriptor. A YAML only ever names a family.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from adadepth.errors import ConfigError, nearest
from adadepth.settings import BudgetUnit, ExperimentConfig, ModelConfig
from adadepth.settings.kinds import Kind, kinds
from adadepth.settings.modes import ModeSpec, modes
from adadepth.settings.plugins import installed
from adadepth.settings.plugins import load as load  # whoever asks for a descriptor loads what it names

GROUP = "adadepth.families"

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
    """What a family's depth can be set to.

    Attributes:
        trained: Units of a mean depth that training can hold.
        fitted: Units of a mean depth that a trained model can be set to.
        fits_target: Whether training has no depth to pay for: the trained model is then fitted to `budget.target`.
        prices: Settings that say what depth costs, which a budget finds out itself: they must be 0 beside it.
        grows: Whether it can train at any one depth, so that depth may grow at first.
        whole: Whether depth is a number of blocks.
        least: The fewest updates that a unit can get.
        checks: `"module:function"` of what a target needs: from a configuration to a line for every mistake.
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
        """Units of a `budget.target`, however it is met."""
        return self.fitted if self.fits_target else self.trained


@dataclass(frozen=True)
class Searching:
    """How a family's architectures are searched for. An architecture is a string, one letter for each block.

    The functions are `"module:function"`, called like those of `adadepth.families.par_xl` that are named here; a shape
    is length, memory and batch of a segment of text.

    Attributes:
        setting: The setting that names an architecture; None there: the supernet, which `heads["search"]` is.
        memory: The setting that says how many positions a segment sees of those before it.
        costs: What each operation costs, in seconds or in work: `latency.operation_costs`.
        derive: A network of one architecture with the supernet's weights: `latency.derive`.
        baselines: Architectures by name, of as much work: `architectures.baseline_architectures`.
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
    """All that the rest of the package knows of a family. Code is named as `"module:name"` and imported when needed.

    Attributes:
        settings: Its settings, a subclass of `ModelConfig` whose `name` is the family's: what `model.name` says.
        config: Its `PreTrainedConfig`; its `model_type` is that name, too. transformers' `PreTrainedConfig` itself has
            none: checkpoints are then of any type that the heads can load.
        heads: Kind of task -> class of its model: `pretraining`, `classification` (and regression), `tagging`,
            `question_answering`, `multiple_choice`, `language_model`, `search`.
        auto: Further Auto classes of transformers, besides those of its heads -> class registered with it.
        encoder: Its model without a head, which probes read; see `DepthModel`; None: its states cannot be read.
        tokenizer: The fast tokenizer that AutoTokenizer loads with it; None: none of its own.
        public: Further names of the package `adadepth`, besides the classes above -> what they name.
        loss_parts: What an evaluation reports besides the task's loss -> the setting that must be above 0 for it; None:
            always.
        budget: What its depth can be set to.
        depth: The setting that says the greatest number of updates; None: a pretrained model decides.
        fixed_depth: The setting that gives every unit one depth, which a rival of equal work needs.
        matched_baseline: Settings of the network of one depth that is trained at the end of a run on the states that
            the run has kept, and what that network is, in words; None: a run reads its own network at one depth.
        search: How its architectures are searched for; None: it has but one.
        reads: Which of the `OPTIONAL_GROUPS` of a configuration it can read, besides `budget`.
        starts_from: Family whose weights it can start from, besides its own -> what loads them, called like
            `adadepth.families.albert_act.convert.load_albert`; None: the head's own `from_pretrained`.
        build: Makes a classifier that has no configuration before its base is read; called like
            `adadepth.families.adalayers.base.build_on_base`.
        published: Types of other people's models whose folders its configuration and its heads read as they are.
        adopts: Makes a model of the layers of a pretrained decoder that is of no family; called like
            `adadepth.families.looped.retrofit.build_from_decoder`. None: such a checkpoint is refused.
        text: How its language model reads text, `Kind.reading` of the data that it trains on; see there.
        settle: What the training text decides of the settings, before a language model is built: called like
            `adadepth.families.par_xl.configuration.settle_cutoffs`.
        first_tokens: From settings or configuration to how many [CLS] a text begins with, by argument of
            `load_labelled_data`; None: one.
        reads_vectors: It reads vectors and no tokens.
        own_symbols: It learns the symbols it reads, and not only words of a pretrained tokenizer.
        checks: What its settings need of each other and of the rest of a configuration; see `Budgeting.checks`.
        option: An option of the group `model` that is of this family, which messages advise.
        advice: What may help where depth does not adapt, one line of overrides and what each does, with "; " between
            them; DEPTH stands for half of the greatest depth.
        offline: What needs no network in place of pretrained weights of the hub, one line.
        weights_from: Renames the parameters of an original, for `convert_reference_state_dict`.
        config_from: Reads an original's configuration, for `convert_reference_config`.
        extensions: What its training needs beside the loop, `"module:name"` each: what makes an
            `adadepth.training.extension.Extension`, or None where a run needs none; is told what its arguments name of
            `config`, `args` (of transformers' trainer), `model`, `data` and `seed`.
        sections: Further sections of its report, `"module:function"` each: from a run's files to a section, or to None
            where they have nothing to say; see `adadepth.report.section`.
        reference_depth: What depths of its models were published, `"module:function"`: from a run's files to an
            `adadepth.report.last_screen.ReferenceDepth`, or to None where none compares with the run.
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
        """The name of the family in `model.name`."""
        return self.settings.name

    @property
    def groups(self) -> frozenset[str]:
        """The `OPTIONAL_GROUPS` of a configuration that it can read."""
        holds_budget = self.budget.trained or self.budget.fitted
        return self.reads | {"budget"} if holds_budget else self.reads

    def reported_losses(self, settings: ModelConfig) -> tuple[str, ...]:
        """What an evaluation under these settings reports besides the task's loss."""
        return tuple(
            part for part, weight in self.loss_parts.items() if weight is None or getattr(settings, weight) > 0
        )

    def auto_classes(self) -> Mapping[str, str]:
        """Auto class of transformers -> class that it makes from a configuration of this family."""
        return {_AUTO[kind]: place for kind, place in self.heads.items() if kind in _AUTO} | dict(self.auto)

    def searches(self, described: object) -> bool:
        """Whether settings, or a configuration, leave the architecture open, so that gates are to learn it."""
        return self.search is not None and getattr(described, self.search.setting, "") is None

    def head(self, kind: str) -> Any:
        """The class of its model for a kind of task.

        Raises:
            ConfigError: If it has none.
        """
        if kind not in self.heads:
            raise ConfigError(f"model={self.name}: has no model for {kind}; it has {', '.join(self.heads)}")
        return load(self.heads[kind])


@cache
def families() -> Mapping[str, Family]:
    """Every family by name: the folders of this package in alphabetical order, then those of installed packages.

    Raises:
        ConfigError: If an installed package's family is broken, or has a name that is taken.
    """
    here = Path(__file__).parent
    folders = sorted(path.parent.name for path in here.glob("*/family.py"))
    modules = [import_module(f"{__package__}.{folder}.family") for folder in folders]
    found = {each.name: each for module in modules for each in getattr(module, "FAMILIES", None) or (module.FAMILY,)}
    return found | installed(GROUP, "family", found, _wrong)


def family(name: str) -> Family:
    """The family of that name.

    Raises:
        ConfigError: If there is none.
    """
    known = families()
    if name not in known:
        raise ConfigError(f"model.name={name}: no such family{nearest(name, known)}; known: {', '.join(known)}")
    return known[name]


def met(config: ExperimentConfig) -> Literal["held", "fitted"] | None:
    """How `budget.target` is met: training holds it, or the trained model is fitted to it; None: there is no target."""
    if config.budget.target is None:
        return None
    return "fitted" if family(config.model.name).budget.fits_target else "held"


def config_folders() -> list[Path]:
    """The folders of YAML files that families, kinds of data and modes bring along: `configs` beside their settings."""
    known: tuple[Family | Kind | ModeSpec, ...] = (*families().values(), *kinds().values(), *modes().values())
    settings = [each.settings for each in known if each.settings is not None]
    places = dict.fromkeys(sys.modules[each.__module__].__file__ for each in settings)
    folders = (Path(place).parent / "configs" for place in places if place is not None)
    return [folder for folder in folders if folder.is_dir()]


def with_head(kind: str) -> list[str]:
    """Names of the families that serve a kind of task."""
    return [name for name, each in families().items() if kind in each.heads]


def families_reading(group: str) -> list[str]:
    """Names of the families that read one of a configuration's optional groups."""
    return [name for name, each in families().items() if group in each.reads]


def one_of(names: Iterable[str]) -> str:
    """Names as a sentence has them: `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _wrong(descriptor: object, name: str) -> str | None:
    """What keeps an object from being the descriptor of the family of that name."""
    if not isinstance(descriptor, Family):
        return f"must be an adadepth.families.registry.Family, not {type(descriptor).__name__}"
    if not issubclass(descriptor.settings, ModelConfig):
        return f"its settings must be a ModelConfig, not {descriptor.settings.__name__}"
    if descriptor.name != name:
        return f"its settings call it {descriptor.name!r}"
    if wrong := [place for place in (descriptor.config, *descriptor.heads.values()) if place.count(":") != 1]:
        return f"{wrong[0]!r} must be 'module:Class'"
    return None
