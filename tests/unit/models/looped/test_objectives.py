"""What looped models are trained on, against the formulas written out target by target."""

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
from tests.marks_support import quick_one_in
from tests.unit.models.looped.looped_support import HUGINN, IDS, KINDS, LENGTH, OURO, PIECES, near, small

LABELS = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(5)) < 0.3, -100)
LABELS[1, 1:] = -100  # a row without a target


def losses_of(model: Any) -> tuple[list[list[float]], list[list[float]]]:
    """Of every target its cross-entropy and its gate's probability after every loop."""
    with torch.no_grad():
        found = model(IDS, run_all_steps=True)
    losses, gates = [], []
    for row in range(len(IDS)):
        for token in range(LENGTH - 1):
            target = LABELS[row, token + 1].item()
            if target < 0:
                continue
            logits = [found.step_logits[row, token, step].double() for step in range(4)]
            losses.append([(z.logsumexp(0) - z[target]).item() for z in logits])
            gates.append(found.halting_logits[row, token].double().sigmoid().tolist())
    return losses, gates


def stop(gates: list[float]) -> list[float]:
    """The distribution of the loops, p_t = lambda_t prod_{j<t} (1 - lambda_j), and what is left on the last."""
    found, left = [], 1.0
    for gate in gates[:-1]:
        found.append(left * gate)
        left *= 1 - gate
    return [*found, left]


def expected(objective: str, losses: list[list[float]], gates: list[list[float]], beta: float = 0.05) -> float:
    total = 0.0
    for each, lambdas in zip(losses, gates, strict=True):
        if objective == "last":
            total += each[-1]
        elif objective == "mean":
            total += sum(each) / 4
        elif objective == "geometric leftover":  # the equation of arXiv 2607.20519
            weights = [0.3 * 0.7**step for step in range(3)] + [0.7**3]
            total += sum(w * loss for w, loss in zip(weights, each, strict=True))
        elif objective == "geometric":
            weights = [0.3 * 0.7**step for step in range(4)]
            total += sum(w * loss for w, loss in zip(weights, each, strict=True)) / sum(weights)
        elif objective == "gate":
            p = stop(lambdas)
            total += sum(w * loss for w, loss in zip(p, each, strict=True)) + beta * sum(w * math.log(w) for w in p)
        else:
            made = objective == "gate_alone made"
            for step in range(3):
                goes_on = 1 / (1 + math.exp(-50 * (max(0.0, each[step] - each[step + 1]) - 0.005)))
                going = 1 - lambdas[step + 1 if made else step]
                total -= (goes_on * math.log(going) + (1 - goes_on) * math.log(1 - going)) / 3
    return total / len(losses)


@pytest.mark.parametrize("objective", [
    "last", "mean", "geometric", "geometric leftover", "gate", "gate_alone", "gate_alone made",
])  # fmt: skip
def test_a_loss_is_its_formula(objective: str) -> None:
    name, _, variant = objective.partition(" ")
    fields = {"made": {"gate_pairing": "made"}, "leftover": {"geometric_truncation": "leftover"}}.get(variant, {})
    model = small(**OURO, objective=name, **fields)
    for mode in (True, False):
        found = model.train(mode)(IDS, labels=LABELS)
        near(found.loss, torch.tensor(expected(objective, *losses_of(model.eval()))))
        near(found.loss, sum(found.loss_parts.values()))
        assert (found.logits is None) == mode
    assert set(found.loss_parts) <= set(model.count_targets({"labels": LABELS}))


@pytest.mark.parametrize("objective", ["last", "mean", "gate", "gate_alone"])
def test_gradients_are_those_of_all_logits_at_once(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(numbers: int) -> dict[str, Tensor]:
        monkeypatch.setattr(causal, "_MAX_LOGITS", numbers)
        model = small(**OURO, objective=objective).train()
        model(IDS, labels=LABELS).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    whole, parts = gradients(10**9), gradients(3 * PIECES)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        near(parts[name], gradient)
    assert ("model.gate.weight" in whole) == objective.startswith("gate")
    assert (set(whole) == {"model.gate.weight", "model.gate.bias"}) == (objective == "gate_alone")


@pytest.mark.parametrize("head", [LoopedForSequenceClassification, LoopedForTokenClassification])
def test_of_classifiers_too_the_halting_unit_learns_alone(head: Any) -> None:
    model = small(head, **OURO, objective="gate_alone", num_labels=3).train()
    labels = IDS % 3 if head is LoopedForTokenClassification else IDS[:, 0] % 3
    model(IDS, labels=labels).loss.backward()
    learns = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learns == {"model.gate.weight", "model.gate.bias"}


def test_no_more_logits_are_made_at_once_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "_MAX_LOGITS", 3 * PIECES)
    model, made = small(**OURO, objective="mean").train(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: made.append(len(output)))
    model(IDS, labels=LABELS).loss.backward()
    assert max(made) == 3
    assert sum(made) == 2 * 4 * int((LABELS[:, 1:] >= 0).sum())  # once forward, once again on the way back


def test_accumulation_changes_no_gradient() -> None:
    def gradient(parts: list[slice]) -> Tensor:
        model = small(**OURO, objective="gate").train()
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return model.model.core[0].self_attn.q_proj.weight.grad

    near(gradient([slice(0, 1), slice(1, 3)]), gradient([slice(0, 3)]))


def test_a_stock_trainers_count_normalises_as_our_own() -> None:
    model = small(**OURO, objective="gate").train()
    count = (LABELS[:, 1:] >= 0).sum()
    near(model(IDS, labels=LABELS, num_items_in_batch=count).loss, model(IDS, labels=LABELS).loss)
    near(model(IDS, labels=LABELS, num_items_in_batch=2 * count).loss, model(IDS, labels=LABELS).loss / 2)


def test_labels_that_are_shifted_already_replace_the_others() -> None:
    model = small(**OURO, objective="gate").train()
    shifted = torch.nn.functional.pad(LABELS[:, 1:], (0, 1), value=-100)
    expected = model(IDS, labels=LABELS).loss
    near(model(IDS, shift_labels=shifted).loss, expected)
    near(model(IDS, labels=IDS, shift_labels=shifted).loss, expected)
    with pytest.raises(TypeError, match="got unexpected arguments: shifted_labels"):
        model(IDS, shifted_labels=shifted)


def test_without_targets_a_loss_is_nothing() -> None:
    for objective in ("last", "gate", "gate_alone"):
        model = small(**OURO, objective=objective).train()
        loss = model(IDS, labels=torch.full_like(IDS, -100)).loss
        assert loss.item() == 0.0


def test_a_label_that_is_no_piece_is_one_line() -> None:
    with pytest.raises(DataError, match="labels: 53 is not a class of this model"):
        small(**OURO)(IDS, labels=torch.full_like(IDS, PIECES))


def test_last_alone_reads_one_loop() -> None:
    """What is not asked for is not computed: the coda runs once, for the loss of the last loop."""
    model, ran = small(prelude=1, core=1, coda=1, num_loops=4).train(), []
    model.model.coda[0].register_forward_hook(lambda *_: ran.append(1))
    model(IDS, labels=LABELS).loss.backward()
    assert len(ran) == 1


def test_the_gates_targets_have_no_gradient() -> None:
    losses = torch.rand(5, 3, requires_grad=True)
    halting = torch.randn(5, 3, requires_grad=True)
    gate_losses(halting, losses.detach(), "next").sum().backward()
    assert halting.grad is not None
    assert not halting.grad[:, 2].any()  # the last loop's unit is never asked
    assert halting.grad[:, :2].all()


def test_one_loop_leaves_the_gate_nothing_to_learn() -> None:
    for pairing in ("next", "made"):
        assert torch.equal(gate_losses(torch.randn(5, 1), torch.rand(5, 1), pairing), torch.zeros(5))


@pytest.mark.parametrize("objective", ["last", "mean", "geometric", "gate", "gate_alone"])
def test_what_the_objective_does_not_train_is_frozen(objective: str) -> None:
    model = small(**OURO, objective=objective)
    trained = {name.startswith("model.gate.") for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {"gate": {True, False}, "gate_alone": {True}}.get(objective, {False})


# ---- Drawn loops, truncation, recomputation

DRAWN = {"prelude": 1, "core": 1, "coda": 1, "num_loops": 4, "injection": "linear", "train_loops": "drawn"}


@pytest.mark.slow
def test_drawn_loops_have_the_published_law() -> None:
    """Mean 1 + r; variance of a Poisson with a lognormal rate: r + r^2 (exp(sigma^2) - 1)."""
    uniform = torch.rand(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = draw_loops(uniform, 32, 0.5).double()
    assert counts.min() >= 1
    assert counts.mean().item() == pytest.approx(33, rel=0.01)
    assert counts.var().item() == pytest.approx(32 + 32**2 * (math.exp(0.25) - 1), rel=0.05)
    assert draw_loops(uniform, 4, 0.0).double().var().item() == pytest.approx(4, rel=0.02)


def test_texts_draw_evenly_and_by_themselves() -> None:
    ids = torch.randint(0, 50, (20_000, 6), generator=torch.Generator().manual_seed(1))
    uniform = text_uniforms(ids, None, seed=3, step=5)
    assert ((uniform >= 0) & (uniform < 1)).all()
    assert uniform.mean(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    assert uniform.var(dim=0).tolist() == pytest.approx([1 / 12, 1 / 12], rel=0.03)
    assert abs(torch.corrcoef(uniform.T)[0, 1]) < 0.03
    later = text_uniforms(ids, None, seed=3, step=6)
    assert abs(torch.corrcoef(torch.stack([uniform[:, 0], later[:, 0]]))[0, 1]) < 0.03
    assert torch.equal(text_uniforms(ids[7:9], None, seed=3, step=5), uniform[7:9])  # whatever is beside them
    assert not torch.equal(text_uniforms(ids.flip(1), None, seed=3, step=5), uniform)  # the order of a text counts
    assert not torch.equal(text_uniforms(ids, None, seed=4, step=5), uniform)


@pytest.mark.parametrize("padding", [(0, 3), (2, 0)])
def test_padding_draws_nothing(padding: tuple[int, int]) -> None:
    ids = torch.randint(1, 50, (5, 6), generator=torch.Generator().manual_seed(1))
    padded, mask = (torch.nn.functional.pad(values, padding) for values in (ids, torch.ones_like(ids)))
    expected = text_uniforms(ids, None, seed=3, step=5)
    assert torch.equal(text_uniforms(padded, mask, seed=3, step=5), expected)
    assert not torch.equal(text_uniforms(padded, None, seed=3, step=5), expected)


def test_a_text_trains_its_own_number_of_loops() -> None:
    model = small(**DRAWN).train()
    model.set_step(7, 100)
    counts = draw_loops(text_uniforms(IDS, None, 0, 7), 4, 0.5)
    assert len(set(counts.tolist())) > 1
    found = model(IDS, labels=LABELS)
    assert torch.equal(found.trace.updates, counts.float().unsqueeze(1).expand(-1, LENGTH))
    assert found.trace.max_updates == counts.max()
    total, targets = 0.0, 0
    for row, count in enumerate(counts.tolist()):
        alone = model(IDS[row : row + 1], labels=LABELS[row : row + 1], num_loops=count)
        number = int((LABELS[row, 1:] >= 0).sum())
        total, targets = total + alone.loss.item() * number, targets + number
    near(found.loss, torch.tensor(total / targets))


@pytest.mark.parametrize("head", [LoopedForTokenClassification, LoopedForSequenceClassification])
def test_classifiers_train_their_own_numbers_of_loops(head: type) -> None:
    model = small(head, **DRAWN, num_labels=3).train()
    model.set_step(7, 100)
    labels = IDS % 3 if head is LoopedForTokenClassification else torch.tensor([0, 1, 2])
    counts = draw_loops(text_uniforms(IDS, None, 0, 7), 4, 0.5)
    found = model(IDS, labels=labels)
    assert torch.equal(found.trace.updates.view(3, -1)[:, 0], counts.float())
    alone = [
        model(IDS[row : row + 1], labels=labels[row : row + 1], num_loops=count).loss
        for row, count in enumerate(counts.tolist())
    ]
    near(found.loss, torch.stack(alone).mean())


TIED = {**DRAWN, "train_loops": "length"}
COUNTS = torch.tensor([3, 1, 6])  # more than the 4 loops of the configuration, too


@pytest.mark.parametrize("head", [LoopedForCausalLM, LoopedForTokenClassification, LoopedForSequenceClassification])
@pytest.mark.parametrize("window", [None, 2])
def test_loops_tied_to_the_length_are_those_of_a_plain_loop(head: type, window: int | None) -> None:
    """Loss and gradients of a batch are those of its texts one by one, each with its own number of loops."""
    labels = {
        LoopedForCausalLM: LABELS,
        LoopedForTokenClassification: IDS % 3,
        LoopedForSequenceClassification: torch.tensor([0, 1, 2]),
    }[head]
    fields = {} if head is LoopedForCausalLM else {"num_labels": 3}
    model = small(head, **TIED, **fields, backprop_loops=window).train()
    found = model(IDS, labels=labels, text_loops=COUNTS)
    assert torch.equal(found.trace.updates.view(3, -1)[:, 0], COUNTS.float())
    found.loss.backward()
    plain = small(head, **{**TIED, "train_loops": "fixed"}, **fields, backprop_loops=window).train()
    counted = plain.count_targets({"labels": labels, "attention_mask": torch.ones_like(IDS)})
    total = 0.0
    for row, count in enumerate(COUNTS.tolist()):
        part = slice(row, row + 1)
        loss = plain(IDS[part], labels=labels[part], num_loops=count, num_targets=counted).loss
        loss.backward()
        total += loss.item()
    near(found.loss, torch.tensor(total))
    for weight, other in zip(model.parameters(), plain.parameters(), strict=True):
        near(weight.grad, other.grad)


def test_evaluation_runs_all_loops_whatever_the_length() -> None:
    model = small(**TIED).eval()
    assert model(IDS, labels=LABELS, text_loops=COUNTS).trace.updates.unique().tolist() == [4]
    requested = model.train()(IDS, labels=LABELS, text_loops=COUNTS, num_loops=2)
    assert requested.trace.updates.unique().tolist() == [2]


@pytest.mark.parametrize(("given", "problem"), [({}, "needs a number"), ({"text_loops": COUNTS - 1}, "at least 1")])
def test_tied_loops_need_a_number_of_loops(given: dict[str, Tensor], problem: str) -> None:
    with pytest.raises(DataError, match=f"text_loops: .*{problem}"):
        small(**TIED).train()(IDS, labels=LABELS, **given)


def test_draws_do_not_depend_on_how_an_update_is_cut_up() -> None:
    def gradient(parts: list[slice], step: int) -> Tensor:
        model = small(**DRAWN, backprop_loops=2).train()
        model.set_step(step, 100)
        torch.manual_seed(len(parts))  # nothing is drawn from there
        count = model.count_targets({"labels": LABELS})
        for part in parts:
            model(IDS[part], labels=LABELS[part], num_targets=count).loss.backward()
        return model.model.core[0].self_attn.q_proj.weight.grad

    near(gradient([slice(0, 1), slice(1, 2), slice(2, 3)], 7), gradient([slice(0, 3)], 7))
    assert not torch.allclose(gradient([slice(0, 3)], 7), gradient([slice(0, 3)], 8))


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_gradients_end_so_many_loops_before_the_end(kept: int) -> None:
    """The last loops from a state without gradients; the input of every loop still has some."""
    fields = {name: value for name, value in DRAWN.items() if name != "train_loops"}
    model = small(**fields, backprop_loops=kept).train()
    model(IDS, labels=LABELS).loss.backward()
    plain = small(**fields).train()
    with torch.no_grad():
        run = plain.model.begin(IDS)
        while run.done < 4 - kept:
            plain.model.loop(run)
    plain(IDS, labels=LABELS, num_loops=kept, initial_state=run.state).loss.backward()
    for (name, weight), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (weight.grad is None) == (other.grad is None), name
        if weight.grad is not None:
            near(weight.grad, other.grad)


def test_all_loops_kept_is_no_truncation() -> None:
    gradients = []
    for kept in (None, 4, 9):
        model = small(**{**DRAWN, "train_loops": "fixed"}, backprop_loops=kept).train()
        model(IDS, labels=LABELS).loss.backward()
        gradients.append(model.model.embed_tokens.weight.grad)
    near(gradients[1], gradients[0])
    near(gradients[2], gradients[0])


FULLY = {"core": 2, "num_loops": 3, "state_norm": "fed", "injection": "restart", "queries": "previous"}


@pytest.mark.parametrize("fields", [OURO | {"objective": "gate"}, DRAWN, FULLY], ids=["ouro", "drawn", "fully"])
def test_a_loop_that_is_made_again_has_the_same_gradients(fields: dict[str, Any]) -> None:
    found = []
    for again in (False, True):
        model = small(**fields).train()
        model.set_step(3, 10)
        if again:
            model.gradient_checkpointing_enable()
        applied = []
        model.model.core[0].register_forward_pre_hook(lambda *_, applied=applied: applied.append(1))
        loss = model(IDS, labels=LABELS).loss
        forward = len(applied)
        loss.backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
        assert len(applied) == forward * (2 if again else 1)
    for name, gradient in found[0].items():
        assert (gradient is None) == (found[1][name] is None), name
        if gradient is not None:
            near(found[1][name], gradient)


def test_what_is_kept_grows_with_loops_and_not_with_layers() -> None:
    """Numbers that autograd keeps: with recomputation a loop adds a few states, however many layers it has."""

    def kept(layers: int, loops: int, *, again: bool) -> int:
        model = small(prelude=1, core=layers, num_loops=loops).train()
        if again:
            model.gradient_checkpointing_enable()
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: numbers.append(t.numel()) or t, lambda t: t):
            model(IDS, labels=LABELS)
        return sum(numbers)

    per_loop = {layers: kept(layers, 6, again=True) - kept(layers, 5, again=True) for layers in (1, 4)}
    plain = kept(4, 6, again=False) - kept(4, 5, again=False)
    assert per_loop[1] == per_loop[4]
    assert per_loop[4] < plain / 10


@pytest.mark.parametrize("fields", quick_one_in(4, [
    {**OURO, "prelude": 1, "objective": "mean"},
    {"prelude": 1, "core": 2, "coda": 1, "num_loops": 3, "objective": "mean"},
    {**HUGINN, "num_key_value_heads": 2},
    {"prelude": 2, "core": 1, "num_loops": 5, "backprop_loops": 2},
    {"core": 2, "num_loops": 6, "train_loops": "drawn"},
    {"core": 2, "num_loops": 2, "head_dim": 4},
    KINDS["two states"],
    {**KINDS["two states"], "low_cycles": 3, "low_backprop": [2]},
]))  # fmt: skip
def test_no_fewer_numbers_are_kept_than_is_said(fields: dict[str, Any]) -> None:
    """Of tensors in memory once, however many parts of them are kept, and without the weights."""
    model = small(**fields).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(IDS, labels=LABELS)
    really = sum(tensor.untyped_storage().nbytes() // 4 for place, tensor in kept.items() if place not in weights)
    lengths = [LENGTH] * len(IDS)
    least, again = (sum(model.least_activations(lengths, recomputed).values()) for recomputed in (False, True))
    is_tight = not fields.keys() & {"train_loops", "backprop_loops"}
    assert (0.7 * really if is_tight else 0) < least <= really
    assert again <= least


def test_new_runs_give_the_rest_to_the_last_loop_and_earlier_ones_keep_their_weights() -> None:
    before = Path(__file__).resolve().parents[3] / "before" / "looped" / "finished"
    assert "geometric_truncation" not in (before / "config.yaml").read_text()
    assert load_run_settings(before, "resume").model.geometric_truncation == "renormalise"
    assert LoopedSettings().geometric_truncation == "leftover"
    stored = json.loads((before / "model" / "config.json").read_text())
    assert LoopedConfig.from_dict(stored).geometric_truncation == "renormalise"
    config = LoopedConfig.from_dict({**stored, "geometric_truncation": "leftover"})
    assert LoopedConfig.from_dict(config.to_dict()).geometric_truncation == "leftover"
    assert LoopedConfig.from_dict(json.loads(config.to_json_string(use_diff=True))).geometric_truncation == "leftover"
