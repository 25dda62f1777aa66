"""The kinds of data by the name that YAML files extend, and what is asked of all of them."""

from adadepth.config.dataset import DatasetConfig
from adadepth.config.generated import AdditionConfig, FieldConfig, HopsConfig, LabelledUnit, MazeConfig, ParityConfig
from adadepth.config.puzzles import DrawnPuzzleConfig, MazePathConfig, PuzzleTableConfig, SudokuConfig
from adadepth.config.tables import (
    AgreementConfig,
    ChoiceConfig,
    LabelledConfig,
    QuestionConfig,
    SentEvalConfig,
    TaggingConfig,
    TreebankConfig,
)
from adadepth.config.text import CorpusConfig, StreamConfig

DATASET_SCHEMAS: dict[str, type[DatasetConfig]] = {
    "addition_task": AdditionConfig,
    "agreement_task": AgreementConfig,
    "corpus": CorpusConfig,
    "hops_task": HopsConfig,
    "labelled": LabelledConfig,
    "maze_path_task": MazePathConfig,
    "maze_task": MazeConfig,
    "multiple_choice": ChoiceConfig,
    "parity_task": ParityConfig,
    "puzzles": PuzzleTableConfig,
    "question_answering": QuestionConfig,
    "senteval_task": SentEvalConfig,
    "stream": StreamConfig,
    "sudoku_task": SudokuConfig,
    "tagging": TaggingConfig,
    "trees": TreebankConfig,
}


def labels_tokens(dataset: DatasetConfig) -> bool:
    """Whether every token, or every word, of a sequence has a label, and not the sequence."""
    if isinstance(dataset, HopsConfig):
        return dataset.unit is LabelledUnit.token
    return isinstance(dataset, TaggingConfig | MazeConfig | AdditionConfig)


def has_puzzles(dataset: DatasetConfig) -> bool:
    """Whether an answer has many cells, all of which have to be right."""
    return isinstance(dataset, DrawnPuzzleConfig | PuzzleTableConfig)


def positions_read(dataset: DatasetConfig) -> tuple[str, int]:
    """The setting that says how many positions a model must know, and its value."""
    if isinstance(dataset, FieldConfig):
        return "dataset.field", dataset.field
    return "dataset.sequence_length", dataset.sequence_length
