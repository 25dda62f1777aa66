"""Settings formatted as command-line overrides that Hydra parses back to the same values."""

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException


def format_override(key: str, value: object) -> str:
    """Format a setting as one word `key=value` of a command line, with quotes if Hydra's grammar requires them.

    Quotes for the shell are not included; `shlex.join` adds them.
    """
    text = str(value)
    plain = f"{key}={text}"
    return plain if "${" not in text and _reads_back(plain, text) else f"{key}={escape_references(quote_text(text))}"


def quote_text(text: str) -> str:
    """Put a text in double quotes for Hydra, with its own quotes escaped."""
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def escape_references(text: str) -> str:
    """Escape `${...}` in a text, so that OmegaConf does not resolve it as a reference."""
    return text.replace("${", "\\${")


def _reads_back(override: str, text: str) -> bool:
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return not parsed.is_sweep_override() and isinstance(parsed.value(), str | int) and str(parsed.value()) == text
