"""Training objectives of looped models against formulas written out target by target."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth import LoopedConfig, LoopedForCausalLM, LoopedForSequenceClassification, LoopedForTokenClassification
from adadepth.errors import DataError
from adadepth.models.looped.objectives import draw_loops, gate_losses, text_uniforms
from adadepth.models.looped.settings import LoopedSettings
from adadepth.models.shared import causal
from adadepth.runs.inheritance import load_run_settings
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import HUGINN, IDS, KINDS, LENGTH, OURO, PIECES, build_looped, check_close

LABELS = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(5)) < 0.3, -100)
LABELS[1, 1:] = -100  # a row without a target


def compute_token_losses(model: Any) -> tuple[list[list[float]], list[list[float]]]:
    """Return the cross-entropy and the gate's probability of every target after every loop."""
    with torch.no_grad():
        output = model(IDS, run_all_steps=True)
    losses, gates = [], []
    for row in range(len(IDS)):
        for token in range(LENGTH - 1):
            target = LABELS[row, token + 1].item()
            if target < 0:
                continue
            logits = [output.step_logits[row, token, step].double() for step in range(4)]
            losses.append([(z.logsumexp(0) - z[target]).item() for z in logits])
            gates.append(output.halting_logits[row, token].double().sigmoid().tolist())
    return losses, gates


def compute_stop_distribution(gates: list[float]) -> list[float]:
    """Return the distribution of loops, p_t = lambda_t prod_{j<t} (1 - lambda_j), with the remainder on the last."""
    masses, remaining = [], 1.0
    for gate in gates[:-1]:
        masses.append(remaining * gate)
        remaining *= 1 - gate
    return [*masses, remaining]


def compute_expected_loss(
    objective: str, losses: list[list[float]], gates: list[list[float]], beta: float = 0.05
) -> float:
    total = 0.0
    for step_losses, lambdas in zip(losses, gates, strict=True):
        if objective == "last":
            total += step_losses[-1]
        elif objective == "mean":
            total += sum(step_losses) / 4
        elif objective == "geometric leftover":  # the equation of arXiv 2607.20519
            weights = [0.3 * 0.7**step for step in range(3)] + [0.7**3]
            total += sum(w * loss for w, loss in zip(weights, step_losses, strict=True))
        elif objective == "geometric":
            weights = [0.3 * 0.7**step for step in range(4)]
            total += sum(w * loss for w, loss in zip(weights, step_losses, strict=True)) / sum(weights)
        elif objective == "gate":
            p = compute_stop_distribution(lambdas)
            total += sum(w * loss for w, loss in zip(p, step_losses, strict=True)) + beta * sum(
                w * math.log(w) for w in p
            )
        elif objective == "gate_alone ponder":
            p, prior = compute_stop_distribution(lambdas), [0.6, 0.4 * 0.6, 0.4**2 * 0.6, 0.4**3]
            total += sum(w * loss for w, loss in zip(p, step_losses, strict=True))
            total += 0.02 * sum(w * math.log(w / q) for w, q in zip(p, prior, strict=True))
        else:
            is_recorded, reads_later = objective == "gate_alone made", objective == "gate_alone later"
            threshold = 0.05 if reads_later else 0.005
            for step in range(3):
                after = min(step_losses[step + 1 :]) if reads_later else step_losses[step + 1]
                goes_on = 1 / (1 + math.exp(-50 * (max(0.0, step_losses[step] - after) - threshold)))
                going = 1 - lambdas[step + 1 if is_recorded else step]
                total -= (goes_on * math.log(going) + (1 - goes_on) * math.log(1 - going)) / 3
    return total / len(losses)


@pytest.mark.parametrize("objective", [
    "last", "mean", "geometric", "geometric leftover", "gate", "gate_alone", "gate_alone made",
    "gate_alone later", "gate_alone ponder",
])  # fmt: skip
def test_a_loss_equals_its_formula(objective: str) -> None:
    name, _, variant = objective.partition(" ")
    fields = {
        "made": {"gate_pairing": "made"},
        "later": {"gate_pairing": "later", "gate_gain": 0.05},
        "ponder": {"gate_loss": "ponder", "geometric_share": 0.6, "entropy_weight": 0.02},
        "leftover": {"geometric_truncation": "leftover"},
    }.get(variant, {})
    model = build_looped(**OURO, objective=name, **fields)
    for mode in (True, False):
        output = model.train(mode)(IDS, labels=LABELS)
        check_close(output.loss, torch.tensor(compute_expected_loss(objective, *compute_token_losses(model.eval()))))
        check_close(output.loss, sum(output.loss_parts.values()))
        assert (output.logits is None) == mode
    assert set(output.loss_parts) <= set(model.count_targets({"labels": LABELS}))


@pytest.mark.parametrize("objective", ["last", "mean", "gate", "gate_alone"])
def test_chunked_logits_change_no_gradient(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_gradients(numbers: int) -> dict[str, Tensor]:
        monkeypatch.setattr(causal, "_MAX_LOGITS", numbers)
        model = build_looped(**OURO, objective=objective).train()
        model(IDS, labels=LABELS).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    whole, parts = compute_gradients(10**9), compute_gradients(3 * PIECES)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        check_close(parts[name], gradient)
    assert ("model.gate.weight" in whole) == objective.startswith("gate")
    assert (set(whole) == {"model.gate.weight", "model.gate.bias"}) == (objective == "gate_alone")


@pytest.mark.parametrize("head", [LoopedForSequenceClassification, LoopedForTokenClassification])
@pytest.mark.parametrize("loss", ["gain", "ponder"])
def test_the_halting_unit_of_a_classifier_learns_alone(head: Any, loss: str) -> None:
    model = build_looped(head, **OURO, objective="gate_alone", gate_loss=loss, num_labels=3).train()
    labels = IDS % 3 if head is LoopedForTokenClassification else IDS[:, 0] % 3
    model(IDS, labels=labels).loss.backward()
    learns = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learns == {"model.gate.weight", "model.gate.bias"}


def test_at_most_the_stated_number_of_logits_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "_MAX_LOGITS", 3 * PIECES)
    model, sizes = build_looped(**OURO, objective="mean").train(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    model(IDS, labels=LABELS).loss.backward()
    assert max(sizes) == 3
    assert sum(sizes) == 2 * 4 * int((LABELS[:, 1:] >= 0).sum())  # once in the forward and once in the backward pass


def test_accumulation_changes_no_gradient() -> None:
    def compute_gradient(parts: list[slice]) -> Tensor:
        model = build_looped(**OURO, objective="gate").train()
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return model.model.core[0].self_attn.q_proj.weight.grad

    check_close(compute_gradient([slice(0, 1), slice(1, 3)]), compute_gradient([slice(0, 3)]))


def test_the_count_of_the_stock_trainer_normalises_as_ours() -> None:
    model = build_looped(**OURO, objective="gate").train()
    count = (LABELS[:, 1:] >= 0).sum()
    check_close(model(IDS, labels=LABELS, num_items_in_batch=count).loss, model(IDS, labels=LABELS).loss)
    check_close(model(IDS, labels=LABELS, num_items_in_batch=2 * count).loss, model(IDS, labels=LABELS).loss / 2)


def test_shifted_labels_replace_labels() -> None:
    model = build_looped(**OURO, objective="gate").train()
    shifted = torch.nn.functional.pad(LABELS[:, 1:], (0, 1), value=-100)
    expected = model(IDS, labels=LABELS).loss
    check_close(model(IDS, shift_labels=shifted).loss, expected)
    check_close(model(IDS, labels=IDS, shift_labels=shifted).loss, expected)
    with pytest.raises(TypeError, match="got unexpected arguments: shifted_labels"):
        model(IDS, shifted_labels=shifted)


def test_a_loss_without_targets_is_zero() -> None:
    for objective in ("last", "gate", "gate_alone"):
        model = build_looped(**OURO, objective=objective).train()
        loss = model(IDS, labels=torch.full_like(IDS, -100)).loss
        assert loss.item() == 0.0


def test_a_label_outside_the_vocabulary_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="labels: 53 is not a class of this model"):
        build_looped(**OURO)(IDS, labels=torch.full_like(IDS, PIECES))


def test_the_objective_last_reads_one_loop() -> None:
    """Check that the coda runs once, for the loss of the last loop."""
    model, ran = build_looped(prelude=1, core=1, coda=1, num_loops=4).train(), []
    model.model.coda[0].register_forward_hook(lambda *_: ran.append(1))
    model(IDS, labels=LABELS).loss.backward()
    assert len(ran) == 1


def test_the_targets_of_the_gate_have_no_gradient() -> None:
    for pairing in ("next", "later"):
        losses = torch.rand(5, 3, requires_grad=True)
        halting = torch.randn(5, 3, requires_grad=True)
        gate_losses(halting, losses.detach(), pairing, 0.005).sum().backward()
        assert halting.grad is not None
        assert not halting.grad[:, 2].any()  # the unit of the last loop is not used
        assert halting.grad[:, :2].all()


def test_the_gate_of_one_loop_has_no_loss() -> None:
    for pairing in ("next", "later", "made"):
        assert torch.equal(gate_losses(torch.randn(5, 1), torch.rand(5, 1), pairing, 0.005), torch.zeros(5))


@pytest.mark.parametrize("objective", ["last", "mean", "geometric", "gate", "gate_alone"])
def test_weights_that_the_objective_does_not_train_are_frozen(objective: str) -> None:
    model = build_looped(**OURO, objective=objective)
    trained = {name.startswith("model.gate.") for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {"gate": {True, False}, "gate_alone": {True}}.get(objective, {False})


# ---- Random loops, truncation, recomputation

DRAWN = {"prelude": 1, "core": 1, "coda": 1, "num_loops": 4, "injection": "linear", "train_loops": "drawn"}


@pytest.mark.slow
def test_random_loop_counts_have_the_published_distribution() -> None:
    """Check mean 1 + r and variance r + r^2 (exp(sigma^2) - 1), of a Poisson with a lognormal rate."""
    uniform = torch.rand(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = draw_loops(uniform, 32, 0.5).double()
    assert counts.min() >= 1
    assert counts.mean().item() == pytest.approx(33, rel=0.01)
    assert counts.var().item() == pytest.approx(32 + 32**2 * (math.exp(0.25) - 1), rel=0.05)
    assert draw_loops(uniform, 4, 0.0).double().var().item() == pytest.approx(4, rel=0.02)


def test_loop_counts_of_texts_are_even_and_independent() -> None:
    ids = torch.randint(0, 50, (20_000, 6), generator=torch.Generator().manual_seed(1))
    uniform = text_uniforms(ids, None, seed=3, step=5)
    assert ((uniform >= 0) & (uniform < 1)).all()
    assert uniform.mean(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    assert uniform.var(dim=0).tolist() == pytest.approx([1 / 12, 1 / 12], rel=0.03)
    assert abs(torch.corrcoef(uniform.T)[0, 1]) < 0.03
    later = text_uniforms(ids, None, seed=3, step=6)
    assert abs(torch.corrcoef(torch.stack([uniform[:, 0], later[:, 0]]))[0, 1]) < 0.03
    assert torch.equal(text_uniforms(ids[7:9], None, seed=3, step=5), uniform[7:9])  # for any other texts in the batch
    assert not torch.equal(text_uniforms(ids.flip(1), None, seed=3, step=5), uniform)  # the order of tokens matters
    assert not torch.equal(text_uniforms(ids, None, seed=4, step=5), uniform)


@pytest.mark.parametrize("padding", [(0, 3), (2, 0)])
def test_padding_changes_no_loop_count(padding: tuple[int, int]) -> None:
    ids = torch.randint(1, 50, (5, 6), generator=torch.Generator().manual_seed(1))
    padded, mask = (torch.nn.functional.pad(values, padding) for values in (ids, torch.ones_like(ids)))
    expected = text_uniforms(ids, None, seed=3, step=5)
    assert torch.equal(text_uniforms(padded, mask, seed=3, step=5), expected)
    assert not torch.equal(text_uniforms(padded, None, seed=3, step=5), expected)


def test_each_text_trains_its_number_of_loops() -> None:
    model = build_looped(**DRAWN).train()
    model.set_step(7, 100)
    counts = draw_loops(text_uniforms(IDS, None, 0, 7), 4, 0.5)
    assert len(set(counts.tolist())) > 1
    output = model(IDS, labels=LABELS)
    assert torch.equal(output.trace.updates, counts.float().unsqueeze(1).expand(-1, LENGTH))
    assert output.trace.max_updates == counts.max()
    total, targets = 0.0, 0
    for row, count in enumerate(counts.tolist()):
        alone = model(IDS[row : row + 1], labels=LABELS[row : row + 1], num_loops=count)
        number = int((LABELS[row, 1:] >= 0).sum())
        total, targets = total + alone.loss.item() * number, targets + number
    check_close(output.loss, torch.tensor(total / targets))


@pytest.mark.parametrize("head", [LoopedForTokenClassification, LoopedForSequenceClassification])
def test_classifiers_train_each_text_with_its_number_of_loops(head: type) -> None:
    model = build_looped(head, **DRAWN, num_labels=3).train()
    model.set_step(7, 100)
    labels = IDS % 3 if head is LoopedForTokenClassification else torch.tensor([0, 1, 2])
    counts = draw_loops(text_uniforms(IDS, None, 0, 7), 4, 0.5)
    output = model(IDS, labels=labels)
    assert torch.equal(output.trace.updates.view(3, -1)[:, 0], counts.float())
    alone = [
        model(IDS[row : row + 1], labels=labels[row : row + 1], num_loops=count).loss
        for row, count in enumerate(counts.tolist())
    ]
    check_close(output.loss, torch.stack(alone).mean())


TIED = {**DRAWN, "train_loops": "length"}
COUNTS = torch.tensor([3, 1, 6])  # more than the 4 loops of the configuration, too


@pytest.mark.parametrize("head", [LoopedForCausalLM, LoopedForTokenClassification, LoopedForSequenceClassification])
@pytest.mark.parametrize("window", [None, 2])
def test_loops_tied_to_the_length_are_those_of_a_plain_loop(head: type, window: int | None) -> None:
    """Compare loss and gradients of a batch with those of its single texts, each with its own number of loops."""
    labels = {
        LoopedForCausalLM: LABELS,
        LoopedForTokenClassification: IDS % 3,
        LoopedForSequenceClassification: torch.tensor([0, 1, 2]),
    }[head]
    fields = {} if head is LoopedForCausalLM else {"num_labels": 3}
    model = build_looped(head, **TIED, **fields, backprop_loops=window).train()
    output = model(IDS, labels=labels, text_loops=COUNTS)
    assert torch.equal(output.trace.updates.view(3, -1)[:, 0], COUNTS.float())
    output.loss.backward()
    plain = build_looped(head, **{**TIED, "train_loops": "fixed"}, **fields, backprop_loops=window).train()
    counted = plain.count_targets({"labels": labels, "attention_mask": torch.ones_like(IDS)})
    total = 0.0
    for row, count in enumerate(COUNTS.tolist()):
        part = slice(row, row + 1)
        loss = plain(IDS[part], labels=labels[part], num_loops=count, num_targets=counted).loss
        loss.backward()
        total += loss.item()
    check_close(output.loss, torch.tensor(total))
    for weight, plain_weight in zip(model.parameters(), plain.parameters(), strict=True):
        check_close(weight.grad, plain_weight.grad)


def test_evaluation_runs_all_loops_whatever_the_length() -> None:
    model = build_looped(**TIED).eval()
    assert model(IDS, labels=LABELS, text_loops=COUNTS).trace.updates.unique().tolist() == [4]
    requested = model.train()(IDS, labels=LABELS, text_loops=COUNTS, num_loops=2)
    assert requested.trace.updates.unique().tolist() == [2]


@pytest.mark.parametrize(("arguments", "problem"), [({}, "needs a number"), ({"text_loops": COUNTS - 1}, "at least 1")])
def test_tied_loops_need_a_number_of_loops(arguments: dict[str, Tensor], problem: str) -> None:
    with pytest.raises(DataError, match=f"text_loops: .*{problem}"):
        build_looped(**TIED).train()(IDS, labels=LABELS, **arguments)


def test_loop_counts_do_not_depend_on_micro_batches() -> None:
    def compute_gradient(parts: list[slice], step: int) -> Tensor:
        model = build_looped(**DRAWN, backprop_loops=2).train()
        model.set_step(step, 100)
        torch.manual_seed(len(parts))  # the global generator is not used
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return model.model.core[0].self_attn.q_proj.weight.grad

    check_close(compute_gradient([slice(0, 1), slice(1, 2), slice(2, 3)], 7), compute_gradient([slice(0, 3)], 7))
    assert not torch.allclose(compute_gradient([slice(0, 3)], 7), compute_gradient([slice(0, 3)], 8))


@pytest.mark.parametrize("backprop_loops", [1, 2, 3])
def test_gradients_are_truncated_to_the_last_loops(backprop_loops: int) -> None:
    """Compare with the last loops from a state without gradients; the input still has one in every loop."""
    fields = {name: value for name, value in DRAWN.items() if name != "train_loops"}
    model = build_looped(**fields, backprop_loops=backprop_loops).train()
    model(IDS, labels=LABELS).loss.backward()
    plain = build_looped(**fields).train()
    with torch.no_grad():
        run = plain.model.begin(IDS)
        while run.done < 4 - backprop_loops:
            plain.model.loop(run)
    plain(IDS, labels=LABELS, num_loops=backprop_loops, initial_state=run.state).loss.backward()
    for (name, weight), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (weight.grad is None) == (other.grad is None), name
        if weight.grad is not None:
            check_close(weight.grad, other.grad)


def test_backprop_through_all_loops_is_no_truncation() -> None:
    gradients = []
    for backprop_loops in (None, 4, 9):
        model = build_looped(**{**DRAWN, "train_loops": "fixed"}, backprop_loops=backprop_loops).train()
        model(IDS, labels=LABELS).loss.backward()
        gradients.append(model.model.embed_tokens.weight.grad)
    check_close(gradients[1], gradients[0])
    check_close(gradients[2], gradients[0])


FULLY = {"core": 2, "num_loops": 3, "state_norm": "fed", "injection": "restart", "queries": "previous"}


@pytest.mark.parametrize("fields", [OURO | {"objective": "gate"}, DRAWN, FULLY], ids=["ouro", "drawn", "fully"])
def test_recomputed_loops_have_the_same_gradients(fields: dict[str, Any]) -> None:
    gradients = []
    for recomputes in (False, True):
        model = build_looped(**fields).train()
        model.set_step(3, 10)
        if recomputes:
            model.gradient_checkpointing_enable()
        applied = []
        model.model.core[0].register_forward_pre_hook(lambda *_, applied=applied: applied.append(1))
        loss = model(IDS, labels=LABELS).loss
        forward = len(applied)
        loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
        assert len(applied) == forward * (2 if recomputes else 1)
    for name, gradient in gradients[0].items():
        assert (gradient is None) == (gradients[1][name] is None), name
        if gradient is not None:
            check_close(gradients[1][name], gradient)


def test_stored_activations_grow_with_loops_not_with_layers() -> None:
    """Count the numbers stored by autograd: with recomputation, a loop adds a few states for any number of layers."""

    def count_stored(layers: int, loops: int, *, recomputes: bool) -> int:
        model = build_looped(prelude=1, core=layers, num_loops=loops).train()
        if recomputes:
            model.gradient_checkpointing_enable()
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: numbers.append(t.numel()) or t, lambda t: t):
            model(IDS, labels=LABELS)
        return sum(numbers)

    per_loop = {
        layers: count_stored(layers, 6, recomputes=True) - count_stored(layers, 5, recomputes=True) for layers in (1, 4)
    }
    plain = count_stored(4, 6, recomputes=False) - count_stored(4, 5, recomputes=False)
    assert per_loop[1] == per_loop[4]
    assert per_loop[4] < plain / 10


@pytest.mark.parametrize("fields", keep_one_quick(4, [
    {**OURO, "prelude": 1, "objective": "mean"},
    {"prelude": 1, "core": 2, "coda": 1, "num_loops": 3, "objective": "mean"},
    {**HUGINN, "num_key_value_heads": 2},
    {"prelude": 2, "core": 1, "num_loops": 5, "backprop_loops": 2},
    {"core": 2, "num_loops": 6, "train_loops": "drawn"},
    {"core": 2, "num_loops": 2, "head_dim": 4},
    KINDS["two states"],
    {**KINDS["two states"], "low_cycles": 3, "low_backprop": [2]},
]))  # fmt: skip
def test_least_activations_is_a_lower_bound(fields: dict[str, Any]) -> None:
    """Count each tensor once, however many parts of it are stored, and without the weights."""
    model = build_looped(**fields).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    stored: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(IDS, labels=LABELS)
    really = sum(tensor.untyped_storage().nbytes() // 4 for pointer, tensor in stored.items() if pointer not in weights)
    lengths = [LENGTH] * len(IDS)
    least, recomputed_least = (
        sum(model.least_activations(lengths, recomputed).values()) for recomputed in (False, True)
    )
    is_tight = not fields.keys() & {"train_loops", "backprop_loops"}
    assert (0.7 * really if is_tight else 0) < least <= really
    assert recomputed_least <= least


def test_new_runs_put_the_leftover_on_the_last_loop_unlike_older_ones() -> None:
    before = Path(__file__).resolve().parents[3] / "before" / "looped" / "finished"
    assert "geometric_truncation" not in (before / "config.yaml").read_text()
    assert load_run_settings(before, "resume").model.geometric_truncation == "renormalise"
    assert LoopedSettings().geometric_truncation == "leftover"
    stored = json.loads((before / "model" / "config.json").read_text())
    assert LoopedConfig.from_dict(stored).geometric_truncation == "renormalise"
    config = LoopedConfig.from_dict({**stored, "geometric_truncation": "leftover"})
    assert LoopedConfig.from_dict(config.to_dict()).geometric_truncation == "leftover"
    assert LoopedConfig.from_dict(json.loads(config.to_json_string(use_diff=True))).geometric_truncation == "leftover"
