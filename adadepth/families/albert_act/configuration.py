"""Configuration of ACT-ALBERT."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.families.albert_act.settings import AlbertActSettings
from adadepth.families.shared.albert.configuration import AlbertShape

# State rules under which a halted token's state stays as it is.
FREEZING_RULES = ("single", "graves")


@strict
class AlbertActConfig(AlbertShape, settings=AlbertActSettings):
    """ALBERT whose tokens choose how often the shared layer updates them (Simoulin & Crabbé 2021).

    Field names are those of the published checkpoints (`asi/albert-act-{tiny,small,base}`); the halting switches
    default to the published behaviour, so that a published configuration, which has none of them, means what it did.

    Attributes:
        act_epsilon: A token halts when its halting sum exceeds 1 - epsilon; in (0, 1). Graves 2016 uses 0.01.
        act_penalty: Weight tau of the ponder cost in the loss, >= 0. The paper trains with 1e-3, 5e-4, 2.5e-4 for 6,
            12, 24 iterations.
        penalty_reduction: `sum_tokens`: summed over a sequence's tokens, averaged over sequences (the paper);
            `mean_tokens`: averaged over tokens (Universal Transformers), independent of the sequence length.
        cap_remainder: What tokens that reach the cap get: `reference` no remainder, hence no gradient of the cost;
            `penalty` 1 - h in the cost only; `forced` also as the weight of their last output.
        state_rule: `single`: the interpolated state feeds the next iteration (the paper); `graves`: weighted sum of
            the outputs, halted states copied; `accumulated`, `basic`: the two rules of tensor2tensor's Universal
            Transformer, where halted states keep moving.
        halting_input: What the halting unit reads: the `block_output` (the paper) or the `block_input`
            (Universal Transformers).
        halting_scope: Whether each `token` halts, or the whole `sequence` on its tokens' mean probability.
        halt_bias_init: Initial bias of the halting unit: 0 in the paper (every token halts at its second update at
            initialisation), +1 in Universal Transformers; negative values start deep.
        readout_weight: Weight of the loss part `readouts`, >= 0: the head also reads the state after every iteration
            that a unit ran; see `adadepth.families.albert_act.readouts`.
        recall: Whether the block reads the embedded input again in every iteration, x_{n-1} + x_0 (Bansal et al. 2022,
            arXiv 2202.05826, "recall"), without which a long recurrence forgets what it was asked.
        fixed_depth: Updates that every token gets, and nobody halts: ALBERT of that depth, the rival of equal work.
        position_init: Initial position embeddings: `normal`, as ALBERT's, or `sinusoidal`, see `sinusoids` in
            `adadepth.families.shared.albert.block`; with more than two token types, rows and columns of a grid.
        execution: `dense` updates every token until the last one has halted; `ragged` running tokens only, with the
            same results; `auto` is ragged where that is faster. A state rule whose halted states keep moving runs
            dense.
    """

    model_type = "albert_act"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.fixed_depth is not None and not 1 <= self.fixed_depth <= self.num_hidden_layers:
            raise ConfigError(
                f"fixed_depth={self.fixed_depth} must lie between 1 and num_hidden_layers={self.num_hidden_layers}"
            )
        check_execution(self)


def check_execution(config: AlbertActConfig) -> None:
    """Refuse a ragged execution where it would give other results.

    Raises:
        ConfigError: Naming the state rules that freeze a halted token.
    """
    if config.execution == "ragged" and config.state_rule not in FREEZING_RULES:
        raise ConfigError(
            f"execution='ragged' needs state_rule {' or '.join(FREEZING_RULES)}: the halted states of "
            f"{config.state_rule!r} keep moving"
        )
