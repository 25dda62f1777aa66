"""From the supernet to a network without its unused branches and their memories."""

from __future__ import annotations

import copy

from adadepth.errors import ConfigError
from adadepth.families.par_xl.configuration import parse_architecture
from adadepth.families.par_xl.modeling import ParXLForCausalLM, ParXLSupernet


def derive(supernet: ParXLSupernet, architecture: str | None = None, *, keep_weights: bool = True) -> ParXLForCausalLM:
    """The fixed network of an architecture, on the supernet's device and in its precision and mode.

    With the supernet's weights its output is that of the supernet whose gates are one-hot.

    Args:
        supernet: Where the search ended.
        architecture: One operation for every block; None: the most probable ones.
        keep_weights: Take the supernet's weights; otherwise they are fresh, and the blocks may be of any number.

    Raises:
        ConfigError: If it is no architecture, or not one of the supernet's.
    """
    chosen = supernet.architecture() if architecture is None else parse_architecture("architecture", architecture)
    blocks = supernet.config.num_hidden_layers
    if keep_weights and len(chosen) != blocks:
        raise ConfigError(f"architecture={chosen}: {len(chosen)} blocks; the weights are of a supernet with {blocks}")
    config = copy.deepcopy(supernet.config)
    config.architecture, config.num_hidden_layers = chosen, len(chosen)
    config.name_or_path = ""
    network = ParXLForCausalLM(config)
    if keep_weights:
        weights = supernet.state_dict()
        network.load_state_dict({name: weights[name] for name in network.state_dict()})
    network.to(device=supernet.device, dtype=supernet.dtype)  # type: ignore[call-arg]
    return network.train(supernet.training)
