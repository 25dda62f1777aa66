"""Models whose configuration is one of transformers' own, under trainers that gather outputs."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

_KEY = "keys_to_ignore_at_inference"


class WithStockConfig(PreTrainedModel):
    """Tells stock trainers to keep the logits alone, and nobody else: the checkpoint stays transformers' own."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        setattr(self.config, _KEY, ["trace", "loss_parts"])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, and the configuration as it was given."""
        told = vars(self.config).pop(_KEY, None)
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            if told is not None:
                setattr(self.config, _KEY, told)
