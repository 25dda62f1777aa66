"""Names of metrics: those that every tracker takes, and what stands at their end."""

import re

CLASS_SCALARS = ("mean", "std", "p10", "median", "p90", "n", "at_cap", "histogram", "loss", "accuracy")
LAYER_SCALARS = ("entropy", "effective_layers", "expected_depth", "deepest", "active")
ADAPTATION = ("effective_depths", "effective_depths_within", "commonest", "commonest_share")
# What a run costs, as verdict, tiles, comparisons and trackers tell it: the work that the model needs at the depths it
# decided, of that at full depth. How an evaluation happened to run (padding, every step measured, states from a cache)
# is `cost/executed_over_full`, and told as that only.
WORK = "cost/adaptive_over_full"
# Measured times without halted tokens, by what was timed.
SPEEDUPS = {"evaluation": "cost/speedup_over_dense", "training": "cost/training_speedup_over_dense"}
_WORDS = (("<=", "up to"), (">", "over"))


def metric_name(text: str) -> str:
    """A name of letters, digits and `_./-`, from one that data sets and classes have a part in.

    `halting/length <= 5/mean` becomes `halting/length_up_to_5/mean`, `label: no` `label_no`. Letters beyond ASCII
    become their numbers, so that names in other scripts stay apart.
    """
    for sign, word in _WORDS:
        text = text.replace(sign, word)
    text = re.sub(r"[^\x00-\x7f]", lambda letter: f"u{ord(letter[0]):x}", text)
    return re.sub(r"[^A-Za-z0-9_./-]+", "_", text)
