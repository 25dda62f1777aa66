"""The reference of ACT-ALBERT with prescribed halting probabilities, or with the states of Graves' ACT."""

import pytest
import torch

from adadepth.models.albert_act import reference
from tests.parity.references_support import select_options


def encode_variant(weights, config, ids, segments, positions=None, prescribed=None):
    """Encode one unpadded sequence with the `state_rule` of a configuration, `single` or `graves`.

    `prescribed` has a halting probability per token; the gradient of the halting unit lives. With `graves`, the next
    update reads y_n, and the results are the sums of w_n y_n (Graves 2016, equation 9).
    """
    positions = torch.arange(len(ids)) if positions is None else positions
    compute = reference.compute_halting_probabilities

    def prescribe_probability(weights, y):
        p = compute(weights, y)
        return torch.as_tensor(prescribed) + (p - p.detach())

    with pytest.MonkeyPatch.context() as patch:
        if prescribed is not None:
            patch.setattr(reference, "compute_halting_probabilities", prescribe_probability)
        if config.state_rule == "graves":
            patch.setattr(reference, "interpolate", lambda w, y, x: y)
        halting = reference.encode(weights, ids, segments, positions, **select_options(reference.encode, config))
    if config.state_rule != "graves":
        return halting
    results = []
    for masses, remainder, outputs in zip(halting.probabilities, halting.remainders, halting.trails, strict=True):
        shares = [*masses[:-1], remainder if remainder > 0 else masses[-1]]
        results.append(sum(share * y for share, y in zip(shares, outputs, strict=True)))
    return halting._replace(states=torch.stack(results))
