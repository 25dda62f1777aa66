"""Ragged execution of ACT-ALBERT: when it is used, with which kernel, and that it changes no output."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth import AlbertActForPreTraining, AlbertActForSequenceClassification, AlbertActModel
from adadepth.errors import ConfigError
from adadepth.models.albert_act import modeling, ragged
from adadepth.models.albert_act.modeling import ragged_kernel
from adadepth.models.albert_act.ragged import compute_repacking_threshold
from adadepth.models.shared.albert import packed_attention
from tests.albert_act_support import HEADS, make_labelled_batch
from tests.marks_support import keep_one_quick
from tests.models_support import make_padded_batch, make_small_config, spread_depths

CPU = torch.device("cpu")


def build_small_model(model_class=AlbertActModel, **changes):
    """Build a model whose tokens halt after different numbers of updates."""
    torch.manual_seed(0)
    model = model_class(make_small_config(**({"initializer_range": 0.2} | changes)))
    spread_depths(model, scale=3.0)
    return model


def run_dense_and_ragged(model, batch, **options):
    outputs = []
    for name in ("dense", "ragged"):
        model.config.execution = name
        outputs.append(model(**batch, **options))
    return outputs


@pytest.mark.parametrize("model_class", keep_one_quick(3, [head for head in HEADS if head is not AlbertActModel]))
def test_every_head_has_the_same_loss_and_gradients(model_class):
    model = build_small_model(model_class, act_penalty=0.1, num_labels=3).eval()
    batch = make_labelled_batch(model_class)
    results = []
    for name in ("dense", "ragged"):
        model.config.execution = name
        model.zero_grad()
        outputs = model(**batch)
        outputs.loss.backward()
        results.append((outputs, {name: weight.grad for name, weight in model.named_parameters()}))
    (dense, expected), (packed, gradients) = results
    assert len(packed.updates.unique()) > 3, "the case must exercise several depths"
    assert packed.trace.execution.computed is not None
    for name, part in dense.loss_parts.items():
        torch.testing.assert_close(packed.loss_parts[name], part, atol=1e-6, rtol=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_an_iteration_computes_running_queries_and_changed_keys():
    """Count queries of running tokens, keys of those that ran before and have changed, and no padding."""
    model, batch = build_small_model().eval(), make_padded_batch()
    model.config.execution = "ragged"
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setitem(ragged._REPACK_SAVES, "cpu", 0)
        trace = model(**batch).trace
    ran = [int((trace.updates > step).sum()) for step in range(trace.execution.steps)]
    widest = [int((trace.updates > step).sum(dim=1).max()) for step in range(trace.execution.steps)]
    assert trace.execution.computed.queries.tolist() == ran
    assert trace.execution.computed.keys.tolist() == ran[:1] + ran[:-1]
    assert trace.execution.computed.pairs.tolist() == [3 * width * 12 for width in widest]
    assert ran[0] == 18 > ran[-1] > 0
    work = model.price(trace)
    assert work.adaptive < work.executed < work.dense


def test_requested_attentions_run_dense():
    """Compare outputs with requested hidden states and attention maps; the maps need dense execution."""
    model, batch = build_small_model().eval(), make_padded_batch()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        dense, ragged = run_dense_and_ragged(model, batch, output_hidden_states=True, output_attentions=True)
        packed = model(**batch, output_hidden_states=True)
    assert ragged.trace.execution.computed is None
    assert packed.trace.execution.computed is not None
    assert all(one.equal(other) for one, other in zip(ragged.attentions, dense.attentions, strict=True))
    for one, other in zip(packed.hidden_states, dense.hidden_states, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_gradient_checkpointing_changes_nothing():
    model, batch = build_small_model().train(), make_padded_batch()
    model.config.execution = "ragged"
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(**batch).last_hidden_state.square().cumsum(dim=-1).sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
        model.gradient_checkpointing_enable({"use_reentrant": False})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(gradient.equal(gradients[1][name]) for name, gradient in gradients[0].items())


def test_empty_rows_and_immediate_halting_are_supported():
    model, batch = build_small_model().eval(), make_padded_batch()
    with torch.no_grad():
        for rows in (1, [0, 1, 2]):
            empty = batch | {"attention_mask": batch["attention_mask"].index_fill(0, torch.tensor(rows), 0)}
            dense, packed = run_dense_and_ragged(model, empty)
            assert packed.updates.equal(dense.updates)
            torch.testing.assert_close(packed.last_hidden_state, dense.last_hidden_state, atol=1e-5, rtol=0)
        model.encoder.albert_layer.act.dense.bias.fill_(50.0)
        assert run_dense_and_ragged(model, batch)[1].trace.execution.steps == 1


# ---- choice of the execution


def test_a_rule_that_changes_halted_states_is_refused_or_run_dense():
    with pytest.raises(ConfigError, match="needs state_rule single or graves: the halted states of 'basic'"):
        make_small_config(execution="ragged", state_rule="basic")
    config = make_small_config(state_rule="accumulated")
    assert ragged_kernel(config, 10**9, CPU, torch.float32, training=False) is None
    config.execution = "ragged"
    with pytest.raises(ConfigError, match="'accumulated' keep changing"):
        ragged_kernel(config, 10**9, CPU, torch.float32, training=False)


@pytest.mark.slow
def test_attention_without_packed_queries_is_dense_or_refused():
    model = build_small_model()
    model.set_attn_implementation("flex_attention")
    assert ragged_kernel(model.config, 10**9, CPU, torch.float32, training=False) is None
    model.config.execution = "ragged"
    with (
        torch.compiler.set_stance("force_eager"),  # the mask is built before
        pytest.raises(ConfigError, match=r"needs attn_implementation eager, sdpa or flash.*'flex_attention'"),
    ):
        model(**make_padded_batch())


def test_auto_packs_batches_with_a_speed_up():
    config = build_small_model().config
    assert ragged_kernel(config, 10, CPU, torch.float32, training=False) is None
    assert ragged_kernel(config, 10**5, CPU, torch.float32, training=False) == "padded"
    accelerator = torch.device("cuda")
    assert ragged_kernel(config, 10**9, accelerator, torch.float32, training=False) is None, "not measured"
    config.execution = "ragged"
    assert ragged_kernel(config, 10, accelerator, torch.float32, training=False) == "padded"
    assert 1 < compute_repacking_threshold(config, CPU) <= 10**4
    assert compute_repacking_threshold(config, accelerator) > 10**4


@pytest.mark.parametrize(
    ("attention", "device", "dtype", "dropout", "kernel"),
    [
        ("sdpa", "cpu", torch.bfloat16, 0.0, "padded"),
        ("sdpa", "cuda", torch.bfloat16, 0.0, "varlen"),
        ("sdpa", "cuda", torch.float16, 0.0, "varlen"),
        ("sdpa", "cuda", torch.float32, 0.0, "padded"),
        ("sdpa", "cuda", torch.bfloat16, 0.1, "padded"),
        ("eager", "cuda", torch.bfloat16, 0.0, "padded"),
        ("flash_attention_2", "cuda", torch.bfloat16, 0.1, "flash"),
        ("flex_attention", "cuda", torch.bfloat16, 0.0, None),
    ],
)
def test_kernels_follow_device_and_precision(attention, device, dtype, dropout, kernel):
    config = make_small_config(attention_probs_dropout_prob=dropout)
    config._attn_implementation = attention
    assert packed_attention.choose_kernel(config, torch.device(device), dtype, training=True) == kernel


def test_the_kernel_follows_the_precision_of_autocast(monkeypatch):
    config = make_small_config()
    config._attn_implementation = "sdpa"
    assert packed_attention.choose_kernel(config, torch.device("cuda"), torch.float32, training=True) == "padded"
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert packed_attention.choose_kernel(config, torch.device("cuda"), torch.float32, training=True) == "varlen"


# ---- kernels of accelerators, replaced by loops over rows


def attend_by_row(query, keys, values, starts, visible, longest_query, longest_key, *, scale):
    """Compute variable-length attention row by row: (P, A, D), (M, A, D), (M, A, D)."""
    assert starts.dtype == visible.dtype == torch.int32
    outputs = []
    for row in range(len(starts) - 1):
        asking, seen = slice(starts[row], starts[row + 1]), slice(visible[row], visible[row + 1])
        assert query[asking].shape[0] <= longest_query
        assert keys[seen].shape[0] <= longest_key
        scores = torch.einsum("pad,mad->apm", query[asking], keys[seen]) * scale
        outputs.append(torch.einsum("apm,mad->pad", scores.softmax(dim=-1), values[seen]))
    return torch.cat(outputs)


def attend_like_flash(module, query, key, value, attention_mask, scaling, dropout=0.0, **options):
    """Compute attention with the shapes of the interface: (1, A, P, D) in, (1, P, A, D) out, row bounds by name."""
    assert attention_mask is None
    packed = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    bounds = (options[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"))
    return attend_by_row(*packed, *bounds, scale=scaling).unsqueeze(0), None


def use_kernel(kernel, patch):
    """Make models use the kernel of an accelerator, computed by a plain loop over rows."""
    patch.setattr("torch.nn.attention.varlen.varlen_attn", attend_by_row)
    patch.setattr(ALL_ATTENTION_FUNCTIONS, "get_interface", lambda name, default: attend_like_flash)
    patch.setattr(modeling, "choose_kernel", lambda *args, **kwargs: kernel)


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
def test_kernels_of_accelerators_get_the_right_rows(kernel, monkeypatch):
    monkeypatch.setitem(ragged._REPACK_SAVES, "cpu", 0)
    model, batch = build_small_model(), make_padded_batch()
    batch["attention_mask"][0, 3] = 0  # a gap, so that slots and packed positions differ
    model.config.execution = "dense"
    dense = model(**batch)
    use_kernel(kernel, monkeypatch)
    model.config.execution = "ragged"
    outputs = model(**batch)
    assert outputs.updates.equal(dense.updates)
    torch.testing.assert_close(outputs.last_hidden_state, dense.last_hidden_state, atol=1e-5, rtol=0)
    real, running = batch["attention_mask"].sum(dim=1), outputs.trace.updates
    pairs = [int(((running > step).sum(dim=1) * real).sum()) for step in range(outputs.trace.execution.steps)]
    assert outputs.trace.execution.computed.pairs.tolist() == pairs, "no padding"
    outputs.last_hidden_state.sum().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "pooler" not in name)


# ---- state after a pass


def test_the_execution_is_saved_and_older_checkpoints_are_auto(tmp_path):
    model = build_small_model(AlbertActForSequenceClassification)
    assert model.config.execution == "auto"
    model.config.execution = "dense"
    model.save_pretrained(tmp_path)
    assert AlbertActForSequenceClassification.from_pretrained(tmp_path).config.execution == "dense"


def test_inference_keeps_no_state_of_the_last_batch():
    """Check that keys and values, updated in place without gradients, stay within one pass."""
    model, batch = build_small_model().eval(), make_padded_batch()
    model.config.execution = "ragged"
    with torch.inference_mode():
        first = model(**batch).last_hidden_state
        model(**make_padded_batch(seed=1))
        assert model(**batch).last_hidden_state.equal(first)


def test_dropout_is_drawn_for_running_tokens():
    model, batch = (
        build_small_model(AlbertActForPreTraining, hidden_dropout_prob=0.1),
        make_labelled_batch(AlbertActForPreTraining),
    )
    model.train().config.execution = "ragged"
    torch.manual_seed(1)
    one = model(**batch).loss
    torch.manual_seed(1)
    assert model(**batch).loss.equal(one)
    assert not model(**batch).loss.equal(one)
