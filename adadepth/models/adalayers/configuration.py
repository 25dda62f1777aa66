"""Configuration of Adalayers models."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError
from adadepth.models.adalayers.settings import AdaLayersSettings
from adadepth.models.shared.configuration import FamilyConfig


@strict
class AdaLayersConfig(FamilyConfig, settings=AdaLayersSettings):
    """Configuration of Adalayers: a learned average over the layers of a base model, and a head that reads it.

    State n is the hidden state after n blocks of the base. State 0 is the embeddings. Layer j is the j-th entry of the
    distribution; see `layer_states`. Field names are those of the reference implementation.
    """

    # Trainers of transformers gather logits only.
    keys_to_ignore_at_inference: ClassVar = ["trace", "loss_parts", "distribution"]
    sub_configs: ClassVar = {"base_config": AutoConfig}

    # The settings of `AdaLayersSettings`, which documents them, with the values of a file that lacks them.
    base_model: str | None = None
    base_revision: str | None = None
    freeze_base_model: bool = True
    include_embeddings: bool = True
    layers_num: int | None = None
    mix: str = "projected"
    project_dim: int = 128
    alpha_distribution: int | float = 10.0
    distribution_cutoff: int | float = 0.0
    cutoff_warmup_steps: int = 0
    topk_distribution: int | None = None
    lambda_distribution_entropy: int | float = 0.0
    lambda_distribution_depth: int | float = 0.0
    freeze_distribution: bool = False
    pick_one_layer_only: int | None = None
    distribution_lr_multiplier: int | float = 1.0
    head: str = "attention"
    attention_heads_num: int = 16
    attention_layers_num: int = 1
    dim_feedforward: int = 1024
    attention_dropout_prob: int | float | None = 0.1
    add_pos_embeddings: bool = False
    classes_weights: list[int | float] | None = None
    focal_loss_enabled: bool = False
    focal_loss_gamma: int | float = 2.0
    focal_loss_alpha: int | float = 0.25
    seed_compat: bool = False

    base_config: dict | PreTrainedConfig | None = setting(None, "configuration of the base")
    base_hash: str | None = setting(
        None, "digest of the base weights that the head was trained on; other weights are refused"
    )
    base_saved: bool = setting(False, "whether the checkpoint contains the weights of the base")
    layer_in_dim: int | None = setting(None, "K, width of the states of the base; None: from the base")
    deepest_state: int | None = setting(None, "deepest state that may have weight, set by a budget; None: no limit")
    kept_layers: list[int] | None = setting(None, "layers of a truncated model, set by `truncate`")

    def __post_init__(self, **kwargs: object) -> None:
        if isinstance(self.base_config, dict):
            self.base_config = AutoConfig.for_model(**self.base_config)
        super().__post_init__(**kwargs)
        self._check_heads()
        self._check_classes()
        if self.base_config is not None:
            self._fit_base(self.base_config)
        if self.layers_num is not None:
            self._check_layers(self.layers_num)

    @property
    def depth(self) -> int:
        """Number N of transformer blocks in the base model."""
        assert isinstance(self.base_config, PreTrainedConfig)
        return self.base_config.num_hidden_layers

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size of the base model, or None without a base model.

        transformers also reads this property.
        """
        return getattr(self.base_config, "vocab_size", None)

    @vocab_size.setter
    def vocab_size(self, pieces: int) -> None:
        assert isinstance(self.base_config, PreTrainedConfig)
        self.base_config.vocab_size = pieces

    @property
    def state_width(self) -> int:
        """Width K of the base model's hidden states."""
        assert self.layer_in_dim is not None
        return self.layer_in_dim

    @property
    def layer_states(self) -> tuple[int, ...]:
        """Index of the base model's hidden state that each layer of the average reads."""
        assert self.layers_num is not None
        first = 0 if self.include_embeddings else 1
        return tuple(range(first, first + self.layers_num))

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers in the average: all, the single selected one, or those left after truncation."""
        assert self.layers_num is not None
        if self.pick_one_layer_only is not None:
            return (self.pick_one_layer_only % self.layers_num,)
        return tuple(range(self.layers_num) if self.kept_layers is None else self.kept_layers)

    @property
    def learns_distribution(self) -> bool:
        """Whether the layer weights are trained."""
        return not self.freeze_distribution and self.pick_one_layer_only is None

    @property
    def reads_raw_states(self) -> bool:
        """Whether the head reads the base model's hidden states without a projection."""
        return self.mix == "scalar" and self.head == "linear"

    @property
    def mixed_width(self) -> int:
        """Width of the averaged states that the head reads."""
        return self.state_width if self.reads_raw_states else self.project_dim

    def _check_heads(self) -> None:
        if self.head == "attention" and self.project_dim % self.attention_heads_num:
            raise ConfigError(
                f"attention_heads_num={self.attention_heads_num} must divide project_dim={self.project_dim}"
            )

    def _check_classes(self) -> None:
        weights = self.classes_weights
        if weights is None:
            return
        if (self.num_labels or 0) < 2 or self.problem_type not in (None, "single_label_classification"):
            raise ConfigError(f"classes_weights={weights}: only single-label classification supports class weights")
        if len(weights) != self.num_labels:
            raise ConfigError(f"classes_weights={weights}: {len(weights)} weights for {self.num_labels} classes")
        if min(weights) < 0 or max(weights) == 0:
            raise ConfigError(f"classes_weights={weights} must not be negative, nor all 0")

    def _fit_base(self, base: PreTrainedConfig) -> None:
        """Set missing sizes from the base model, and raise an error for sizes that contradict it."""
        width, states = base.hidden_size, base.num_hidden_layers + (1 if self.include_embeddings else 0)
        if self.layer_in_dim not in (None, width):
            raise ConfigError(f"layer_in_dim={self.layer_in_dim}: the states of the base have width {width}")
        layers = states if self.layers_num is None else self.layers_num
        if layers > states:
            raise ConfigError(f"layers_num={layers}: the base has only {states} hidden states")
        if layers < states and not self.seed_compat:
            raise ConfigError(f"layers_num={layers} must be {states}, all hidden states; seed_compat=true allows fewer")
        self.layer_in_dim, self.layers_num = width, layers

    def _check_layers(self, layers: int) -> None:
        if layers < 1:
            raise ConfigError(f"layers_num={layers} must be at least 1")
        picked, top = self.pick_one_layer_only, self.topk_distribution
        if picked is not None and not -layers <= picked < layers:
            raise ConfigError(f"pick_one_layer_only={picked} must lie between {-layers} and {layers - 1}")
        if top is not None and not 1 <= top <= layers:
            raise ConfigError(f"topk_distribution={top} must lie between 1 and {layers}, the number of layers")
        kept = self.kept_layers
        if kept is not None and (not kept or kept != sorted(set(kept) & set(range(layers)))):
            raise ConfigError(f"kept_layers={kept} must be layers between 0 and {layers - 1} in increasing order")
        # A distribution starts uniform: every weight is 1 / L.
        if self.distribution_cutoff < 0 or (picked is None and self.distribution_cutoff * layers >= 1.0):
            raise ConfigError(
                f"distribution_cutoff={self.distribution_cutoff} must lie in [0, 1/{layers}): "
                f"the uniform start gives each of the {layers} layers 1/{layers}"
            )
