"""A font without rules of shaping, for PDF files.

Every PDF holds the letters that it shows, as journals ask for. To cut them out of DejaVu Sans, fontTools reads how the
letters of all its scripts are joined, which takes as long as the drawing, and which no label needs.
"""

from __future__ import annotations

import os
from pathlib import Path

FAMILY = "Adadepth Sans"
ORIGINAL = "DejaVu Sans"
FILES = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
_SHAPING = ("GDEF", "GPOS", "GSUB")


def without_shaping(source: Path, target: Path) -> Path:
    """Write a copy of one of `FILES` in the family `FAMILY`, if it is not there; other processes may be at it, too."""
    if target.exists():
        return target
    from fontTools.ttLib import TTFont

    font = TTFont(source)
    for table in (table for table in _SHAPING if table in font):
        del font[table]
    for record in font["name"].names:
        text = record.toUnicode().replace(ORIGINAL, FAMILY)
        record.string = text.replace(ORIGINAL.replace(" ", ""), FAMILY.replace(" ", ""))
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    font.save(temporary)
    temporary.replace(target)
    return target
