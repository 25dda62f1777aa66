"""Settings of the plain ALBERT family."""

from dataclasses import dataclass

from adadepth.config import family_name
from adadepth.models.shared.albert.settings import AlbertSettings


@dataclass
class PlainAlbertSettings(AlbertSettings):
    """Baseline: plain ALBERT (Lan et al. 2020), which always runs all of its layers."""

    name: str = family_name("albert")
