"""Texts for the page of a bench that explain trained methods, exit rules and table columns."""

from __future__ import annotations

from adadepth.contrib.bench.measures import HaltingMethod

_TRAINING = {
    "fixed": "train one fixed depth",
    "layers": "train a stack of different layers instead of one repeated block",
    "layers_pre": "train a stack of different layers with norms before each branch",
    "layers_gated": "train one recursion for all tokens",
    "act": "train ACT with the weighted sum of states",
    "act_single": "train ACT with the interpolated state",
    "mean": "train with a loss after every update",
    "multi_exit": "train with a loss after every update",
    "early_exit": "train different layers with a loss after every exit",
    "early_exit_2": "train two different layers with a loss after each layer",
    "early_exit_4": "train four different layers with a loss after each layer",
    "mor": "train routers that choose the tokens of each recursion",
    "mor_token": "train a router with which every token chooses its number of recursions",
    "mor_random": "train recursions for tokens that are drawn at random",
    "mor_untied": "train routers that choose the tokens of each of several different layers",
    "mod": "train routers that choose the tokens of every second layer",
    "router_tuning": "train routers on the frozen network",
    "gate": "train a gate with the network, which weights a loss after every update",
    "gate_alone": "train a gate on the frozen network",
    "ponder_uniform": "train PonderNet with a uniform prior",
    "ponder_geometric": "train PonderNet with a geometric prior",
    "halting_alone": "train the halting head on the frozen network",
    "correct": "train TRM to predict the probability that its answer is correct",
}
_RULES = {
    "run": "",
    "budget": "calibrate the halting threshold to another mean depth after training",
    "fixed": "run one fixed number of updates",
    "margin": "exit when the probabilities of the two most probable answers differ by more than the threshold",
    "quantile": "exit when the cumulative halting probability exceeds the threshold",
    "hazard": "exit when the halting probability of the current update exceeds the threshold",
    "correct": "exit when the predicted probability of a correct answer exceeds the threshold",
}

COLUMNS = (
    (
        "method, exit rule",
        "The method is how the network was trained, and the exit rule decides after which update a unit stops. In the "
        "column of exit rules, 'run' means the depths that the network learned in training. In the same column, "
        "'budget' means that the mean depth was set after training, and 'fixed' that every unit gets the same number "
        "of updates.",
    ),
    (
        "score",
        "The score is the mean over seeds, ± one standard error over seeds and examples. The score of a language model "
        "is its negative loss in nats, which is a log-likelihood. For a language model, 98% of the best score is "
        "therefore the best score plus log 0.98.",
    ),
    (
        "compute",
        "Compute is the number of multiply-accumulates per unit, as a share of the most expensive method of the "
        "task, ± one standard error over seeds and examples. It includes the prediction of a unit at its exit, and for "
        "exit rules on predictions the prediction after every update; a note on a task names the methods for which the "
        "compute of this prediction was not recorded. The compute of networks with learned halting was "
        "measured only on the first evaluation set of a task. On the other evaluation sets, the tables have the "
        "share of updates for these networks.",
    ),
    (
        "compute for 98%",
        "This column has the least compute with which the method reaches 98% of the best score of the task, "
        "interpolated between two neighbouring settings. The mark `≈` stands for an interpolation between two "
        "separately trained networks, and `†` for a measured score below the required one. A dash means that the "
        "method does not reach this score with every seed.",
    ),
    (
        "equal steps",
        "All methods in a table with this title were trained for the same number of optimiser steps. Methods that "
        "train a gate or a halting head on a frozen network have the steps of this second stage in addition.",
    ),
    (
        "equal training compute",
        "All methods in a table with this title were trained with as much compute as the deepest network. Shallow "
        "networks were therefore trained for more optimiser steps.",
    ),
    (
        "correlation with difficulty",
        "This column has the Spearman correlation between a unit's number of updates and its known difficulty.",
    ),
    (
        "saved compute",
        "Tables with this title have the score of every exit rule, or the perplexity of a language model, with 5, 10, "
        "20 and 30% of the compute of full depth saved, and at full depth of the same network. A value lies on the "
        "line of score against compute between two measured thresholds of one rule, or between two fixed depths of "
        "one network. A dash means that no measured thresholds enclose this compute, with every seed. There are no "
        "values between separately trained networks.",
    ),
    ("selected setting", "This column lists the settings or thresholds that were selected for the seeds."),
    (
        "updates above the oracle",
        "The oracle `oracle:stays` exits at the first update from which the answer stays correct. The column has "
        "the mean number of updates minus the mean number of updates of this oracle.",
    ),
    (
        "score online",
        (
            "This column has the score of a real run with the exit rule, in which an exited unit changes what other "
            "units read."
        ),
    ),
    (
        "score, permuted exits",
        "This column has the score of a control in which the same exits are assigned to units at random.",
    ),
    (
        "score, two fixed depths",
        "This column has the score of a control in which units get one of two fixed depths at random. The control "
        "has the same compute as the exit rule.",
    ),
    (
        "calibration error",
        "This column has the expected calibration error of the prediction at the exit (Guo et al. 2017).",
    ),
    ("time", "These columns have the measured time of evaluation as a share of the time at full depth."),
    (
        "overthinking",
        "A network overthinks if a unit is correct at an early update and wrong at the last update. The table has the "
        "share of such units, and the fixed number of updates with the best score.",
    ),
)


def describe_method(method: HaltingMethod) -> str:
    """Describe how a method is trained, and how its tokens or sequences exit.

    The text is empty for a user-defined method.
    """
    training = _TRAINING.get(method.name)
    if training is None:
        return ""
    rule = _RULES.get(method.rule, f"exit by {method.rule}")
    return f"{training}; {rule}" if rule else training
