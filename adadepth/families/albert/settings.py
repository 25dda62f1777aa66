"""The settings of plain ALBERT."""

from dataclasses import dataclass

from adadepth.declaration import setting
from adadepth.families.shared.albert.settings import AlbertSettings


@dataclass
class PlainAlbertSettings(AlbertSettings):
    """Plain ALBERT (Lan et al. 2020), every layer of it: the baseline."""

    name: str = setting("albert", "the family")
