"""ACT-ALBERT as a transformers model: layout, initialisation, precision, losses, heads, saving."""

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
)

import adadepth
from adadepth import (
    AlbertActConfig,
    AlbertActForPreTraining,
    AlbertActModel,
    convert_reference_state_dict,
)
from adadepth.config.plugins import get_import_path
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models import convert_reference_config
from adadepth.models.registry import families
from tests.albert_act_support import HEADS, make_labelled_batch
from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_config, spread_depths

# The layout of the published checkpoints, as their documentation gives it.
PUBLISHED_LAYOUT = [
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    "encoder.embedding_hidden_mapping_in.weight",
    "encoder.embedding_hidden_mapping_in.bias",
    "encoder.albert_layer.attention.query.weight",
    "encoder.albert_layer.attention.query.bias",
    "encoder.albert_layer.attention.key.weight",
    "encoder.albert_layer.attention.key.bias",
    "encoder.albert_layer.attention.value.weight",
    "encoder.albert_layer.attention.value.bias",
    "encoder.albert_layer.attention.dense.weight",
    "encoder.albert_layer.attention.dense.bias",
    "encoder.albert_layer.LayerNorm.weight",
    "encoder.albert_layer.LayerNorm.bias",
    "encoder.albert_layer.ffn.weight",
    "encoder.albert_layer.ffn.bias",
    "encoder.albert_layer.ffn_output.weight",
    "encoder.albert_layer.ffn_output.bias",
    "encoder.albert_layer.full_layer_layer_norm.weight",
    "encoder.albert_layer.full_layer_layer_norm.bias",
    "encoder.albert_layer.act.dense.weight",
    "encoder.albert_layer.act.dense.bias",
    "pooler.weight",
    "pooler.bias",
]

# ---- layout and saving


def test_published_checkpoint_loads_strictly(tmp_path):
    model = AlbertActModel(make_small_config())
    assert list(model.state_dict()) == PUBLISHED_LAYOUT
    published = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    published["embeddings.position_ids"] = torch.arange(32).unsqueeze(0)
    model.save_pretrained(tmp_path, state_dict=dict(published))
    loaded, report = AlbertActModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, published[name]), name


def test_a_published_configuration_keeps_its_meaning():
    """Check that switches, which a published configuration lacks, default to the published behaviour."""
    config = AlbertActConfig()
    defaults = {
        "act_epsilon": 0.01,
        "act_penalty": 0.0,
        "penalty_reduction": "sum_tokens",
        "cap_remainder": "reference",
        "state_rule": "single",
        "halting_input": "block_output",
        "halting_scope": "token",
        "halt_bias_init": 0.0,
        "hidden_act": "gelu_new",
    }
    assert {name: getattr(config, name) for name in defaults} == defaults


@pytest.mark.parametrize("model_class", keep_one_quick(3, HEADS))
def test_save_and_load_through_auto_class(model_class, tmp_path):
    torch.manual_seed(0)
    config = make_small_config(num_labels=3, act_penalty=0.01, state_rule="graves", cap_remainder="forced")
    model = model_class(config).eval()
    spread_depths(model)
    model.save_pretrained(tmp_path)
    loaded = HEADS[model_class].from_pretrained(tmp_path).eval()
    assert type(loaded) is model_class
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == loaded.config.to_diff_dict()
    assert loaded.config.state_rule == "graves"
    assert loaded.config.cap_remainder == "forced"
    batch = make_labelled_batch(model_class)
    with torch.no_grad():
        before, after = model(**batch), loaded(**batch)
    for name in before.keys() - {"loss_parts", "trace"}:
        torch.testing.assert_close(before[name], after[name], atol=1e-6, rtol=0, msg=name)


def test_base_model_loads_from_a_head_checkpoint(tmp_path):
    model = AlbertActForPreTraining(make_small_config())
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base.pooler.weight, model.albert.pooler.weight)


def test_decoder_is_tied_and_survives_resizing():
    model = AlbertActForPreTraining(make_small_config())
    model.resize_token_embeddings(130)
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight
    assert model(**make_padded_batch()).prediction_logits.shape == (3, 12, 130)


def test_convert_reference_state_dict():
    names = {
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm.weight": (
            "albert.encoder.albert_layer.LayerNorm.weight"
        ),
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.bias": (
            "albert.encoder.albert_layer.attention.query.bias"
        ),
        "encoder.albert_layer.act.dense.bias": "encoder.albert_layer.act.dense.bias",
    }
    converted = convert_reference_state_dict("albert_act", dict.fromkeys(names, torch.zeros(1)))
    assert list(converted) == list(names.values())
    square = torch.arange(4.0).view(2, 2)
    unchanged = convert_reference_state_dict("albert_act", {"pooler.weight": square})
    turned = convert_reference_state_dict("albert_act", {"pooler.weight": square}, pooler_transpose=True)
    assert torch.equal(unchanged["pooler.weight"], square)
    assert torch.equal(turned["pooler.weight"], square.T)
    with pytest.raises(CheckpointError, match="did you mean 'albert_act'"):
        convert_reference_state_dict("albert_atc", {})
    with pytest.raises(CheckpointError, match="one layer group"):
        convert_reference_state_dict("albert_act", {"encoder.albert_layer_groups.1.albert_layers.0.ffn.bias": square})
    assert convert_reference_config("albert_act", {"hidden_act": "gelu"}).hidden_act == "gelu_new"


# ---- initialisation


@pytest.mark.parametrize(("bias", "depth"), [(0.0, 2), (-6.0, 6), (6.0, 1)])
def test_the_initial_bias_sets_the_initial_depth(bias, depth, tmp_path):
    """Check that the bias is set when the model is built and survives saving."""
    model = AlbertActForPreTraining(make_small_config(halt_bias_init=bias, initializer_range=0.001)).eval()
    unit = model.albert.encoder.albert_layer.act.dense
    assert unit.bias.item() == bias
    batch = make_padded_batch()
    with torch.no_grad():
        assert model(**batch).updates[batch["attention_mask"].bool()].mean().round() == depth
        unit.bias.fill_(0.25)
    model.save_pretrained(tmp_path)
    assert AlbertActModel.from_pretrained(tmp_path).encoder.albert_layer.act.dense.bias.item() == 0.25


# ---- halting


def test_updates_are_zero_at_padding_and_shaped_like_the_input():
    model = AlbertActModel(make_small_config()).eval()
    batch = make_padded_batch()
    outputs = model(**batch)
    padding = batch["attention_mask"] == 0
    assert outputs.updates.shape == outputs.remainders.shape == (3, 12)
    assert not outputs.updates[padding].any()
    assert not outputs.remainders[padding].any()
    assert (outputs.updates[~padding] >= 1).all()
    assert outputs.updates.dtype == outputs.remainders.dtype == outputs.halting_probabilities.dtype == torch.float32
    assert outputs.trace.valid.equal(~padding)
    assert outputs.trace.max_updates == 6


@pytest.mark.parametrize("rule", ["single", "graves", "accumulated", "basic"])
@pytest.mark.parametrize("scope", keep_one_quick(2, ["token", "sequence"]))
@pytest.mark.parametrize("halting_input", keep_one_quick(2, ["block_output", "block_input"]))
def test_batch_order_and_padding_change_nothing(rule, scope, halting_input):
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(state_rule=rule, halting_scope=scope, halting_input=halting_input)).eval()
    spread_depths(model, scale=20.0, bias=-1.0)
    batch = make_padded_batch()
    order = torch.tensor([2, 0, 1])
    wider = {name: nn.functional.pad(value, (0, 5)) for name, value in batch.items()}
    with torch.no_grad():
        plain = model(**batch)
        shuffled = model(**{name: value[order] for name, value in batch.items()})
        padded = model(**wider)
    valid = batch["attention_mask"].bool()
    assert plain.updates[valid].unique().numel() > 1
    assert shuffled.updates.equal(plain.updates[order])
    assert padded.updates[:, :12].equal(plain.updates)
    torch.testing.assert_close(shuffled.last_hidden_state, plain.last_hidden_state[order], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        padded.last_hidden_state[:, :12][valid], plain.last_hidden_state[valid], atol=1e-5, rtol=0
    )
    if scope == "sequence":
        assert all(row[row > 0].unique().numel() == 1 for row in plain.updates)


def test_a_smaller_epsilon_never_reduces_depth():
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config()).eval()
    spread_depths(model, scale=20.0)
    depths = []
    for epsilon in (0.5, 0.2, 0.05, 0.001):
        model.config.act_epsilon = epsilon
        with torch.no_grad():
            depths.append(model(**make_padded_batch(lengths=(1,))).updates[0, 0].item())
    assert depths == sorted(depths)


def test_states_and_attentions_of_every_iteration():
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config()).eval()
    model.set_attn_implementation("eager")
    spread_depths(model)
    batch = make_padded_batch()
    outputs = model(**batch, output_hidden_states=True, output_attentions=True)
    steps = int(outputs.updates.max())
    assert len(outputs.hidden_states) == steps + 1
    assert len(outputs.attentions) == steps
    assert outputs.attentions[0].shape == (3, 4, 12, 12)
    assert torch.equal(outputs.hidden_states[-1], outputs.last_hidden_state)
    assert outputs.halting_probabilities.shape == (3, 12, steps)
    for step in range(steps):
        frozen = outputs.updates <= step
        assert torch.equal(outputs.hidden_states[step][frozen], outputs.hidden_states[step + 1][frozen])


def test_the_training_loop_of_accelerators_gives_the_same():
    """Run all steps to the cap without asking whether a token still runs."""
    torch.manual_seed(0)
    model = AlbertActForPreTraining(make_small_config())
    batch = make_labelled_batch(AlbertActForPreTraining)
    stopping = model(**batch)
    stopping.loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.albert.encoder._may_wait = lambda: False
    full = model(**batch)
    full.loss.backward()
    assert stopping.trace.execution.steps < full.trace.execution.steps == 6
    assert torch.equal(stopping.updates, full.updates)
    assert torch.equal(stopping.loss, full.loss)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_halting_is_float32_in_low_precision(precision):
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config()).eval()
    spread_depths(model)
    batch = make_padded_batch()
    valid = batch["attention_mask"].bool()
    with torch.no_grad():
        exact = model(**batch)
        with torch.autocast("cpu", dtype=precision):
            autocast = model(**batch)
        low = model.to(precision)(**batch)
    for outputs in (autocast, low):
        assert outputs.updates.dtype == outputs.halting_probabilities.dtype == torch.float32
        assert (outputs.updates == exact.updates)[valid].float().mean() > 0.8
        sums = outputs.halting_probabilities.sum(-1)[valid]
        assert ((sums > 0.99) | (outputs.updates[valid] == 6)).all()
    assert low.last_hidden_state.dtype == precision


# ---- losses


def test_pretraining_loss_is_the_sum_of_its_parts():
    torch.manual_seed(0)
    model = AlbertActForPreTraining(make_small_config(act_penalty=0.01)).eval()
    batch = make_labelled_batch(AlbertActForPreTraining)
    outputs = model(**batch)
    unlabelled = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
    has_label = batch["labels"] != -100
    mlm = nn.functional.cross_entropy(unlabelled.prediction_logits[has_label], batch["labels"][has_label])
    sop = nn.functional.cross_entropy(unlabelled.sop_logits[:2], batch["sentence_order_label"][:2])
    ponder = 0.01 * (outputs.updates + outputs.remainders).sum() / 3
    torch.testing.assert_close(outputs.loss_parts["mlm"], mlm)
    torch.testing.assert_close(outputs.loss_parts["sop"], sop)
    torch.testing.assert_close(outputs.loss_parts["ponder"], ponder)
    torch.testing.assert_close(outputs.loss, mlm + sop + ponder)
    assert outputs.prediction_logits.shape == (int(has_label.sum()), 120)
    torch.testing.assert_close(outputs.prediction_logits, unlabelled.prediction_logits[has_label])


def test_penalties_equal_their_reductions():
    torch.manual_seed(0)
    batch = make_padded_batch()
    tokens = batch["attention_mask"].sum()
    by_sequence = AlbertActModel(make_small_config()).eval()
    by_token = AlbertActModel(make_small_config(penalty_reduction="mean_tokens")).eval()
    by_token.load_state_dict(by_sequence.state_dict())
    total = (by_sequence(**batch).updates + by_sequence(**batch).remainders).sum()
    torch.testing.assert_close(by_sequence(**batch).ponder_cost, total / 3)
    torch.testing.assert_close(by_token(**batch).ponder_cost, total / tokens)


@pytest.mark.parametrize("model_class", [cls for cls in HEADS if cls is not AlbertActModel])
def test_heads_honour_the_penalty(model_class):
    torch.manual_seed(0)
    model = model_class(make_small_config(num_labels=3, classifier_dropout_prob=0.0, act_penalty=0.0))
    batch = make_labelled_batch(model_class)
    assert model(**batch).loss_parts["ponder"] == 0
    model.config.act_penalty = 0.01
    outputs = model(**batch)
    torch.testing.assert_close(outputs.loss_parts["ponder"], 0.01 * outputs.ponder_cost)


@pytest.mark.parametrize("model_class", keep_one_quick(3, [cls for cls in HEADS if cls is not AlbertActModel]))
def test_halves_of_a_batch_add_up_to_the_whole(model_class):
    """Check that losses and gradients of micro-batches, normalised by the counts of the whole step, add up."""
    torch.manual_seed(0)
    model = model_class(make_small_config(num_labels=3, act_penalty=0.01)).eval()
    batch = make_labelled_batch(model_class)
    whole = model(**batch)
    counts = model.count_targets(batch)
    default = model(**batch, num_targets=counts)
    torch.testing.assert_close(whole.loss, default.loss)
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(sum(model(**half, num_targets=counts).loss for half in halves), whole.loss)


def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model = AlbertActForPreTraining(make_small_config()).train()
    batch = make_labelled_batch(AlbertActForPreTraining)
    model(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model(**batch).loss.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], atol=1e-7, rtol=1e-6, msg=name)


# ---- compute


def test_macs_equal_a_loop_over_tokens():
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config()).eval()
    spread_depths(model)
    batch = make_padded_batch()
    outputs = model(**batch)
    work = model.price(outputs.trace)
    hidden, inner, entry = 32, 64, 16 * 32
    adaptive = full = 0.0
    for row in range(3):
        depths = [int(n) for n in outputs.updates[row] if n > 0]
        keys = len(depths)
        per_update = 2 * hidden**2 + 2 * keys * hidden + 2 * hidden * inner + hidden
        for n in depths:
            adaptive += n * per_update + min(n + 1, max(depths)) * 2 * hidden**2 + entry
            full += 6 * (per_update + 2 * hidden**2) + entry
    assert work.adaptive.item() == adaptive
    assert work.full.item() == full
    update = 4 * hidden**2 + 2 * 12 * hidden + 2 * hidden * inner + hidden
    assert work.dense.item() == 3 * 12 * (outputs.trace.execution.steps * update + entry)


def test_a_fixed_depth_neither_runs_nor_counts_the_halting_unit():
    model = AlbertActModel(make_small_config(fixed_depth=4, num_hidden_layers=4)).eval()
    calls = []
    model.encoder.albert_layer.act.register_forward_hook(lambda *_: calls.append(1))
    outputs = model(**make_padded_batch())
    assert not calls
    work, hidden, inner, entry = model.price(outputs.trace), 32, 64, 16 * 32
    expected = 0
    for keys in (int((row > 0).sum()) for row in outputs.updates):
        expected += keys * (4 * (4 * hidden**2 + 2 * keys * hidden + 2 * hidden * inner) + entry)
    assert work.adaptive.item() == work.full.item() == expected
    assert work.dense.item() == 3 * 12 * (4 * (4 * hidden**2 + 2 * 12 * hidden + 2 * hidden * inner) + entry)


# ---- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_epsilon": 0.0}, "act_epsilon=0.0 must be above 0 and below 1"),
        ({"act_penalty": -1.0}, "act_penalty=-1.0 must be at least 0"),
        ({"state_rule": "grave"}, "did you mean 'graves'"),
        ({"num_attention_heads": 5}, "num_attention_heads=5"),
        ({"inner_group_num": 2}, "inner_group_num=2"),
    ],
)
def test_invalid_configurations_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_small_config(**changes)


def test_invalid_inputs_are_refused():
    model = AlbertActModel(make_small_config())
    with pytest.raises(ValueError, match="exactly one"):
        model()
    with pytest.raises(ValueError, match="longer than max_position_embeddings=32"):
        model(torch.zeros(1, 33, dtype=torch.long))
    with pytest.raises(ValueError, match=r"attention_mask has shape"):
        model(torch.zeros(1, 4, dtype=torch.long), attention_mask=torch.ones(1, 1, 4, 4))


def test_public_names_exist():
    for name in adadepth.__all__:
        assert getattr(adadepth, name) is not None
    for importer in (importer for family in families().values() for importer in family.heads.values()):
        module, name = get_import_path(importer)
        assert (importer().__module__, importer().__name__) == (module, name)
    assert {*adadepth.models.__all__} <= {*adadepth.__all__}
    with pytest.raises(AttributeError):
        _ = adadepth.nothing
