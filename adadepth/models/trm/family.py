"""The settings of tiny recursive models, their checks, and the family's descriptor."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from adadepth.config import BudgetUnit, ExperimentConfig, Mode, ModelConfig, family_name
from adadepth.config.declaration import POSITIVE, SHARE, at_least, setting
from adadepth.models.registry import Budgeting, Family

Mixing = StrEnum("Mixing", ["attention", "positions"])
PositionKind = StrEnum("PositionKind", ["rotary", "learned", "none"])
AnswerLoss = StrEnum("AnswerLoss", ["stablemax", "softmax"])


@dataclass
class TrmSettings(ModelConfig):
    """A tiny network that refines its answer step by step (TRM, Jolicoeur-Martineau 2025, arXiv 2510.04871)."""

    name: str = family_name("trm")
    vocab_size: int | None = setting(
        None,
        "V, symbols of a cell, in puzzle and answer; None: as many as the data have",
        at_least(2),
        shape=True,
        hub=11,
    )
    hidden_size: int = setting(512, "D, width of answer and reasoning states", at_least(1), shape=True, debug=16)
    num_layers: int = setting(2, "blocks of the one network", at_least(1), shape=True)
    mixing: Mixing = setting(
        Mixing.attention, "how cells see each other; positions: a feed-forward layer over them (`mlp_t`)", shape=True
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
        PositionKind.rotary, "of cells; learned ones are added to their embeddings", shape=True
    )
    rope_theta: float = setting(10000.0, "base of rotary positions", POSITIVE)
    prefix_length: int = setting(
        16,
        "P, registers before the cells; the first holds the vector of the puzzle's kind",
        at_least(1),
        shape=True,
        debug=1,
    )
    cycles: int = setting(
        3,
        "T, of a step: only the last one has gradients",
        at_least(1),
        debug=2,
        more="A step applies the network T (n + 1) times.",
    )
    reasoning_updates: int = setting(
        6, "n, of a cycle: updates of the reasoning before one of the answer", at_least(1), debug=1
    )
    num_steps: int = setting(16, "N, most supervision steps", at_least(1), debug=4)
    exploration: float = setting(
        0.1,
        "probability with which training makes a puzzle stay for a drawn number of steps",
        SHARE,
        more="At every step anew: it then halts at none before m, uniform in 2..N.",
    )
    halt_loss_weight: float = setting(0.5, "of the loss of the Q head", at_least(0))
    answer_loss: AnswerLoss = setting(
        AnswerLoss.stablemax,
        "of a cell: what makes logits probabilities (the paper's figure 3 has softmax)",
        more="`stablemax`: s(v) = v + 1 for v >= 0, else 1/(1 - v) (Prieto et al. 2025, arXiv 2501.04697).",
    )
    places: int | None = setting(
        None,
        "evaluation: puzzles computed at a time; who exits makes room for who waits. None: all N steps of all",
        at_least(1),
        more="Then its loss is that of the answers that count, and no step is studied but these.",
    )
    exit_rule: str = setting(
        "correct:0.5",
        "which step's answer counts; fixed:N is the published evaluation",
        more="The rule where a call names none, as `adadepth.halting.exit_rules.parse_rule` reads it.",
    )


def check_slots(config: ExperimentConfig) -> Iterator[str]:
    """Check that every batch has a row for each slot, and that the exit rule does not let all puzzles exit at once."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if re.fullmatch(r"correct:0*\.?0*", rule) and rule != "correct:":
        yield f"model.exit_rule={rule}: every puzzle would exit after its first step; say fixed:1 if that is meant"
    trainer, examples = config.trainer, getattr(config.dataset, "train_examples", None)
    if config.mode is not Mode.train:
        return
    if not trainer.dataloader_drop_last:
        yield "trainer.dataloader_drop_last=false: puzzles keep their slots of the batch, so that none may be shorter"
    rows = trainer.per_device_train_batch_size
    if examples is not None and examples < rows:
        yield f"dataset.train_examples={examples}: fewer than trainer.per_device_train_batch_size={rows}"


def check_target(config: ExperimentConfig) -> Iterator[str]:
    """Check that the exit rule has the threshold that a target fits: that of the Q head."""
    rule = str(getattr(config.model, "exit_rule", ""))
    if config.mode is Mode.train and not rule.startswith("correct:"):
        yield f"model.exit_rule={rule}: budget.target={config.budget.target:g} fits the threshold P of correct:P"


FAMILY = Family(
    settings=TrmSettings,
    option="trm_mini",
    config="adadepth.models.trm.configuration:TrmConfig",
    heads={"puzzle": "adadepth.models.trm.modeling:TrmForPuzzles"},
    loss_parts={"halt_loss": "halt_loss_weight"},
    budget=Budgeting(
        fitted=(BudgetUnit.updates, BudgetUnit.macs),
        fits_target=True,
        checks=("adadepth.models.trm.family:check_target",),
    ),
    depth="num_steps",
    checks=("adadepth.models.trm.family:check_slots",),
    extensions=("adadepth.training.slot_training:TrainingSlots",),
    weights_from="adadepth.models.trm.convert:rename_weights",
    advice="a Q head tells puzzles apart only after it has seen some solved: train longer, or with fewer cycles",
)
