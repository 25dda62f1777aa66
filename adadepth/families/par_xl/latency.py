"""From the supernet to a network of one architecture, and the measured seconds of blocks and of networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.families.par_xl.attention import Context, relative_positions
from adadepth.families.par_xl.configuration import OPERATIONS, ParXLConfig, architecture_macs, parse_architecture
from adadepth.families.par_xl.modeling import ParXLForCausalLM, ParXLSupernet
from adadepth.system.timing import time_interleaved

WARMUP = 2


def operation_latencies(
    config: ParXLConfig, length: int, memory: int, batch: int, device: torch.device, dtype: torch.dtype, repeats: int
) -> dict[str, float]:
    """Median seconds of one block in inference: attention, feed-forward, and 0 for the identity.

    Args:
        config: Widths and switches.
        length: T new tokens.
        memory: M remembered positions, all of them there.
        batch: B rows.
        device: Where to measure.
        dtype: Precision of the weights.
        repeats: Times that the median is taken of.
    """
    # Whether costs are measured must not change what is drawn afterwards.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        state = torch.randn(batch, length, config.hidden_size, device=device, dtype=dtype)
        remembered = torch.randn(batch, memory, config.hidden_size, device=device, dtype=dtype)
        calls = {operation: _block_call(config, operation, state, remembered) for operation in "sf"}
    seconds = time_interleaved(calls, repeats, WARMUP, device)
    return {operation: seconds[operation]["median"] if operation in calls else 0.0 for operation in OPERATIONS}


def operation_costs(
    config: ParXLConfig, shape: Sequence[int], device: torch.device, repeats: int, *, by_macs: bool, in_seconds: bool
) -> list[float]:
    """Cost of attention, feed-forward and identity: seconds on this machine, or multiply-accumulates.

    Args:
        config: Widths and switches.
        shape: Length, memory and batch.
        device: Where to measure.
        repeats: See `operation_latencies`.
        by_macs: Count instead of measuring.
        in_seconds: MACs, too, are told in seconds, at the speed of an attention and a feed-forward block together.
    """
    length, memory, batch = shape
    macs = [architecture_macs(config, operation, length, memory, batch) for operation in OPERATIONS]
    if by_macs and not in_seconds:
        return macs
    seconds = operation_latencies(config, length, memory, batch, device, torch.float32, repeats)
    if by_macs:
        return [cost * sum(seconds.values()) / sum(macs) for cost in macs]
    return [seconds[operation] for operation in OPERATIONS]


def _block_call(config: ParXLConfig, operation: str, state: Tensor, memory: Tensor) -> Callable[[], object]:
    single = copy.deepcopy(config)
    single.architecture, single.num_hidden_layers = operation, 1
    single.vocab_size, single.cutoffs = 1, []  # the words are not timed
    model = ParXLForCausalLM(single).eval().model.to(state)
    biases = (model.position_bias_u, model.position_bias_v) if hasattr(model, "position_bias_u") else None
    context = Context(memory.shape[1], config.clamp_length, config.same_length)
    positions = relative_positions(state.shape[1], memory.shape[1], context, state, biases)
    operations = (OPERATIONS.index(operation),)
    return torch.inference_mode()(lambda: model.blocks[0](state, operations, memory, positions, None))


def model_latencies(
    models: Mapping[str, ParXLForCausalLM], length: int, memory: int, batch: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Time the inference of networks against each other, each reading a segment behind a full memory.

    Args:
        models: By name, on one device; each is put in evaluation mode.
        length: T new tokens.
        memory: M remembered positions, which the segment's own then follow.
        batch: B rows.
        repeats: Times that the medians are taken of.

    Returns:
        By name, in seconds: `median`, `p10`, `p90` and `n` of the whole forward pass, its targets' losses included,
        and `blocks_median` of embedding and blocks alone.
    """
    calls = {}
    for name, model in models.items():
        segment = _make_segment(model.eval(), length, memory, batch)
        calls[name, "whole"] = _inference(model, **segment, targets=segment["input_ids"])
        calls[name, "blocks"] = _inference(model.model, **segment)
    seconds = time_interleaved(calls, repeats, WARMUP, next(iter(models.values())).device)
    return {name: seconds[name, "whole"] | {"blocks_median": seconds[name, "blocks"]["median"]} for name in models}


def draw_ids(vocab_size: int, count: int, generator: torch.Generator) -> Tensor:
    """Ids as frequent as words are, p(id) ~ 1 / (id + 1): what an adaptive softmax costs depends on it; (count,)."""
    frequencies = 1.0 / torch.arange(1, vocab_size + 1)
    return torch.multinomial(frequencies, count, replacement=True, generator=generator)


def _make_segment(model: ParXLForCausalLM, length: int, memory: int, batch: int) -> dict[str, Any]:
    """Inputs of random ids behind random states; the context keeps as many of them for the next segment."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    ids = draw_ids(config.vocab_size, batch * length, generator).view(batch, length)
    remembered = torch.randn(len(model.model.attending), batch, memory, config.hidden_size, generator=generator)
    return {
        "input_ids": ids.to(model.device),
        "memory": remembered.to(model.device, model.dtype),
        "context": Context(memory, config.clamp_length, config.same_length),
    }


def _inference(model: nn.Module, **inputs: Any) -> Callable[[], object]:
    return torch.inference_mode()(lambda: model(**inputs))


def derive(supernet: ParXLSupernet, architecture: str | None = None, *, keep_weights: bool = True) -> ParXLForCausalLM:
    """The fixed network of an architecture, on the supernet's device and in its precision and mode.

    With the supernet's weights its output is that of the supernet whose gates are one-hot.

    Args:
        supernet: Where the search ended.
        architecture: One operation for every block; None: the most probable ones.
        keep_weights: Take the supernet's weights; otherwise they are fresh, and the blocks may be of any number.

    Raises:
        ConfigError: If it is no architecture, or not one of the supernet's.
    """
    chosen = supernet.architecture() if architecture is None else parse_architecture("architecture", architecture)
    blocks = supernet.config.num_hidden_layers
    if keep_weights and len(chosen) != blocks:
        raise ConfigError(f"architecture={chosen}: {len(chosen)} blocks; the weights are of a supernet with {blocks}")
    config = copy.deepcopy(supernet.config)
    config.architecture, config.num_hidden_layers = chosen, len(chosen)
    config.name_or_path = ""
    network = ParXLForCausalLM(config)
    if keep_weights:
        weights = supernet.state_dict()
        network.load_state_dict({name: weights[name] for name in network.state_dict()})
    network.to(device=supernet.device, dtype=supernet.dtype)  # type: ignore[call-arg]
    return network.train(supernet.training)
