"""Hydra search path plug-in that adds the configuration folders of model families.

Hydra discovers such plug-ins in the namespace `hydra_plugins` only; this module therefore lives outside `adadepth`.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from adadepth.models.registry import config_folders


class FamilyConfigs(SearchPathPlugin):
    """Search path with the families' folders last, so that no family replaces a YAML file of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the configuration folders of all families."""
        for folder in config_folders():
            search_path.append("families", f"file://{folder}")
