"""Every family against its `reference.py`, with the same weights: predictions, depths, losses and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from adadepth import (
    AdaLayersConfig,
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    AlbertActForPreTraining,
    LoopedConfig,
    LoopedForCausalLM,
    PonderAlbertConfig,
    PonderAlbertForSequenceClassification,
)
from adadepth.models.adalayers import reference as adalayers
from adadepth.models.albert_act import reference as albert_act
from adadepth.models.early_exit import reference as early_exit
from adadepth.models.looped import reference as looped
from adadepth.models.par_xl import reference as par_xl
from adadepth.models.ponder import reference as ponder
from adadepth.models.routed import reference as routed
from adadepth.models.trm import reference as trm
from tests.albert_act_support import make_labelled_batch
from tests.marks_support import mark_mostly_slow
from tests.models_support import MOVING, make_padded_batch, make_small_config, spread_depths
from tests.parity.references_support import copy_weights, select_options
from tests.unit.models.adalayers_support import BASES, DEPTH, HEAD, SCORES, draw_texts, set_scores
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.par_xl_support import build_supernet, draw_words
from tests.unit.models.routed.routed_support import RIGHT, build_routed
from tests.unit.models.trm_support import build_trm, draw_puzzles

SEEDS = (0, 1, 2)


class Comparison(NamedTuple):
    """A fast model and its reference after a forward pass with the same weights and inputs.

    Attributes:
        model: Fast model.
        weights: Weights of the reference by name.
        depths: Depths of the units of both, which must be equal and differ between units.
        pairs: Tensors of both by name, which must be close.
        losses: Losses of both.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    depths: tuple[list[Any], list[Any]]
    pairs: dict[str, tuple[Tensor, Tensor]]
    losses: tuple[Tensor, Tensor]


def pair_losses(outputs: Any, expected: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the parts of both losses by name."""
    assert outputs.loss_parts.keys() == expected.loss_parts.keys()
    return {name: (outputs.loss_parts[name], part) for name, part in expected.loss_parts.items()}


def compare_albert_act(seed: int, training: bool) -> Comparison:
    torch.manual_seed(seed)
    model = AlbertActForPreTraining(make_small_config(initializer_range=0.3, act_penalty=0.01)).double().train(training)
    spread_depths(model, scale=3.0)
    batch = make_labelled_batch(AlbertActForPreTraining) | {"sentence_order_label": torch.tensor([0, 1, 1])}
    outputs = model(**batch)
    weights = copy_weights(model)
    expected = albert_act.forward(weights, **batch, **select_options(albert_act.forward, model.config))
    real = batch["attention_mask"].bool()
    rows = zip(expected.logits, batch["labels"], real, strict=True)
    labelled = [logits[labels[mask] >= 0] for logits, labels, mask in rows]
    remainders = torch.stack([remainder for row in expected.halting for remainder in row.remainders])
    probabilities = [torch.stack(token).sum() for row in expected.halting for token in row.probabilities]
    pairs = {
        "logits": (outputs.prediction_logits, torch.cat(labelled)),
        "order": (outputs.sop_logits, expected.order_logits),
        "remainders": (outputs.remainders[real], remainders),
        "probabilities": (outputs.halting_probabilities[real].sum(dim=-1), torch.stack(probabilities)),
    }
    depths = outputs.updates[real].tolist(), [updates for row in expected.halting for updates in row.updates]
    return Comparison(model, weights, depths, pairs | pair_losses(outputs, expected), (outputs.loss, expected.loss))


def compare_ponder(seed: int, training: bool) -> Comparison:
    torch.manual_seed(seed)
    model = PonderAlbertForSequenceClassification(PonderAlbertConfig(**MOVING, num_labels=3, kl_penalty_factor=0.5))
    with torch.no_grad():
        model.ponder[-1].weight.mul_(0.25)
        model.ponder[-1].bias.fill_(-1.0)
    model = model.double().train(training)
    batch = make_padded_batch((10, 7, 2, 12), seed=seed) | {"labels": torch.tensor([0, 2, 1, 1])}
    levels = torch.rand(4, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    outputs = model(**batch, exit_rule="sample", run_all_steps=True, generator=generator)
    weights = copy_weights(model)
    options = select_options(ponder.forward, model.config)
    expected = ponder.forward(weights, **batch, levels=levels, **options)
    names = ("logits", "step_logits", "halting_probabilities")
    pairs = {name: (getattr(outputs, name), getattr(expected, name)) for name in names}
    pairs |= {"pmf": (outputs.posterior.pmf, expected.pmf)} | pair_losses(outputs, expected)
    depths = outputs.exit_steps.tolist(), expected.exit_steps
    return Comparison(model, weights, depths, pairs, (outputs.loss, expected.loss))


def compare_adalayers(model_class: Any, labels: Tensor, seed: int, training: bool) -> Comparison:
    torch.manual_seed(seed)
    fields = HEAD | {"distribution_cutoff": 0.02, "lambda_distribution_entropy": 0.3, "num_labels": 3}
    model = model_class(AdaLayersConfig(base_config=BASES["bert"], **fields)).double().train(training)
    set_scores(model, SCORES)
    batch = draw_texts(seed=seed)
    outputs = model(**batch, labels=labels)
    weights = copy_weights(model)
    with torch.no_grad():
        states = model.model(**batch, output_hidden_states=True).hidden_states
    options = select_options(adalayers.forward, model.config)
    expected = adalayers.forward(weights, states, batch["attention_mask"], labels, **options)
    real = batch["attention_mask"].bool() if labels.dim() == 2 else ...
    pairs = {
        "logits": (outputs.logits[real], expected.logits[real]),
        "distribution": (model.layer_distribution(), expected.distribution),
    }
    assert expected.depth < DEPTH, "the last blocks must not be read"
    depths = sorted(set(outputs.trace.updates.tolist())), [expected.depth]  # all sequences have the task's depth
    return Comparison(model, weights, depths, pairs | pair_losses(outputs, expected), (outputs.loss, expected.loss))


def compare_par_xl(seed: int, training: bool) -> Comparison:
    model = build_supernet(gate_seed=seed, cutoffs=[10, 25]).double().train(training)
    model.set_step(2, 5)
    noise, temperature = (model._noise, model.temperature) if training else (torch.zeros(4, 3), 1.0)
    memory = torch.zeros(4, 2, 0, 16)
    if seed:  # later segments have the memory of the first one
        with torch.no_grad():
            memory = model(draw_words(length=4, seed=seed)).memory
    ids, targets = draw_words(length=3, seed=seed + 10), draw_words(length=3, seed=seed + 20)
    targets[0, 2] = -100
    outputs = model(ids, targets=targets, memory=memory)
    weights = copy_weights(model)
    options = select_options(par_xl.forward, model.config)
    expected = par_xl.forward(weights, ids, targets, memory, noise, temperature, **options)
    with torch.no_grad():
        logits = model(ids, memory=memory).logits
    pairs = {
        "logits": (logits, expected.logits),
        "operations": (outputs.trace.operations.weights, expected.operations),
        "depth": (outputs.trace.updates, expected.depth.unsqueeze(0)),
        "memory": (outputs.memory, expected.memory[:, :, -model.config.memory_length :]),
    }
    return Comparison(model, weights, ([4], [len(expected.operations)]), pairs, (outputs.loss, expected.loss))


def compare_routed(seed: int, training: bool) -> Comparison:
    model = build_routed(recursions=3, prelude=1, coda=1, routing_weight=0.5, keys_and_values="selected").train(
        training
    )
    ids, labels = draw_labelled_ids(model.config.vocab_size, RIGHT, seed)
    outputs = model(ids, attention_mask=RIGHT, labels=labels)
    weights = copy_weights(model)
    options = select_options(routed.forward, model.config)
    options["rms_norm_eps"] = model.config.base_config.rms_norm_eps
    expected = routed.forward(weights, ids, RIGHT, labels, training, **options)
    real = RIGHT.bool()
    depths = outputs.trace.updates[real].tolist(), [depth for row in expected.depths for depth in row]
    with torch.no_grad():  # in training, logits are only computed without labels
        pairs = {"logits": (model(ids, attention_mask=RIGHT).logits[real], torch.cat(expected.logits))}
    return Comparison(model, weights, depths, pairs | pair_losses(outputs, expected), (outputs.loss, expected.loss))


def compare_trm(seed: int, training: bool) -> Comparison:
    # With one cycle, a gradient would cross the boundary of steps if states were not detached.
    model = build_trm(puzzle_kinds=2, cycles=2 - seed % 2).double().train(training)
    cells, labels = draw_puzzles(3, seed=seed)
    kinds = torch.tensor([0, 1, 1])
    with torch.no_grad():  # some of the first estimates are above 0
        model.q_head.bias -= model(cells, puzzle_kinds=kinds, run_all_steps=True).halting_logits[:, 0].mean()
    outputs = model(cells, labels=labels, puzzle_kinds=kinds, run_all_steps=True, exit_rule="correct:0.5")
    weights = copy_weights(model)
    expected = trm.forward(weights, cells, kinds, labels, **select_options(trm.forward, model.config))
    names = ("logits", "step_logits", "halting_logits")
    pairs = {name: (getattr(outputs, name), getattr(expected, name)) for name in names}
    depths = outputs.exit_steps.tolist(), expected.exit_steps
    return Comparison(model, weights, depths, pairs | pair_losses(outputs, expected), (outputs.loss, expected.loss))


def draw_labelled_ids(words: int, mask: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return ids of texts with padding at the end, and labels, one of which is missing in every text."""
    ids = torch.randint(3, words, mask.shape, generator=torch.Generator().manual_seed(seed)) * mask
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 3] = -100
    return ids, labels


def compare_looped(seed: int, training: bool) -> Comparison:
    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "core": 2}
    ouro = {"norms": "branch", "state_norm": "fed", "gate": True, "objective": "gate", "entropy_weight": 0.3}
    torch.manual_seed(seed)
    model = LoopedForCausalLM(LoopedConfig(**sizes, **ouro, num_loops=3, initializer_range=0.3)).double()
    with torch.no_grad():
        model.model.gate.weight.mul_(3.0)
    ids, labels = draw_labelled_ids(31, RIGHT, seed)
    options = select_options(looped.forward, model.config)
    run = partial(looped.forward, input_ids=ids, attention_mask=RIGHT, labels=labels, quantile=0.6, **options)
    return compare_words(model.train(training), run, ids, labels, "quantile:0.6")


def compare_early_exit(seed: int, training: bool) -> Comparison:
    model = build_early_exit().double().train(training)
    ids, labels = draw_labelled_ids(model.config.vocab_size, RIGHT, seed)
    options = select_options(early_exit.forward, model.config)
    options["rms_norm_eps"] = model.config.base_config.rms_norm_eps
    run = partial(early_exit.forward, input_ids=ids, attention_mask=RIGHT, labels=labels, confidence=0.2, **options)
    return compare_words(model, run, ids, labels, "confidence:0.2")


def compare_words(
    model: Any, run: Callable[[dict[str, Tensor]], Any], ids: Tensor, labels: Tensor, rule: str
) -> Comparison:
    """Compare all steps of a language model; in training it makes logits without labels alone."""
    options = {"attention_mask": RIGHT, "exit_rule": rule, "run_all_steps": True}
    with torch.no_grad():
        predicted = model(ids, **options)
    outputs, weights, real = model(ids, labels=labels, **options), copy_weights(model), RIGHT.bool()
    expected = run(weights)
    depths = outputs.exit_steps[real].tolist(), [step for row in expected.exit_steps for step in row]
    pairs = {
        "logits": (predicted.logits[real], torch.cat(expected.logits)),
        "step_logits": (predicted.step_logits[...][real], torch.cat(expected.step_logits)),
    }
    return Comparison(model, weights, depths, pairs | pair_losses(outputs, expected), (outputs.loss, expected.loss))


def is_quick(case: tuple[str, int, bool]) -> bool:
    """Return whether a case is one of two that are quick for every family: a training and an evaluation."""
    return case[1:] in {(0, True), (1, False)}


TOKEN_LABELS = (draw_texts()["input_ids"] % 3).masked_fill(draw_texts()["attention_mask"] == 0, -100)
COMPARISONS: dict[str, Callable[[int, bool], Comparison]] = {
    "albert_act": compare_albert_act,
    "ponder": compare_ponder,
    "adalayers": partial(compare_adalayers, AdaLayersForSequenceClassification, torch.tensor([0, 2, 1])),
    "adalayers of tokens": partial(compare_adalayers, AdaLayersForTokenClassification, TOKEN_LABELS),
    "par_xl": compare_par_xl,
    "trm": compare_trm,
    "looped": compare_looped,
    "early_exit": compare_early_exit,
    "routed": compare_routed,
}


@pytest.mark.parametrize(
    ("family", "seed", "training"), mark_mostly_slow(product(COMPARISONS, SEEDS, (True, False)), is_quick)
)
def test_a_family_equals_its_reference(family: str, seed: int, training: bool) -> None:
    model, weights, depths, pairs, losses = COMPARISONS[family](seed, training)
    assert depths[0] == depths[1]
    assert len(depths[0]) == 1 or len(set(depths[0])) > 1, "the units must differ in depth"
    for name, (actual, expected) in pairs.items():
        torch.testing.assert_close(
            actual.double(),
            expected.double(),
            atol=1e-6,
            rtol=1e-5,
            msg=lambda message, name=name: f"{name}: {message}",
        )
    torch.testing.assert_close(losses[0].double(), losses[1].double(), atol=1e-6, rtol=1e-5)
    for loss in losses:
        loss.backward()
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    gradients = {name: weights[name].grad for name in learned}
    scale = max(float(gradient.norm()) for gradient in gradients.values() if gradient is not None)
    for name, weight in learned.items():
        pair = (weight.grad, gradients[name])
        actual, expected = (torch.zeros_like(weight) if gradient is None else gradient for gradient in pair)
        assert float((actual - expected).norm()) <= 1e-5 * float(expected.norm()) + 1e-6 * scale, name
