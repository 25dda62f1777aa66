"""Settings of tiny recursive models (TRM), and their validation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import ExperimentConfig, Mode, ModelConfig, family_name
from adadepth.config.declaration import POSITIVE, SHARE, at_least, setting
from adadepth.errors import ConfigError

Mixing = StrEnum("Mixing", ["attention", "positions"])
PositionKind = StrEnum("PositionKind", ["rotary", "learned", "none"])
AnswerLoss = StrEnum("AnswerLoss", ["stablemax", "softmax"])


@dataclass
class TrmSettings(ModelConfig):
    """Tiny network that refines its answer step by step (TRM, Jolicoeur-Martineau 2025, arXiv 2510.04871)."""

    name: str = family_name("trm")
    vocab_size: int | None = setting(
        None,
        "V, number of symbols of a cell in puzzle and answer; None: that of the data",
        at_least(2),
        shape=True,
        hub=11,
    )
    hidden_size: int = setting(512, "D, width of answer and reasoning states", at_least(1), shape=True, debug=16)
    num_layers: int = setting(2, "number of blocks of the network", at_least(1), shape=True)
    answer_layers: int | None = setting(
        None,
        "number of blocks of a second network, which updates the answer (HRM); None: one network updates both",
        at_least(1),
        shape=True,
        later=True,
    )
    mixing: Mixing = setting(
        Mixing.attention,
        "mixing of cells: attention; positions: a feed-forward layer over positions (`mlp_t`)",
        shape=True,
    )
    num_attention_heads: int = setting(8, "must divide hidden_size", at_least(1), shape=True, debug=2)
    intermediate_size: int | None = setting(
        None,
        "F, inner width of the feed-forward layers; None: 8/3 D, up to a multiple of 256",
        at_least(1),
        shape=True,
        debug=32,
    )
    mixing_size: int | None = setting(
        None, "inner width of mixing=positions; None: 8/3 S, up to a multiple of 256", at_least(1), shape=True, debug=32
    )
    positions: PositionKind = setting(
        PositionKind.rotary, "position encoding of cells; learned ones are added to the embeddings", shape=True
    )
    rope_theta: float = setting(10000.0, "base of rotary positions", POSITIVE)
    prefix_length: int = setting(
        16,
        "P, number of register tokens before the cells; the first one holds the puzzle embedding",
        at_least(1),
        shape=True,
        debug=1,
    )
    cycles: int = setting(
        3,
        "T, number of cycles of a step; only the last one has gradients",
        at_least(1),
        debug=2,
        more="A step applies the network T (n + 1) times.",
    )
    reasoning_updates: int = setting(
        6, "n, number of updates of the reasoning state per update of the answer, in a cycle", at_least(1), debug=1
    )
    num_steps: int = setting(16, "N, maximum number of supervision steps", at_least(1), debug=4)
    exploration: float = setting(
        0.1,
        "exploration: probability that a puzzle stays for a random minimum number of steps in training",
        SHARE,
        more="It applies at every step: the puzzle then does not halt before step m, uniform in 2..N.",
    )
    halt_loss_weight: float = setting(0.5, "weight of the loss of the Q head", at_least(0))
    answer_loss: AnswerLoss = setting(
        AnswerLoss.stablemax,
        "loss of a cell, by the function from logits to probabilities (softmax in figure 3 of the paper)",
        more="`stablemax`: s(v) = v + 1 for v >= 0, else 1/(1 - v) (Prieto et al. 2025, arXiv 2501.04697).",
    )
    places: int | None = setting(
        None,
        "number of slots in evaluation; a waiting puzzle takes the slot of one that exits. None: run all N steps "
        "of all puzzles",
        at_least(1),
        more="With slots, the loss covers the selected answers only, and no other step is evaluated.",
    )
    exit_rule: str = setting(
        "correct:0.5",
        "exit rule that selects the step of the answer; fixed:N is the published evaluation",
        more="It is the default rule of calls, in the syntax of `adadepth.halting.exit_rules.parse_rule`.",
    )


def fix_supervision_steps(model: TrmSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the TRM that trains every puzzle for `depth` supervision steps, and predicts after them.

    Without a loss, the Q head keeps its negative initial bias, with which no puzzle halts early in training.

    Raises:
        ConfigError: If `model.pretrained` has a trained Q head.
    """
    if model.pretrained is not None:
        raise ConfigError(f"model.pretrained={model.pretrained}: its Q head is trained and would halt")
    return {"num_steps": depth, "exit_rule": f"fixed:{depth}", "halt_loss_weight": 0.0, "exploration": 0.0}


def check_slots(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if batches have different sizes, or if the exit rule stops every puzzle after one step."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if re.fullmatch(r"correct:0*\.?0*", rule) and rule != "correct:":
        yield f"model.exit_rule={rule}: every puzzle would exit after its first step; for that, set fixed:1"
    trainer, examples = config.trainer, getattr(config.dataset, "train_examples", None)
    if config.mode is not Mode.train:
        return
    if not trainer.dataloader_drop_last:
        yield (
            "trainer.dataloader_drop_last=false: must be true, because puzzles keep their slots and all batches "
            "need the same size"
        )
    rows = trainer.per_device_train_batch_size
    if examples is not None and examples < rows:
        yield f"dataset.train_examples={examples}: fewer than trainer.per_device_train_batch_size={rows}"


def check_target(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if the exit rule has no threshold on the Q head that could be fitted to a depth budget."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if config.mode is Mode.train and not rule.startswith("correct:"):
        yield f"model.exit_rule={rule}: budget.target={config.budget.target:g} fits the threshold P of correct:P"
