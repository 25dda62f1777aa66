"""Frozen base model of Adalayers: loading of the encoder, streaming of its hidden states, and the base class of heads.

Hidden states are not stored. Each state is passed to the head when the next block is about to read it. The forward pass
ends as soon as the deepest requested state has been read. A model on a frozen base is saved without the base, and
combined with it again when it is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError, ConfigError, UserError
from adadepth.models.adalayers.configuration import AdaLayersConfig
from adadepth.models.adalayers.settings import AdaLayersSettings
from adadepth.models.contract import DepthModel
from adadepth.models.folder import convert_loading_errors, is_weightless, read_config
from adadepth.models.loading import (
    HUB_ARGUMENTS,
    check_model_type,
    describe_place,
    read_stored_config,
    refuse_mismatched,
    refuse_missing,
)
from adadepth.models.shared.configuration import check_field_names
from adadepth.models.shared.encoders import longest_sequence, vocabulary_size
from adadepth.models.shared.weights_digest import weights_digest
from adadepth.runtime.hub_access import load_with_code_policy, resolve_path, silence_transformers

# Parts of a model that the encoder does not use, so that a checkpoint may lack them.
_UNUSED_PARTS = ("pooler.", "decoder.")


def load_base(
    path: str, revision: str | None = None, attention: str | None = None
) -> tuple[PreTrainedModel, PreTrainedConfig]:
    """Load the encoder of a pretrained model in float32, and the model's configuration.

    Args:
        path: Folder, hub id or `package:NAME/FOLDER`.
        revision: Revision of a hub id.
        attention: Attention implementation, or None for the default of transformers.

    Raises:
        CheckpointError: If there is no such model, or weights are missing.
        ConfigError: If its blocks cannot be found.
    """
    origin = resolve_path("base_model", path)
    if Path(origin).is_dir():  # its files are checked; those of the hub may be of another revision
        read_config("base_model", origin)
    options = {"revision": revision, "attn_implementation": attention}
    if is_weightless():
        config = read_config("base_model", origin)
        return extract_encoder(AutoModel.from_config(config, attn_implementation=attention)), config
    with silence_transformers(), convert_loading_errors("base_model", path):  # heads are dropped on purpose
        model, report = load_with_code_policy(
            origin,
            lambda trust: AutoModel.from_pretrained(
                origin,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=trust,
                **{name: value for name, value in options.items() if value is not None},
            ),
        )
    refuse_mismatched(f"base_model={path}", report)
    missing = (name for name in report["missing_keys"] if not name.startswith(_UNUSED_PARTS))
    refuse_missing(f"base_model={path}", missing)
    encoder = extract_encoder(model)
    _check_rows_first(encoder, path)
    return encoder, model.config


@torch.no_grad()
def _check_rows_first(encoder: PreTrainedModel, path: str) -> None:
    """Raise an error if the states between the blocks of an encoder are not (B, T, K).

    Raises:
        ConfigError: If tokens are the first dimension, as in XLNet.
    """
    shapes: list[torch.Size] = []
    ids = torch.zeros(1, 2, dtype=torch.int64, device=encoder.device)  # two tokens of one text
    stream_states(encoder.eval(), {"input_ids": ids}, [0], lambda number, state: shapes.append(state.shape))
    if shapes[0][:2] != ids.shape:
        raise ConfigError(
            f"base_model={path}: the states of a {encoder.config.model_type} have the shape {tuple(shapes[0])} for "
            "1 text of 2 tokens, but texts must be the first dimension"
        )


def extract_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder of a model, the part that computes hidden states, without decoder and pooler.

    Raises:
        ConfigError: If its blocks cannot be found.
    """
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    find_blocks(encoder)
    return encoder


def find_blocks(base: PreTrainedModel) -> nn.ModuleList:
    """Return the N transformer blocks of a base model in the order in which they run.

    Raises:
        ConfigError: If the base has no list of N blocks.
    """
    depth = base.config.num_hidden_layers
    for name, module in base.named_modules():
        if isinstance(module, nn.ModuleList) and (
            len(module) == depth or _is_cut(module) or name.endswith("albert_layer_groups")
        ):
            return module
    raise ConfigError(f"base_model: {type(base).__name__} has no list of {depth} blocks with readable hidden states")


class _StopBlock(nn.Module):
    """Placeholder for a block removed from the base model, which raises an error if it is run.

    During an export, in which the base is not stopped, it returns its input. Nothing reads the result.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting():
            return args[0] if args else kwargs["hidden_states"]
        raise ConfigError("states: the base was truncated, but deeper states were requested")


def _is_cut(blocks: nn.ModuleList) -> bool:
    return len(blocks) > 0 and isinstance(blocks[-1], _StopBlock)


def cut_blocks(base: PreTrainedModel, depth: int) -> None:
    """Remove all blocks of the base model after the first `depth`, unless blocks share weights."""
    blocks = find_blocks(base)
    shared = len(blocks) < base.config.num_hidden_layers and not _is_cut(blocks)
    if not shared and depth < len(blocks) - _is_cut(blocks):
        del blocks[depth:]
        blocks.append(_StopBlock())


class _StopForward(Exception):
    """Exception that stops the base model's forward pass once the deepest requested state has been read."""


def stream_states(
    base: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    numbers: Collection[int],
    consume: Callable[[int, Tensor], None],
    trainable: bool = False,
) -> int:
    """Run the base model only as deep as needed, and pass each requested hidden state to a function.

    Args:
        base: Encoder; see `extract_encoder`.
        inputs: Arguments of the forward pass of the base.
        numbers: Indices of the requested states. State n is the input of block n + 1, and state N is the output of the
            base.
        consume: Function that takes the index and the state, (B, T, K). It runs in the gradient mode of the caller, and
            must not modify the state.
        trainable: Whether gradients are computed for the base.

    Returns:
        The number of blocks that ran.
    """
    deepest, reached, gradients = max(numbers), 0, torch.is_grad_enabled()

    def read(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal reached
        if reached in numbers:
            with torch.set_grad_enabled(gradients):
                consume(reached, args[0] if args else kwargs["hidden_states"])
        # torch.export loses track of its modules at an exception; it leaves out what nothing reads by itself.
        if reached == deepest and not torch.compiler.is_exporting():
            raise _StopForward
        reached += 1

    hooks = [block.register_forward_pre_hook(read, with_kwargs=True) for block in find_blocks(base)]
    try:
        with torch.set_grad_enabled(gradients and trainable):
            last = base(**inputs).last_hidden_state
    except _StopForward:
        return deepest
    finally:
        for hook in hooks:
            hook.remove()
    assert reached >= deepest, "a block of the base was skipped"
    if reached == deepest:
        consume(deepest, last)
    return deepest


_BASE_SETTINGS = ("base_model", "base_revision")


def build_on_base(
    model_class: Any, settings: AdaLayersSettings, vocab_size: int | None, fields: Mapping[str, Any]
) -> PreTrainedModel:
    """Build a new Adalayers head on the pretrained base model that the settings name.

    Args:
        model_class: Class of the model with the head.
        settings: Group `model`.
        vocab_size: Size of the tokenizer, at most the size of the base's vocabulary.
        fields: Fields of the configuration that the data determine.

    Raises:
        ConfigError: If a setting is invalid, or the tokenizer is larger than the base's vocabulary.
        CheckpointError: If there is no such base model.
    """
    fields_of_model = (name for name, setting in get_field_specs(type(settings)).items() if setting.in_model)
    names = [name for name in fields_of_model if name not in _BASE_SETTINGS]
    values = {name: getattr(getattr(settings, name), "value", getattr(settings, name)) for name in names}
    origin: dict[str, Any] = {"revision": settings.base_revision, "save_base": settings.save_base}
    if settings.attn_implementation is not None:
        origin["attn_implementation"] = str(settings.attn_implementation)
    try:
        model = model_class.from_base(settings.base_model, **origin, **values, **fields)
    except UserError as error:  # the message names a field of the model's configuration
        raise type(error)(f"model.{error}") from error
    pieces = model.config.base_config.vocab_size
    if vocab_size is not None and vocab_size > pieces:
        raise ConfigError(f"model.base_model={settings.base_model}: it has {pieces} tokens, the tokenizer {vocab_size}")
    return model


class OnBaseModel(DepthModel, PreTrainedModel):
    """Base class of models that add a head to the encoder of another model, which is usually frozen.

    Checkpoints of the model do not contain a frozen base that was loaded from `config.base_model`.
    """

    config: AdaLayersConfig
    config_class = AdaLayersConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: AdaLayersConfig, build_base: bool = True) -> None:
        """Create the model with a random base if `build_base`, otherwise without a base until `attach_base`."""
        super().__init__(config)
        if config.base_config is None:
            raise ConfigError("base_config: missing; build the model on a pretrained base with from_base")
        if build_base:
            self.attach_base(extract_encoder(AutoModel.from_config(config.base_config)))

    @classmethod
    def from_base(
        cls,
        base: str,
        *,
        revision: str | None = None,
        attn_implementation: str | None = None,
        save_base: bool = False,
        **fields: Any,
    ) -> Any:
        """Build a model with a new head on a pretrained base model.

        Args:
            base: Folder, hub id or `package:NAME/FOLDER`.
            revision: Revision of a hub id.
            attn_implementation: Attention implementation of the base.
            save_base: Whether to save a frozen base with the head.
            **fields: Fields of the configuration.

        Raises:
            CheckpointError: If there is no such model.
            ConfigError: If a field does not exist or has a value that the base does not allow.
        """
        check_field_names(AdaLayersConfig, fields)
        encoder, base_config = load_base(base, revision, attn_implementation)
        base_config = copy.deepcopy(base_config)
        base_config.name_or_path = ""  # a path of this machine; `base_model` says where the base is
        config = AdaLayersConfig(
            **fields,
            base_model=base,
            base_config=base_config,
            base_revision=revision,
            base_hash=None if is_weightless() else weights_digest(encoder.state_dict().values()),
        )
        model = cls(config, build_base=False)
        model.attach_base(encoder, referenced=not save_base)
        return model.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint, and load its base model from `base_model` unless the checkpoint contains it.

        Args:
            pretrained_model_name_or_path: Folder or hub id.
            *model_args: As in transformers.
            **kwargs: As in transformers. `base_model` is the current path of the base.

        Raises:
            CheckpointError: If there is no such base, or its weights are not those on which the head was trained.
        """
        path = pretrained_model_name_or_path
        hub_options = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        advice = "; from_base builds one on a pretrained model"
        check_model_type(cls, describe_place(path), read_stored_config(path, hub_options), advice=advice)
        stored = None if path is None else AdaLayersConfig.from_pretrained(path, **hub_options)
        if stored is None or stored.base_saved:
            return super().from_pretrained(path, *model_args, **kwargs)
        if not isinstance(stored.base_config, PreTrainedConfig):
            raise CheckpointError(f"{path}: contains no {cls.__name__}; build one with from_base")
        origin = kwargs.get("base_model") or (kwargs.get("config") or stored).base_model
        encoder, _ = load_base(str(origin), stored.base_revision, kwargs.get("attn_implementation"))
        digest = weights_digest(encoder.state_dict().values())
        if digest != stored.base_hash:
            raise CheckpointError(
                f"base_model={origin}: its weights differ from those that {path} was trained on ({digest[:12]} "
                f"instead of {str(stored.base_hash)[:12]})"
            )
        load_with_weights = super().from_pretrained(path, *model_args, build_base=False, **kwargs)
        model = load_with_weights[0] if isinstance(load_with_weights, tuple) else load_with_weights
        model.attach_base(encoder.to(device=model.device, dtype=model.dtype), referenced=True)  # type: ignore[call-arg]
        return load_with_weights

    def save_pretrained(self, save_directory: Any, *args: Any, save_base: bool = False, **kwargs: Any) -> None:
        """Save the model, with the base model unless another checkpoint has its weights.

        Args:
            save_directory: Folder of the checkpoint.
            *args: As in transformers.
            save_base: Whether to save the base in any case.
            **kwargs: As in transformers.
        """
        before = self.config.base_saved, self._keys_to_ignore_on_save
        if save_base:
            self._keys_to_ignore_on_save = set()
        self.config.base_saved = not self._keys_to_ignore_on_save
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            self.config.base_saved, self._keys_to_ignore_on_save = before

    def attach_base(self, base: PreTrainedModel, referenced: bool = False) -> None:
        """Set the base model: freeze it unless it is to be trained, and remove the blocks that are never read.

        Args:
            base: Encoder; see `extract_encoder`.
            referenced: Whether `config.base_model` is a checkpoint with the weights of the base.

        Raises:
            ConfigError: If the base is to be trained and skips blocks at random.
        """
        config = self.config
        if not config.freeze_base_model and getattr(base, "layerdrop", 0.0) > 0.0:
            raise ConfigError(
                f"freeze_base_model=False: cannot train a base that skips blocks at random (layerdrop={base.layerdrop})"
            )
        self.model = base.requires_grad_(not config.freeze_base_model)
        if config.kept_layers is not None:
            cut_blocks(base, config.layer_states[config.layers[-1]])
        ignored = base.state_dict() if referenced and config.freeze_base_model else ()
        # The trainer reads these, too: it does not miss them when it loads one of its checkpoints.
        self._keys_to_ignore_on_save = {f"model.{name}" for name in ignored}
        self.train(self.training)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Resize the token embeddings; the base model is then saved with the model, because its weights differ."""
        self._keys_to_ignore_on_save = set()
        return super().resize_token_embeddings(*args, **kwargs)

    @property
    def longest_sequence(self) -> int | None:
        """Maximum sequence length of the base model in tokens, or None for relative positions."""
        return longest_sequence(self.model)

    @property
    def vocabulary_size(self) -> int | None:
        """Number of tokens in the base model's embedding table, or None if it has none."""
        return vocabulary_size(self.model)

    def train(self, mode: bool = True) -> Any:
        """Set training or evaluation mode. A frozen base model stays in evaluation mode.

        A frozen base is skipped, because trainers call this method before every step. Visiting all modules of a large
        base would take longer than running a small head.
        """
        if not self.config.freeze_base_model or not hasattr(self, "model"):
            return super().train(mode)
        self.training = mode
        for name, module in self.named_children():
            if name != "model":
                module.train(mode)
        if self.model.training:
            self.model.eval()
        return self
