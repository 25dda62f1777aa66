"""Folders written by the published TRM and HRM code, loaded by name: results of its own forward passes.

`ADADEPTH_TRM=FOLDER pytest tests/parity/test_trm_reference.py` compares with a checkout of
SamsungSAILMontreal/TinyRecursiveModels (e7b6871), which contains HRM too, and `ADADEPTH_HRM=FOLDER` with one of
sapientinc/HRM (42410da). The published modules run as they are, in float32. Two packages that they import are replaced
where they are missing: `einops`, of which they use one transposition, and `flash_attn`, by torch's attention.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from adadepth import TrmForPuzzles
from tests.marks_support import keep_one_quick
from tests.unit.models.trm_published_support import SUDOKU, build_published_arch

_FOLDERS = {"trm": os.environ.get("ADADEPTH_TRM"), "hrm": os.environ.get("ADADEPTH_HRM")}
_CLASSES = {
    "trm": ("trm", "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1"),
    "hrm_of_trm": ("trm", "recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1"),
    "hrm": ("hrm", "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1"),
}
STEPS = (1, 2, 5)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute attention with the layout of `flash_attn`, (B, S, heads, width)."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


@contextmanager
def _make_importable(folder: str) -> Iterator[None]:
    """Make `models.*` of a checkout importable within the `with` block, and remove it afterwards."""
    attention: Any = ModuleType("flash_attn_interface")
    attention.flash_attn_func = _attend
    einops: Any = ModuleType("einops")
    einops.rearrange = lambda tensor, pattern: tensor.transpose(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setitem(sys.modules, "flash_attn_interface", attention)
        if find_spec("einops") is None:
            patch.setitem(sys.modules, "einops", einops)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
                del sys.modules[name]


def build_published(kind: str, arch: dict[str, Any], sizes: dict[str, Any]) -> Any:
    """Build a published model with random weights, also where its initial weights are zero."""
    checkout, name = _CLASSES[kind]
    if (folder := _FOLDERS[checkout]) is None:
        pytest.skip(f"ADADEPTH_{checkout.upper()} names no checkout")
    module, _, class_name = name.partition("@")
    with _make_importable(folder):
        torch.manual_seed(0)
        model = getattr(importlib.import_module(f"models.{module}"), class_name)({**arch, **sizes}).eval()
    with torch.no_grad():
        model.inner.q_head.weight.normal_()
        model.inner.puzzle_emb.weights.normal_()
        for name, weight in model.named_parameters():
            # A random mixer of positions is chaotic: in five published steps, a change of 1e-7 grows to 0.03.
            if arch.get("mlp_t") and "down_proj" in name:
                weight.mul_(0.25)
    return model


def run_published(model: Any, cells: Tensor, kinds: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the logits, (B, N, L, V), and the halting logits, (B, N), of the published forward pass."""
    batch = {"inputs": cells, "puzzle_identifiers": kinds, "labels": cells}
    carry, logits, halting = model.initial_carry(batch), [], []
    with torch.no_grad():
        for _ in range(steps):
            carry, outputs = model(carry, batch)
            logits.append(outputs["logits"])
            halting.append(outputs["q_halt_logits"])
    return torch.stack(logits, dim=1), torch.stack(halting, dim=1)


@pytest.mark.parametrize("steps", keep_one_quick(2, STEPS))
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("trm", {}),
        ("trm", {"mlp_t": True, "pos_encodings": "none"}),
        ("trm", {"pos_encodings": "learned", "puzzle_emb_len": 3, "H_cycles": 3, "L_cycles": 4}),
        ("trm", {"H_cycles": 1, "L_cycles": 1, "L_layers": 3, "puzzle_emb_len": 0}),
        ("hrm_of_trm", {}),
        ("hrm_of_trm", {"H_cycles": 3, "L_cycles": 1, "H_layers": 1, "L_layers": 3}),
        ("hrm", {}),
        ("hrm", {"pos_encodings": "learned", "H_cycles": 1, "L_cycles": 3}),
    ],
)
def test_a_published_folder_gives_the_published_numbers(
    tmp_path: Path, kind: str, changes: dict[str, Any], steps: int
) -> None:
    arch = build_published_arch("trm" if kind == "trm" else "hrm", **changes, halt_max_steps=steps)
    sizes = {"batch_size": 4, "vocab_size": 11, "seq_len": 81, "num_puzzle_identifiers": 3}
    model = build_published(kind, arch, sizes)
    torch.save(
        {f"_orig_mod.model.{name}": weight for name, weight in model.state_dict().items()}, tmp_path / f"step_{steps}"
    )
    stored = {"arch": {**arch, "name": _CLASSES[kind][1]}, "data_paths": [SUDOKU], "epochs": 50000}
    (tmp_path / "all_config.yaml").write_text(yaml.dump(stored))

    ours = TrmForPuzzles.from_pretrained(tmp_path).eval()
    generator = torch.Generator().manual_seed(1)
    cells, kinds = torch.randint(1, 11, (4, 81), generator=generator), torch.tensor([0, 2, 1, 0])
    with torch.no_grad():
        outputs = ours(input_ids=cells, puzzle_kinds=kinds, run_all_steps=True)
    logits, halting = run_published(model, cells, kinds, steps)
    assert outputs.step_logits.shape == logits.shape
    assert float(logits.std()) > 0.1, "the comparison has something to compare"
    torch.testing.assert_close(outputs.step_logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.halting_logits, halting, atol=1e-5, rtol=1e-5)
    assert outputs.exit_steps.tolist() == [steps] * 4, "as the published evaluation, which never halts"
