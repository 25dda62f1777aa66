"""Configuration of looped language models."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError
from adadepth.halting.step_losses import prepare_step_loss
from adadepth.models.looped.cache_policies import parse_policy
from adadepth.models.looped.convert import PUBLISHED_MODELS, convert_config
from adadepth.models.looped.settings import START_STD, LoopedSettings, find_low_backprop_problem
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig


@strict
class LoopedConfig(FamilyConfig, settings=LoopedSettings):
    """Configuration of a looped language model. It can also read those of published models."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*BESIDE_LOGITS, "cache", "hidden_states"]
    sub_configs: ClassVar = {"base_config": AutoConfig}

    # The settings of `LoopedSettings`, which documents them, with the values of a file that lacks them.
    vocab_size: int = 49152
    prelude: int = 0
    core: int = 2
    coda: int = 0
    low_layers: int = 0
    low_cycles: int = 1
    num_loops: int = 4
    loop_lora_rank: int | None = None
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 512
    hidden_act: str = "silu"
    attention_gate: bool = False
    norm_weights: bool = True
    norms: str = "pre"
    state_norm: str = "none"
    injection: str = "none"
    start: str = "input"
    draw_seed: int = 0
    start_std: int | float = START_STD
    queries: str = "state"
    damping: int | float | None = 1.0
    gate: bool = False
    halting_unit: str = "linear"
    exit_rule: str | None = None
    cache_policy: str = "all"
    objective: str = "last"
    geometric_share: int | float = 0.3
    geometric_truncation: str = "renormalise"
    entropy_weight: int | float = 0.05
    gate_loss: str = "gain"
    gate_pairing: str = "next"
    gate_gain: int | float = 0.005
    train_loops: str = "fixed"
    loop_spread: int | float = 0.5
    loop_curriculum: str = "none"
    curriculum_share: int | float = 0.5
    backprop_loops: int | None = None
    low_backprop: list[int] | None = None
    prefix_lm: bool = False
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    rope_theta: int | float = 10000.0
    rope_pairs: bool = False
    qk_bias: bool = False
    scale_embeddings: bool = False
    embedding_scale: int | float | None = None
    tie_word_embeddings: bool = False
    rms_norm_eps: int | float = 1e-06
    initializer: str = "normal"
    initializer_range: int | float = 0.02

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    base_config: dict | PreTrainedConfig | None = setting(
        None,
        "configuration of the decoder of transformers that provides the layers, with the number of kept layers; "
        "None: our own layers",
        shape=True,
    )
    logit_factor: int | float = setting(1.0, "factor of a language model's logits, as Cohere and Granite have one")

    def __post_init__(self, **kwargs: object) -> None:
        if isinstance(self.base_config, dict):
            self.base_config = AutoConfig.for_model(**self.base_config)
        if self.base_config is not None:
            self._take_sizes(self.base_config.get_text_config())
        super().__post_init__(**kwargs)
        prepare_step_loss(self.objective)
        parse_policy(self.cache_policy)
        if self.loop_lora_rank is not None and self.cache_policy != "all":
            raise ConfigError(
                f"cache_policy={self.cache_policy}: must be all with loop_lora_rank={self.loop_lora_rank}"
            )
        if problem := find_low_backprop_problem(self.low_backprop):
            raise ConfigError(problem)
        if self.halting_unit != "linear" and not self.gate:
            raise ConfigError(f"halting_unit={self.halting_unit}: only used with gate=true")
        if self.base_config is None:
            self._check_sizes()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a configuration from a folder or hub id, which may be that of a published model."""
        options = {"name_or_path": str(pretrained_model_name_or_path)} | kwargs
        return super().from_pretrained(pretrained_model_name_or_path, *args, **options)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a dictionary, which may be that of a published model.

        Args:
            config_dict: Fields.
            kwargs: Fields that take precedence. `name_or_path` is the folder or hub id of the dictionary, which is
                needed for retrofits; see `convert_config`.
        """
        if config_dict.get("model_type") in PUBLISHED_MODELS:
            config_dict = convert_config(config_dict, kwargs.get("name_or_path"))
        return super().from_dict(config_dict, **kwargs)

    @property
    def layers(self) -> int:
        """Number of layers with their own weights, P + C + Q, and those of the low-level stack."""
        return self.prelude + self.low_layers + self.core + self.coda

    @property
    def layers_per_loop(self) -> int:
        """Number of layers that a token passes in a loop: those of the core, and of all low-level cycles."""
        return self.low_layers * self.low_cycles + self.core

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers that a token passes, P + N C + Q, and each has its own cache entry.

        C stands for `layers_per_loop`.
        """
        return self.prelude + self.num_loops * self.layers_per_loop + self.coda

    @num_hidden_layers.setter
    def num_hidden_layers(self, layers: int) -> None:
        raise ConfigError(f"num_hidden_layers={layers}: computed from prelude, core, coda and num_loops; set those")

    def loops(self, num_loops: int | None) -> int:
        """Return the number N of loops for a forward pass, by default the configured one.

        Args:
            num_loops: Requested number of loops, or None for that of the configuration.

        Raises:
            ConfigError: If the number is less than 1.
        """
        if num_loops is not None and num_loops < 1:
            raise ConfigError(f"num_loops={num_loops} must be at least 1")
        return self.num_loops if num_loops is None else num_loops

    def low_gradient_cycles(self, loops: int) -> list[int]:
        """Return the number of last low-level cycles that have gradients, for each of N loops."""
        if self.low_backprop is None:
            return [self.low_cycles] * loops
        padded = [1] * (loops - len(self.low_backprop)) + self.low_backprop
        return [min(cycles, self.low_cycles) for cycles in padded[:loops]]

    @property
    def embedding_factor(self) -> float:
        """Factor of the embeddings."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        return math.sqrt(self.hidden_size) if self.scale_embeddings else 1.0

    @property
    def width_of_head(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def logit_cap(self) -> float | None:
        """Bound of the logits of a language model, or None. Only decoders of transformers have one."""
        return getattr(self.base_config, "final_logit_softcapping", None)

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_key_value_heads or self.num_attention_heads

    def _take_sizes(self, base: PreTrainedConfig) -> None:
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "tie_word_embeddings"):
            if not hasattr(base, name):
                raise ConfigError(f"base_config: a {base.model_type} has no {name}, so its layers cannot be looped")
            setattr(self, name, getattr(base, name))
        for name in ("num_key_value_heads", "head_dim", "max_position_embeddings"):
            setattr(self, name, getattr(base, name, None) or getattr(self, name))
        if base.num_hidden_layers != self.layers:
            raise ConfigError(
                f"base_config has {base.num_hidden_layers} layers, but prelude + core + coda = {self.layers}"
            )
        if self.queries != "state":
            raise ConfigError(f"queries={self.queries}: layers of {base.model_type} read queries from `state` only")
        if self.low_layers:
            raise ConfigError(f"low_layers={self.low_layers}: not supported with layers of {base.model_type}")
        if self.sliding_window is not None:
            raise ConfigError(
                f"sliding_window={self.sliding_window}: layers of {base.model_type} have their own setting for it"
            )

    def _check_sizes(self) -> None:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )
        if self.num_attention_heads % self.key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads} must divide num_attention_heads="
                f"{self.num_attention_heads}"
            )
        if self.width_of_head % 2:
            raise ConfigError(
                f"head_dim={self.width_of_head} must be even, because rotary positions rotate pairs of features"
            )
