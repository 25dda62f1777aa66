"""Behaviour on a GPU only: mixed precision, flash and flexible attention, and whole runs."""

import json

import pytest
import torch

from adadepth import AlbertActForPreTraining, AlbertActModel, ParXLConfig, ParXLSupernet, tasks
from adadepth.models.albert_act.ragged import _REPACK_SAVES
from tests.albert_act_support import make_labelled_batch, prescribe
from tests.configs.support import configured
from tests.gpu.device_support import DEVICE, IS_CUDA, move
from tests.models_support import make_padded_batch, make_small_config, make_small_ponder, spread_depths

pytestmark = pytest.mark.gpu


def test_float32_equals_the_cpu():
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(num_hidden_layers=12)).eval()
    spread_depths(model, bias=-4.0)
    batch = make_padded_batch(lengths=(12, 9, 5, 1))
    with torch.no_grad():
        expected = model(**batch)
        got = model.to(DEVICE)(**move(batch))
    assert got.updates.cpu().equal(expected.updates)
    torch.testing.assert_close(got.last_hidden_state.cpu(), expected.last_hidden_state, atol=1e-4, rtol=0)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
def test_low_precision_halts_in_float32(precision, attention):
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(hidden_size=64)).eval()
    spread_depths(model)
    batch = make_padded_batch()
    valid = batch["attention_mask"].bool()
    with torch.no_grad():
        exact = model(**batch)
        model.to(DEVICE).set_attn_implementation(attention)
        with torch.autocast(DEVICE.type, dtype=precision):
            low = model(**move(batch))
    assert low.updates.dtype == low.halting_probabilities.dtype == torch.float32
    assert (low.updates.cpu() == exact.updates)[valid].float().mean() > 0.8
    sums = low.halting_probabilities.sum(-1).cpu()[valid]
    assert ((sums > 0.99) | (low.updates.cpu()[valid] == 6)).all()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_ragged_equals_dense(precision):
    """Compare with prescribed depths, which cannot differ; half precision uses variable-length attention."""
    batch = make_padded_batch(lengths=(12, 9, 5, 1))
    depths = torch.randint(1, 7, batch["input_ids"].shape, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = AlbertActModel(make_small_config(hidden_size=64, num_attention_heads=2, initializer_range=0.2)).to(DEVICE)
    prescribe(model, depths.to(DEVICE))
    results = []
    for name in ("dense", "ragged"):
        model.config.execution = name
        model.zero_grad()
        with (
            pytest.MonkeyPatch.context() as patch,
            torch.autocast(DEVICE.type, precision, enabled=precision != torch.float32),
        ):
            patch.setitem(_REPACK_SAVES, DEVICE.type, 0)
            outputs = model(**move(batch))
        (outputs.last_hidden_state.float() * torch.linspace(-1, 1, 64, device=DEVICE)).sum().backward()
        results.append((outputs, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    (dense, expected), (ragged, gradient) = results
    assert ragged.trace.execution.computed is not None
    assert ragged.updates.equal(dense.updates)
    atol, share = (1e-4, 1e-4) if precision == torch.float32 else (0.1, 0.05)
    torch.testing.assert_close(ragged.last_hidden_state, dense.last_hidden_state, atol=atol, rtol=0)
    assert (gradient - expected).norm() <= share * expected.norm()


def test_compiled_equals_eager():
    torch.manual_seed(0)
    model = AlbertActForPreTraining(make_small_config()).to(DEVICE).train()
    batch = move(make_labelled_batch(AlbertActForPreTraining))
    eager = model(**batch)
    backend = "inductor" if IS_CUDA else "aot_eager"  # a compiler of C++ takes minutes
    compiled = torch.compile(model, backend=backend)(**batch)
    torch.testing.assert_close(compiled.loss, eager.loss, atol=1e-4, rtol=1e-4)
    assert compiled.updates.equal(eager.updates)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16", "fp32"])
def test_a_run_trains_and_reports(tmp_path, precision):
    if precision == "fp16" and not IS_CUDA:
        pytest.skip("trainer.precision=fp16 needs CUDA")
    config = configured("act_tiny", "debug=default", f"trainer.precision={precision}", f"output_dir={tmp_path}")
    assert tasks.run(config) > 0
    (record,) = tmp_path.glob("act_tiny/*/run.json")
    expected = ("bf16" if IS_CUDA else "fp32") if precision == "auto" else precision
    assert json.loads(record.read_text())["precision"] == expected


@pytest.mark.parametrize("rule", ["quantile:0.5", "sample", "expectation", "patience:2", "confidence:0.6"])
def test_examples_leave_the_batch_as_on_the_cpu(rule):
    model, batch = make_small_ponder(num_labels=3), make_padded_batch((10, 7, 2, 12, 5, 9))

    def evaluate(moved, **options):
        with torch.no_grad():
            return model(**moved, exit_rule=rule, generator=torch.Generator().manual_seed(3), **options)

    expected = evaluate(batch)
    model.to(DEVICE)
    shrunk, full = evaluate(move(batch)), evaluate(move(batch), run_all_steps=True)
    assert shrunk.exit_steps.equal(full.exit_steps)
    assert shrunk.exit_steps.cpu().equal(expected.exit_steps)
    torch.testing.assert_close(shrunk.logits.cpu(), expected.logits, atol=1e-4, rtol=0)


def test_ponder_trains_in_low_precision_with_a_float32_distribution():
    model, batch = make_small_ponder(num_labels=3).to(DEVICE).train(), move(make_padded_batch((10, 7, 2)))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        outputs = model(**batch, labels=torch.tensor([0, 1, 2], device=DEVICE))
    outputs.loss.backward()
    assert outputs.posterior.log_pmf.dtype == outputs.step_logits.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("features", ["cache=true", "precision=bf16", "cache=false"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_adalayers_trains_with_and_without_the_cache(tmp_path, precision, features):
    config = configured(
        "adalayers_tiny", "debug=default", f"trainer.precision={precision}", f"features.{features}",
        "dataset.max_train_examples=64", f"output_dir={tmp_path}/out", f"dataset.cache_dir={tmp_path}/cache",
    )  # fmt: skip
    assert tasks.run(config) >= 0


def test_a_whole_fine_tuning_run(tmp_path):
    config = configured("ponder_tiny", "debug=default", "trainer.precision=bf16", f"output_dir={tmp_path}")
    assert tasks.run(config) >= 0


@pytest.mark.parametrize("path", ["soft", "sampled"])
def test_a_supernet_trains_in_bfloat16_with_memory(path):
    torch.manual_seed(0)
    model = ParXLSupernet(ParXLConfig(vocab_size=500, cutoffs=[50, 200], gate_path=path, hidden_dropout_prob=0.0))
    model.set_step(0, 10)
    ids = torch.randint(500, (4, 33))
    with torch.no_grad():
        start = model(ids[:, :16]).memory[:, :, -15:]
        expected = model(ids[:, 16:-1], memory=start, targets=ids[:, 17:])
    model.to(DEVICE).train()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        outputs = model(ids[:, 16:-1].to(DEVICE), memory=start.to(DEVICE), targets=ids[:, 17:].to(DEVICE), gates="soft")
        trained = model(ids[:, 16:-1].to(DEVICE), memory=start.to(DEVICE), targets=ids[:, 17:].to(DEVICE))
    trained.loss.backward()
    assert outputs.loss.item() == pytest.approx(expected.loss.item(), rel=0.02)
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
    assert model.gates.grad.abs().sum() > 0


def test_a_search_runs_its_four_stages(tmp_path):
    tasks.run(configured("par_tiny", "debug=default", f"output_dir={tmp_path}", "trainer.precision=bf16"))
    (directory,) = tmp_path.glob("par_tiny/*")
    rows = json.loads((directory / "architectures.json").read_text())["rows"]
    assert len(rows) == 6
