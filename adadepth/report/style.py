"""Colours and line styles of report pages and figures."""

from __future__ import annotations

import math

# Light to dark, even in lightness; the first is still visible on white.
_RAMP_ENDS = ((226, 238, 250), (107, 160, 212), (8, 41, 92))

# Okabe and Ito's palette, without yellow: told apart with any colour vision, and different in lightness.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
# Of attention, feed-forward and identity: dark, middle and light, so that they differ without any hue.
OPERATION_COLORS = ("#123f7c", "#e69f00", "#dfe3e8")
INK, MUTED, GRID = "#1b1f24", "#57606a", "#e3e7eb"
NONE = "#fdfeff"  # a share of nothing in a heat map
WRONG, NOTHING = "#d55e00", "#eceef1"  # a mistake; a unit for which nothing was computed
MARKER_SHAPES = ("circle", "square", "triangle", "diamond", "wedge")


def ramp(position: float) -> str:
    """Return the colour at a position of the colour ramp, from 0 (lightest) to 1 (darkest), as #rrggbb."""
    scaled = min(max(position, 0.0), 1.0) * (len(_RAMP_ENDS) - 1)
    lower = min(int(scaled), len(_RAMP_ENDS) - 2)
    share = scaled - lower
    mixed = (round(a + (b - a) * share) for a, b in zip(_RAMP_ENDS[lower], _RAMP_ENDS[lower + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


BAR, SPREAD, MIDDLE = ramp(0.75), ramp(0.5), ramp(1)


def get_share_color(share: float) -> str:
    """Return the colour of a share, on a square-root scale so that shares of a few percent remain distinguishable."""
    return ramp(math.sqrt(share))


def get_dash(index: int, dashes: int) -> int:
    """Return the dash style of the n-th curve."""
    return (index + index // len(LINES)) % dashes


def get_shape_style(index: int) -> tuple[str, str]:
    """Return colour and marker shape of the n-th group of points."""
    return LINES[index % len(LINES)], MARKER_SHAPES[index % len(MARKER_SHAPES)]


def get_depth_color(depth: float, max_updates: int) -> str:
    """Return the colour of a depth on the fixed scale 1..max_updates. A depth of 0 is grey."""
    return ramp((depth - 1) / max(max_updates - 1, 1)) if depth > 0 else NOTHING


def get_text_color(background: str) -> str:
    """Return black or white, whichever has the higher contrast on `background`."""
    return (
        "#000000" if compute_contrast(background, "#000000") >= compute_contrast(background, "#ffffff") else "#ffffff"
    )


def compute_contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two #rrggbb colours, 1 to 21 (WCAG 2.2, relative luminance of sRGB)."""
    low, high = sorted(map(_compute_luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def _compute_luminance(color: str) -> float:
    channels = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
