"""What a dashboard shows of a run first, and what W&B keeps of a run in its table."""

from typing import NamedTuple

from adadepth.config import ExperimentConfig


class Panel(NamedTuple):
    """A chart: its section, its title, the metrics in it; each is there in the runs that have it."""

    section: str
    title: str
    metrics: tuple[str, ...]


PANELS = (
    Panel("Quality", "Loss", ("train/loss", "eval/loss")),
    Panel("Quality", "Task", ("eval/score", "eval/accuracy", "eval/token_accuracy", "eval/mlm_accuracy",
                              "eval/perplexity")),
    Panel("Depth", "Mean depth", ("halting/all/mean", "halting/expected_steps", "halting/layers/expected_depth",
                                  "search/expected_blocks")),
    Panel("Depth", "Does depth adapt?", ("halting/effective_depths", "halting/effective_depths_within")),
    Panel("Depth", "Depth and difficulty", ("halting/spearman_depth_loss", "halting/spearman_depth_difficulty")),
    Panel("Depth", "Price", ("halting/ponder_cost", "halting/kl", "budget/measured", "budget/target")),
    Panel("Work", "Work that the depths need, of full depth", ("cost/adaptive_over_full",)),
    Panel("Work", "Work as the evaluation ran, of full depth", ("cost/executed_over_full",)),
    Panel("Work", "Measured speed", ("cost/speedup_over_dense", "train/tokens_per_second", "eval/tokens_per_second")),
)  # fmt: skip
_SHOWN = frozenset(metric for panel in PANELS for metric in panel.metrics)


def summary_of(name: str, config: ExperimentConfig) -> str | None:
    """Which value of a metric W&B keeps for its table of runs: `min`, `max`, the last (None), or `none`.

    The best is that of the loss and of the metric which selects the model.
    """
    trainer = config.trainer
    if trainer.metric_for_best_model and name == "eval/" + trainer.metric_for_best_model.removeprefix("eval_"):
        return "max" if trainer.greater_is_better else "min"
    if name == "eval/loss":
        return "min"
    is_quality = name.startswith("eval/") and name.count("/") == 1
    return None if name in _SHOWN or is_quality else "none"
