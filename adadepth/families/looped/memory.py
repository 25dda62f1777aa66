"""What a forward pass of a looped model keeps for the backward pass, at the least.

D is the width, F the inner width of a layer, h and h_kv the heads of queries and keys, d_h their width. The numbers of
a token in a layer were fitted to what autograd keeps in float32, see docs/looped.md; it also keeps a few of each token
and, of packed documents, a mask of T, which are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_STATES = {"pre": 11, "branch": 15, "sandwich": 11}  # of width D or the heads' in a layer of ours, of a token
_STOCK = 7  # the same of layers of another decoder: its residual and normed states, and those of attention


def kept_numbers(config: Any, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
    """Numbers by part; see `DepthModel.least_activations`.

    With drawn loops a text may have one only. Of loops that are made again the states before them are kept.

    Args:
        config: A `LoopedConfig`.
        lengths: Tokens of every row.
        recomputed: Whether loops are made again in the backward pass, one at a time.
    """
    tokens, most = sum(lengths), config.backprop_loops or config.num_loops
    loops = 1 if config.train_loops == "drawn" else min(config.num_loops, most)
    read = 1 if config.objective == "last" else loops
    reached = config.backprop_loops is None or config.injection != "none"  # by gradients: the layers before the loop
    prelude = config.prelude if reached else 0
    layers = config.core if recomputed else config.core * loops + config.coda * read + prelude
    stock = config.base_config is not None
    states, inner = (_STOCK, 2) if stock else (_STATES[config.norms], 4)
    queries, keys = (heads * config.width_of_head for heads in (config.num_attention_heads, config.key_value_heads))
    of_layer = (states - 4) * config.hidden_size + 2 * min(queries, config.hidden_size) + 2 * keys
    found = {
        "states": tokens * (layers * of_layer + ((loops - 1) * config.hidden_size if recomputed else 0)),
        "feed-forward": tokens * layers * inner * config.intermediate_size,
    }
    if config._attn_implementation == "eager":
        found["attention"] = layers * config.num_attention_heads * sum(length**2 for length in lengths)
    return found
