"""The base model: loading its encoder, and reading its states one by one while it runs.

No state is kept: each is handed on when the next block is about to read it, and the run ends as soon as the deepest
state that is wanted has been read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError, UserError
from adadepth.families.adalayers.family import AdaLayersSettings
from adadepth.families.folder import read_config, refuse_mismatched, refuse_missing, told
from adadepth.settings.declaration import declared
from adadepth.system.places import load_trusted, quiet, resolve_place

# Parts of a model that are left behind, so that a checkpoint may lack them.
_UNUSED_PARTS = ("pooler.", "decoder.")


def load_base(
    path: str, revision: str | None = None, attention: str | None = None
) -> tuple[PreTrainedModel, PreTrainedConfig]:
    """The encoder of a pretrained model in float32, and the model's configuration.

    Args:
        path: A folder, a hub id or `package:NAME/FOLDER`.
        revision: Of a hub id.
        attention: Attention implementation; None for the library's choice.

    Raises:
        CheckpointError: If there is no such model, or it lacks weights.
        ConfigError: If its blocks cannot be found.
    """
    place = resolve_place("base_model", path)
    if Path(place).is_dir():  # its files are checked; those of the hub may be of another revision
        read_config("base_model", place)
    given = {"revision": revision, "attn_implementation": attention}
    with quiet(), told("base_model", path):  # heads are left behind on purpose
        model, report = load_trusted(
            place,
            lambda trust: AutoModel.from_pretrained(
                place,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=trust,
                **{name: value for name, value in given.items() if value is not None},
            ),
        )
    refuse_mismatched("base_model", path, report)
    refuse_missing("base_model", path, (name for name in report["missing_keys"] if not name.startswith(_UNUSED_PARTS)))
    return encoder_of(model), model.config


def encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that makes the states: no decoder, no pooler.

    Raises:
        ConfigError: If its blocks cannot be found.
    """
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    find_blocks(encoder)
    return encoder


def weights_digest(base: nn.Module) -> str:
    """SHA-256 of the weights. Names do not enter, because they change between releases of the library."""
    digests = (
        hashlib.sha256(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).digest()
        for weight in base.state_dict().values()
    )
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def find_blocks(base: PreTrainedModel) -> nn.ModuleList:
    """The base's N blocks, in the order in which they are called; ALBERT's shared groups are called several times.

    Raises:
        ConfigError: If the base has no list of N blocks.
    """
    depth = base.config.num_hidden_layers
    for name, module in base.named_modules():
        if isinstance(module, nn.ModuleList) and (
            len(module) == depth or _is_cut(module) or name.endswith("albert_layer_groups")
        ):
            return module
    raise ConfigError(f"base_model: {type(base).__name__} has no list of {depth} blocks whose states could be read")


class _EndOfBase(nn.Module):
    """Stands where the blocks were cut off, so that the loop over them still arrives at the last state."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError("states: the base was truncated, and deeper states were asked for")


def _is_cut(blocks: nn.ModuleList) -> bool:
    return len(blocks) > 0 and isinstance(blocks[-1], _EndOfBase)


def cut_blocks(base: PreTrainedModel, depth: int) -> None:
    """Drop the blocks after the first `depth`; shared ones stay."""
    blocks = find_blocks(base)
    shared = len(blocks) < base.config.num_hidden_layers and not _is_cut(blocks)
    if not shared and depth < len(blocks) - _is_cut(blocks):
        del blocks[depth:]
        blocks.append(_EndOfBase())


class _DeepestRead(Exception):
    """Ends a run whose deepest wanted state was read."""


def stream_states(
    base: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    wanted: Collection[int],
    consume: Callable[[int, Tensor], None],
    trainable: bool = False,
) -> int:
    """Run the base as far as it is needed and hand on the wanted states, shallowest first.

    Args:
        base: An encoder, see `encoder_of`.
        inputs: Arguments of its forward pass.
        wanted: State numbers. State n is what block n + 1 reads; state N is what the base returns.
        consume: Called with the number and the state (B, T, K), in the caller's gradient mode. It must not change it.
        trainable: Whether the base's own computation is differentiated.

    Returns:
        The number of blocks that ran.
    """
    deepest, reached, gradients = max(wanted), 0, torch.is_grad_enabled()

    def read(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal reached
        if reached in wanted:
            with torch.set_grad_enabled(gradients):
                consume(reached, args[0] if args else kwargs["hidden_states"])
        if reached == deepest:
            raise _DeepestRead
        reached += 1

    hooks = [block.register_forward_pre_hook(read, with_kwargs=True) for block in find_blocks(base)]
    try:
        with torch.set_grad_enabled(gradients and trainable):
            last = base(**inputs).last_hidden_state
    except _DeepestRead:
        return deepest
    finally:
        for hook in hooks:
            hook.remove()
    assert reached == deepest, "a block was skipped"
    consume(deepest, last)
    return deepest


_OF_THE_BASE = ("base_model", "base_revision")


def build_on_base(
    model_class: Any, settings: AdaLayersSettings, vocab_size: int | None, fields: Mapping[str, Any]
) -> PreTrainedModel:
    """A fresh head on the base that the settings name.

    Args:
        model_class: The head.
        settings: The `model` group.
        vocab_size: Size of the tokenizer, which the base must be able to read.
        fields: What the data decide.

    Raises:
        ConfigError: If a setting is wrong, or the tokenizer is larger than the base's.
        CheckpointError: If there is no such base.
    """
    names = [name for name, about in declared(type(settings)).items() if about.in_model and name not in _OF_THE_BASE]
    values = {name: getattr(getattr(settings, name), "value", getattr(settings, name)) for name in names}
    origin: dict[str, Any] = {"revision": settings.base_revision, "save_base": settings.save_base}
    if settings.attn_implementation is not None:
        origin["attn_implementation"] = str(settings.attn_implementation)
    try:
        model = model_class.from_base(settings.base_model, **origin, **values, **fields)
    except UserError as error:  # names a field of the model's configuration
        raise type(error)(f"model.{error}") from error
    pieces = model.config.base_config.vocab_size
    if vocab_size is not None and vocab_size > pieces:
        raise ConfigError(f"model.base_model={settings.base_model}: it has {pieces} pieces, the tokenizer {vocab_size}")
    return model
