"""Low-rank changes of the core in every loop: relaxed recursion (Bae et al. 2024, arXiv 2410.20672).

All loops share a matrix W of the core, and loop n = 1..N adds a product of rank r:

    W_n = W + B_n A_n          A_n is (r, in), B_n is (out, r)

A pretrained decoder starts the products from its own layers. W is the mean of the matrices W'_1..W'_N that the loops
stand for, and B_n A_n is the truncated singular value decomposition of W'_n - W, so B_n = U_r S_r and A_n = V_r'.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import initialization as init

from adadepth.errors import ConfigError
from adadepth.models.shared.layers import Product

_FACTORS = (".loop_a", ".loop_b")  # ends of the names of weights


class LoopProduct(Product):
    """Linear layer whose matrix has a low-rank change of its own in every loop.

    Further loops than it was built for have the change of the last one.

    Args:
        linear: Linear layer whose weights all loops share.
        loops: Number N of loops.
        rank: Rank r of the changes.
    """

    def __init__(self, linear: nn.Linear, loops: int, rank: int) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.loop_a = nn.Parameter(linear.weight.new_empty(loops, rank, linear.in_features))
        self.loop_b = nn.Parameter(linear.weight.new_empty(loops, linear.out_features, rank))
        self.loop = 0

    def forward(self, state: Tensor) -> Tensor:
        """Return W_n x + b, (..., out), for inputs x, (..., in), in loop n = `loop` + 1."""
        number = min(self.loop, len(self.loop_a) - 1)
        low = nn.functional.linear(state, self.loop_a[number])
        return super().forward(state) + nn.functional.linear(low, self.loop_b[number])


def add_loop_products(core: nn.ModuleList, loops: int, rank: int) -> list[LoopProduct]:
    """Replace every linear layer of the core by a `LoopProduct` with the same weights, and return these layers."""
    products = []
    for parent in list(core.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                products.append(LoopProduct(child, loops, rank))
                setattr(parent, name, products[-1])
    return products


def repeat_changes(weights: Mapping[str, Tensor], loops: int) -> dict[str, Tensor]:
    """Return weights of a model with changes for another number of loops; further loops have those of the last one."""
    return {
        name: weight[[min(loop, len(weight) - 1) for loop in range(loops)]] if name.endswith(_FACTORS) else weight
        for name, weight in weights.items()
    }


def draw_factors(layer: LoopProduct) -> None:
    """Initialise the changes as LoRA does: A is random, and B is 0, so that all loops begin with the shared matrix."""
    init.normal_(layer.loop_a, std=layer.in_features**-0.5)
    init.zeros_(layer.loop_b)


def count_loop_products(products: Iterable[LoopProduct]) -> int:
    """Return the MACs of the low-rank changes of one loop per token."""
    return sum(layer.loop_a.shape[1] * (layer.in_features + layer.out_features) for layer in products)


def average_layers(layers: Sequence[nn.Module], loops: int) -> list[nn.Module]:
    """Return layers whose weights are the means over loops.

    Args:
        layers: Layers of N loops in sequence, those of each loop together.
        loops: Number N of loops.
    """
    averaged = []
    for same in _group_by_loop(layers, loops):
        layer = copy.deepcopy(same[0])
        states = [other.state_dict() for other in same]
        means = {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}
        layer.load_state_dict(means)
        averaged.append(layer)
    return averaged


@torch.no_grad()
def decompose_layers(core: nn.ModuleList, layers: Sequence[nn.Module]) -> None:
    """Set the changes of a core to the truncated SVD of what its matrices lack of the layers of each loop.

    Args:
        core: Core with a `LoopProduct` for every matrix.
        layers: Layers that the loops stand for, those of each loop together.
    """
    for shared, same in zip(core, _group_by_loop(layers, len(layers) // len(core)), strict=True):
        products = [(name, module) for name, module in shared.named_modules() if isinstance(module, LoopProduct)]
        for name, product in products:
            rank = product.loop_a.shape[1]
            for number, layer in enumerate(same):
                difference = layer.get_parameter(f"{name}.weight").float() - product.weight.float()
                outputs, values, inputs = torch.linalg.svd(difference, full_matrices=False)
                number_of_values = min(rank, len(values))
                product.loop_a[number].zero_()[:number_of_values] = inputs[:number_of_values]
                product.loop_b[number].zero_()[:, :number_of_values] = (outputs * values)[:, :number_of_values]


def check_kinds(kinds: Sequence[str] | None, core: int) -> None:
    """Raise an error if layers of different kinds, such as local and global attention, would share weights.

    Args:
        kinds: Kinds of the decoder's layers that become the core, or None if all are alike.
        core: Number C of layers of the core.

    Raises:
        ConfigError: If a layer of the core stands for layers of different kinds.
    """
    if kinds is not None and any(len(set(kinds[number::core])) > 1 for number in range(core)):
        raise ConfigError(f"core={core}, loop_lora_rank: a layer of the core stands for layers of different kinds")


def _group_by_loop(layers: Sequence[nn.Module], loops: int) -> list[list[nn.Module]]:
    core = len(layers) // loops
    return [list(layers[number::core]) for number in range(core)]
