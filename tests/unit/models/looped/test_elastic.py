"""Elastic depth: conditioned layers, random schedules and their loss, against plain loops over the equations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth import (
    LoopedConfig,
    LoopedForCausalLM,
    LoopedForSequenceClassification,
    LoopedForTokenClassification,
    decode_texts,
    self_speculation,
)
from adadepth.errors import ConfigError
from adadepth.models.looped.elastic import draw_short_steps
from tests.configs.support import configured
from tests.unit.models.looped.looped_support import IDS, LENGTH, SIZES, build_looped, check_close
from tests.unit.models.looped.plain_looped import run_plain_looped

LOOPS = 4
ELASTIC = {"core": 2, "num_loops": LOOPS, "objective": "elastic", "loop_conditioning": "time"}
LABELS = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(5)) < 0.3, -100)


# ---- Conditioned layers


@pytest.mark.parametrize("loops", [1, 2, 6])
def test_a_number_of_loops_has_equal_steps(loops: int) -> None:
    model = build_looped(**ELASTIC).double()
    logits = model(IDS, num_loops=loops).logits
    for row, ids in enumerate(IDS):
        check_close(logits[row], run_plain_looped(model.config, model.state_dict(), ids, steps=[1 / loops] * loops)[-1])


def test_an_exit_keeps_the_steps_of_all_loops() -> None:
    model = build_looped(**ELASTIC).double()
    logits = model(IDS, exit_rule="fixed:2").logits
    check_close(logits[0], run_plain_looped(model.config, model.state_dict(), IDS[0], steps=[1 / LOOPS] * 2)[-1])
    assert (logits - model(IDS, num_loops=2).logits).abs().max() > 1e-3


def test_time_and_step_are_distinguished() -> None:
    conditioning = build_looped(**ELASTIC).double().model.conditioning
    like = torch.zeros((), dtype=torch.float64)
    first, second = (torch.tensor(steps, dtype=torch.float64) for steps in ([0.25, 0.5, 0.25], [0.5, 0.25, 0.25]))
    assert (conditioning(first, like)[1] - conditioning(second, like)[1]).abs().max() > 1e-3  # (1/4, 1/2), (1/2, 1/4)


@pytest.mark.parametrize("initializer", ["normal", "scaled"])
def test_the_core_starts_as_the_identity(initializer: str) -> None:
    model = LoopedForCausalLM(LoopedConfig(**SIZES, **ELASTIC, initializer=initializer)).eval()
    states = model(IDS, output_hidden_states=True).hidden_states
    assert len(states) == LOOPS + 1
    assert all(torch.equal(state, states[0]) for state in states)
    model.train()(IDS, labels=IDS).loss.backward()
    weight = model.model.conditioning.modulation.weight.grad.view(2, 4, -1)
    assert weight[:, [0, 2]].abs().min(dim=-1).values.max() > 0  # gains have a gradient at once
    assert not weight[:, [1, 3]].any()  # scales only after the gains


# ---- Random schedules


def test_short_steps_sum_to_one_and_depend_on_the_optimiser_step() -> None:
    schedules = [draw_short_steps(8, 3, step) for step in range(200)]
    for step, steps in enumerate(schedules):
        assert steps.dtype == torch.float64
        assert (steps > 0).all()
        assert abs(steps.sum().item() - 1) < 1e-12
        assert torch.equal(steps, draw_short_steps(8, 3, step))
    assert not torch.equal(schedules[0], draw_short_steps(8, 4, 0))


def test_short_schedules_have_the_stated_distribution() -> None:
    schedules = [draw_short_steps(5, 0, step) for step in range(4000)]
    counts = Counter(len(steps) for steps in schedules)
    assert set(counts) == {1, 2, 3, 4}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 16.3  # chi squared with 3, p = .001
    for loops in (2, 3, 4):  # a step of L that are uniform on the simplex exceeds x with probability (1 - x)^(L - 1)
        steps = torch.stack([steps for steps in schedules if len(steps) == loops])
        for x in (0.2, 0.5, 0.8):
            share = (steps > x).double().mean(dim=0)
            assert (share - (1 - x) ** (loops - 1)).abs().max() < 0.06


def test_without_a_step_schedules_come_from_the_global_generator() -> None:
    torch.manual_seed(0)
    first, second = draw_short_steps(5, 0, None), draw_short_steps(5, 0, None)
    torch.manual_seed(0)
    assert torch.equal(first, draw_short_steps(5, 0, None))
    assert not torch.equal(first, second)


# ---- The loss


def compute_plain_states(model: Any, ids: Tensor, steps: list[float]) -> Tensor:
    """Return head inputs (T, D) after the last loop, as logits of an identity head."""
    weights = {**model.state_dict(), "lm_head.weight": torch.eye(model.config.hidden_size)}
    return run_plain_looped(model.config, weights, ids, steps=steps)[-1]


@pytest.mark.parametrize("conditioning", ["time", "none"])
def test_the_loss_equals_the_equations(conditioning: str) -> None:
    model = build_looped(**{**ELASTIC, "loop_conditioning": conditioning}, draw_seed=7).train()
    model.set_step(11, 100)
    steps = draw_short_steps(LOOPS, 7, 11).tolist()
    assert len(steps) > 1
    terms, count = {"task": 0.0, "short": 0.0, "consistency": 0.0}, 0
    for ids, labels in zip(IDS, LABELS, strict=True):
        long, short = (compute_plain_states(model, ids, some) for some in ([1 / LOOPS] * LOOPS, steps))
        for token in range(LENGTH - 1):
            target = labels[token + 1].item()
            if target < 0:
                continue
            count += 1
            for name, states in (("task", long), ("short", short)):
                logits = model.lm_head.weight.double() @ states[token]
                terms[name] += (logits.logsumexp(0) - logits[target]).item()
            terms["consistency"] += (long[token] - short[token]).pow(2).mean().item()
    output = model(IDS, labels=LABELS)
    for name, weight in (("task", 1.0), ("short", 0.1), ("consistency", 0.1)):
        check_close(output.loss_parts[name], torch.tensor(weight * terms[name] / count))
    check_close(output.loss, sum(output.loss_parts.values()))


def test_no_gradient_of_the_distance_reaches_the_long_schedule() -> None:
    model = build_looped(**ELASTIC).double().train()
    model.set_step(11, 100)
    steps = draw_short_steps(LOOPS, 0, 11)
    model(IDS, labels=LABELS).loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    counted = (LABELS[:, 1:] >= 0).nonzero(as_tuple=True)
    targets, parts = LABELS[:, 1:][counted], []
    for loops in (None, steps):  # through the public forward pass, with the steps of the short schedule
        run = model.model.begin(IDS)
        if loops is not None:
            run.loops, run.conditioning = len(loops), model.model.conditioning(loops, run.state)
        for _ in range(run.loops):
            model.model.loop(run)
        parts.append(model.model.read(run)[:, :-1][counted])
    long, short = parts
    entropy = torch.nn.functional.cross_entropy
    distance = (long.detach() - short).pow(2).mean()
    (entropy(model.lm_head(long), targets) + 0.1 * entropy(model.lm_head(short), targets) + 0.1 * distance).backward()
    for name, weight in model.named_parameters():
        check_close(gradients[name], weight.grad, 1e-6)


@pytest.mark.parametrize("head", [LoopedForSequenceClassification, LoopedForTokenClassification])
def test_classifiers_have_the_same_loss(head: Any) -> None:
    model = build_looped(head, **ELASTIC, num_labels=3).double().train()
    labels = LABELS.where(LABELS < 0, LABELS % 3) if head is LoopedForTokenClassification else IDS[:, 0] % 3
    model.set_step(11, 100)
    steps = draw_short_steps(LOOPS, 0, 11).tolist()
    weights = {**model.state_dict(), "lm_head.weight": torch.eye(model.config.hidden_size)}
    long, short = (
        torch.stack([run_plain_looped(model.config, weights, ids, steps=some)[-1] for ids in IDS])
        for some in ([1 / LOOPS] * LOOPS, steps)
    )
    if head is LoopedForSequenceClassification:
        long, short = long[:, -1], short[:, -1]
    real = labels >= 0
    entropies = [torch.nn.functional.cross_entropy(model.score(some[real]), labels[real]) for some in (long, short)]
    parts = model(IDS, labels=labels).loss_parts
    check_close(parts["task"], entropies[0].detach())
    check_close(parts["short"], 0.1 * entropies[1].detach())
    check_close(parts["consistency"], 0.1 * (long - short)[real].pow(2).mean())


def test_an_evaluation_has_the_loss_of_all_loops() -> None:
    model = build_looped(**ELASTIC)
    check_close(model(IDS, labels=LABELS).loss, model(IDS, labels=LABELS).step_losses[:, -1].mean())


def test_accumulation_and_checkpointing_change_no_gradient() -> None:
    def compute_gradients(parts: list[slice], checkpoints: bool) -> dict[str, Tensor]:
        model = build_looped(**ELASTIC).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        model.set_step(11, 100)
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters()}

    whole = compute_gradients([slice(0, 3)], False)
    for other in (compute_gradients([slice(0, 1), slice(1, 3)], False), compute_gradients([slice(0, 3)], True)):
        for name, weight in whole.items():
            check_close(other[name], weight)


# ---- Decoding


def test_drafts_are_the_first_loops_of_the_schedule() -> None:
    model, ids = build_looped(**ELASTIC), IDS[:1, :4]
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    generated = model.generate(ids, custom_generate=self_speculation, draft_rule="fixed:1", draft_tokens=3, **options)
    assert torch.equal(generated, model.generate(ids, **options))


@pytest.mark.parametrize("policy", ["last", "mean", "first", "ring:2"])
def test_caches_without_early_exits_change_nothing(policy: str) -> None:
    model = build_looped(**ELASTIC)
    check_close(model(IDS, use_cache=True, cache_policy=policy).logits, model(IDS).logits)


# ---- Errors


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], None),
        (["model.num_loops=1"], "model.num_loops=1: must be at least 2"),
        (["model.loop_curriculum=linear"], "model.loop_curriculum=linear: must be none with objective=elastic"),
        (["model.train_loops=drawn"], "model.train_loops=drawn: "),
        (["runtime.compile=true"], "runtime.compile=true: must be false with objective=elastic"),
        (["model.low_layers=1"], "model.low_layers=1: must be 0 with loop_conditioning=time"),
        (["model.cache_policy=frozen"], "model.cache_policy=frozen: "),
        (["model.objective=last", "model.train_loops=drawn"], "must be fixed with loop_conditioning=time"),
    ],
)
def test_contradictory_settings_are_refused_in_one_line(overrides: list[str], message: str | None) -> None:
    command = ("loop_tiny", "model.objective=elastic", "model.loop_conditioning=time", *overrides)
    if message is None:
        assert configured(*command).model.loop_conditioning == "time"
        return
    with pytest.raises(ConfigError, match=message):
        configured(*command)


def test_unsupported_uses_are_refused_in_one_line() -> None:
    model = build_looped(**ELASTIC)
    with pytest.raises(ConfigError, match="cache_policy=frozen"):
        model(IDS, use_cache=True, cache_policy="frozen")
    with pytest.raises(ConfigError, match="loop_conditioning=time"):
        decode_texts(model, [[1, 2]], places=1)
    with pytest.raises(ConfigError, match="loop_conditioning=time: layout=nanbeige needs loop_conditioning=none"):
        model.save_pretrained("/nowhere", layout="nanbeige")
    model.train()
    with pytest.raises(ConfigError, match="num_loops=1: objective=elastic"):
        model(IDS, labels=LABELS, num_loops=1)
    with pytest.raises(ConfigError, match="use_cache=True: objective=elastic trains without a cache"):
        model(IDS, labels=LABELS, use_cache=True)
