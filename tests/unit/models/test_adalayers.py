"""Adalayers: gradients, states that are read, penalties, and compute."""

from __future__ import annotations

import math
import weakref
from itertools import product

import pytest
import torch
from torch import nn
from transformers import AutoModel

from adadepth import AdaLayersConfig, AdaLayersForSequenceClassification, AdaLayersForTokenClassification
from adadepth.errors import DataError
from adadepth.models.adalayers.base import find_blocks
from adadepth.models.shared.layers import sinusoidal_positions
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.adalayers_support import BASES, DEPTH, HEAD, SHAPE, VARIANTS, WIDTH, draw_texts, set_scores

MODELS = {"sequence": AdaLayersForSequenceClassification, "tokens": AdaLayersForTokenClassification}
UNEVEN = [1.0, 0.9, 1.1, 0.8, 1.2]


def build_adalayers(kind="sequence", base="bert", scores=None, **changes):
    torch.manual_seed(0)
    fields = HEAD | {"num_labels": 3, "base_config": BASES[base]} | changes
    model = MODELS[kind](AdaLayersConfig(**fields)).eval()
    if scores is not None:
        set_scores(model, scores)
    return model


def draw_labels(kind, batch, classes=3):
    generator = torch.Generator().manual_seed(1)
    if kind == "sequence":
        return torch.randint(0, classes, (len(batch["input_ids"]),), generator=generator)
    labels = torch.randint(0, classes, batch["input_ids"].shape, generator=generator)
    return labels.masked_fill(batch["attention_mask"] == 0, -100)


@pytest.mark.parametrize(("variant", "kind"), keep_one_quick(5, product(VARIANTS, MODELS)))
def test_every_trainable_parameter_gets_a_gradient(variant, kind):
    model = build_adalayers(kind, **VARIANTS[variant]).train()
    batch = draw_texts()
    model(**batch, labels=draw_labels(kind, batch)).loss.backward()
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trainable.items() if weight.grad is None] == []
    assert any(name.startswith("model.") for name in trainable) is not model.config.freeze_base_model
    assert [n for n, weight in trainable.items() if not n.startswith("model.") and not weight.grad.any()] == []


@pytest.mark.parametrize("kind", keep_one_quick(2, MODELS))
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_layers_below_the_cutoff_have_a_gradient_of_zero(kind, frozen, cached):
    model = build_adalayers(kind, scores=[1, 0, 1, 0, 0], distribution_cutoff=0.1, freeze_base_model=frozen).train()
    batch = draw_texts()
    states = model.base_states(model.active_states(), **batch) if cached and frozen else None
    output = model(**batch, labels=draw_labels(kind, batch), states=states)
    output.loss.backward()
    assert output.trace.execution.steps == (0 if states else 2)
    for layer in range(DEPTH + 1):
        gradient = model.projectors[str(layer)].weight.grad
        assert gradient.any() if layer in (0, 2) else not gradient.any()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    assert model.distribution.grad[[1, 3, 4]].abs().max() < 1e-6


def test_a_frozen_base_never_trains():
    config = type(BASES["bert"])(**SHAPE, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model = build_adalayers(base_config=config).train()
    assert model.training
    assert model.self_attention.training
    assert not any(module.training for module in model.model.modules())
    first, second = (model(**draw_texts(), labels=torch.tensor([0, 1, 2])) for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    first.loss.backward()
    assert all(weight.grad is None and not weight.requires_grad for weight in model.model.parameters())
    trained = build_adalayers(base_config=config, freeze_base_model=False).train()
    assert all(module.training for module in trained.model.modules())
    assert not torch.equal(trained(**draw_texts()).logits, trained(**draw_texts()).logits)


def test_dropout_acts_in_training_only():
    model = build_adalayers(attention_dropout_prob=0.3, add_pos_embeddings=True)
    assert torch.equal(model(**draw_texts()).logits, model(**draw_texts()).logits)
    model.train()
    assert not torch.equal(model(**draw_texts()).logits, model(**draw_texts()).logits)


@pytest.mark.parametrize("kind", MODELS)
def test_the_initial_distribution_is_uniform(kind, tmp_path):
    model = build_adalayers(kind, lambda_distribution_entropy=1.0)
    batch = draw_texts()
    parts = model(**batch, labels=draw_labels(kind, batch)).loss_parts
    torch.testing.assert_close(model.layer_distribution(), torch.full((5,), 0.2))
    assert parts["entropy"].item() == pytest.approx(math.log(5))
    model.save_pretrained(tmp_path)
    loaded = MODELS[kind].from_pretrained(tmp_path)
    assert torch.equal(loaded.layer_distribution(), model.layer_distribution())
    bound = model.projectors["0"].in_features ** -0.5
    assert model.projectors["0"].weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize(
    ("variant", "kind"),
    keep_one_quick(5, product([name for name in VARIANTS if not name.startswith("fine-tuning")], MODELS)),
)
def test_cached_states_equal_online_states(variant, kind):
    model = build_adalayers(kind, **VARIANTS[variant])
    if model.config.learns_distribution:
        set_scores(model, UNEVEN)
    batch, lengths = draw_texts((9, 6, 2), 11), (9, 6, 2)
    with torch.no_grad():
        online = model(**batch)
        whole = model(**batch, states=model.base_states(range(DEPTH + 1), **batch))
        states = {number: torch.zeros(3, 11, WIDTH) for number in model.active_states()}
        for row, length in enumerate(lengths):  # computed in another batch, without the padding
            alone = model.base_states(model.active_states(), input_ids=batch["input_ids"][row : row + 1, :length])
            for number, state in alone.items():
                states[number][row, :length] = state[0]
        stored = model(attention_mask=batch["attention_mask"], states=states)
    assert torch.equal(online.logits, whole.logits)
    assert (online.trace.execution.steps, whole.trace.execution.steps) == (model.active_states()[-1], 0)
    real = batch["attention_mask"].bool() if kind == "tokens" else ...
    torch.testing.assert_close(stored.logits[real], online.logits[real], atol=1e-5, rtol=0)


def test_cached_states_are_those_that_the_head_reads():
    """Compare GELU(Z), which projections read, with the raw states of a scalar mix, whose cache key differs."""
    projected, scalar = build_adalayers(), build_adalayers(**VARIANTS["scalar mix"])
    raw = scalar.base_states([2], **draw_texts())[2]
    assert torch.equal(projected.base_states([2], **draw_texts())[2], nn.functional.gelu(raw))
    projected.config.base_hash = scalar.config.base_hash = "the same base"
    assert projected.states_key != scalar.states_key


def test_a_missing_state_is_named():
    model = build_adalayers()
    states = model.base_states([0, 1, 3, 4], **draw_texts())
    with pytest.raises(DataError, match=r"states: hidden state 2 is missing; given are \[0, 1, 3, 4\]"):
        model(**draw_texts(), states=states)


@pytest.mark.parametrize(
    ("base", "variant"),
    mark_mostly_slow(product(["bert", "t5", "bart"], VARIANTS), lambda case: "bert" in case or "adalayers" in case),
)
@pytest.mark.parametrize("kind", keep_one_quick(2, MODELS))
def test_a_text_alone_equals_the_text_in_a_padded_batch(variant, kind, base):
    model = build_adalayers(kind, base, **VARIANTS[variant])
    batch = draw_texts((9, 6, 2), 14)
    with torch.no_grad():
        together = model(**batch).logits
        for row, length in enumerate((9, 6, 2)):
            ids = batch["input_ids"][row : row + 1, :length]
            for mask in (None, torch.ones_like(ids)):
                alone = model(input_ids=ids, attention_mask=mask).logits[0]
                ours = together[row, :length] if kind == "tokens" else together[row]
                torch.testing.assert_close(alone, ours, atol=1e-5, rtol=1e-5)


def test_penalties_equal_their_formulas():
    model = build_adalayers(scores=UNEVEN, lambda_distribution_depth=0.5, lambda_distribution_entropy=0.25)
    parts = model(**draw_texts(), labels=torch.tensor([0, 1, 2])).loss_parts
    weights = model.layer_distribution().tolist()
    assert parts["depth"].item() == pytest.approx(0.5 * sum(n * w for n, w in enumerate(weights)) / DEPTH)
    assert parts["entropy"].item() == pytest.approx(-0.25 * sum(w * math.log(w) for w in weights))
    without = build_adalayers(include_embeddings=False, lambda_distribution_depth=1.0)
    assert without(**draw_texts(), labels=torch.tensor([0, 1, 2])).loss_parts["depth"].item() == pytest.approx(
        2.5 / DEPTH
    )


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_the_active_layers_follow_the_optimiser(options):
    model = build_adalayers(distribution_cutoff=0.1)
    with torch.no_grad():
        assert model(**draw_texts()).trace.execution.steps == 4
    optimizer = torch.optim.AdamW([model.distribution], lr=1.0, **options)
    (model(**draw_texts()).logits.sum() * 0.0).backward()
    model.distribution.grad = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    optimizer.step()
    with torch.no_grad():
        assert model.active_states() == (1, 3)
        assert model(**draw_texts()).trace.execution.steps == 3
    set_scores(model, [9, 0, 0, 0, 0])
    with torch.no_grad():
        assert model.active_states() == (0,)


def test_the_cutoff_starts_at_a_later_step():
    model = build_adalayers(scores=[1, 0, 1, 0, 0], distribution_cutoff=0.1, cutoff_warmup_steps=10)
    assert model.active_states() == (0, 2), "a loaded model is past its warm-up"
    model.set_step(9)
    assert model.active_states() == (0, 1, 2, 3, 4)
    model.set_step(10)
    assert model.active_states() == (0, 2)


def test_top_k_reads_all_layers_in_training_and_k_in_inference():
    model = build_adalayers(scores=UNEVEN, topk_distribution=2)
    assert model.active_states() == model.states_to_read() == (2, 4)
    model.train()
    assert model.active_states() == (2, 4)
    assert model.states_to_read() == (0, 1, 2, 3, 4)
    trained = model(**draw_texts(), labels=torch.tensor([0, 1, 2]))
    trained.loss.backward()
    assert (model.distribution.grad != 0).all()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    model.eval()
    torch.testing.assert_close(model(**draw_texts()).logits, trained.logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_no_state_outlives_its_projection(kind):
    model, alive = build_adalayers(kind, num_labels=3), []

    def watch(block, args):
        alive[:] = [state for state in alive if state() is not None]
        alive.append(weakref.ref(args[0]))
        assert len(alive) <= 2, "the state before the block, and the one that is read"

    for block in find_blocks(model.model):
        block.register_forward_pre_hook(watch)
    with torch.no_grad():
        model(**draw_texts())
    assert all(state() is None for state in alive)


def test_fine_tuning_gives_the_base_the_gradients_of_transformers():
    model = build_adalayers(**VARIANTS["fine-tuning"]).train()
    batch, labels = draw_texts(), torch.tensor([0, 1, 2])
    base = AutoModel.from_config(BASES["bert"], add_pooling_layer=False)
    base.load_state_dict(model.model.state_dict())
    base.eval()
    model.model.eval()  # no dropout
    model(**batch, labels=labels).loss.backward()
    real = batch["attention_mask"].unsqueeze(-1)
    mean = (base(**batch).last_hidden_state * real).sum(1) / real.sum(1)
    nn.functional.cross_entropy(mean @ model.logits.weight.T + model.logits.bias, labels).backward()
    for name, weight in base.named_parameters():
        torch.testing.assert_close(model.model.get_parameter(name).grad, weight.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("variant", keep_one_quick(4, VARIANTS))
def test_mixed_precision_keeps_losses_in_float32(variant, kind):
    model = build_adalayers(kind, **VARIANTS[variant]).train()
    batch = draw_texts()
    labels = draw_labels(kind, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch, labels=labels)
    output.loss.backward()
    assert output.loss.dtype == torch.float32
    assert output.trace.layer_weights.dtype == torch.float32
    expected = model(**batch, labels=labels)
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=0.05)
    half = build_adalayers(kind, **VARIANTS[variant]).to(torch.bfloat16)
    with torch.no_grad():
        assert half(**batch).logits.dtype == torch.bfloat16


def test_the_trace_contains_the_layers_read():
    model = build_adalayers(scores=[0, 1, 0, 1], distribution_cutoff=0.1, include_embeddings=False)
    trace = model(**draw_texts()).trace
    assert (trace.unit, trace.max_updates, trace.execution.steps, trace.execution.width) == ("task", DEPTH, 4, 11)
    assert trace.updates.tolist() == [4.0, 4.0, 4.0]
    assert trace.execution.tokens.tolist() == [9, 6, 2]
    assert trace.layer_weights.tolist() == pytest.approx([0, 0, 0.5, 0, 0.5])


def test_macs_count_executed_blocks():
    model = build_adalayers(scores=[1, 0, 1, 0, 0], distribution_cutoff=0.1)
    batch = draw_texts()
    with torch.no_grad():
        work = model.price(model(**batch).trace)
        cached = model.price(model(**batch, states=model.base_states([0, 2], **batch)).trace)
    k, ff = 16, 48

    def compute_macs(length, blocks, layers):
        block = 4 * WIDTH**2 + 2 * length * WIDTH + 2 * WIDTH * ff
        head = length * (4 * k * k + 2 * length * k) + 3 * k
        return length * (blocks * block + layers * (WIDTH * k + k)) + head

    assert work.executed.item() == work.dense.item() == 3 * compute_macs(11, 2, 2)
    assert work.adaptive.item() == sum(compute_macs(length, 2, 2) for length in (9, 6, 2))
    assert work.full.item() == sum(compute_macs(length, 4, 5) for length in (9, 6, 2))
    assert cached.executed.item() == 3 * compute_macs(11, 0, 2)
    assert (cached.adaptive, cached.full) == (work.adaptive, work.full)


@pytest.mark.parametrize("base", mark_mostly_slow(BASES, ("bert", "t5").__contains__))
@pytest.mark.parametrize("kind", keep_one_quick(2, MODELS))
def test_macs_are_defined_for_every_base_and_head(kind, base):
    def compute_work(**changes):
        model = build_adalayers(kind, base, **changes)
        return model.price(model(**draw_texts()).trace)

    for variant in VARIANTS.values():
        work = compute_work(**variant)
        assert 0 < work.adaptive <= work.executed
        assert work.adaptive <= work.full
    assert compute_work(pick_one_layer_only=1).executed < compute_work(pick_one_layer_only=2).executed


@pytest.mark.parametrize("kind", MODELS)
def test_the_number_of_added_parameters_is_its_formula(kind):
    model = build_adalayers(kind)
    whole = sum(weight.numel() for weight in model.parameters())
    assert model.added_parameters() == whole - sum(weight.numel() for weight in model.model.parameters())
    expected = 5 * 16 * WIDTH + 5 + (4 * 16 * 16 + 4 * 16) + (16 * 3 + 3)
    if kind == "tokens":
        expected += (16 * 24 + 24) + (24 * 16 + 16) + 4 * 16
    assert model.added_parameters() == expected


def test_published_number_of_added_parameters():
    """Check the reference's count for RoBERTa-large: 24 layers, width 64."""
    config = type(BASES["bert"])(**(SHAPE | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}))
    with torch.device("meta"):
        fields = {"project_dim": 64, "layers_num": 24, "seed_compat": True}
        model = AdaLayersForSequenceClassification(AdaLayersConfig(base_config=config, **fields), build_base=False)
    assert model.added_parameters() == 1_589_658


@pytest.mark.parametrize(("length", "width"), [(1, 8), (700, 16), (5, 7)])
def test_positions_of_any_length_and_width(length, width):
    table = sinusoidal_positions(length, torch.zeros(2, length, width))
    assert table.shape == (length, width)
    for position in {0, length // 2, length - 1}:
        for index in range(width):
            angle = position / 10000 ** ((index - index % 2) / width)
            expected = math.cos(angle) if index % 2 else math.sin(angle)
            assert table[position, index].item() == pytest.approx(expected, abs=1e-4)


def test_nan_in_the_distribution_reaches_the_loss():
    """Check that a diverged distribution makes the loss NaN, where the trainer stops."""
    model = build_adalayers(scores=[math.nan] * 5, distribution_cutoff=0.1).train()
    assert model(**draw_texts(), labels=torch.tensor([0, 1, 2])).loss.isnan()
