"""YAML of plain values."""

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values, by the much faster C parser where PyYAML has it.

    Raises:
        yaml.YAMLError: If the text is no YAML, or has other than plain values.
    """
    return yaml.load(text, Loader=_LOADER)
