"""What is stored of a frozen base."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.declaration import POSITIVE, at_least, setting

StatePrecision = StrEnum("StatePrecision", ["fp32", "bf16", "fp16"])


@dataclass
class FeaturesConfig:
    """Hidden states of a frozen base, computed once and read again in every epoch, run and seed."""

    cache: bool = setting(True, "false: run the base in every epoch")
    precision: StatePrecision = setting(StatePrecision.fp32, "of the stored states; fp16 and bf16 halve the disk space")
    limit_gib: float = setting(100.0, "refuse to write more", POSITIVE, neutral=True)
    batch_tokens: int = setting(8192, "padded tokens at once while computing", at_least(1))
