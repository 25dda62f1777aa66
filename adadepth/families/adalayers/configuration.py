"""Configuration of Adalayers."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from adadepth.errors import ConfigError
from adadepth.families.adalayers.settings import AdaLayersSettings
from adadepth.families.shared.configuration import FamilyConfig


@strict
class AdaLayersConfig(FamilyConfig, settings=AdaLayersSettings):
    """A distribution over the layers of a base model and a head on the mixed states (Dremov 2024).

    State n is the hidden state after n blocks of the base, state 0 the embeddings; layer j is the j-th entry of the
    distribution, see `layer_states`. Field names are those of the original.

    Attributes:
        base_model: Where the base's weights come from: a folder, a hub id or `package:NAME/FOLDER`.
        base_config: The base's own configuration.
        base_revision: Revision of a hub id.
        base_hash: Digest of the weights that the head was trained on; others under the same name are refused.
        base_saved: Whether the checkpoint holds the base's weights itself.
        project_dim: Width k of the projected states.
        layers_num: Layers L; None: all that the base has.
        layer_in_dim: Width K of the base's states; None: from the base.
        attention_heads_num: Heads of the head's attention; must divide `project_dim`.
        attention_dropout_prob: Dropout of projected states and head; None means 0.
        topk_distribution: Only the k largest weights take part.
        freeze_distribution: Keep the distribution uniform.
        alpha_distribution: Sharpness of the softmax; it multiplies the step on the logits too.
        lambda_distribution_entropy: Weight of the distribution's entropy in the loss; positive values sharpen.
        lambda_distribution_depth: Weight of the mean depth sum_j p_j n_j / N in the loss, >= 0.
        pick_one_layer_only: Read this layer alone, counted from the end when negative.
        freeze_base_model: Train the head only.
        classes_weights: Weight of every class in the loss.
        add_pos_embeddings: Add sinusoidal positions to the mixed state.
        distribution_cutoff: Weights of at most this become 0; below 1 / L, or the uniform start would lose all.
        cutoff_warmup_steps: Optimiser steps without cutoff; a loaded model is past them.
        include_embeddings: Whether state 0 is a layer.
        deepest_state: No deeper state has weight; a budget writes it. None: any may.
        kept_layers: The layers that a truncated model still has; `truncate` writes it.
        focal_loss_enabled: Focal loss instead of cross-entropy.
        focal_loss_gamma: Its exponent.
        focal_loss_alpha: Its factor.
        attention_layers_num: Encoder layers of the token head.
        dim_feedforward: Their inner width.
        mix: `projected`: every layer has a projection of its own; `scalar`: the states themselves are mixed (Peters et
            al. 2018), and a head with attention projects the result.
        head: `attention`, or a `linear` probe.
        distribution_lr_multiplier: Learning rate of the distribution over that of the rest.
        seed_compat: Compute what the original code did, defects included: the entropy's mean over layers instead of
            its sum, untrained projections under a frozen distribution, fewer layers than the base has, and the focal
            loss's mean over all tokens with probabilities from the weighted cross-entropy.
    """

    model_type = "adalayers"
    sub_configs: ClassVar = {"base_config": AutoConfig}

    base_model: str | None
    base_revision: str | None
    base_config: dict | PreTrainedConfig | None = None
    base_hash: str | None = None
    base_saved: bool = False
    layers_num: int | None
    layer_in_dim: int | None = None
    deepest_state: int | None = None
    kept_layers: list[int] | None = None

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
        """Blocks N of the base."""
        assert isinstance(self.base_config, PreTrainedConfig)
        return self.base_config.num_hidden_layers

    @property
    def state_width(self) -> int:
        """Width K of the base's states."""
        assert self.layer_in_dim is not None
        return self.layer_in_dim

    @property
    def layer_states(self) -> tuple[int, ...]:
        """The state number of every layer."""
        assert self.layers_num is not None
        first = 0 if self.include_embeddings else 1
        return tuple(range(first, first + self.layers_num))

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that the model has: all of them, the one picked, or those that a truncation kept."""
        assert self.layers_num is not None
        if self.pick_one_layer_only is not None:
            return (self.pick_one_layer_only % self.layers_num,)
        return tuple(range(self.layers_num) if self.kept_layers is None else self.kept_layers)

    @property
    def learns_distribution(self) -> bool:
        """Whether the distribution is a parameter."""
        return not self.freeze_distribution and self.pick_one_layer_only is None

    @property
    def reads_raw_states(self) -> bool:
        """Whether the head reads the base's states without any projection."""
        return self.mix == "scalar" and self.head == "linear"

    @property
    def mixed_width(self) -> int:
        """Width of the mixed states that the head reads."""
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
            raise ConfigError(f"classes_weights={weights}: only classification into one of several classes has them")
        if len(weights) != self.num_labels:
            raise ConfigError(f"classes_weights={weights}: {len(weights)} weights for {self.num_labels} classes")
        if min(weights) < 0 or max(weights) == 0:
            raise ConfigError(f"classes_weights={weights} must not be negative, nor all 0")

    def _fit_base(self, base: PreTrainedConfig) -> None:
        """Take what is open from the base, and refuse what contradicts it."""
        width, states = base.hidden_size, base.num_hidden_layers + (1 if self.include_embeddings else 0)
        if self.layer_in_dim not in (None, width):
            raise ConfigError(f"layer_in_dim={self.layer_in_dim}: the states of the base have width {width}")
        layers = states if self.layers_num is None else self.layers_num
        if layers > states:
            raise ConfigError(f"layers_num={layers}: the base has {states} states to mix")
        if layers < states and not self.seed_compat:
            raise ConfigError(f"layers_num={layers} must be {states}, the states to mix; seed_compat=true allows fewer")
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
        # A distribution starts uniform, where every weight is 1 / L.
        if self.distribution_cutoff < 0 or (picked is None and self.distribution_cutoff * layers >= 1.0):
            raise ConfigError(
                f"distribution_cutoff={self.distribution_cutoff} must lie in [0, 1/{layers}): "
                f"the uniform start gives each of the {layers} layers 1/{layers}"
            )
