"""Lets Hydra look for YAML files in the folders that families bring along.

Hydra discovers such a plug-in in the namespace `hydra_plugins` only, which is why it is not in `adadepth`.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from adadepth.families.registry import config_folders


class FamilyConfigs(SearchPathPlugin):
    """Searched after everything else, so that no family replaces a YAML file of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folders."""
        for folder in config_folders():
            search_path.append("families", f"file://{folder}")
