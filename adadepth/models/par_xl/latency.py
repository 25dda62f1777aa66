"""Extraction of fixed networks from the supernet, and latency measurements of blocks and networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.models.par_xl.attention import Context, relative_positions
from adadepth.models.par_xl.configuration import OPERATIONS, ParXLConfig, architecture_macs, parse_architecture
from adadepth.models.par_xl.modeling import ParXLForCausalLM, ParXLSupernet
from adadepth.runtime.timing import time_interleaved

WARMUP = 2


def operation_latencies(
    config: ParXLConfig, length: int, memory: int, batch: int, device: torch.device, dtype: torch.dtype, repeats: int
) -> dict[str, float]:
    """Measure the inference time of an attention block and a feed-forward block, in seconds; identity takes 0.

    Args:
        config: Configuration with widths and switches.
        length: Number T of new tokens.
        memory: Number M of memory positions, all of which are filled.
        batch: Number B of rows.
        device: Device of the measurement.
        dtype: Precision of the weights.
        repeats: Number of repeated measurements.
    """
    # A measurement must not change later random numbers.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        state = torch.randn(batch, length, config.hidden_size, device=device, dtype=dtype)
        remembered = torch.randn(batch, memory, config.hidden_size, device=device, dtype=dtype)
        calls = {operation: _prepare_block(config, operation, state, remembered) for operation in "sf"}
    seconds = time_interleaved(calls, repeats, WARMUP, device)
    return {operation: seconds[operation]["median"] if operation in calls else 0.0 for operation in OPERATIONS}


def operation_costs(
    config: ParXLConfig, shape: Sequence[int], device: torch.device, repeats: int, *, by_macs: bool, in_seconds: bool
) -> list[float]:
    """Return the costs of attention, feed-forward and identity, as measured seconds or MACs.

    Args:
        config: Configuration with widths and switches.
        shape: Length, memory and batch.
        device: Device of the measurement.
        repeats: Number of repeated measurements.
        by_macs: Whether costs are multiply-accumulates instead of measured seconds.
        in_seconds: Whether MACs are converted to seconds, at the measured speed of an attention and a feed-forward
            block.
    """
    length, memory, batch = shape
    macs = [architecture_macs(config, operation, length, memory, batch) for operation in OPERATIONS]
    if by_macs and not in_seconds:
        return macs
    seconds = operation_latencies(config, length, memory, batch, device, torch.float32, repeats)
    if by_macs:
        return [cost * sum(seconds.values()) / sum(macs) for cost in macs]
    return [seconds[operation] for operation in OPERATIONS]


def _prepare_block(config: ParXLConfig, operation: str, state: Tensor, memory: Tensor) -> Callable[[], object]:
    single = copy.deepcopy(config)
    single.architecture, single.num_hidden_layers = operation, 1
    single.vocab_size, single.cutoffs = 1, []  # the output layer is not timed
    model = ParXLForCausalLM(single).eval().model.to(state)
    biases = (model.position_bias_u, model.position_bias_v) if hasattr(model, "position_bias_u") else None
    context = Context(memory.shape[1], config.clamp_length, config.same_length)
    positions = relative_positions(state.shape[1], memory.shape[1], context, state, biases)
    operations = (OPERATIONS.index(operation),)
    return torch.inference_mode()(lambda: model.blocks[0](state, operations, memory, positions, None))


def model_latencies(
    models: Mapping[str, ParXLForCausalLM], length: int, memory: int, batch: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Measure the inference time of several networks in alternation, each on a segment after a full memory.

    Args:
        models: Networks by name, all on one device. They are set to evaluation mode.
        length: Number T of new tokens.
        memory: Number M of positions of the memory.
        batch: Number B of rows.
        repeats: Number of repeated measurements.

    Returns:
        Measurements by name. `median`, `p10` and `p90` are seconds of the whole forward pass with the losses of
        targets, and `n` is the number of measurements. `blocks_median` are seconds of embedding and blocks only.
    """
    calls = {}
    for name, model in models.items():
        segment = _make_segment(model.eval(), length, memory, batch)
        calls[name, "whole"] = _prepare_call(model, **segment, targets=segment["input_ids"])
        calls[name, "blocks"] = _prepare_call(model.model, **segment)
    seconds = time_interleaved(calls, repeats, WARMUP, next(iter(models.values())).device)
    return {name: seconds[name, "whole"] | {"blocks_median": seconds[name, "blocks"]["median"]} for name in models}


def draw_ids(vocab_size: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw random token ids, (count,), with word-like frequencies p(id) ~ 1 / (id + 1).

    The time of an adaptive softmax depends on the frequencies.
    """
    frequencies = 1.0 / torch.arange(1, vocab_size + 1)
    return torch.multinomial(frequencies, count, replacement=True, generator=generator)


def _make_segment(model: ParXLForCausalLM, length: int, memory: int, batch: int) -> dict[str, Any]:
    """Build random inputs for a latency measurement: a segment after a random memory."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    ids = draw_ids(config.vocab_size, batch * length, generator).view(batch, length)
    remembered = torch.randn(len(model.model.attending), batch, memory, config.hidden_size, generator=generator)
    return {
        "input_ids": ids.to(model.device),
        "memory": remembered.to(model.device, model.dtype),
        "context": Context(memory, config.clamp_length, config.same_length),
    }


def _prepare_call(model: nn.Module, **inputs: Any) -> Callable[[], object]:
    return torch.inference_mode()(lambda: model(**inputs))


def derive(supernet: ParXLSupernet, architecture: str | None = None, *, keep_weights: bool = True) -> ParXLForCausalLM:
    """Extract the fixed network of an architecture from a supernet, with its weights, device and precision.

    With the weights of the supernet, the network has the same output as the supernet with one-hot gates.

    Args:
        supernet: Supernet at the end of the search.
        architecture: One operation for every block, or None for the most probable operations.
        keep_weights: Whether to copy the weights of the supernet. Fresh weights allow any number of blocks.

    Raises:
        ConfigError: If the architecture is invalid, or its number of blocks is not that of the copied weights.
    """
    operations = supernet.architecture() if architecture is None else parse_architecture("architecture", architecture)
    blocks = supernet.config.num_hidden_layers
    if keep_weights and len(operations) != blocks:
        raise ConfigError(
            f"architecture={operations}: {len(operations)} blocks, but the weights belong to a supernet with {blocks}"
        )
    config = copy.deepcopy(supernet.config)
    config.architecture, config.num_hidden_layers = operations, len(operations)
    config.name_or_path = ""
    network = ParXLForCausalLM(config)
    if keep_weights:
        weights = supernet.state_dict()
        network.load_state_dict({name: weights[name] for name in network.state_dict()})
    network.to(device=supernet.device, dtype=supernet.dtype)  # type: ignore[call-arg]
    return network.train(supernet.training)
