"""Memory of early exits: one stored state per token, and attention masks of running texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadepth import EarlyExitForSequenceClassification
from adadepth.models.depth.runner import RunningTexts
from adadepth.models.shared import causal
from tests.unit.models.early_exit.early_exit_support import (
    LAYERS,
    LENGTH,
    MASK,
    PADDED,
    WIDTH,
    build_early_exit,
    check_close,
)

TOKENS = int(MASK.sum())


class _LargestTensor(TorchDispatchMode):
    """Mode that records the largest tensor with the width of a state."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        states = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.shape[-1:] == (WIDTH,)]
        self.most = max([self.most, *(state.numel() for state in states if state.dim() == 3)])
        return result


@pytest.mark.parametrize("policy", [None, "frozen", "deferred"])
def test_only_states_at_the_exit_are_stored(policy: str | None) -> None:
    model, largest = build_early_exit(), _LargestTensor()
    options = {} if policy is None else {"cache_policy": policy}
    with torch.no_grad(), largest:
        model(input_ids=PADDED, attention_mask=MASK, exit_rule="margin:0.2", **options)
    assert largest.most <= PADDED.numel() * WIDTH < TOKENS * LAYERS * WIDTH


def test_flex_attention_masks_shrink_with_the_batch() -> None:
    lengths, stays = torch.tensor([3, 7, 5]), torch.tensor([0, 2])
    mask = create_block_mask(lambda b, h, q, k: (k <= q) & (k < lengths[b]), 3, None, LENGTH, LENGTH, device="cpu")
    running = RunningTexts(inputs=[((), {"attention_mask": mask})])  # type: ignore[list-item]
    running.states = torch.randn(3, LENGTH, WIDTH)
    running.keep(stays)
    selected = running.inputs[0].options["attention_mask"]
    whole, part = (
        create_mask(block.mask_mod, rows, 1, LENGTH, LENGTH, "cpu") for block, rows in ((mask, 3), (selected, 2))
    )
    assert selected.shape[0] == 2
    assert torch.equal(part, whole[stays])


@pytest.mark.slow
def test_flex_attention_equals_sdpa() -> None:
    outputs = []
    for attention in ("sdpa", "flex_attention"):
        model = build_early_exit(EarlyExitForSequenceClassification, num_labels=3, hidden_size=64)
        model.set_attn_implementation(attention)
        with torch.no_grad():
            outputs.append(model(input_ids=PADDED, attention_mask=MASK, exit_rule="margin:0.35"))
    assert outputs[0].exit_steps.tolist() == outputs[1].exit_steps.tolist()
    assert len(set(outputs[0].exit_steps.tolist())) > 1, "a text leaves before the others"
    check_close(outputs[1].logits, outputs[0].logits)


def test_a_gpu_computes_more_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert causal.count_rows_at_once(50_000, torch.device("cpu")) == 2**23 // 50_000
    rows = causal.count_rows_at_once(50_000, torch.device("cuda", 0))
    assert rows * 50_000 * 4 <= Properties.total_memory / 64 < (rows + 1) * 50_000 * 4
