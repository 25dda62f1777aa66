"""Configuration of the PAR Transformer-XL: of the supernet, and of the fixed networks derived from it."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.config import GatePath
from adadepth.errors import ConfigError, nearest
from adadepth.families.par_xl.adaptive_softmax import check_cutoffs
from adadepth.families.par_xl.architectures import OPERATIONS, alternating, parse_architecture
from adadepth.families.par_xl.settings import ParXLSettings
from adadepth.families.shared.configuration import FamilyConfig
from adadepth.halting.gates import gate_temperature

_PATHS = tuple(map(str, GatePath))


@strict
class ParXLConfig(FamilyConfig, settings=ParXLSettings):
    """A Transformer-XL whose blocks each run one operation (Mandava et al. 2020, arXiv 2009.04534).

    With an `architecture` the network is fixed; without one it is the supernet that searches for it.

    Attributes:
        vocab_size: Words V.
        hidden_size: Width d of the states.
        num_hidden_layers: Blocks N; an `architecture` fixes them.
        num_attention_heads: Heads; must divide `hidden_size`.
        intermediate_size: Inner width of the feed-forward blocks.
        hidden_act: Their activation.
        architecture: One character a block: `s` attention, `f` feed-forward, `-` identity. None: the supernet.
        memory_length: Positions M before a segment that its queries see, at most.
        clamp_length: Distances beyond this look like this one; None: none is too large.
        same_length: Let every query see exactly the last `memory_length` positions, itself included.
        cutoffs: First word of every tail of the adaptive softmax, ids sorted by frequency; none: a plain softmax.
        proj_factor: Each tail's vectors are so many times narrower than those of the cluster before.
        softmax_bias: Biases in the softmax.
        tie_word_embeddings: Share the softmax's word vectors with the embedding, which then has the same clusters.
        hidden_dropout_prob: Dropout on embeddings, on what a branch adds, and on the final state.
        attention_probs_dropout_prob: Dropout on attention weights.
        activation_dropout_prob: Dropout inside the feed-forward blocks.
        attention_scale: Scores are divided by the `sqrt` of the head's width, or by the width itself (`linear`).
        attention_out_act: Activation behind the attention's output projection.
        branch_norm: `per_branch`: LN(x + branch(x)) of each branch and x itself are mixed; `paper`: one norm behind
            the mix, LN(x + sum of weighted branches), also where the operation is the identity.
        share_position_bias: One pair of biases u, v for all blocks (Dai et al. 2019), or a pair for each.
        projection_bias: Biases in the five projections of attention: queries, keys, values, positions, output.
        layer_norm_eps: Epsilon of every layer norm.
        initializer: Initial weights: `normal`, or `glorot` (Glorot & Bengio 2010; Keras' defaults for every kind).
        initializer_range: Standard deviation of the normal initialisation.
        tau_start: Temperature of the gates at the first update, > 0.
        tau_end: At the last one, > 0.
        tau_schedule: How it gets there; see `gate_temperature`.
        straight_through: Mix with one-hot weights that have the gradient of the soft ones.
        gate_path: In training, mix all operations with noisy weights (`soft`), or run one `sampled` operation a block.
        gate_seed: Of noise and paths, the same on all processes.
        latency_weight: Weight of the expected cost in the loss, >= 0.
        operation_costs: Cost of attention, feed-forward and identity in any one unit; seconds under a budget.
    """

    model_type = "par_xl"

    architecture: str | None
    clamp_length: int | None = None
    same_length: bool = False
    tau_start: int | float = 1.0
    tau_end: int | float = 0.1
    tau_schedule: str = "exponential"
    straight_through: bool = False
    gate_path: str = "soft"
    gate_seed: int = 0
    latency_weight: int | float = 0.0
    operation_costs: list[int | float] | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.architecture is not None:
            self.architecture = parse_architecture("architecture", self.architecture)
            self.num_hidden_layers = len(self.architecture)
        self._check_numbers()
        check_cutoffs(self.cutoffs, self.vocab_size)
        gate_temperature(0, 1, self.tau_start, self.tau_end, self.tau_schedule)
        self._check_costs()

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that each block can run: all of them in the supernet, one in a fixed network."""
        return tuple(self.architecture or [OPERATIONS] * self.num_hidden_layers)

    @property
    def path(self) -> list[int]:
        """The number of every block's operation in a fixed network."""
        assert self.architecture is not None
        return [OPERATIONS.index(operation) for operation in self.architecture]

    @property
    def relative_costs(self) -> list[float] | None:
        """`operation_costs` over the cost of attention and feed-forward in turn in as many blocks."""
        if self.operation_costs is None:
            return None
        costs = dict(zip(OPERATIONS, self.operation_costs, strict=True))
        reference = sum(costs[operation] for operation in alternating(self.num_hidden_layers))
        return [cost / reference for cost in self.operation_costs]

    @property
    def full_latency(self) -> float:
        """Milliseconds of attention and feed-forward in turn in as many blocks."""
        return self.latency_of(alternating(self.num_hidden_layers))

    @property
    def dearest_latency(self) -> float:
        """Milliseconds of as many blocks of the dearest operation."""
        return max(self.latency_of(operation * self.num_hidden_layers) for operation in OPERATIONS)

    def latency_of(self, architecture: str) -> float:
        """Milliseconds of all blocks of an architecture, as the sum of what each takes by itself."""
        assert self.operation_costs is not None
        return 1e3 * sum(self.operation_costs[OPERATIONS.index(operation)] for operation in architecture)

    def _check_numbers(self) -> None:
        for name in ("gate_seed", "latency_weight", "clamp_length"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name}={value} must be at least 0")
        if self.gate_path not in _PATHS:
            hint = nearest(self.gate_path, _PATHS)
            raise ConfigError(f"gate_path={self.gate_path!r} must be one of {', '.join(_PATHS)}{hint}")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )

    def _check_costs(self) -> None:
        costs = self.operation_costs
        if costs is None:
            if self.latency_weight > 0:
                raise ConfigError(
                    f"latency_weight={self.latency_weight} needs operation_costs: of attention, feed-forward, identity"
                )
        elif len(costs) != len(OPERATIONS) or min(costs) < 0 or costs[0] <= 0:
            raise ConfigError(
                f"operation_costs={costs}: needed are three, of attention (> 0), feed-forward and identity (>= 0)"
            )
