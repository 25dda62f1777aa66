"""Diagnostics of the states of a trained model on a few batches of an evaluation set."""

from __future__ import annotations

from typing import Any

import torch

from adadepth.metrics.state_diagnostics import measure_states

_BATCHES, _SEQUENCES = 4, 4


def diagnose_states(trainer: Any, dataset: Any) -> dict[str, Any]:
    """Measure residual, similarity and spectral radius of every update on the first sequences of a data set.

    Args:
        trainer: `DepthTrainer` of a model in one piece that repeats a map of states.
        dataset: Evaluated set.

    Returns:
        The numbers of `sequences` and `tokens`, and those of `radius_sequences` for spectral radii; and `rows`, the
        result of `measure_states`.
    """
    model = trainer.unwrapped_model.eval()
    examples = [dataset[index] for index in range(min(len(dataset), _BATCHES * _SEQUENCES))]
    batches = []
    for start in range(0, len(examples), _SEQUENCES):
        batch = trainer.prepare_batch(trainer.data_collator(examples[start : start + _SEQUENCES]))
        with torch.no_grad():
            batches.append(model.build_state_maps(trainer.model_inputs(batch)))
    return {
        "sequences": sum(len(maps.start) for maps in batches),
        "tokens": sum(int(maps.valid.sum()) for maps in batches),
        "radius_sequences": len(batches[0].start),
        "rows": measure_states(batches),
    }
