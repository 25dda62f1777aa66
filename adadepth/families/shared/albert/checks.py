"""What the sizes of an ALBERT need of each other and of the data."""

from collections.abc import Iterator

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.kinds import positions_read
from adadepth.families.shared.albert.settings import AlbertSettings

_SIZES = (
    "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip


def check_sizes(config: ExperimentConfig) -> Iterator[str]:
    """Every size is known, heads divide the width, and there are positions for the data's sequences."""
    model = config.model
    assert isinstance(model, AlbertSettings)
    if model.pretrained is None and config.mode is Mode.train:
        for name in _SIZES:
            if getattr(model, name) is None:
                yield f"model.{name}: a value is missing; without model.pretrained there is nothing to take it from"
    heads, hidden, positions = model.num_attention_heads, model.hidden_size, model.max_position_embeddings
    if heads is not None and hidden is not None and heads >= 1 and hidden % heads:
        yield f"model.num_attention_heads={heads}: must divide model.hidden_size={hidden}"
    key, needed = positions_read(config.dataset)
    if positions is not None and needed > positions:
        yield f"{key}={needed}: the model has only model.max_position_embeddings={positions} positions"
