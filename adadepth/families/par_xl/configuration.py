"""Configuration of the PAR Transformer-XL: of the supernet, and of the fixed networks derived from it."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.families.par_xl.adaptive_softmax import check_cutoffs, check_widths
from adadepth.families.par_xl.architectures import OPERATIONS, alternating, parse_architecture
from adadepth.families.par_xl.settings import ParXLFields
from adadepth.families.shared.configuration import FamilyConfig


@strict
class ParXLConfig(FamilyConfig, settings=ParXLFields):
    """A Transformer-XL whose blocks each run one operation (Mandava et al. 2020, arXiv 2009.04534).

    With an `architecture` the network is fixed; without one it is the supernet that searches for it.
    """

    # What a stock `Trainer` need not collect of an evaluation.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "loss_parts", "token_losses", "memory", "past_key_values", "hidden_states", "attentions", "gate_probabilities",
        "trace",
    ]  # fmt: skip

    architecture: str | None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.architecture is not None:
            self.architecture = parse_architecture("architecture", self.architecture)
            self.num_hidden_layers = len(self.architecture)
        self._check_heads()
        check_cutoffs(self.cutoffs, self.vocab_size)
        if self.proj_dims is not None:
            check_widths(self.proj_dims, len(self.cutoffs))
        self._check_costs()

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that each block can run: all of them in the supernet, one in a fixed network."""
        return tuple(self.architecture or [OPERATIONS] * self.num_hidden_layers)

    @property
    def attending(self) -> list[int]:
        """The numbers of the blocks that can attend, A of them."""
        return [number for number, operations in enumerate(self.operations) if "s" in operations]

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

    def _check_heads(self) -> None:
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
