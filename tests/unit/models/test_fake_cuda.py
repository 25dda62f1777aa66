"""Forward passes and `generate` on a simulated CUDA device: every host read, copy and device mix is in a table.

The backward pass needs a real device: `test_host_reads.py` covers it on the meta device.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fake_cuda_support import FakeCuda, autocast_cuda
from tests.unit.models.every_model_support import BUILD, FURTHER, build_inputs, build_training_batch
from tests.unit.models.routed.routed_support import IDS, ROUTERS, build_routed

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA"),
    pytest.mark.filterwarnings("ignore"),
]
ROUTED = {f"routed {name}": lambda name=name: build_routed(**ROUTERS[name]).float() for name in ROUTERS}
ALL = BUILD | FURTHER | ROUTED
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
# Lines of the package -> the reason for a read from the device, a copy to it, or an operation on two devices. A line
# of the package may stand for the code of transformers that it calls.
EXPLAINED: dict[str, str] = {
    (
        "halting/active_set.py pack: return ActiveSet(mask.flatten().nonzero().squeeze(1), (mask.shape[0], "
        "mask.shape[1]))"
    ): ("packed execution, in evaluation alone: the number of real tokens, once a pass"),
    (
        "halting/active_set.py widest: return max(1, len(self.slots) if self.shape[0] == 1 else int(self.counts.max()))"
    ): ("packed execution: the longest text, once a pass"),
    "models/adalayers/modeling.py _find_active: weights = whole(self.layer_distribution()).tolist()": (
        "evaluation: the layers with a weight, so that those above the last one do not run"
    ),
    "models/albert/modeling.py forward: outputs = self.albert(": (
        "transformers' look whether a mask hides anything, or positions begin anew, once a pass"
    ),
    "models/albert_act/recurrence.py forward: if step > 1 and may_wait and not tokens.halting.running.any():": (
        "evaluation: whether a token still runs, once an update"
    ),
    "models/depth/cache.py update: return self._cache.update(keys, values, self._number, *args, **kwargs)": (
        "a layer of transformers' cache begins with an empty tensor, once a layer"
    ),
    (
        "models/depth/engine.py drop_exited_rows: cohort.keep(part.nonzero().squeeze(1).to(cohort.rows.device, "
        "non_blocking=True))"
    ): ("early exits: the rows that stay, once a step with an exit; the device is idle after the read before it"),
    "models/depth/engine.py drop_exited_rows: stays = torch.cat(exits).logical_not().cpu()": (
        "early exits: which rows exit, once a step; the shape of the next step depends on it"
    ),
    "models/early_exit/word_model.py compute_losses: counted = (targets >= 0).flatten().nonzero().squeeze(1)": (
        "the words with a target, once a pass"
    ),
    "models/looped/heads.py _compute_losses: counted = (targets >= 0).nonzero().squeeze(1)": (
        "the words with a target, once a pass"
    ),
    "models/looped/modeling.py begin: masks = create_masks_for_generate(": (
        "transformers' look whether a mask hides anything, or positions begin anew, once a pass"
    ),
    "models/looped/task_model.py _find_range_of_loops: fewest, most = limits.tolist()": (
        "drawn loops: the most loops of a text, once a step"
    ),
    (
        "models/par_xl/adaptive_softmax.py _rows_of_clusters: yield start, ((ids >= start) & (ids < "
        "stop)).nonzero().squeeze(1)"
    ): ("clusters of words: the words of each, once a cluster"),
    "models/par_xl/attention.py forward: key, value = cache.update(key, value, self.layer)": (
        "a layer of the cache begins with an empty tensor, once a layer"
    ),
    "models/par_xl/modeling.py _compute_target_losses: counted = (words >= 0).nonzero().squeeze(1)": (
        "the words with a target, once a pass"
    ),
    (
        "models/par_xl/modeling.py set_step: self._path = (whole(self.gates).float().cpu() + "
        "noise).argmax(dim=-1).tolist()"
    ): ("a sampled path: the gates, once a step"),
    "models/routed/cache.py append: super().update(keys, values)": (
        "a layer of transformers' cache begins with an empty tensor, once a layer"
    ),
    "models/routed/heads.py compute_task_loss: counted = (targets >= 0).flatten().nonzero().squeeze(1)": (
        "the words with a target, once a pass"
    ),
    "models/shared/albert/block.py build_attention_mask: return create_bidirectional_mask(": (
        "transformers' look whether a mask hides anything, in evaluation alone, once a mask"
    ),
    (
        "models/shared/albert/heads.py predict_words: slots = (labels >= 0).nonzero().squeeze(1)  # waits for "
        "the device, once"
    ): ("the words with a target, once a pass"),
    "models/shared/albert/stepper.py __init__: self._align(active.counts.cpu())": (
        "packed execution: the number of tokens of every text, once a pass; the host plans all steps by it"
    ),
    (
        "models/shared/albert/stepper.py _align: slots = valid.flatten().nonzero().squeeze(1).to(device, "
        "non_blocking=True)"
    ): ("packed execution: the places of the tokens, once a pass and once a step with an exit, after a read"),
    "models/shared/albert/stepper.py _align: valid = valid.to(device, non_blocking=True)": (
        "packed execution: the mask of the tokens, once a pass and once a step with an exit, after a read"
    ),
    "models/shared/albert/stepper.py keep: self._memory = self._memory[rows.to(self.device, non_blocking=True)]": (
        "the sequences that go on, once a step with an exit, after a read"
    ),
    (
        "models/shared/albert/stepper.py keep: self._state = take(self._state, packed.to(self._state.device, "
        "non_blocking=True))"
    ): ("packed execution: the tokens that go on, once a step with an exit, after a read"),
    "models/shared/generation.py <genexpr>: low, high = (int(edge) for edge in ids.aminmax())": (
        "the check of a prompt, once a call of `generate`"
    ),
    "models/shared/generation.py generate: return parent.generate(inputs, generation_config, *args, **kwargs)": (
        "transformers' loop: special tokens to the device once, and whether all texts have ended, once a token"
    ),
    (
        "models/depth/runner.py begin_texts: output = base(**select_accepted_inputs(base, {**inputs, "
        '"use_cache": use_cache}))'
    ): ("transformers' look whether a mask hides anything, or positions begin anew, once a pass"),
    "models/depth/runner.py run_layer: output = layer(states, *arguments, **options)": (
        "a layer of transformers' cache begins with an empty tensor, once a layer"
    ),
    (
        "models/depth/runner.py run_layers: self.skipped = self.skipped.cpu()  # the host reads the "
        "choices of all layers at once"
    ): ("layer dropout: which layers each text skips, once a step"),
    (
        "models/stock_classifier/modeling.py forward: outputs = "
        "super().forward(**{**select_accepted_inputs(encoder, inputs), **requested})"
    ): ("transformers' look whether a mask hides anything, or positions begin anew, once a pass"),
    (
        'runtime/devices.py upload: return (values.pin_memory() if device.type == "cuda" else values).to(device, '
        "non_blocking=True)"
    ): ("numbers drawn or chosen on the host, from pinned memory: the host does not wait"),
}


@pytest.fixture(autouse=True)
def simulate_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make transformers read masks, which it skips for fake tensors, and report the memory of a device."""
    monkeypatch.setattr("transformers.utils.import_utils.is_fake_tensor", lambda _: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))


def run_passes(name: str, mode: FakeCuda, dtype: torch.dtype) -> None:
    """Run a training step without its backward pass, evaluations with and without targets, and `generate`."""
    model = ALL[name]().to("cuda")
    step = {"input_ids": IDS, "labels": IDS} if name in ROUTED else build_training_batch(name)
    inputs = {"input_ids": IDS} if name in ROUTED else build_inputs(name)
    step, inputs = ({key: _to_cuda(value) for key, value in batch.items()} for batch in (step, inputs))
    mode.forget()
    model.set_step(1, 10)
    with autocast_cuda(dtype):
        model.train()(**step)
        with torch.no_grad():
            model.eval()(**step)
            model(**inputs)
            if model.can_generate():
                model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0)


def _to_cuda(value: Any) -> Any:
    return value.to("cuda") if isinstance(value, Tensor) else value


@cache
def find_lines(name: str, dtype: torch.dtype) -> dict[str, str]:
    """Return the lines that read, copy or mix devices, with what they do."""
    torch.manual_seed(0)
    with FakeCuda() as mode:
        run_passes(name, mode, dtype)
    return (
        dict.fromkeys(mode.reads, "reads a number")
        | dict.fromkeys(mode.moves, "copies to the device")
        | dict.fromkeys(mode.mixed, "computes on two devices")
    )


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_every_synchronising_line_is_in_the_table(name: str, dtype: torch.dtype) -> None:
    unexplained = {line: what for line, what in find_lines(name, dtype).items() if line not in EXPLAINED}
    assert not unexplained, "\n".join(f"{line}    {what}" for line, what in unexplained.items())


def test_every_entry_of_the_table_has_its_line() -> None:
    assert not EXPLAINED.keys() - {line for name in ALL for line in find_lines(name, torch.bfloat16)}


def test_synchronising_operations_are_detected_and_computed() -> None:
    torch.manual_seed(0)
    layer, batch = torch.nn.Linear(3, 2), torch.randn(4, 3)
    expected = layer(batch).detach()
    with FakeCuda() as mode, torch.no_grad():
        output = layer.to("cuda")(batch.to("cuda"))
        assert output.device.type == "cuda"
        total = float(output.sum())
        positive = output[output > 0]
        mixed = output + expected
        scores = torch.tensor([1.0, 2.0], device="cuda")
        scores += 1
        values = [output.cpu(), positive.cpu(), mixed.cpu()]
        scores = scores.tolist()
        with autocast_cuda(torch.float16):
            assert layer(batch.to("cuda")).dtype == torch.float16
    assert (total, scores) == (pytest.approx(float(expected.sum())), [2.0, 3.0])
    for value, reference in zip(values, (expected, expected[expected > 0], 2 * expected), strict=True):
        torch.testing.assert_close(value, reference)
    assert [sum(lines.values()) for lines in (mode.reads, mode.moves, mode.mixed)] == [7, 5, 1]
