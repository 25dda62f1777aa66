"""Small folders in the format of the published TRM and HRM training code, from a restatement of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

SUDOKU, MAZE = "data/sudoku-extreme-1k-aug-1000", "data/maze-30x30-hard-1k"
WIDTH, INNER, SYMBOLS, CELLS = 32, 256, 11, 81
PREFIX = "_orig_mod.model.inner."
ARCH = {
    "name": "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1",
    "loss": {"name": "losses@ACTLossHead", "loss_type": "stablemax_cross_entropy"},
    "halt_exploration_prob": 0.1, "halt_max_steps": 4, "H_cycles": 2, "L_cycles": 3, "H_layers": 0, "L_layers": 2,
    "hidden_size": WIDTH, "num_heads": 4, "expansion": 4, "puzzle_emb_ndim": WIDTH, "pos_encodings": "rope",
    "forward_dtype": "float32", "mlp_t": False, "puzzle_emb_len": 16, "no_ACT_continue": True,
}  # fmt: skip


def build_published_arch(kind: str, **changes: Any) -> dict[str, Any]:
    """Build the settings `arch` of a small TRM or HRM; HRM lacks those that TRM added."""
    if kind == "trm":
        return ARCH | changes
    arch = {name: value for name, value in ARCH.items() if name not in ("mlp_t", "puzzle_emb_len", "no_ACT_continue")}
    return arch | {"name": "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1", "H_layers": 2, "L_cycles": 2} | changes


def draw_published_weights(
    arch: dict[str, Any], cells: int = CELLS, symbols: int = SYMBOLS, seed: int = 0
) -> dict[str, Tensor]:
    """Draw random weights by the names of the published code, without its prefixes."""
    width, prefix = arch["hidden_size"], arch.get("puzzle_emb_len", 1) or 1
    shapes: dict[str, tuple[int, ...]] = {
        "H_init": (width,), "L_init": (width,), "embed_tokens.embedding_weight": (symbols, width),
        "lm_head.weight": (symbols, width), "q_head.weight": (2, width), "q_head.bias": (2,),
        "puzzle_emb.weights": (1, width),
    }  # fmt: skip
    if arch["pos_encodings"] == "learned":
        shapes["embed_pos.embedding_weight"] = (prefix + cells, width)
    for level, layers in (("H_level", arch["H_layers"]), ("L_level", arch["L_layers"])):
        for number in range(layers):
            layer = f"{level}.layers.{number}."
            if arch.get("mlp_t"):
                shapes |= _feed_forward(f"{layer}mlp_t.", prefix + cells)
            else:
                shapes |= {f"{layer}self_attn.qkv_proj.weight": (3 * width, width)}
                shapes |= {f"{layer}self_attn.o_proj.weight": (width, width)}
            shapes |= _feed_forward(f"{layer}mlp.", width)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    for name in ("H_init", "L_init"):  # in the dtype of the published code
        weights[name] = weights[name].bfloat16()
    return weights


def _feed_forward(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}gate_up_proj.weight": (2 * INNER, width), f"{name}down_proj.weight": (width, INNER)}


def write_published(
    folder: Path,
    kind: str = "trm",
    file: str = "step_100",
    data: str = SUDOKU,
    content: Any = None,
    **changes: Any,
) -> Path:
    """Write a folder as published; `content` replaces that of the weight file."""
    folder.mkdir(parents=True, exist_ok=True)
    arch = build_published_arch(kind, **changes)
    stored = {"arch": arch, "data_paths" if kind == "trm" else "data_path": [data] if kind == "trm" else data,
              "global_batch_size": 768, "epochs": 50000, "ema": kind == "trm"}  # fmt: skip
    (folder / "all_config.yaml").write_text(yaml.dump(stored))
    if content is None:
        content = {f"{PREFIX}{name}": weight for name, weight in draw_published_weights(arch).items()}
    torch.save(content, folder / file)
    return folder


# ---- the forward pass of the published code, in float64


def _norm(states: Tensor, dim: int = -1) -> Tensor:
    return states / (states.square().mean(dim=dim, keepdim=True) + 1e-5).sqrt()


def _apply_swiglu(states: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    gate, up = (states @ weights[f"{name}.gate_up_proj.weight"].T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ weights[f"{name}.down_proj.weight"].T


def _attend(arch: dict[str, Any], states: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    rows, length, width = states.shape
    qkv = (states @ weights[f"{name}.qkv_proj.weight"].T).view(rows, length, 3, arch["num_heads"], -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    if arch["pos_encodings"] == "rope":
        half = query.shape[-1] // 2
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
        pairs = [torch.complex(part[..., :half], part[..., half:]) * turn for part in (query, key)]
        query, key = (torch.cat([pair.real, pair.imag], dim=-1) for pair in pairs)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    heads = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(rows, length, width)
    return heads @ weights[f"{name}.o_proj.weight"].T


def _run_level(arch: dict[str, Any], states: Tensor, weights: dict[str, Tensor], level: str) -> Tensor:
    for number in range(arch[f"{level[0]}_layers"]):
        layer = f"{level}.layers.{number}"
        if arch.get("mlp_t"):
            states = _norm(states + _apply_swiglu(states.mT, weights, f"{layer}.mlp_t").mT, dim=1)
        else:
            states = _norm(states + _attend(arch, states, weights, f"{layer}.self_attn"))
        states = _norm(states + _apply_swiglu(states, weights, f"{layer}.mlp"))
    return states


def run_plain(arch: dict[str, Any], published: dict[str, Tensor], cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, (B, N, L, V), and the halting logits, (B, N), after every supervision step."""
    weights = {name: weight.double() for name, weight in published.items()}
    prefix, width = arch.get("puzzle_emb_len", 1) or 1, arch["hidden_size"]
    registers = torch.zeros(len(cells), prefix, width, dtype=torch.float64)
    registers[:, 0] = weights["puzzle_emb.weights"][0]
    inputs = torch.cat([registers, weights["embed_tokens.embedding_weight"][cells]], dim=1)
    if arch["pos_encodings"] == "learned":
        inputs = (inputs + weights["embed_pos.embedding_weight"]) / 2**0.5
    inputs = inputs * width**0.5
    answer, reasoning = weights["H_init"].expand_as(inputs), weights["L_init"].expand_as(inputs)
    high = "H_level" if arch["H_layers"] else "L_level"
    logits, halting = [], []
    for _ in range(arch["halt_max_steps"]):
        for _ in range(arch["H_cycles"]):
            for _ in range(arch["L_cycles"]):
                reasoning = _run_level(arch, reasoning + answer + inputs, weights, "L_level")
            answer = _run_level(arch, answer + reasoning, weights, high)
        logits.append(answer[:, prefix:] @ weights["lm_head.weight"].T)
        halting.append(answer[:, 0] @ weights["q_head.weight"][0] + weights["q_head.bias"][0])
    return torch.stack(logits, dim=1), torch.stack(halting, dim=1)
