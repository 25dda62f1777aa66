"""Parser for YAML files that contain plain values only."""

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values, with the much faster C parser if PyYAML has it.

    Raises:
        yaml.YAMLError: If the text is not YAML, or has values that are not plain.
    """
    return yaml.load(text, Loader=_LOADER)
