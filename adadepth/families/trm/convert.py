"""Reading the checkpoints of the published code of tiny recursive models."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from adadepth.errors import CheckpointError, nearest

# What the published training script puts before every name.
_WRAPPERS = ("_orig_mod.", "model.", "inner.")
# Published name, or how names begin -> what is there instead of it here.
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
    """The published code calls the answer z_H and the reasoning z_L; the one network is its `L_level`."""
    return {_renamed(name): weight for name, weight in state_dict.items()}


def _renamed(name: str) -> str:
    own = name
    for wrapper in _WRAPPERS:
        own = own.removeprefix(wrapper)
    for published, ours in _NAMES.items():
        if own.startswith(published):
            return ours + own.removeprefix(published)
    raise CheckpointError(f"{name}: not a parameter of the published model{nearest(own, _NAMES)}")
