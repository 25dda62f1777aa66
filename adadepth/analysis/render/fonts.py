"""A font without rules of shaping, for PDF files.

Every PDF holds the letters that it shows, as journals ask for. To cut them out of DejaVu Sans, matplotlib reads how the
letters of all its scripts are joined, which takes as long as the drawing, and which no label needs.
"""

from __future__ import annotations

FAMILY = "DejaVu Sans without shaping"
WEIGHTS = {"DejaVuSans.ttf": 400, "DejaVuSans-Bold.ttf": 700}
_SHAPING = (b"GDEF", b"GPOS", b"GSUB")
_HEADER, _RECORD = 12, 16  # bytes of a TrueType file: before its list of tables, and of an entry of that list


def without_shaping(font: bytes) -> bytes:
    """A TrueType font whose list of tables leaves out those of shaping; all else stays in its place."""
    count = int.from_bytes(font[4:6], "big")
    end = _HEADER + _RECORD * count
    records = [font[start : start + _RECORD] for start in range(_HEADER, end, _RECORD)]
    kept = b"".join(record for record in records if record[:4] not in _SHAPING)
    header = font[:4] + (len(kept) // _RECORD).to_bytes(2, "big") + font[6:_HEADER]
    return header + kept.ljust(end - _HEADER, b"\0") + font[end:]
