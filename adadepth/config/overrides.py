"""Settings written as overrides of a command line, so that Hydra's grammar reads them back as they are."""

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException


def format_override(key: str, value: object) -> str:
    """Write `key=value` as one word of a command line; a text with marks of Hydra's grammar gets quotes.

    The quotes of the shell are not among them: `shlex.join` adds those.
    """
    text = str(value)
    plain = f"{key}={text}"
    return plain if "${" not in text and _reads_back(plain, text) else f"{key}={escape_references(quote_text(text))}"


def quote_text(text: str) -> str:
    """Put a text in double quotes; those within it, and backslashes before a quote, are escaped."""
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def escape_references(text: str) -> str:
    """Return a text in which `${...}` is no reference."""
    return text.replace("${", "\\${")


def _reads_back(override: str, text: str) -> bool:
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return not parsed.is_sweep_override() and isinstance(parsed.value(), str | int) and str(parsed.value()) == text
