"""What only a GPU can show: mixed precision, flash and flexible attention, no waiting in the training step, one run."""

import json

import pytest
import torch

from adadepth import AlbertActForPreTraining, AlbertActModel, tasks
from tests.configs.support import configured
from tests.models_support import padded_batch, small_config, spread_depths
from tests.unit.models.test_albert_act import labelled_batch

pytestmark = pytest.mark.gpu


def on_gpu(batch):
    return {name: value.cuda() for name, value in batch.items()}


def test_float32_equals_the_cpu():
    torch.manual_seed(0)
    model = AlbertActModel(small_config(num_hidden_layers=12)).eval()
    spread_depths(model, bias=-4.0)
    batch = padded_batch(lengths=(12, 9, 5, 1))
    with torch.no_grad():
        expected = model(**batch)
        got = model.cuda()(**on_gpu(batch))
    assert got.updates.cpu().equal(expected.updates)
    torch.testing.assert_close(got.last_hidden_state.cpu(), expected.last_hidden_state, atol=1e-4, rtol=0)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
def test_low_precision_halts_in_float32(precision, attention):
    torch.manual_seed(0)
    model = AlbertActModel(small_config(hidden_size=64)).eval()
    spread_depths(model)
    batch = padded_batch()
    valid = batch["attention_mask"].bool()
    with torch.no_grad():
        exact = model(**batch)
        model.cuda().set_attn_implementation(attention)
        with torch.autocast("cuda", dtype=precision):
            low = model(**on_gpu(batch))
    assert low.updates.dtype == low.halting_probabilities.dtype == torch.float32
    assert (low.updates.cpu() == exact.updates)[valid].float().mean() > 0.8
    sums = low.halting_probabilities.sum(-1).cpu()[valid]
    assert ((sums > 0.99) | (low.updates.cpu()[valid] == 6)).all()


def test_the_encoder_never_waits_for_the_device_in_training():
    model = AlbertActModel(small_config(), add_pooling_layer=False).cuda().train()
    batch = on_gpu({name: value[:1, :10] for name, value in padded_batch().items()})
    model(**batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        embedded = model.embeddings(batch["input_ids"], batch["token_type_ids"])
        state, halting, _ = model.encoder(embedded, None, batch["attention_mask"].bool())
        (state.sum() + halting.remainders.sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_equals_eager():
    torch.manual_seed(0)
    model = AlbertActForPreTraining(small_config()).cuda().train()
    batch = on_gpu(labelled_batch(AlbertActForPreTraining))
    eager = model(**batch)
    compiled = torch.compile(model)(**batch)
    torch.testing.assert_close(compiled.loss, eager.loss, atol=1e-4, rtol=1e-4)
    assert compiled.updates.equal(eager.updates)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16", "fp32"])
def test_a_whole_run(tmp_path, precision):
    config = configured("act_tiny", "debug=default", f"trainer.precision={precision}", f"output_dir={tmp_path}")
    assert tasks.run(config) > 0
    (record,) = tmp_path.glob("act_tiny/*/run.json")
    expected = "bf16" if precision == "auto" else precision
    assert json.loads(record.read_text())["precision"] == expected
