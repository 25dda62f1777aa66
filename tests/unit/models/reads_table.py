"""Host reads of training steps, exits and decoding steps of every family, and the table of them in docs/guide.md.

    PYTHONPATH=. .venv/bin/python -m tests.unit.models.reads_table

This command counts the reads again, and prints `COUNTS` of this module and the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth import (
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    EarlyExitForMaskedLM,
    EarlyExitForSequenceClassification,
    EarlyExitForTokenClassification,
    LoopedForSequenceClassification,
    LoopedForTokenClassification,
    PonderRnnConfig,
    PonderRnnForClassification,
    TrmConfig,
    TrmForPuzzles,
)
from adadepth.halting.exit_rules import ExitRule, StepView
from tests.host_reads_support import ACCELERATOR, accelerator_autocast
from tests.mirrored_reads_support import MirroredReads
from tests.models_support import make_small_act, make_small_multi_exit, make_small_ponder
from tests.unit.models.adalayers_support import build_mixture
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.every_model_support import BUILD, TINY_PUZZLES
from tests.unit.models.looped.looped_support import HUGINN, OURO, build_looped
from tests.unit.models.par_xl_support import build_network
from tests.unit.models.routed.routed_support import build_routed

ROWS, LENGTH = 7, 6


@dataclass(frozen=True)
class Staggered(ExitRule):
    """Exit rule under which units exit at steps 1, 2, 3, ..., so that some exit at each of them."""

    name = "staggered"
    needs = frozenset()

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        return torch.arange(1, rows + 1, device=device).float().unsqueeze(1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        return memory[:, 0] <= view.step, memory


class Case(NamedTuple):
    """Builder of a model from its numbers of layers per exit and of exits.

    Attributes:
        build: Function from both numbers to the model in evaluation mode.
        options: Arguments of its forward pass in evaluation.
        labels: Unit that has a label: `text`, `token`, or `word` (a token whose label is a word).
        decodes: Whether it is a language model, whose decoding step is counted.
    """

    build: Callable[[int, int], Any]
    options: dict[str, Any]
    labels: str = "text"
    decodes: bool = False


class Counts(NamedTuple):
    """Numbers of host reads of a model.

    Attributes:
        training: Reads of a training step beside those of its exits, which most models do not have in training.
        exit: Reads of each exit.
        decoding: Reads of a decoding step beside those of its exits.
    """

    training: int
    exit: int
    decoding: int


def _act(model_class: Any, **fields: Any) -> Callable[[int, int], Any]:
    return lambda layers, exits: make_small_act(model_class, num_hidden_layers=exits, **fields)


def _make_early_exit_builder(model_class: Any = None, base: str = "llama", **fields: Any) -> Callable[[int, int], Any]:
    classes = () if model_class is None else (model_class, base)

    def build(layers: int, exits: int) -> Any:
        numbers = [layers * number for number in range(1, exits + 1)]
        return build_early_exit(*classes, **fields, num_hidden_layers=numbers[-1], exit_layers=numbers)

    return build


def _make_looped_builder(*model_class: Any, **fields: Any) -> Callable[[int, int], Any]:
    return lambda layers, exits: build_looped(*model_class, **{**fields, "core": layers, "num_loops": exits})


def _make_routed_builder(**fields: Any) -> Callable[[int, int], Any]:
    def build(layers: int, exits: int) -> Any:
        recursions = {"recursions": exits, "prelude": 1, "coda": 1, "num_hidden_layers": layers + 2}
        return build_routed(**recursions, choice_bias=0.6, **fields).float()

    return build


def _build_skipping(layers: int, exits: int) -> Any:
    """Return a network in which `exits` single layers have a router, each after `layers - 1` layers without one."""
    routed = [layers * number for number in range(1, exits + 1)]
    options = {"router": "threshold", "keys_and_values": "all", "capacities": [0.4], "choice_bias": 0.2}
    return build_routed(num_hidden_layers=routed[-1], routed_layers=routed, **options).float()


RULE = {"exit_rule": Staggered()}
CASES: dict[str, Case] = {
    "ACT-ALBERT": Case(_act(AlbertActForSequenceClassification), {}),
    "ACT-ALBERT, `execution=ragged`": Case(_act(AlbertActForSequenceClassification, execution="ragged"), {}),
    "ACT-ALBERT, taggers with an exit rule": Case(_act(AlbertActForTokenClassification), RULE, "token"),
    "PonderALBERT": Case(lambda layers, exits: make_small_ponder(num_hidden_layers=exits), RULE),
    "multi-exit ALBERT": Case(lambda layers, exits: make_small_multi_exit(num_hidden_layers=exits), RULE),
    "PonderNet's cell": Case(
        lambda layers, exits: PonderRnnForClassification(
            PonderRnnConfig(input_size=6, hidden_size=8, num_steps=exits)
        ).eval(),
        RULE,
    ),
    "TRM": Case(lambda layers, exits: TrmForPuzzles(TrmConfig(**{**TINY_PUZZLES, "num_steps": exits})).eval(), RULE),
    "Adalayers": Case(lambda layers, exits: build_mixture().eval(), {}),
    "ALBERT": Case(lambda layers, exits: BUILD["albert"]().eval(), {}),
    "classifiers of transformers": Case(lambda layers, exits: BUILD["stock classification"]().eval(), {}),
    "PAR-XL": Case(lambda layers, exits: build_network("sf" * layers), {}, "word", decodes=True),
    "early exits, texts": Case(
        _make_early_exit_builder(EarlyExitForSequenceClassification, "bert", num_labels=3), RULE
    ),
    "early exits, taggers": Case(
        _make_early_exit_builder(EarlyExitForTokenClassification, "bert", num_labels=3), RULE, "token"
    ),
    "early exits, masked words": Case(_make_early_exit_builder(EarlyExitForMaskedLM, "bert"), RULE, "word"),
    "early exits, language models": Case(_make_early_exit_builder(), RULE, "word", decodes=True),
    "early exits, `cache_policy=frozen`": Case(
        _make_early_exit_builder(), RULE | {"cache_policy": "frozen"}, "word", decodes=True
    ),
    "early exits, `exit_heads=own`, `cache_policy=deferred`": Case(
        _make_early_exit_builder(exit_heads="own"), RULE | {"cache_policy": "deferred"}, "word", decodes=True
    ),
    "looped, texts": Case(_make_looped_builder(LoopedForSequenceClassification, num_labels=3), RULE),
    "looped, taggers": Case(_make_looped_builder(LoopedForTokenClassification, num_labels=3), RULE, "token"),
    "looped, language models": Case(_make_looped_builder(**OURO), RULE, "word", decodes=True),
    "looped, `cache_policy=frozen`": Case(
        _make_looped_builder(**OURO), RULE | {"cache_policy": "frozen"}, "word", decodes=True
    ),
    "looped, `cache_policy=mean`": Case(
        _make_looped_builder(**OURO), RULE | {"cache_policy": "mean"}, "word", decodes=True
    ),
    "looped, `start=drawn`, `cache_policy=last`": Case(
        _make_looped_builder(**HUGINN), RULE | {"cache_policy": "last"}, "word", decodes=True
    ),
    **{
        f"routed, `router={router}`, `keys_and_values={source}`": Case(
            _make_routed_builder(router=router, keys_and_values=source), {}, "word", decodes=True
        )
        for router in ("expert", "token")
        for source in ("selected", "all")
    },
    "routed, `router=threshold`": Case(_build_skipping, {}, "word", decodes=True),
}
COUNTS: dict[str, Counts] = {
    "ACT-ALBERT": Counts(0, 1, 0),
    "ACT-ALBERT, `execution=ragged`": Counts(2, 1, 0),
    "ACT-ALBERT, taggers with an exit rule": Counts(0, 1, 0),
    "PonderALBERT": Counts(0, 3, 0),
    "multi-exit ALBERT": Counts(0, 3, 0),
    "PonderNet's cell": Counts(0, 1, 0),
    "TRM": Counts(0, 1, 0),
    "Adalayers": Counts(0, 0, 0),
    "ALBERT": Counts(1, 0, 0),
    "classifiers of transformers": Counts(1, 0, 0),
    "PAR-XL": Counts(1, 0, 0),
    "early exits, texts": Counts(1, 1, 0),
    "early exits, taggers": Counts(2, 1, 0),
    "early exits, masked words": Counts(2, 1, 0),
    "early exits, language models": Counts(3, 1, 2),
    "early exits, `cache_policy=frozen`": Counts(3, 1, 2),
    "early exits, `exit_heads=own`, `cache_policy=deferred`": Counts(3, 1, 2),
    "looped, texts": Counts(2, 1, 0),
    "looped, taggers": Counts(3, 1, 0),
    "looped, language models": Counts(3, 1, 2),
    "looped, `cache_policy=frozen`": Counts(3, 1, 2),
    "looped, `cache_policy=mean`": Counts(3, 1, 2),
    "looped, `start=drawn`, `cache_policy=last`": Counts(3, 1, 3),
    "routed, `router=expert`, `keys_and_values=selected`": Counts(4, 1, 2),
    "routed, `router=expert`, `keys_and_values=all`": Counts(4, 1, 2),
    "routed, `router=token`, `keys_and_values=selected`": Counts(4, 0, 2),
    "routed, `router=token`, `keys_and_values=all`": Counts(4, 0, 2),
    "routed, `router=threshold`": Counts(4, 1, 2),
}


def measure(name: str, layers: int) -> Counts:
    """Count the reads of a model with a number of layers in each exit."""
    training = _split_reads(lambda exits: count_training_reads(name, layers, exits))
    evaluation = _split_reads(lambda exits: count_reads(name, layers, exits))
    decoding = (0, 0)
    if CASES[name].decodes:
        decoding = _split_reads(lambda exits: count_reads(name, layers, exits, decodes=True))
    return Counts(training[1], max(training[0], evaluation[0], decoding[0]), decoding[1])


def _split_reads(count: Callable[[int], int]) -> tuple[int, int]:
    """Return the reads of an exit, and all others, from the reads by the number of exits; the last exit takes none."""
    few, many = count(4), count(6)
    at_exit = -(-(many - few) // 2)
    return at_exit, few - 3 * at_exit


def count_training_reads(name: str, layers: int, exits: int) -> int:
    """Count the reads of a training step with `layers` layers in each of the exits."""
    case, reads = CASES[name], MirroredReads()
    torch.manual_seed(0)
    model, inputs = case.build(layers, exits).train(), _make_inputs(name)
    words = inputs.get("input_ids", torch.zeros(ROWS, 1, dtype=torch.long))
    labels = {"text": words[:, 0] * 0, "token": words * 0, "word": words}[case.labels]
    targets: dict[str, Any] = {"targets" if name == "PAR-XL" else "labels": labels}
    if name == "TRM":
        targets = {"labels": words, "draws": torch.rand(ROWS, 2), "carry": {}}
    with accelerator_autocast(), reads:
        model = model.to(ACCELERATOR)
        batch = {
            key: value.to(ACCELERATOR) if isinstance(value, Tensor) else value
            for key, value in {**inputs, **targets}.items()
        }
        reads.reads.clear()
        model.set_step(1, 10)
        model(**batch).loss.backward()
    return reads.reads.total()


def count_reads(name: str, layers: int, exits: int, *, decodes: bool = False) -> int:
    """Count the reads of an evaluation, or of a decoding step after it, with `layers` layers in each of the exits."""
    case, reads = CASES[name], MirroredReads()
    torch.manual_seed(0)
    model = case.build(layers, exits)
    with torch.no_grad(), accelerator_autocast(), reads:
        model = model.to(ACCELERATOR)
        inputs: dict[str, Any] = {
            key: value.to(ACCELERATOR) for key, value in _make_inputs(name, generates=case.decodes).items()
        }
        if decodes:
            prompt = {key: value[:, :-1] for key, value in inputs.items()}
            cache = model(**prompt, use_cache=True, **case.options).past_key_values
            inputs = {key: value if key == "attention_mask" else value[:, -1:] for key, value in inputs.items()}
            inputs |= {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        reads.reads.clear()
        model(**inputs, **case.options)
    return reads.reads.total()


def _make_inputs(name: str, *, generates: bool = False) -> dict[str, Tensor]:
    """Return the inputs of a padded batch as the trainer passes them, or as `generate` does, with positions."""
    if name == "PonderNet's cell":
        return {"inputs": torch.randn(ROWS, 6)}
    if name == "TRM":
        return {"input_ids": torch.ones(ROWS, 9, dtype=torch.long)}
    ids = torch.randint(3, 20, (ROWS, LENGTH))
    if name in ("Adalayers", "PAR-XL"):
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    positions = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if generates else {}
    return {"input_ids": ids, "attention_mask": mask, **positions}


def render_table(counts: dict[str, Counts]) -> str:
    """Return the table as Markdown."""
    lines = ["| model | training step | exit | decoding step |", "|---|---|---|---|"]
    for name, (training, at_exit, decoding) in counts.items():
        lines.append(f"| {name} | {training} | {at_exit or '–'} | {decoding if CASES[name].decodes else '–'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measured = {name: measure(name, layers=2) for name in CASES}
    for name, counts in measured.items():
        print(f"    {name!r}: Counts{tuple(counts)},")
    print(render_table(measured))
