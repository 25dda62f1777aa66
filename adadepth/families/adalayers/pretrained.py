"""A model on a base that other checkpoints hold: made from it, saved without it, put together with it when loaded."""

from __future__ import annotations

import copy
from typing import Any

from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError, ConfigError
from adadepth.families.adalayers.base import cut_blocks, encoder_of, load_base, weights_digest
from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.contract import DepthModel
from adadepth.families.shared.albert.convert import HUB_ARGUMENTS
from adadepth.families.shared.configuration import check_field_names
from adadepth.families.shared.encoders import longest_sequence, vocabulary_size


class OnBaseModel(DepthModel, PreTrainedModel):
    """A model with the encoder of another one at `model`, frozen unless the configuration says otherwise.

    A frozen base that was loaded from `config.base_model` is left out of the model's own checkpoints.
    """

    config: AdaLayersConfig
    config_class = AdaLayersConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: AdaLayersConfig, build_base: bool = True) -> None:
        """Make the base with random weights, or leave its place empty until `attach_base`."""
        super().__init__(config)
        if config.base_config is None:
            raise ConfigError("base_config: missing; from_base makes a model on a pretrained base")
        if build_base:
            self.attach_base(encoder_of(AutoModel.from_config(config.base_config)))

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
        """A fresh head on a pretrained base.

        Args:
            base: A folder, a hub id or `package:NAME/FOLDER`.
            revision: Of a hub id.
            attn_implementation: Of the base.
            save_base: Save the base with the head even though it is frozen.
            **fields: Of the configuration.

        Raises:
            CheckpointError: If there is no such model.
            ConfigError: If a field does not exist or has a value that the base does not allow.
        """
        check_field_names(AdaLayersConfig, fields)
        encoder, base_config = load_base(base, revision, attn_implementation)
        base_config = copy.deepcopy(base_config)
        base_config.name_or_path = ""  # where it was found on this machine; `base_model` says where to look
        config = AdaLayersConfig(
            **fields,
            base_model=base,
            base_config=base_config,
            base_revision=revision,
            base_hash=weights_digest(encoder),
        )
        model = cls(config, build_base=False)
        model.attach_base(encoder, referenced=not save_base)
        return model.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint, and its base from `base_model` unless the checkpoint holds it.

        Args:
            pretrained_model_name_or_path: A folder or hub id.
            *model_args: As in transformers.
            **kwargs: As in transformers; `base_model` says where the base lies now.

        Raises:
            CheckpointError: If there is no such base, or it has other weights than the head was trained on.
        """
        path = pretrained_model_name_or_path
        where = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        stored = None if path is None else AdaLayersConfig.from_pretrained(path, **where)
        if stored is None or stored.base_saved:
            return super().from_pretrained(path, *model_args, **kwargs)
        if not isinstance(stored.base_config, PreTrainedConfig):
            raise CheckpointError(f"{path}: holds no {cls.__name__}; from_base makes one on a pretrained model")
        place = kwargs.get("base_model") or (kwargs.get("config") or stored).base_model
        encoder, _ = load_base(str(place), stored.base_revision, kwargs.get("attn_implementation"))
        digest = weights_digest(encoder)
        if digest != stored.base_hash:
            raise CheckpointError(
                f"base_model={place}: its weights are not those that {path} was trained on "
                f"({digest[:12]} instead of {str(stored.base_hash)[:12]})"
            )
        loaded = super().from_pretrained(path, *model_args, build_base=False, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.attach_base(encoder.to(device=model.device, dtype=model.dtype), referenced=True)  # type: ignore[call-arg]
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, save_base: bool = False, **kwargs: Any) -> None:
        """Save the model, and its base where no other checkpoint holds the weights.

        Args:
            save_directory: The folder.
            *args: As in transformers.
            save_base: Save the base in any case.
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
        """Put a base in its place: frozen unless it is to train, and cut where the model was truncated.

        Args:
            base: An encoder, see `encoder_of`.
            referenced: Whether `config.base_model` holds its weights.

        Raises:
            ConfigError: If the base is to train and skips blocks at random.
        """
        config = self.config
        if not config.freeze_base_model and getattr(base, "layerdrop", 0.0) > 0.0:
            raise ConfigError(f"freeze_base_model=False: the base skips blocks at random, layerdrop={base.layerdrop}")
        self.model = base.requires_grad_(not config.freeze_base_model)
        if config.kept_layers is not None:
            cut_blocks(base, config.layer_states[config.layers[-1]])
        left_out = base.state_dict() if referenced and config.freeze_base_model else ()
        # The trainer reads these, too: it does not miss them when it loads one of its checkpoints.
        self._keys_to_ignore_on_save = {f"model.{name}" for name in left_out}
        self.train(self.training)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; the base then has weights that no other checkpoint holds, and is saved with the model."""
        self._keys_to_ignore_on_save = set()
        return super().resize_token_embeddings(*args, **kwargs)

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens that the base has positions for; None where they are relative."""
        return longest_sequence(self.model)

    @property
    def vocabulary_size(self) -> int | None:
        """Pieces that the base has embeddings for; None where it has no table of them."""
        return vocabulary_size(self.model)

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a frozen base stays in evaluation mode.

        Trainers call this before every step, and going through a large base takes longer than a small head.
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
