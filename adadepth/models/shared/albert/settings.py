"""Settings shared by all ALBERT families, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass

from adadepth.config import Activation, Attention, ExperimentConfig, Mode, ModelConfig
from adadepth.config.declaration import BELOW_ONE, POSITIVE, at_least, setting
from adadepth.config.kinds import get_positions_setting


@dataclass
class AlbertSettings(ModelConfig):
    """Settings of an ALBERT model (Lan et al. 2020): sizes and dropout.

    A field that is null takes its value from `pretrained`. Without `pretrained`, training requires the fields that
    `check_sizes` lists.
    """

    vocab_size: int | None = setting(
        None, "vocabulary size; None: that of the tokenizer", at_least(5), shape=True, hub=30000
    )
    embedding_size: int | None = setting(
        None, "E, width of the factorised embeddings", at_least(1), shape=True, hub=128, debug=16
    )
    hidden_size: int | None = setting(
        None, "H, width of the block and its states", at_least(1), shape=True, hub=4096, debug=32
    )
    num_hidden_layers: int | None = setting(
        None,
        "L, maximum number of iterations of the shared block",
        at_least(1),
        hub=12,
        more="It limits the updates of a token or sequence; the weights of the block do not depend on it.",
    )
    num_attention_heads: int | None = setting(None, "must divide hidden_size", at_least(1), shape=True, hub=64, debug=2)
    intermediate_size: int | None = setting(
        None, "F, inner width of the feed-forward layer", at_least(1), shape=True, hub=16384, debug=64
    )
    hidden_act: Activation | None = setting(
        None,
        "activation of the feed-forward layer",
        hub="gelu_new",
        more="`gelu_new` is the tanh form; the published weights were trained with it.",
    )
    hidden_dropout_prob: float = setting(
        0.0, "dropout after the embeddings, the attention and the feed-forward layer", BELOW_ONE
    )
    attention_probs_dropout_prob: float = setting(0.0, "dropout of the attention weights", BELOW_ONE)
    classifier_dropout_prob: float = setting(
        0.1,
        "dropout before a classification head",
        BELOW_ONE,
        more="The sentence-order head has no dropout, as in the original.",
    )
    max_position_embeddings: int | None = setting(
        None, "P, maximum sequence length, in tokens", at_least(1), shape=True, hub=512
    )
    initializer_range: float = setting(0.02, "standard deviation of the initial weights", POSITIVE)
    layer_norm_eps: float = setting(1e-12, "constant added to the variance in every layer norm", POSITIVE)
    attn_implementation: Attention | None = setting(
        None, "attention implementation; None: the fastest available one", in_model=False
    )


_SIZES = (
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def check_sizes(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error for each invalid size, such as attention heads that do not divide the hidden size."""
    model = config.model
    assert isinstance(model, AlbertSettings)
    if model.pretrained is None and config.mode is Mode.train:
        for name in _SIZES:
            if getattr(model, name) is None:
                yield f"model.{name}: a value is missing; give one, or set model.pretrained"
    heads, hidden, positions = model.num_attention_heads, model.hidden_size, model.max_position_embeddings
    if heads is not None and hidden is not None and heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    key, needed = get_positions_setting(config.dataset)
    if positions is not None and needed > positions:
        yield f"{key}={needed}: the model has only model.max_position_embeddings={positions} positions"
