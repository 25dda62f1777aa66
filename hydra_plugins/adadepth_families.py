"""Hydra search-path plug-in that adds the configuration folders of families, data sets, modes, sweepers and loggers.

Hydra discovers such plug-ins only in the namespace `hydra_plugins`, so this module is outside of the package
`adadepth`.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from adadepth.models.registry import config_folders


class FamilyConfigs(SearchPathPlugin):
    """Search path with the folders of plug-ins last, so that none of them replaces a YAML file of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the configuration folders."""
        for folder in config_folders():
            search_path.append("families", f"file://{folder}")
