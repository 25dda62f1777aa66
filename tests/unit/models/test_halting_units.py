"""A halting unit with weights and memory, the example of docs/plugins.md, in every family that supports one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adadepth
from adadepth import AlbertActForPreTraining, AlbertActForTokenClassification, AlbertActModel
from adadepth.errors import CheckpointError, ConfigError
from adadepth.halting.units import HaltingProjection, HaltingUnit, UnitMemory, build_halting_unit, run_unit, start_unit
from adadepth.models.albert_act import reference
from adadepth.models.loading import allow_new_weights
from tests.albert_act_support import make_labelled_batch, repack_at_every_halt
from tests.configs.support import configured
from tests.halting_units_support import compute_halting_logit
from tests.marks_support import keep_one_quick
from tests.models_support import MOVING, make_padded_batch, make_small_config
from tests.parity.references_support import copy_weights, select_options
from tests.plugins_support import example_extensions
from tests.unit.models.early_exit.early_exit_support import HEADS, IDS, LAYERS, MASK, PADDED, WIDTH, build_early_exit
from tests.unit.models.looped.looped_support import IDS as LOOPED_IDS
from tests.unit.models.looped.looped_support import OURO, build_looped
from tests.unit.models.looped.looped_support import WIDTH as LOOPED_WIDTH
from tests.unit.models.looped.plain_cache import (
    EVERY_POLICY,
    decode_in_calls,
    decode_plainly_in_calls,
    generate_plainly,
)


@pytest.fixture(scope="module", autouse=True)
def _install_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")), repack_at_every_halt():
        yield


def draw_unit(unit: Any, bias: float = -1.5, scale: float = 0.3) -> None:
    """Draw weights of a unit with which logits differ between states and depend on the memory."""
    torch.manual_seed(7)
    with torch.no_grad():
        unit.weights.weight.normal_(std=scale)
        unit.slope.fill_(2.0)
        unit.bias.fill_(bias)


def check_close(value: Tensor, expected: Tensor, name: str = "") -> None:
    """Compare values in float64; halting is float32 in models of any precision."""
    torch.testing.assert_close(value.double(), expected.double(), atol=1e-5, rtol=1e-4, msg=lambda text: name + text)


# ---- ACT-ALBERT


def act(model_class: Any = AlbertActForPreTraining, unit: str = "movement", **changes: Any) -> Any:
    torch.manual_seed(0)
    model = model_class(make_small_config(**(MOVING | {"halting_unit": unit} | changes))).double()
    if unit != "linear":
        draw_unit(model.get_submodule(model.base_model_prefix if hasattr(model, "albert") else "").encoder
                  .albert_layer.act.dense)  # fmt: skip
    return model


def watch_trails(updates: int) -> Callable[..., Tensor]:
    """Return a replacement of the reference's halting probabilities, which is called for one text after another."""
    trail: list[Tensor] = []

    def compute(weights: Any, y: Tensor) -> Tensor:
        if len(trail) == updates:
            trail.clear()
        trail.append(y)
        name = "encoder.albert_layer.act.dense."
        logits = [compute_halting_logit(weights, name, [states[t] for states in trail]) for t in range(len(y))]
        return torch.sigmoid(torch.stack(logits))

    return compute


@pytest.mark.parametrize("execution", ["dense", "ragged"])
def test_act_equals_a_loop_over_tokens(execution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = act(act_penalty=0.01, execution=execution)
    batch = make_labelled_batch(AlbertActForPreTraining) | {"sentence_order_label": torch.tensor([0, 1, 1])}
    outputs = model(**batch)
    outputs.loss.backward()
    weights = copy_weights(model)
    monkeypatch.setattr(reference, "compute_halting_probabilities", watch_trails(model.config.num_hidden_layers))
    expected = reference.forward(weights, **batch, **select_options(reference.forward, model.config))
    expected.loss.backward()
    real = batch["attention_mask"].bool()
    depths = [depth for row in expected.halting for depth in row.updates]
    assert outputs.updates[real].tolist() == depths
    assert len(set(depths)) >= 3
    for name, part in expected.loss_parts.items():
        check_close(outputs.loss_parts[name], part, name)
    for name, weight in model.named_parameters():
        check_close(weight.grad, weights[name].grad, name)
    assert weights["albert.encoder.albert_layer.act.dense.slope"].grad.abs() > 0


VARIANTS = [
    {"halting_scope": "sequence"}, {"halting_input": "block_input", "recall": True}, {"state_rule": "graves"},
    {"cap_remainder": "forced"},
]  # fmt: skip


@pytest.mark.parametrize("changes", keep_one_quick(2, VARIANTS))
def test_ragged_act_equals_dense(changes: dict[str, Any]) -> None:
    runs = []
    for execution in ("dense", "ragged"):
        model, batch = act(AlbertActModel, execution=execution, **changes), make_padded_batch()
        outputs = model(**batch)
        real = batch["attention_mask"].bool()
        (outputs.last_hidden_state[real].square().sum() + outputs.remainders.sum()).backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        runs.append([outputs.updates, outputs.last_hidden_state[real], *gradients])
    for dense, ragged in zip(*runs, strict=True):
        check_close(dense, ragged)
    assert len(runs[0][0].unique()) >= 3


@pytest.mark.parametrize("execution", ["dense", "ragged"])
def test_exit_rules_of_act_read_the_logits_of_the_unit(execution: str) -> None:
    """Compare the quantile of the model's threshold, online, with the model's exits: see `ActStepper`."""
    model, batch = act(AlbertActForTokenClassification, state_rule="graves", execution=execution), make_padded_batch()
    model.eval()
    with torch.no_grad():
        halted = model(**batch)
        ran = model(**batch, exit_rule="quantile:0.99")
        recorded = model(**batch, exit_rule="quantile:0.99", run_all_steps=True)
    assert ran.updates.equal(halted.updates)
    assert ran.exit_steps.equal(recorded.exit_steps)
    assert len(halted.updates.unique()) >= 4


def test_forced_depths_and_replayed_masses_override_the_unit() -> None:
    model, batch = act(AlbertActModel, halting_scope="token").eval(), make_padded_batch()
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        halted = model(**batch)
        model.replay_halting(halted.halting_probabilities.flip(0))
        replayed = model(**batch).updates
        model.replay_halting(None)
        model.force_depth(3)
        assert model(**batch).updates[real].unique().tolist() == [3]
        model.force_depth(None)
        assert model(**batch).updates.equal(halted.updates)
    assert not replayed.equal(halted.updates)


def test_macs_of_act_include_the_unit() -> None:
    batch = make_padded_batch()

    class Wide(HaltingUnit):
        name = "wide"

        def __init__(self, width: int, bias: float) -> None:
            super().__init__(width, bias)
            self.inner, self.outer = torch.nn.Linear(width, 5), torch.nn.Linear(5, 1)

        def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
            return self.outer(self.inner(states)).squeeze(-1) + self.bias, memory

    adadepth.register_halting_unit(Wide)
    linear = act(AlbertActModel, "linear", execution="dense").float()
    wide = AlbertActModel(make_small_config(halting_unit="wide", execution="dense", **MOVING))
    with torch.no_grad():
        trace = wide(**batch).trace
    counted, expected = wide.price(trace), linear.price(trace)
    extra_macs = (32 * 5 + 5) - 32
    assert counted.adaptive - expected.adaptive == extra_macs * trace.updates.sum()
    assert counted.executed - expected.executed == extra_macs * trace.executed.steps * trace.updates.numel()
    for model in (linear, wide):
        model.force_depth(3)  # the unit is not used
    assert wide.price(trace).adaptive == linear.price(trace).adaptive


# ---- Looped models


def build_looped_with_unit(**fields: Any) -> Any:
    model = build_looped(**{**OURO, "halting_unit": "movement", **fields}).double()
    draw_unit(model.model.gate, bias=-1.0)
    return model


@pytest.mark.parametrize("policy", keep_one_quick(3, EVERY_POLICY))
def test_looped_exits_equal_a_plain_loop(policy: str) -> None:
    """Compare calls with a cache, where exited tokens run no further loop, and generation."""
    model = build_looped_with_unit()
    logits, exits = decode_in_calls(model, LOOPED_IDS[:1], policy, exit_rule="quantile:0.5")
    expected, steps = decode_plainly_in_calls(
        model.config, model.state_dict(), LOOPED_IDS[0], policy, "quantile:0.5", None
    )
    assert exits[0].tolist() == steps
    assert len(set(steps)) > 1
    check_close(logits[0], expected)
    generated = model.generate(
        LOOPED_IDS[:1], max_new_tokens=5, do_sample=False, exit_rule="quantile:0.5", cache_policy=policy
    )
    tokens, _ = generate_plainly(
        model.config, model.state_dict(), LOOPED_IDS[0].tolist(), 5, "quantile:0.5", policy
    )  # fmt: skip
    assert generated[0, LOOPED_IDS.shape[1] :].tolist() == tokens


def test_logits_of_all_loops_equal_a_plain_loop_and_train_the_unit() -> None:
    model = build_looped_with_unit(objective="gate").train()
    mask = torch.ones_like(LOOPED_IDS)
    mask[1, 6:] = 0
    labels = torch.where(mask.bool(), LOOPED_IDS, -100)
    output = model(LOOPED_IDS, attention_mask=mask, labels=labels, output_hidden_states=True)
    weights = model.state_dict()
    for row, column in [(0, 0), (1, 4), (2, 8)]:
        trail = [states[row, column] for states in output.hidden_states[1:]]
        expected = [compute_halting_logit(weights, "model.gate.", trail[: n + 1]) for n in range(4)]
        check_close(output.halting_logits[row, column], torch.stack(expected))
    output.loss.backward()
    assert all(weight.grad.any() for weight in model.model.gate.parameters())


def test_drafts_exit_by_the_unit_and_change_no_token() -> None:
    model = build_looped_with_unit()
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(LOOPED_IDS[:1], **options)
    drafted = model.generate(
        LOOPED_IDS[:1], custom_generate=adadepth.self_speculation, draft_rule="quantile:0.3", **options
    )  # fmt: skip
    assert drafted.tolist() == expected.tolist()


def test_unsupported_uses_of_a_looped_model_are_refused_in_one_line(tmp_path: Path) -> None:
    model = build_looped_with_unit().float()
    with pytest.raises(ConfigError, match=r"^halting_unit=movement: decode_texts supports only linear, as tokens"):
        adadepth.decode_texts(model, [[3, 4]], exit_rule="quantile:0.5")
    with pytest.raises(ConfigError, match=r"^halting_unit='?movement.*ouro"):
        model.save_pretrained(tmp_path, layout="ouro")
    with pytest.raises(ConfigError, match=r"^halting_unit=movement: only used with gate=true$"):
        build_looped(halting_unit="movement")
    assert model.reading_work("halting", torch.tensor([1])) == LOOPED_WIDTH


# ---- Early exit


def build_early_exit_with_unit(head: str, **fields: Any) -> Any:
    model_class, extra_fields, _ = HEADS[head]
    model = build_early_exit(model_class, exit_gate=True, halting_unit="movement", **{**extra_fields, **fields})
    draw_unit(model.gate, bias=0.0, scale=0.1)
    return model


def compute_gates(model: Any, head: str) -> Tensor:
    """Return the logits of the gate of all units at all exits, (K, N), by a plain loop over each unit's states."""
    output = model(PADDED, attention_mask=MASK, output_hidden_states=True, run_all_steps=True)
    states, weights = torch.stack(output.hidden_states[1:], dim=2), model.state_dict()
    if head.startswith("texts"):
        ends = MASK.sum(1) - 1 if head.endswith("decoder") else torch.zeros(3, dtype=torch.int64)
        trails = states[torch.arange(3), ends]
    else:
        trails = states[MASK.bool()]
    return torch.stack([
        torch.stack([compute_halting_logit(weights, "gate.", trail[: n + 1]) for n in range(LAYERS)])
        for trail in trails
    ])  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_exits_of_early_exit_equal_a_plain_loop(head: str) -> None:
    model = build_early_exit_with_unit(head)
    gates = compute_gates(model, head)
    middle = gates[:, 1].median().detach() + 1e-3  # beside the logit of the unit in the middle
    model.gate.bias.data -= middle
    table = gates > middle
    table[:, -1] = True
    output = model(PADDED, attention_mask=MASK, run_all_steps=True)
    real = MASK.bool() if head == "words" else ...
    check_close(output.halting_logits[real].flatten(0, -2), gates - middle)
    exits = model(PADDED, attention_mask=MASK, exit_rule="correct:0.5").exit_steps[real].flatten()
    assert exits.tolist() == (table.long().argmax(dim=1) + 1).tolist()
    assert len(exits.unique()) > 1


@pytest.mark.parametrize("policy", ["all", "deferred", "frozen"])
def test_cached_tokens_of_early_exit_keep_their_exits(policy: str) -> None:
    model = build_early_exit_with_unit("words")
    model.gate.bias.data -= compute_gates(model, "words")[:, 1].median().detach()
    options = {"use_cache": True, "cache_policy": policy, "exit_rule": "correct:0.5"}
    whole = model(IDS, **options)
    first = model(IDS[:, :4], **options)
    rest = model(IDS[:, 4:], past_key_values=first.past_key_values, exit_rule="correct:0.5")
    assert torch.equal(torch.cat([first.exit_steps, rest.exit_steps], 1), whole.exit_steps)
    assert len(whole.exit_steps.unique()) > 1
    check_close(torch.cat([first.logits, rest.logits], 1), whole.logits)
    tokens = model.generate(IDS[:1], max_new_tokens=6, do_sample=False, cache_policy=policy, exit_rule="correct:0.5")
    assert tokens.shape[1] > IDS.shape[1]


def test_a_unit_of_early_exit_is_trained_and_changes_no_prediction() -> None:
    model = build_early_exit_with_unit("words").train()
    labels = torch.where(MASK.bool(), IDS, -100)
    model(PADDED, attention_mask=MASK, labels=labels).loss_parts["gate"].backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert touched == {"gate.bias", "gate.slope", "gate.weights.weight"}
    assert model.reading_work("correctness", torch.tensor([1])) == WIDTH
    with pytest.raises(ConfigError, match=r"^halting_unit=movement: only used with exit_gate=true$"):
        build_early_exit(halting_unit="movement")


# ---- The built-in unit with a hidden layer


def test_an_mlp_is_its_equation_in_a_looped_model(tmp_path: Path) -> None:
    model = build_looped(**OURO, halting_unit="mlp", objective="gate").train()
    output = model(LOOPED_IDS, labels=LOOPED_IDS, output_hidden_states=True)
    weights = {name: weight.double() for name, weight in model.model.gate.state_dict().items()}
    for step, states in enumerate(output.hidden_states[1:]):
        for row, column in [(0, 0), (1, 4), (2, 8)]:
            z = weights["bias"][0]
            for unit in range(LOOPED_WIDTH):
                a = weights["hidden.bias"][unit] + (weights["hidden.weight"][unit] * states[row, column].double()).sum()
                z = z + weights["output.weight"][0, unit] * a / (1 + torch.exp(-a))
            check_close(output.halting_logits[row, column, step], z)
    output.loss.backward()
    assert all(weight.grad.any() for weight in model.model.gate.parameters())
    assert model.reading_work("halting", torch.tensor([1])) == LOOPED_WIDTH * (LOOPED_WIDTH + 1)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded.model.gate.hidden.weight, model.model.gate.hidden.weight)


def test_an_mlp_halts_act_and_early_exit_in_float32() -> None:
    model = AlbertActModel(make_small_config(**(MOVING | {"halting_unit": "mlp", "halt_bias_init": -2.0})))
    assert model.encoder.albert_layer.act.dense.bias.item() == -2.0
    batch = make_padded_batch()
    assert model(**batch).updates[batch["attention_mask"].bool()].min() >= 1
    model_class, more, _ = HEADS["words"]
    output = build_early_exit(model_class, exit_gate=True, halting_unit="mlp", **more).bfloat16()(
        PADDED, attention_mask=MASK, run_all_steps=True
    )  # fmt: skip
    assert output.halting_logits.dtype == torch.float32
    assert not torch.equal(output.halting_logits, output.halting_logits.bfloat16().float())


# ---- Weights, configurations and files


@pytest.mark.parametrize(
    "build", [build_looped_with_unit, lambda: build_early_exit_with_unit("texts")], ids=["looped", "early_exit"]
)
def test_other_families_save_and_load_a_unit(build: Callable[[], Any], tmp_path: Path) -> None:
    model = build().float()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.halting_unit == "movement"
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    new = type(model)(type(model.config).from_pretrained(tmp_path, halting_unit="movement:0.25"))
    unit = new.get_submodule("model.gate" if hasattr(new, "lm_head") else "gate")
    assert (unit.slope.item(), unit.bias.item()) == (0.25, 0.0)
    assert unit.weights.weight.abs().max() > 0.1, "torch's initial weights, not initializer_range=0.02"


@pytest.mark.parametrize(("command", "key"), [("loop_tiny", "gate"), ("exit_tiny", "exit_gate")])
def test_a_configuration_with_a_unit_needs_a_gate(command: str, key: str) -> None:
    configured(command, "model.halting_unit=movement", f"model.{key}=true")
    with pytest.raises(ConfigError, match=f"^model.halting_unit=movement: only used with model.{key}=true$"):
        configured(command, "model.halting_unit=movement", f"model.{key}=false")


def test_a_linear_unit_keeps_its_names_and_initial_weights() -> None:
    names = [name for name, _ in act(AlbertActModel, "linear").named_parameters() if ".act." in name]
    assert names == ["encoder.albert_layer.act.dense.weight", "encoder.albert_layer.act.dense.bias"]
    unit = build_halting_unit("linear", 4, -2.0)
    assert isinstance(unit, HaltingProjection)
    assert start_unit(unit, torch.ones(3, 4)) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_with_a_unit_is_saved_and_loaded(tmp_path: Path, dtype: torch.dtype) -> None:
    model = act(AlbertActModel, "movement:0.25", halt_bias_init=-2.0).float().eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["halting_unit"] == "movement:0.25"
    loaded: Any = AlbertActModel.from_pretrained(tmp_path, dtype=dtype)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.to(dtype)), name
    probabilities = loaded(**make_padded_batch()).halting_probabilities
    assert probabilities.dtype == torch.float32


def test_a_new_unit_has_the_weights_of_its_constructor(tmp_path: Path) -> None:
    """Check that `_init_weights` neither redraws its linear layer nor leaves meta parameters uninitialised."""
    act(AlbertActModel, "linear").float().save_pretrained(tmp_path)
    config = make_small_config(**MOVING, halting_unit="movement:0.25", halt_bias_init=-2.0)
    with pytest.raises(CheckpointError, match=r"act\.dense\.slope"):
        AlbertActModel.from_pretrained(tmp_path, config=config)
    torch.manual_seed(0)
    new = AlbertActModel(config)
    units_of = [new.encoder.albert_layer.act.dense]
    state = {name: w for name, w in new.state_dict().items() if ".act." not in name}
    with allow_new_weights():
        loaded: Any = AlbertActModel.from_pretrained(None, config=config, state_dict=state)
    units_of.append(loaded.encoder.albert_layer.act.dense)
    for unit in units_of:
        assert (unit.slope.item(), unit.bias.item()) == (0.25, -2.0)
        largest = unit.weights.weight.abs().max().item()
        assert 0.1 < largest <= 32**-0.5, "torch's initial weights, not initializer_range=0.3"


def test_a_unit_that_is_not_installed_is_refused_in_one_line(tmp_path: Path) -> None:
    act(AlbertActModel).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("movement", "motion"))
    with pytest.raises(ConfigError) as raised:
        AlbertActModel.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("halting unit 'motion': must be one of linear, mlp, movement")


@pytest.mark.parametrize(("unit", "message"), [
    ("motion", "halting unit 'motion': must be one of linear, mlp, movement"),
    ("movement:x", "halting unit 'movement:x': a parameter has the wrong type, the form is movement:<slope>"),
    ("linear:1", "halting unit 'linear:1': too many parameters, the form is linear"),
])  # fmt: skip
def test_a_wrong_unit_of_a_configuration_is_refused_in_one_line(unit: str, message: str) -> None:
    assert configured("act_tiny", "model.halting_unit=movement:2").model.halting_unit == "movement:2"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as raised:
        configured("act_tiny", f"model.halting_unit={unit}")
    assert str(raised.value).startswith(f"model.halting_unit={unit}: {message}")


# ---- Registry


def test_a_program_registers_a_unit_and_replaces_it() -> None:
    for slope in (1.0, 2.0):

        @adadepth.register_halting_unit
        class Mine(HaltingUnit):
            name = "mine"

            def __init__(self, width: int, bias: float, *, slope: float = slope) -> None:
                super().__init__(width, bias)
                self.slope = slope

            def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
                return self.slope * states.mean(dim=-1) + self.bias, memory

        unit: Any = build_halting_unit("mine", 4, 0.5)
        assert (unit.slope, unit.bias.item(), unit.macs) == (slope, 0.5, 0)
    assert run_unit(unit, torch.ones(2, 3, 4), (), 1)[0].tolist() == [[2.5] * 3] * 2
    assert build_halting_unit("mine:3", 4, 0.5).slope == 3.0


class Typeless(HaltingUnit):
    name = "typeless"

    def __init__(self, width: int, bias: float, slope=1.0) -> None:  # type: ignore[no-untyped-def]
        super().__init__(width, bias)


class Linear(HaltingUnit):
    name = "linear"


@pytest.mark.parametrize(("unit", "message"), [
    (Typeless, "halting unit 'typeless': its parameter slope must be an int or a float with a default"),
    (Linear, "halting unit 'linear': a halting unit of that name already exists"),
    (HaltingUnit, "halting unit '': its name is None"),
    (HaltingProjection, "halting unit 'linear': a halting unit of that name already exists"),
    (torch.nn.Linear, "halting unit '': must be a class that extends adadepth.HaltingUnit"),
])  # fmt: skip
def test_a_broken_unit_is_refused_in_one_line(unit: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        adadepth.register_halting_unit(unit)
    assert str(raised.value) == message


@pytest.mark.parametrize(("logits", "memory", "message"), [
    ((2, 3, 1), (2, 3), "returned logits of shape (2, 3, 1), not (2, 3)"),
    ((2, 3), (3,), "returned a memory of shape (3,), whose first dimensions are not (2, 3)"),
])  # fmt: skip
def test_wrong_shapes_are_refused_in_one_line(logits: Any, memory: Any, message: str) -> None:
    class Wrong(HaltingUnit):
        name = "wrong"

        def forward(self, states: Tensor, memory_before: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
            return torch.zeros(logits), (torch.zeros(memory),)

    with pytest.raises(ConfigError) as raised:
        run_unit(Wrong(4, 0.0), torch.ones(2, 3, 4), (), 1)
    assert str(raised.value) == f"halting unit 'wrong': {message}"


def test_a_unit_computes_in_the_dtype_of_its_weights_under_autocast() -> None:
    unit: Any = build_halting_unit("movement", 4, 0.0)
    states = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, memory = run_unit(unit, states.bfloat16(), start_unit(unit, states.bfloat16()), 1)
    assert (logits.dtype, memory[0].dtype) == (torch.float32, torch.float32)
    assert torch.equal(logits, unit(states.bfloat16().float(), (), 1)[0])
