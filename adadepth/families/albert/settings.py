"""The settings of plain ALBERT."""

from dataclasses import dataclass

from adadepth.config import family_name
from adadepth.families.shared.albert.settings import AlbertSettings


@dataclass
class PlainAlbertSettings(AlbertSettings):
    """Plain ALBERT (Lan et al. 2020), every layer of it: the baseline."""

    name: str = family_name("albert")
