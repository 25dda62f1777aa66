"""Settings shared by the families around a network of transformers: its type and sizes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.config import Attention, ExperimentConfig, ModelConfig
from adadepth.config.declaration import at_least, between, setting

# Decoders of transformers in whose own layout models around their layers are written and read; tests cover these.
DECODERS = ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "gemma2", "mistral")


@dataclass
class NetworkSettings(ModelConfig):
    """Type and sizes of a new network of transformers; with `pretrained`, sizes that are None come from there."""

    base: str = setting(
        "llama",
        "type of a new network of transformers, such as bert, modernbert, llama or qwen3; model.pretrained has its own",
        shape=True,
    )
    vocab_size: int | None = setting(
        None, "V, pieces; None: as many as the tokenizer has", at_least(2), shape=True, hub=32000
    )
    hidden_size: int | None = setting(
        None, "D, width; None: that of model.pretrained", at_least(1), shape=True, hub=128, debug=16
    )
    num_hidden_layers: int | None = setting(
        None, "L, layers; None: those of model.pretrained", at_least(1), shape=True, hub=4
    )
    num_attention_heads: int | None = setting(
        None, "must divide hidden_size; None: those of model.pretrained", at_least(1), shape=True, hub=4, debug=2
    )
    num_key_value_heads: int | None = setting(
        None, "heads of keys and values of a decoder; None: as many as of queries", at_least(1), shape=True
    )
    intermediate_size: int | None = setting(
        None,
        "F, inner width of the feed-forward layers; None: that of model.pretrained",
        at_least(1),
        shape=True,
        hub=512,
        debug=32,
    )
    max_position_embeddings: int | None = setting(
        None, "longest text; None: that of model.pretrained, of a new network 512", at_least(1), shape=True, hub=512
    )
    tie_word_embeddings: bool | None = setting(
        None, "one matrix for input and output pieces; None: as the base has it", shape=True
    )
    initializer_range: float | None = setting(
        None, "standard deviation of initial weights; None: that of the base", between(0, 10)
    )
    dropout: float | None = setting(
        None,
        "probability of every dropout of the network; None: those of its type or of model.pretrained",
        between(0, 1),
    )
    attn_implementation: Attention | None = setting(None, "None: the best that torch offers here", in_model=False)


def check_network(config: ExperimentConfig, adapts_frozen: bool = False) -> Iterator[str]:
    """Yield an error for each size that a new network lacks, and for low-rank adapters without a matrix to adapt.

    Args:
        config: Settings of a run whose group `model` has the field `trains`.
        adapts_frozen: Whether adapters have other matrices where the network is frozen.
    """
    model: Any = config.model
    if (rank := config.trainer.lora.rank) is not None and model.trains != "all" and not adapts_frozen:
        yield f"trainer.lora.rank={rank}: model.trains={model.trains} freezes the network; set model.trains=all"
    if model.pretrained is None:
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            if getattr(model, name) is None:
                yield f"model.{name}=null: must be given, unless model.pretrained names a network of transformers"


def add_no_tokens(model: Any) -> dict[str, Any]:
    """Return no [CLS] tokens for `Family.first_tokens`: the tokenizer adds them as the network was pretrained."""
    return {"cls_tokens": 0}
