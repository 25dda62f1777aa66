"""Configuration of ACT-ALBERT."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError, nearest
from adadepth.halting.act import CAP_REMAINDERS, STATE_RULES

CHOICES = {
    "penalty_reduction": ("sum_tokens", "mean_tokens"),
    "cap_remainder": CAP_REMAINDERS,
    "state_rule": STATE_RULES,
    "halting_input": ("block_output", "block_input"),
    "halting_scope": ("token", "sequence"),
}


@strict
class AlbertActConfig(PreTrainedConfig):
    """ALBERT whose tokens choose how often the shared layer updates them (Simoulin & Crabbé 2021).

    Field names are those of the published checkpoints (`asi/albert-act-{tiny,small,base}`); the halting switches
    default to the published behaviour, so that a published configuration, which has none of them, means what it did.

    Attributes:
        vocab_size: Word pieces.
        embedding_size: Width E of the factorised embeddings.
        hidden_size: Width H of the states.
        num_hidden_layers: The largest number of updates L a token can receive. The weights do not depend on it.
        num_attention_heads: Heads; must divide `hidden_size`.
        intermediate_size: Width F of the feed-forward layer.
        inner_group_num: Kept for the published configurations; only 1 exists.
        hidden_act: Activation; `gelu_new` is the tanh form the published weights were trained with.
        hidden_dropout_prob: Dropout on embeddings and block outputs.
        attention_probs_dropout_prob: Dropout on attention weights.
        classifier_dropout_prob: Dropout before the task heads; the sentence-order head has none, as in training.
        max_position_embeddings: Positions P.
        type_vocab_size: Segment types.
        initializer_range: Standard deviation of the normal initialisation.
        layer_norm_eps: Epsilon of every layer norm.
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
    """

    model_type = "albert_act"

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: int | float = 0.0
    attention_probs_dropout_prob: int | float = 0.0
    classifier_dropout_prob: int | float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    tie_word_embeddings: bool = True
    act_epsilon: float = 0.01
    act_penalty: int | float = 0.0
    penalty_reduction: str = "sum_tokens"
    cap_remainder: str = "reference"
    state_rule: str = "single"
    halting_input: str = "block_output"
    halting_scope: str = "token"
    halt_bias_init: int | float = 0.0

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )
        if not 0.0 < self.act_epsilon < 1.0:
            raise ConfigError(f"act_epsilon={self.act_epsilon} must lie between 0 and 1, both excluded")
        if self.act_penalty < 0:
            raise ConfigError(f"act_penalty={self.act_penalty} must not be negative")
        if self.inner_group_num != 1:
            raise ConfigError(f"inner_group_num={self.inner_group_num} is not supported; only 1 exists")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} must be one of {', '.join(allowed)}{nearest(value, allowed)}")
