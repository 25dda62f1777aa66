"""Configuration of tiny recursive models."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict

from adadepth.config.declaration import at_least, setting
from adadepth.errors import ConfigError
from adadepth.models.loading import read_published_folder
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig
from adadepth.models.trm.settings import TrmSettings


@strict
class TrmConfig(FamilyConfig, settings=TrmSettings):
    """Configuration of a tiny recursive model for puzzles (Jolicoeur-Martineau 2025, arXiv 2510.04871)."""

    keys_to_ignore_at_inference = [*BESIDE_LOGITS, "carry"]

    # The settings of `TrmSettings`, which documents them, with the values of a file that lacks them.
    vocab_size: int = 11
    hidden_size: int = 512
    num_layers: int = 2
    answer_layers: int | None = None
    mixing: str = "attention"
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    mixing_size: int | None = None
    positions: str = "rotary"
    rope_theta: int | float = 10000.0
    prefix_length: int = 16
    cycles: int = 3
    reasoning_updates: int = 6
    num_steps: int = 16
    exploration: int | float = 0.1
    halt_loss_weight: int | float = 0.5
    answer_loss: str = "stablemax"
    places: int | None = None
    exit_rule: str = "correct:0.5"

    pad_token_id: int | None = 0
    cells: int = setting(81, "L, number of cells of a puzzle", at_least(1), shape=True)
    puzzle_kinds: int = setting(
        1, "number of puzzle embeddings; 1 if all puzzles have the same task", at_least(1), shape=True
    )

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.mixing == "attention" and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}"
            )

    @property
    def length(self) -> int:
        """Number of positions in a sequence, S = P + L."""
        return self.prefix_length + self.cells

    @property
    def inner_width(self) -> int:
        """Inner width F of the feed-forward layers."""
        return self.intermediate_size or published_width(self.hidden_size)

    @property
    def mixing_width(self) -> int:
        """Inner width F_S of the feed-forward layers that mix positions."""
        return self.mixing_size or published_width(self.length)

    @property
    def cycle_blocks(self) -> int:
        """Number of blocks that one cycle applies, n times those that update the reasoning and those of the answer."""
        return self.reasoning_updates * self.num_layers + (self.answer_layers or self.num_layers)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the fields of a configuration, which may be that of a folder of the published code."""
        missing: OSError | None = None
        try:
            fields, options = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        except OSError as error:
            fields, options, missing = {}, kwargs, error
        if not fields and (published := read_published_folder(pretrained_model_name_or_path, kwargs)) is not None:
            return dict(published.config), kwargs
        if missing is not None:
            raise missing
        return fields, options


def published_width(width: int, multiple: int = 256) -> int:
    """Return the published code's inner width of a gated layer: 8/3 of the width, rounded up to a multiple of 256."""
    return -(-round(8 * width / 3) // multiple) * multiple
