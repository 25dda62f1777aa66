"""Cache policies of looped models: the loops of a token whose keys and values are stored."""

from __future__ import annotations

from dataclasses import dataclass

from adadepth.errors import ConfigError, nearest

POLICIES = ("all", "frozen", "last", "mean", "first", "ring:K")


@dataclass(frozen=True)
class Policy:
    """Cache policy of a looped model: the loops of a token whose keys and values are stored.

    Attributes:
        name: `all`, `frozen`, `last`, `mean`, `first` or `ring`.
        ring: Number K of entries of a ring.
    """

    name: str
    ring: int = 1

    def core_entries(self, loops: int) -> int:
        """Return the number of cache entries per token in a core layer, for N loops."""
        return {"all": loops, "frozen": loops, "ring": self.ring}.get(self.name, 1)

    def coda_entries(self, loops: int) -> int:
        """Return the number of cache entries per token in a coda layer, which runs after every loop."""
        return loops if self.name in ("all", "frozen") else 1

    def __str__(self) -> str:
        return f"ring:{self.ring}" if self.name == "ring" else self.name


def parse_policy(written: str) -> Policy:
    """Parse the name of a cache policy, such as `ring:4`.

    Raises:
        ConfigError: If there is no policy with this name.
    """
    name, colon, number = written.partition(":")
    if name == "ring" and colon and number.isdecimal() and int(number) >= 1:
        return Policy("ring", int(number))
    if colon or name == "ring" or name not in POLICIES:
        hint = "" if name == "ring" else nearest(name, [policy.partition(":")[0] for policy in POLICIES])
        raise ConfigError(f"cache_policy={written}: must be one of {', '.join(POLICIES)} with K at least 1{hint}")
    return Policy(name)
