"""Choice of the scorer of an evaluation set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adadepth.config import DatasetConfig
from adadepth.config.kinds import Problem, get_kind
from adadepth.config.plugins import call_accepting
from adadepth.evaluation.multiple_choice import ChoiceScorer
from adadepth.evaluation.packed_language_model import BlockScorer
from adadepth.evaluation.puzzles import PuzzleScorer
from adadepth.evaluation.question_answering import QuestionScorer
from adadepth.evaluation.scorer import Scorer
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.evaluation.tagging import TaggingScorer

# None: text in packed blocks, which is not labelled.
SCORERS: Mapping[Problem | None, Callable[..., Scorer]] = {
    "classification": SequenceScorer,
    "multi_label": SequenceScorer,
    "regression": SequenceScorer,
    "tagging": TaggingScorer,
    "question_answering": QuestionScorer,
    "multiple_choice": ChoiceScorer,
    "puzzle": PuzzleScorer,
    None: BlockScorer,
}


def build_scorer(dataset: DatasetConfig, problem: Problem | None, **options: Any) -> Scorer:
    """Build the scorer of an evaluation set, with those of the options that it accepts.

    Args:
        dataset: Settings of the data set, whose type may have a scorer of its own.
        problem: Problem of labelled data, or None.
        **options: Further arguments; see `Kind.scorer`.
    """
    importer = get_kind(dataset).scorer
    scorer = SCORERS[problem] if importer is None else importer()
    built: Scorer = call_accepting(scorer, dataset=dataset, **options)
    return built
