"""Conversion of checkpoints of the published TRM code."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from adadepth.errors import CheckpointError, nearest

# Prefixes that the published training script adds to every name.
_WRAPPERS = ("_orig_mod.", "model.", "inner.")
# Published name or prefix -> name or prefix here.
_NAMES = {
    "embed_tokens.embedding_weight": "embed_tokens.weight",
    "embed_pos.embedding_weight": "embed_positions.weight",
    "puzzle_emb.weights": "prefix.weight",
    "H_init": "answer_init",
    "L_init": "reasoning_init",
    "L_level.layers.": "network.layers.",
    "lm_head.": "lm_head.",
    "q_head.": "q_head.",
}


def rename_weights(state_dict: Mapping[str, Tensor], pooler_transpose: bool = False) -> dict[str, Tensor]:
    """Rename the weights of a published TRM checkpoint as in this package.

    The published code calls the answer z_H, the reasoning z_L and the network `L_level`.
    """
    return {_rename(name): weight for name, weight in state_dict.items()}


def _rename(name: str) -> str:
    bare = name
    for wrapper in _WRAPPERS:
        bare = bare.removeprefix(wrapper)
    for published, ours in _NAMES.items():
        if bare.startswith(published):
            return ours + bare.removeprefix(published)
    raise CheckpointError(f"{name}: not a parameter of the published model{nearest(bare, _NAMES)}")
