"""Descriptions of trained methods and exit rules, and of the columns of the tables, for the page of a bench."""

from __future__ import annotations

from adadepth.contrib.bench.measures import HaltingMethod

_TRAINING = {
    "fixed": "train one fixed depth",
    "layers": "train more layers in place of a repeated block",
    "act": "train ACT with the weighted sum of states",
    "act_single": "train ACT with the interpolated state",
    "mean": "train with a loss after every update",
    "multi_exit": "train with a loss after every update",
    "early_exit": "train different layers with a loss after every exit",
    "early_exit_2": "train two different layers with a loss after each",
    "early_exit_4": "train four different layers with a loss after each",
    "gate": "train with a loss after every update, weighted by a gate",
    "gate_alone": "train a gate on the frozen network",
    "ponder_uniform": "train PonderNet with a uniform prior",
    "ponder_geometric": "train PonderNet with a geometric prior",
    "halting_alone": "train the halting head on the frozen network",
    "correct": "train TRM with its prediction of the probability that the answer is correct",
}
_RULES = {
    "run": "",
    "budget": "calibrate it to another mean depth after training",
    "fixed": "run one fixed number of updates",
    "margin": "exit when the two most probable answers differ enough in probability",
    "quantile": "exit when the cumulative halting probability exceeds the threshold",
    "correct": "exit when that probability exceeds the threshold",
}

COLUMNS = (
    (
        "method, exit rule",
        "The trained method and the rule that stops its units. 'run' means the network's own depths, as trained. "
        "'budget' means that the mean depth was set after training. 'fixed' means that one network was stopped after "
        "a fixed number of updates. Any other name is that of an exit rule.",
    ),
    (
        "score",
        "Mean score over seeds, ± one standard error over seeds and examples. The score of a language model is the "
        "negative loss in nats. Scores below 0 are log-likelihoods, so 98% of the likelihood is the best score plus "
        "log 0.98.",
    ),
    (
        "compute",
        "Compute per unit as a share of that of the most expensive method of the task, ± one standard error over seeds "
        "and examples. On evaluation sets after the first, the compute of networks with their own halting was not "
        "measured, so the share is one of updates.",
    ),
    (
        "compute for 98%",
        "The least compute with which the method reaches 98% of the best score of the task. A dash means that it does "
        "not reach this score with every seed.",
    ),
    (
        "equal steps",
        "All methods were trained for the same number of optimiser steps. The steps of a second stage on a frozen "
        "network are additional.",
    ),
    (
        "equal training compute",
        "All methods were trained with as much compute as the deepest network, so shallow networks were trained for "
        "more optimiser steps.",
    ),
    ("correlation with difficulty", "Spearman correlation of a unit's updates with its known difficulty."),
    ("selected setting", "The settings or thresholds that the seeds selected."),
    (
        "updates above the oracle",
        "Mean number of updates after the first update from which the answer stays correct (oracle:stays).",
    ),
    ("score online", "The score when the rule really stops units, so that exits change what other units read."),
    ("score, permuted exits", "The score if the same exits are assigned to the units at random."),
    (
        "score, two fixed depths",
        "The score of a random mixture of two fixed depths with the same compute as the exit rule.",
    ),
    (
        "calibration error",
        "Expected calibration error of the prediction at the exit (Guo et al. 2017).",
    ),
    ("time", "Measured time as a share of the time of full depth."),
    (
        "overthinking",
        "The best fixed number of updates for all units, and the share of units that are correct at an earlier update "
        "and wrong at the last one.",
    ),
)


def describe_method(method: HaltingMethod) -> str:
    """Return how a method is trained and how its units exit, in words.

    The text is empty for a user-defined method.
    """
    training = _TRAINING.get(method.name)
    if training is None:
        return ""
    rule = _RULES.get(method.rule, f"exit by {method.rule}")
    return f"{training}; {rule}" if rule else training
