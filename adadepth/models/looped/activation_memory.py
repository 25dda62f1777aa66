"""Lower bound on the activation memory that training a looped model needs for the backward pass.

D is the width, F the inner width of a layer, h and h_kv the number of heads of queries and keys, and d_h their width.
The number of values per token and layer was fitted to what autograd stores in float32; see docs/looped.md. Three
smaller parts are not counted: a few values per token, a mask of T values per token of packed documents, and the gates
of attention. Low-level cycles without gradients store nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# States of width D, or of the heads' width, that a layer stores of a token, by where its norms are.
_STATES = {"pre": 11, "branch": 15, "sandwich": 11}
_HF_STATES = 7  # the same of a layer of another decoder: residual and normed states, and those of attention


def count_stored_numbers(config: Any, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
    """Return a lower bound on the number of activation values stored for the backward pass, by part of the model.

    If the number of loops is drawn, one loop is counted, because a text may have only one. For recomputed loops, only
    the states before each loop are counted.

    Args:
        config: Configuration of the model, a `LoopedConfig`.
        lengths: Number of tokens of every row.
        recomputed: Whether the backward pass recomputes loops, one at a time.
    """
    tokens, most = sum(lengths), config.backprop_loops or config.num_loops
    loops = 1 if config.train_loops == "drawn" else min(config.num_loops, most)
    read = 1 if config.objective == "last" else loops
    trains_prelude = config.backprop_loops is None or config.injection != "none"
    prelude = config.prelude if trains_prelude else 0
    cycles = config.low_gradient_cycles(config.num_loops)[-loops:] if config.low_layers else [0] * loops
    core = [config.core + config.low_layers * count for count in cycles]
    layers = min(core) if recomputed else sum(core) + config.coda * read + prelude
    states, inner = (_STATES[config.norms], 4) if config.base_config is None else (_HF_STATES, 2)
    queries, keys = (heads * config.width_of_head for heads in (config.num_attention_heads, config.key_value_heads))
    layer_states = (states - 4) * config.hidden_size + 2 * min(queries, config.hidden_size) + 2 * keys
    numbers = {
        "states": tokens * (layers * layer_states + ((loops - 1) * config.hidden_size if recomputed else 0)),
        "feed-forward": tokens * layers * inner * config.intermediate_size,
    }
    if config._attn_implementation == "eager":
        numbers["attention"] = layers * config.num_attention_heads * sum(length**2 for length in lengths)
    return numbers
