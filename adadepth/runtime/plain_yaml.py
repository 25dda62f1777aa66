"""Parser of YAML files with plain values only."""

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str) -> Any:
    """Parse YAML with plain values, using PyYAML's faster C parser if it is available.

    Raises:
        yaml.YAMLError: If the text is not YAML, or has values that are not plain.
    """
    return yaml.load(text, Loader=_LOADER)
