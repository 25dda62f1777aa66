"""Numbers for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def number(value: Any, digits: int = 3) -> str:
    """A number: thousands separated, `digits` decimals, powers of ten where it is very large or small."""
    if not is_number(value):
        return "not available" if value is None else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3e}"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def rounded(digits: int) -> Callable[[Any], str]:
    """`number` with so many decimals."""
    return lambda value: number(value, digits)


def percent(share: float) -> str:
    """A share in percent, with one decimal."""
    return f"{100 * share:.1f}%"


def signed(value: float) -> str:
    """A correlation, with its sign and three decimals."""
    return f"{value:+.3f}"


def interval(found: tuple[float, float]) -> str:
    """Two ends with their signs."""
    return f"{found[0]:+.3f} to {found[1]:+.3f}"


def spread(found: dict[str, float]) -> str:
    """Mean and standard deviation."""
    return f"{found['mean']:.2f} ± {found['std']:.2f}"


def clock(seconds: float) -> str:
    """Seconds as 1 h 02 min 03 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min {rest:02d} s"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def is_number(value: Any) -> bool:
    """Whether a value of a file is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_ASCII = str.maketrans({"–": "-", "±": "+-", "…": "...", "×": "x"})


def plain(text: str) -> str:
    """Text with this project's own signs in ASCII, for terminals and log files."""
    return text.translate(_ASCII)
