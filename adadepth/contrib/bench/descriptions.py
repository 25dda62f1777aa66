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
    "margin": "exit by the margin of the two likeliest answers",
    "quantile": "exit when the cumulative halting probability exceeds the threshold",
    "correct": "exit when that probability exceeds the threshold",
}

COLUMNS = (
    (
        "method, exit rule",
        "The trained method and what stops its units. run: the depths that the network has by itself. budget: mean "
        "depths that are set after training. fixed: one network, stopped after a fixed number of updates. Any other "
        "name is that exit rule.",
    ),
    (
        "score",
        "Mean over seeds, ± one standard error over seeds and examples. The score of language models is minus the "
        "loss in nats. Scores below 0 are log-likelihoods: 98% of the likelihood is the best score plus log 0.98.",
    ),
    (
        "compute",
        "Compute of a unit as a share of the most that any method of the task spends, ± one standard error over seeds "
        "and examples. On sets after the first, the compute of runs that halt by themselves was not measured; "
        "updates stand for it.",
    ),
    (
        "compute for 98%",
        "The least compute that keeps 98% of the best score of the task. A dash: the method does not keep it with "
        "every seed.",
    ),
    (
        "equal steps",
        "All methods were trained for the same number of steps. A second stage on a frozen network comes on top.",
    ),
    (
        "equal training compute",
        "All methods were trained with as much compute as the deepest network. Shallow networks get more steps.",
    ),
    ("correlation with difficulty", "Spearman correlation of a unit's updates with its known difficulty."),
    ("selected setting", "The settings or thresholds that the seeds selected."),
    (
        "updates above the oracle",
        "Mean updates beyond the first update from which on the answer stays correct (oracle:stays).",
    ),
    ("score online", "The score where the rule really runs, so that exits change what other units see."),
    ("score, permuted exits", "The score of the same exits, assigned to units at random."),
    ("score, two fixed depths", "The score of two fixed depths that are mixed at random to the same compute."),
    (
        "calibration error",
        "Expected calibration error of the prediction at the exit (Guo et al. 2017).",
    ),
    ("time", "Measured time as a share of the time of full depth."),
    (
        "overthinking",
        "The best fixed update for all units, and the share of units that are correct at an earlier update and wrong "
        "at the last one.",
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
